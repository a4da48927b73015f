"""The page "Numbers": a cost model beside the paper's numbers, waste by kind, the roofline, measured points."""

from __future__ import annotations

import html
from functools import partial

import streamlit as st

from emssd.errors import ConfigError
from emssd.ui.frame import begin_page
from emssd.ui.notices import warn
from emssd.ui.numbers_bench import shown_results
from emssd.ui.numbers_cards import charts
from emssd.ui.numbers_controls import controls, get, put
from emssd.ui.numbers_link import link_of, read_link
from emssd.ui.numbers_settings import Settings
from emssd.ui.numbers_table import csv_of
from emssd.ui.numbers_words import headline
from emssd.ui.player_assets import read_asset


def page() -> None:
    """Draw the page once."""
    begin_page()
    st.html(f"<style>{read_asset('numbers.css')}</style>")
    try:
        _restore()
    except ConfigError as error:
        warn([str(error)])
        return
    _body()


def _restore() -> None:
    """Set the controls by the address, or as they were left; while the page stays, they keep what they say.

    The address follows the controls, so that an address that differs from the last one written was asked for: by a
    link, or by the browser's Back.
    """
    state, query = st.session_state, st.query_params.to_dict()
    returns = state.get("numbers_run") != state["script_runs"] - 1
    state["numbers_run"] = state["script_runs"]
    if "numbers" not in state or (query != state["numbers_link"] and not (returns and not query)):
        state["numbers"], state["numbers_notices"] = read_link(query)
        put(state["numbers"])
    elif returns:
        put(state["numbers"])


@st.fragment
def _body() -> None:
    """Controls and charts: what a control moves is drawn anew without the rest of the page."""
    state = st.session_state
    told = st.container(key="numbers_notices")
    with st.container(key="numbers"):
        with st.container(key="numbers_drawer", horizontal=True, vertical_alignment="center"):
            st.toggle("Settings", key="numbers_open", on_change="ignore")
            st.html(f'<p class="note">{html.escape(headline(get()))}</p>')
        with st.container(key="numbers_controls"):
            settings = controls(_save)
        if settings != state["numbers"]:
            state.update(numbers=settings, numbers_notices=[])
        with told:
            warn(state["numbers_notices"])
        with st.container(key="numbers_charts"):
            charts(settings)
    state["numbers_link"] = link_of(settings)
    if st.query_params.to_dict() != state["numbers_link"]:
        st.query_params.from_dict(state["numbers_link"])


def _save(settings: Settings) -> None:
    st.download_button(
        "CSV",
        partial(csv_of, settings, shown_results()),
        file_name="numbers.csv",
        mime="text/csv",
        icon=":material/download:",
        on_click="ignore",
        type="tertiary",
        key="numbers_csv",
        help="All numbers of this page. The camera on a chart saves it as a picture.",
    )
