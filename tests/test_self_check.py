"""The five gates: they pass what is served correctly, and refuse by name what would be silently wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

import emssd.attention
from emssd.attention import AttentionCall, hook_model
from emssd.errors import UnsupportedModelError
from emssd.loading import LanguageModel, load_model
from emssd.random_models import RANDOM_MODELS, WINDOW, build_random, random_model
from emssd.self_check import (
    check_arguments,
    check_configuration,
    check_coverage,
    check_hook,
    layer_windows,
    self_check,
)

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
MAMBA_PART: dict[str, Any] = {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2}
WITHOUT_SUPPORT: dict[str, dict[str, Any]] = {
    "bloom": {"vocab_size": 97, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "mpt": {"vocab_size": 97, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64},
    "mamba": {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
    "lfm2": {**SMALL, "layer_types": ["conv", "full_attention"]},
    "jamba": {**SMALL, **MAMBA_PART, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2},
    "falcon_h1": {**SMALL, **MAMBA_PART, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8},
    "minimax": {**SMALL, "layer_types": ["linear_attention", "full_attention"], "num_local_experts": 2},
    "falcon": {**SMALL, "alibi": True},
    "gpt_neo": {"vocab_size": 97, "hidden_size": 32, "num_layers": 2, "num_heads": 4,
                "attention_types": [[["global", "local"], 1]]},
    "diffllama": SMALL,
}  # fmt: skip


def wrapped(model: PreTrainedModel) -> LanguageModel:
    return load_model.from_pretrained_model(model)


@pytest.mark.parametrize("name", RANDOM_MODELS)
def test_every_tiny_model_passes(name: str) -> None:
    report = wrapped(random_model(name)).report
    assert report is not None
    assert report.error < 1e-5
    assert not report.weak


@pytest.mark.parametrize("model_type", WITHOUT_SUPPORT)
def test_what_is_not_served_is_refused_by_name_and_reason(model_type: str) -> None:
    model = build_random(model_type, WITHOUT_SUPPORT[model_type], seed=0)
    with pytest.raises(UnsupportedModelError) as refusal:
        wrapped(model)
    message = str(refusal.value)
    assert type(model).__name__ in message
    assert "(gate " in message
    assert "\n" not in message


def test_stablelm_is_served_though_it_drops_keyword_arguments() -> None:
    report = wrapped(build_random("stablelm", SMALL, seed=0)).report
    assert report is not None
    assert report.error < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_pass_and_half_precision_is_called_weak(dtype: torch.dtype) -> None:
    report = wrapped(random_model("random-llama", dtype=dtype)).report
    assert report is not None
    assert report.weak == (dtype != torch.float64)
    assert ("weak" in str(report)) == report.weak


@pytest.mark.parametrize("positions", [1, 2, 5, 16])
def test_a_short_context_shortens_the_probe(positions: int) -> None:
    assert wrapped(random_model("random-gpt2", max_positions=positions, vocab_size=5)).report is not None


# --- gate 1: rules ---


def test_ropes_that_look_at_the_longest_row_are_refused_only_beyond_their_length() -> None:
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 64}
    model = build_random("llama", {**SMALL, "rope_parameters": dynamic}, seed=0)
    with pytest.raises(UnsupportedModelError, match=r"LlamaForCausalLM .*dynamic.*64 tokens.*gate 1"):
        check_configuration(model)
    check_configuration(model, max_length=64)

    factors = [1.0 + 0.1 * i for i in range(4)]
    longrope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": factors, "long_factor": factors}
    settings = {**SMALL, "rope_parameters": longrope, "original_max_position_embeddings": 32}
    with pytest.raises(UnsupportedModelError, match=r"Phi3ForCausalLM .*longrope.*gate 1"):
        wrapped(build_random("phi3", settings, seed=0))


def test_ropes_with_fixed_frequencies_pass() -> None:
    scaled = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 32}
    assert wrapped(build_random("llama", {**SMALL, "rope_parameters": scaled}, seed=0)).report is not None


def test_chunked_attention_is_refused_even_where_the_probe_is_shorter_than_a_chunk() -> None:
    settings = {
        **SMALL, "head_dim": 8, "attention_chunk_size": 100, "num_local_experts": 2, "intermediate_size_mlp": 64,
        "layer_types": ["chunked_attention", "full_attention"], "moe_layers": [], "no_rope_layers": [1, 0],
    }  # fmt: skip
    with pytest.raises(UnsupportedModelError, match=r"Llama4ForCausalLM .*gate 1"):
        wrapped(build_random("llama4_text", settings, seed=0))


# --- gates 2 to 4 ---


def test_a_hook_that_was_not_taken_is_seen() -> None:
    model = random_model("random-llama")
    with pytest.raises(UnsupportedModelError, match=r"LlamaForCausalLM .*cannot be replaced \(gate 2"):
        check_hook(model, model)


@pytest.mark.parametrize("layers", [[0], [0, 1, 1], [0, 1, 2], []])
def test_a_layer_that_calls_never_or_twice_is_seen(layers: list[int]) -> None:
    calls = [[AttentionCall(layer, None, None, False) for layer in layers]]
    with pytest.raises(UnsupportedModelError, match=r"layer \d called our attention \d times.*gate 3"):
        check_coverage(random_model("random-llama"), calls)


def test_a_forward_that_fails_on_packed_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*inputs: object, **named: object) -> None:
        raise IndexError("table too short")

    monkeypatch.setattr("emssd.model_runner.ModelRunner.forward", broken)
    with pytest.raises(UnsupportedModelError, match=r"LlamaForCausalLM .*failed on packed rows.*table too short"):
        wrapped(random_model("random-llama"))


def test_an_unknown_argument_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*inputs: object, **named: object) -> None:
        raise UnsupportedModelError("it passes the argument 'position_bias'")

    monkeypatch.setattr("emssd.model_runner.ModelRunner.forward", refuses)
    with pytest.raises(UnsupportedModelError, match=r"LlamaForCausalLM .*position_bias.*gate 4"):
        wrapped(random_model("random-llama"))


def test_a_window_that_no_layer_applies_is_seen_though_the_probe_is_shorter() -> None:
    model = random_model("random-mistral")
    model.config.sliding_window = 100
    hooked = hook_model(model)
    hooked.config.sliding_window = None
    with pytest.raises(UnsupportedModelError, match=r"MistralForCausalLM .*window None.*says 100.*gate 4"):
        self_check(model, hooked)


def test_windows_come_from_layer_types_or_hold_for_all() -> None:
    assert layer_windows(random_model("random-llama").config) == [None, None]
    assert layer_windows(random_model("random-mistral").config) == [WINDOW, WINDOW]
    assert layer_windows(random_model("random-gemma3").config) == [WINDOW, None]
    swapped = [[AttentionCall(0, None, None, False), AttentionCall(1, WINDOW, None, False)]]
    with pytest.raises(UnsupportedModelError, match="gate 4"):
        check_arguments(random_model("random-gemma3"), swapped)


# --- gate 5: faults inside attention ---


def _spoiled(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    original = emssd.attention.ems_attention

    def attention(*inputs: Any, **named: Any) -> Any:
        named.update({key: change(named.get(key)) for key, change in changes.items()})
        return original(*inputs, **named)

    emssd.attention.AttentionInterface.register(emssd.attention.ATTENTION_NAME, attention)
    monkeypatch.setattr(emssd.attention, "ems_attention", attention)


@pytest.fixture(autouse=True)
def _restore_attention() -> Any:
    original = emssd.attention.ems_attention
    yield
    emssd.attention.AttentionInterface.register(emssd.attention.ATTENTION_NAME, original)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("random-gpt-oss", {"s_aux": lambda sinks: None}),
        ("random-gpt-oss", {"s_aux": lambda sinks: sinks * torch.tensor([0.0, 1, 1, 1])}),
        ("random-gemma2", {"softcap": lambda cap: None}),
        ("random-gemma2", {"softcap": lambda cap: cap * 1.05}),
        ("random-llama", {"scaling": lambda scaling: scaling * 1.01}),
    ],
)
def test_a_fault_in_the_attention_numbers_is_caught(
    name: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _spoiled(monkeypatch, **changes)
    with pytest.raises(UnsupportedModelError, match="gate 5, numbers"):
        wrapped(random_model(name))


def test_a_gross_fault_is_caught_in_half_precision_too(monkeypatch: pytest.MonkeyPatch) -> None:
    _spoiled(monkeypatch, s_aux=lambda sinks: None)
    with pytest.raises(UnsupportedModelError, match="gate 5, numbers"):
        wrapped(random_model("random-gpt-oss", dtype=torch.bfloat16))


def test_a_window_that_is_off_by_one_is_caught_by_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    original = emssd.attention.visible_slots

    def one_short(group: Any, window: int | None) -> Any:
        seen = original(group, window)
        if window is not None:
            np.put_along_axis(seen, seen.argmax(-1)[..., None], False, -1)  # the oldest visible key
        return seen

    monkeypatch.setattr(emssd.attention, "visible_slots", one_short)
    with pytest.raises(UnsupportedModelError, match="gate 5, numbers"):
        wrapped(random_model("random-mistral", max_positions=64))


def test_a_read_beyond_a_rows_length_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emssd.attention, "visible_slots", _all_visible)
    with pytest.raises(UnsupportedModelError, match="gate 5, numbers"):
        wrapped(random_model("random-llama"))


def _all_visible(group: Any, window: int | None) -> Any:
    return np.ones((len(group.rows), group.num_tokens, group.span), dtype=np.bool_)


def test_the_report_names_what_was_measured() -> None:
    report = wrapped(random_model("random-gemma2")).report
    assert report is not None
    assert dataclasses.asdict(report)["windows"] == (WINDOW, None)
    assert "Gemma2ForCausalLM in float32" in str(report)
