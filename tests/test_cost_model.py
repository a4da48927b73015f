"""Modelled time against numbers worked out by hand."""

from __future__ import annotations

import subprocess
import sys

import pytest

from emssd.accounting import StepAccount
from emssd.cost_model import PAPER_FIT, PAPER_FIT_SOURCE, CostModel
from tests.test_cells import figure2


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
