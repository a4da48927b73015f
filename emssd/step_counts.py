"""What a step does, in the numbers that its modelled time follows from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt

from emssd.accounting import StepAccount
from emssd.layouts import StepPlan
from emssd.model_shape import WindowShares
from emssd.trace import GenerationTrace, RowTrace, StepTrace
from emssd.work import row_scans, trace_plans

Number = float | npt.NDArray[np.float64]
"""One step's value, or an array over steps."""


@dataclass(frozen=True)
class StepCounts:
    """What a step does, in the numbers that its time follows from. Expectations and arrays over steps are allowed.

    Args:
        rows: rows of the dense layers, those of pads and finished rows among them.
        query_slots: slots scanned in mode "per_token", without the launch factor; of one layer, or of the mean layer of
            a model with windows.
        span_slots: the same in mode "varlen".
        launches: attention launches of the paper's kernel, 1..2.
        live: rows of the batch that are live.
        query_rows: rows of the dense layers that attend.
        calls: attention calls per layer of this package's own CPU engine; None: one for each live row.
    """

    rows: Number
    query_slots: Number
    span_slots: Number
    launches: Number
    live: Number
    query_rows: Number
    calls: Number | None = None

    @classmethod
    def from_account(cls, account: StepAccount, live: int, calls: int | None = None) -> StepCounts:
        """Counts of a step from its account; finished rows attend to nothing."""
        return cls(
            rows=sum(account.input_rows.values()),
            query_slots=sum(account.kv_slots_scanned["per_token"].values()),
            span_slots=sum(account.kv_slots_scanned["varlen"].values()),
            launches=account.attention_launches,
            live=live,
            query_rows=account.input_rows["useful"] + account.input_rows["pad"],
            calls=calls,
        )

    @classmethod
    def from_step(cls, step: StepTrace, padded_cache: bool = False) -> StepCounts:
        """Counts of a recorded step of full layers; `padded_cache` says how rows were grouped (`engine_calls`)."""
        live = sum(row.kind != "finished" for row in step.rows)
        return cls.from_account(step.account, live, engine_calls(step.rows, padded_cache))


def engine_calls(rows: Collection[RowTrace], padded_cache: bool) -> int:
    """Attention calls per layer: in a padded cache neighbours that feed equally many tokens share one."""
    calls, previous = 0, None
    for row in rows:
        attends = row.kind != "finished" and bool(row.input_token_ids)
        shape = (len(row.input_token_ids), row.slots[-1]) if attends and row.slots else None
        if attends and not (padded_cache and shape == previous):
            calls += 1
        previous = shape
    return calls


def trace_counts(trace: GenerationTrace, windows: WindowShares = ()) -> list[StepCounts]:
    """Counts of every decode step of a trace.

    Args:
        trace: as read or built.
        windows: of the layers that are modelled; the slots they scan follow exactly from the trace's plans.
    """
    padded = trace.config.get("cache_layout") == "padded"
    if not windows:
        return [StepCounts.from_step(step, padded) for step in trace.decode_steps]
    return [
        replace(StepCounts.from_step(step, padded), **_window_slots(plan, windows))
        for step, plan in trace_plans(trace)
        if step.kind == "decode"
    ]


def _window_slots(plan: StepPlan, windows: WindowShares) -> dict[str, float]:
    """Slots that the mean layer scans in a planned step."""
    slots = dict.fromkeys(("per_token", "varlen"), 0.0)
    for (window, share), row in product(windows, plan.live):
        scans = row_scans(row, window) if row.num_fed else {}
        for mode in slots:
            slots[mode] += share * sum(scans.get(mode, {}).values())
    return {"query_slots": slots["per_token"], "span_slots": slots["varlen"]}
