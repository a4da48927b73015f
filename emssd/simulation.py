"""Methods and batch sizes from invented acceptance and modelled costs: counts, speed-ups and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from emssd.acceptance import Acceptance, Trajectories, draw_rows
from emssd.config import BASELINE
from emssd.cost_model import CostModel
from emssd.expected_speeds import Ranges, best_lengths, slower_ranges
from emssd.hardware import Hardware, memory_needed
from emssd.model_shape import ModelShape
from emssd.run_counts import RunCounts, check_method, count_batches

PIECE = 1_000_000
"""Rows times steps that are drawn and counted at once, so that memory does not grow with the number of batches."""


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
class RunTotals:
    """Sums over all batches of a size, decoded with one method.

    Args:
        seconds: modelled, of all decode steps.
        tokens: that decode steps put out.
        steps: decode steps of all batches.
        live: rows that were live, summed over steps.
        kinds: "input_rows" and each attention mode -> kind -> total.
        launched: kind -> slots of the paper's kernel, as often as it is launched.
    """

    seconds: float
    tokens: float
    steps: float
    live: float
    kinds: dict[str, dict[str, float]]
    launched: dict[str, float]

    @classmethod
    def of(cls, run: RunCounts, costs: CostModel) -> RunTotals:
        """Sums of what was counted."""
        launches = run.happens * run.launches
        return cls(
            seconds=float(run.seconds(costs).sum()),
            tokens=float(run.tokens.sum()),
            steps=float(run.happens.sum()),
            live=float((run.happens * run.live).sum()),
            kinds=run.counts_by_kind,
            launched={kind: float((launches * each).sum()) for kind, each in run.kv_slots_scanned["per_token"].items()},
        )

    def __add__(self, other: RunTotals) -> RunTotals:
        return RunTotals(
            seconds=self.seconds + other.seconds,
            tokens=self.tokens + other.tokens,
            steps=self.steps + other.steps,
            live=self.live + other.live,
            kinds={name: _sum(kinds, other.kinds[name]) for name, kinds in self.kinds.items()},
            launched=_sum(self.launched, other.launched),
        )

    @property
    def tokens_per_second(self) -> float:
        """Decoded tokens by modelled seconds."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Mean tokens that a live row gains in a step."""
        return self.tokens / self.live if self.live else 0.0


def _sum(kinds: dict[str, float], others: dict[str, float]) -> dict[str, float]:
    return {kind: value + others[kind] for kind, value in kinds.items()}


@dataclass(frozen=True)
class Simulation:
    """What came out.

    Args:
        setting: what was simulated.
        runs: batch size -> method -> sums over all its batches.
        slower: method -> ranges of batch sizes, up to `MAX_BATCH`, at which it is expected to be slower than greedy.
        best_drafts: batch size -> method -> number of drafts that is fastest, and its speed-up.
    """

    setting: Setting
    runs: dict[int, dict[str, RunTotals]]
    slower: dict[str, Ranges]
    best_drafts: dict[int, dict[str, tuple[int, float]]]

    def speed_up(self, batch_size: int, method: str) -> float:
        """Modelled decode seconds of greedy by the method's, over all batches of a size."""
        seconds = self.runs[batch_size][method].seconds
        return self.runs[batch_size][BASELINE].seconds / seconds if seconds else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data: settings, and one entry for each batch size and method."""
        setting = self.setting
        entries = [
            {
                "batch": size,
                "method": method,
                "speedup": self.speed_up(size, method),
                "tokens_per_second": run.tokens_per_second,
                "mean_acceptance_length": run.mean_acceptance_length,
                "steps": run.steps / setting.batches,
                **{name: _per_batch(kinds, setting.batches) for name, kinds in run.kinds.items()},
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
            **({"windows": [list(each) for each in windows]} if (windows := setting.cost_model.windows) else {}),
            "batches": setting.batches,
            "seed": setting.seed,
            "runs": entries,
            "falls_below_greedy": {method: found[0][0] if found else None for method, found in self.slower.items()},
            "slower_than_greedy": {method: [list(ends) for ends in found] for method, found in self.slower.items()},
            "best_num_draft_tokens": {
                str(size): {method: best for method, (best, _) in found.items()}
                for size, found in self.best_drafts.items()
            },
        }


def _per_batch(kinds: dict[str, float], batches: int) -> dict[str, float]:
    return {kind: total / batches for kind, total in kinds.items()}


def run_simulation(setting: Setting, progress: Callable[[int], object] = lambda batches: None) -> Simulation:
    """Draw rows, group them into batches of every size, and count each method's steps, in pieces of bounded memory.

    Args:
        setting: what is simulated.
        progress: called with a number of batches once a method has decoded them, greedy among the methods.
    """
    methods = [BASELINE, *setting.methods]
    runs: dict[int, dict[str, RunTotals]] = {size: {} for size in setting.batch_sizes}
    for size, piece in _pieces(setting):
        for method in methods:
            found = RunTotals.of(count_batches(piece, method, setting.cost_model.windows), setting.cost_model)
            runs[size][method] = runs[size][method] + found if method in runs[size] else found
            progress(len(piece.prompt_lengths))
    drafting = [method for method in setting.methods if not method.startswith("greedy")]
    slower = {method: slower_ranges(setting.acceptance, setting.cost_model, method) for method in drafting}
    best = {size: best_lengths(setting.acceptance, setting.cost_model, size, drafting) for size in setting.batch_sizes}
    return Simulation(setting, runs, slower, best)


def batch_memory_note(setting: Setting, method: str) -> str | None:
    """One sentence where a method's largest batch does not fit into the machine's memory; None where it does."""
    (_, shape), (_, hardware) = setting.model, setting.hardware
    largest, padded = max(setting.batch_sizes), check_method(method)[0] == "padded"
    if method == BASELINE:
        slots = setting.acceptance.with_settings(num_draft_tokens=0).cache_slots(largest, padded)
    else:
        slots = setting.acceptance.cache_slots(largest, padded)
    if hardware.memory_bytes is None or hardware.fits(shape, setting.dtype, slots):
        return None
    needed = memory_needed(shape, setting.dtype, slots)
    return (
        f"{method}'s batch of {largest} does not fit: weights and its cache of {slots / 1000:,.0f} thousand slots need "
        f"{needed / 1e9:,.0f} GB of {hardware.memory_bytes / 1e9:,.0f} GB."
    )


def _pieces(setting: Setting) -> Iterator[tuple[int, Trajectories]]:
    """Batch sizes and some of their batches; all sizes share their rows where these are few enough to be drawn once."""
    acceptance, steps = setting.acceptance, max(setting.acceptance.output_tokens - 1, 1)
    largest = max(setting.batch_sizes)
    if largest * setting.batches * steps <= PIECE:
        rows = draw_rows(acceptance, largest * setting.batches, setting.seed)
        for size in setting.batch_sizes:
            yield size, rows.first(size * setting.batches).batches(size)
        return
    for size in setting.batch_sizes:
        most = max(PIECE // (steps * size), 1)
        for part, start in enumerate(range(0, setting.batches, most)):
            count = min(most, setting.batches - start)
            yield size, draw_rows(acceptance, size * count, setting.seed, part=part).batches(size)
