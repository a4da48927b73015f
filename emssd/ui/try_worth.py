"""Lesson 9's experiment: sliders for two prices, and the speed-ups that follow from them beside the paper's points."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence

import streamlit as st

from emssd.config import METHOD_TITLES
from emssd.lessons.price_curves import (
    KERNELS,
    SIZES,
    START,
    below_greedy,
    best_prices,
    figure,
    greedy_speeds,
    mean_error,
    paper_greedy_speeds,
    paper_speed_ups,
    speed_ups,
)
from emssd.lessons.price_points import METHODS, speed_error
from emssd.lessons.progress import read_progress
from emssd.ui.lessons_top import begin_at_top
from emssd.ui.numbers_words import percent
from emssd.ui.setup_form import KEEP

LESSON = 9
KERNEL_WORDS = {"per_token": "Paper’s kernel, 2 launches", "varlen": "Varlen"}
STEP, SLOT, KERNEL = "try_worth_step", "try_worth_slot", "try_worth_kernel"
HEIGHT = 350
VALUE = re.compile(r"(<b>)?\d")
"""A number that stands at a point; the table has them all."""
NO_ERROR = "no points for varlen"
FREE_ROWS = "Rows cost nothing here; on varlen they are most of what padding costs. Page Numbers prices them, too."
COUNTS = (
    "Counts: expected ones of OPT-6.7B’s fitted rows (reading “by caption”, see Idea), prompts of 900 ± 450 tokens "
    "(assumed)."
)
Lines = Mapping[str, Mapping[int, float]]
Prices = tuple[float, float]


def controls() -> Callable[[str], None]:
    """Draw switch, sliders and what they come to; returns what draws the chart."""
    state = st.session_state
    state.setdefault(STEP, START[0])
    state.setdefault(SLOT, START[1])
    kernel = st.segmented_control(
        "Attention",
        KERNELS,
        format_func=KERNEL_WORDS.__getitem__,
        default=KERNELS[0],
        required=True,
        key=KERNEL,
        **KEEP,
    )
    step = st.slider("Price of a step, ms", 1.0, 30.0, step=0.1, format="%.1f", key=STEP, **KEEP)
    slot = st.slider("Price of a KV slot that is read, µs", 0.0, 0.6, step=0.001, format="%.3f", key=SLOT, **KEEP)
    prices = (step, slot)
    lines = speed_ups(prices, kernel)
    st.html(_readings(prices, kernel, lines))
    tried = read_progress()[LESSON].tries > 0
    with st.container(horizontal=True, key="try_worth_buttons"):
        st.button("Reset", on_click=_reset, key="try_worth_reset")
        st.button("Show the fit" if tried else "Show the answer", on_click=_put_best, key="try_worth_fit")
    return lambda key: _show(prices, kernel, lines, key)


def _put(prices: Prices) -> None:
    st.session_state[STEP], st.session_state[SLOT] = prices


def _reset() -> None:
    """Prices and kernel to begin with."""
    _put(START)
    st.session_state[KERNEL] = KERNELS[0]


def _put_best() -> None:
    """The fit, as far as the sliders can show it."""
    step, slot = best_prices()
    _put((round(step, 1), round(slot, 3)))


def _readings(prices: Prices, kernel: str, lines: Lines) -> str:
    points, own = figure(), kernel == KERNELS[0]

    def published(name: str) -> str:
        below = below_greedy(paper_speed_ups()[name]) if own else ()
        return f" (paper: {below[0]})" if below else ""

    error, paper = speed_error(points, prices[1] / prices[0]), paper_greedy_speeds()
    pairs = [
        (f"Mean error of {len(METHODS) * len(points)} speed-ups", percent(error) if own else NO_ERROR),
        (f"Mean error of greedy’s {len(paper)} tokens/s", percent(mean_error(paper, greedy_speeds(prices, kernel)))),
        *((f"{METHOD_TITLES[name]} below greedy", below_words(lines[name]) + published(name)) for name in METHODS),
    ]
    body = "".join(f"<div><dt>{html.escape(asked)}</dt><dd>{html.escape(said)}</dd></div>" for asked, said in pairs)
    return f'<dl class="l-readings" data-testid="readings">{body}</dl>'


def below_words(line: Mapping[int, float]) -> str:
    """Where a method is slower than greedy: "from batch 12", "never up to 24"."""
    found, last = below_greedy(line), max(SIZES)
    if not found:
        return f"never up to {last}"
    if found == tuple(range(found[0], last + 1)):
        return f"from batch {found[0]}"
    return f"at {len(found)} of {last} sizes, first {found[0]}"


def _sentence(lines: Lines) -> str:
    """What stands in the area below 1; "" where nothing gets there."""
    said = [
        f"{METHOD_TITLES[name] if name == 'ems-sd' else METHOD_TITLES[name].lower()} {below_words(line)}"
        for name, line in lines.items()
        if below_greedy(line)
    ]
    return f"At these prices slower than not speculating: {', '.join(said)}" if said else ""


def _show(prices: Prices, kernel: str, lines: Lines, key: str) -> None:
    """The chart, and its numbers as a table."""
    from emssd.ui import numbers_charts

    own, points = kernel == KERNELS[0], paper_speed_ups()
    sizes = tuple(points[METHODS[0]])
    dark = st.context.theme.type == "dark"
    chart = numbers_charts.speed_ups(lines, points, own, sizes, _sentence(lines), dark)
    names = [each for each in chart.figure.layout.annotations if not VALUE.match(each.text)]
    chart.figure.layout.annotations = names  # values beside lines that are far from their points would mislead
    chart.figure.update_layout(height=HEIGHT)
    begin_at_top(key)
    with st.container(key="try_worth_chart"):
        pale = "" if own else ' style="filter: grayscale(1); opacity: 0.5"'
        note = "paper, Figure 1" if own else "paper, faint: measured with its own kernel"
        st.html(
            '<div class="c-head"><b>Speed-up over greedy by batch size</b><p class="l-signs">'
            f'<i class="m m-ems-sd"{pale}></i><i class="m m-vanilla"{pale}></i>{note}'
            f"<span>lines: {prices[0]:.1f} ms a step, {prices[1]:.3f} µs a slot, {KERNEL_WORDS[kernel].lower()}</span>"
            "</p></div>"
        )
        st.plotly_chart(
            chart.figure,
            width="stretch",
            config=numbers_charts.config("lesson-9", "png"),
            alt=chart.alt,
            key="try_worth_plot",
        )
        st.html(_table(sizes, lines, points, greedy_speeds(prices, kernel)))
        st.html(f'<p class="l-note">{COUNTS}{"" if own else f" {FREE_ROWS}"}</p>')


def _table(sizes: Sequence[int], lines: Lines, points: Lines, greedy: Mapping[int, float]) -> str:
    """The chart's numbers, and greedy's tokens/s: a row of the paper's and one of the model's for each."""
    rows = []
    for name in METHODS:
        for source, values in (("paper", points[name]), ("model", lines[name])):
            rows.append((f"{METHOD_TITLES[name]}, {source}", [f"{values[size]:.2f}" for size in sizes]))
    for source, values in (("paper", paper_greedy_speeds()), ("model", greedy)):
        said = [f"{values[size]:.0f}" if size in values else "–" for size in sizes]
        rows.append((f"Greedy tokens/s, {source}", said))
    head = "".join(f'<th scope="col">{size}</th>' for size in sizes)
    body = "".join(
        f'<tr><th scope="row">{html.escape(title)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for title, cells in rows
    )
    return (
        '<table class="l-numbers"><caption>As a table</caption>'
        f'<thead><tr><th scope="col">Batch</th>{head}</tr></thead><tbody>{body}</tbody></table>'
    )
