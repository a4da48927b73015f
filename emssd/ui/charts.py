"""Charts of a set's methods: pure functions from traces to Plotly figures, each with a sentence for those who listen.

Colour is never the only channel: methods differ in dash and symbol, kinds of waste in pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

# Plotly takes pandas as far as another visitor's thread has loaded it: this waits for all of it.
import pandas  # type: ignore[import-untyped]  # noqa: F401
import plotly.graph_objects as go

from emssd.config import METHOD_TITLES
from emssd.trace import GenerationTrace
from emssd.ui.compare_numbers import (
    INPUT_WORDS,
    SCAN_WORDS,
    allocated_mib,
    gains,
    held_mib,
    input_rows,
    kept_rates,
    measured_speed_up,
    modelled_seconds,
    modelled_speed_up,
    phase_seconds,
    slots_read,
)
from emssd.ui.method_style import METHOD_STYLES
from emssd.ui.palette import CHROME

CONFIG = {"displaylogo": False, "showSendToCloud": False, "modeBarButtonsToRemove": ["select2d", "lasso2d"]}
HEIGHT = 280
CLEAR = "rgba(0,0,0,0)"
FEW_STEPS = 12
PATTERNS = {"pad": ".", "finished": "x", "prompt_pad": ".", "hole": "/", "pad_query": "-"}
PHASE_PATTERNS = {"draft": "/", "target": "", "verify": "x", "commit": "\\", "other": "."}
Traces = Mapping[str, GenerationTrace]


@dataclass(frozen=True)
class Chart:
    """A figure, and what it says in words."""

    figure: go.Figure
    alt: str


def _colour(name: str, dark: bool) -> str:
    return CHROME[name][int(dark)]


def _titles(names: Sequence[str]) -> str:
    *first, last = (METHOD_TITLES[name] for name in names)
    return f"{', '.join(first)} and {last}" if first else last


def _figure(x_title: str, y_title: str) -> go.Figure:
    """An empty figure; fonts, text colours and grid come from the page's theme."""
    return go.Figure(
        layout={
            "height": HEIGHT,
            "paper_bgcolor": CLEAR,
            "plot_bgcolor": CLEAR,
            "margin": {"l": 8, "r": 16, "t": 36, "b": 8},
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
            "xaxis": {"title": {"text": x_title}, "automargin": True},
            "yaxis": {"title": {"text": y_title}, "automargin": True, "rangemode": "tozero"},
            "hovermode": "closest",
        }
    )


def _lines(
    traces: Traces,
    series: Callable[[GenerationTrace], Sequence[float | None]],
    first_step: int,
    y_title: str,
    dark: bool,
) -> Chart:
    """One line per method; methods with the very same numbers share one, and its name lists them."""
    figure = _figure("Step", y_title)
    groups: dict[tuple[float | None, ...], list[str]] = {}
    for name, trace in traces.items():
        values = tuple(series(trace))
        if any(value is not None for value in values):
            groups.setdefault(values, []).append(name)
    words = []
    for values, names in groups.items():
        style = METHOD_STYLES[names[-1]]
        colour = style.colour[int(dark)]
        figure.add_trace(
            go.Scatter(
                x=list(range(first_step, first_step + len(values))),
                y=list(values),
                name=_titles(names),
                mode="lines" if names[-1].startswith("greedy") else "lines+markers",
                line={"color": colour, "dash": style.dash, "width": 2},
                marker={"symbol": style.symbol, "size": 7, "color": colour, "line": {"width": 1.5, "color": colour}},
                hovertemplate="step %{x}: %{y:.2f}<extra>%{fullData.name}</extra>",
                connectgaps=False,
            )
        )
        known = [value for value in values if value is not None]
        words.append(f"{_titles(names)}: first {known[0]:.2f}, last {known[-1]:.2f}")
    figure.update_layout(showlegend=True)
    if max((len(values) for values in groups), default=0) <= FEW_STEPS:
        figure.update_xaxes(dtick=1)
    return Chart(figure, f"{y_title} in every step. {'; '.join(words) or 'Nothing to show'}.")


def acceptance(traces: Traces, dark: bool = False) -> Chart:
    """Percent of drafts kept in every step."""

    def percent(trace: GenerationTrace) -> list[float | None]:
        return [None if rate is None else 100 * rate for rate in kept_rates(trace)]

    chart = _lines(traces, percent, 1, "Drafts kept, %", dark)
    chart.figure.update_yaxes(range=[0, 104])
    return chart


def gain(traces: Traces, dark: bool = False) -> Chart:
    """Tokens that a live row gains in every step."""
    return _lines(traces, gains, 1, "Tokens per live row", dark)


def memory(traces: Traces, dark: bool = False) -> Chart:
    """MiB of the cache before the write cursors in every step, with what was allocated as the lines' names say."""
    chart = _lines(traces, held_mib, 0, "KV cache held, MiB", dark)
    return Chart(chart.figure, f"{chart.alt} {allocated_words(traces)}")


def allocated_words(traces: Traces) -> str:
    """What the caches were given, in MiB, methods of the same size together."""
    sizes: dict[str, list[str]] = {}
    for name, trace in traces.items():
        sizes.setdefault(f"{allocated_mib(trace):.1f}", []).append(name)
    return f"Allocated, MiB: {', '.join(f'{_titles(names)} {size}' for size, names in sizes.items())}."


