"""The cards of the page "Numbers": each with a title, a chart and what it says in words."""

from __future__ import annotations

import html
from dataclasses import replace
from typing import TYPE_CHECKING

import streamlit as st

from emssd.config import METHOD_TITLES
from emssd.simulation_report import window_words
from emssd.ui.numbers_bench import measured_card
from emssd.ui.numbers_card import head, plot
from emssd.ui.numbers_cells import cells_button
from emssd.ui.numbers_controls import batch_control, picture_control
from emssd.ui.numbers_model import (
    MAIN,
    TAKEN_APART,
    Curves,
    StepParts,
    attention_intensity,
    best_drafts,
    curves,
    dense_intensity,
    factors_at,
    fit_errors,
    paper_points,
    shown_methods,
    step_parts,
)
from emssd.ui.numbers_settings import BATCHES, Settings, dtype_of
from emssd.ui.numbers_table import speed_up_table, step_table
from emssd.ui.numbers_words import (
    SLOTS_NOTES,
    TABLE_NOTE,
    WHY,
    ablation_words,
    attention_words,
    below,
    best_answer,
    falls_answer,
    fit_words,
    memory_words,
    model_title,
    points_words,
    varlen_answer,
)

if TYPE_CHECKING:
    from streamlit.delta_generator import DeltaGenerator

SLOT_WORDS = {"useful": "useful", "prompt_pad": "prompt pads", "hole": "holes", "pad_query": "queries of input pads"}
ROW_WORDS = {"useful": "useful", "pad": "pads of live rows", "finished": "finished rows"}


def charts(settings: Settings) -> None:
    """Draw all cards, what takes longest last."""
    dark = st.context.theme.type == "dark"
    found, points = curves(settings), paper_points(settings)
    with st.container(border=True, key="chart_speedups"):
        answers = _speed_ups(settings, found, points, dark)
    with st.container(horizontal=True, vertical_alignment="center", key="numbers_batch_bar"):
        st.html('<h2 class="section">A mean step of batch</h2>')
        batch_control()
        picture_control()
    parts = {name: step_parts(settings, name) for name in TAKEN_APART}
    left, right = st.columns(2, gap="small")
    with left, st.container(border=True, height="stretch", key="chart_slots"):
        _slots(settings, parts, dark)
    with right, st.container(border=True, height="stretch", key="chart_roofline"):
        _roofline(settings, parts, dark)
    left, right = st.columns(2, gap="small")
    with left, st.container(border=True, height="stretch", key="chart_rows"):
        _rows(settings, parts, dark)
    with right, st.container(border=True, height="stretch", key="chart_measured"):
        measured_card(dark)
    with st.expander("The same numbers as tables", key="numbers_tables"):
        st.html(_table(*speed_up_table(found, points)) + _table(*step_table(settings)))
    with answers:
        _answers(settings, found)


def _speed_ups(settings: Settings, found: Curves, points: dict[str, dict[int, float]], dark: bool) -> DeltaGenerator:
    """The main chart; returns where the answers go."""
    from emssd.ui import numbers_charts

    where = f"{model_title(settings.model)} with prompt lookup on {settings.machine.title}"
    head("Speed-up over greedy by batch size", f"same prompts, decode time, prefill excluded; {where}")
    lines = {name: found.lines[name] for name in shown_methods(settings)}
    apply = settings.kernel == "per_token"
    errors = fit_errors(lines, points) if points and apply else {}
    signs = '<i class="m m-ems-sd"></i><i class="m m-vanilla"></i>' if points else ""
    model = fit_words(errors) if errors else "our model"
    with st.container(key="numbers_main"):
        with st.container(key="numbers_plot"):
            st.html(
                f'<p class="n-legend"><span>{signs}{html.escape(points_words(settings))}</span>'
                f'<span><i class="n-line"></i><i class="n-line dashed"></i>{html.escape(model)}</span></p>'
            )
            sentence = below(found.slower, max(BATCHES))
            plot(numbers_charts.speed_ups(lines, points, apply, BATCHES, sentence, dark), "speed-up", settings)
        return st.container(key="numbers_answers")


