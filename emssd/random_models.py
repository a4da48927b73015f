"""Tiny random causal language models: the test bed, and the demo that needs no download.

They are *sensitive* on purpose. A small model with the usual initialisation copies its last token or repeats one
token for ever, and then a wrong position, a visible pad or a shared cache slot changes no output and every such bug
passes. Here the weights are large enough that attention is sharp, positions matter and greedy output wanders over
the vocabulary; `tests/test_random_models.py` asserts it for every entry.

Shapes: 2 layers, hidden 32, 4 heads of 8, 2 key/value heads where the architecture has them, 97 ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.pytorch_utils import Conv1D

from emssd.errors import ConfigError

VOCAB_SIZE = 97
UNKNOWN_ID = 0
LEARNED_LIMIT = 64  # positions of the models with a learned position table
ROTARY_LIMIT = 256
WINDOW = 8

# Attention and mlp matrices are drawn with standard deviation gain / sqrt(inputs).
_GAIN = 1.6
_ROUTER_GAIN = 4.0
_LOGIT_STD = 4.0
_NORM_SPREAD = 0.2
_BIAS_STD = 0.2


@dataclass(frozen=True)
class RandomRecipe:
    """How one tiny model is built: transformers' model type, the seed of its weights, its configuration entries."""

    model_type: str
    seed: int
    config: dict[str, Any] = field(default_factory=dict)
    gain: float = _GAIN  # standard deviation of a matrix times the square root of its inputs
    embedding_std: float = 1.0  # smaller where the architecture multiplies embeddings or normalises what it adds


def _heads(kv_heads: int = 2, **extra: Any) -> dict[str, Any]:
    """Configuration entries of a Llama-like model: rotary positions, grouped heads."""
    return {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": kv_heads,
        "head_dim": 8,
        "max_position_embeddings": ROTARY_LIMIT,
        **extra,
    }


def _no_head_dim(**extra: Any) -> dict[str, Any]:
    """As `_heads`, for architectures that compute the head size from the hidden size."""
    return {key: value for key, value in _heads(**extra).items() if key != "head_dim"}


def _experts(**extra: Any) -> dict[str, Any]:
    return _heads(num_experts_per_tok=2, moe_intermediate_size=32, **extra)


_GPT2_SHAPE: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 64, "n_positions": LEARNED_LIMIT}
_OPT_SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "word_embed_proj_dim": 32,
    "ffn_dim": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": LEARNED_LIMIT,
}
_ALTERNATING: dict[str, Any] = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_MLA: dict[str, Any] = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}

_RECIPES: dict[str, RandomRecipe] = {
    "opt": RandomRecipe("opt", 0, _OPT_SHAPE),
    "gpt2": RandomRecipe("gpt2", 1, _GPT2_SHAPE),
    "gpt-bigcode": RandomRecipe("gpt_bigcode", 0, _GPT2_SHAPE),
    "llama": RandomRecipe("llama", 0, _heads()),
    "mistral": RandomRecipe("mistral", 0, _heads(sliding_window=WINDOW)),
    "gemma": RandomRecipe("gemma", 0, _heads(), embedding_std=0.15),
    "gemma2": RandomRecipe(
        "gemma2",
        0,
        _heads(query_pre_attn_scalar=8, attn_logit_softcapping=5.0, final_logit_softcapping=15.0, **_ALTERNATING),
        gain=2.5,
        embedding_std=0.15,
    ),
    "gemma3": RandomRecipe(
        "gemma3_text", 2, _heads(query_pre_attn_scalar=8, **_ALTERNATING), gain=2.5, embedding_std=0.15
    ),
    "qwen2": RandomRecipe("qwen2", 0, _no_head_dim()),
    "qwen3": RandomRecipe("qwen3", 0, _heads()),
    "glm": RandomRecipe("glm", 0, _heads()),
    "glm4": RandomRecipe("glm4", 1, _heads()),
    "phi": RandomRecipe("phi", 4, _no_head_dim()),
    "phi3": RandomRecipe("phi3", 1, _no_head_dim(original_max_position_embeddings=ROTARY_LIMIT)),
    "gpt-neox": RandomRecipe(
        "gpt_neox", 3, {key: value for key, value in _no_head_dim().items() if key != "num_key_value_heads"}, gain=3.2
    ),
    "gptj": RandomRecipe("gptj", 0, {**_GPT2_SHAPE, "n_positions": ROTARY_LIMIT, "rotary_dim": 4}, gain=2.5),
    "olmo2": RandomRecipe("olmo2", 1, _no_head_dim(), gain=2.5, embedding_std=0.4),
    "olmo3": RandomRecipe("olmo3", 1, _no_head_dim(**_ALTERNATING), embedding_std=0.4),
    "granite": RandomRecipe(
        "granite", 0, _no_head_dim(attention_multiplier=0.4, residual_multiplier=0.8, embedding_multiplier=1.2)
    ),
    "starcoder2": RandomRecipe("starcoder2", 1, _no_head_dim(sliding_window=WINDOW)),
    "cohere": RandomRecipe("cohere", 0, _no_head_dim(logit_scale=1.0)),
    "cohere2": RandomRecipe("cohere2", 2, _heads(logit_scale=1.0, **_ALTERNATING)),
    "smollm3": RandomRecipe("smollm3", 0, _no_head_dim(no_rope_layers=[1, 0])),
    "helium": RandomRecipe("helium", 0, _heads()),
    "ernie4-5": RandomRecipe("ernie4_5", 4, _heads()),
    "exaone4": RandomRecipe("exaone4", 0, _heads(**_ALTERNATING), gain=2.5, embedding_std=0.4),
    "seed-oss": RandomRecipe("seed_oss", 0, _heads()),
    "mixtral": RandomRecipe("mixtral", 0, _experts(num_local_experts=4)),
    "qwen3-moe": RandomRecipe("qwen3_moe", 0, _experts(num_experts=4)),
    "olmoe": RandomRecipe("olmoe", 2, _no_head_dim(num_experts=4, num_experts_per_tok=2)),
    "gpt-oss": RandomRecipe("gpt_oss", 0, _experts(num_local_experts=4, **_ALTERNATING)),
    "deepseek-v3": RandomRecipe("deepseek_v3", 0, _no_head_dim(kv_heads=4, first_k_dense_replace=2, **_MLA)),
}

