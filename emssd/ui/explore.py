"""The page "Explore": a recorded, opened or live set of traces, two of its methods side by side in the player."""

from __future__ import annotations

import html
from dataclasses import asdict
from typing import Any

import streamlit as st

from emssd.config import METHOD_TITLES
from emssd.errors import TraceError
from emssd.lessons.states import load_state
from emssd.ui.frame import begin_page, link_to_live
from emssd.ui.library import (
    MAX_FILE_BYTES,
    TraceSet,
    default_pair,
    opened_set,
    prompt_title,
    viewed_files,
    viewed_set,
)
from emssd.ui.link import Link, default_start, read_link, read_state
from emssd.ui.method_style import method_words
from emssd.ui.notices import warn
from emssd.ui.player import show_player
from emssd.ui.player_data import MODELLED, Start
from emssd.ui.saves import save_popover
from emssd.ui.sets import MEASURED_KEY, MODELLED_KEY, OWN, chosen_set, look_at, menu, pair_data, preset, presets
from emssd.ui.summary import summary


def _forget_problems() -> None:
    """What an address or a file asked in vain has been read once somebody goes on."""
    st.session_state["explore_problems"] = []


KEEP: dict[str, Any] = {
    "persist_state": "session",
    "label_visibility": "collapsed",
    "on_change": _forget_problems,
}


def page() -> None:
    """Draw the page once."""
    begin_page()
    state = st.session_state
    if not state.get("explore_begun"):
        state["explore_begun"] = True
        _first_open()
    _open_state()
    with st.container(horizontal=True, vertical_alignment="center", key="controls"):
        shown = _choose_set()
        panes, problem = _choose_pair(shown)
        kind = _choose_time(shown)
        _open_popover()
        data, reason = (None, None) if shown is None else pair_data(shown, panes, kind)
        if shown is not None:
            save_popover(shown, panes, data)
    warn([*state.get("explore_problems", ()), *([problem] if problem else [])])
    if shown is None:
        _empty()
        return
    look_at(shown)
    if data is not None:
        told = {"title": shown.title, "note": shown.note}
        show_player({**data, **told, "start": _start(shown), "link": _link(shown, panes)})
    else:
        st.html(f'<p class="note" data-testid="note">{html.escape(shown.note)}</p>')
        st.info(reason)
        summary(shown, panes)


def _first_open() -> None:
    """Take over what the command line or the address asks for."""
    state = st.session_state
    state["explore_problems"] = []
    try:
        query = st.query_params.to_dict()
        link, notices = read_link({} if "state" in query else query, presets(), preset)
        state["explore_problems"] = notices
        _apply(link)
    except TraceError as error:
        state["explore_problems"] = [str(error)]
    if paths := viewed_files():
        opened, problems = viewed_set(paths)
        state["explore_problems"] = [*problems, *state["explore_problems"]]
        if opened is not None:
            _take_opened(opened)


def _open_state() -> None:
    """Show the case of a failed check that the address asks for; while the page stays, its controls decide."""
    state, query = st.session_state, st.query_params.to_dict()
    asked = query.get("state")
    returns = state.get("explore_run") != state["script_runs"] - 1
    state["explore_run"] = state["script_runs"]
    if asked is None or (asked == state.get("explore_state") and not returns):
        return
    state["explore_state"] = asked
    try:
        link, notices = read_state(query, load_state)
    except TraceError as error:
        state["explore_problems"] = [str(error)]
        return
    titles = tuple(prompt_title(row.prompt_text, n) for n, row in enumerate(next(iter(link.traces.values())).rows))
    note = "The case of a failed check, decoded as it should be: compare it with what your code gives."
    _take_opened(TraceSet("opened", "Case of a failed check", note, link.traces, titles, ""))
    state.update(pane_left=link.left, pane_right=link.right, explore_problems=notices)
    state.update(explore_start=("opened", asdict(link.start)), opened_state=link.identity)


def open_set(opened: TraceSet) -> None:
    """Take over a set that another page made; it is shown when this page is drawn next."""
    st.session_state.update(explore_begun=True, explore_problems=[])
    _take_opened(opened)


def _apply(link: Link) -> None:
    st.session_state.update(
        set=link.preset, pane_left=link.left, pane_right=link.right, explore_start=(link.preset, asdict(link.start))
    )


