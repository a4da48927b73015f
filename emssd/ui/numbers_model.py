"""What follows from the settings of the page "Numbers": speed-ups, answers, waste by kind, intensities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from emssd.acceptance import Acceptance
from emssd.expectation import ExpectedRun, expected_runs
from emssd.expected_speeds import Ranges, best_lengths, runs_of, slower_ranges
from emssd.hardware import dtype_bytes
from emssd.model_shape import WindowShares
from emssd.paper import LABELS as FITTED
from emssd.paper import PUBLISHED
from emssd.ui.numbers_settings import Settings, dtype_of

MAIN = ("vanilla", "ems-sd")
TAKEN_APART = ("vanilla", "packed-input", "ragged-cache", "ems-sd")
EVERY = ("greedy", *TAKEN_APART)
CURVE = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24)
"""Batch sizes that a curve is drawn through."""


@dataclass(frozen=True)
class Curves:
    """Modelled speed-ups over greedy.

    Args:
        lines: method -> batch size -> speed-up.
        slower: method -> ranges of batch sizes, up to `MAX_BATCH`, with a speed-up below 1.
    """

    lines: dict[str, dict[int, float]]
    slower: dict[str, Ranges]

    @property
    def falls(self) -> dict[str, int | None]:
        """Method -> smallest batch size with a speed-up below 1; None: none up to `MAX_BATCH`."""
        return {name: found[0][0] if found else None for name, found in self.slower.items()}


def curves(settings: Settings) -> Curves:
    """Speed-ups of every method by batch size."""
    acceptance, costs = settings.acceptance, settings.cost_model
    factors = runs_of(acceptance, CURVE, EVERY, costs.windows).speed_ups(costs)
    lines = {name: {batch: factors[batch, name] for batch in CURVE} for name in TAKEN_APART}
    return Curves(lines, {name: slower_ranges(acceptance, costs, name, lines[name]) for name in MAIN})


def paper_points(settings: Settings) -> dict[str, dict[int, float]]:
    """The paper's speed-ups over greedy: method -> batch size -> value; nothing for another machine or model.

    With one row no input and no cache has padding: the paper shows one bar for both methods.
    """
    if not settings.is_papers:
        return {}
    labels = FITTED[0] if settings.labels == "hidden" else settings.labels
    numbers = {(batch, method, quantity): value for batch, method, quantity, value in PUBLISHED[labels]}
    points: dict[str, dict[int, float]] = {name: {} for name in shown_methods(settings)}
    for (batch, method, quantity), value in numbers.items():
        if method in points:
            points[method][batch] = value if quantity == "speedup" else value / numbers[batch, "greedy", "tps"]
    points["ems-sd"][1] = points["vanilla"][1]
    return {name: dict(sorted(values.items())) for name, values in points.items()}


def factors_at(settings: Settings) -> dict[str, float]:
    """Method -> speed-up over greedy at the settings' batch."""
    costs = settings.cost_model
    factors = runs_of(settings.acceptance, (settings.batch,), EVERY, costs.windows).speed_ups(costs)
    return {name: factors[settings.batch, name] for name in TAKEN_APART}


def shown_methods(settings: Settings) -> tuple[str, ...]:
    """Methods of the main chart."""
    return MAIN if settings.labels == "hidden" else TAKEN_APART


def fit_errors(
    lines: Mapping[str, Mapping[int, float]], points: Mapping[str, Mapping[int, float]]
) -> dict[int, list[float]]:
    """Batch size -> absolute relative errors of the lines at its points."""
    errors: dict[int, list[float]] = {}
    for name, values in points.items():
        for batch, value in values.items():
            errors.setdefault(batch, []).append(abs(lines[name][batch] / value - 1))
    return dict(sorted(errors.items()))


def best_drafts(settings: Settings) -> dict[str, tuple[int, float]]:
    """Method -> (draft length, speed-up) that is fastest at the settings' batch."""
    return best_lengths(settings.acceptance, settings.cost_model, settings.batch, MAIN)


@dataclass(frozen=True)
class StepParts:
    """A mean step of one method, taken apart.

    Args:
        rows: rows fed, by INPUT_KINDS.
        slots: slots that attention reads, by SCAN_KINDS, as the chosen kernel reads them.
        attention_ms: their time.
        step_ms: time of the whole step.
        steps: expected steps of a run.
    """

    rows: dict[str, float]
    slots: dict[str, float]
    attention_ms: float
    step_ms: float
    steps: float

    @property
    def fed(self) -> float:
        """Rows of the dense layers."""
        return sum(self.rows.values())


@lru_cache(maxsize=64)
def _expected(acceptance: Acceptance, batch: int, windows: WindowShares) -> dict[str, ExpectedRun]:
    return expected_runs(acceptance, [batch], EVERY, windows)[batch]


def _run(settings: Settings, method: str) -> ExpectedRun:
    return _expected(settings.acceptance, settings.batch, settings.shape.window_shares)[method]


def step_parts(settings: Settings, method: str) -> StepParts:
    """The mean step of a method at the settings' batch."""
    run = _run(settings, method)
    mode = settings.kernel
    launches = run.launches if mode == "per_token" else 1.0
    weights = run.happens / run.steps

    def mean(values: object) -> float:
        return float((weights * values).sum())

    time = settings.cost_model.time(run.step_counts())
    return StepParts(
        rows={kind: mean(values) for kind, values in run.input_rows.items()},
        slots={kind: mean(values * launches) for kind, values in run.kv_slots_scanned[mode].items()},
        attention_ms=1e3 * mean(time.attention),
        step_ms=1e3 * mean(time.total),
        steps=float(run.steps),
    )


def dense_intensity(settings: Settings, rows: float) -> float:
    """FLOPs of the linear layers per byte of their weights when `rows` rows are fed."""
    return 2 * rows / dtype_bytes(dtype_of(settings.machine))


def attention_intensity(settings: Settings, method: str) -> float:
    """FLOPs of attention per byte of keys and values read: each query's own read, or one read of a row's slots."""
    shape, size = settings.shape, dtype_bytes(dtype_of(settings.machine))
    single = 2 * shape.heads / (shape.kv_heads * size)
    if settings.kernel == "per_token":
        return single
    run = _run(settings, method)
    scanned = {
        mode: sum(float((run.happens * values).sum()) for values in kinds.values())
        for mode, kinds in run.kv_slots_scanned.items()
    }
    return single * scanned["per_token"] / scanned["varlen"]
