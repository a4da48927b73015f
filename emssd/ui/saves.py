"""Files to take away: traces, the stand-alone page, a timeline, counts. Each is made when its button is pressed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import streamlit as st

from emssd.chrome_trace import chrome_trace
from emssd.config import METHOD_TITLES
from emssd.counters_csv import counters_csv, totals_csv
from emssd.ui.html_export import standalone_html
from emssd.ui.library import TraceSet


def save_popover(shown: TraceSet, panes: tuple[str, ...], data: dict[str, Any] | None) -> None:
    """A button that opens the list of files.

    Args:
        shown: the set; all its traces can be saved.
        panes: the methods that are compared now, for the page.
        data: the player's data for them, None where the set is too large for the player.
    """
    with st.popover("Save", icon=":material/download:", key="save"):
        st.caption("Traces, one file per method: open them here again, or replay them on the command line.")
        for name, trace in shown.traces.items():
            _button(f"{METHOD_TITLES[name]} (JSON)", f"{shown.name}-{name}.json", "application/json", trace.to_json)
        st.caption("For other programs, all methods in one file:")
        timeline = partial(chrome_trace, shown.traces)
        _button("Timeline for Perfetto (Chrome trace)", f"{shown.name}-timeline.json", "application/json", timeline)
        rows = partial(counters_csv, shown.traces, shown.titles)
        _button("Counts per step and row (CSV)", f"{shown.name}-rows.csv", "text/csv", rows)
        _button("Counts per step (CSV)", f"{shown.name}-steps.csv", "text/csv", partial(totals_csv, shown.traces))
        if data is not None:
            st.caption("This view as a page that plays without a server:")
            title = f"{shown.title}: {' vs '.join(METHOD_TITLES[name] for name in panes)}"
            page = partial(standalone_html, data, title)
            _button("Stand-alone page (HTML)", f"{shown.name}-{'-vs-'.join(panes)}.html", "text/html", page)


def _button(label: str, file_name: str, mime: str, make: Callable[[], str]) -> None:
    st.download_button(
        label,
        make,
        file_name=file_name,
        mime=mime,
        icon=":material/download:",
        on_click="ignore",
        type="tertiary",
        key=f"save_{file_name}",
    )
