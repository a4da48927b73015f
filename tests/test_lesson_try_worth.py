"""Lesson 9's experiment: prices to speed-ups by value, and the screen with its switch, sliders, chart and table."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise

import pytest

from emssd.expectation import expected_runs
from emssd.lessons.catalog import exercise_file, solution_file
from emssd.lessons.checking import Outcome
from emssd.lessons.price_curves import (
    KERNELS,
    SIZES,
    START,
    below_greedy,
    best_prices,
    figure,
    greedy_speeds,
    mean_error,
    paper_greedy_speeds,
    paper_speed_ups,
    run_counts,
    speed_ups,
)
from emssd.lessons.price_points import METHODS, figure_1_points, scale_error, speed_error
from emssd.lessons.progress import record_outcome
from emssd.paper import shipped_fits
from emssd.ui.try_worth import below_words
from tests.app_pages import EXPLORE, LESSONS, go, open_app, texts, warnings

FIT = (13.7, 0.248)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EMSSD_CACHE", str(tmp_path / "cache"))


def speeds_error(prices) -> float:
    lines, points = speed_ups(prices, "per_token"), paper_speed_ups()
    errors = [abs(lines[name][size] / value - 1) for name in METHODS for size, value in points[name].items()]
    assert len(errors) == 16
    return sum(errors) / len(errors)


@pytest.mark.parametrize("prices", [START, FIT, (1.0, 0.6), (30.0, 0.0)])
def test_the_lines_are_those_that_the_exercise_is_judged_by(prices):
    assert speeds_error(prices) == pytest.approx(float(speed_error(figure_1_points(), prices[1] / prices[0])), rel=1e-9)
    speeds, paper = greedy_speeds(prices, "per_token"), paper_greedy_speeds()
    errors = [abs(value / speeds[size] - 1) for size, value in paper.items()]  # of seconds, as the check has it
    assert sum(errors) / len(errors) == pytest.approx(float(scale_error(figure_1_points(), *prices)), rel=1e-9)


def test_an_error_is_that_of_the_published_number_itself():
    """Twice the speed is 100 % off, though it takes 50 % less time."""
    assert mean_error({1: 2.0, 8: 4.0}, {1: 4.0, 2: 9.0, 8: 4.0}) == 0.5


def test_the_points_are_the_papers():
    assert paper_speed_ups()["vanilla"] == {1: 3.94, 2: 3.21, 4: 2.26, 8: 1.37, 12: 0.99, 16: 0.83, 20: 0.7, 24: 0.66}
    assert paper_speed_ups()["ems-sd"] == {1: 3.94, 2: 3.5, 4: 2.83, 8: 2.17, 12: 1.81, 16: 1.63, 20: 1.46, 24: 1.41}
    speeds = paper_greedy_speeds()
    table = {1: 79.44, 2: 137.49, 4: 257.37, 8: 468.89, 16: 774.59, 24: 936.45}
    assert speeds == pytest.approx(table, rel=1e-4)


def test_the_fit_is_the_solutions():
    spec = spec_from_file_location("lesson_9_solution_here", solution_file(9))
    solution = module_from_spec(spec)
    spec.loader.exec_module(solution)
    assert best_prices() == pytest.approx(solution.fit_costs(list(figure())), rel=1e-3)
    assert speeds_error(best_prices()) < 0.031
    assert speeds_error(START) > 0.5


def test_where_a_method_falls_below_greedy_follows_from_the_ratio():
    assert below_greedy(speed_ups(FIT, "per_token")["vanilla"]) == tuple(range(12, 25))
    assert below_greedy(speed_ups(FIT, "per_token")["ems-sd"]) == ()
    assert below_greedy(speed_ups(START, "per_token")["vanilla"]) == ()
    larger = speed_ups((10 * FIT[0], 10 * FIT[1]), "per_token")
    for name, line in speed_ups(FIT, "per_token").items():
        assert larger[name] == pytest.approx(line, rel=1e-12)
    ends = [len(below_greedy(speed_ups((10.0, slot), "per_token")["vanilla"])) for slot in (0.05, 0.1, 0.2, 0.4)]
    assert all(low < high for low, high in pairwise(ends))


def test_free_slots_leave_the_steps():
    counts = run_counts()
    for kernel in KERNELS:
        for name, line in speed_ups((5.0, 0.0), kernel).items():
            for size in SIZES:
                steps = counts[size]["greedy"]["steps"] / counts[size][name]["steps"]
                assert line[size] == pytest.approx(steps, rel=1e-12)


def test_each_kernel_prices_its_own_slots():
    runs = expected_runs(shipped_fits()["swapped"].acceptance, (3, 24), ("greedy", *METHODS))
    for size, by_method in runs.items():
        for name, run in by_method.items():
            slots = run_counts()[size][name]["slots"]
            assert slots["varlen"] == round(sum(run.counts_by_kind["varlen"].values()))
            once = sum(run.counts_by_kind["per_token"].values())
            assert slots["per_token"] == round(once) if name == "greedy" else 1.9 * once < slots["per_token"] < 2 * once
    assert run_counts()[24]["greedy"]["slots"]["varlen"] == run_counts()[24]["greedy"]["slots"]["per_token"]
    assert below_greedy(speed_ups(FIT, "varlen")["vanilla"]) == ()


@pytest.mark.parametrize(
    ("below", "words"),
    [
        ((), "never up to 24"),
        (tuple(range(12, 25)), "from batch 12"),
        ((24,), "from batch 24"),
        ((2, 3), "at 2 of 24 sizes, first 2"),
    ],
)
def test_the_words_for_where_a_method_is_slower(below, words):
    assert below_words({size: 0.9 if size in below else 1.1 for size in SIZES}) == words


# ---- the screen


def readings(page) -> dict[str, str]:
    body = next(each.proto.body for each in page.get("html") if 'data-testid="readings"' in each.proto.body)
    return dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", body))


def table(page) -> dict[str, list[str]]:
    body = next(each.proto.body for each in page.get("html") if "As a table" in each.proto.body)
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', body)
    return {title: re.findall(r"<td>(.*?)</td>", cells) for title, cells in rows}


def alt(page) -> str:
    (plot,) = page.get("plotly_chart")
    return plot.proto.alt


def run_screen():
    page = open_app(LESSONS, lesson="9", section="run")
    assert not warnings(page)
    return page


def test_the_screen_begins_far_from_the_fit_and_the_sliders_move_the_lines():
    page = run_screen()
    assert readings(page)["Mean error of 16 speed-ups"] == "61 %"
    assert readings(page)["Mean error of greedy’s 6 tokens/s"] == "63 %"
    assert readings(page)["Vanilla below greedy"] == "never up to 24 (paper: 12)"
    assert table(page)["Vanilla, paper"] == ["3.94", "3.21", "2.26", "1.37", "0.99", "0.83", "0.70", "0.66"]
    assert "slower than" not in alt(page)
    page.slider(key="try_worth_step").set_value(13.7)
    page.slider(key="try_worth_slot").set_value(0.248).run()
    assert readings(page) == {
        "Mean error of 16 speed-ups": "3.5 %",
        "Mean error of greedy’s 6 tokens/s": "3.6 %",
        "Vanilla below greedy": "from batch 12 (paper: 12)",
        "EMS-SD below greedy": "never up to 24",
    }
    assert "At these prices slower than not speculating: vanilla from batch 12" in alt(page)
    model = [f"{value:.2f}" for size, value in speed_ups(FIT, "per_token")["vanilla"].items() if size in (1, 2, 4, 8)]
    assert table(page)["Vanilla, model"][:4] == model
    assert table(page)["Greedy tokens/s, paper"][4] == "–"


def test_varlen_has_no_points_to_be_off_from():
    page = run_screen()
    page.segmented_control(key="try_worth_kernel").set_value("varlen").run()
    assert readings(page)["Mean error of 16 speed-ups"] == "no points for varlen"
    assert "faint: measured with its own kernel" in texts(page)
    assert "Rows cost nothing here" in texts(page)
    page.slider(key="try_worth_slot").set_value(0.6).run()
    assert readings(page)["Vanilla below greedy"] == "never up to 24"


def test_the_fit_is_called_the_answer_until_somebody_has_tried():
    page = run_screen()
    assert page.button(key="try_worth_fit").label == "Show the answer"
    page.button(key="try_worth_fit").click().run()
    assert page.slider(key="try_worth_step").value == round(best_prices()[0], 1)
    assert page.slider(key="try_worth_slot").value == round(best_prices()[1], 3)
    assert readings(page)["Mean error of 16 speed-ups"] == "3.0 %"
    go(page, EXPLORE)
    page.query_params.update(lesson="9", section="run")
    go(page, LESSONS)
    assert page.slider(key="try_worth_step").value == round(best_prices()[0], 1)
    page.segmented_control(key="try_worth_kernel").set_value("varlen").run()
    page.button(key="try_worth_reset").click().run()
    assert page.segmented_control(key="try_worth_kernel").value == "per_token"
    assert (page.slider(key="try_worth_step").value, page.slider(key="try_worth_slot").value) == START
    assert record_outcome(Outcome(9, "fit_costs", str(exercise_file(9)), False, None, None, 0.1))
    page.run()
    assert page.button(key="try_worth_fit").label == "Show the fit"
