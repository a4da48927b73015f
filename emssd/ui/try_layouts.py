"""Lesson 8's experiment: a recorded batch under all four layouts at once, played from one kind of event to the next."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from emssd.trace import GenerationTrace
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
WORDS = {"packed-input": "padded cache", "ragged-cache": "padded inputs"}
"""What these layouts' names leave out, short enough for a pane of four."""
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
    missing = [STOPS[key] for key in stops if key not in events(preset(name).traces["vanilla"])]
    if missing:
        st.caption(f"{SETS[name]} has none of these: {', '.join(missing)}.")
    return lambda key: _show(name, stops, key)


def events(trace: GenerationTrace) -> set[str]:
    """The keys of `STOPS` at which play of this trace stops somewhere."""
    found = set()
    for row in (row for step in trace.decode_steps for row in step.rows):
        if row.holes_added:
            found.add("hole")
        if row.kind == "finished":
            continue
        if row.finished:
            found.add("finished")
        if row.num_drafted and row.num_accepted == row.num_drafted:
            found.add("kept")
        if row.num_accepted < min(row.num_drafted, row.num_emitted):
            found.add("rejection")
    return found


def _show(name: str, stops: list[str], key: str) -> None:
    shown = preset(name)
    panes = [Pane(shown.traces[each], each, shown.baseline, layout=WORDS.get(each, "")) for each in LAYOUTS]
    show_panes(panes, shown.titles, key, f"try-layouts-{name}", stops=stops)
