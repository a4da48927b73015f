"""The sets that a visitor can choose from, loaded once: recorded ones for everybody, the run and the files for one."""

from __future__ import annotations

from typing import Any

import streamlit as st

from emssd.errors import TraceError
from emssd.ui.library import PresetInfo, TraceSet, live_set, load_preset, preset_index
from emssd.ui.live_run import LiveRun
from emssd.ui.player_data import MODELLED, Pane, TimeSource, measured, player_data, too_large

MODELLED_KEY, MEASURED_KEY = "modelled", "measured"
OWN = ("live", "opened")


@st.cache_data(show_spinner=False)
def presets() -> list[PresetInfo]:
    """The recorded sets in menu order; raises TraceError where the list is damaged."""
    return preset_index()


@st.cache_resource(max_entries=16, show_spinner=False)
def preset(name: str) -> TraceSet:
    """A recorded set, shared by all visitors and never changed; raises TraceError where it is damaged."""
    return load_preset(name)


def menu() -> dict[str, str]:
    """Title by name of every set that this visitor can choose, recorded ones first."""
    try:
        titles = {info.name: info.title for info in presets()}
    except TraceError:
        titles = {}
    for name in OWN:
        own = _own_set(name)
        if own is not None:
            titles[name] = own.title
    return titles


def chosen_set(name: str) -> TraceSet:
    """One of `menu`.

    Raises:
        TraceError: it is damaged.
    """
    own = _own_set(name) if name in OWN else None
    return own or preset(name)


def _own_set(name: str) -> TraceSet | None:
    if name == "opened":
        opened: TraceSet | None = st.session_state.get("opened")
        return opened
    run: LiveRun | None = st.session_state.get("run")
    return None if run is None else run_set(run)


def run_set(run: LiveRun) -> TraceSet | None:
    """What a run that has ended decoded, made once; None while it goes on or where there is nothing."""
    state = st.session_state
    if not run.done:
        return None
    if state.get("live_set_of") is not run:
        state.update(live_set_of=run, live_set=live_set(run.traces, run.request.titles, run.hardware))
    made: TraceSet | None = state["live_set"]
    return made


def look_at(shown: TraceSet) -> None:
    """Remember what the visitor looks at in the player, for the other pages."""
    st.session_state["looked_at"] = (shown.name, id(shown) if shown.name in OWN else 0)


def looked_at() -> tuple[str | None, int]:
    """Name of the set that was last shown in the player, and a number that tells one run or opened set from another."""
    latest: tuple[str | None, int] = st.session_state.get("looked_at") or (None, 0)
    return latest


def time_source(kind: str, where: str) -> TimeSource:
    """Modelled or measured time."""
    return measured(where) if kind == MEASURED_KEY else MODELLED


def pair_data(shown: TraceSet, panes: tuple[str, ...], kind: str) -> tuple[dict[str, Any] | None, str | None]:
    """The player's data for one or two methods of a set, made once, or why the player does not show them.

    Callers change copies only.
    """
    if reason := next((words for name in panes if (words := too_large(shown.traces[name]))), None):
        return None, reason
    if shown.name not in OWN:
        return _preset_data(shown.name, panes, kind)
    kept = st.session_state.setdefault("pair_data", {})
    if kept.get("of") is not shown:
        kept.clear()
        kept["of"] = shown
    if (panes, kind) not in kept:
        kept[panes, kind] = _make_data(shown, panes, kind)
    made: tuple[dict[str, Any] | None, str | None] = kept[panes, kind]
    return made


@st.cache_resource(max_entries=32, show_spinner=False)
def _preset_data(name: str, panes: tuple[str, ...], kind: str) -> tuple[dict[str, Any] | None, str | None]:
    return _make_data(preset(name), panes, kind)


def _make_data(shown: TraceSet, panes: tuple[str, ...], kind: str) -> tuple[dict[str, Any] | None, str | None]:
    sides = [Pane(shown.traces[name], name, shown.baseline) for name in panes]
    group = shown.name if shown.name not in OWN else f"{shown.name}-{id(shown)}"
    try:
        return player_data(sides, shown.titles, group=group, time=time_source(kind, shown.where)), None
    except TraceError as error:
        return None, f"Summary view: totals and texts. {error}"
