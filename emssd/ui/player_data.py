"""Traces as columns for the player: everything it draws is computed here from a trace, the player only paints.

Cells go over as changes from step to step: [row, slot, state, token, position + 1] in one flat list per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from emssd.cells import STATES, Cell, iter_cells, num_slots
from emssd.config import METHOD_TITLES
from emssd.trace import GenerationTrace, RowTrace
from emssd.ui.comparison import clock, speed_ups
from emssd.ui.narration import narrate
from emssd.ui.palette import LAYOUT_WORDS
from emssd.ui.token_text import visible

MAX_ROWS = 16
MAX_STEPS = 500
MAX_SLOTS = 8192
MAX_CELLS = 60_000
PROMPT_TAIL = 24
ORIGIN_CODES = {"prompt": 0, "plain": 1, "accepted": 2, "recovered": 3, "bonus": 4}
PARTS = ("input_useful", "input_pad", "input_finished", "slots_useful", "slots_dead", "slots_pad_query", "holes", "ms")


@dataclass(frozen=True)
class Pane:
    """One side of the player: a trace, the name it goes by, and the baseline of its speed-up."""

    trace: GenerationTrace
    method: str
    baseline: GenerationTrace | None = None
    baseline_words: str = "vs greedy, padded cache"


def too_large(trace: GenerationTrace) -> str | None:
    """Why the player does not show a trace, in one sentence; None if it does."""
    for count, limit, what in (
        (len(trace.rows), MAX_ROWS, "rows"),
        (len(trace.steps), MAX_STEPS, "steps"),
        (num_slots(trace), MAX_SLOTS, "slots in a row"),
        (num_slots(trace) * len(trace.rows), MAX_CELLS, "cache cells"),
    ):
        if count > limit:
            return f"The step view takes at most {limit} {what}, and this run has {count}: totals and texts are shown."
    return None


def player_data(panes: Sequence[Pane], titles: Sequence[str]) -> dict[str, Any]:
    """What the player needs, JSON-ready. `titles` name the rows."""
    words: dict[str, int] = {}
    return {
        "panes": [_pane(pane, words) for pane in panes],
        "rows": [visible(title) for title in titles],
        "slots": max(num_slots(pane.trace) for pane in panes),
        "steps": max(len(pane.trace.steps) for pane in panes),
        "states": list(STATES),
        "words": list(words),
    }


def _pane(pane: Pane, words: dict[str, int]) -> dict[str, Any]:
    trace = pane.trace
    factors = speed_ups(clock(pane.baseline.steps), clock(trace.steps)) if pane.baseline else []
    return {
        "method": pane.method,
        "title": METHOD_TITLES.get(pane.method, pane.method),
        "layout": LAYOUT_WORDS.get(pane.method, ""),
        "shared": trace.config.get("cache_layout") == "padded",
        "packed": trace.config.get("input_layout") == "packed",
        "prefill": [len(row.prompt_token_ids) for row in trace.rows],
        "changes": _changes(trace, words),
        "verdicts": [[_verdict(row) for row in step.rows] for step in trace.steps],
        "texts": [_text(trace, row, words) for row in range(len(trace.rows))],
        "counters": _counters(trace),
        "narration": [narrate(trace, step) for step in trace.steps],
        "speed": [None if factor is None else round(factor, 4) for factor in factors],
        "baseline": pane.baseline_words,
    }


def _word(trace: GenerationTrace, token_id: int | None, words: dict[str, int]) -> int:
    """Index of a token's visible text in `words`; -1 for none."""
    if token_id is None:
        return -1
    text = visible(trace.tokens.get(str(token_id), f"id {token_id} "))
    return words.setdefault(text, len(words))


def _changes(trace: GenerationTrace, words: dict[str, int]) -> list[list[int]]:
    codes = {state: code for code, state in enumerate(STATES)}
    before: list[list[Cell]] = [[] for _ in trace.rows]
    steps = []
    for grid in iter_cells(trace):
        flat: list[int] = []
        for row, cells in enumerate(grid):
            for slot, cell in enumerate(cells):
                if cell != (before[row][slot] if before[row] else Cell()):
                    position = -1 if cell.position is None else cell.position
                    flat += (row, slot, codes[cell.state], _word(trace, cell.token_id, words), position + 1)
        before = grid
        steps.append(flat)
    return steps


def _verdict(row: RowTrace) -> list[int]:
    """[live, drafted, accepted, emitted, pads or finished rows fed, next slot, finished] of one row in one step."""
    pads = row.input_kinds.count("pad")
    live = 0 if row.kind == "finished" else 1
    return [live, row.num_drafted, row.num_accepted, row.num_emitted, pads, row.next_slot, int(row.finished)]


def origins(row: RowTrace) -> list[str]:
    """Where each token came from that the row emitted in one step."""
    kept = min(row.num_accepted, row.num_emitted)
    return ["accepted"] * kept + [row.next_kind or "plain"] * (row.num_emitted - kept)


def _text(trace: GenerationTrace, row: int, words: dict[str, int]) -> list[int]:
    """Flat [word, origin, step] of the prompt's tail and of all new tokens; the prompt's step is -1."""
    flat: list[int] = []
    for token in trace.rows[row].prompt_token_ids[-PROMPT_TAIL:]:
        flat += (_word(trace, token, words), 0, -1)
    for step in trace.steps:
        entry = step.rows[row]
        for token, origin in zip(entry.emitted_token_ids, origins(entry), strict=True):
            flat += (_word(trace, token, words), ORIGIN_CODES[origin], step.index)
    return flat


def _counters(trace: GenerationTrace) -> dict[str, list[float]]:
    """[steps] cumulative counts by kind, prefill left out; `ms` is measured decode time."""
    columns: dict[str, list[float]] = {part: [] for part in PARTS}
    totals = dict.fromkeys(PARTS, 0.0)
    for step in trace.steps:
        if step.kind == "decode":
            rows, slots = step.account.input_rows, step.account.kv_slots_scanned["per_token"]
            totals["input_useful"] += rows["useful"]
            totals["input_pad"] += rows["pad"]
            totals["input_finished"] += rows["finished"]
            totals["slots_useful"] += slots["useful"]
            totals["slots_dead"] += slots["prompt_pad"] + slots["hole"]
            totals["slots_pad_query"] += slots["pad_query"]
            totals["ms"] += round(1000 * step.seconds.get("total", 0.0), 3)
        totals["holes"] = step.account.holes_total
        for part in PARTS:
            columns[part].append(round(totals[part], 3))
    return columns
