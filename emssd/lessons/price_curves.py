"""Lesson 9's experiment: what two prices make of every batch size up to 24, on either kernel, beside Figure 1's points.

A run takes steps * step_ms / 1000 + slots * slot_us / 1,000,000 seconds, as in the exercise. The paper's kernel,
"per_token", reads a row's slots for each query and is launched twice where any row is fed more than one token; "varlen"
reads them once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from emssd.accounting import ATTENTION_MODES
from emssd.expectation import expected_runs
from emssd.lessons.price_points import METHODS, Point, counts_of, fair_ratios, figure_1_points, root_mean_square
from emssd.paper import shipped_fits

SIZES = tuple(range(1, 25))
KERNELS = ATTENTION_MODES
START = (10.0, 0.05)
"""Prices to begin with, round and far off: milliseconds of a step, microseconds of a slot."""
TOKENS = 128
"""Tokens of a row, as the authors count them."""
CLOSE_RATIOS = np.exp(np.linspace(-0.02, 0.02, 401))
"""Tried around a ratio that was found on a coarser grid."""


@lru_cache(maxsize=1)
def figure() -> tuple[Point, ...]:
    """Figure 1's points, made once; shared, so that callers change nothing."""
    return tuple(figure_1_points())


@lru_cache(maxsize=1)
def run_counts() -> dict[int, dict[str, dict[str, Any]]]:
    """Batch size -> method -> expected "steps" of the batch, and "slots" by kernel; shared, not to be changed."""
    runs = expected_runs(shipped_fits()["swapped"].acceptance, SIZES, ("greedy", *METHODS))
    counted: dict[int, dict[str, dict[str, Any]]] = {}
    for size, by_method in runs.items():
        counted[size] = {}
        for name, run in by_method.items():
            counts = counts_of(run)
            once = round(float(np.sum(run.happens * run.step_counts().span_slots)))
            counted[size][name] = {"steps": counts["steps"], "slots": {"per_token": counts["slots"], "varlen": once}}
    return counted


def seconds(size: int, method: str, prices: tuple[float, float], kernel: str) -> float:
    """Priced seconds of a batch.

    Args:
        size: one of `SIZES`; method: "greedy" or one of `METHODS`.
        prices: milliseconds of a step, microseconds of a slot.
        kernel: one of `KERNELS`.
    """
    counts = run_counts()[size][method]
    return float(1e-3 * prices[0] * counts["steps"] + 1e-6 * prices[1] * counts["slots"][kernel])


def speed_ups(prices: tuple[float, float], kernel: str) -> dict[str, dict[int, float]]:
    """Method -> batch size -> greedy's seconds by the method's; arguments as in `seconds`."""
    return {
        name: {size: seconds(size, "greedy", prices, kernel) / seconds(size, name, prices, kernel) for size in SIZES}
        for name in METHODS
    }


def greedy_speeds(prices: tuple[float, float], kernel: str) -> dict[int, float]:
    """Batch size -> greedy's tokens per second; arguments as in `seconds`."""
    return {size: TOKENS * size / seconds(size, "greedy", prices, kernel) for size in SIZES}


def paper_speed_ups() -> dict[str, dict[int, float]]:
    """Method -> batch size -> published speed-up over greedy."""
    return {name: {point["batch"]: point[name]["speed_up"] for point in figure()} for name in METHODS}


def paper_greedy_speeds() -> dict[int, float]:
    """Batch size -> greedy's published tokens per second; Table 2 leaves out batches 12 and 20."""
    known = [point for point in figure() if point["greedy"]["seconds"] is not None]
    return {point["batch"]: TOKENS * point["batch"] / point["greedy"]["seconds"] for point in known}


def mean_error(published: Mapping[int, float], modelled: Mapping[int, float]) -> float:
    """Mean absolute relative error of a model at the batch sizes that were published."""
    return sum(abs(modelled[size] / value - 1) for size, value in published.items()) / len(published)


def below_greedy(line: Mapping[int, float]) -> tuple[int, ...]:
    """Batch sizes at which a method is slower than not speculating."""
    return tuple(size for size, value in line.items() if value < 1)


@lru_cache(maxsize=1)
def best_prices() -> tuple[float, float]:
    """The prices that the exercise asks for: their ratio from the speed-ups, then the scale from greedy's seconds."""
    points = figure()
    ratios = fair_ratios(points)[0] * CLOSE_RATIOS
    ratio = float(ratios[int(np.argmin(root_mean_square(points, ratios)))])
    known = [point["greedy"] for point in points if point["greedy"]["seconds"] is not None]
    logs = [math.log(each["seconds"] / (each["steps"] + 1e-3 * ratio * each["slots"])) for each in known]
    step_ms = 1e3 * math.exp(sum(logs) / len(logs))
    return step_ms, ratio * step_ms
