"""What every card of the page "Numbers" has: a title with its note, and a chart."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

import streamlit as st

from emssd.ui.numbers_own import is_own
from emssd.ui.numbers_settings import Settings
from emssd.ui.numbers_words import model_title

if TYPE_CHECKING:
    from emssd.ui.charts import Chart


def head(title: str, note: str = "") -> None:
    """The title and what is drawn."""
    st.html(f'<div class="c-head"><b>{html.escape(title)}</b><p>{html.escape(note)}</p></div>')


def plot(chart: Chart, name: str, settings: Settings | None = None) -> None:
    """The chart; its camera saves it under its name.

    Args:
        chart: what is drawn.
        name: of the chart.
        settings: what it is drawn for; a model or machine of one's own is named in picture and file.
    """
    from emssd.ui import numbers_charts

    caption, file = own_words(settings), f"numbers-{name}"
    if caption:
        chart = numbers_charts.captioned(chart, caption, st.context.theme.type == "dark")
        file += "-" + re.sub(r"[^A-Za-z0-9._-]+", "-", caption).strip(".-")[:60]
    config = numbers_charts.config(file, st.session_state.get("numbers_picture", "png"))
    st.plotly_chart(chart.figure, width="stretch", config=config, alt=chart.alt, key=f"plot_numbers_{name}")


def own_words(settings: Settings | None) -> str:
    """Model and machine of a picture where one of them is one's own; "" else."""
    if settings is None or not (is_own(settings.model) or is_own(settings.hardware)):
        return ""
    return f"{model_title(settings.model)} on {settings.machine.title}"
