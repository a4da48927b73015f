"""Sizes of published models against their published totals and against transformers' own modules."""

from __future__ import annotations

import json

import pytest
import torch
import transformers

from emssd.errors import ConfigError
from emssd.model_presets import (
    MODELS,
    PLAIN_FEED_FORWARD,
    PRESET_CONFIGS,
    TIED_UNLESS_SAID,
    model_named,
    shape_from_config,
)

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


def parameters(config: dict) -> int:
    """Those of the modules that transformers builds for a configuration, without memory for them."""
    known = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(known)
    model.tie_weights()
    return sum(weight.numel() for weight in model.parameters())


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
