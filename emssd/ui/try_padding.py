"""Lesson 5's experiment: what every row drafts and keeps in every step, and which paddings vanilla pays for it."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from emssd.lessons.own_batch import DRAFTS, PROMPTS, STEPS, own_batch
from emssd.trace import GenerationTrace, StepTrace
from emssd.ui.lessons_player import show_panes
from emssd.ui.player_data import Pane
from emssd.ui.setup_form import KEEP

DEFAULT = (((3, 5), (1, 2), (2, 4)), ((0, 2), (5, 5), (1, 5)))
"""[rows][steps] of (kept, drafted); the first two steps are those of the worked example."""
BESIDE = "try_padding_beside"
ENDS = "Left end: drafts kept. Right end: drafts made."
RESET = "Steps 1 and 2 draft and keep as in the paper’s Figure 2; step 3 is added."


def controls() -> Callable[[str], None]:
    """Draw the sliders and what they lead to; returns what shows the batch."""
    heads = "".join(f"<b>Step {step + 1}</b>" for step in range(STEPS))
    st.html(f'<div class="l-steps"><span class="l-ends">{ENDS}</span><span></span>{heads}</div>')
    chosen = [_row(row) for row in range(len(PROMPTS))]
    kept, drafted = ([[pair[end] for pair in row] for row in chosen] for end in (0, 1))
    traces, text = own_batch(kept, ("greedy", "vanilla", "ems-sd"), drafted), st.empty()
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        beside = st.toggle("EMS-SD beside it", key=BESIDE, **KEEP)
        st.button(
            "Reset", key="try_padding_reset", icon=":material/undo:", type="tertiary", help=RESET, on_click=_reset
        )
    text.html(reading(traces["vanilla"], traces["ems-sd"] if beside else None))
    methods = ("vanilla", "ems-sd") if beside else ("vanilla",)
    return lambda key: _show(traces, methods, key)


def _row(row: int) -> list[tuple[int, int]]:
    """[steps] of (kept, drafted): the two ends of a slider."""
    name, *columns = st.columns([0.5] + [1] * STEPS, vertical_alignment="center", gap="small")
    name.html(f'<b class="l-row">Row {row}</b>')
    label = "Row {}, step {}: drafts kept, and drafts made"
    return [
        column.slider(
            label.format(row, step + 1),
            0,
            DRAFTS,
            DEFAULT[row][step],
            key=_key(row, step),
            label_visibility="collapsed",
            **KEEP,
        )
        for step, column in enumerate(columns)
    ]


def _key(row: int, step: int) -> str:
    return f"try_padding_{row}_{step}"


def _reset() -> None:
    for row, steps in enumerate(DEFAULT):
        for step, pair in enumerate(steps):
            st.session_state[_key(row, step)] = pair


def reading(trace: GenerationTrace, other: GenerationTrace | None = None) -> str:
    """Markup: the two paddings of each step below its sliders, and what the slots of the run hold.

    Args:
        trace: of vanilla; other: of EMS-SD where it is shown, too.
    """
    steps = trace.decode_steps
    lines = {"Pads": [_pads(step) for step in steps], "Holes": [_holes(step) for step in steps]}
    table = "".join(
        f'<div class="l-steps"><b>{name}</b>{"".join(f"<span>{text}</span>" for text in texts)}</div>'
        for name, texts in lines.items()
    )
    texts = [f"Together the rows pass {_slots(trace)}{_alone(trace)}"]
    if other is not None:
        texts.append(f"With EMS-SD they pass {_slots(other)}")
    return f'<div class="l-reading" data-testid="reading">{table}{"".join(f"<p>{text}</p>" for text in texts)}</div>'


def _slots(trace: GenerationTrace) -> str:
    totals = trace.summary()
    holes, tokens = totals["holes"], totals["decode_tokens"]
    filled = f"{tokens} of them hold a token, {holes} {'is a hole' if holes == 1 else 'are holes'}"
    return f"{totals['slots_advanced']} slots. {filled if holes else 'All of them hold a token'}."


def _alone(trace: GenerationTrace) -> str:
    """Which padding a run has without the other, as a sentence; "" where it has both or none."""
    pads, holes = trace.summary()["input_rows"]["pad"] > 0, trace.summary()["holes"] > 0
    if pads == holes:
        return ""
    return " <b>Pads without a hole.</b>" if pads else " <b>Holes without a pad.</b>"


def _pads(step: StepTrace) -> str:
    """ "3 in row 1"; one row at most is shorter than the other."""
    return _where({row.row: row.input_kinds.count("pad") for row in step.rows})


def _holes(step: StepTrace) -> str:
    return _where({row.row: len(row.holes_added) for row in step.rows})


def _where(counts: dict[int, int]) -> str:
    return ", ".join(f"{count} in row {row}" for row, count in counts.items() if count) or "none"


def _show(traces: dict[str, GenerationTrace], methods: tuple[str, ...], key: str) -> None:
    panes = [Pane(traces[method], method, traces["greedy"]) for method in methods]
    show_panes(panes, [f"row {row}" for row in range(len(PROMPTS))], key, "try-padding")
