"""FLOPs, bytes and modelled time against real modules and against numbers worked out by hand."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from emssd.accounting import (
    ModelShape,
    StepAccount,
    attention_flops_per_slot,
    kv_bytes_per_slot,
    linear_flops_per_row,
    step_flops,
)
from emssd.cost_model import PAPER_FIT, PAPER_FIT_SOURCE, CostModel
from emssd.random_models import RANDOM_MODELS
from tests.helpers import language_model
from tests.player_samples import random_trace
from tests.test_cells import figure2

OPT_6_7B = {
    "parameters": 6_658_473_984,
    "layers": 32,
    "heads": 32,
    "kv_heads": 32,
    "head_dim": 128,
    "hidden": 4096,
    "intermediate": 16384,
    "vocab": 50272,
    "tied_embeddings": True,
    "context_length": 2048,
    "dtype": "float16",
}
LLAMA_3_8B = {
    "parameters": 8_030_261_248,
    "layers": 32,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "hidden": 4096,
    "intermediate": 14336,
    "vocab": 128256,
    "tied_embeddings": False,
    "context_length": 8192,
    "dtype": "bfloat16",
}
MIXTURES = ("random-mixtral", "random-qwen3-moe", "random-olmoe", "random-gpt-oss")
DENSE = [name for name in RANDOM_MODELS if name not in (*MIXTURES, "random-deepseek-v3")]


def weights_used(lm) -> int:
    """Weights of the linear modules that a forward of one token goes through."""
    used = []
    modules = [module for module in lm.model.modules() if isinstance(module, (nn.Linear, Conv1D))]
    hooks = [module.register_forward_hook(lambda m, i, o: used.append(m.weight.numel())) for module in modules]
    with torch.inference_mode():
        lm.model(input_ids=torch.tensor([[1]]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return sum(used)


@pytest.mark.parametrize("name", DENSE)
def test_linear_flops_are_those_of_the_modules_that_run(name):
    lm = language_model(name)
    assert linear_flops_per_row(lm.description()) == 2 * weights_used(lm)


@pytest.mark.parametrize("name", MIXTURES)
def test_a_mixture_counts_the_experts_that_a_token_uses(name):
    lm = language_model(name)
    shape = ModelShape.from_trace(lm.description())
    layers = dict(lm.model.named_parameters())
    experts = sum(weight.numel() for weight in layers.values() if weight.ndim == 3)
    others = [
        weight.numel()
        for key, weight in layers.items()
        if weight.ndim == 2 and "embed" not in key and "bias" not in key
    ]
    head = 0 if "lm_head.weight" in layers else shape.hidden * shape.vocab
    right = sum(others) + head + experts * shape.experts_per_token // shape.experts
    assert linear_flops_per_row(lm.description()) == 2 * right


def test_latent_projections_never_count_more_than_the_model_has():
    lm = language_model("random-deepseek-v3")
    embeddings = lm.model.get_input_embeddings().weight.numel()
    assert 0 < linear_flops_per_row(lm.description()) <= 2 * (lm.description()["parameters"] - embeddings)


def test_known_models_by_hand():
    """OPT-6.7B with two matrices and a table of positions; Llama 3 8B with three, and 8 heads of keys for 32."""
    assert linear_flops_per_row(OPT_6_7B) == 2 * (32 * (4 * 4096**2 + 2 * 4096 * 16384) + 4096 * 50272)
    assert linear_flops_per_row(OPT_6_7B) == pytest.approx(13.3e9, rel=0.01)
    layer = 4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336
    assert linear_flops_per_row(LLAMA_3_8B) == 2 * (32 * layer + 4096 * 128256)
    assert attention_flops_per_slot(OPT_6_7B) == attention_flops_per_slot(LLAMA_3_8B) == 4 * 32 * 32 * 128
    assert kv_bytes_per_slot(OPT_6_7B) == 2**19
    assert kv_bytes_per_slot(LLAMA_3_8B) == 2**17


@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 4), ("float64", 8), ("bfloat16", 2), ("float8_e4m3fn", 1), ("odd", 4), (None, 4)]
)
def test_bytes_follow_the_type(dtype, size):
    assert kv_bytes_per_slot({**OPT_6_7B, "dtype": dtype}) == 32 * 32 * 256 * size


def test_bytes_are_those_of_the_store():
    lm = language_model("random-llama")
    shape = lm.description()
    assert kv_bytes_per_slot(shape) == shape["layers"] * 2 * shape["kv_heads"] * shape["head_dim"] * 4


def test_missing_and_odd_optional_fields_get_what_most_models_have():
    required = ("parameters", "layers", "heads", "kv_heads", "head_dim", "hidden", "vocab")
    bare = {name: OPT_6_7B[name] for name in required}
    assert ModelShape.from_trace(bare).intermediate == 4 * 4096
    odd = {**bare, "intermediate": "wide", "experts": True, "value_head_dim": -1, "dtype": "float99999"}
    assert ModelShape.from_trace(odd) == ModelShape.from_trace(bare)


def test_flops_of_the_worked_example():
    """24 against 18 rows of one kind, 252 against 144 scanned slots; the waste is all of the difference."""
    for method, rows, slots in (
        ("vanilla", 24, 252),
        ("packed-input", 18, 180),
        ("ragged-cache", 24, 210),
        ("ems-sd", 18, 144),
    ):
        trace = figure2(method)
        row, slot = linear_flops_per_row(trace.model), attention_flops_per_slot(trace.model)
        totals = [step_flops(trace.model, step.account) for step in trace.decode_steps]
        assert sum(total for total, _ in totals) == rows * row + slots * slot
        assert sum(wasted for _, wasted in totals) == (rows - 18) * row + (slots - 144) * slot


def test_waste_is_rows_and_slots_of_nobody_and_never_rejected_drafts():
    wasted_somewhere = 0
    for number in range(40):
        trace = random_trace(number, 11)
        for step in trace.decode_steps:
            total, wasted = step_flops(trace.model, step.account)
            fed = [(row, kind) for row in step.rows for kind in row.input_kinds]
            useless = sum(kind == "pad" for _, kind in fed)
            row, slot = linear_flops_per_row(trace.model), attention_flops_per_slot(trace.model)
            scanned = step.account.kv_slots_scanned["per_token"]
            assert total == len(fed) * row + sum(scanned.values()) * slot
            assert wasted == useless * row + (sum(scanned.values()) - scanned["useful"]) * slot
            assert 0 <= wasted < total
            wasted_somewhere += wasted > 0
            if trace.method == "ems-sd":
                assert wasted == 0
    assert wasted_somewhere > 20


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
    assert PAPER_FIT.name == "OPT-6.7B on A100 80 GB"
    for words in ("Modelled, not measured", "13.7 ms", "0.248 µs", "per token and launch"):
        assert words in PAPER_FIT.explanation()
    assert "each row fed" not in PAPER_FIT.explanation()
    assert "2 µs for each row fed" in CostModel("x", 1.0, 2.0, 3.0).explanation()
    assert "guess" in PAPER_FIT_SOURCE


def test_cost_model_is_light():
    program = "import sys, emssd.cost_model; print([m for m in ('torch', 'streamlit', 'plotly') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
