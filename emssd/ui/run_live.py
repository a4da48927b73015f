"""The page "Run live": decode the same prompts with greedy and two methods, then step through both caches."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from emssd.errors import EmssdError
from emssd.ui import live_view
from emssd.ui.frame import begin_page, link_to_explore
from emssd.ui.live_part import live_part, poll_seconds
from emssd.ui.live_run import GONE_SECONDS, LiveRequest, LiveRun, encode
from emssd.ui.models import fit_to_model, loaded_model
from emssd.ui.notices import warn
from emssd.ui.progress import RunProgress
from emssd.ui.results import results
from emssd.ui.setup_form import Setup, row_titles, setup_form

STOPS = (
    f"Leaving this page stops a run after its step; closing the tab stops it {GONE_SECONDS:.0f} seconds and a step "
    "later. What was decoded is kept."
)
MEMORY_RUNS = 6
"""Finished runs that a session keeps, so that the same request is not decoded again."""


def page() -> None:
    """Draw the page once."""
    begin_page(keeps_run=True)
    state = st.session_state
    if state.pop("fold_setup", False):
        state["setup_open"] = False
    bar = st.container(horizontal=True, vertical_alignment="center", key="bar")
    state.setdefault("setup_open", state.get("run") is None)
    with st.expander("Set up a run", key="setup_open", icon=":material/tune:", on_change="rerun"):
        setup = setup_form()
    problem = setup.problem()
    with bar:
        _top_bar(setup, problem, _running() is not None)
    if problem:
        warn([problem])
    if wanted := state.pop("start_asked", None):
        _start_or_recall(setup, problem, again=wanted == "again")
    warn(state.get("problems", ()))
    run: LiveRun | None = state.get("run")
    if run is None:
        _nothing_yet()
        return
    _from_memory(run)
    running = not run.done
    every = poll_seconds(run) if running else None
    st.fragment(live_part, run_every=every)(run, _view(run), running)
    if not running:
        results(run)


def _running() -> LiveRun | None:
    run: LiveRun | None = st.session_state.get("run")
    return run if run is not None and not run.done else None


def _view(run: LiveRun) -> RunProgress:
    """What was drawn of the run: kept beside it, so that a poll looks at new steps alone."""
    state = st.session_state
    if state.get("view_of") is not run:
        state.update(view_of=run, view=RunProgress(run.traces))
    view: RunProgress = state["view"]
    return view


def _top_bar(setup: Setup, problem: str | None, running: bool) -> None:
    st.html(
        '<div class="title"><h1>Run live</h1><span>Greedy and two methods decode the same prompts, one step each in '
        f"turn.<br>{live_view.escaped(setup.headline())}</span></div>"
    )
    st.button(
        "Run",
        type="primary",
        icon=":material/play_arrow:",
        on_click=_ask_for_start,
        args=("run",),
        disabled=running or problem is not None,
        help=problem or ("A run is going on: cancel it first." if running else STOPS),
        key="run_button",
    )


def _ask_for_start(how: str) -> None:
    st.session_state["start_asked"] = how
    st.session_state["problems"] = []


def _nothing_yet() -> None:
    with st.container(border=True, key="nothing", horizontal=True, vertical_alignment="center"):
        st.html(
            '<p class="empty">Nothing has been decoded yet. Press Run to decode the prompts above on this computer, or '
            "look at a recorded run.</p>"
        )
        link_to_explore()


def _from_memory(run: LiveRun) -> None:
    if st.session_state.get("recalled") is not run:
        return
    with st.container(horizontal=True, vertical_alignment="center", key="recalled_row"):
        st.caption("Shown from memory: the same settings ran before.")
        st.button("Run again", icon=":material/replay:", on_click=_ask_for_start, args=("again",), key="again_button")


def _start_or_recall(setup: Setup, problem: str | None, again: bool) -> None:
    """Begin a run, unless this session has the finished run of the very same settings."""
    if problem or _running():
        return
    state = st.session_state
    memory = _memory()
    if setup in memory and not again:
        state.update(run=memory[setup], recalled=memory[setup], fold_setup=True)
    elif not _start(setup):
        return
    else:  # what was left out has to be said again
        state.update(recalled=None, started=None if state["problems"] else (setup, state["run"]))
    st.rerun()


def _memory() -> dict[Setup, LiveRun]:
    """The finished runs, oldest first. The latest comes in once it has finished: one that is stopped replaces none."""
    state = st.session_state
    memory: dict[Setup, LiveRun] = state.setdefault("memory", {})
    setup, run = state.get("started") or (None, None)
    if setup is not None and run is not None and run.state == "finished":
        memory.pop(setup, None)
        memory[setup] = run
        state["started"] = None
    while len(memory) > MEMORY_RUNS:
        del memory[next(iter(memory))]
    return memory


def _start(setup: Setup) -> bool:
    """Load, check every prompt, begin. What is wrong is told row by row; the other rows go on."""
    state = st.session_state
    try:
        lm = loaded_model(setup.model)
        draft_lm = loaded_model(setup.draft_model) if setup.source == "draft-model" else None
        texts = fit_to_model(setup.model, [entry.prompt for entry in setup.shipped]) + [*setup.own, *setup.filed]
        token_ids, problems = encode(lm, texts)
        titles = row_titles(setup)
        state["problems"] = [f"“{titles[row]}” was left out. {problems[row]}" for row in sorted(problems)]
        good = {row: tuple(ids) for row, ids in enumerate(token_ids) if ids is not None}
        if not good:
            return False
        request = LiveRequest(
            prompts=tuple(good.values()),
            titles=tuple(titles[row] for row in good),
            methods=(setup.left, setup.right),
            num_draft_tokens=setup.num_draft_tokens,
            max_new_tokens=setup.max_new_tokens,
            source=setup.source,
            num_top_tokens=setup.num_top_tokens,
        )
        run = LiveRun(lm, request, connected=_connection(), draft_lm=draft_lm)
        state.update(run=run.start(), fold_setup=True)
    except EmssdError as error:
        state["problems"] = [str(error)]
        return False
    return True


def _connection() -> Callable[[], bool] | None:
    """Tells whether this visitor's tab is still connected; None outside a server."""
    from streamlit import runtime
    from streamlit.runtime.scriptrunner import get_script_run_ctx

    context = get_script_run_ctx()
    if context is None or not runtime.exists():
        return None
    server, session = runtime.get_instance(), context.session_id
    return lambda: server.is_active_session(session)
