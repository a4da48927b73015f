"""A run without the player: badges, texts and totals, for sets that the step view would be too large for."""

from __future__ import annotations

import streamlit as st

from emssd.ui import live_view
from emssd.ui.library import TraceSet
from emssd.ui.progress import RunProgress

MAX_ROWS = 16


def summary(shown: TraceSet, panes: tuple[str, ...]) -> None:
    """Draw texts and totals of a set's methods; the texts of the two that are compared."""
    view = RunProgress(shown.traces)
    view.advance({name: len(trace.steps) for name, trace in shown.traces.items()})
    equal = view.equalities()
    st.html(live_view.badges({name: equal[name] for name in panes if name in equal}))
    compared = {name: view.methods[name] for name in panes}
    with st.container(horizontal=True, key="board", gap=None):
        with st.container(key="texts", gap=None):
            st.html(live_view.heads(compared))
            for row, title in list(enumerate(shown.titles))[:MAX_ROWS]:
                st.html(live_view.text_row(compared, row, title, False))
            if len(shown.titles) > MAX_ROWS:
                st.caption(f"Texts of the first {MAX_ROWS} of {len(shown.titles)} rows. Totals are those of all rows.")
            st.html(live_view.origin_legend())
        with st.container(key="cards", gap=None):
            st.html(live_view.work_card(view.methods))
