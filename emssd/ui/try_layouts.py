"""Lesson 8's experiment: a recorded batch under all four layouts at once, played from one kind of event to the next."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from emssd.ui.lessons_player import show_panes
from emssd.ui.player_data import Pane
from emssd.ui.sets import preset
from emssd.ui.setup_form import KEEP

SETS = {"figure2": "Worked example", "all-accepted": "All accepted", "early-finisher": "Early finisher"}
STOPS = {
    "rejection": "a rejection",
    "hole": "new holes",
    "kept": "all drafts kept",
    "finished": "a row finished",
}
"""By key of the player's menu of breakpoints."""
LAYOUTS = ("vanilla", "packed-input", "ragged-cache", "ems-sd")


def controls() -> Callable[[str], None]:
    """Draw the choice of batch and of events; returns what shows the four layouts."""
    name: str = st.segmented_control(
        "Batch",
        list(SETS),
        format_func=SETS.__getitem__,
        default="figure2",
        required=True,
        key="try_layouts_set",
        **KEEP,
    )
    stops: list[str] = st.pills(
        "Stop play at",
        list(STOPS),
        format_func=STOPS.__getitem__,
        selection_mode="multi",
        key="try_layouts_stops",
        **KEEP,
    )
    return lambda key: _show(name, stops, key)


def _show(name: str, stops: list[str], key: str) -> None:
    shown = preset(name)
    panes = [Pane(shown.traces[layout], layout, shown.baseline) for layout in LAYOUTS]
    show_panes(panes, shown.titles, key, f"try-layouts-{name}", stops=stops)
