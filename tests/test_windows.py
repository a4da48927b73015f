"""Sliding windows in modelled time: slots of a mean layer, from plans, from drawn rows, and expected."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from emssd.__main__ import main
from emssd.acceptance import Acceptance, draw_rows
from emssd.cost_model import PAPER_FIT, CostModel
from emssd.expectation import expected_runs
from emssd.expected_speeds import runs_of
from emssd.hardware import HARDWARE
from emssd.model_config import shape_from_config
from emssd.model_presets import MODELS
from emssd.run_counts import count_batches
from emssd.simulator import simulate
from emssd.step_counts import trace_counts
from emssd.work import trace_work

METHODS = ("greedy", "greedy-ragged", "vanilla", "packed-input", "ragged-cache", "ems-sd")
GEMMA = {
    **{"model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26},
    **{"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144},
    **{"max_position_embeddings": 32768, "sliding_window": 512},
}
MISTRAL = {
    **{"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "sliding_window": 4096},
    **{"max_position_embeddings": 32768, "tie_word_embeddings": False},
}
GPT_OSS = {
    **{"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24},
    **{"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088},
    **{"num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128, "tie_word_embeddings": False},
    **{"layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072},
}
SMALL = Acceptance(prompt_mean=12, prompt_sd=6, output_tokens=40, prompt_max=40, num_draft_tokens=5)


def shape(window: int, **changes):
    return shape_from_config({**GPT_OSS, "sliding_window": window, **changes})


def test_shares_of_layers():
    assert shape_from_config(GPT_OSS).window_shares == ((128, 0.5), (None, 0.5))
    assert shape_from_config(GEMMA).window_shares == ((512, 22 / 26), (None, 4 / 26))
    assert shape_from_config(MISTRAL).window_shares == ((4096, 1.0),)
    assert all(each.window_shares == () for each in MODELS.values())
    assert CostModel.for_hardware(HARDWARE["h200"], shape_from_config(GEMMA), "float16").windows == (
        (512, 22 / 26),
        (None, 4 / 26),
    )


@pytest.mark.parametrize("window", [1, 2, 3, 7, 16, 45, 200])
@pytest.mark.parametrize("method", METHODS)
def test_drawn_rows_scan_what_their_plans_scan(method, window):
    model = shape(window)
    trace = simulate(SMALL, 5, [method], 3, model)[method]
    counts = count_batches(draw_rows(SMALL, 5, 3).batches(5), method, model.window_shares).step_counts()
    planned = trace_counts(trace, model.window_shares)
    assert [step.query_slots for step in planned] == counts.query_slots[0].tolist()
    assert [step.span_slots for step in planned] == counts.span_slots[0].tolist()
    slot_bytes = model.slot_values * model.bytes_per_value * model.layers
    for step, work in zip(planned, trace_work(trace), strict=True):
        assert step.query_slots * slot_bytes == sum(work.kv_read_bytes["per_token"].values())
        assert step.span_slots * slot_bytes == sum(work.kv_read_bytes["varlen"].values())


@pytest.mark.parametrize("method", METHODS)
def test_kinds_of_slots_are_those_of_the_plans(method):
    model = shape(9, layer_types=["sliding_attention"] * 24)
    trace = simulate(SMALL, 6, [method], 4, model)[method]
    counted = count_batches(draw_rows(SMALL, 6, 4).batches(6), method, model.window_shares).counts_by_kind
    slot_bytes = model.slot_values * model.bytes_per_value * model.layers
    for mode in ("per_token", "varlen"):
        for kind, slots in counted[mode].items():
            assert slots * slot_bytes == sum(work.kv_read_bytes[mode][kind] for work in trace_work(trace)), (mode, kind)


def test_a_trace_is_priced_with_the_windows_of_the_cost_model():
    model = shape(9)
    trace = simulate(SMALL, 4, ["vanilla"], 5, model)["vanilla"]
    costs = CostModel.for_hardware(HARDWARE["h200"], model, "float16")
    windowed = [float(costs.time(step).total) for step in trace_counts(trace, model.window_shares)]
    assert costs.trace_seconds(trace) == pytest.approx(sum(windowed))
    assert costs.trace_seconds(trace) < replace(costs, windows=()).trace_seconds(trace)
    full = sum(float(PAPER_FIT.time(step).total) for step in trace_counts(trace))
    assert PAPER_FIT.trace_seconds(trace) == pytest.approx(full)


BEHAVIOURS = {
    "as fitted, gpt-oss": (Acceptance(), shape_from_config(GPT_OSS)),
    "as fitted, gemma 3": (Acceptance(), shape_from_config(GEMMA)),
    "as fitted, mistral": (Acceptance(prompt_mean=5000, prompt_sd=2500, prompt_max=9000), shape_from_config(MISTRAL)),
    "long outputs, short window": (Acceptance(output_tokens=400, prompt_mean=60, prompt_sd=30), shape(64)),
    "poor drafts": (
        Acceptance(
            hit_rate=0.3,
            token_rate=0.6,
            spread=0.5,
            num_draft_tokens=4,
            output_tokens=150,
            prompt_mean=90,
            prompt_sd=40,
        ),
        shape(32, layer_types=["sliding_attention"] * 24),
    ),
    "a window in one step": (Acceptance(output_tokens=60, prompt_mean=20, prompt_sd=5), shape(4)),
}


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_expectations_are_those_of_drawn_rows(name):
    acceptance, model = BEHAVIOURS[name]
    sizes, costs = (1, 4, 24), CostModel("slots", step_ms=1.0, row_us=0.0, slot_us=0.25)
    rows, expected = draw_rows(acceptance, 4_800, 11), expected_runs(acceptance, sizes, METHODS, model.window_shares)
    for size in sizes:
        batches = rows.batches(size)
        for method in METHODS:
            counted = count_batches(batches, method, model.window_shares)
            runs = len(batches.prompt_lengths)
            for table in ("per_token", "varlen"):
                whole = sum(counted.counts_by_kind[table].values()) / runs
                for kind, value in counted.counts_by_kind[table].items():
                    got = expected[size][method].counts_by_kind[table][kind]
                    assert got == pytest.approx(value / runs, rel=0.04, abs=0.012 * whole), (size, method, table, kind)
            for each in (costs, replace(costs, kernel="varlen")):
                drawn = float(np.mean(counted.seconds(each)))
                assert expected[size][method].seconds(each) == pytest.approx(drawn, rel=0.03), (size, method)


def test_a_window_that_nothing_reaches_is_no_window():
    acceptance, wide = Acceptance(output_tokens=40), ((4000, 0.25), (None, 0.75))
    full, windowed = (expected_runs(acceptance, [1, 8], METHODS, windows) for windows in ((), wide))
    batches = draw_rows(acceptance, 80, 2).batches(8)
    for size in (1, 8):
        for method in METHODS:
            mine, theirs = windowed[size][method].counts_by_kind, full[size][method].counts_by_kind
            for table in ("per_token", "varlen"):
                for kind, value in theirs[table].items():
                    assert mine[table][kind] == pytest.approx(value, rel=0.02, abs=0.01), (size, method, kind)
    for method in METHODS:
        with_windows, without = (count_batches(batches, method, windows).counts_by_kind for windows in (wide, ()))
        assert with_windows == without


def test_windows_make_vanilla_less_bad_where_prompts_are_long():
    acceptance, model = Acceptance(), shape_from_config(GEMMA)
    costs = CostModel.for_hardware(HARDWARE["l4"], model, "float16")
    windowed = runs_of(acceptance, (24,), METHODS, costs.windows).speed_ups(costs)
    full = runs_of(acceptance, (24,), METHODS).speed_ups(costs)
    assert windowed[24, "vanilla"] > full[24, "vanilla"]


def test_the_command_line_counts_windows_and_says_so(tmp_path, capsys):
    file = tmp_path / "config.json"
    slots = {}
    for name, config in {"windows": GEMMA, "none": {**GEMMA, "sliding_window": None}}.items():
        file.write_text(json.dumps(config))
        arguments = ["simulate", f"--model-shape={file}", "--batch-sizes=4", "--methods=vanilla", "--quiet"]
        assert main([*arguments, "--batches=5", "--json=-"]) == 0
        data = json.loads(capsys.readouterr().out)
        slots[name] = sum(next(run for run in data["runs"] if run["method"] == "vanilla")["per_token"].values())
        assert main([*arguments, "--batches=5"]) == 0
        said = capsys.readouterr().out
        words = "22 of 26 layers see the last 512 tokens: slots are those of a mean layer."
        assert (words in said) is (name == "windows")
        assert data.get("windows") == ([[512, 22 / 26], [None, 4 / 26]] if name == "windows" else None)
    assert slots["windows"] < slots["none"]
