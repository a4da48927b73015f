"""Presets of machines: possible, with their source; impossible ones refused; what does not fit is said."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest

from emssd.errors import ConfigError
from emssd.hardware import (
    DTYPE_BYTES,
    HARDWARE,
    dtype_bytes,
    hardware_named,
    kv_slot_bytes,
    memory_needed,
    require_cost,
)
from emssd.model_presets import MODELS

A100 = HARDWARE["a100-80gb"]
NAMES = ("a100-80gb", "h100-sxm", "h200", "l4", "rtx-4090", "apple-m3-max", "server-cpu-2-cores")


def test_every_machine_is_there_and_names_its_source():
    assert tuple(HARDWARE) == NAMES
    for machine in HARDWARE.values():
        assert any(word in machine.source for word in ("data sheet", "paper", "specifications", "manual")), machine
        assert machine.title not in ("", machine.source)


@pytest.mark.parametrize(
    ("name", "bandwidth", "dtype", "flops", "gigabytes"),
    [
        ("a100-80gb", 2.039e12, "float16", 312e12, 80),
        ("h100-sxm", 3.35e12, "bfloat16", 989.4e12, 80),
        ("h200", 4.8e12, "bfloat16", 989.4e12, 141),
        ("l4", 300e9, "float16", 121e12, 24),
        ("rtx-4090", 1008e9, "float16", 165.2e12, 24),
        ("apple-m3-max", 400e9, "float16", 14.1e12, 128),
    ],
)
def test_peaks_are_the_published_ones(name, bandwidth, dtype, flops, gigabytes):
    machine = hardware_named(name)
    assert (machine.bandwidth, machine.flops(dtype), machine.memory_bytes) == (bandwidth, flops, gigabytes * 1e9)


def test_rates_without_sparsity_double_as_numbers_halve():
    for machine in HARDWARE.values():
        if "float8_e4m3fn" in machine.peak_flops:
            assert machine.flops("float8_e4m3fn") == pytest.approx(2 * machine.flops("bfloat16"), rel=0.01)


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, "fast", None, True])
@pytest.mark.parametrize("field", ["bandwidth", "memory_bytes", "bandwidth_share", "compute_share"])
def test_impossible_machines_are_refused(field, value):
    if field == "memory_bytes" and value is None:
        assert replace(A100, memory_bytes=None).fits(MODELS["llama-3-70b"], "float32")  # not known
        return
    with pytest.raises(ConfigError, match=f"^{field} of {A100.title.replace('(', '.').replace(')', '.')} must be"):
        replace(A100, **{field: value})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"launch_us": -1.0}, "launch_us"),
        ({"host_ms": math.nan}, "host_ms"),
        ({"sequence_us": -0.1}, "sequence_us"),
        ({"bandwidth_share": 1.01}, "at most 1"),
        ({"compute_share": 2}, "at most 1"),
        ({"peak_flops": {}}, "at least one type"),
        ({"peak_flops": {"float16": 0.0}}, "float16 FLOP rate"),
        ({"peak_flops": {"int3": 1e12}}, "'int3' is not known"),
    ],
)
def test_other_impossible_machines_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        replace(A100, **changes)


def test_costs_of_nothing_are_possible():
    free = replace(A100, launch_us=0, host_ms=0, sequence_us=0)
    assert free.launch_us == free.host_ms == 0
    assert require_cost("x", 0) == 0.0


@pytest.mark.parametrize("name", ["", "a100", "H200", None])
def test_an_unknown_machine_is_refused_with_the_list(name):
    with pytest.raises(ConfigError, match="h100-sxm"):
        hardware_named(name)


def test_unknown_types_are_refused():
    assert {name: dtype_bytes(name) for name in DTYPE_BYTES} == DTYPE_BYTES
    with pytest.raises(ConfigError, match="'int4' is not known"):
        dtype_bytes("int4")
    with pytest.raises(ConfigError, match="has no FLOP rate for 'float8_e4m3fn': choose one of float16"):
        A100.flops("float8_e4m3fn")


def test_the_ridge_by_hand():
    """312e12 * 0.7 FLOP/s over 2.039e12 * 0.85 B/s."""
    assert A100.ridge("float16") == pytest.approx(126.01, abs=0.01)
    assert replace(A100, bandwidth_share=1.0, compute_share=1.0).ridge("float16") == pytest.approx(153.02, abs=0.01)


def test_memory_by_hand():
    """OPT-6.7B: 2 bytes of each parameter, 0.5 MiB of each slot; Llama 3 8B keeps a quarter of that."""
    opt, llama = MODELS["opt-6.7b"], MODELS["llama-3-8b"]
    assert kv_slot_bytes(opt, "float16") == 2**19
    assert kv_slot_bytes(llama, "bfloat16") == 2**17
    assert memory_needed(opt, "float16", 1000) == 2 * 6_658_473_984 + 1000 * 2**19
    assert memory_needed(opt, "float32") == 4 * 6_658_473_984


def test_what_does_not_fit_is_said():
    opt = MODELS["opt-6.7b"]
    most = int((80e9 - 2 * 6_658_473_984) // 2**19)
    assert A100.fits(opt, "float16", most)
    assert A100.memory_note(opt, "float16", most) is None
    assert not A100.fits(opt, "float16", most + 1)
    note = A100.memory_note(opt, "float16", most + 1)
    assert note is not None
    assert f"a cache of {most + 1:,} slots need 80.0 GB in float16" in note
    assert note.count(". ") == 0
    big = HARDWARE["l4"].memory_note(MODELS["llama-3-70b"], "bfloat16")
    assert big is not None
    assert big.startswith("The weights need 141.1 GB in bfloat16, but NVIDIA L4 has 24.0 GB: ")
    with pytest.raises(ConfigError, match="slots must be a number at least 0"):
        A100.fits(opt, "float16", -1)


def test_hardware_is_light():
    program = "import sys, emssd.model_presets; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
