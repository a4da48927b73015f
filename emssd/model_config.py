"""Sizes of any language model from its Hugging Face `config.json`; nothing is loaded.

What is read is counted exactly or to about 1 %; a part that sizes alone do not tell, such as layers without attention,
is refused by the name of its entry.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from emssd.errors import ConfigError, shown
from emssd.model_shape import ModelShape
from emssd.model_weights import count_config_weights

Config = Mapping[str, Any]

TIED_UNLESS_SAID = {
    *("biogpt", "bloom", "cohere", "cohere2", "ernie4_5", "falcon", "gemma", "gemma2", "gemma3"),
    *("gemma3_text", "gpt2", "gpt_bigcode", "gpt_neo", "granite_swa"),
    *("modernbert-decoder", "mpt", "opt", "smollm3", "starcoder2", "vaultgemma", "xglm"),
}
"""Families whose LM head is the embedding table where their configuration does not say so."""
ALTERNATING_WINDOWS = {"gemma2": 2, "gemma3_text": 6}
"""Families where only each n-th layer is a full one."""
LATENT = {"deepseek_v2", "deepseek_v3"}
"""Families whose keys and values are cached as one compressed vector (MLA), and no others beside it."""
LEADING_DENSE = {"deepseek_v2", "deepseek_v3", "dots1", "glm4_moe"}
"""Families whose first layers have no experts, and whose experts have a part that every row uses."""
PICKED_LAYERS = {"qwen2_moe", "qwen3_moe"}
"""Families that name their layers without experts."""
LAYER_KINDS = {"full_attention", "sliding_attention", "chunked_attention"}

OLDER_NAMES = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_seq_len"),
    "intermediate_size": ("ffn_dim", "n_inner"),
    "num_experts": ("num_local_experts", "n_routed_experts"),
    "dtype": ("torch_dtype",),
}
UNKNOWN_ANYWHERE = {
    "is_encoder_decoder": "has an encoder",
    "num_kv_shared_layers": "has layers that share a cache",
    "index_n_heads": "picks the slots it reads",
    "attn_layer_period": "has layers without attention",
    "linear_num_value_heads": "has layers without a growing cache",
    "ssm_cfg": "has layers without attention",
    "state_size": "has layers without attention",
    "mamba_d_state": "has layers without attention",
    "mamba_d_ssm": "has layers without attention",
}
"""Entries that change cache or weights in ways that no family read here has."""
UNKNOWN_UNLESS = {
    "kv_lora_rank": (LATENT, "compresses its cache"),
    "first_k_dense_replace": (LEADING_DENSE, "has layers without experts"),
    "n_shared_experts": (LEADING_DENSE, "has experts that every row uses"),
    "num_shared_experts": (set(), "has experts that every row uses"),
    "moe_num_shared_experts": (set(), "has experts that every row uses"),
    "shared_intermediate_size": (set(), "has experts that every row uses"),
    "shared_expert_intermediate_size": ({"qwen2_moe"}, "has an expert that every row uses"),
    "mlp_only_layers": (PICKED_LAYERS, "has layers without experts"),
    "intermediate_size_mlp": ({"llama4_text"}, "has layers without experts"),
}
"""Entries that only these families are read with."""
UNKNOWN_FAMILIES = {
    *("apertus1p5_text", "beam", "bert", "bert-generation", "big_bird", "camembert", "cpmant", "ctrl"),
    *("data2vec-text", "doge", "electra", "ernie", "gemma4_text", "gemma4_unified_text", "git", "gpt-sw3"),
    *("gpt_neox_japanese", "hrm_text", "jais2", "jetmoe", "lfm2", "lfm2_moe", "megatron-bert", "mimo_v2_flash"),
    *("moshi", "nanochat", "openai-gpt", "phi4_multimodal", "recurrent_gemma", "rembert", "roberta"),
    *("roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl", "xlnet", "xlstm", "xmod"),
}
"""Families whose entries do not say all: read like others, their counts would be off by more than 1 %."""
LARGEST = 10**9
MOST_LAYERS = 1000
MAX_CONFIG_BYTES = 10_000_000


def shape_from_config(source: str | os.PathLike[str] | Config) -> ModelShape:
    """Sizes of a model from its Hugging Face configuration.

    Args:
        source: a `config.json`, a folder that has one, or its contents. Of a model of several parts the language
            model is read.

    Raises:
        ConfigError: it cannot be read, a size that is needed is missing or impossible, or the model has parts whose
            weights or cache are not known here.
    """
    config = source if isinstance(source, Mapping) else _read(Path(source))
    if isinstance(config.get("text_config"), Mapping):
        config = {**config, **config["text_config"]}
    if config.get("model_type") == "llama4":
        config = {**config, "model_type": "llama4_text"}
    _refuse_unknown_parts(config)
    return ModelShape.from_trace(_description(config))


def _read(path: Path) -> Config:
    path = path / "config.json" if path.is_dir() else path
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(_too_large(path))
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror or error}.") from error
    return read_config(content, str(path))


def _too_large(name: object) -> str:
    return f"{name} is too large for a model's configuration: give a config.json."


def read_config(content: bytes, name: str) -> Config:
    """A configuration from the bytes of its file.

    Args:
        content: JSON in UTF-8.
        name: what messages call the file.

    Raises:
        ConfigError: it is too large, no JSON, or no object.
    """
    if len(content) > MAX_CONFIG_BYTES:
        raise ConfigError(_too_large(name))
    try:
        config = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is not JSON: give a model's config.json.") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{name} must hold one JSON object: give a model's config.json.")
    return config


def _refuse_unknown_parts(config: Config) -> None:
    family = str(config.get("model_type", ""))
    if family in UNKNOWN_FAMILIES:
        raise ConfigError(
            f"The sizes of a model of model_type {shown(family)} do not follow from its configuration here: give "
            "another model, or one of the presets."
        )
    unless = {name: what for name, (families, what) in UNKNOWN_UNLESS.items() if family not in families}
    for name, what in {**UNKNOWN_ANYWHERE, **unless}.items():
        if config.get(name):
            raise ConfigError(
                f"{name} says that this model ({shown(family)}) {what}, and its sizes are not known here: give "
                "another model, or one of the presets."
            )
    kinds = config.get("layer_types")
    for kind in kinds if isinstance(kinds, list) else []:
        if not isinstance(kind, str) or kind not in LAYER_KINDS:
            raise ConfigError(
                f"layer_types names {shown(kind)}, and the sizes of such a layer are not known here: give another "
                "model, or one of the presets."
            )
    if config.get("moe_layer_freq") not in (None, 1):
        raise ConfigError("moe_layer_freq says which layers have experts, and only 1 (all of them) is known here.")


def _value(config: Config, name: str) -> Any:
    names = (name, *OLDER_NAMES.get(name, ()))
    return next((config[each] for each in names if config.get(each) is not None), None)


def _count(config: Config, name: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
    value = _value(config, name)
    if value is None and default is not None:
        return default
    if value is None:
        raise ConfigError(f"The model's configuration has no {name}: give the config.json of a language model.")
    return _whole(name, value, least, most)


def _whole(name: str, value: Any, least: int, most: int = LARGEST) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(f"{name} must be a whole number from {least} to {most}, not {shown(value)}.")
    return value


def _description(config: Config) -> dict[str, Any]:
    """The model in a trace's words (`trace.model`), and what `count_config_weights` finds."""
    hidden, family = _count(config, "hidden_size"), str(config.get("model_type", ""))
    layers = _count(config, "num_hidden_layers", most=MOST_LAYERS)
    experts = _count(config, "num_experts", 0, least=0)
    intermediate = _count(config, "intermediate_size", 4 * hidden)
    tied, architectures = config.get("tie_word_embeddings"), config.get("architectures")
    description = {
        "architecture": str(
            architectures[0] if isinstance(architectures, list) and architectures else family or "unknown"
        ),
        "layers": layers,
        **_attention(config, hidden, family),
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
    parts = {**_mixture(config, description, family), **_latent(config, family)}
    parts["embedding_width"] = _count(config, "word_embed_proj_dim", hidden)
    return {**description, **count_config_weights(config, description, family, parts)}


def _attention(config: Config, hidden: int, family: str) -> dict[str, int]:
    """Heads and their widths. Compressed keys are attended to as they are cached: one head of keys for all queries."""
    heads = _count(config, "num_attention_heads")
    if family in LATENT:
        rank, rotary = _count(config, "kv_lora_rank"), _count(config, "qk_rope_head_dim")
        cached = {"kv_heads": 1, "head_dim": rank + rotary, "value_head_dim": rank, "latent_width": rank + rotary}
        return {"heads": heads, **cached}
    if config.get("head_dim") is None and hidden % heads:
        raise ConfigError(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}: give head_dim.")
    head_dim = _count(config, "head_dim", hidden // heads)
    kv_heads = 1 if config.get("multi_query") is True else _count(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ConfigError(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}.")
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "value_head_dim": head_dim}


def _latent(config: Config, family: str) -> dict[str, int]:
    """Widths of a compressed attention's own projections; `query_rank` is 0 where queries are not compressed."""
    if family not in LATENT:
        return {}
    if "q_lora_rank" not in config:
        raise ConfigError("The model's configuration has no q_lora_rank: give it, null where queries are not reduced.")
    names = {"latent_rank": "kv_lora_rank", "rotary_width": "qk_rope_head_dim", "plain_width": "qk_nope_head_dim"}
    return {
        **{part: _count(config, name) for part, name in names.items()},
        "value_width": _count(config, "v_head_dim"),
        "query_rank": _count(config, "q_lora_rank", 0),
    }


def _mixture(config: Config, model: Mapping[str, Any], family: str) -> dict[str, int]:
    """Layers with experts, and the inner widths of their shared part and of a layer without experts."""
    layers, inner = model["layers"], model["intermediate"]
    if not model["experts"]:
        return {"sparse_layers": 0, "shared": 0, "dense": inner}
    parts = {"sparse_layers": layers, "shared": 0, "dense": inner}
    if family in LEADING_DENSE:
        parts["sparse_layers"] = layers - min(_count(config, "first_k_dense_replace", least=0), layers)
        shared = _count(config, "n_shared_experts", 0, least=0)
        parts["shared"] = shared * _count(config, "moe_intermediate_size")
    elif family in PICKED_LAYERS:
        parts["sparse_layers"] = len(set(_picked_layers(config, layers)))
        parts["shared"] = _count(config, "shared_expert_intermediate_size") if family == "qwen2_moe" else 0
    elif family == "llama4_text":
        parts["sparse_layers"] = len(set(_interleaved_layers(config, layers)))
        parts["shared"], parts["dense"] = inner, _count(config, "intermediate_size_mlp")
    return parts


def _picked_layers(config: Config, layers: int) -> Iterator[int]:
    every, left_out = _count(config, "decoder_sparse_step", 1), _layer_list(config, "mlp_only_layers", layers)
    return (layer for layer in range(layers) if layer not in left_out and (layer + 1) % every == 0)


def _interleaved_layers(config: Config, layers: int) -> Iterator[int]:
    if config.get("moe_layers") is not None:
        return iter(_layer_list(config, "moe_layers", layers))
    every = _count(config, "interleave_moe_layer_step", 1)
    return iter(range(every - 1, layers, every))


def _layer_list(config: Config, name: str, layers: int) -> set[int]:
    value = config.get(name) or []
    if not isinstance(value, list):
        raise ConfigError(f"{name} must be a list of layers, not {shown(value)}.")
    found = {_whole(f"A layer in {name}", each, 0) for each in value}
    return {each for each in found if each < layers}


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
