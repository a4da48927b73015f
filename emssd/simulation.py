"""Methods and batch sizes from invented acceptance and modelled costs: counts, speed-ups and what follows from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from emssd.acceptance import Acceptance, draw_rows
from emssd.config import BASELINE
from emssd.cost_model import CostModel
from emssd.expected_speeds import best_lengths, falls_below
from emssd.hardware import Hardware
from emssd.model_shape import ModelShape
from emssd.run_counts import RunCounts, count_batches, speed_up


@dataclass(frozen=True)
class Setting:
    """What is simulated.

    Args:
        acceptance: how rows behave.
        batch_sizes, methods: what is tried; greedy is always counted, too.
        hardware: key and description of the machine.
        model: the model's name and sizes.
        cost_model: what follows from both.
        dtype: type of weights and cache.
        batches: invented batches of each size.
        seed: of the random numbers.
    """

    acceptance: Acceptance
    batch_sizes: list[int]
    methods: list[str]
    hardware: tuple[str, Hardware]
    model: tuple[str, ModelShape]
    cost_model: CostModel
    dtype: str
    batches: int
    seed: int


@dataclass(frozen=True)
class Simulation:
    """What came out.

    Args:
        setting: what was simulated.
        runs: batch size -> method -> counts of all its batches.
        falls: method -> smallest batch size at which it is slower than greedy; None: none up to `MAX_BATCH`.
        best_drafts: batch size -> method -> number of drafts that is fastest, and its speed-up.
    """

    setting: Setting
    runs: dict[int, dict[str, RunCounts]]
    falls: dict[str, int | None]
    best_drafts: dict[int, dict[str, tuple[int, float]]]

    def speed_up(self, batch_size: int, method: str) -> float:
        """Modelled decode seconds of greedy by the method's, over all batches of a size."""
        runs = self.runs[batch_size]
        return speed_up(runs[method], runs[BASELINE], self.setting.cost_model)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: settings, and one entry for each batch size and method."""
        setting = self.setting
        entries = [
            {
                "batch": size,
                "method": method,
                "speedup": self.speed_up(size, method),
                "tokens_per_second": run.tokens_per_second(setting.cost_model),
                "mean_acceptance_length": run.mean_acceptance_length,
                "steps": float(run.happens.sum()) / setting.batches,
                **{name: _per_batch(kinds, setting.batches) for name, kinds in run.counts_by_kind.items()},
            }
            for size, runs in self.runs.items()
            for method, run in runs.items()
        ]
        return {
            "acceptance": setting.acceptance.to_dict(),
            "hardware": setting.hardware[0],
            "model": setting.model[0],
            "dtype": setting.dtype,
            "kernel": setting.cost_model.kernel,
            "batches": setting.batches,
            "seed": setting.seed,
            "runs": entries,
            "falls_below_greedy": self.falls,
            "best_num_draft_tokens": {
                str(size): {method: best for method, (best, _) in found.items()}
                for size, found in self.best_drafts.items()
            },
        }


def _per_batch(kinds: dict[str, float], batches: int) -> dict[str, float]:
    return {kind: total / batches for kind, total in kinds.items()}


def run_simulation(setting: Setting, progress: Callable[[], object] = lambda: None) -> Simulation:
    """Draw rows once, group them into batches of every size, and count each method's steps.

    Args:
        setting: what is simulated.
        progress: called after each batch size and method, greedy among them.
    """
    rows = draw_rows(setting.acceptance, max(setting.batch_sizes) * setting.batches, setting.seed)
    methods = [BASELINE, *setting.methods]
    runs: dict[int, dict[str, RunCounts]] = {}
    for size in setting.batch_sizes:
        batches = rows.first(size * setting.batches).batches(size)
        runs[size] = {}
        for method in methods:
            runs[size][method] = count_batches(batches, method)
            progress()
    drafting = [method for method in setting.methods if not method.startswith("greedy")]
    falls = {method: falls_below(setting.acceptance, setting.cost_model, method) for method in drafting}
    best = {size: best_lengths(setting.acceptance, setting.cost_model, size, drafting) for size in setting.batch_sizes}
    return Simulation(setting, runs, falls, best)
