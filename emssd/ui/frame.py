"""What every page begins with: its style, the count of script runs, and the end of a run that was left alone."""

from __future__ import annotations

import streamlit as st
from streamlit.navigation.page import Page as StreamlitPage

from emssd.ui.live_run import LiveRun
from emssd.ui.palette import css_variables
from emssd.ui.player_assets import read_asset

LEAVE_SECONDS = 1.0
"""How long another page waits for a left run's last step, so that it can show the run at once."""


def begin_page(keeps_run: bool = False) -> None:
    """Draw what is not seen.

    Args:
        keeps_run: whether the page watches the live run; on any other page the run stops.
    """
    state = st.session_state
    state["script_runs"] = state.get("script_runs", 0) + 1
    st.html(f"<style>:root {{ {css_variables()} }}\n{read_asset('page.css')}\n{read_asset('origins.css')}</style>")
    st.html(f'<span class="hidden" data-testid="run-count">{state["script_runs"]}</span>')
    run: LiveRun | None = state.get("run")
    if run is not None and not run.done and not keeps_run:
        run.leave()
        run.join(LEAVE_SECONDS)


def explore_page() -> StreamlitPage:
    """The page that opens first."""
    from emssd.ui import explore

    return st.Page(explore.page, title="Explore", url_path="explore", default=True)


def live_page() -> StreamlitPage:
    """The page that decodes."""
    from emssd.ui import run_live

    return st.Page(run_live.page, title="Run live", url_path="run-live")


def compare_page() -> StreamlitPage:
    """The page with charts and numbers."""
    from emssd.ui import compare

    return st.Page(compare.page, title="Compare", url_path="compare")


def numbers_page() -> StreamlitPage:
    """The page with the cost model."""
    from emssd.ui import numbers

    return st.Page(numbers.page, title="Numbers", url_path="numbers")


def lessons_page() -> StreamlitPage:
    """The page with the lessons."""
    from emssd.ui import lessons

    return st.Page(lessons.page, title="Lessons", url_path="lessons")


def link_to_explore(label: str = "Open an example") -> None:
    """A link that keeps the session."""
    st.page_link(explore_page(), label=label, icon=":material/folder_open:")


def link_to_live() -> None:
    """A link that keeps the session."""
    st.page_link(live_page(), label="Run live", icon=":material/play_arrow:")
