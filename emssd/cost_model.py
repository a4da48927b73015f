"""Time of a step from its counts: what the same work would take on hardware that is not at hand.

Modelled time is not measured time, and the two are never shown together without saying which is which.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields

import numpy as np

from emssd.accounting import StepAccount
from emssd.errors import ConfigError, shown
from emssd.hardware import FittedCosts, Hardware, dtype_bytes, kv_slot_bytes, require_cost
from emssd.model_shape import ModelShape, WindowShares
from emssd.step_counts import Number, StepCounts, trace_counts
from emssd.trace import GenerationTrace

KERNELS = ("per_token", "varlen")
"""The paper's attention kernel, which reads a row's cache once per query and launch, and one that reads it once."""
ENGINE_KERNEL = "sdpa"
"""How this package's own attention runs on a CPU: one call for neighbouring rows of equal span, else one per row."""
TERMS = ("weights", "dense", "attention", "launches", "host")
DENSE_KERNELS_PER_LAYER = 10
"""Kernels that a layer starts beside attention: about two norms, four to seven products, rotation, activation, sums."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step by term; arrays over steps where the counts were arrays.

    Args:
        weights: reading the weights.
        dense: matrix products of the linear layers and the LM head.
        attention: reading keys and values, or multiplying with them.
        launches: starting kernels.
        host: the loop's own work.
        overlap: weights are read while products run, so that only the longer of the two counts.
    """

    weights: Number
    dense: Number
    attention: Number
    launches: Number
    host: Number
    overlap: bool = True

    @property
    def total(self) -> Number:
        """max(weights, dense) + attention + launches + host, or the plain sum without overlap."""
        together = np.maximum(self.weights, self.dense) if self.overlap else self.weights + self.dense
        total = together + self.attention + self.launches + self.host
        return total if isinstance(total, np.ndarray) and total.ndim else float(total)

    def terms(self) -> dict[str, Number]:
        """The five terms by name."""
        return {name: getattr(self, name) for name in TERMS}


