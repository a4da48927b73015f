"""What is shown when nothing runs: the player, and for recorded traces their badges, texts and numbers."""

from __future__ import annotations

import streamlit as st

from emssd.config import METHOD_TITLES
from emssd.errors import TraceError
from emssd.ui import live_view
from emssd.ui.comparison import Equality, clock
from emssd.ui.live_run import LiveRun
from emssd.ui.player import ASSETS, show_player
from emssd.ui.shown import Shown, from_folder, from_run
from emssd.ui.token_text import visible

RECORDED = ASSETS / "traces"


def results(run: LiveRun | None) -> None:
    """Draw the last run or the opened traces, else the recorded example."""
    shown = _what_to_show(run)
    if shown is None or not shown.panes:
        if run is None:
            st.info("Add a prompt and press Run, or open a trace.")
        return
    equal = shown.equality()
    if run is None:
        _recorded_status(shown, equal)
    if reason := shown.too_large():
        st.info(reason)
    else:
        step, notice = _wanted_step(shown)
        if notice:
            st.caption(notice)
        differs = [name in equal and not equal[name].identical for name in shown.panes]
        show_player(shown.player(), step, differs)
    if run is None:
        _recorded_texts(shown, equal)
    _downloads(shown)


@st.cache_resource(max_entries=1, show_spinner=False)
def _recorded() -> Shown:
    """Shared by all sessions and never changed."""
    return from_folder(RECORDED)


def _what_to_show(run: LiveRun | None) -> Shown | None:
    state = st.session_state
    if state.get("shown") is None:
        try:
            state["shown"] = _recorded() if run is None else from_run(run)
        except TraceError as error:
            st.warning(str(error), icon=":material/error:")
    shown: Shown | None = state.get("shown")
    return shown


def _recorded_status(shown: Shown, equal: dict[str, Equality]) -> None:
    compared = {name: equal[name] for name in shown.panes if name in equal}
    with st.container(border=True, key="status"):
        st.html(live_view.status_line("recorded", shown.headline, shown.note) + live_view.badges(compared))


def _wanted_step(shown: Shown) -> tuple[int, str]:
    """The step that the address asks for; a notice where that is not possible."""
    last = max(shown.steps[name] for name in shown.panes) - 1
    wanted = st.query_params.get("step")
    default = min(1, last)
    if wanted is None:
        return default, ""
    if not wanted.isdecimal() or len(wanted) > 6:
        shown_text = visible(wanted[:20])
        return default, f"The address asks for step “{shown_text}”, which is no number: step {default} is shown."
    if int(wanted) > last:
        return last, f"The address asks for step {int(wanted)}, but the last one is {last}: it is shown."
    return int(wanted), ""


def _recorded_texts(shown: Shown, equal: dict[str, Equality]) -> None:
    clocks = {name: clock(trace.steps) for name, trace in shown.traces.items()}
    differing = {name for name, each in equal.items() if not each.identical}
    done = all(trace.finished for trace in shown.traces.values())
    st.html(
        live_view.board(
            live_view.texts(shown.pane_traces, shown.steps, shown.titles, False),
            live_view.speed_card(clocks, differing, shown.where, done, recorded=True),
            live_view.work_card({**shown.pane_traces, **shown.traces}, shown.steps),
        )
    )


def _downloads(shown: Shown) -> None:
    with st.container(horizontal=True, key="downloads", vertical_alignment="center"):
        st.caption("Save as JSON:")
        for name, trace in shown.traces.items():
            st.download_button(
                METHOD_TITLES[name],
                trace.to_json,
                file_name=f"{name}.json",
                mime="application/json",
                icon=":material/download:",
                on_click="ignore",
                key=f"save_{name}",
            )
