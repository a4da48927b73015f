"""What every card of the page "Numbers" has: a title with its note, and a chart."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import streamlit as st

if TYPE_CHECKING:
    from emssd.ui.charts import Chart


def head(title: str, note: str = "") -> None:
    """The title and what is drawn."""
    st.html(f'<div class="c-head"><b>{html.escape(title)}</b><p>{html.escape(note)}</p></div>')


def plot(chart: Chart, name: str) -> None:
    """The chart; its camera saves it under its name."""
    from emssd.ui.numbers_charts import config

    settings = config(f"numbers-{name}", st.session_state.get("numbers_picture", "png"))
    st.plotly_chart(chart.figure, width="stretch", config=settings, alt=chart.alt, key=f"plot_numbers_{name}")