@dataclass(frozen=True)
class CostModel:
    """What the parts of a step cost, for one model on one machine.

    A plain model has three costs: one per step, per fed row and per slot that the attention kernel reads. The others
    are 0 unless given.

    Args:
        name: model and hardware that the costs are for.
        step_ms: milliseconds of every step that nothing hides: the loop itself, and whatever else is not given apart.
        row_us: microseconds of each row fed to the dense layers, pads included.
        slot_us: microseconds to read one slot, in all layers together.
        weights_ms: milliseconds to read all weights that every row needs.
        sequence_us: microseconds of the loop's own work for each live row.
        kernel: "per_token": each query reads its row's slots, once per launch, as in the paper; "varlen": each row's
            slots are read once; "sdpa": this package's own engine, where reading and multiplying add up.
        query_slot_us: microseconds of the products of one query with one slot, in all layers together.
        query_row_us: microseconds of each row that attends (kernel "sdpa"), in all layers together.
        launch_ms: milliseconds to start a step's kernels, attention left out.
        attention_launch_us: microseconds to start one attention launch (or call, kernel "sdpa") in all layers.
        experts_ms: milliseconds to read all experts of a mixture; `weights_ms` has the rest.
        experts, experts_per_token: of a mixture, 0 else.
        dense_ms: measured (rows, milliseconds) of the dense products, by rising rows, in place of `row_us`: linear
            between the points, and on beyond them.
        overlap: see `StepTime`.
        windows: of the model's layers; counts are to be those of its mean layer (`trace_counts`, `count_batches` and
            `expected_runs` take them).

    Raises:
        ConfigError: a cost is negative or not a number, or the kernel is unknown.
    """

    name: str
    step_ms: float
    row_us: float
    slot_us: float
    weights_ms: float = 0.0
    sequence_us: float = 0.0
    kernel: str = "per_token"
    query_slot_us: float = 0.0
    query_row_us: float = 0.0
    launch_ms: float = 0.0
    attention_launch_us: float = 0.0
    experts_ms: float = 0.0
    experts: int = 0
    experts_per_token: int = 0
    dense_ms: tuple[tuple[float, float], ...] | None = None
    overlap: bool = True
    source: str = field(default="", compare=False)
    windows: WindowShares = ()

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.name.endswith(("_ms", "_us")) and each.name != "dense_ms":
                require_cost(each.name, getattr(self, each.name))
        if self.kernel not in (*KERNELS, ENGINE_KERNEL):
            raise ConfigError(f"The kernel {shown(self.kernel)} is not known: choose {' or '.join(KERNELS)}.")
        if self.dense_ms is not None:
            points = [rows for rows, _ in self.dense_ms]
            if len(points) < 2 or points != sorted(set(points)):
                raise ConfigError("dense_ms needs at least two points, by rising rows.")
            for rows, milliseconds in self.dense_ms:
                require_cost(f"dense_ms at {rows:g} rows", milliseconds)

    def time(self, counts: StepCounts, off: Collection[str] = frozenset()) -> StepTime:
        """Seconds of a step by term.

        Args:
            counts: of one step, or arrays over steps.
            off: names of terms that are left out.

        Raises:
            ConfigError: there is no term of a name in `off`.
        """
        for name in off:
            if name not in TERMS:
                raise ConfigError(f"The cost term {shown(name)} is not known: choose from {', '.join(TERMS)}.")
        terms: dict[str, Number] = {
            "weights": 1e-3 * (self.weights_ms + self.experts_ms * self.experts_touched(counts.rows)),
            "dense": self._dense_seconds(counts.rows),
            "attention": 1e-6 * self._attention_us(counts),
            "launches": 1e-3 * self.launch_ms + 1e-6 * self.attention_launch_us * self._launches(counts),
            "host": 1e-3 * self.step_ms + 1e-6 * self.sequence_us * counts.live,
        }
        return StepTime(
            **{name: 0.0 if name in off else seconds for name, seconds in terms.items()}, overlap=self.overlap
        )

    def experts_touched(self, rows: Number) -> Number:
        """Expected share of a mixture's experts that `rows` rows use, each row choosing at random: 1 - (1 - k/E)^rows.

        Real routers are not uniform, so that this is what a balanced one would read.
        """
        if not self.experts:
            return 0.0 * rows
        return 1.0 - (1.0 - min(self.experts_per_token / self.experts, 1.0)) ** rows

    def _dense_seconds(self, rows: Number) -> Number:
        if self.dense_ms is None:
            return 1e-6 * self.row_us * rows
        x, y = np.array(self.dense_ms, dtype=np.float64).T
        slope = max(y[-1] - y[-2], 0.0) / (x[-1] - x[-2])
        inside = np.interp(rows, x, y)
        return 1e-3 * (inside + slope * np.maximum(np.asarray(rows, dtype=np.float64) - x[-1], 0.0))

    def _attention_us(self, counts: StepCounts) -> Number:
        if self.kernel == "per_token":
            return max(self.slot_us, self.query_slot_us) * counts.query_slots * counts.launches
        read, multiply = self.slot_us * counts.span_slots, self.query_slot_us * counts.query_slots
        if self.kernel == ENGINE_KERNEL:
            return read + multiply + self.query_row_us * counts.query_rows
        return np.maximum(read, multiply)

    def _launches(self, counts: StepCounts) -> Number:
        if self.kernel == "per_token":
            return counts.launches
        if self.kernel == "varlen":
            return 1.0
        return counts.live if counts.calls is None else counts.calls

    def step_seconds(self, account: StepAccount, live: int = 0) -> float:
        """Seconds of one decode step."""
        return float(self.time(StepCounts.from_account(account, live)).total)

    def trace_seconds(self, trace: GenerationTrace) -> float:
        """Seconds of all decode steps of a trace."""
        return float(sum(self.time(counts).total for counts in trace_counts(trace, self.windows)))

    def explanation(self) -> str:
        """The formula in one sentence, with its numbers."""
        if self.kernel != "per_token" or self.weights_ms or self.dense_ms or self.query_slot_us:
            return self._long_explanation()
        row = f", {self.row_us:g} µs for each row fed" if self.row_us else ""
        return (
            f"Modelled, not measured: each step costs {self.step_ms:g} ms{row} and {self.slot_us:g} µs for each KV "
            "slot that is read, counted per token and launch (two launches where any row feeds more than one token)."
        )

    def _long_explanation(self) -> str:
        joined = "the longer of" if self.overlap else "the sum of"
        dense = "the measured time of the fed rows" if self.dense_ms else f"{self.row_us:.3g} µs for each row fed"
        experts = f" (and up to {self.experts_ms:.3g} ms for experts)" if self.experts_ms else ""
        slots = {
            "per_token": "for each KV slot that is read, counted per token and launch",
            "varlen": "for each KV slot of a row, read once",
            ENGINE_KERNEL: "for each KV slot of a row",
        }[self.kernel]
        return (
            f"Modelled, not measured: each step costs {joined} {self.weights_ms:.3g} ms for reading the weights"
            f"{experts} and {dense}, then {self.slot_us:.3g} µs {slots}, {self.launch_ms:.3g} ms for starting "
            f"kernels, {self.attention_launch_us:.3g} µs for each attention launch, and {self.step_ms:.3g} ms of the "
            "loop’s own work."
        )

    @classmethod
    def for_hardware(cls, hardware: Hardware, shape: ModelShape, dtype: str, kernel: str = "per_token") -> CostModel:
        """The roofline costs of a model on a machine.

        Grouped heads: keys and values are read once for their group of heads. A layer with a sliding window reads its
        window alone.

        Args:
            hardware: a preset of `hardware.HARDWARE`, or your own; fitted costs are taken as they are.
            shape: the model's sizes.
            dtype: type of weights, cache and products.
            kernel: "per_token" or "varlen".

        Raises:
            ConfigError: the machine has no rate for the type, or fitted costs of another model; or the kernel is
                unknown.
        """
        if hardware.fitted is not None:
            return cls._fitted(hardware, hardware.fitted, shape, dtype, kernel)
        bandwidth = hardware.bandwidth * hardware.bandwidth_share
        flops = hardware.flops(dtype) * hardware.compute_share
        size = dtype_bytes(dtype)
        each_row = shape.weights_per_row
        chosen, all_experts = expert_weights(shape)
        slot_flops = 2 * shape.layers * shape.heads * (shape.head_dim + shape.value_head_dim)
        return cls(
            name=f"{shape.parameters / 1e9:.3g} B parameters in {dtype} on {hardware.title}",
            step_ms=hardware.host_ms,
            row_us=1e6 * 2 * each_row / flops,
            slot_us=1e6 * kv_slot_bytes(shape, dtype) / bandwidth,
            weights_ms=1e3 * (each_row - chosen) * size / bandwidth,
            sequence_us=hardware.sequence_us,
            kernel=kernel,
            query_slot_us=1e6 * slot_flops / flops,
            launch_ms=1e-3 * hardware.launch_us * DENSE_KERNELS_PER_LAYER * shape.layers,
            attention_launch_us=hardware.launch_us * shape.layers,
            experts_ms=1e3 * all_experts * size / bandwidth,
            experts=shape.experts,
            experts_per_token=shape.experts_per_token,
            overlap=hardware.overlap,
            source=hardware.source,
            windows=shape.window_shares,
        )

    @classmethod
    def _fitted(cls, hardware: Hardware, costs: FittedCosts, shape: ModelShape, dtype: str, kernel: str) -> CostModel:
        if (shape, dtype) != (costs.shape, costs.dtype):
            raise ConfigError(
                f"The costs of {hardware.title} are known for {costs.model} in {costs.dtype} only: choose that model, "
                "or another machine."
            )
        return cls(
            name=f"{costs.model} on {hardware.title}",
            step_ms=costs.step_ms,
            row_us=costs.row_us,
            slot_us=costs.slot_us,
            weights_ms=costs.weights_ms,
            kernel=kernel,
            source=hardware.source,
        )


