"""Traces as plain data for the player: everything it shows is computed here or follows from these numbers by rule.

A row's step is one flat list of numbers (`encode_row`), a token is an index into one table of words. The player
recomputes cells from the rows with the rules of `emssd.cells`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any, Literal

from emssd.accounting import kv_bytes_per_slot
from emssd.cells import SUBSTEPS, num_slots
from emssd.config import METHOD_TITLES
from emssd.cost_model import PAPER_FIT, PAPER_FIT_SOURCE, CostModel
from emssd.errors import TraceError
from emssd.trace import GenerationTrace, StepTrace
from emssd.ui.code_view import code_of_layout
from emssd.ui.comparison import agreement, clock, measured_seconds, speed_ups
from emssd.ui.narration import narrations
from emssd.ui.palette import LAYOUT_WORDS, player_palette
from emssd.ui.player_rows import Words, encode_row, encode_tops
from emssd.ui.token_text import visible
from emssd.work import StepWork, trace_work

MAX_ROWS = 16
MAX_STEPS = 500
MAX_SLOTS = 8192
MAX_BYTES = 2_000_000
ID_BYTES = 64
FIXED = "One fixed cost model for every trace: it does not follow the trace’s own model or machine."
COUNTERS = (
    "rowsUseful",
    "rowsPad",
    "rowsFinished",
    "slotsUseful",
    "slotsDead",
    "slotsPadQuery",
    "holes",
    "promptPads",
    "slotsHeld",
    "flops",
    "flopsWasted",
    "ms",
)


@dataclass(frozen=True)
class Pane:
    """One side of the player.

    Args:
        trace: what it shows; method: the name it goes by; baseline: of its speed-up.
        title, layout: words of its head; "" takes the method's own.
        told: pieces by (step, sub-step) where the usual narration would not be true.
    """

    trace: GenerationTrace
    method: str
    baseline: GenerationTrace | None = None
    title: str = ""
    layout: str = ""
    told: Mapping[tuple[int, str], Sequence[tuple[str, bool]]] = field(default_factory=dict)


@dataclass(frozen=True)
class TimeSource:
    """Where step times come from: a cost model or a clock, never both.

    Args:
        kind: "modelled" or "measured".
        where: the hardware in words.
        help: what the numbers mean, in a sentence or two.
        model: the cost model of modelled time.
        fixed: the model is the same for every trace, whatever model and machine a trace is of.
    """

    kind: Literal["modelled", "measured"]
    where: str
    help: str
    model: CostModel | None = None
    fixed: bool = False

    def step_seconds(self, step: StepTrace) -> float:
        """Seconds of one decode step."""
        return measured_seconds(step) if self.model is None else self.model.step_seconds(step.account)

    @property
    def baseline_words(self) -> str:
        """What stands behind a speed-up."""
        how = "measured on" if self.kind == "measured" else "modelled, always" if self.fixed else "modelled for"
        return f"vs greedy, {how} {self.where}"


def modelled(model: CostModel = PAPER_FIT) -> TimeSource:
    """Time by a cost model."""
    if model != PAPER_FIT:
        return TimeSource("modelled", model.name, model.explanation(), model)
    words = f"{FIXED} {model.explanation()} {PAPER_FIT_SOURCE}"
    return TimeSource("modelled", model.name, words, model, fixed=True)


def measured(where: str) -> TimeSource:
    """Time by the clock; `where` names the device, as "a CPU: 2 threads, float32"."""
    words = f"Measured on {where}, decode steps only, everything included. Not comparable with the paper’s GPU numbers."
    return TimeSource("measured", where, words)


MODELLED = modelled()


@dataclass(frozen=True)
class Start:
    """Where the player opens: step, sub-step, and the pinned cell as "row.slot"."""

    step: int = 1
    sub: str = "draft"
    pin: str | None = None


def too_large(trace: GenerationTrace) -> str | None:
    """Why the player does not show a trace, in one sentence; None if it does."""
    for count, limit, what in ((len(trace.steps), MAX_STEPS, "steps"), (num_slots(trace), MAX_SLOTS, "slots in a row")):
        if count > limit:
            return f"Summary view: more than {limit} {what}. Totals and texts of all {count} are shown."
    return None


def player_data(
    panes: Sequence[Pane],
    titles: Sequence[str],
    *,
    group: str = "",
    time: TimeSource = MODELLED,
    start: Start | None = None,
    link: dict[str, str] | None = None,
) -> dict[str, Any]:
    """What the player needs, JSON-ready and at most `MAX_BYTES` long as JSON.

    Counters, narration and equality are those of the whole batch. At most `MAX_ROWS` rows go over. Where that is too
    long, the target's best few tokens stay behind, then rows; a notice says how many rows are shown.

    Args:
        panes: left first; all of the same prompts.
        titles: names of all rows.
        group: panes of the same group keep the reader's place when one of them changes.
        time: where step times come from.
        start: where the player opens; None means the first step's drafts.
        link: names that the address of a step is made of.

    Raises:
        TraceError: one row alone is too long.
    """
    start = start or Start()
    frame = _frame(panes, group, time, start, link) | {"panes": [_pane(pane, time) for pane in panes]}
    fixed = len(_json(frame))
    rows, tops = min(MAX_ROWS, len(titles)), True
    while True:
        data = frame | _rows(panes, frame["panes"], titles, rows, tops)
        encoded = _json(data)
        if len(encoded) <= MAX_BYTES - ID_BYTES:
            return {**data, "id": hashlib.sha256(encoded).hexdigest()[:16]}
        if rows == 1 and not tops:
            raise TraceError(f"One row alone is more than {MAX_BYTES // 10**6} MB, which the player does not show.")
        if not tops:
            fitting = (MAX_BYTES - ID_BYTES - fixed) * rows // max(len(encoded) - fixed, 1)
            rows = max(1, min(rows - 1, fitting))
        tops = False


def _json(data: dict[str, Any]) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _frame(
    panes: Sequence[Pane], group: str, time: TimeSource, start: Start, link: dict[str, str] | None
) -> dict[str, Any]:
    """What does not depend on the number of rows shown."""
    model = panes[0].trace.model
    label = "Modelled time" if time.kind == "modelled" else "Measured time"
    return {
        "v": 1,
        "group": group,
        "model": visible(str(model.get("name", ""))),
        "bytesPerSlot": kv_bytes_per_slot(model),
        "time": {"kind": time.kind, "label": label, "where": time.where, "help": time.help, "fixed": time.fixed},
        "palette": player_palette(),
        "start": _start(start, panes),
        "link": link,
    }


def _rows(
    panes: Sequence[Pane], fixed: Sequence[dict[str, Any]], titles: Sequence[str], rows: int, tops: bool
) -> dict[str, Any]:
    """The panes with their first rows, and the words that these need."""
    words = Words()
    full = []
    for pane, rest in zip(panes, fixed, strict=True):
        trace = pane.trace
        prompts = [[words.of(trace, token) for token in row.prompt_token_ids] for row in trace.rows[:rows]]
        steps = [[encode_row(trace, row, words) for row in step.rows[:rows]] for step in trace.steps]
        best = encode_tops(trace, rows, words) if tops else {}
        full.append({**rest, "prompts": prompts, "steps": steps, "tops": best})
    return {
        "rows": [visible(title) for title in titles[:rows]],
        "totalRows": len(titles),
        "notices": [] if rows == len(titles) else [_rows_notice(rows, len(titles))],
        "panes": full,
        "words": words.texts,
        "ids": words.ids,
    }


def _rows_notice(shown: int, total: int) -> str:
    reason = "" if shown == min(MAX_ROWS, total) else ": more would make the page slow"
    return f"Showing {shown} of {total} rows{reason}. Counters are those of all rows."


def _start(start: Start, panes: Sequence[Pane]) -> dict[str, Any]:
    last = max(len(pane.trace.steps) for pane in panes) - 1
    step = min(max(start.step, 0), max(last, 0))
    sub = start.sub if step and start.sub in SUBSTEPS else "draft" if step else "commit"
    return {"step": step, "sub": sub, "pin": start.pin}


def _pane(pane: Pane, time: TimeSource) -> dict[str, Any]:
    """What does not depend on the number of rows shown."""
    trace, baseline = pane.trace, pane.baseline
    is_baseline = baseline is not None and baseline.method == pane.method
    if is_baseline:
        baseline = None
    agree, difference = agreement(baseline, trace) if baseline else (None, None)
    return {
        "method": pane.method,
        "title": pane.title or METHOD_TITLES.get(pane.method, pane.method),
        "layout": pane.layout or LAYOUT_WORDS.get(pane.method, ""),
        "shared": trace.config.get("cache_layout") == "padded",
        "packed": trace.config.get("input_layout") == "packed",
        "cut": trace.cut,
        "isBaseline": is_baseline,
        "counters": _counters(trace, time),
        "narration": _narration(pane),
        "speed": _speed(baseline, trace, time) if baseline else [],
        "baseline": "the baseline" if is_baseline else time.baseline_words if baseline else "",
        "agree": agree,
        "emitted": _emitted(trace),
        "differs": None if difference is None else asdict(difference),
        "code": _code(trace),
    }


def _emitted(trace: GenerationTrace) -> list[int]:
    """[steps] tokens that all rows have emitted so far, prefill's included."""
    return list(accumulate(sum(row.num_emitted for row in step.rows) for step in trace.steps))


