"""The calibration on a tiny model: it measures every part, keeps its time, stops when told, and its plans are real."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from emssd.accounting import step_account
from emssd.calibration import CACHES, DENSE_ROWS, QUERIES, SHARES, calibrate, fit_costs, invented_plan
from emssd.config import SpeculativeConfig
from emssd.decoding import generate
from emssd.errors import ConfigError
from emssd.measured_machine import MeasuredMachine, machine_cost_model
from emssd.step_counts import engine_calls, trace_counts
from tests.helpers import language_model


@pytest.fixture(scope="module")
def lm():
    return language_model("random-llama")


@pytest.fixture(scope="module")
def measured(lm) -> MeasuredMachine:
    found = calibrate(lm, seconds=0.5)
    assert found is not None
    return found


def test_every_part_is_measured(measured):
    assert [rows for rows, _ in measured.dense_ms] == list(map(float, DENSE_ROWS))
    assert min(ms for _, ms in measured.dense_ms) > 0
    assert measured.bandwidth > 1e8
    assert measured.flops > 1e8
    assert measured.op_us > 0
    assert measured.host_ms + measured.sequence_us > 0
    assert sum(vars(measured.attention).values()) > 0
    assert MeasuredMachine.from_dict(measured.to_dict()) == measured


def test_it_gives_a_time_for_every_step_of_a_run(lm, measured):
    model = machine_cost_model(measured)
    trace = generate(lm, [[5, 6, 7, 5, 6], [8, 9, 8]], SpeculativeConfig.vanilla(max_new_tokens=6))
    times = [model.time(counts) for counts in trace_counts(trace)]
    assert all(time.total > 0 for time in times)
    assert model.trace_seconds(trace) == pytest.approx(sum(time.total for time in times))


def test_progress_rises_and_names_each_part(lm):
    heard: list[tuple[float, str]] = []
    calibrate(lm, seconds=0.01, progress=lambda done, what: heard.append((done, what)))
    assert [what for _, what in heard] == [*SHARES, "done"]
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)
    assert heard[-1][0] == 1.0


@pytest.mark.parametrize("asked", [1, 5, 40])
def test_it_stops_when_told(lm, asked):
    number = count(1)
    assert calibrate(lm, seconds=60, should_stop=lambda: next(number) >= asked) is None
    assert next(number) <= asked + 2


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "20"])
def test_impossible_times_are_refused(lm, seconds):
    with pytest.raises(ConfigError, match="seconds"):
        calibrate(lm, seconds=seconds)


def test_the_time_is_kept(lm):
    """By a clock that advances a millisecond at each look: no part goes on once its share has passed."""
    ticks = count()
    found = calibrate(lm, seconds=2.0, clock=lambda: 1e-3 * next(ticks))
    assert found is not None
    assert found.seconds < 2.5


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("rows", "span"), CACHES)
@pytest.mark.parametrize("queries", QUERIES)
def test_invented_steps_scan_what_they_say(rows, span, queries, padded):
    account = step_account(invented_plan(rows, queries, span, padded), 0, 0)
    assert sum(account.kv_slots_scanned["varlen"].values()) == rows * span
    pairs = sum(span - queries + 1 + query for query in range(queries))
    assert sum(account.kv_slots_scanned["per_token"].values()) == rows * pairs
    assert account.kv_slots_scanned["varlen"]["hole"] == (sum(row % 4 for row in range(rows)) if padded else 0)


def test_the_engine_groups_invented_steps_as_the_fit_assumes():
    for padded, calls in ((False, 4), (True, 1)):
        assert engine_calls(_as_traced(invented_plan(4, 4, 128, padded)), padded) == calls


def _as_traced(plan):
    """Row plans answer to the three names that grouping looks at."""
    return list(plan.rows)


def test_a_fit_finds_the_costs_that_made_the_times():
    random = np.random.default_rng(3)
    features = np.column_stack([np.ones(40), random.integers(1, 900, (40, 4))])
    costs, error = fit_costs(features, features @ np.array([50.0, 3.0, 0.0, 0.5, 2.0]))
    assert costs == pytest.approx([50.0, 3.0, 0.0, 0.5, 2.0], abs=1e-6)
    assert error == pytest.approx(0.0, abs=1e-9)


def test_a_fit_never_gives_a_negative_cost():
    features = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    costs, error = fit_costs(features, np.array([3.0, 2.0, 1.0]))
    assert costs.min() >= 0
    assert costs[1] == 0
    assert error > 0.1
