"""Rows, slots and launches of many steps at once, as arrays: counted from invented rows, or expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emssd.acceptance import Floats, Ints, Trajectories
from emssd.accounting import ATTENTION_MODES, INPUT_KINDS, SCAN_KINDS
from emssd.config import METHODS
from emssd.cost_model import CostModel
from emssd.errors import ConfigError
from emssd.model_shape import WindowShares
from emssd.step_counts import StepCounts
from emssd.window_counts import FedRows, window_scans

Tables = dict[str, Any]
"""Kind -> array."""


@dataclass(frozen=True)
class RunCounts:
    """The account of a run's decode steps. Arrays are [steps], or [batches, steps] of several runs at once.

    Args:
        method: a command-line name.
        batch_size: rows of the batch.
        tokens: tokens that decode steps put out, prefill's left out; [batches] of several runs.
        happens: probability that the step exists; 1 or 0 where it was counted.
        input_rows: by INPUT_KINDS, given that the step exists.
        kv_slots_scanned: ATTENTION_MODES -> SCAN_KINDS, given that the step exists, without the launch factor; of one
            layer, or of the mean layer of a model with windows.
        launches: attention launches of the paper's kernel, 1 to 2, as they weigh on the slots.
        live: rows that are live, given that the step exists.
    """

    method: str
    batch_size: int
    tokens: Any
    happens: Floats
    input_rows: dict[str, Floats]
    kv_slots_scanned: dict[str, dict[str, Floats]]
    launches: Floats
    live: Floats

    @property
    def steps(self) -> Any:
        """Decode steps (expected ones): a number, or [batches]."""
        return self.happens.sum(-1)

    @property
    def mean_acceptance_length(self) -> float:
        """Mean tokens that a live row gains in a step."""
        live = float((self.happens * self.live).sum())
        return float(np.sum(self.tokens)) / live if live else 0.0

    @property
    def counts_by_kind(self) -> dict[str, dict[str, float]]:
        """Totals of all steps: "input_rows", and the slots scanned in each attention mode, by kind."""
        tables = {"input_rows": self.input_rows, **self.kv_slots_scanned}
        return {
            name: {kind: float((self.happens * values).sum()) for kind, values in table.items()}
            for name, table in tables.items()
        }

    def step_counts(self) -> StepCounts:
        """What a cost model asks of each step: arrays of the steps' shape."""
        slots = {mode: sum(kinds.values(), np.zeros(())) for mode, kinds in self.kv_slots_scanned.items()}
        return StepCounts(
            rows=sum(self.input_rows.values(), np.zeros(())),
            query_slots=slots["per_token"],
            span_slots=slots["varlen"],
            launches=self.launches,
            live=self.live,
            query_rows=self.input_rows["useful"] + self.input_rows["pad"],
        )

    def seconds(self, cost_model: CostModel) -> Any:
        """Modelled seconds of all steps: a number, or [batches]."""
        return (self.happens * cost_model.time(self.step_counts()).total).sum(-1)

    def tokens_per_second(self, cost_model: CostModel) -> float:
        """Decoded tokens of all runs by their modelled seconds."""
        seconds = float(np.sum(self.seconds(cost_model)))
        return float(np.sum(self.tokens)) / seconds if seconds else 0.0


def speed_up(counts: RunCounts, baseline: RunCounts, cost_model: CostModel) -> float:
    """Modelled seconds of the baseline by those of the method, for the same rows."""
    seconds = float(np.sum(counts.seconds(cost_model)))
    return float(np.sum(baseline.seconds(cost_model))) / seconds if seconds else 1.0


