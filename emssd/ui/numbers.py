"""The page "Numbers": a cost model beside the paper's numbers, waste by kind, the roofline, measured points."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import streamlit as st

from emssd.config import METHOD_TITLES
from emssd.hardware import HARDWARE
from emssd.ui.frame import begin_page
from emssd.ui.notices import warn
from emssd.ui.numbers_controls import batch_control, controls, get, put
from emssd.ui.numbers_link import link_of, read_link
from emssd.ui.numbers_model import (
    TAKEN_APART,
    Curves,
    StepParts,
    attention_intensity,
    best_lengths,
    curves,
    dense_intensity,
    step_parts,
)
from emssd.ui.numbers_settings import BATCHES, Settings, dtype_of
from emssd.ui.numbers_words import (
    TABLE_NOTE,
    below,
    best_answer,
    falls_answer,
    machine_title,
    model_title,
    varlen_answer,
)
from emssd.ui.player_assets import read_asset

if TYPE_CHECKING:
    from streamlit.delta_generator import DeltaGenerator

    from emssd.ui.charts import Chart

SLOT_WORDS = {
    "useful": "useful",
    "prompt_pad": "prompt pads",
    "hole": "holes",
    "pad_query": "queries of input pads",
}
ROW_WORDS = {"useful": "useful", "pad": "pads of live rows", "finished": "finished rows"}


def page() -> None:
    """Draw the page once."""
    begin_page()
    st.html(f"<style>{read_asset('numbers.css')}</style>")
    _restore()
    _body()


def _restore() -> None:
    """Set the controls by the address, or as they were left.

    The address follows the controls, so that an address that differs from the last one written was asked for: by a
    link, or by the browser's Back.
    """
    state, query = st.session_state, st.query_params.to_dict()
    returns = state.get("numbers_run") != state["script_runs"] - 1
    state["numbers_run"] = state["script_runs"]
    if "numbers" not in state or not (query == state["numbers_link"] or (returns and not query)):
        state["numbers"], state["numbers_notices"] = read_link(query)
    put(state["numbers"])


@st.fragment
def _body() -> None:
    """Controls and charts: what a control moves is drawn anew without the rest of the page."""
    state = st.session_state
    told = st.container(key="numbers_notices")
    with st.container(key="numbers"):
        with st.container(key="numbers_drawer", horizontal=True, vertical_alignment="center"):
            st.toggle("Settings", key="numbers_open", on_change="ignore")
        with st.container(key="numbers_controls"):
            settings = controls(_save)
        with st.container(key="numbers_charts"):
            settings = _charts(settings)
    if settings != state["numbers"]:
        state.update(numbers=settings, numbers_notices=[])
    with told:
        warn(state["numbers_notices"])
    state["numbers_link"] = link_of(settings)
    if st.query_params.to_dict() != state["numbers_link"]:
        st.query_params.from_dict(state["numbers_link"])


def _save() -> None:
    st.download_button(
        "CSV",
        lambda: "",
        file_name="numbers.csv",
        mime="text/csv",
        icon=":material/download:",
        on_click="ignore",
        type="tertiary",
        key="numbers_csv",
    )


def _charts(settings: Settings) -> Settings:
    """Draw the charts from the most asked for to the slowest."""
    dark = st.context.theme.type == "dark"
    found = curves(settings)
    with st.container(border=True, key="chart_speedups"):
        answers = _speed_ups(settings, found, dark)
    with st.container(horizontal=True, vertical_alignment="center", key="numbers_batch_bar"):
        st.html('<h2 class="section">A mean step, batch</h2>')
        batch_control()
    settings = get()
    parts = {name: step_parts(settings, name) for name in TAKEN_APART}
    left, right = st.columns(2, gap="small")
    with left, st.container(border=True, height="stretch", key="chart_slots"):
        _slots(settings, parts, dark)
    with right, st.container(border=True, height="stretch", key="chart_roofline"):
        _roofline(settings, parts, dark)
    left, right = st.columns(2, gap="small")
    with left, st.container(border=True, height="stretch", key="chart_rows"):
        _rows(settings, parts, dark)
    with answers:
        _answers(settings, found)
    return settings


def _head(title: str, note: str = "") -> None:
    st.html(f'<div class="c-head"><b>{html.escape(title)}</b><p>{html.escape(note)}</p></div>')


def _plot(chart: Chart, name: str) -> None:
    from emssd.ui.numbers_charts import config

    picture = st.session_state.get("numbers_picture", "png")
    st.plotly_chart(
        chart.figure,
        width="stretch",
        config=config(f"numbers-{name}", picture),
        alt=chart.alt,
        key=f"plot_numbers_{name}",
    )


def _speed_ups(settings: Settings, found: Curves, dark: bool) -> DeltaGenerator:
    """The main chart; returns where the answers go."""
    from emssd.ui import numbers_charts

    where = f"{model_title(settings.model)} with prompt lookup, {machine_title(settings)}"
    _head("Speed-up over greedy by batch size", f"same prompts, decode time, prefill excluded; {where}")
    sentence = below(found.falls, max(BATCHES))
    lines = {name: found.lines[name] for name in ("vanilla", "ems-sd")}
    with st.container(key="numbers_main"):
        with st.container(key="numbers_plot"):
            _plot(numbers_charts.speed_ups(lines, {}, True, BATCHES, sentence, dark), "speed-up")
        return st.container(key="numbers_answers")


def _answers(settings: Settings, found: Curves) -> None:
    pairs = [
        ("At which batch does vanilla fall below greedy on this GPU?", falls_answer(settings, found.falls)),
        ("Best draft length here?", best_answer(settings, best_lengths(settings))),
    ]
    if settings.kernel == "varlen":
        pairs.append(("What does varlen attention change?", varlen_answer(found.falls)))
    body = "".join(f"<dt>{html.escape(asked)}</dt><dd>{html.escape(said)}</dd>" for asked, said in pairs)
    st.html(f'<dl class="n-answers">{body}</dl>')


def _slots(settings: Settings, parts: dict[str, StepParts], dark: bool) -> None:
    from emssd.ui import numbers_charts

    _head(
        f"What attention reads, batch {settings.batch}",
        "thousand KV slots per step, modelled; padding by kind, never one number",
    )
    amounts = {name: part.slots for name, part in parts.items()}
    ends = {name: f"{part.attention_ms:.3g} ms" for name, part in parts.items()}
    _plot(numbers_charts.kinds(amounts, SLOT_WORDS, ends, "Thousand KV slots per step", 1000, dark), "slots")
    st.html(f'<p class="note">{TABLE_NOTE}</p>')


def _rows(settings: Settings, parts: dict[str, StepParts], dark: bool) -> None:
    from emssd.ui import numbers_charts

    _head(f"What the dense layers are fed, batch {settings.batch}", "rows per step, modelled; waste of this step only")
    amounts = {name: part.rows for name, part in parts.items()}
    ends = {name: f"{part.step_ms:.3g} ms a step" for name, part in parts.items()}
    _plot(numbers_charts.kinds(amounts, ROW_WORDS, ends, "Rows per step", 1, dark), "rows")


def _roofline(settings: Settings, parts: dict[str, StepParts], dark: bool) -> None:
    from emssd.ui.numbers_roofline import ATTENTION, Work, roofline

    _head(f"Roofline, batch {settings.batch}", "TFLOP/s against arithmetic intensity; upper bounds for one step")
    machine = HARDWARE[settings.hardware]
    rows = {"greedy": float(settings.batch)} | {name: sum(parts[name].rows.values()) for name in ("ems-sd", "vanilla")}
    each = attention_intensity(settings, "ems-sd")
    works = [Work(f"attention: {each:.3g} FLOP per byte", ATTENTION, each)]
    for name, fed in rows.items():
        title = METHOD_TITLES[name] if name == "ems-sd" else METHOD_TITLES[name].lower()
        works.append(Work(f"{title}, {fed:.0f} rows", name, dense_intensity(settings, fed)))
    works.sort(key=lambda work: work.intensity)
    _plot(roofline(works, machine.flops(dtype_of(machine)), machine.bandwidth, dark), "roofline")