def _speed(baseline: GenerationTrace, trace: GenerationTrace, time: TimeSource) -> list[float | None]:
    """[steps] the speed-up so far."""
    factors = speed_ups(clock(baseline.steps, time.step_seconds), clock(trace.steps, time.step_seconds))
    return [None if factor is None else round(factor, 4) for factor in factors]


def _narration(pane: Pane) -> list[list[list[list[str | int]]]]:
    return [
        [
            [[text, int(bold)] for text, bold in pane.told.get((number, sub), said)]
            for sub, said in zip(SUBSTEPS, step, strict=False)
        ]
        for number, step in enumerate(narrations(pane.trace))
    ]


def _code(trace: GenerationTrace) -> dict[str, Any]:
    layouts = str(trace.config.get("cache_layout")), str(trace.config.get("input_layout"))
    return code_of_layout(*layouts, trace.drafter.get("name") != "none", trace.attention)


def _counters(trace: GenerationTrace, time: TimeSource) -> dict[str, list[float]]:
    """[steps] counts of the whole batch, cumulative over decode steps; prefill adds to none but `promptPads`."""
    columns: dict[str, list[float]] = {name: [] for name in COUNTERS}
    totals: dict[str, float] = dict.fromkeys(COUNTERS, 0)
    work = iter(trace_work(trace))
    for step in trace.steps:
        if step.kind == "prefill":
            totals["promptPads"] = sum(row.next_slot - len(row.slots) for row in step.rows)
        else:
            _add_step(totals, trace, step, next(work), time)
        for name in COUNTERS:
            columns[name].append(totals[name] if name != "ms" else round(totals[name], 6))
    return columns


def _add_step(
    totals: dict[str, float], trace: GenerationTrace, step: StepTrace, work: StepWork, time: TimeSource
) -> None:
    account = step.account
    rows, slots, launches = account.input_rows, account.kv_slots_scanned["per_token"], account.attention_launches
    totals["rowsUseful"] += rows["useful"]
    totals["rowsPad"] += rows["pad"]
    totals["rowsFinished"] += rows["finished"]
    totals["slotsUseful"] += slots["useful"] * launches
    totals["slotsDead"] += (slots["prompt_pad"] + slots["hole"]) * launches
    totals["slotsPadQuery"] += slots["pad_query"] * launches
    totals["holes"] = account.holes_total
    starts = trace.steps[0].rows
    totals["slotsHeld"] = sum(row.next_slot - start.next_slot for row, start in zip(step.rows, starts, strict=True))
    totals["flops"] += work.flops()
    totals["flopsWasted"] += work.wasted_flops()
    totals["ms"] += 1000 * time.step_seconds(step)
