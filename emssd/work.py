"""FLOPs and bytes of a step: its rows and slots times the model's sizes, useful and wasted, window by window.

Attention FLOPs have two named forms. "causal": each query is multiplied with its row's slots up to its own, as the
account counts them. "rectangular": each query with its row's whole span, the slots behind it included, as this
package's attention runs and as `torch.utils.flop_counter.FlopCounterMode` counts.

In a layer with a sliding window a query scans from the slot of the first token in its window on. Holes and prompt
padding between that slot and its own are scanned, those before it are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from emssd.accounting import ATTENTION_MODES, INPUT_KINDS, SCAN_KINDS, StepAccount, scanned_per_token, scanned_varlen
from emssd.layouts import Row, RowPlan, StepPlan, key_positions
from emssd.model_shape import ModelShape
from emssd.trace import GenerationTrace, RowTrace, StepTrace

ATTENTION_FORMS = ("causal", "rectangular")
QUERY_KINDS = ("useful", "pad")
Kinds = dict[str, int]


@dataclass(frozen=True)
class StepWork:
    """What one step asks of a machine, in whole FLOPs (two per multiply-accumulate) and bytes, all layers together.

    Args:
        rows: rows of the dense layers by kind (`INPUT_KINDS`): "useful", "pad" of live rows, "finished" rows' feed.
        query_rows: rows that attend, "useful" and "pad"; finished rows attend to nothing.
        linear_flops: of the linear layers without the LM head, by `INPUT_KINDS`.
        head_flops: of the LM head, by `INPUT_KINDS`. In prefill it answers for the last token of each prompt alone.
        attention_flops: by form ("causal", "rectangular") and `SCAN_KINDS`: scores and weighted values, no softmax.
        weight_bytes: weights of linear layers and LM head, read once; of a mixture's experts as many as the rows can
            touch at most.
        kv_read_bytes: by attention mode (`ATTENTION_MODES`) and `SCAN_KINDS`; "per_token" for one launch.
        kv_write_bytes: "useful" and "pad".
        attention_launches: of the paper's kernel, per layer.
    """

    rows: Kinds
    query_rows: Kinds
    linear_flops: Kinds
    head_flops: Kinds
    attention_flops: dict[str, Kinds]
    weight_bytes: int
    kv_read_bytes: dict[str, Kinds]
    kv_write_bytes: Kinds
    attention_launches: int

    def flops(self, form: str = "causal") -> int:
        """FLOPs of the step with one form of attention."""
        return sum(sum(kinds.values()) for kinds in (self.linear_flops, self.head_flops, self.attention_flops[form]))

    def wasted_flops(self, form: str = "causal") -> int:
        """FLOPs of pads, of finished rows, and of attention over dead slots.

        Rejected drafts are not waste: without them there is no speculation.
        """
        parts = (self.linear_flops, self.head_flops, self.attention_flops[form])
        return self.flops(form) - sum(kinds["useful"] for kinds in parts)


def step_work(shape: ModelShape, plan: StepPlan, account: StepAccount) -> StepWork:
    """FLOPs and bytes of a planned step.

    Args:
        shape: the model's sizes.
        plan: the step; of a padded cache with `key_positions` where the model has windows.
        account: of the same plan.

    Raises:
        ValueError: a row has holes or prompt padding in a layer with a window, and no `key_positions`.
    """
    scans = _scans(shape, plan)
    each_query = 2 * shape.heads * (shape.head_dim + shape.value_head_dim)  # FLOPs per slot and layer
    slot_bytes = shape.slot_values * shape.bytes_per_value  # per layer
    forms = {"causal": "per_token", "rectangular": "rectangular"}
    heads = _head_rows(plan, account)
    real = sum(row.num_real for row in plan.live)
    pads = sum(row.num_fed - row.num_real for row in plan.live)
    return StepWork(
        rows=dict(account.input_rows),
        query_rows={"useful": real, "pad": pads},
        linear_flops=_times(account.input_rows, 2 * shape.linear_weights_per_row),
        head_flops=_times(heads, 2 * shape.head_weights),
        attention_flops={form: _times(scans[scan], each_query) for form, scan in forms.items()},
        weight_bytes=shape.weights_read(plan.num_fed) * shape.bytes_per_value,
        kv_read_bytes={mode: _times(scans[mode], slot_bytes) for mode in ATTENTION_MODES},
        kv_write_bytes=_times(_written(plan), shape.layers * slot_bytes),
        attention_launches=account.attention_launches,
    )


def trace_work(trace: GenerationTrace) -> list[StepWork]:
    """FLOPs and bytes of each decode step of a trace, from its rows and the model's sizes in it."""
    shape = ModelShape.from_trace(trace.model)
    plans = trace_plans(trace, with_masks=bool(shape.windows))
    return [step_work(shape, plan, step.account) for step, plan in plans if step.kind == "decode"]


def trace_plans(trace: GenerationTrace, with_masks: bool = True) -> Iterator[tuple[StepTrace, StepPlan]]:
    """Each step of a valid trace with the plan that its rows show.

    Args:
        trace: as read or built.
        with_masks: give rows of a padded cache their `key_positions`.
    """
    padded = with_masks and trace.config.get("cache_layout") == "padded"
    places = [Row(index, len(row.prompt_token_ids)) for index, row in enumerate(trace.rows)]
    for step in trace.steps:
        yield step, StepPlan(tuple(_row_plan(places[row.row], row, padded) for row in step.rows))
        for row in step.rows:
            _advance(places[row.row], row)


