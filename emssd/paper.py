"""The paper's numbers for OPT-6.7B with looked-up drafts, and a fitted model beside them.

Published are 27 speeds (Table 2) and 4 speed-ups of the batch sizes that the table leaves out (Figure 1). The table
contradicts its own caption about which of its two ablation rows is which, so both assignments are kept: as "printed",
and "swapped".

The model draws rows from an `Acceptance`, counts each method's steps exactly, and prices them with a `CostModel` of
four costs. How its parameters were found: `assets/paper/fit_paper.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from emssd.acceptance import Acceptance, Trajectories, draw_rows
from emssd.cost_model import KERNELS, CostModel
from emssd.errors import ConfigError, shown
from emssd.expectation import expected_steps
from emssd.hardware import FittedCosts, Hardware, kv_slot_bytes
from emssd.model_presets import MODELS
from emssd.run_counts import RunCounts, count_batches

BATCH_SIZES = (1, 2, 4, 8, 12, 16, 20, 24)
METHODS = ("greedy", "vanilla", "ragged-cache", "packed-input", "ems-sd")
LABELS = ("swapped", "printed")
PROMPTS = 480
"""Articles of the paper's test set."""
ROUNDS = 8
"""Invented sets of that many prompts in one prediction."""
SEED = 2405
SPREADS = (0.0, 25.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 400.0, 450.0, 600.0)
"""Standard deviations of prompt lengths, in tokens, at which the ablation is computed."""
LIMIT = 0.04
"""Largest mean error, of speeds and of speed-ups, with which the swapped assignment counts as reproduced."""
FIT_FILE = Path(__file__).resolve().parent.parent / "assets" / "paper" / "fit.json"
COSTS = ("step_ms", "weights_ms", "row_us", "slot_us")
SWAP = {"ragged-cache": "packed-input", "packed-input": "ragged-cache"}
OVERSHOOTS = ("ragged-cache", "ems-sd")
"""Methods whose tokens beyond a row's limit the authors' code counts."""

# batch size -> tokens/s of greedy, vanilla, "KV only", "inputs only", both: the rows as they are printed
_TABLE_2 = {
    1: (79.44, 313.04),
    2: (137.49, 441.64, 439.40, 477.72, 480.59),
    4: (257.37, 581.54, 610.41, 728.86, 729.17),
    8: (468.89, 640.58, 687.11, 948.71, 1017.75),
    16: (774.59, 640.94, 734.86, 1134.25, 1264.07),
    24: (936.45, 616.19, 708.53, 1150.16, 1321.45),
}
_FIGURE_1 = {12: {"vanilla": 0.99, "ems-sd": 1.81}, 20: {"vanilla": 0.70, "ems-sd": 1.46}}

MACHINE_SOURCES = {
    "swapped": "Costs fitted to Table 2, for OPT-6.7B only; the GPU is not named. A step and a slot are fitted; "
    "weights and rows cost what an A100’s data sheet says, which is an assumption.",
    "printed": "Costs fitted to Table 2, for OPT-6.7B only; the GPU is not named. All four costs are fitted, and end "
    "at the bounds of what one GPU can do.",
}
"""What is known of the paper's GPU, by labels."""

BOUNDS: dict[str, tuple[float, float]] = {
    "step_ms": (0.0, 12.6),
    "weights_ms": (3.97, 12.6),
    "row_us": (13.5, 150.0),
    "slot_us": (0.157, 0.65),
    "hit_rate": (0.0, 1.0),
    "token_rate": (0.0, 1.0),
    "spread": (0.0, 5.0),
}
"""What one GPU can do. Lower ends are an H100 SXM's by its data sheet (3.35 TB/s, 989 TFLOP/s in float16): 13.3 GB of
weights, 2 * 6.65e9 FLOPs a row, 0.5 MiB a slot. Upper ends: 12.6 ms is the paper's own greedy step at batch 1, which
holds both; a row at 150 µs is 89 TFLOP/s; a slot at 0.65 µs is 0.8 TB/s."""


@dataclass(frozen=True)
class PaperPoint:
    """One published number and the model's.

    Args:
        batch: batch size.
        method: command-line name.
        quantity: "tps" (tokens per second) or "speedup" (over greedy).
        published, model: the values.
    """

    batch: int
    method: str
    quantity: str
    published: float
    model: float

    @property
    def error(self) -> float:
        """Relative error of the model, with its sign."""
        return self.model / self.published - 1

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dict(vars(self))


@dataclass(frozen=True)
class PaperFit:
    """Fitted parameters for one assignment of the ablation rows.

    Args:
        labels: "swapped" or "printed".
        acceptance: how rows behave.
        cost_model: what a step costs.
        errors: mean absolute errors recorded when it was fitted: "tps", "speedup".
    """

    labels: str
    acceptance: Acceptance
    cost_model: CostModel
    errors: dict[str, float]

    @property
    def parameters(self) -> dict[str, Any]:
        """All numbers that a prediction depends on."""
        costs: dict[str, Any] = {name: getattr(self.cost_model, name) for name in COSTS}
        return {**costs, **self.acceptance.to_dict()}


