"""A trace's counts as CSV (RFC 4180), for spreadsheets and data frames.

Texts come from models and files: they are kept from being formulas, and control characters are shown as marks.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence

from emssd.accounting import ATTENTION_MODES, INPUT_KINDS, SCAN_KINDS
from emssd.token_text import visible
from emssd.trace import PHASES, GenerationTrace, RowTrace, StepTrace

ROW_COLUMNS = (
    *("method", "step", "kind", "row", "title", "row_kind", "fed", "pads", "drafted", "accepted", "emitted"),
    *("next_slot", "cache_length", "holes_added", "text"),
)
STEP_COLUMNS = (
    *("method", "step", "kind", "live_rows", "drafted", "accepted", "emitted"),
    *(f"input_rows_{kind}" for kind in INPUT_KINDS),
    *(f"kv_slots_{mode}_{kind}" for mode in ATTENTION_MODES for kind in SCAN_KINDS),
    *("attention_launches", "kv_slots_allocated", "holes_total"),
    *(f"seconds_{phase}" for phase in PHASES),
)

# A cell that starts like this may be taken for a formula. Where ";" parts cells, one may start in mid-text, in quotes.
_FORMULA = re.compile(r"(^|;)(?=[\s\"]*[=+\-@＝＋－＠'\t\r])")

Value = str | int | float


def counters_csv(traces: Mapping[str, GenerationTrace], titles: Sequence[str] = ()) -> str:
    """One line per method, step and row, with a header.

    Args:
        traces: by method name.
        titles: short names of the rows, by row; rows without one have an empty cell.

    Returns:
        `ROW_COLUMNS`: counts are those of the step ("fed" includes "pads"), `next_slot` and `cache_length` those
        after its commit, in slots and tokens; `text` is what the row emitted. Step 0 is prefill, where "fed" counts
        the prompt.
    """
    return _table(
        ROW_COLUMNS,
        (
            _row_line(trace, name, step, row, titles)
            for name, trace in traces.items()
            for step in trace.steps
            for row in step.rows
        ),
    )


def totals_csv(traces: Mapping[str, GenerationTrace]) -> str:
    """One line per method and step, with a header: `STEP_COLUMNS`.

    Input rows, slots and launches as in the trace's account (for one attention layer), `holes_total` so far,
    seconds of wall time by phase; a phase that the trace does not have is an empty cell.
    """
    return _table(STEP_COLUMNS, (_step_line(name, step) for name, trace in traces.items() for step in trace.steps))


def spreadsheet_text(text: str) -> str:
    """Visible text that no spreadsheet takes for a formula: an apostrophe goes before what could start one.

    Apostrophes in such places get another one, so that taking one away from each gives the text back.
    """
    return _FORMULA.sub(r"\1'", text)


def _row_line(trace: GenerationTrace, name: str, step: StepTrace, row: RowTrace, titles: Sequence[str]) -> list[Value]:
    title = titles[row.row] if row.row < len(titles) else ""
    text = "".join(visible(trace.tokens.get(str(token), f"id {token} ")) for token in row.emitted_token_ids)
    return [
        *(name, step.index, step.kind, row.row, visible(title), row.kind),
        *(len(row.input_token_ids), row.input_kinds.count("pad")),
        *(row.num_drafted, row.num_accepted, row.num_emitted),
        *(row.next_slot, row.cache_len, len(row.holes_added), text),
    ]


def _step_line(name: str, step: StepTrace) -> list[Value]:
    account = step.account
    return [
        *(name, step.index, step.kind, sum(row.kind != "finished" for row in step.rows)),
        *(sum(getattr(row, count) for row in step.rows) for count in ("num_drafted", "num_accepted", "num_emitted")),
        *(account.input_rows[kind] for kind in INPUT_KINDS),
        *(account.kv_slots_scanned[mode][kind] for mode in ATTENTION_MODES for kind in SCAN_KINDS),
        *(account.attention_launches, account.kv_slots_allocated, account.holes_total),
        *(step.seconds.get(phase, "") for phase in PHASES),
    ]


def _table(columns: Sequence[str], lines: Iterable[Sequence[Value]]) -> str:
    """Numbers bare, texts in quotes, lines ended by CR LF."""
    file = io.StringIO()
    writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(columns)
    for line in lines:
        writer.writerow([spreadsheet_text(value) if isinstance(value, str) else value for value in line])
    return file.getvalue()