def _answers(settings: Settings, found: Curves) -> None:
    pairs = [
        ("At which batch does vanilla fall below greedy on this machine?", falls_answer(found.slower)),
        ("Best draft length here?", best_answer(settings, best_drafts(settings))),
    ]
    if settings.kernel == "varlen":
        pairs.append(("What does varlen attention change?", varlen_answer(found.slower)))
    if note := memory_words(settings):
        pairs.append(("Does it fit?", note))
    body = "".join(f"<dt>{html.escape(asked)}</dt><dd>{html.escape(said)}</dd>" for asked, said in pairs)
    st.html(f'<dl class="n-answers" data-testid="answers">{body}</dl>')


def _slots(settings: Settings, parts: dict[str, StepParts], dark: bool) -> None:
    from emssd.ui import numbers_charts

    note = SLOTS_NOTES[settings.kernel]
    windows = f". {words}" if (words := window_words(settings.shape)) else ""
    head(f"What attention reads, batch {settings.batch}", f"{note}; padding by kind, never one number{windows}")
    amounts = {name: part.slots for name, part in parts.items()}
    ends = {name: f"{part.attention_ms:.3g} ms" for name, part in parts.items()}
    unit = "Thousand KV slots per step and layer"
    plot(numbers_charts.kinds(amounts, SLOT_WORDS, ends, unit, 1000, dark=dark), "slots", settings)
    st.html(f'<p class="note">{TABLE_NOTE}</p>')
    with st.container(horizontal=True, vertical_alignment="center", key="numbers_table_note"):
        with st.popover("Why they may differ", type="tertiary", key="numbers_why"):
            equal = replace(settings, spread=0)
            st.html(f'<p class="n-why">{WHY}</p>')
            st.html(f'<p class="n-why">{ablation_words(settings, factors_at(settings), factors_at(equal))}</p>')
        cells_button(settings)


def _rows(settings: Settings, parts: dict[str, StepParts], dark: bool) -> None:
    from emssd.ui import numbers_charts

    note = "rows per step, modelled; input padding costs its own step only"
    head(f"What the dense layers are fed, batch {settings.batch}", note)
    amounts = {name: part.rows for name, part in parts.items()}
    ends = {name: f"{part.step_ms:.3g} ms a step" for name, part in parts.items()}
    plot(numbers_charts.kinds(amounts, ROW_WORDS, ends, "Rows per step", room=1.4, dark=dark), "rows", settings)


def _roofline(settings: Settings, parts: dict[str, StepParts], dark: bool) -> None:
    from emssd.ui.numbers_roofline import ATTENTION, Work, roofline

    head(f"Roofline, batch {settings.batch}", "TFLOP/s against arithmetic intensity; upper bounds for one step")
    machine = settings.machine
    rows = {"greedy": float(settings.batch), "vanilla": parts["vanilla"].fed, "ems-sd": parts["ems-sd"].fed}
    each = attention_intensity(settings, "ems-sd")
    kernel = "per-token kernel" if settings.kernel == "per_token" else "varlen"
    works = [Work(f"attention, {kernel}: {each:.3g}", ATTENTION, each)]
    for name, fed in rows.items():
        title = METHOD_TITLES[name] if name == "ems-sd" else METHOD_TITLES[name].lower()
        label = f"dense, {title}: {fed:.0f} {'row' if round(fed) == 1 else 'rows'}"
        works.append(Work(label, name, dense_intensity(settings, fed)))
    works.sort(key=lambda work: work.intensity)
    plot(roofline(works, machine.flops(dtype_of(machine)), machine.bandwidth, dark), "roofline", settings)
    times = {name: (parts[name].attention_ms, parts[name].step_ms) for name in MAIN[::-1]}
    st.html(f'<p class="note">{html.escape(attention_words(times))}</p>')


def _table(heads: list[str], rows: list[list[str]]) -> str:
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in heads)
    body = "".join(
        f'<tr><th scope="row">{html.escape(row[0])}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return f'<table class="n-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
