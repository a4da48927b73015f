"""The page "Run live": decode the same prompts with greedy and two methods, then step through both caches."""

from __future__ import annotations

import streamlit as st

from emssd.errors import EmssdError
from emssd.ui import live_view
from emssd.ui.live_part import live_part
from emssd.ui.live_run import LiveRequest, LiveRun, encode
from emssd.ui.models import fit_to_model, loaded_model
from emssd.ui.player import page_css
from emssd.ui.results import results
from emssd.ui.setup_form import Setup, row_titles, setup_form
from emssd.ui.shown import MAX_FILE_BYTES, from_files

POLL_SECONDS = 0.5
"""A round of three steps takes about as long; twice as many polls cost a browser on the same two cores too much."""


def page() -> None:
    """Draw the page once."""
    state = st.session_state
    state["script_runs"] = state.get("script_runs", 0) + 1
    if state.pop("fold_setup", False):
        state["setup_open"] = False
    st.html(page_css())
    st.html(f'<span class="hidden" data-testid="run-count">{state["script_runs"]}</span>')
    bar = st.container(horizontal=True, vertical_alignment="center", key="bar")
    with st.expander("Set up a run", expanded=True, key="setup_open", icon=":material/tune:", on_change="rerun"):
        setup = setup_form()
    problem = setup.problem()
    with bar:
        _top_bar(setup, problem, _running() is not None)
    if problem:
        st.warning(problem, icon=":material/error:")
    if state.pop("start", False) and not problem and not _running():
        _start(setup)
    for message in state.get("problems", ()):
        st.warning(message, icon=":material/error:")
    run: LiveRun | None = state.get("run")
    if run is not None:
        running = not run.done
        st.fragment(live_part, run_every=POLL_SECONDS if running else None)(run, running)
        if running:
            return
    results(run)


def _running() -> LiveRun | None:
    run: LiveRun | None = st.session_state.get("run")
    return run if run is not None and not run.done else None


def _top_bar(setup: Setup, problem: str | None, running: bool) -> None:
    st.html(
        '<div class="title"><h1>Run live</h1><span>Greedy and two methods decode the same prompts, one step each in '
        f"turn.<br>{live_view.escaped(setup.headline())}</span></div>"
    )
    with st.popover("Open a trace", icon=":material/folder_open:"):
        st.file_uploader(
            "Recorded traces (JSON) of the same prompts: one or two methods, and greedy as their baseline.",
            type="json",
            accept_multiple_files=True,
            key="files",
            max_upload_size=MAX_FILE_BYTES // 2**20,
            on_change=_open_files,
        )
    st.button(
        "Run",
        type="primary",
        icon=":material/play_arrow:",
        on_click=_ask_for_start,
        disabled=running or problem is not None,
        help=problem or ("A run is going on: cancel it first." if running else None),
        key="run_button",
    )


def _ask_for_start() -> None:
    st.session_state["start"] = True
    st.session_state["problems"] = []


def _open_files() -> None:
    state = st.session_state
    files = state.get("files") or []
    state["problems"] = []
    if not files:
        return
    opened, state["problems"] = from_files([(file.name, file.getvalue()) for file in files])
    if opened is None:
        return
    if run := _running():
        run.cancel()
    state.update(shown=opened, run=None, fold_setup=True)


def _start(setup: Setup) -> None:
    """Load, check every prompt, begin. What is wrong is told row by row; the other rows go on."""
    state = st.session_state
    try:
        lm = loaded_model(setup.model)
        texts = fit_to_model(setup.model, [entry.prompt for entry in setup.shipped]) + list(setup.own)
        token_ids, problems = encode(lm, texts)
        titles = row_titles(setup)
        state["problems"] = [f"“{titles[row]}” was left out. {problems[row]}" for row in sorted(problems)]
        good = {row: tuple(ids) for row, ids in enumerate(token_ids) if ids is not None}
        if not good:
            return
        request = LiveRequest(
            prompts=tuple(good.values()),
            titles=tuple(titles[row] for row in good),
            methods=(setup.left, setup.right),
            num_draft_tokens=setup.num_draft_tokens,
            max_new_tokens=setup.max_new_tokens,
            source=setup.source,
        )
        state.update(run=LiveRun(lm, request).start(), shown=None, fold_setup=True)
    except EmssdError as error:
        state["problems"] = [str(error)]
        return
    st.rerun()
