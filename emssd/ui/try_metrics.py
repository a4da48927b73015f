"""Lesson 10's experiment: a run, recorded or your own, measured with and without the target's own token."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from emssd.config import METHOD_TITLES
from emssd.errors import TraceError
from emssd.lessons.run_metrics import Fraction, RunMetrics, measure, quotient
from emssd.ui.lessons_top import begin_at_top
from emssd.ui.library import MAX_FILE_BYTES, TraceSet, opened_set
from emssd.ui.method_style import method_words
from emssd.ui.narration import plural
from emssd.ui.notices import warn
from emssd.ui.player import show_player
from emssd.ui.sets import MODELLED_KEY, chosen_set, menu, pair_data
from emssd.ui.setup_form import KEEP
from emssd.ui.summary import summary
from emssd.ui.token_text import visible

RUN, METHOD, OWN_TOKEN, FILES = "try_metrics_run", "try_metrics_method", "try_metrics_own", "try_metrics_files"
OPENED, PROBLEMS = "try_metrics_opened", "try_metrics_problems"
MOST_PROBLEMS = 2
"""Files that are told of one by one; more would push the numbers off the screen."""
MINE = "mine"
FIRST = ("early-finisher", "vanilla")
RECORD = (
    "python -m emssd record run.json \\\n  --method vanilla --chat \\\n"
    '  --prompt "Repeat: the quick brown fox jumps over the lazy dog. the quick brown fox jumps over the lazy dog."'
)


@dataclass(frozen=True)
class Line:
    """One reading.

    Args:
        name: what it is; how: what is divided or counted.
        value: the number in words.
        other: what the other definition makes of it; "" where both agree.
        right: whether an identity holds; None: a number without one.
    """

    name: str
    how: str
    value: str
    other: str = ""
    right: bool | None = None


def controls() -> Callable[[str], None]:
    """Draw the choice of a run and what it measures; returns what plays it."""
    with st.container(horizontal=True, vertical_alignment="bottom", key="try_metrics_choice"):
        shown = _choose_run()
        method = _choose_method(shown) if shown is not None else ""
    with st.container(horizontal=True, vertical_alignment="center", key="try_metrics_bar"):
        own = st.toggle("Count the target’s own token", value=True, key=OWN_TOKEN, **KEEP)
        _open_popover()
    warn(folded(st.session_state.get(PROBLEMS, ())))
    if shown is None:
        return _nothing
    st.html(_table(lines_of(measure(shown.traces[method]), own)))
    return lambda key: _show(shown, method, key)


def folded(problems: Sequence[str]) -> list[str]:
    """One notice for all files that were left out, or none: the first few in words, the others counted."""
    if not problems:
        return []
    rest = len(problems) - MOST_PROBLEMS
    return [" ".join([*problems[:MOST_PROBLEMS], f"And {plural(rest, 'more file')}." if rest > 0 else ""]).strip()]


def _nothing(key: str) -> None:
    st.info("There is no run to measure: open one of yours.")


def _forget() -> None:
    """What was wrong with a file has been read once another run is chosen."""
    st.session_state[PROBLEMS] = []


CHOICE: dict[str, Any] = {**KEEP, "label_visibility": "collapsed", "on_change": _forget}


def _choose_run() -> TraceSet | None:
    """One of the recorded runs, the last live one, what Explore has open, or what was opened here."""
    state, titles = st.session_state, menu()
    mine: TraceSet | None = state.get(OPENED)
    if mine is not None:
        titles = {name: title for name, title in titles.items() if title != mine.title} | {MINE: mine.title}
    if not titles:
        return None
    if state.get(RUN) not in titles:
        state[RUN] = FIRST[0] if FIRST[0] in titles else next(iter(titles))
    name = st.selectbox("Run", list(titles), format_func=titles.__getitem__, key=RUN, **CHOICE)
    try:
        return mine if name == MINE else chosen_set(name)
    except TraceError as error:
        state[PROBLEMS] = [str(error)]
        return None


def _choose_method(shown: TraceSet) -> str:
    state, methods = st.session_state, list(shown.methods)
    if state.get(METHOD) not in methods:
        state[METHOD] = FIRST[1] if FIRST[1] in methods else methods[-1]
    method: str = st.selectbox("Method", methods, format_func=_words, key=METHOD, **CHOICE)
    return method


def _words(name: str) -> str:
    return method_words(name, METHOD_TITLES[name])


def _open_popover() -> None:
    with st.popover("Open", icon=":material/folder_open:", key="try_metrics_open"):
        st.html('<p class="note">Record a run, then open its file:</p>')
        st.code(RECORD, language="bash", wrap_lines=True)
        st.file_uploader(
            "Traces (JSON) as `record`, `generate --json` or the app’s Save write them; more than one where they are "
            "of the same prompts.",
            type="json",
            accept_multiple_files=True,
            key=FILES,
            max_upload_size=MAX_FILE_BYTES // 2**20,
            on_change=_open_files,
        )


def _open_files() -> None:
    """What could be read takes the place of what was opened here before; nothing does where no file is good."""
    state = st.session_state
    files = state.get(FILES) or []
    state[PROBLEMS] = []
    if not files:
        return
    empty = [file.name for file in files if not file.size]
    opened, bad = opened_set([(file.name, file.getvalue()) for file in files if file.size])
    state[PROBLEMS] = [*(f"{visible(name)} was left out: it is empty." for name in empty), *bad]
    if opened is not None:
        state.update({OPENED: opened, RUN: MINE})


def lines_of(found: RunMetrics, own: bool) -> list[Line]:
    """All readings of a run.

    Args:
        own: whether the target's own token counts.
    """
    return [*_defined(found, own), *_counted(found), *_identities(found)]


def _defined(found: RunMetrics, own: bool) -> list[Line]:
    """The two numbers that a definition decides, and one that it does not."""
    what, without = ("emitted", "without it") if own else ("accepted", "with it")
    return [
        Line(
            "Mean acceptance length" if own else "Drafts kept in a step: no name here",
            f"{what} / live row-steps, {_said(found.gain(own))}",
            _number(found.gain(own)),
            f"{_number(found.gain(not own))} {without}",
        ),
        Line(
            ("No rate: not all was drafted" if found.drafted else "No rate: nothing was drafted")
            if own
            else "Acceptance rate",
            f"{what} / drafted, {_said(found.share(own))}" if found.drafted else "nothing was drafted",
            _percent(found.share(own)),
            f"{_percent(found.share(not own))} {without}" if found.drafted else "",
        ),
        Line("Gain of the batch in a step", f"emitted / steps, {_said(found.per_step)}", _number(found.per_step)),
    ]


def _counted(found: RunMetrics) -> list[Line]:
    """What was done for nothing, by kind."""
    wasted, dead = found.pads + found.finished, found.holes + found.prompt_pads
    return [
        Line("Rows wasted", f"pads {found.pads:,}, finished rows {found.finished:,}", f"{wasted:,}"),
        Line("Dead slots read", f"holes {found.holes:,}, prompt padding {found.prompt_pads:,}", f"{dead:,}"),
    ]


def _identities(found: RunMetrics) -> list[Line]:
    """What holds of any trace, and why a step may end without a token of the target's own."""
    rows, total = len(found.outputs), sum(length for _, length in found.outputs)
    stopped = f"; {plural(found.unfinished, 'row')} not ended yet" if found.unfinished else ""
    cut = f"in {found.cut} an end of sequence inside the drafts left no token of the target’s own" if found.cut else ""
    return [
        Line(
            "Emitted = output",
            f"prefill’s tokens in, row by row; {plural(total, 'token')}{stopped}",
            f"{found.equal_rows} of {rows}",
            right=found.equal_rows == rows,
        ),
        Line(
            "Emitted = accepted + 1",
            cut,
            f"{found.whole:,} of {found.row_steps:,}",
            right=found.whole + found.cut == found.row_steps,
        ),
    ]


