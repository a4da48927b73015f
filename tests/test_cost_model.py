"""Modelled time against numbers worked out by hand."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from emssd import generate
from emssd.accounting import StepAccount
from emssd.attention import StepAttention
from emssd.config import METHODS, SpeculativeConfig
from emssd.cost_model import (
    ENGINE_KERNEL,
    KERNELS,
    PAPER_FIT,
    PAPER_FIT_SOURCE,
    TERMS,
    CostModel,
    StepTime,
    expert_weights,
)
from emssd.errors import ConfigError
from emssd.hardware import HARDWARE
from emssd.model_presets import MODELS, shape_from_config
from emssd.step_counts import StepCounts, engine_calls, trace_counts
from tests.helpers import language_model, prompt_ids
from tests.test_cells import figure2

A100 = replace(HARDWARE["a100-80gb"], bandwidth_share=1.0, compute_share=1.0, launch_us=4.0, host_ms=3.0)
OPT = MODELS["opt-6.7b"]
STEP = StepCounts(rows=40, query_slots=30_000.0, span_slots=6_000.0, launches=2, live=5, query_rows=40, calls=3)
MIXTURE = shape_from_config(
    {
        "model_type": "mixtral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
    }
)


def account(rows: int, slots: int, launches: int) -> StepAccount:
    inputs = {"useful": rows, "pad": 0, "finished": 0}
    scanned = {"useful": slots, "prompt_pad": 0, "hole": 0, "pad_query": 0}
    return StepAccount(inputs, {"per_token": scanned, "varlen": scanned}, 0, 0, launches)


def test_time_is_a_sum_of_step_rows_and_slots():
    assert PAPER_FIT.step_seconds(account(9, 0, 1)) == pytest.approx(0.0137)
    assert PAPER_FIT.step_seconds(account(9, 1000, 1)) == pytest.approx(0.0137 + 0.000248)
    assert PAPER_FIT.step_seconds(account(9, 1000, 2)) == pytest.approx(0.0137 + 0.000496)
    assert CostModel("x", 0.0, 2.0, 0.0).step_seconds(account(9, 1000, 2)) == pytest.approx(18e-6)


def test_time_of_the_worked_example():
    times = {m: sum(PAPER_FIT.step_seconds(s.account) for s in figure2(m).decode_steps) for m in ("vanilla", "ems-sd")}
    assert 1000 * times["vanilla"] == pytest.approx(2 * 13.7 + 504 * 0.000248)
    assert 1000 * times["ems-sd"] == pytest.approx(2 * 13.7 + 288 * 0.000248)


def test_the_model_says_what_it_is_and_where_its_numbers_come_from():
    assert PAPER_FIT.name == "OPT-6.7B, paper’s GPU"
    for words in ("Modelled, not measured", "13.7 ms", "0.248 µs", "per token and launch"):
        assert words in PAPER_FIT.explanation()
    assert "each row fed" not in PAPER_FIT.explanation()
    assert "2 µs for each row fed" in CostModel("x", 1.0, 2.0, 3.0).explanation()
    assert "name the GPU" in PAPER_FIT_SOURCE
    assert "A100" not in PAPER_FIT_SOURCE


def test_cost_model_is_light():
    program = "import sys, emssd.cost_model; print([m for m in ('torch', 'streamlit', 'plotly') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_terms_on_published_hardware_by_hand():
    """OPT-6.7B in float16 on an A100: bytes over bandwidth, FLOPs over rate, starts times layers."""
    weights = 2 * (32 * (4 * 4096**2 + 2 * 4096 * 16384) + 4096 * 50272)
    per_token = CostModel.for_hardware(A100, OPT, "float16").time(STEP)
    assert per_token.weights == pytest.approx(weights / 2.039e12)
    assert per_token.dense == pytest.approx(40 * weights / 312e12)  # 2 FLOP of a weight that has 2 bytes
    assert per_token.attention == pytest.approx(2 * 30_000 * 2**19 / 2.039e12)
    assert per_token.launches == pytest.approx(32 * (10 + 2) * 4e-6)
    assert per_token.host == pytest.approx(3e-3)
    varlen = CostModel.for_hardware(A100, OPT, "float16", "varlen").time(STEP)
    assert varlen.attention == pytest.approx(6_000 * 2**19 / 2.039e12)
    assert varlen.launches == pytest.approx(32 * (10 + 1) * 4e-6)
    assert (varlen.weights, varlen.dense, varlen.host) == (per_token.weights, per_token.dense, per_token.host)
    assert per_token.total == pytest.approx(per_token.weights + per_token.attention + per_token.launches + 3e-3)


def test_shares_of_the_peaks_and_work_per_row_count():
    slower = replace(A100, bandwidth_share=0.5, compute_share=0.25, sequence_us=100.0)
    fast, slow = (CostModel.for_hardware(machine, OPT, "float16").time(STEP) for machine in (A100, slower))
    assert slow.weights == pytest.approx(2 * fast.weights)
    assert slow.attention == pytest.approx(2 * fast.attention)
    assert slow.dense == pytest.approx(4 * fast.dense)
    assert slow.host == pytest.approx(fast.host + 5 * 100e-6)


def test_dense_compute_hides_behind_reading_weights_until_the_ridge():
    model = CostModel.for_hardware(A100, OPT, "float16")
    hidden, seen = model.time(replace(STEP, rows=100)), model.time(replace(STEP, rows=1000))
    assert hidden.dense < hidden.weights
    assert hidden.total == pytest.approx(model.time(STEP).total)
    assert seen.total - hidden.total == pytest.approx(seen.dense - seen.weights)
    apart = replace(model, overlap=False).time(STEP)
    assert apart.total == pytest.approx(sum(apart.terms().values()))


def test_varlen_attention_is_bound_by_compute_where_queries_are_many():
    model = CostModel.for_hardware(A100, OPT, "float16", "varlen")
    slot_flops = 4 * 32 * 32 * 128
    many = model.time(replace(STEP, query_slots=1e6, span_slots=1e3))
    assert many.attention == pytest.approx(1e6 * slot_flops / 312e12)
    slow = replace(A100, peak_flops={"float16": 1e12})  # compute bound even when every query reads its slots
    assert CostModel.for_hardware(slow, OPT, "float16").time(STEP).attention == pytest.approx(
        2 * 30_000 * slot_flops / 1e12
    )


def test_grouped_heads_read_less_of_the_cache():
    opt, llama = (CostModel.for_hardware(A100, MODELS[name], "bfloat16") for name in ("opt-6.7b", "llama-3-8b"))
    assert llama.slot_us == pytest.approx(opt.slot_us / 4)
    assert llama.query_slot_us == pytest.approx(opt.query_slot_us)


def test_a_mixture_reads_the_experts_that_its_rows_touch():
    """Mixtral 8x7B: one row reads 2 of 8 experts, k rows on average 8 * (1 - (6/8)^k), many rows all."""
    model = CostModel.for_hardware(A100, MIXTURE, "bfloat16")
    expert = 32 * 3 * 4096 * 14336
    assert expert_weights(MIXTURE) == (2 * expert, 8 * expert)
    rest = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 8 * 4096) + 4096 * 32000
    for rows in (1, 2, 5, 1000):
        touched = 8 * (1 - 0.75**rows)
        time = model.time(replace(STEP, rows=rows))
        assert time.weights == pytest.approx(2 * (rest + touched * expert) / 2.039e12)
        assert time.dense == pytest.approx(2 * rows * (rest + 2 * expert) / 312e12)
    assert expert_weights(OPT) == (0, 0)


@pytest.mark.parametrize("kernel", [*KERNELS, ENGINE_KERNEL])
def test_every_term_can_be_switched_off(kernel):
    costs = {"step_ms": 1.0, "row_us": 9.0, "slot_us": 0.2, "weights_ms": 0.1, "launch_ms": 0.4}
    model = CostModel("x", **costs, kernel=kernel, attention_launch_us=50.0, query_slot_us=0.01, overlap=False)
    whole = model.time(STEP)
    assert all(seconds > 0 for seconds in whole.terms().values())
    for name in TERMS:
        less = model.time(STEP, off={name})
        assert less.terms() == {**whole.terms(), name: 0.0}
        assert whole.total - less.total == pytest.approx(whole.terms()[name])
    assert model.time(STEP, off=TERMS).total == 0.0
    with pytest.raises(ConfigError, match="'padding' is not known: choose from weights, dense"):
        model.time(STEP, off={"padding"})


@pytest.mark.parametrize("kernel", [*KERNELS, ENGINE_KERNEL])
def test_arrays_over_steps_give_what_single_steps_give(kernel):
    steps = [StepCounts(*(float(3 * i + j) for j in range(7))) for i in range(1, 6)]
    packed = StepCounts(*np.array([list(vars(step).values()) for step in steps]).T)
    model = CostModel.for_hardware(A100, MIXTURE, "bfloat16")
    for each in (replace(model, kernel=kernel), replace(model, kernel=kernel, dense_ms=((1, 2.0), (8, 3.0)))):
        together = each.time(packed)
        assert np.allclose(together.total, [each.time(step).total for step in steps])
        for name, seconds in together.terms().items():
            assert np.allclose(seconds, [each.time(step).terms()[name] for step in steps]), name
        assert isinstance(each.time(steps[0]).total, float)


def test_a_measured_curve_is_linear_between_its_points_and_goes_on_beyond():
    model = CostModel("x", 0.0, 0.0, 0.0, dense_ms=((1, 2.0), (4, 5.0), (8, 7.0)))
    for rows, milliseconds in ((1, 2.0), (2, 3.0), (4, 5.0), (6, 6.0), (8, 7.0), (16, 11.0), (0.5, 2.0)):
        assert 1e3 * model.time(replace(STEP, rows=rows)).dense == pytest.approx(milliseconds)
    falling = replace(model, dense_ms=((1, 2.0), (8, 1.0)))
    assert 1e3 * falling.time(replace(STEP, rows=80)).dense == pytest.approx(1.0)  # never less than the last point


def test_this_packages_own_attention_adds_up_calls_rows_and_slots():
    costs = {"slot_us": 2.0, "query_slot_us": 0.5, "query_row_us": 7.0, "attention_launch_us": 11.0}
    model = CostModel("x", 0.0, 0.0, **costs, kernel=ENGINE_KERNEL)
    time = model.time(STEP)
    assert time.attention == pytest.approx(1e-6 * (2 * 6_000 + 0.5 * 30_000 + 7 * 40))
    assert time.launches == pytest.approx(3 * 11e-6)
    assert model.time(replace(STEP, calls=None)).launches == pytest.approx(5 * 11e-6)  # one for each live row


@pytest.mark.parametrize("method", METHODS)
def test_calls_are_those_of_the_engine(method, monkeypatch):
    """Rows of three lengths with drafts of three lengths, which end at different steps."""
    seen = []
    original = StepAttention.__post_init__

    def spy(self):
        original(self)
        seen.append(len(self.groups))

    monkeypatch.setattr(StepAttention, "__post_init__", spy)
    lm = language_model("random-llama")
    repeated = [prompt_ids(4, salt) * 3 for salt in range(3)]
    prompts = [prompt_ids(6), *repeated, prompt_ids(12, 9)]
    settings = {} if method.startswith("greedy") else {"num_draft_tokens": (3, 2, 3, 1, 3)}
    first = generate(lm, prompts, SpeculativeConfig.for_method(method, max_new_tokens=1, **settings))
    ends = first.rows[2].output_token_ids[0]  # ends its own row at once, maybe others later
    seen.clear()
    config = SpeculativeConfig.for_method(method, max_new_tokens=12, eos_token_ids=ends, **settings)
    trace = generate(lm, prompts, config)
    counts = trace_counts(trace)
    assert [count.calls for count in counts] == seen[-len(counts) :]
    assert any(count.live < 5 for count in counts)
    assert all(
        count.live == sum(row.kind == "decode" for row in step.rows)
        for count, step in zip(counts, trace.decode_steps, strict=True)
    )
    if method == "vanilla":
        assert any(count.calls > 1 for count in counts)  # a finished row between live ones splits a call


def test_counts_are_those_of_the_account():
    for method in ("vanilla", "ems-sd"):
        trace = figure2(method)
        for step, counts in zip(trace.decode_steps, trace_counts(trace), strict=True):
            assert counts.rows == sum(step.account.input_rows.values())
            assert counts.query_slots == sum(step.account.kv_slots_scanned["per_token"].values())
            assert counts.span_slots == sum(step.account.kv_slots_scanned["varlen"].values())
            assert counts.calls == engine_calls(step.rows, method == "vanilla") == (1 if method == "vanilla" else 2)
        assert PAPER_FIT.trace_seconds(trace) == pytest.approx(
            sum(PAPER_FIT.step_seconds(step.account) for step in trace.decode_steps)
        )
    vanilla, ems = (sum(c.rows for c in trace_counts(figure2(m))) for m in ("vanilla", "ems-sd"))
    assert (vanilla, ems) == (24, 18)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slot_us": -1.0}, "slot_us must be a number at least 0"),
        ({"weights_ms": math.nan}, "weights_ms"),
        ({"step_ms": "fast"}, "step_ms"),
        ({"kernel": "flash"}, "'flash' is not known: choose per_token or varlen"),
        ({"dense_ms": ((1, 2.0),)}, "at least two points"),
        ({"dense_ms": ((2, 2.0), (1, 3.0))}, "by rising rows"),
        ({"dense_ms": ((1, 2.0), (2, -3.0))}, "dense_ms at 2 rows"),
    ],
)
def test_impossible_costs_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        replace(PAPER_FIT, **changes)


def test_a_type_without_a_rate_and_an_unknown_kernel_are_refused():
    with pytest.raises(ConfigError, match="no FLOP rate for 'float8_e4m3fn'"):
        CostModel.for_hardware(A100, OPT, "float8_e4m3fn")
    with pytest.raises(ConfigError, match="kernel"):
        CostModel.for_hardware(A100, OPT, "float16", kernel="flash")


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_long_explanation_names_every_cost(kernel):
    text = CostModel.for_hardware(A100, MIXTURE, "bfloat16", kernel).explanation()
    for words in ("Modelled, not measured", "the longer of", "reading the weights", "for experts", "loop’s own work"):
        assert words in text
    assert ("counted per token and launch" in text) == (kernel == "per_token")


def test_times_without_overlap_are_sums():
    assert StepTime(1.0, 2.0, 3.0, 4.0, 5.0).total == 14.0
    assert StepTime(1.0, 2.0, 3.0, 4.0, 5.0, overlap=False).total == 15.0
