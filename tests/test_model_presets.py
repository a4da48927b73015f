"""Sizes of published models against their published totals and against transformers' own modules."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from emssd.errors import ConfigError
from emssd.hardware import kv_slot_bytes
from emssd.language_model import count_weights
from emssd.model_config import TIED_UNLESS_SAID, shape_from_config
from emssd.model_presets import MODELS, PRESET_CONFIGS, model_named
from emssd.model_weights import PLAIN_FEED_FORWARD

PUBLISHED = {  # parameters of the published checkpoints
    "opt-125m": 125_239_296,
    "opt-350m": 331_196_416,
    "opt-1.3b": 1_315_758_080,
    "opt-2.7b": 2_651_596_800,
    "opt-6.7b": 6_658_473_984,
    "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288,
    "opt-66b": 65.7e9,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "qwen3-0.6b": 0.6e9,
    "qwen3-1.7b": 1.72e9,
    "qwen3-4b": 4.02e9,
    "qwen3-8b": 8.19e9,
    "qwen3-14b": 14.77e9,
    "qwen3-32b": 32.76e9,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 257,
    "max_position_embeddings": 128,
}
SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "vocab_size": 257,
    "max_position_embeddings": 128,
}
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 8, "n_positions": 128, "vocab_size": 257}
OTHERS = {
    "llama": LLAMA,
    "llama-tied": {**LLAMA, "tie_word_embeddings": True},
    "qwen2": {**LLAMA, "model_type": "qwen2"},
    "qwen3": {**LLAMA, "model_type": "qwen3", "head_dim": 16},
    "mistral": {**LLAMA, "model_type": "mistral", "sliding_window": 32},
    "opt": {**SMALL, "model_type": "opt", "ffn_dim": 256, "word_embed_proj_dim": 64},
    "gpt2": GPT2,
    "gpt_neox": {**SMALL, "model_type": "gpt_neox", "intermediate_size": 256},
    "phi": {**SMALL, "model_type": "phi", "intermediate_size": 256},
    "starcoder2": {**LLAMA, "model_type": "starcoder2"},
    "gemma2": {**LLAMA, "model_type": "gemma2", "head_dim": 16, "sliding_window": 32},
    "mixtral": {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {
        **LLAMA,
        "model_type": "qwen3_moe",
        "head_dim": 16,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
    },
}

_MIXTURE = {"num_experts_per_tok": 3, "moe_intermediate_size": 24}
_DEEPSEEK = {
    **{name: value for name, value in LLAMA.items() if name != "num_key_value_heads"},
    **_MIXTURE,
    **{"n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
    **{"kv_lora_rank": 12, "q_lora_rank": 20, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 10},
}
_QWEN2_MOE = {**LLAMA, **_MIXTURE, "model_type": "qwen2_moe", "num_experts": 8, "shared_expert_intermediate_size": 56}
_LLAMA_4 = {
    **{**LLAMA, "model_type": "llama4_text", "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 1},
    "intermediate_size_mlp": 208,
}
_LEADING = {**LLAMA, **_MIXTURE, "head_dim": 16, "n_routed_experts": 8, "n_group": 1, "topk_group": 1}
EXACT = {
    "deepseek_v3": {**_DEEPSEEK, "model_type": "deepseek_v3"},
    "deepseek_v3 with biases": {**_DEEPSEEK, "model_type": "deepseek_v3", "attention_bias": True},
    "deepseek_v2": {**_DEEPSEEK, "model_type": "deepseek_v2"},
    "deepseek_v2, whole queries": {**_DEEPSEEK, "model_type": "deepseek_v2", "q_lora_rank": None},
    "qwen2_moe": _QWEN2_MOE,
    "qwen2_moe, some layers dense": {**_QWEN2_MOE, "decoder_sparse_step": 2, "num_hidden_layers": 5},
    "qwen2_moe, first layer dense": {**_QWEN2_MOE, "mlp_only_layers": [0]},
    "qwen3_moe, last layer dense": {**OTHERS["qwen3_moe"], "mlp_only_layers": [2]},
    "llama4_text": _LLAMA_4,
    "llama4_text, every other layer": {**_LLAMA_4, "interleave_moe_layer_step": 2, "num_hidden_layers": 4},
    "llama4_text, layers named": {**_LLAMA_4, "moe_layers": [1]},
    "glm4_moe": {**_LEADING, "model_type": "glm4_moe", "n_shared_experts": 1, "first_k_dense_replace": 1,
                 "use_qk_norm": True},
    "dots1": {**_LEADING, "model_type": "dots1", "n_shared_experts": 2, "first_k_dense_replace": 2},
    "opt, narrow tables": {**OTHERS["opt"], "word_embed_proj_dim": 40, "do_layer_norm_before": False},
    **{name: OTHERS[name] for name in ("llama", "qwen2", "qwen3", "mixtral", "qwen3_moe", "gpt2", "mistral")},
}  # fmt: skip
"""Configurations whose every count is that of the modules."""
DEEPSEEK_V3 = {
    **{"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048},
    **{"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280},
    **{"n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3},
    **{"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128},
    **{"max_position_embeddings": 163840, "tie_word_embeddings": False, "moe_layer_freq": 1},
}
QWEN_1_5_MOE = {
    **{"model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "moe_intermediate_size": 1408},
    **{"num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 151936},
    **{"num_experts": 60, "num_experts_per_tok": 4, "shared_expert_intermediate_size": 5632},
    **{"decoder_sparse_step": 1, "tie_word_embeddings": False},
}
LLAMA_4_SCOUT = {
    **{"model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384},
    **{"num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128},
    **{"num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "vocab_size": 202048},
    **{"tie_word_embeddings": False},
}
FULL_SIZE = {
    "DeepSeek-V3": (DEEPSEEK_V3, 671e9, 37e9),
    "Qwen1.5-MoE-A2.7B": (QWEN_1_5_MOE, 14.3e9, 2.7e9),
    "Llama-4-Scout": (LLAMA_4_SCOUT, 108e9, 17e9),
}
"""Configuration, published parameters, published parameters that a token uses (with the embedding table)."""


def built(config: dict) -> transformers.PreTrainedModel:
    """What transformers builds for a configuration, without memory for it."""
    known = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(known)
    model.tie_weights()
    return model


def parameters(config: dict) -> int:
    """Those of the modules that transformers builds."""
    return sum(weight.numel() for weight in built(config).parameters())


def check_all_counts(config: dict) -> None:
    shape, counted = shape_from_config(config), count_weights(built(config))
    assert shape.parameters == parameters(config)
    assert shape.linear_weights_per_row == counted["linear_weights_per_row"]
    assert shape.head_weights == counted["head_weights"]
    assert (shape.experts, shape.expert_weights) == (counted["experts"] or 0, counted["expert_weights"])


def test_every_published_total_is_there():
    assert list(MODELS) == list(PUBLISHED) == list(PRESET_CONFIGS)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_follow_from_the_sizes(name):
    assert MODELS[name].parameters == pytest.approx(PUBLISHED[name], rel=0.01)


@pytest.mark.parametrize("name", PRESET_CONFIGS)
def test_parameters_are_those_that_transformers_builds(name):
    assert MODELS[name].parameters == parameters(PRESET_CONFIGS[name])


@pytest.mark.parametrize("name", OTHERS)
def test_any_configuration_is_read(name):
    config = OTHERS[name]
    shape = shape_from_config(config)
    assert shape.parameters == pytest.approx(parameters(config), rel=0.01)
    assert (shape.layers, shape.heads, shape.hidden, shape.vocab, shape.positions) == (3, 8, 64, 257, 128)


@pytest.mark.parametrize("name", EXACT)
def test_every_count_is_that_of_the_modules(name):
    check_all_counts(EXACT[name])


@pytest.mark.parametrize("name", ["opt-125m", "opt-350m", "opt-6.7b", "llama-3-8b", "qwen3-0.6b", "smollm2-135m"])
def test_every_count_of_a_preset_is_that_of_the_modules(name):
    """OPT-350M has tables of half the width, and a projection on each side."""
    check_all_counts(PRESET_CONFIGS[name])


@pytest.mark.parametrize("name", FULL_SIZE)
def test_published_mixtures(name):
    config, total, active = FULL_SIZE[name]
    check_all_counts(config)
    shape = shape_from_config(config)
    assert shape.parameters == pytest.approx(total, rel=0.005)
    assert shape.weights_per_row + shape.head_weights == pytest.approx(active, rel=0.03)


def test_a_compressed_cache_is_one_vector_a_layer():
    """DeepSeek-V3 caches 512 + 64 values; queries are compared with all of them, and 512 are weighted."""
    shape = shape_from_config(DEEPSEEK_V3)
    assert kv_slot_bytes(shape, "bfloat16") == 61 * (512 + 64) * 2
    assert (shape.heads, shape.head_dim, shape.value_head_dim) == (128, 576, 512)


REFUSED = {
    "kv_lora_rank": {"kv_lora_rank": 16},
    "n_shared_experts": {"n_shared_experts": 1},
    "shared_expert_intermediate_size": {"shared_expert_intermediate_size": 64},
    "first_k_dense_replace": {"first_k_dense_replace": 1},
    "mlp_only_layers": {"mlp_only_layers": [1]},
    "intermediate_size_mlp": {"intermediate_size_mlp": 64},
    "layer_types": {"layer_types": ["linear_attention"] * 3},
    "num_kv_shared_layers": {"num_kv_shared_layers": 2},
    "is_encoder_decoder": {"is_encoder_decoder": True},
    "moe_layer_freq": {"moe_layer_freq": 2},
}


@pytest.mark.parametrize("name", REFUSED)
def test_parts_that_are_not_known_are_refused_by_name(name):
    with pytest.raises(ConfigError, match=f"^{name} (says|names)") as caught:
        shape_from_config({**LLAMA, **REFUSED[name]})
    assert str(caught.value).count(". ") == 0


def test_a_family_whose_entries_do_not_say_all_is_refused():
    with pytest.raises(ConfigError, match="model_type 'lfm2' do not follow"):
        shape_from_config({**LLAMA, "model_type": "lfm2"})


def test_no_family_that_transformers_knows_is_silently_wrong():
    """Each is refused, or within 1 % of the modules, with transformers' own default sizes."""
    read, wrong = 0, []
    for family in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        try:
            config = transformers.AutoConfig.for_model(family).get_text_config()
            shape = shape_from_config({**config.to_dict(), "model_type": config.model_type})
            with torch.device("meta"):
                model = transformers.AutoModelForCausalLM.from_config(config)
            model.tie_weights()
        except Exception:  # refused, or transformers itself does not build it from its defaults
            continue
        read += 1
        counts = count_weights(model)
        pairs = [(shape.parameters, sum(weight.numel() for weight in model.parameters()))]
        pairs += [(getattr(shape, name), counts[name]) for name in ("linear_weights_per_row", "expert_weights")]
        wrong += [family for found, right in pairs if found != pytest.approx(right, rel=0.01)]
    assert wrong == []
    assert read > 50


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "deepseek_v3", "kv_lora_rank": None}, "has no kv_lora_rank"),
        ({"model_type": "deepseek_v3", "first_k_dense_replace": None}, "has no first_k_dense_replace"),
        ({"model_type": "deepseek_v3", "v_head_dim": 0}, "v_head_dim must be"),
        ({"model_type": "deepseek_v3", "n_shared_experts": -1}, "n_shared_experts must be"),
    ],
)
def test_missing_and_odd_sizes_of_a_compressed_cache_are_refused(config, words):
    with pytest.raises(ConfigError, match=words):
        shape_from_config({**_DEEPSEEK, **config})


