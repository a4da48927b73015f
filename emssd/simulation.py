"""Methods and batch sizes from invented acceptance and modelled costs: counts, speed-ups and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from emssd.acceptance import Acceptance, draw_rows
from emssd.config import BASELINE
from emssd.cost_model import CostModel
from emssd.expectation import expected_runs
from emssd.hardware import Hardware
from emssd.model_shape import ModelShape
from emssd.run_counts import RunCounts, count_batches, speed_up

LONGEST_DRAFT = 16
LARGEST_BATCH = 64


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
        falls: method -> smallest batch size at which it is slower than greedy; None: none up to 64.
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
    return Simulation(setting, runs, falls, best_drafts(setting, drafting))


def falls_below(acceptance: Acceptance, cost_model: CostModel, method: str) -> int | None:
    """Smallest batch size up to 64 at which a method is expected to be slower than greedy; None if there is none."""
    runs = expected_runs(acceptance, range(1, LARGEST_BATCH + 1), [BASELINE, method])
    slower = (size for size, run in runs.items() if speed_up(run[method], run[BASELINE], cost_model) < 1)
    return next(slower, None)


def best_drafts(setting: Setting, methods: Sequence[str]) -> dict[int, dict[str, tuple[int, float]]]:
    """For each batch size and method the number of drafts, 1 to 16, that is expected to be fastest.

    The hit rate and the token rate are taken to be the same for every number of drafts.
    """
    best: dict[int, dict[str, tuple[int, float]]] = {size: {} for size in setting.batch_sizes}
    for drafts in range(1, LONGEST_DRAFT + 1):
        acceptance = setting.acceptance.with_settings(num_draft_tokens=drafts)
        for size, runs in expected_runs(acceptance, setting.batch_sizes, [BASELINE, *methods]).items():
            for method in methods:
                factor = speed_up(runs[method], runs[BASELINE], setting.cost_model)
                if method not in best[size] or factor > best[size][method][1]:
                    best[size][method] = (drafts, factor)
    return best
