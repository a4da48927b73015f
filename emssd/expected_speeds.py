"""What expected runs answer: speed-ups by batch size, where a method falls below greedy, the best draft length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from emssd.acceptance import MAX_BATCH, Acceptance, Floats, Ints
from emssd.config import BASELINE
from emssd.cost_model import CostModel
from emssd.expectation import expected_runs
from emssd.model_shape import WindowShares
from emssd.step_counts import StepCounts

LONGEST_DRAFT = 16
COUNTED = ("rows", "query_slots", "span_slots", "launches", "live", "query_rows")
TRIED = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, MAX_BATCH)
"""Batch sizes between which those below greedy are looked for."""
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Runs:
    """Expected runs of several batch sizes and methods, laid end to end so that costs are asked for once.

    Args:
        places: (batch size, method) -> its number.
        starts: where each run's steps begin.
        counts: of all steps.
        happens: chance that each step exists.
    """

    places: dict[tuple[int, str], int]
    starts: Ints
    counts: StepCounts
    happens: Floats

    def speed_ups(self, costs: CostModel) -> dict[tuple[int, str], float]:
        """Modelled seconds of greedy by those of the method, for every batch size and method."""
        seconds = np.add.reduceat(self.happens * costs.time(self.counts).total, self.starts)
        return {
            (batch, method): float(seconds[self.places[batch, BASELINE]] / seconds[place])
            for (batch, method), place in self.places.items()
        }


@lru_cache(maxsize=256)
def runs_of(
    acceptance: Acceptance, batches: tuple[int, ...], methods: tuple[str, ...], windows: WindowShares = ()
) -> Runs:
    """Expected runs, greedy's among them; `windows` are those of the cost model that they are priced with."""
    found = expected_runs(acceptance, batches, methods, windows)
    runs = {(batch, name): run for batch, each in found.items() for name, run in each.items()}
    parts = [run.step_counts() for run in runs.values()]
    lengths = [len(run.happens) for run in runs.values()]
    counts = StepCounts(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in COUNTED}, calls=None
    )
    return Runs(
        {place: number for number, place in enumerate(runs)},
        np.cumsum([0, *lengths[:-1]]),
        counts,
        np.concatenate([run.happens for run in runs.values()]),
    )


def falls_below(
    acceptance: Acceptance, costs: CostModel, method: str, known: Mapping[int, float] | None = None
) -> int | None:
    """Smallest batch size at which a method is expected to be slower than greedy.

    At larger ones it may be faster again, for example where more rows share the reading of a mixture's experts:
    `slower_ranges` says where.

    Args:
        acceptance: how rows behave.
        costs: of a step.
        method: its name.
        known: speed-ups by batch size that need not be computed again.

    Returns:
        None: there is none up to `MAX_BATCH`.
    """
    slower = _slower(acceptance, costs, method, known or {})
    low = 0
    for batch in TRIED:
        if slower(batch):
            return _first(slower, low, batch)
        low = batch
    return None


def slower_ranges(
    acceptance: Acceptance, costs: CostModel, method: str, known: Mapping[int, float] | None = None
) -> Ranges:
    """All batch sizes up to `MAX_BATCH` at which a method is expected to be slower than greedy.

    Args:
        acceptance, costs, method, known: as for `falls_below`.

    Returns:
        (first, last) of each range, ascending; () where it is never slower. Ends are exact where the answer changes
        once between two neighbouring sizes of `TRIED`.
    """
    missing = tuple(batch for batch in TRIED if batch not in (known or {}))
    factors = runs_of(acceptance, missing, (BASELINE, method), costs.windows).speed_ups(costs) if missing else {}
    known = {**(known or {}), **{batch: factors[batch, method] for batch in missing}}
    slower = _slower(acceptance, costs, method, known)
    found: list[tuple[int, int]] = []
    start = 1 if slower(1) else 0
    for low, high in pairwise(TRIED):
        if slower(high) and not start:
            start = _first(slower, low, high)
        elif start and not slower(high):
            found.append((start, _first(lambda batch: not slower(batch), low, high) - 1))
            start = 0
    return (*found, (start, MAX_BATCH)) if start else tuple(found)


def _slower(acceptance: Acceptance, costs: CostModel, method: str, known: Mapping[int, float]) -> Callable[[int], bool]:
    def slower(batch: int) -> bool:
        if batch in known:
            return known[batch] < 1
        return runs_of(acceptance, (batch,), (BASELINE, method), costs.windows).speed_ups(costs)[batch, method] < 1

    return slower


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Smallest number above `low` for which it holds; it holds for `high`."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def best_lengths(
    acceptance: Acceptance, costs: CostModel, batch: int, methods: Sequence[str]
) -> dict[str, tuple[int, float]]:
    """Method -> (draft length, speed-up over greedy) that is expected to be fastest, of 1 to `LONGEST_DRAFT` drafts.

    The hit rate and the token rate are taken to be the same for every length.
    """
    found: dict[str, tuple[int, float]] = {}
    for length in range(1, LONGEST_DRAFT + 1):
        rows = acceptance.with_settings(num_draft_tokens=length)
        factors = runs_of(rows, (batch,), (BASELINE, *methods), costs.windows)
        speed_ups = factors.speed_ups(costs)
        for name in methods:
            if name not in found or speed_ups[batch, name] > found[name][1]:
                found[name] = (length, speed_ups[batch, name])
    return found