def test_odd_lists_of_layers_are_refused():
    for value in ("all", [-1], [True], ["0"]):
        with pytest.raises(ConfigError, match="mlp_only_layers"):
            shape_from_config({**_QWEN2_MOE, "mlp_only_layers": value})


@pytest.mark.parametrize(
    "family", sorted(TIED_UNLESS_SAID | PLAIN_FEED_FORWARD | {config["model_type"] for config in OTHERS.values()})
)
def test_what_a_configuration_leaves_out_is_what_transformers_takes(family):
    default = transformers.AutoConfig.for_model(family).get_text_config().tie_word_embeddings
    assert default == (family in TIED_UNLESS_SAID)


def test_grouped_heads_experts_and_windows_are_read():
    assert (MODELS["llama-3-8b"].heads, MODELS["llama-3-8b"].kv_heads) == (32, 8)
    assert MODELS["qwen3-0.6b"].head_dim == 128
    mixture = shape_from_config(OTHERS["qwen3_moe"])
    assert (mixture.experts, mixture.experts_per_token, mixture.expert_intermediate) == (8, 2, 48)
    assert shape_from_config(OTHERS["mistral"]).windows == (32, 32, 32)
    assert shape_from_config(OTHERS["gemma2"]).windows == (32, None, 32)
    assert shape_from_config({**OTHERS["qwen2"], "sliding_window": 32, "use_sliding_window": False}).windows == ()
    said = {**LLAMA, "sliding_window": 16, "layer_types": ["full_attention", "sliding_attention", "full_attention"]}
    assert shape_from_config(said).windows == (None, 16, None)
    assert shape_from_config({**GPT2, "multi_query": True}).kv_heads == 1


