"""Lesson 4's experiment: two rows cut to the minimum, and beside it a method that keeps every confirmed token."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from emssd.config import METHOD_TITLES
from emssd.lessons.cut_batch import CUT, always_slowest, cut_batch, rows_fed, thrown_away
from emssd.lessons.own_batch import DRAFTS, PROMPTS
from emssd.trace import GenerationTrace
from emssd.ui.lessons_player import show_panes
from emssd.ui.narration import plural
from emssd.ui.palette import LAYOUT_WORDS
from emssd.ui.player_data import Pane
from emssd.ui.setup_form import KEEP

DEFAULT = ((4, 0), (0, 5))
"""[rows][turns] words that the drafter guesses before it misses one."""
TURNS = ("steps 1, 3, …", "steps 2, 4, …")
KEEPERS = ("vanilla", "ems-sd")


def controls() -> Callable[[str], None]:
    """Draw the sliders and what they lead to; returns what shows the runs."""
    heads = "".join(f"<b>{turn}</b>" for turn in TURNS)
    st.html(f'<div class="l-steps l-two"><span>Kept of {DRAFTS}</span>{heads}</div>')
    guessed = [_row(row) for row in range(len(PROMPTS))]
    beside = st.segmented_control(
        "Keep all, beside the cut",
        KEEPERS,
        format_func=lambda name: METHOD_TITLES[name],
        default="ems-sd",
        required=True,
        key="try_policies_beside",
        **KEEP,
    )
    traces = cut_batch(guessed, (CUT, beside, "greedy"))
    st.html(reading(traces[CUT], traces[beside], METHOD_TITLES[beside]))
    return lambda key: _show(traces, beside, key)


def _row(row: int) -> list[int]:
    """[turns] drafts that a row keeps, where it may."""
    name, *columns = st.columns([0.5] + [1] * len(TURNS), vertical_alignment="center", gap="small")
    name.html(f'<b class="l-row">Row {row}</b>')
    return [
        column.slider(
            f"Row {row}, {TURNS[turn]}: drafts it keeps",
            0,
            DRAFTS,
            DEFAULT[row][turn],
            key=f"try_policies_{row}_{turn}",
            label_visibility="collapsed",
            **KEEP,
        )
        for turn, column in enumerate(columns)
    ]


def reading(cut: GenerationTrace, other: GenerationTrace, title: str) -> str:
    """Markup: steps and fed rows of both for the same texts, and tokens that were confirmed in vain."""
    lines = [
        f"<p><b>{name}:</b> {plural(len(trace.decode_steps), 'step')}, {plural(rows_fed(trace), 'row')} fed, "
        f"{plural(sum(thrown_away(trace)), 'confirmed token')} thrown away.</p>"
        for name, trace in ((CUT, cut), (title, other))
    ]
    slowest = always_slowest(cut)
    if slowest is not None and any(thrown_away(cut)):
        lines.append(f"<p>As many steps, since row {slowest} is the slowest in all of them.</p>")
    return f'<div class="l-reading" data-testid="reading">{"".join(lines)}</div>'


def _show(traces: dict[str, GenerationTrace], beside: str, key: str) -> None:
    words = {CUT: LAYOUT_WORDS["vanilla"]}
    panes = [Pane(traces[name], name, traces["greedy"], layout=words.get(name, "")) for name in (CUT, beside)]
    show_panes(panes, [f"row {row}" for row in range(len(PROMPTS))], key, "try-policies")