def published(labels: str = "swapped") -> list[tuple[int, str, str, float]]:
    """The 31 published numbers as (batch size, method, quantity, value).

    Raises:
        ConfigError: `labels` is neither "swapped" nor "printed".
    """
    check_labels(labels)
    names = [SWAP.get(name, name) if labels == "swapped" else name for name in METHODS]
    speeds = [
        (batch, name, "tps", value) for batch, row in _TABLE_2.items() for name, value in zip(names, row, strict=False)
    ]
    return speeds + [(batch, name, "speedup", value) for batch, row in _FIGURE_1.items() for name, value in row.items()]


def check_labels(labels: str) -> None:
    """Raise ConfigError unless `labels` names an assignment of the two ablation rows."""
    if labels not in LABELS:
        raise ConfigError(f"labels must be one of {', '.join(LABELS)}, not {shown(labels)}.")


PUBLISHED = {labels: published(labels) for labels in LABELS}


def paper_cost_model(parameters: dict[str, float]) -> CostModel:
    """The cost model with fitted costs: max(weights, rows) + slots + the rest of a step."""
    step, weights, row, slot = (float(parameters[name]) for name in COSTS)
    return CostModel("OPT-6.7B, fitted to the paper", step_ms=step, weights_ms=weights, row_us=row, slot_us=slot)


@lru_cache(maxsize=len(LABELS))
def paper_machine(labels: str = "swapped") -> Hardware:
    """The GPU that the paper measured on, as far as its speeds tell: fitted costs, and the rates that they come to.

    Raises:
        ConfigError: the shipped fits cannot be read.
    """
    costs, shape = shipped_fits()[labels].parameters, MODELS["opt-6.7b"]
    return Hardware(
        title="the paper’s GPU (fitted)",
        bandwidth=1e6 * kv_slot_bytes(shape, "float16") / costs["slot_us"],
        peak_flops={"float16": 1e6 * 2 * shape.weights_per_row / costs["row_us"]},
        launch_us=0.0,
        host_ms=0.0,
        memory_bytes=None,
        source=MACHINE_SOURCES[labels],
        bandwidth_share=1.0,
        compute_share=1.0,
        fitted=FittedCosts("OPT-6.7B", shape, "float16", **{name: costs[name] for name in COSTS}),
    )


def read_fits(path: Path = FIT_FILE) -> dict[str, PaperFit]:
    """The shipped fits, by labels.

    Raises:
        ConfigError: the file is missing or damaged.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {
            labels: PaperFit(
                labels,
                Acceptance(**data[labels]["acceptance"]),
                paper_cost_model(data[labels]["costs"]),
                {name: float(data[labels]["errors"][name]) for name in ("tps", "speedup")},
            )
            for labels in LABELS
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is missing or damaged ({type(error).__name__}: {error}): restore it, or write it anew with "
            "assets/paper/fit_paper.py."
        ) from None


@lru_cache(maxsize=2)
def paper_rows(acceptance: Acceptance, seed: int = SEED, rounds: int = ROUNDS) -> Trajectories:
    """The rows of a prediction. As in the authors' code, drafts are not cut at a row's end."""
    return draw_rows(acceptance, PROMPTS * rounds, seed, capped=False)


def counted_tokens(rows: Trajectories, counts: RunCounts, beyond: bool = True) -> Any:
    """[batches] tokens as the authors count them: the first one is among them although its time is not.

    Tokens beyond a row's limit count where the code does not cut them off: with a ragged cache, and if `beyond`.
    """
    if beyond and counts.method in OVERSHOOTS:
        return counts.tokens + counts.batch_size
    return np.full(np.shape(counts.tokens), counts.batch_size * (rows.decoded + 1))


@lru_cache(maxsize=256)
def speeds_at(
    batch_size: int, acceptance: Acceptance, cost_model: CostModel, seed: int = SEED, rounds: int = ROUNDS
) -> dict[tuple[str, str], float]:
    """Tokens per second of one batch size, as the authors measure: the mean over batches.

    Returns:
        (kernel, method) -> tokens per second, prefill and the first token's step left out; the costs are the same for
        both kernels. Tokens beyond a row's limit count as in the authors' code on its own kernel, "per_token", and not
        at all on "varlen", which is a prediction.
    """
    rows = paper_rows(acceptance, seed, rounds)
    batches, speeds = rows.batches(batch_size), {}
    for method in METHODS:
        counts = count_batches(batches, method)
        for kernel in KERNELS:
            tokens = counted_tokens(rows, counts, beyond=kernel == KERNELS[0])
            seconds = counts.seconds(replace(cost_model, kernel=kernel))
            speeds[kernel, method] = float(np.mean(tokens / seconds))
    return speeds


def predicted_speeds(
    acceptance: Acceptance, cost_model: CostModel, seed: int = SEED, rounds: int = ROUNDS
) -> dict[tuple[int, str], float]:
    """The same for the paper's eight batch sizes, on the cost model's kernel: (batch size, method) -> tokens/s."""
    first = replace(cost_model, kernel=KERNELS[0])
    speeds = {size: speeds_at(size, acceptance, first, seed, rounds) for size in BATCH_SIZES}
    return {(size, method): speeds[size][cost_model.kernel, method] for size in BATCH_SIZES for method in METHODS}


def predict(labels: str = "swapped", seed: int = SEED, rounds: int = ROUNDS) -> list[PaperPoint]:
    """All 31 published numbers with the shipped fit's beside them. The same seed gives the same numbers.

    Raises:
        ConfigError: unknown labels.
    """
    check_labels(labels)
    fit = shipped_fits()[labels]
    return points_of(predicted_speeds(fit.acceptance, fit.cost_model, seed, rounds), labels)


def points_of(speeds: dict[tuple[int, str], float], labels: str) -> list[PaperPoint]:
    """The published numbers beside modelled speeds."""
    return [
        PaperPoint(
            batch,
            method,
            quantity,
            value,
            speeds[batch, method] / (1.0 if quantity == "tps" else speeds[batch, "greedy"]),
        )
        for batch, method, quantity, value in PUBLISHED[labels]
    ]


def table_speed_ups(points: list[PaperPoint]) -> list[PaperPoint]:
    """The 25 speed-ups that the paper prints: 21 quotients of Table 2's speeds, and the 4 of Figure 1."""
    greedy = {point.batch: point for point in points if point.method == "greedy"}
    quotients = [
        PaperPoint(
            point.batch,
            point.method,
            "speedup",
            point.published / greedy[point.batch].published,
            point.model / greedy[point.batch].model,
        )
        for point in points
        if point.quantity == "tps" and point.method != "greedy"
    ]
    return quotients + [point for point in points if point.quantity == "speedup"]