def count_batches(batches: Trajectories, method: str, windows: WindowShares = ()) -> RunCounts:
    """Count what a method's layout makes of invented rows, exactly as plans and accounts would.

    Args:
        batches: what `Trajectories.batches` gave; [batches, steps, rows].
        method: a command-line name; greedy ones decode the same tokens one by one.
        windows: of the model's layers (`ModelShape.window_shares`); slots are then those of a mean layer.

    Returns:
        Counts with arrays [batches, steps].
    """
    cache, inputs = check_method(method)
    drafted, gained = batches.drafted, batches.gained
    if method.startswith("greedy"):
        drafted, gained = _one_by_one(gained, batches.decoded)
    live = gained > 0
    real = np.where(live, 1 + drafted, 0)
    width = real.max(2, keepdims=True)
    fed = np.broadcast_to(width, real.shape) if inputs == "padded" else real
    pads = np.where(live, fed - real, 0)
    finished = np.where(live, 0, fed)
    own = batches.prompt_lengths[:, None, :] + _before(gained)
    prompt_pads = holes = np.zeros_like(own)
    if cache == "padded":
        longest = batches.prompt_lengths.max(1)[:, None, None]
        prompt_pads = np.broadcast_to(longest - batches.prompt_lengths[:, None, :], own.shape)
        holes = _before(gained.max(2, keepdims=True)) - _before(gained)
    rows = FedRows(_before(gained), own, prompt_pads, holes, real, pads)
    per_token, varlen = _mean_layer(rows, windows)
    return RunCounts(
        method=method,
        batch_size=real.shape[2],
        tokens=gained.sum((1, 2)),
        happens=live.any(2).astype(float),
        input_rows=_sum_rows({"useful": real, "pad": pads, "finished": finished}, INPUT_KINDS),
        kv_slots_scanned={
            mode: _sum_rows(kinds, SCAN_KINDS) for mode, kinds in zip(ATTENTION_MODES, (per_token, varlen), strict=True)
        },
        launches=np.where(width[:, :, 0] > 1, 2.0, 1.0),
        live=live.sum(2).astype(float),
    )


def _mean_layer(rows: FedRows, windows: WindowShares) -> tuple[Tables, Tables]:
    """Slots by kind, per token and once per row, of the mean of layers with these windows."""
    if not windows:
        return _full_layer(rows)
    found = [(share, _full_layer(rows) if window is None else window_scans(rows, window)) for window, share in windows]

    def mean(mode: int) -> Tables:
        return {kind: sum(share * tables[mode][kind] for share, tables in found) for kind in SCAN_KINDS}

    return mean(0), mean(1)


def _full_layer(rows: FedRows) -> tuple[Tables, Tables]:
    own, real, pads, live = rows.own, rows.real, rows.pads, rows.real > 0
    dead = {"prompt_pad": rows.prompt_pads, "hole": rows.holes}
    start = own + rows.prompt_pads + rows.holes
    per_token = {
        "useful": real * own + real * (real + 1) // 2,
        **{kind: real * slots for kind, slots in dead.items()},
        "pad_query": pads * (start + real) + pads * (pads + 1) // 2,
    }
    varlen = {
        "useful": np.where(live, own + real, 0),
        **{kind: np.where(live, slots, 0) for kind, slots in dead.items()},
        "pad_query": pads,
    }
    return per_token, varlen


def check_method(method: str) -> tuple[str, str]:
    """Cache layout and input layout of a command-line name.

    Raises:
        ConfigError: there is no such method.
    """
    if method not in METHODS:
        raise ConfigError(f"Unknown method {method!r}: choose one of {', '.join(METHODS)}.")
    return METHODS[method]


def _before(gained: Ints) -> Ints:
    """[batches, steps, rows] tokens gained in the steps before."""
    return np.cumsum(gained, axis=1) - gained


def _one_by_one(gained: Ints, decoded: int) -> tuple[Ints, Ints]:
    """Drafts and gains of the same rows when every step gains one token; nothing is gained beyond `decoded`."""
    totals = np.minimum(gained.sum(1, keepdims=True), decoded)
    steps = np.arange(totals.max(initial=0))[None, :, None]
    one = (steps < totals).astype(np.int64)
    return np.zeros_like(one), one


def _sum_rows(kinds: Tables, names: Sequence[str]) -> dict[str, Floats]:
    return {name: kinds[name].sum(2).astype(float) for name in names}
