"""The player beside a lesson: the same traces and the same component as on Explore, moved to what the text is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import streamlit as st

from emssd.cells import SUBSTEPS
from emssd.errors import TraceError
from emssd.lessons.text import Target
from emssd.trace import GenerationTrace
from emssd.ui.narration import attended
from emssd.ui.notices import warn
from emssd.ui.player import show_player
from emssd.ui.player_data import Pane, Start, player_data
from emssd.ui.sets import MODELLED_KEY, pair_data, preset

SIDES = ("left", "right")


def lesson_data(
    target: Target, key: str, asks: bool = False, reveals: str = "", says: str = "", seal: int | None = None
) -> dict[str, Any]:
    """What the player needs to show a target.

    Args:
        target: what to show; a cell that it pins is one of the right pane, where there are two.
        key: names the screen; with another key the player moves to the target, with the same one it stays.
        asks: whether a question is open: the rows that the target hides are covered.
        reveals: key of the screen whose question this one answers; coming from there, the player plays the way.
        says: told to those who listen.
        seal: while the lesson has open questions: nothing after the target is shown, nor marks after this place, which
            is counted as 6 x step + number of the sub-step.

    Raises:
        TraceError: the traces cannot be shown.
    """
    shown = preset(target.preset)
    panes = (target.left,) if target.right is None else (target.left, target.right)
    missing = [name for name in panes if name not in shown.traces]
    data, reason = (None, f"{shown.title} has no {missing[0]}.") if missing else pair_data(shown, panes, MODELLED_KEY)
    if data is None:
        raise TraceError(reason or "There is nothing to show.")
    last = max(len(shown.traces[name].steps) for name in panes) - 1
    target = replace(target, step=min(target.step, last))
    return {
        **data,
        "group": "",
        "title": shown.title,
        "note": "",
        "link": None,
        "start": {
            "step": target.step,
            "sub": target.sub if target.step else "commit",
            "pin": target.pin,
            "pane": len(panes) - 1,
        },
        "lesson": {
            "key": key,
            "reveals": reveals,
            "asks": asks,
            "hide": [[SIDES.index(side), row] for side, row in target.hide] if asks else [],
            "says": says,
            "sealed": seal is not None,
            "marked": seal,
            **_told_query(target, [shown.traces[name] for name in panes]),
        },
    }


def _told_query(target: Target, traces: Sequence[GenerationTrace]) -> dict[str, Any]:
    """Whose reading the player tells of at "attend", and [panes][steps] in which words."""
    if target.query is None:
        return {"query": None, "attends": None}
    said = [attended(trace, *target.query) for trace in traces]
    words = [[[[text, int(bold)] for text, bold in pieces or ()] or None for pieces in steps] for steps in said]
    return {"query": list(target.query), "attends": words}


def seal_of(shown: Target, open_targets: Sequence[Target]) -> int:
    """Last place whose events an open lesson may mark: none that the screen does not show, or that a question asks for.

    Args:
        shown: the target of the screen; open_targets: what is shown when the open questions are asked.
    """
    asked = [target for target in open_targets if target.preset == shown.preset]
    return min(_place(shown), *(_place(target, bool(target.hide)) for target in asked)) if asked else _place(shown)


def _place(target: Target, before: bool = False) -> int:
    """6 x step + number of the sub-step; `before` is the end of the step before."""
    if before:
        return 6 * target.step - 1
    return 6 * target.step + SUBSTEPS.index(target.sub if target.step else "commit")


def show_target(
    target: Target, key: str, asks: bool = False, reveals: str = "", says: str = "", seal: int | None = None
) -> None:
    """Mount the player, or say why it shows nothing; arguments as in `lesson_data`."""
    try:
        data = lesson_data(target, key, asks, reveals, says, seal)
    except TraceError as error:
        warn([str(error)])
        return
    with st.container(key="lesson_player_box"):
        show_player(data, key="lesson_player")


def show_panes(
    panes: Sequence[Pane],
    titles: Sequence[str],
    key: str,
    group: str,
    start: Start | None = None,
    stops: Sequence[str] = (),
) -> None:
    """Mount the player with traces of an experiment, or say why it shows nothing.

    Args:
        panes: first to last, all of the same prompts; titles: names of the rows.
        key: names the screen.
        group: panes of the same group keep the reader's place when a control changes them.
        start: where the player opens.
        stops: events at which play stops, as in the player's menu of breakpoints.
    """
    try:
        data = player_data(panes, titles, group=group, start=start)
    except TraceError as error:
        warn([str(error)])
        return
    lesson = {"key": key, "reveals": "", "asks": False, "hide": [], "says": "", "sealed": False, "marked": None}
    with st.container(key="lesson_player_box"):
        show_player({**data, "lesson": {**lesson, "stops": list(stops)}}, key="lesson_player")
