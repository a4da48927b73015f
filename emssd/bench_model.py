"""Measured speed-ups beside those that a cost model gives for the counts of the very same runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from emssd.bench_plan import GREEDY, Entry
from emssd.bench_results import BenchResults, Point
from emssd.cost_model import CostModel
from emssd.step_counts import StepCounts

LARGEST_MEAN_ERROR = 0.15


@dataclass(frozen=True)
class ModelPoint:
    """One point, measured and modelled. Seconds are of a step; only the speed-ups are held against each other."""

    prompts: str
    batch: int
    entry: Entry
    measured: float
    modelled: float
    measured_step_seconds: float
    modelled_step_seconds: float

    @property
    def error(self) -> float:
        """Relative error of the modelled speed-up."""
        return self.modelled / self.measured - 1

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "prompts": self.prompts,
            "batch": self.batch,
            "method": self.entry.method,
            "drafter": self.entry.drafter,
            "measured_speed_up": self.measured,
            "modelled_speed_up": self.modelled,
            "error": self.error,
            "measured_milliseconds_per_step": 1e3 * self.measured_step_seconds,
            "modelled_milliseconds_per_step": 1e3 * self.modelled_step_seconds,
        }


@dataclass(frozen=True)
class Crossing:
    """The first tested batch size at which vanilla is slower than greedy; None if it never is."""

    prompts: str
    drafter: str
    measured: int | None
    modelled: int | None
    batch_sizes: tuple[int, ...]

    @property
    def steps_apart(self) -> int:
        """How many tested batch sizes lie between the two; "never" counts as one more size than the largest."""
        sizes = [*self.batch_sizes, None]
        return abs(sizes.index(self.measured) - sizes.index(self.modelled))

    @property
    def agrees(self) -> bool:
        """Whether they are at most one tested batch size apart."""
        return self.steps_apart <= 1


@dataclass(frozen=True)
class ModelComparison:
    """All points that the cost model covers: ours, without a draft model, whose forwards it does not have."""

    name: str
    points: list[ModelPoint]
    crossings: list[Crossing]

    @property
    def mean_error(self) -> float | None:
        """Mean absolute relative error of the speed-ups; greedy itself, which has none, is left out."""
        errors = [abs(point.error) for point in self.points if point.entry != GREEDY]
        return fmean(errors) if errors else None

    @property
    def is_near(self) -> bool:
        """Whether the mean error is small enough."""
        return self.mean_error is not None and self.mean_error <= LARGEST_MEAN_ERROR

    @property
    def passed(self) -> bool:
        """Whether the mean error is small enough and vanilla falls below greedy where the model says so."""
        return self.is_near and all(crossing.agrees for crossing in self.crossings)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "cost_model": self.name,
            "mean_absolute_error": self.mean_error,
            "largest_mean_absolute_error": LARGEST_MEAN_ERROR,
            "passed": self.passed,
            "points": [point.to_dict() for point in self.points],
            "vanilla_below_greedy": [
                {
                    "prompts": each.prompts,
                    "drafter": each.drafter,
                    "measured": each.measured,
                    "modelled": each.modelled,
                    "agrees": each.agrees,
                }
                for each in self.crossings
            ],
        }


def compare_with_model(results: BenchResults, cost_model: CostModel) -> ModelComparison:
    """Hold measured speed-ups against those that the cost model gives for the counts of the same runs."""
    points = [point for point in results.points if _is_covered(point)]
    found = []
    for point in points:
        greedy = results.point(point.prompts, point.batch, GREEDY)
        if greedy is None or point.speed_up is None or point.step_seconds is None:
            continue
        ours, theirs = modelled_seconds(point, cost_model), modelled_seconds(greedy, cost_model)
        tokens = point.details["decode_tokens"] / greedy.details["decode_tokens"]
        found.append(
            ModelPoint(
                point.prompts,
                point.batch,
                point.entry,
                point.speed_up.median,
                tokens * theirs / ours,
                point.step_seconds,
                ours / point.details["steps"],
            )
        )
    return ModelComparison(cost_model.name, found, _crossings(results, found))


def _is_covered(point: Point) -> bool:
    return point.entry.is_ours and point.entry.drafter != "draft-model" and bool(point.details.get("counts"))


def modelled_seconds(point: Point, cost_model: CostModel) -> float:
    """Seconds of all decode steps of a point by the cost model."""
    steps = (StepCounts(*counts) for counts in point.details["counts"])
    return float(sum(cost_model.time(step).total for step in steps))


def _crossings(results: BenchResults, points: Sequence[ModelPoint]) -> list[Crossing]:
    found = []
    for prompts in results.prompt_sets:
        for drafter in dict.fromkeys(point.entry.drafter for point in points):
            entry = Entry("vanilla", drafter)
            mine = [point for point in points if point.prompts == prompts and point.entry == entry]
            if mine:
                found.append(
                    Crossing(
                        prompts,
                        drafter,
                        next((point.batch for point in mine if point.measured < 1), None),
                        next((point.batch for point in mine if point.modelled < 1), None),
                        tuple(point.batch for point in mine),
                    )
                )
    return found