RANDOM_MODELS: dict[str, RandomRecipe] = {f"random-{name}": recipe for name, recipe in _RECIPES.items()}
"""Every built-in tiny model, by the name that `load_model` and the command line take."""


def random_model(
    name: str,
    *,
    seed: int | None = None,
    vocab_size: int = VOCAB_SIZE,
    max_positions: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> PreTrainedModel:
    """Build the tiny model `name` ("random-llama", or "llama"), the same weights every time.

    Args:
        name: a key of `RANDOM_MODELS`, with or without "random-".
        seed: another model of the same shape (a draft model, say); None takes the recipe's own seed.
        vocab_size: ids of the model.
        max_positions: positions that can be fed; None takes 64 for learned and 256 for rotary positions.
        dtype: number format of the weights.

    Returns:
        A transformers model in eval mode on the CPU, without an end-of-sequence id, pad id 0.

    Raises:
        ConfigError: the name is unknown.
    """
    key = name if name.startswith("random-") else f"random-{name}"
    if key not in RANDOM_MODELS:
        raise ConfigError(f"unknown random model {name!r}; known: {', '.join(RANDOM_MODELS)}")
    recipe = RANDOM_MODELS[key]
    entries = dict(recipe.config, vocab_size=vocab_size)
    if max_positions is not None:
        limit = "n_positions" if "n_positions" in entries else "max_position_embeddings"
        entries[limit] = max_positions
    model = build_random(
        recipe.model_type,
        entries,
        recipe.seed if seed is None else seed,
        gain=recipe.gain,
        embedding_std=recipe.embedding_std,
    )
    return model.to(dtype=dtype)


def build_random(
    model_type: str,
    config_entries: dict[str, Any],
    seed: int,
    *,
    gain: float = _GAIN,
    embedding_std: float = 1.0,
) -> PreTrainedModel:
    """A sensitive random causal LM of any transformers `model_type` with these configuration entries, float32."""
    special = {"pad_token_id": UNKNOWN_ID, "bos_token_id": None, "eos_token_id": None}
    config = AutoConfig.for_model(model_type, **{**config_entries, **special, "tie_word_embeddings": False})
    for entry, value in special.items():  # some configurations put their own ids in the place of None
        setattr(config, entry, value)
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    sensitise(model, seed, gain, embedding_std)
    for entry, value in special.items():
        setattr(model.generation_config, entry, value)
    return model.eval()


def sensitise(model: PreTrainedModel, seed: int, gain: float = _GAIN, embedding_std: float = 1.0) -> None:
    """Overwrite every parameter so that attention is sharp, positions matter and logits have a wide spread.

    Each parameter has its own random stream (seed and place in the sorted names), so a release of transformers that
    initialises in another order gives the same model.
    """
    kinds = {
        f"{owner}.{name}" if owner else name: module
        for owner, module in model.named_modules()
        for name, _ in module.named_parameters(recurse=False)
    }
    head = model.get_output_embeddings()
    with torch.no_grad():
        for index, (name, parameter) in enumerate(sorted(model.named_parameters())):
            stream = torch.Generator().manual_seed(seed * 100_003 + index)
            noise = torch.randn(parameter.shape, generator=stream)
            module = kinds[name]
            if module is head and parameter.ndim == 2:
                parameter.copy_(noise * _LOGIT_STD / parameter.shape[1] ** 0.5)
            elif isinstance(module, nn.Embedding):
                parameter.copy_(noise * embedding_std)
            elif parameter.ndim >= 2:
                parameter.copy_(noise * _matrix_std(module, name, parameter, gain))
            elif name.endswith("weight"):  # a norm: around its own neutral value, 1 or 0
                parameter.add_(noise * _NORM_SPREAD)
            else:
                parameter.copy_(noise * (1.0 if name.endswith("sinks") else _BIAS_STD))


def _matrix_std(module: nn.Module, name: str, parameter: torch.Tensor, gain: float) -> float:
    if name.endswith("bias"):
        return _BIAS_STD
    if "router" in type(module).__name__.lower():
        return _ROUTER_GAIN / float(parameter.shape[-1]) ** 0.5
    inputs = parameter.shape[0] if isinstance(module, Conv1D) else min(parameter.shape[-2:])
    return gain / float(inputs) ** 0.5


def random_tokenizer() -> PreTrainedTokenizerFast:
    """One id per character: newline and printable ASCII (96 ids), id 0 for everything else. Needs no files.

    decode(encode(text)) == text for every printable ASCII text, spaces and line breaks included.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    characters = ["<unk>", "\n", *(chr(code) for code in range(32, 127))]
    tokenizer = Tokenizer(models.WordLevel({text: index for index, text in enumerate(characters)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<unk>", clean_up_tokenization_spaces=False
    )
