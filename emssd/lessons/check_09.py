"""Lesson 9: two prices fitted to points, and the faster ablation of a regime; expected counts come from the engine."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from random import Random

import numpy as np

from emssd.lessons.ablation_regimes import check_regimes
from emssd.lessons.checking import CALLED, Failure, Solution, short
from emssd.lessons.price_points import (
    NOISE,
    OTHERS,
    Point,
    blurred,
    fair_ratios,
    figure_1_points,
    highest_error,
    made_points,
    pulled_apart,
    root_mean_square,
    scale_error,
    speed_error,
    unfair_ratio,
)

TITLE = "fit_costs, faster_ablation"
SEEDS = 20
SAME = 0.01
"""How far prices may be from those that made points without noise, relative."""
NEAR = 0.15
"""Prices that are off by less than this, but by more than `SAME`, come from a search that is too coarse."""
SCALE_ROOM, SCALE_SLACK = 1.35, 0.01
UNITS = {
    "step_ms": {1e-3: "seconds", 1e3: "microseconds"},
    "slot_us": {1e-6: "seconds", 1e-3: "milliseconds", 1e3: "nanoseconds"},
}
"""A price in another unit is this many times too large."""
PRICES = "(step_ms, slot_us): two numbers above 0"


def check(solution: Solution) -> str:
    """Points made from known prices, the same with noise, Figure 1, then random regimes.

    Raises:
        Failure: the first prices or the first ablation that is not right.
    """
    for seed in range(SEEDS):
        draw = Random(f"lesson 9 {seed}")
        points, prices = made_points(draw)
        _check_exact(prices, _prices(solution, points, seed), seed)
        if seed % 2:
            noisy, words = blurred(points, draw), f"points with {100 * NOISE:g} % of noise"
        else:
            wrong = OTHERS[seed // 2 % 3]
            noisy, words = pulled_apart(points, prices, draw, wrong), "points that no two prices explain exactly"
        _check_best(noisy, solution, words, seed)
    figure = figure_1_points()
    step_ms, slot_us = _check_best(figure, solution, "Figure 1", None)
    wins = check_regimes(solution)
    error = 100 * speed_error(figure, slot_us / step_ms)
    return (
        f"{2 * SEEDS} sets of made points and Figure 1, where your {step_ms:.1f} ms a step and {slot_us:.3f} "
        f"us a slot are off by {error:.1f} % on average; {sum(wins.values())} regimes: packed-input wins "
        f"{wins['packed-input']}, ragged-cache {wins['ragged-cache']}."
    )


def _prices(solution: Solution, points: Sequence[Point], seed: int | None) -> tuple[float, float]:
    """The learner's two prices.

    Raises:
        Failure: they are not two positive numbers.
    """
    known = sum(point["greedy"]["seconds"] is not None for point in points)
    sizes = ", ".join(str(point["batch"]) for point in points)
    called = f"points of batch sizes {sizes}; greedy's seconds are known in {known} of {len(points)}, None elsewhere"
    got = solution.call("fit_costs", list(points), **{"seed": seed, CALLED: called})
    values = list(got) if isinstance(got, (tuple, list, np.ndarray)) else []
    good = len(values) == 2 and all(
        isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value) for value in values
    )
    if not good:
        what = f"fit_costs must return two numbers, (step_ms, slot_us), not {short(got, 80)}."
        raise Failure(what, expected=PRICES, got=got, seed=seed)
    step_ms, slot_us = (float(value) for value in values)
    if step_ms <= 0 or slot_us <= 0:
        what = "fit_costs returned a price that is not above 0."
        raise Failure(what, expected=PRICES, got=(step_ms, slot_us), seed=seed)
    return step_ms, slot_us


def _check_exact(prices: tuple[float, float], got: tuple[float, float], seed: int) -> None:
    if all(abs(value / right - 1) <= SAME for value, right in zip(got, prices, strict=True)):
        return
    expected, shown = (tuple(float(f"{value:.5g}") for value in each) for each in (prices, got))
    raise Failure(
        "fit_costs misses the prices that these points were made from, without any noise.",
        expected=expected,
        got=shown,
        seed=seed,
        why=f"{_why(prices, got)} Each price may be off by {100 * SAME:g} %.",
    )


def _why(prices: tuple[float, float], got: tuple[float, float]) -> str:
    """Names what was returned instead, where that can be told from the numbers."""
    step, slot = got[0] / prices[0], got[1] / prices[1]
    wrong_units = _units(prices, got)
    if wrong_units:
        return f"The numbers are right, the units are not: {wrong_units}."
    if _units(prices, (got[1], got[0])) is not None:
        return "The two are swapped: return step_ms first, then slot_us."
    if max(abs(step - 1), abs(slot - 1)) <= NEAR:
        return "Both are near: search closer around the best ratio, where the values that were tried lie too far apart."
    if abs(step / slot - 1) <= 2 * SAME:
        return (
            f"The ratio of the two is right, the scale is not: both are {step:.3g} times the true ones. Speed-ups hold "
            "for any scale; greedy's seconds, where they are known, fix it."
        )
    if abs(step - 1) <= SAME:
        return f"The step's price is right; the slot's is {slot:.3g} times the true one."
    if abs(slot - 1) <= SAME:
        return f"The slot's price is right; the step's is {step:.3g} times the true one."
    return (
        f"The step's price is {step:.3g} times the true one, the slot's {slot:.3g} times. Speed-up is greedy's seconds "
        "by the method's; steps and slots are priced, rows are not."
    )


def _units(prices: tuple[float, float], got: tuple[float, float]) -> str | None:
    """The prices that are right but for the unit, with the unit they are in; None if one is wrong in any unit."""
    found = []
    for (name, units), right, value in zip(UNITS.items(), prices, got, strict=True):
        fits = [factor for factor in (1.0, *units) if abs(value / right / factor - 1) <= NEAR]
        if not fits:
            return None
        found += [f"{name} is in {units[factor]}" for factor in fits if factor != 1]
    return ", ".join(found)


def _check_best(points: Sequence[Point], solution: Solution, name: str, seed: int | None) -> tuple[float, float]:
    """Compare with the best two prices there are.

    Raises:
        Failure: the errors could be clearly smaller.
    """
    step_ms, slot_us = _prices(solution, points, seed)
    ratio, limit = slot_us / step_ms, highest_error(points)
    error = float(root_mean_square(points, ratio)[0])
    if error > limit:
        raise Failure(
            f"fit_costs explains {name} worse than two prices can: its speed-ups are off by {100 * error:.1f} %.",
            expected=f"at most {100 * limit:.1f} %, root mean square of log(model / published)",
            got=f"{100 * error:.1f} %",
            seed=seed,
            why=_why_not_best(points, ratio, fair_ratios(points)[0]),
        )
    scales = np.exp(np.linspace(-1.0, 1.0, 801)) * step_ms
    limit = SCALE_ROOM * float(np.min(scale_error(points, scales, scales * slot_us / step_ms))) + SCALE_SLACK
    error = float(scale_error(points, step_ms, slot_us))
    if error > limit:
        raise Failure(
            f"fit_costs has the right ratio for {name}, but greedy's seconds are off by {100 * error:.1f} %.",
            expected=f"at most {100 * limit:.1f} %",
            got=f"{100 * error:.1f} %",
            seed=seed,
            why="Speed-ups hold for any scale; greedy's seconds, where they are known, fix it.",
        )
    return step_ms, slot_us


def _why_not_best(points: Sequence[Point], ratio: float, best: float) -> str:
    """Names what was fitted instead, where that can be told from the ratio."""
    text = f"The best slot_us / step_ms is about {best:.3g}, yours is {ratio:.3g}. "
    found = [what for what in OTHERS if abs(ratio / unfair_ratio(points, what) - 1) <= 2 * SAME]
    if found and abs(ratio / best - 1) > 2 * SAME:
        return f"{text}That is a fit {', or '.join(found)}. All points and both methods count, by relative error."
    if abs(math.log(ratio / best)) <= 2 * NEAR:
        return f"{text}It is near: search closer around the best ratio."
    return f"{text}Use all points and both methods: points without greedy's seconds have speed-ups, too."
