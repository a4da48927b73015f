"""The page "Compare": all methods of a set, their waste by kind, acceptance, time and memory, as charts and numbers."""

from __future__ import annotations

import html
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import streamlit as st

from emssd.config import METHOD_TITLES
from emssd.errors import TraceError
from emssd.ui import live_view
from emssd.ui.compare_numbers import table, table_csv
from emssd.ui.frame import begin_page, link_to_explore, link_to_live
from emssd.ui.library import TraceSet
from emssd.ui.notices import warn
from emssd.ui.player_data import MODELLED
from emssd.ui.sets import MEASURED_KEY, MODELLED_KEY, chosen_set, looked_at, menu

if TYPE_CHECKING:
    from emssd.ui.charts import Chart

KEEP: dict[str, Any] = {"persist_state": "session", "label_visibility": "collapsed"}
SLOTS_NOTE = (
    "Per-token kernel, each query reads its row’s slots up to its own, in every launch. Prompt pads and holes are "
    "padding of the cache; slots read by queries of pads come from padded inputs. The two are never one number."
)


def page() -> None:
    """Draw the page once."""
    begin_page()
    titles = menu()
    if not titles:
        st.info("There is nothing to compare yet: open a trace, or run your own prompts.")
        link_to_explore("Explore")
        link_to_live()
        return
    with st.container(horizontal=True, vertical_alignment="center", key="controls"):
        shown = _choose_set(titles)
    if shown is None:
        return
    st.html(f'<p class="note" data-testid="note">{html.escape(shown.note)}</p>')
    _badges(shown)
    _charts(shown)
    _numbers(shown)


def _choose_set(titles: dict[str, str]) -> TraceSet | None:
    state = st.session_state
    if state.get("compare_set") not in titles:
        state["compare_set"] = next(iter(titles))
    name, _ = latest = looked_at()
    if name in titles and latest != state.get("compare_latest"):
        state.update(compare_set=name, compare_latest=latest)
    name = st.selectbox("Example", list(titles), format_func=titles.__getitem__, key="compare_set", width=330, **KEEP)
    try:
        return chosen_set(name)
    except TraceError as error:
        warn([str(error)])
        return None


def _badges(shown: TraceSet) -> None:
    equal = shown.equalities()
    if equal:
        st.html(live_view.badges(equal))
    else:
        st.info("Without a greedy trace of the same prompts there is nothing to hold the outputs against.")


def _charts(shown: TraceSet) -> None:
    from emssd.ui import charts

    dark = st.context.theme.type == "dark"
    draw = partial(_chart, shown, dark)
    room = charts.allocated_words(shown.traces)
    held = f"Slots before the rows’ write cursors, keys and values of all layers. {room}"
    left, right = st.columns(2, gap="medium")
    with left:
        fed = "Input padding: pads of live rows, and finished rows that are still fed. It costs this step only."
        draw("waste_input", "Input rows by kind", fed, charts.waste_input)
    with right:
        draw("waste_slots", "KV slots read by kind", SLOTS_NOTE, charts.waste_slots)
    left, right = st.columns(2, gap="medium")
    with left:
        draw(
            "acceptance",
            "Acceptance",
            "Drafts kept of all drafts of a step. Layouts do not change it.",
            charts.acceptance,
        )
    with right:
        draw("gain", "Tokens per live row", "What a live row gains in a step; greedy gains one.", charts.gain)
    left, right = st.columns(2, gap="medium")
    with left:
        _time(shown, dark)
    with right:
        draw("memory", "KV cache held", held, charts.memory)


def _chart(shown: TraceSet, dark: bool, key: str, title: str, note: str, make: Callable[..., Chart]) -> None:
    with st.container(border=True, height="stretch", key=f"chart_{key}"):
        st.html(f'<div class="c-head"><b>{title}</b><p>{html.escape(note)}</p></div>')
        _plot(make(shown.traces, dark=dark), key)


def _plot(chart: Chart, key: str) -> None:
    from emssd.ui.charts import CONFIG

    st.plotly_chart(chart.figure, width="stretch", config=CONFIG, alt=chart.alt, key=f"plot_{key}")


def _time(shown: TraceSet, dark: bool) -> None:
    """Measured or modelled time, one of them at a time."""
    from emssd.ui import charts

    with st.container(border=True, height="stretch", key="chart_time"):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.html('<div class="c-head"><b>Decode time</b></div>')
            words = {MODELLED_KEY: "Modelled", MEASURED_KEY: "Measured"}
            kind = st.segmented_control(
                "Time",
                list(words),
                format_func=words.__getitem__,
                default=MODELLED_KEY,
                required=True,
                key="compare_time",
                **KEEP,
            )
        tokens = {sum(len(row.output_token_ids) for row in trace.rows) for trace in shown.traces.values()}
        same = "" if len(tokens) == 1 else " Bars are whole runs of unequal length; factors are for the same tokens."
        if kind == MEASURED_KEY:
            note = (
                f"By phase, prefill excluded, measured on {shown.where}. Not comparable with the paper’s GPU numbers. "
                "Other is recording the trace."
            )
            chart = charts.measured_time(shown.traces, shown.where, dark)
        else:
            note = f"{MODELLED.where}. {MODELLED.help}"
            chart = charts.modelled_time(shown.traces, MODELLED.where, dark)
        st.html(f'<div class="c-head"><p>{html.escape(note + same)}</p></div>')
        _plot(chart, f"time_{kind}")


def _numbers(shown: TraceSet) -> None:
    lines = table(shown.traces)
    labels = [label for label in lines[0] if label != "Method"]
    titles = [METHOD_TITLES[name] for name in shown.methods]
    columns = {
        "": labels,
        **{title: [_cell(line[label]) for label in labels] for title, line in zip(titles, lines, strict=True)},
    }
    with st.container(horizontal=True, vertical_alignment="center", key="table_bar"):
        st.html('<h2 class="section">The same numbers</h2>')
        st.download_button(
            "Save as CSV",
            partial(table_csv, shown.traces),
            file_name=f"{shown.name}-methods.csv",
            mime="text/csv",
            icon=":material/download:",
            on_click="ignore",
            key="save_table",
        )
    st.dataframe(columns, hide_index=True, height="content", alt="The numbers of all charts, one column per method")


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)
