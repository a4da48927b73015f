"""Sizes of a model and what follows from them for one row and one slot, against real modules and by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from emssd.accounting import attention_flops_per_slot, kv_bytes_per_slot, linear_flops_per_row
from emssd.language_model import count_weights, dense_modules
from emssd.model_shape import ModelShape
from emssd.random_models import RANDOM_MODELS
from tests.helpers import language_model

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


COUNTED = ("linear_weights_per_row", "head_weights", "expert_weights")


def sizes_alone(model: dict) -> dict:
    """A description without the weights that were counted on the modules: an older trace, or a model not at hand."""
    return {name: value for name, value in model.items() if name not in COUNTED}


@pytest.mark.parametrize("name", [*DENSE, "random-deepseek-v3"])
def test_linear_flops_are_those_of_the_modules_that_run(name):
    lm = language_model(name)
    assert linear_flops_per_row(lm.description()) == 2 * weights_used(lm)
    assert ModelShape.from_trace(lm.description()).head_weights == lm.model.get_output_embeddings().weight.numel()


@pytest.mark.parametrize("name", DENSE)
def test_sizes_alone_say_the_same(name):
    lm = language_model(name)
    shape = ModelShape.from_trace(lm.description())
    alone = ModelShape.from_trace(sizes_alone(lm.description()))
    assert (alone.linear_weights_per_row, alone.head_weights) == (shape.linear_weights_per_row, shape.head_weights)


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("alone", [False, True], ids=["counted", "sizes alone"])
def test_a_mixture_counts_the_experts_that_a_token_uses(name, alone):
    lm = language_model(name)
    model = sizes_alone(lm.description()) if alone else lm.description()
    shape = ModelShape.from_trace(model)
    layers = dict(lm.model.named_parameters())
    experts = sum(weight.numel() for weight in layers.values() if weight.ndim == 3)
    others = [
        weight.numel()
        for key, weight in layers.items()
        if weight.ndim == 2 and "embed" not in key and "bias" not in key
    ]
    assert (shape.experts, shape.experts_per_token, shape.expert_weights) == (4, 2, experts // 4)
    assert linear_flops_per_row(model) == 2 * (sum(others) + experts * 2 // 4)


def test_experts_that_are_modules_of_their_own_count_as_those_that_are_stacked():
    class Expert(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)

    lm = language_model("random-qwen3")
    counted = count_weights(lm.model)
    model = copy.deepcopy(lm.model)
    model.model.layers[1].experts = nn.ModuleList([Expert() for _ in range(3)])
    model.config.num_experts_per_tok = 2
    assert counted == {"experts": None, "linear_weights_per_row": 18432, "head_weights": 97 * 32, "expert_weights": 0}
    assert count_weights(model) == {
        "experts": 3,
        "linear_weights_per_row": 18432 + 2 * 2 * 8 * 16,
        "head_weights": 97 * 32,
        "expert_weights": 2 * 8 * 16,
    }


def test_dense_modules_multiply_rows_and_nothing_else():
    gpt2, mixtral = (set(dense_modules(language_model(name).model)) for name in ("random-gpt2", "random-mixtral"))
    parts = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    assert gpt2 == {f"transformer.h.{layer}.{part}" for layer in (0, 1) for part in parts} | {"lm_head"}
    parts = (*(f"self_attn.{letter}_proj" for letter in "qkvo"), "mlp.gate", "mlp.experts")
    assert mixtral == {f"model.layers.{layer}.{part}" for layer in (0, 1) for part in parts} | {"lm_head"}


def test_weights_of_a_step_are_read_once_and_experts_as_far_as_rows_can_touch_them():
    """Two experts a token of four: one row reads two, two rows may read all four, and no number of rows reads more."""
    shape = ModelShape.from_trace(language_model("random-mixtral").description())
    layer = 32 * (32 + 16 + 16 + 32) + 4 * 32  # attention and router
    expert, head = 3 * 32 * 64, 97 * 32
    read = [shape.weights_read(rows) for rows in (0, 1, 2, 3, 50)]
    assert read == [0, *(2 * (layer + experts * expert) + head for experts in (2, 4, 4, 4))]
    dense = ModelShape.from_trace(LLAMA_3_8B)
    assert dense.weights_read(1) == dense.weights_read(99) == dense.weights_per_row
    tied = ModelShape.from_trace(OPT_6_7B)
    assert tied.weights_read(1) == tied.weights_per_row < tied.parameters


def test_windows_are_those_of_the_layers():
    windows = {
        "random-mistral": (8, 8),
        "random-gemma3": (8, None),
        "random-gpt-oss": (8, None),
        "random-llama": (),
    }
    for name, right in windows.items():
        assert ModelShape.from_trace(language_model(name).description()).windows == right
    assert ModelShape.from_trace(OPT_6_7B).windows == ()
    alternating = {**OPT_6_7B, "layers": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
    assert ModelShape.from_trace({**alternating, "sliding_window": 8}).windows == (8, None, 8)
    assert ModelShape.from_trace({**OPT_6_7B, "layers": 2**63 - 1}).windows == ()
    odd = ({"sliding_window": "8"}, {"sliding_window": True}, {"sliding_window": 8}, {"sliding_window": 0})
    assert all(ModelShape.from_trace({**OPT_6_7B, "layer_types": ["sliding_attention"], **each}).windows == ()
               for each in odd)  # fmt: skip


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