def mean_errors(points: list[PaperPoint]) -> dict[str, float]:
    """Mean absolute relative errors: "tps" of the 27 speeds; "speedup" the larger of the 4 points' and of all 25."""

    def mean(chosen: list[PaperPoint]) -> float:
        return float(np.mean([abs(point.error) for point in chosen]))

    given = [point for point in points if point.quantity == "speedup"]
    return {
        "tps": mean([point for point in points if point.quantity == "tps"]),
        "speedup": max(mean(given), mean(table_speed_ups(points))),
    }


def with_kernel(fit: PaperFit, kernel: str) -> PaperFit:
    """The same costs on another attention kernel: "varlen" reads each row's slots once, in one launch.

    Raises:
        ConfigError: unknown kernel.
    """
    if kernel not in KERNELS:
        raise ConfigError(f"kernel must be one of {', '.join(KERNELS)}, not {shown(kernel)}.")
    return replace(fit, cost_model=replace(fit.cost_model, kernel=kernel))


def varlen_speed_ups(fit: PaperFit, seed: int = SEED, rounds: int = ROUNDS) -> dict[tuple[int, str], float]:
    """Prediction: speed-ups over greedy if attention read each row's slots once, in one launch; all costs as fitted.

    Tokens beyond a row's limit are left out: only the authors' way to measure counts them.

    Returns:
        (batch size, method) -> tokens/s by greedy's, both on that kernel.
    """
    speeds = predicted_speeds(fit.acceptance, with_kernel(fit, "varlen").cost_model, seed, rounds)
    return {
        (size, method): speeds[size, method] / speeds[size, "greedy"]
        for size in BATCH_SIZES
        for method in METHODS
        if method != "greedy"
    }


def ablation_by_spread(
    fit: PaperFit, batch_size: int = 24, spreads: Sequence[float] = SPREADS
) -> list[tuple[float, dict[str, float]]]:
    """Expected tokens/s of all methods for prompts of equal mean and growing standard deviation.

    It decides which half of the method helps more: with equal prompts packing the inputs, with spread prompts the
    ragged cache, which scans no prompt padding.

    Returns:
        (standard deviation in tokens, method -> tokens/s), in the order of `spreads`.
    """
    results = []
    for spread in spreads:
        acceptance = fit.acceptance.with_settings(prompt_sd=spread, prompt_law="lognormal" if spread else "equal")
        runs = expected_steps(acceptance, batch_size, METHODS)
        results.append((spread, {name: run.tokens_per_second(fit.cost_model) for name, run in runs.items()}))
    return results


def order_flips_at(fit: PaperFit, batch_size: int = 24, largest: float = 900.0) -> float | None:
    """Standard deviation of prompt lengths from which the ragged cache alone is faster than packed inputs alone.

    Found by halving, to a token; None where one of the two is faster at both ends.
    """

    def lead(spread: float) -> float:
        [(_, speeds)] = ablation_by_spread(fit, batch_size, [spread])
        return speeds["ragged-cache"] - speeds["packed-input"]

    low, high = 0.0, largest
    if (lead(low) < 0) == (lead(high) < 0):
        return None
    while high - low > 1:
        middle = (low + high) / 2
        low, high = (low, middle) if lead(middle) > 0 else (middle, high)
    return high


@lru_cache(maxsize=1)
def shipped_fits() -> dict[str, PaperFit]:
    """The shipped fits, by labels; read once. `paper.FITS` is the same."""
    return read_fits()


def __getattr__(name: str) -> Any:
    if name == "FITS":
        return shipped_fits()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
