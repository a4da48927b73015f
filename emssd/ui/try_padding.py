"""Lesson 5's experiment: sliders for the drafts that every row keeps in every step, and what vanilla pays for them."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from emssd.lessons.own_batch import DRAFTS, PROMPTS, STEPS, own_batch
from emssd.trace import GenerationTrace
from emssd.ui.lessons_player import show_panes
from emssd.ui.player_data import Pane

DEFAULT = ((3, 1, 2), (0, 5, 1))
"""[rows][steps]; the first two steps are those of the worked example."""


def controls() -> Callable[[str], None]:
    """Draw the sliders; returns what shows the batch."""
    kept = []
    for row in range(len(PROMPTS)):
        columns = st.columns(STEPS)
        kept.append(
            [
                columns[step].slider(
                    f"Row {row}, step {step + 1}", 0, DRAFTS, DEFAULT[row][step], key=f"try_padding_{row}_{step}"
                )
                for step in range(STEPS)
            ]
        )
    traces = own_batch(kept, ("greedy", "vanilla"))
    return lambda key: _show(traces, key)


def _show(traces: dict[str, GenerationTrace], key: str) -> None:
    panes = [Pane(traces["vanilla"], "vanilla", traces["greedy"])]
    show_panes(panes, [f"row {row}" for row in range(len(PROMPTS))], key, "try-padding")