def _row_plan(place: Row, row: RowTrace, padded: bool) -> RowPlan:
    real = len(row.input_token_ids) - row.input_kinds.count("pad")
    masked = padded and row.kind == "decode"
    return RowPlan(
        row=row.row,
        kind=row.kind,  # type: ignore[arg-type]
        cache_start=row.cache_start,
        input_token_ids=tuple(row.input_token_ids),
        input_kinds=tuple(row.input_kinds),
        position_ids=tuple(row.position_ids),
        slots=tuple(row.slots),
        num_drafted=row.num_drafted,
        prompt_pads=place.prompt_pads,
        holes=len(place.holes),
        key_positions=key_positions(place, real, len(row.slots) - real) if masked else None,
    )


def _advance(place: Row, row: RowTrace) -> None:
    if row.kind == "prefill":
        place.slots = list(row.slots)
        place.prompt_pads = row.next_slot - len(row.slots)
    elif row.kind == "decode":
        place.slots.extend(range(row.cache_start, row.cache_start + row.num_emitted))
        place.holes.extend(row.holes_added)
    place.next_slot = row.next_slot


def _head_rows(plan: StepPlan, account: StepAccount) -> Kinds:
    """Rows of the LM head: all that are fed, pads and finished rows among them; one of each prompt in prefill."""
    if all(row.kind == "prefill" for row in plan.rows):
        return {**dict.fromkeys(INPUT_KINDS, 0), "useful": len(plan.rows)}
    return account.input_rows


def _written(plan: StepPlan) -> Kinds:
    useful = sum(min(len(row.slots), row.num_real) for row in plan.rows)
    return {"useful": useful, "pad": sum(len(row.slots) for row in plan.rows) - useful}


def _scans(shape: ModelShape, plan: StepPlan) -> dict[str, Kinds]:
    """Slots by scan ("per_token", "varlen", "rectangular") and kind, summed over layers."""
    totals = {scan: dict.fromkeys(SCAN_KINDS, 0) for scan in (*ATTENTION_MODES, "rectangular")}
    for window, layers in (Counter(shape.windows) or {None: shape.layers}).items():
        for row in plan.live:
            if not row.num_fed:
                continue
            for scan, kinds in row_scans(row, window).items():
                for kind, slots in kinds.items():
                    totals[scan][kind] += layers * slots
    return totals


def row_scans(row: RowPlan, window: int | None) -> dict[str, Kinds]:
    """Slots that a live row's queries scan in one layer: "per_token", "varlen", "rectangular", each by `SCAN_KINDS`.

    Args:
        row: of a plan, not finished.
        window: tokens that a query of the layer sees, itself included; None: all.

    Raises:
        ValueError: the row has dead slots and no `key_positions`, so that nobody knows which are in a window.
    """
    if window is None or window > row.position_ids[-1]:
        return {"per_token": scanned_per_token(row), "varlen": scanned_varlen(row), "rectangular": _rectangle(row)}
    if row.key_positions is None and (row.holes or row.prompt_pads):
        raise ValueError(f"Row {row.row} has dead slots and a window, so its plan needs key_positions.")
    starts = [_slot_of(row, position - window + 1) for position in row.position_ids]
    dead = _DeadSlots(row)
    first, last = row.slots[0], row.slots[row.num_real - 1]
    per_token = dict.fromkeys(SCAN_KINDS, 0)
    for number, start in enumerate(starts):
        if number < row.num_real:
            _add(per_token, dead.kinds(start, first + number + 1))
        else:
            per_token["pad_query"] += first + number + 1 - start
    varlen = dead.kinds(starts[0], last + 1)
    varlen["pad_query"] = row.num_fed - row.num_real
    return {"per_token": per_token, "varlen": varlen, "rectangular": _rectangle(row, starts[0])}


def _rectangle(row: RowPlan, first: int = 0) -> Kinds:
    """Every query with the whole span; this package's attention cuts a window's past off where slots are positions.

    The slots that pads write are there for the pads' queries alone.
    """
    real, pads = row.num_real, row.num_fed - row.num_real
    begin = first if row.key_positions is None else 0
    dead = {"prompt_pad": real * row.prompt_pads, "hole": real * row.holes}
    needed = real * (row.span - begin - pads)
    pad_query = real * pads + pads * (row.span - begin)
    return {"useful": needed - sum(dead.values()), **dead, "pad_query": pad_query}


def _slot_of(row: RowPlan, position: int) -> int:
    """The slot where a query whose window starts at `position` starts to scan."""
    if position <= 0:
        return 0
    if row.key_positions is None:
        return position
    return int(np.flatnonzero(row.key_positions == position)[0])


class _DeadSlots:
    """Counts prompt padding and holes in ranges of a row's slots. Prompt padding comes first."""

    def __init__(self, row: RowPlan) -> None:
        before = row.slots[0]  # slots from here on are written in this step
        dead = np.zeros(0) if row.key_positions is None else np.flatnonzero(row.key_positions[:before] < 0)
        self.prompt_pads, self.holes = dead[: row.prompt_pads], dead[row.prompt_pads :]

    def kinds(self, start: int, end: int) -> Kinds:
        """Slots start..end-1 by kind, for queries of real tokens."""
        prompt_pads, holes = (
            int(np.searchsorted(slots, end) - np.searchsorted(slots, start)) for slots in (self.prompt_pads, self.holes)
        )
        useful = end - start - prompt_pads - holes
        return {"useful": useful, "prompt_pad": prompt_pads, "hole": holes, "pad_query": 0}


def _add(totals: Kinds, counts: Kinds) -> None:
    for kind, count in counts.items():
        totals[kind] += count


def _times(counts: Kinds, factor: int) -> Kinds:
    return {kind: factor * count for kind, count in counts.items()}