def test_a_file_a_folder_and_its_contents_say_the_same(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    assert shape_from_config(path) == shape_from_config(tmp_path) == shape_from_config(str(path))
    assert shape_from_config(path) == shape_from_config(LLAMA)
    assert shape_from_config({"vision_config": {}, "text_config": LLAMA}) == shape_from_config(LLAMA)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": None}, "has no hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a whole number from 1"),
        ({"num_hidden_layers": 2.5}, "not 2.5"),
        ({"vocab_size": "many"}, "not 'many'"),
        ({"num_attention_heads": True}, "not True"),
        ({"intermediate_size": -1}, "not -1"),
        ({"hidden_size": 10**30}, "hidden_size must be"),
        ({"num_attention_heads": 7}, "not a multiple of num_attention_heads 7"),
        ({"num_key_value_heads": 3}, "not a multiple of num_key_value_heads 3"),
        ({"num_local_experts": 2, "num_experts_per_tok": 3}, "more than the 2 experts"),
    ],
)
def test_bad_sizes_are_refused_in_one_sentence(changes, words):
    with pytest.raises(ConfigError, match=words) as caught:
        shape_from_config({**LLAMA, **changes})
    assert str(caught.value).count(". ") == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[1]", "must hold one JSON object"),
        (b"{}", "has no hidden_size"),
        (b"[" * 100_000, "is not JSON"),
    ],
)
def test_unreadable_files_are_refused(tmp_path, content, words):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        shape_from_config(path)


def test_missing_files_and_unknown_names_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"Cannot read .*: No such file"):
        shape_from_config(tmp_path / "none.json")
    with pytest.raises(ConfigError, match=r"Cannot read .*: No such file"):
        shape_from_config(tmp_path)
    with pytest.raises(ConfigError, match=r"choose one of opt-125m, .*smollm2-1.7b"):
        model_named("gpt-5")
    assert model_named("opt-6.7b") is MODELS["opt-6.7b"]