def _said(fraction: Fraction) -> str:
    return f"{fraction[0]:,} / {fraction[1]:,}"


def _number(fraction: Fraction) -> str:
    value = quotient(fraction)
    return "–" if value is None else f"{value:.2f}"


def _percent(fraction: Fraction) -> str:
    value = quotient(fraction)
    return "–" if value is None else f"{100 * value:.1f} %"


def _table(lines: list[Line]) -> str:
    body = "".join(
        f'<div class="{"marked" if line.other else ""}"><dt>{html.escape(line.name)}'
        f"{f'<small>{html.escape(line.how)}</small>' if line.how else ''}</dt>"
        f"<dd>{_mark(line)}{html.escape(line.value)}"
        f"{f'<small>{html.escape(line.other)}</small>' if line.other else ''}</dd></div>"
        for line in lines
    )
    return f'<dl class="l-readings" data-testid="metrics">{body}</dl>'


def _mark(line: Line) -> str:
    if line.right is None:
        return ""
    return '<i class="holds">✓</i>' if line.right else '<i class="fails">✗</i>'


def _show(shown: TraceSet, method: str, key: str) -> None:
    """The run in the player, at its end, where its counters are the run's; totals and texts where it is too large."""
    data, reason = pair_data(shown, (method,), MODELLED_KEY)
    if data is None:
        begin_at_top(key)
        st.info(reason)
        summary(shown, (method,))
        return
    last = len(shown.traces[method].steps) - 1
    lesson = {"key": key, "reveals": "", "asks": False, "hide": [], "says": "", "sealed": False, "marked": None}
    with st.container(key="lesson_player_box"):
        show_player(
            {
                **data,
                "title": shown.title,
                "note": "",
                "link": None,
                "start": {"step": last, "sub": "commit", "pin": None},
                "lesson": lesson,
            },
            key="lesson_player",
        )