def _choose_set() -> TraceSet | None:
    state, titles = st.session_state, menu()
    if not titles:
        return None
    if state.get("set") not in titles:
        state["set"] = next(iter(titles))
    name = st.selectbox("Example", list(titles), format_func=titles.__getitem__, key="set", width=300, **KEEP)
    try:
        return chosen_set(name)
    except TraceError as error:
        st.session_state["explore_problems"] = [str(error)]
        return None


def _choose_pair(shown: TraceSet | None) -> tuple[tuple[str, ...], str | None]:
    """The methods of both panes, and why the latest choice is refused; the last good pair stays."""
    if shown is None:
        return (), None
    state, methods = st.session_state, list(shown.methods)
    for key, value in zip(("pane_left", "pane_right"), default_pair(methods), strict=True):
        if state.get(key) not in methods:
            state[key] = value
    if len(methods) > 1 and state["pane_left"] == state["pane_right"] and state.get("pair_set") != shown.name:
        state["pane_left"], state["pane_right"] = default_pair(methods)
    left = st.selectbox("Left method", methods, format_func=_method_words, key="pane_left", width=164, **KEEP)
    if len(methods) == 1:
        return (left,), None
    st.html('<span class="vs">vs</span>', width="content")
    right = st.selectbox("Right method", methods, format_func=_method_words, key="pane_right", width=164, **KEEP)
    if left != right:
        state.update(pair=(left, right), pair_set=shown.name)
        return (left, right), None
    pair: tuple[str, str] = state.get("pair") or default_pair(methods)
    if not set(pair) <= set(methods):
        pair = default_pair(methods)
    stays = " vs ".join(METHOD_TITLES[name] for name in pair)
    return pair, f"Both sides are {METHOD_TITLES[left]}: choose two different methods. {stays} stays on show."


def _method_words(name: str) -> str:
    return method_words(name, METHOD_TITLES[name])


def _choose_time(shown: TraceSet | None) -> str:
    if shown is None:
        return MODELLED_KEY
    words = {MODELLED_KEY: f"Modelled: {MODELLED.where}", MEASURED_KEY: f"Measured: {shown.where}"}
    kinds = [MODELLED_KEY, *([MEASURED_KEY] if shown.where else [])]
    if st.session_state.get("time") not in kinds:
        st.session_state["time"] = MODELLED_KEY
    kind: str = st.selectbox("Time", kinds, format_func=words.__getitem__, key="time", width=272, **KEEP)
    return kind


def _open_popover() -> None:
    with st.popover("Open", icon=":material/folder_open:", key="open"):
        st.file_uploader(
            "Traces (JSON) of the same prompts: any methods, and greedy as their baseline.",
            type="json",
            accept_multiple_files=True,
            key="files",
            max_upload_size=MAX_FILE_BYTES // 2**20,
            on_change=_open_files,
        )


def _open_files() -> None:
    state = st.session_state
    files = state.get("files") or []
    state["explore_problems"] = []
    if not files:
        return
    opened, state["explore_problems"] = opened_set([(file.name, file.getvalue()) for file in files])
    if opened is not None:
        _take_opened(opened)


def _take_opened(opened: TraceSet) -> None:
    left, right = default_pair(opened.methods)
    st.session_state.update(opened=opened, set="opened", pane_left=left, pane_right=right)
    st.session_state.update(explore_start=None, opened_state=None)


def _start(shown: TraceSet) -> dict[str, Any]:
    wanted, start = st.session_state.get("explore_start") or (None, None)
    return start if wanted == shown.name and start else asdict(_first_step(shown))


def _first_step(shown: TraceSet) -> Start:
    start = default_start(shown.name)
    last = max(len(trace.steps) for trace in shown.traces.values()) - 1
    return start if start.step <= last else Start(last, "commit")


def _link(shown: TraceSet, panes: tuple[str, ...]) -> dict[str, str] | None:
    if shown.name == "opened" and (identity := st.session_state.get("opened_state")):
        return {"state": identity, "left": panes[0], "right": panes[-1]}
    if shown.name in OWN:
        return None  # what is on this computer alone has no address
    return {"preset": shown.name, "left": panes[0], "right": panes[-1]}


def _empty() -> None:
    st.info("There is no example to show: open a trace, or run your own prompts.")
    link_to_live()
