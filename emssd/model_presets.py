"""Sizes of published models; nothing is loaded.

A preset is the part of the model's published configuration that sizes follow from, so that presets and your own
configurations go through the same reader (`model_config`).
"""

from __future__ import annotations

from typing import Any

from emssd.errors import ConfigError, shown
from emssd.model_config import shape_from_config
from emssd.model_shape import ModelShape


def _opt(hidden: int, layers: int, heads: int, **others: Any) -> dict[str, Any]:
    """Table 1 of the OPT paper (Zhang and others, 2022), and facebook/opt-*'s config.json."""
    return {
        "model_type": "opt",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "ffn_dim": 4 * hidden,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
        "torch_dtype": "float16",
        **others,
    }


def _llama(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, **others: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "torch_dtype": "bfloat16",
        **others,
    }


_LLAMA_3 = {"vocab_size": 128256, "max_position_embeddings": 8192, "tie_word_embeddings": False}
_SMOLLM2 = {"vocab_size": 49152, "max_position_embeddings": 8192, "tie_word_embeddings": True}


def _qwen3(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, tied: bool) -> dict[str, Any]:
    """Table 1 of the Qwen3 technical report (2025), and Qwen/Qwen3-*'s config.json."""
    others = {"model_type": "qwen3", "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960}
    return {**_llama(hidden, inner, layers, heads, kv_heads), **others, "tie_word_embeddings": tied}


PRESET_CONFIGS: dict[str, dict[str, Any]] = {
    "opt-125m": _opt(768, 12, 12),
    "opt-350m": _opt(1024, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False),
    "opt-1.3b": _opt(2048, 24, 32),
    "opt-2.7b": _opt(2560, 32, 32),
    "opt-6.7b": _opt(4096, 32, 32),
    "opt-13b": _opt(5120, 40, 40),
    "opt-30b": _opt(7168, 48, 56),
    "opt-66b": _opt(9216, 64, 72),
    "llama-3-8b": _llama(4096, 14336, 32, 32, 8, **_LLAMA_3),
    "llama-3-70b": _llama(8192, 28672, 80, 64, 8, **_LLAMA_3),
    "qwen3-0.6b": _qwen3(1024, 3072, 28, 16, 8, tied=True),
    "qwen3-1.7b": _qwen3(2048, 6144, 28, 16, 8, tied=True),
    "qwen3-4b": _qwen3(2560, 9728, 36, 32, 8, tied=True),
    "qwen3-8b": _qwen3(4096, 12288, 36, 32, 8, tied=False),
    "qwen3-14b": _qwen3(5120, 17408, 40, 40, 8, tied=False),
    "qwen3-32b": _qwen3(5120, 25600, 64, 64, 8, tied=False),
    "smollm2-135m": _llama(576, 1536, 30, 9, 3, **_SMOLLM2),
    "smollm2-360m": _llama(960, 2560, 32, 15, 5, **_SMOLLM2),
    "smollm2-1.7b": _llama(2048, 8192, 24, 32, 32, **_SMOLLM2),
}
"""The size entries of published configurations: facebook/opt-*, meta-llama/Meta-Llama-3-*, Qwen/Qwen3-*,
HuggingFaceTB/SmolLM2-*."""

MODELS: dict[str, ModelShape] = {name: shape_from_config(config) for name, config in PRESET_CONFIGS.items()}


def model_named(name: str) -> ModelShape:
    """A preset.

    Raises:
        ConfigError: there is none of that name; the message lists all.
    """
    if name not in MODELS:
        raise ConfigError(f"The model {shown(name)} is not known: choose one of {', '.join(MODELS)}.")
    return MODELS[name]