def _part(
    traces: Traces,
    amounts: Mapping[str, Mapping[str, float]],
    kind: str,
    word: str,
    colour: str,
    shape: str,
    hover: str,
) -> go.Bar:
    """One kind's part of every method's bar: solid, or hatched where `shape` names a pattern."""
    pattern = {"shape": shape, "fgcolor": colour, "bgcolor": CLEAR, "solidity": 0.35, "size": 7}
    return go.Bar(
        y=[METHOD_TITLES[name] for name in traces],
        x=[amounts[name][kind] or None for name in traces],  # an outline of nothing would still be a line
        name=word,
        orientation="h",
        marker={
            "color": colour,
            "line": {"color": colour, "width": 1.2},
            **({"pattern": pattern} if shape else {}),
        },
        hovertemplate=f"%{{y}}, {word}: {hover}<extra></extra>",
    )


def _stack(figure: go.Figure) -> None:
    """Parts of a bar one after another, methods from top to bottom."""
    figure.update_layout(barmode="stack", bargap=0.35)
    figure.update_yaxes(autorange="reversed", rangemode="normal")


def _bars(
    traces: Traces,
    amounts: Mapping[str, Mapping[str, float]],
    words: Mapping[str, str],
    unit: str,
    dark: bool,
    hover: str,
) -> Chart:
    """One bar per method, its kinds in a row; the first kind is solid, the others are hatched outlines."""
    figure = _figure(unit, "")
    for place, (kind, word) in enumerate(words.items()):
        colour, shape = _colour("waste" if place else "useful", dark), PATTERNS.get(kind, "") if place else ""
        figure.add_trace(_part(traces, amounts, kind, word, colour, shape, f"%{{x:{hover}}}"))
    _stack(figure)
    said = [
        f"{METHOD_TITLES[name]}: " + ", ".join(f"{amounts[name][kind]:,} {word}" for kind, word in words.items())
        for name in traces
    ]
    return Chart(figure, f"{unit}. {'; '.join(said)}.")


def waste_input(traces: Traces, dark: bool = False) -> Chart:
    """Input rows fed by kind: input padding and finished rows, apart from the cache's padding."""
    amounts = {name: input_rows(trace) for name, trace in traces.items()}
    return _bars(traces, amounts, INPUT_WORDS, "Input rows fed to the dense layers", dark, ",d")


def waste_slots(traces: Traces, dark: bool = False) -> Chart:
    """KV slots read by kind: prompt pads and holes are padding of the cache, pads' queries come from the input's."""
    amounts = {name: slots_read(trace) for name, trace in traces.items()}
    return _bars(traces, amounts, SCAN_WORDS, "KV slots read per layer", dark, ",d")


def measured_time(traces: Traces, where: str, dark: bool = False) -> Chart:
    """Measured decode seconds by phase."""
    figure = _figure("Measured decode time, s", "")
    spent = {name: phase_seconds(trace) for name, trace in traces.items()}
    colour = _colour("useful", dark)
    for phase, shape in PHASE_PATTERNS.items():
        figure.add_trace(_part(traces, spent, phase, phase, colour, shape, "%{x:.3f} s"))
    _stack(figure)
    baseline = traces.get("greedy")
    totals = {name: sum(phases.values()) for name, phases in spent.items()}
    _factor_labels(figure, traces, totals, lambda trace: measured_speed_up(baseline, trace))
    said = "; ".join(f"{METHOD_TITLES[name]} {total:.2f} s" for name, total in totals.items())
    return Chart(figure, f"Measured decode time on {where}: {said}. Not comparable with the paper’s GPU numbers.")


def modelled_time(traces: Traces, where: str, dark: bool = False) -> Chart:
    """Modelled decode milliseconds."""
    figure = _figure("Modelled decode time, ms", "")
    times = {name: 1000 * modelled_seconds(trace) for name, trace in traces.items()}
    figure.add_trace(
        go.Bar(
            y=[METHOD_TITLES[name] for name in traces],
            x=list(times.values()),
            orientation="h",
            marker={"color": _colour("useful", dark)},
            hovertemplate="%{y}: %{x:.1f} ms<extra></extra>",
            showlegend=False,
        )
    )
    figure.update_layout(bargap=0.35)
    figure.update_yaxes(autorange="reversed", rangemode="normal")
    baseline = traces.get("greedy")
    _factor_labels(figure, traces, times, lambda trace: modelled_speed_up(baseline, trace))
    said = "; ".join(f"{METHOD_TITLES[name]} {value:.1f} ms" for name, value in times.items())
    return Chart(figure, f"Modelled decode time, {where}: {said}.")


def _factor_labels(
    figure: go.Figure,
    traces: Traces,
    ends: Mapping[str, float],
    factor_of: Callable[[GenerationTrace], float | None],
) -> None:
    """ "2.10× vs greedy" behind each bar."""
    labels = []
    for name, trace in traces.items():
        factor = None if name == "greedy" else factor_of(trace)
        if factor is not None:
            labels.append(
                {
                    "x": ends[name],
                    "y": METHOD_TITLES[name],
                    "text": f"{factor:.2f}× vs greedy",
                    "xanchor": "left",
                    "xshift": 6,
                    "showarrow": False,
                }
            )
    longest = max(ends.values(), default=0.0)
    figure.update_layout(annotations=labels)
    figure.update_xaxes(range=[0, 1.3 * longest or 1])
