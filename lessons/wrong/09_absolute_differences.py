"""Squares absolute differences, so that large speed-ups decide."""

from __future__ import annotations

import math
from typing import Any

Point = dict[str, Any]
METHODS = ("vanilla", "ems-sd")


def steps_worth(counts: dict[str, Any], ratio: float) -> float:
    """What a run costs in steps, if a slot costs `ratio` of a step."""
    return float(counts["steps"] + ratio * counts["slots"])


def misfit(points: list[Point], ratio: float) -> float:
    """Squared errors of all speed-ups; milliseconds cancel in them."""
    total = 0.0
    for point in points:
        for method in METHODS:
            model = steps_worth(point["greedy"], ratio) / steps_worth(point[method], ratio)
            total += (model - point[method]["speed_up"]) ** 2
    return total


def fit_costs(points: list[Point]) -> tuple[float, float]:
    """step_ms and slot_us: their ratio from the speed-ups, then the scale from greedy's seconds."""
    exponents = [number / 10 for number in range(-100, -20)]
    best, width = min(exponents, key=lambda exponent: misfit(points, 10**exponent)), 0.1
    while width > 1e-6:
        width /= 2
        best = min((best - width, best, best + width), key=lambda exponent: misfit(points, 10**exponent))
    ratio = 10**best
    known = [point["greedy"] for point in points if point["greedy"]["seconds"] is not None]
    scales = [counts["seconds"] / steps_worth(counts, ratio) for counts in known]
    seconds = math.exp(sum(map(math.log, scales)) / len(scales))
    return 1e3 * seconds, 1e6 * ratio * seconds


def faster_ablation(regime: dict[str, Any]) -> str:
    """The ablation with the smaller price."""
    costs = regime["costs"]

    def seconds(counts: dict[str, Any]) -> float:
        rows, slots = counts["rows"], counts["slots"][regime["kernel"]]
        return float(
            1e-3 * costs["step_ms"] * counts["steps"] + 1e-6 * (costs["row_us"] * rows + costs["slot_us"] * slots)
        )

    return min(regime["counts"], key=lambda name: seconds(regime["counts"][name]))
