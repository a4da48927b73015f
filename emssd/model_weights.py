"""Weights of a model from the sizes in its configuration: all of them, and those that a fed row is multiplied with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Sizes = Mapping[str, int]

PLAIN_FEED_FORWARD = {
    *("apertus", "arcee", "biogpt", "bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox"),
    *("gptj", "mpt", "nemotron", "opt", "persimmon", "phi", "starcoder2", "xglm"),
}
"""Families whose feed-forward network has two matrices; all others have a gate, so three."""
LEARNED_POSITIONS = {"opt": 2, "gpt2": 0, "gpt_bigcode": 0, "gpt_neo": 0, "biogpt": 2}
"""Families with a table of positions, and the entries it has beyond the context length."""
BIASED = {"biogpt", "gpt2", "gpt_bigcode", "gpt_neox", "opt", "phi", "starcoder2"}
"""Families with a bias on every linear layer."""
HEAD_NORMS = {"dots1", "qwen3", "qwen3_moe"}
"""Families that normalise each head's queries and keys."""
GATED_SHARED = {"qwen2_moe"}
"""Families where a gate weighs the shared expert."""


def count_config_weights(
    config: Mapping[str, Any], model: Mapping[str, Any], family: str, parts: Sizes
) -> dict[str, int]:
    """Count the weights of a model.

    Args:
        config: its configuration.
        model: the same in a trace's words, without weights.
        family: the configuration's `model_type`.
        parts: "sparse_layers" (layers with experts); "shared" and "dense", inner widths of the experts' shared part and
            of a layer without experts; "embedding_width"; of a compressed attention its projections' widths.

    Returns:
        parameters (exact for the OPT, Llama, Qwen, DeepSeek and Llama 4 families, to about 1 % for most others), and
        `linear_weights_per_row`, `head_weights` and `expert_weights` as `ModelShape.from_trace` reads them.
    """
    hidden, layers, experts = model["hidden"], model["layers"], model["experts"]
    matrices = 2 if family in PLAIN_FEED_FORWARD else 3
    attention = _latent_attention(model, parts) if "latent_rank" in parts else _attention(model)
    sparse = parts["sparse_layers"]
    expert = sparse * matrices * hidden * model["expert_intermediate"]
    shared = matrices * hidden * parts["shared"]
    shared += hidden if family in GATED_SHARED else 0
    common = layers * attention + (layers - sparse) * matrices * hidden * parts["dense"]
    common += sparse * (hidden * experts + shared)
    narrow = parts["embedding_width"]
    common += 2 * narrow * hidden if narrow != hidden else 0  # a projection on each side of the layers
    head = model["vocab"] * narrow
    tables = head * (1 if model["tied_embeddings"] else 2)
    if family in LEARNED_POSITIONS:
        tables += (model["context_length"] + LEARNED_POSITIONS[family]) * hidden
    small = _norms_and_biases(config, model, family, parts)
    return {
        "parameters": int(common + experts * expert + tables + small),
        "linear_weights_per_row": int(common + model["experts_per_token"] * expert),
        "head_weights": int(head),
        "expert_weights": int(expert),
    }


def _attention(model: Mapping[str, Any]) -> int:
    """Weights of one layer's projections."""
    width = model["head_dim"] + model["value_head_dim"]
    return int(model["hidden"] * (model["heads"] + model["kv_heads"]) * width)


def _latent_attention(model: Mapping[str, Any], parts: Sizes) -> int:
    """The same where keys and values are compressed to one vector, and queries too unless `query_rank` is 0."""
    hidden, heads, rank = model["hidden"], model["heads"], parts["latent_rank"]
    keys, query_rank = parts["plain_width"] + parts["rotary_width"], parts["query_rank"]
    queries = query_rank * (hidden + heads * keys) if query_rank else hidden * heads * keys
    down = hidden * (rank + parts["rotary_width"])
    up = rank * heads * (parts["plain_width"] + parts["value_width"])
    return int(queries + down + up + heads * parts["value_width"] * hidden)


def _norms_and_biases(config: Mapping[str, Any], model: Mapping[str, Any], family: str, parts: Sizes) -> int:
    hidden, layers, networks = model["hidden"], model["layers"], max(model["experts"], 1)
    biased = family in BIASED and config.get("enable_bias") is not False
    norm = 2 * hidden if biased or family in PLAIN_FEED_FORWARD else hidden
    layer = 2 * norm + _attention_biases(config, model, family, parts, biased)
    if biased:
        inner = model["expert_intermediate"] if model["experts"] else model["intermediate"]
        layer += networks * (inner + hidden)
    if family in HEAD_NORMS or (family == "glm4_moe" and config.get("use_qk_norm") is True):
        layer += 2 * model["head_dim"]
    first = config.get("do_layer_norm_before") is False  # OPT-350M alone: norms after each part and none at the end
    return int(layers * layer + (0 if first else norm))


def _attention_biases(
    config: Mapping[str, Any], model: Mapping[str, Any], family: str, parts: Sizes, biased: bool
) -> int:
    """Biases of one layer's projections, and the norms inside a compressed attention."""
    hidden, said = model["hidden"], config.get("attention_bias") is True
    if "latent_rank" in parts:
        reduced = parts["query_rank"] + parts["latent_rank"]
        return int(reduced + (reduced + parts["rotary_width"] + hidden if said else 0))
    inputs = model["head_dim"] * (model["heads"] + model["kv_heads"]) + model["kv_heads"] * model["value_head_dim"]
    if biased:
        return int(inputs + hidden)
    if family == "llama4_text":
        return int(inputs + hidden) if said else 0
    always = family == "qwen2" or (family == "qwen2_moe" and config.get("qkv_bias") is not False)
    return int(inputs) if said or always else 0
