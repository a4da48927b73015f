"""What was measured here: kept, read back, refused where it says nothing, and turned into costs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from emssd.errors import ConfigError
from emssd.measured_machine import (
    AttentionCosts,
    CalibrationError,
    MeasuredMachine,
    calibration_path,
    check_calibration,
    load_calibration,
    machine_cost_model,
    save_calibration,
)
from emssd.model_presets import MODELS
from emssd.step_counts import StepCounts

ENVIRONMENT = {
    "model": "smollm2-135m",
    "device": "cpu",
    "device_name": "x86_64",
    "dtype": "float32",
    "threads": 2,
    "omp_wait_policy": "PASSIVE",
    "torch": "2.13.0",
    "emssd": "0.1.0",
}
MODEL = {
    "name": "smollm2-135m",
    "parameters": 134_515_008,
    "layers": 30,
    "heads": 9,
    "kv_heads": 3,
    "head_dim": 64,
    "hidden": 576,
    "intermediate": 1536,
    "vocab": 49152,
    "dtype": "float32",
    "tied_embeddings": True,
}


def machine(**changes) -> MeasuredMachine:
    fields = {
        "model": MODEL,
        "environment": ENVIRONMENT,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": 18.0,
        "bandwidth": 20e9,
        "flops": 200e9,
        "op_us": 2.0,
        "dense_ms": ((1.0, 40.0), (8.0, 60.0), (64.0, 200.0)),
        "attention": AttentionCosts(1000.0, 500.0, 10.0, 0.5, 0.25, 0.05),
        "host_ms": 0.5,
        "sequence_us": 20.0,
        "memory_bytes": 2e10,
    }
    return MeasuredMachine(**{**fields, **changes})


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EMSSD_CACHE", str(tmp_path))


def test_a_kept_measurement_comes_back_whole():
    path = save_calibration(machine())
    assert path == calibration_path(ENVIRONMENT)
    assert load_calibration(ENVIRONMENT) == machine(created=json.loads(path.read_text())["created"])


def test_nothing_kept_is_said():
    with pytest.raises(CalibrationError, match="smollm2-135m has not been calibrated"):
        load_calibration(ENVIRONMENT)


@pytest.mark.parametrize(
    ("entry", "value", "words"),
    [
        ("threads", 4, "threads"),
        ("omp_wait_policy", None, "OMP_WAIT_POLICY"),
        ("dtype", "bfloat16", "dtype"),
        ("model", "other", "model"),
        ("torch", "2.14.0", "torch"),
    ],
)
def test_another_environment_is_refused(entry, value, words):
    with pytest.raises(CalibrationError, match=words):
        check_calibration(machine(), {**ENVIRONMENT, entry: value})


def test_an_old_measurement_is_refused():
    old = machine(created=(datetime.now(UTC) - timedelta(days=31)).isoformat())
    with pytest.raises(CalibrationError, match="31 days old"):
        check_calibration(old, ENVIRONMENT)
    check_calibration(old, ENVIRONMENT, max_age_days=40)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.pop("dense_ms"),
        lambda data: data.update(version=2),
        lambda data: data.update(bandwidth=0),
        lambda data: data.update(dense_ms=[[1, 2]]),
        lambda data: data.update(dense_ms=[[2, 2], [4, 3]]),
        lambda data: data["attention"].update(call_us=-1),
        lambda data: data["attention"].pop("slot_us"),
        lambda data: data.update(created="yesterday"),
        lambda data: data["model"].pop("hidden"),
        lambda data: data["model"].update(dtype="int3"),
    ],
)
def test_a_damaged_file_is_refused(damage):
    path = save_calibration(machine())
    data = json.loads(path.read_text())
    damage(data)
    path.write_text(json.dumps(data))
    with pytest.raises(CalibrationError, match="calibrate again"):
        load_calibration(ENVIRONMENT)


@pytest.mark.parametrize("text", ["", "[]", "{", "7"])
def test_no_measurement_at_all_is_refused(text):
    path = save_calibration(machine())
    path.write_text(text)
    with pytest.raises(CalibrationError, match="calibrate again"):
        load_calibration(ENVIRONMENT)


def test_a_folder_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EMSSD_CACHE", str(tmp_path / "file"))
    with pytest.raises(CalibrationError, match="EMSSD_CACHE"):
        save_calibration(machine())


def test_costs_of_the_measured_model_worked_out_by_hand():
    """Ragged rows: 2 calls, 10 rows fed, spans 100 and 50 slots, 600 pairs of query and slot."""
    counts = StepCounts(rows=10, query_slots=600, span_slots=150, launches=2, live=2, query_rows=10, calls=2)
    time = machine_cost_model(machine()).time(counts)
    dense = 60 + (200 - 60) * 2 / 56  # ms: 2 of the 56 rows from 8 to 64
    attention = 1000 + 2 * 500 + 10 * 10 + 150 * 0.5 + 600 * 0.25  # us
    assert time.total == pytest.approx(1e-3 * (dense + 0.5) + 1e-6 * (attention + 2 * 20), rel=1e-12)
    shape = machine().shape
    assert time.weights == pytest.approx(shape.weights_per_row * 4 / 20e9)
    assert time.attention == pytest.approx(1e-6 * (10 * 10 + 150 * 0.5 + 600 * 0.25))


def test_another_model_scales_with_what_each_cost_depends_on():
    """Twice the layers of the same sizes: the layers' part of every cost doubles."""
    small, large = machine(), replace(machine().shape, layers=60)
    large = replace(large, parameters=2 * large.parameters)
    own = small.shape
    one, two = machine_cost_model(small, own), machine_cost_model(small, large)
    assert two.slot_us == 2 * one.slot_us
    assert two.query_slot_us == 2 * one.query_slot_us
    assert two.attention_launch_us == 2 * one.attention_launch_us
    assert two.launch_ms == 2 * one.launch_ms
    assert two.step_ms == one.step_ms
    share = large.weights_per_row / own.weights_per_row
    assert 1 < share < 2  # the LM head stays
    assert two.dense_ms[-1][1] == pytest.approx(share * one.dense_ms[-1][1])


def test_another_type_is_refused():
    with pytest.raises(ConfigError, match="float16"):
        machine_cost_model(machine(), MODELS["opt-6.7b"], "float16")


def test_the_rates_as_hardware():
    hardware = machine().hardware
    assert hardware.bandwidth == 20e9
    assert hardware.flops("float32") == 200e9
    assert "2 threads" in hardware.title


@pytest.mark.parametrize(
    "changes",
    [{"bandwidth": 0.0}, {"flops": float("nan")}, {"op_us": -1.0}, {"dense_ms": ((1.0, 0.0), (2.0, 1.0))}],
)
def test_impossible_measurements_are_refused(changes):
    with pytest.raises(ConfigError):
        machine(**changes)


def test_reading_needs_no_torch():
    program = "import sys, emssd.measured_machine; print([m for m in ('torch', 'streamlit') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
