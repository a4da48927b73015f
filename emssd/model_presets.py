"""Sizes of published models, and of any model from its `config.json`; nothing is loaded.

A preset is the part of the model's published configuration that sizes follow from, so that presets and your own
configurations go through the same reader.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emssd.errors import ConfigError, shown
from emssd.model_shape import ModelShape

Config = Mapping[str, Any]

PLAIN_FEED_FORWARD = {
    *("apertus", "arcee", "biogpt", "bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox"),
    *("gptj", "mpt", "nemotron", "opt", "persimmon", "phi", "starcoder2", "xglm"),
}
"""Families whose feed-forward network has two matrices; all others have a gate, so three."""
TIED_UNLESS_SAID = {
    *("biogpt", "bloom", "cohere", "cohere2", "ernie4_5", "ernie4_5_moe", "falcon", "gemma", "gemma2", "gemma3"),
    *("gemma3_text", "gemma3n_text", "gemma4_text", "gpt2", "gpt_bigcode", "gpt_neo", "granite_swa", "lfm2"),
    *("modernbert-decoder", "mpt", "opt", "smollm3", "starcoder2", "vaultgemma", "xglm"),
}
"""Families whose LM head is the embedding table where their configuration does not say so."""
LEARNED_POSITIONS = {"opt": 2, "gpt2": 0, "gpt_bigcode": 0, "gpt_neo": 0, "biogpt": 2}
"""Families with a table of positions, and the entries it has beyond the context length."""
BIASED = {"biogpt", "gpt2", "gpt_bigcode", "gpt_neox", "opt", "phi", "starcoder2"}
"""Families with a bias on every linear layer."""
ALTERNATING_WINDOWS = {"gemma2": 2, "gemma3_text": 6}
"""Families where only each n-th layer is a full one."""

OLDER_NAMES = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_seq_len"),
    "intermediate_size": ("ffn_dim", "n_inner"),
    "num_experts": ("num_local_experts", "n_routed_experts"),
    "dtype": ("torch_dtype",),
}
LARGEST = 10**9
MAX_CONFIG_BYTES = 10_000_000


def shape_from_config(source: str | os.PathLike[str] | Config) -> ModelShape:
    """Sizes of a model from its Hugging Face configuration.

    Args:
        source: a `config.json`, a folder that has one, or its contents. Of a model of several parts the language
            model is read.

    Raises:
        ConfigError: it cannot be read, or a size that is needed is missing or impossible.
    """
    config = source if isinstance(source, Mapping) else _read(Path(source))
    if isinstance(config.get("text_config"), Mapping):
        config = {**config, **config["text_config"]}
    return ModelShape.from_trace(_description(config))


def _read(path: Path) -> Config:
    path = path / "config.json" if path.is_dir() else path
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(f"{path} is too large for a model's configuration: give a config.json.")
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: give a model's config.json.") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path} must hold one JSON object: give a model's config.json.")
    return config


def _value(config: Config, name: str) -> Any:
    names = (name, *OLDER_NAMES.get(name, ()))
    return next((config[each] for each in names if config.get(each) is not None), None)


def _count(config: Config, name: str, default: int | None = None, least: int = 1) -> int:
    value = _value(config, name)
    if value is None and default is not None:
        return default
    if value is None:
        raise ConfigError(f"The model's configuration has no {name}: give the config.json of a language model.")
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= LARGEST:
        raise ConfigError(f"{name} must be a whole number from {least} to {LARGEST}, not {shown(value)}.")
    return value


def _description(config: Config) -> dict[str, Any]:
    """The model in a trace's words (`trace.model`)."""
    hidden, heads = _count(config, "hidden_size"), _count(config, "num_attention_heads")
    layers, family = _count(config, "num_hidden_layers"), str(config.get("model_type", ""))
    latent = config.get("qk_nope_head_dim") is not None
    if latent:
        head_dim = _count(config, "qk_nope_head_dim") + _count(config, "qk_rope_head_dim")
    elif config.get("head_dim") is None and hidden % heads:
        raise ConfigError(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}: give head_dim.")
    else:
        head_dim = _count(config, "head_dim", hidden // heads)
    kv_heads = 1 if config.get("multi_query") is True else _count(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ConfigError(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}.")
    experts = _count(config, "num_experts", 0, least=0)
    intermediate = _count(config, "intermediate_size", 4 * hidden)
    tied = config.get("tie_word_embeddings")
    description = {
        "architecture": str((config.get("architectures") or [family or "unknown"])[0]),
        "layers": layers,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "value_head_dim": _count(config, "v_head_dim", head_dim) if latent else head_dim,
        "hidden": hidden,
        "intermediate": intermediate,
        "expert_intermediate": _count(config, "moe_intermediate_size", intermediate),
        "experts": experts,
        "experts_per_token": _count(config, "num_experts_per_tok", 1) if experts else 0,
        "vocab": _count(config, "vocab_size"),
        "context_length": _count(config, "max_position_embeddings", 0, least=0),
        "tied_embeddings": family in TIED_UNLESS_SAID if tied is None else tied is True,
        "dtype": str(_value(config, "dtype") or "float32").removeprefix("torch."),
        **_windows(config, family, layers),
    }
    if description["experts_per_token"] > max(experts, 1):
        raise ConfigError(f"num_experts_per_tok is more than the {experts} experts there are.")
    return {**description, "parameters": _parameters(config, description, family)}


def _windows(config: Config, family: str, layers: int) -> dict[str, Any]:
    window = _value(config, "sliding_window")
    if window is None or config.get("use_sliding_window") is False:
        return {"layer_types": ["full_attention"] * layers, "sliding_window": None}
    window = _count(config, "sliding_window")
    types = config.get("layer_types")
    if isinstance(types, list) and len(types) == layers and all(isinstance(each, str) for each in types):
        return {"layer_types": list(types), "sliding_window": window}
    every = ALTERNATING_WINDOWS.get(family)
    full = [every is not None and (layer + 1) % every == 0 for layer in range(layers)]
    return {"layer_types": ["full_attention" if f else "sliding_attention" for f in full], "sliding_window": window}


def _parameters(config: Config, model: Mapping[str, Any], family: str) -> int:
    """Parameters of the model: exact for OPT, Llama and Qwen3 families, to about 1 % for most others."""
    hidden, layers = model["hidden"], model["layers"]
    queries = model["heads"] * model["head_dim"]
    outputs = model["heads"] * model["value_head_dim"]
    keys = model["kv_heads"] * model["head_dim"]
    values = model["kv_heads"] * model["value_head_dim"]
    matrices = 2 if family in PLAIN_FEED_FORWARD else 3
    inner = model["expert_intermediate"] if model["experts"] else model["intermediate"]
    networks = max(model["experts"], 1)
    layer = hidden * (queries + keys + values + outputs)
    layer += networks * matrices * hidden * inner + model["experts"] * hidden
    biased = family in BIASED and config.get("enable_bias") is not False
    norm = 2 * hidden if biased or family in PLAIN_FEED_FORWARD else hidden
    layer += 2 * norm
    if biased:
        layer += queries + keys + values + hidden + networks * (inner + hidden)
    elif config.get("attention_bias") is True or family == "qwen2":
        layer += queries + keys + values
    if family in ("qwen3", "qwen3_moe"):
        layer += 2 * model["head_dim"]
    narrow = _count(config, "word_embed_proj_dim", hidden)
    tables = model["vocab"] * narrow * (1 if model["tied_embeddings"] else 2)
    tables += 2 * narrow * hidden if narrow != hidden else 0
    if family in LEARNED_POSITIONS:
        tables += (model["context_length"] + LEARNED_POSITIONS[family]) * hidden
    first = config.get("do_layer_norm_before") is False  # OPT-350M alone: norms after each part and none at the end
    return int(layers * layer + tables + (0 if first else norm))


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