def expert_weights(shape: ModelShape) -> tuple[int, int]:
    """Weights of the experts that one row uses, and of all experts, in all layers; zeros for a dense model.

    The first is part of `shape.weights_per_row`; the second is never more than the model has.
    """
    if not shape.experts:
        return 0, 0
    one = shape.expert_weights
    chosen = min(one * shape.experts_per_token, shape.weights_per_row)
    return chosen, min(one * shape.experts, max(shape.parameters - (shape.weights_per_row - chosen), chosen))


PAPER_FIT = CostModel("OPT-6.7B, paper’s GPU", 13.7, 0.0, 0.248)
"""Four parameters (these two costs and two of the draft's acceptance) fitted to the 31 numbers of the paper's Table 2,
to about 3 % (root mean square), with prompts of lognormal length and the two ablation rows of the table exchanged: as
printed they fit only costs that no single GPU has. A fed row is free up to about 150 rows, where reading the weights
hides it. One slot is 0.5 MiB, so 0.248 µs are 2.11 TB/s, a little more than an A100's 2.04 by its data sheet: which GPU
it was is not known."""

PAPER_FIT_SOURCE = (
    "The costs are fitted to the speeds in the paper’s Table 2 (OPT-6.7B, two attention launches). Neither the paper’s "
    "tables nor its code name the GPU."
)
