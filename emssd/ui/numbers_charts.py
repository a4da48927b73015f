"""Charts of the page "Numbers": plain numbers in, Plotly figures out, each with a sentence for those who listen.

Colour is never the only channel: methods differ in dash and symbol, kinds of waste in pattern.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from emssd.config import METHOD_TITLES
from emssd.ui.charts import CLEAR, Chart
from emssd.ui.method_style import METHOD_STYLES
from emssd.ui.palette import CHROME

Numbers = Mapping[int, float]
TALL, MIDDLE, LOW = 380, 300, 230
END_GAP = 0.052
"""Least distance of two names at the lines' ends, as a share of the chart's height."""
ROOM_INSIDE = 0.09
"""Share of the longest bar that a part needs for its number."""
NEGLIGIBLE = 1e-3
"""Share of a bar below which a kind is not drawn: expectations are rounded."""
KIND_STYLES = {
    "useful": ("useful", ""),
    "prompt_pad": ("useful", "."),
    "hole": ("useful", "/"),
    "pad_query": ("waste", "\\"),
    "pad": ("waste", "\\"),
    "finished": ("useful", "x"),
}
"""(colour in CHROME, pattern) of each kind of row or slot."""


def config(name: str, picture: str) -> dict[str, Any]:
    """Plotly's settings of a chart: its only tool saves it as a picture, "png" or "svg"."""
    return {
        "displaylogo": False,
        "showSendToCloud": False,
        "modeBarButtonsToRemove": ["zoom2d", "pan2d", "select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]
        + ["autoScale2d"],
        "toImageButtonOptions": {"format": picture, "filename": name, "scale": 2 if picture == "png" else 1},
    }


def colour(name: str, dark: bool) -> str:
    """A colour of the page."""
    return CHROME[name][int(dark)]


def figure(data: Sequence[Any], height: int, **layout: Any) -> go.Figure:
    """A figure on the page's own ground; fonts and grid come from the page's theme."""
    axes = {"fixedrange": True, "automargin": True}
    return go.Figure(
        data=data,
        layout={
            "height": height,
            "paper_bgcolor": CLEAR,
            "plot_bgcolor": CLEAR,
            "margin": {"l": 8, "r": 8, "t": 12, "b": 8},
            "hovermode": "closest",
            "dragmode": False,
            "showlegend": False,
            **layout,
            "xaxis": {**axes, **layout.get("xaxis", {})},
            "yaxis": {**axes, **layout.get("yaxis", {})},
        },
    )


CAPTION = 20
"""Pixels of a line below a chart."""


def captioned(chart: Chart, words: str, dark: bool = False) -> Chart:
    """The chart with a line of words below it, so that they are in a saved picture, too."""
    layout = chart.figure.layout
    chart.figure.update_layout(
        height=layout.height + CAPTION,
        margin={"b": (layout.margin.b or 0) + CAPTION},
        title={"text": f'<span style="font-weight:400">{html.escape(words)}</span>'}
        | {"font": {"size": 12, "color": colour("muted", dark)}}
        | {"x": 1, "xref": "container", "xanchor": "right", "y": 0, "yref": "container", "yanchor": "bottom"}
        | {"pad": {"r": 8, "b": 4}},
    )
    return Chart(chart.figure, f"{chart.alt} Of {words}.")


def speed_ups(
    lines: Mapping[str, Numbers],
    points: Mapping[str, Numbers],
    points_apply: bool,
    batches: Sequence[int],
    below: str,
    dark: bool = False,
) -> Chart:
    """Speed-up over greedy by batch size.

    Args:
        lines: modelled speed-up by method and batch size.
        points: the paper's, empty where there is nothing to show.
        points_apply: False where the paper measured something else than what is modelled: its points are faint.
        batches: batch sizes with a tick and a label.
        below: the sentence in the area where a method is slower than greedy.
    """
    labelled = {name: points[name] if points_apply and name in points else line for name, line in lines.items()}
    highest = max(value for each in (*lines.values(), *points.values()) for value in each.values())
    top = max(2.0, math.ceil(highest * 2 + 0.3) / 2)
    data = [_line(name, line, dark) for name, line in lines.items()]
    data += [_points(name, points[name], points_apply, dark) for name in lines if name in points]
    last = max(batches)
    drawn = figure(
        data,
        TALL,
        xaxis={
            "range": [0, last * (1.13 if len(lines) < 3 else 1.24)],
            "tickvals": list(batches),
            "showgrid": False,
            "zeroline": False,
            "title": {"text": "batch size", "standoff": 4},
        },
        yaxis={"range": [0, top], "tickformat": "~g", "ticksuffix": "×", "zeroline": False, "dtick": max(1, top // 6)},
        shapes=_ground(last, colour("waste", dark), colour("ink", dark)),
        annotations=[
            *_labels(labelled, lines, batches, (TALL - 58) / top, dark),
            *_end_names(lines, last, top, dark),
            _below(below, last, dark),
        ],
    )
    said = "; ".join(f"{METHOD_TITLES[name]} {_said(line, batches)}" for name, line in lines.items())
    paper = "; ".join(f"{METHOD_TITLES[name]} {_said(points[name], batches)}" for name in lines if name in points)
    told = f"Modelled speed-up over greedy by batch size. {said}."
    return Chart(drawn, told + (f" Paper: {paper}." if paper else "") + (f" {below}." if below else ""))


def _said(values: Numbers, batches: Sequence[int]) -> str:
    return ", ".join(f"{values[batch]:.2f} at {batch}" for batch in batches if batch in values)


def _line(name: str, line: Numbers, dark: bool) -> go.Scatter:
    style = METHOD_STYLES[name]
    return go.Scatter(
        x=list(line),
        y=list(line.values()),
        mode="lines",
        name=METHOD_TITLES[name],
        line={
            "color": style.colour[int(dark)],
            "dash": style.dash,
            "width": 2.5 if style.dash == "solid" else 2,
            "shape": "spline",
            "smoothing": 0.6,
        },
        hovertemplate=f"{METHOD_TITLES[name]}, model: batch %{{x}}, %{{y:.2f}}×<extra></extra>",
    )


def _points(name: str, points: Numbers, apply: bool, dark: bool) -> go.Scatter:
    style = METHOD_STYLES[name]
    tint = style.colour[int(dark)] if apply else colour("faint", dark)
    return go.Scatter(
        x=list(points),
        y=list(points.values()),
        mode="markers",
        name=f"{METHOD_TITLES[name]}, paper",
        opacity=1 if apply else 0.45,
        marker={
            "symbol": style.symbol,
            "size": 11,
            "color": tint,
            "line": {"width": 2 if style.symbol.endswith("open") else 0, "color": tint},
        },
        hovertemplate=f"{METHOD_TITLES[name]}, paper: batch %{{x}}, %{{y:.2f}}×<extra></extra>",
    )


def _ground(last: int, waste: str, ink: str) -> list[dict[str, Any]]:
    """The area where not speculating is faster, and greedy's own line."""
    area = {
        "type": "rect",
        "x0": 0,
        "x1": last,
        "y0": 0,
        "y1": 1,
        "fillcolor": waste,
        "opacity": 0.06,
        "line": {"width": 0},
    }
    line = {
        "type": "line",
        "x0": 0,
        "x1": last,
        "y0": 1,
        "y1": 1,
        "line": {"color": ink, "width": 1.5, "dash": "5px,4px"},
    }
    return [{**area, "layer": "below"}, line]


def text(words: str, x: float, y: Any, tint: str, **more: Any) -> dict[str, Any]:
    """An annotation."""
    return {"text": words, "x": x, "y": y, "showarrow": False, "font": {"color": tint, "size": 12.5}, **more}


def _labels(
    labelled: Mapping[str, Numbers], lines: Mapping[str, Numbers], batches: Sequence[int], unit: float, dark: bool
) -> list[dict[str, Any]]:
    """Values outside the pair of lines: EMS-SD's above, vanilla's below, beside them where they fall steeply.

    Args:
        labelled: the values; a label keeps clear of the line, too, where that is not the same.
        unit: pixels of 1 on the axis, roughly.
    """
    notes = []
    upper, lower = labelled.get("ems-sd", {}), labelled.get("vanilla", {})
    for place, batch in enumerate(batches):
        high, low = upper.get(batch), lower.get(batch)
        both = high is not None and low is not None and abs(high - low) < 0.005
        steep = place < 2
        shift: dict[str, Any]
        if high is not None:
            said = f"<b>{high:.2f}</b>{' both' if both else ''}"
            clear = 16 + max(0.0, lines["ems-sd"][batch] - high) * unit
            shift = {"xanchor": "left", "xshift": 12, "yshift": 7} if steep else {"yshift": clear}
            notes.append(text(said, batch, high, colour("brand", dark), **shift))
        if low is not None and not both:
            clear = 16 + max(0.0, low - lines["vanilla"][batch]) * unit
            shift = {"xanchor": "right", "xshift": -10, "yshift": -7} if steep else {"yshift": -clear}
            notes.append(text(f"{low:.2f}", batch, low, colour("vanilla", dark), **shift))
    return notes


def _end_names(lines: Mapping[str, Numbers], last: int, top: float, dark: bool) -> list[dict[str, Any]]:
    """The methods' names behind their lines, pushed apart where they would lie on each other."""
    wanted = [(line[last], METHOD_TITLES[name], METHOD_STYLES[name].colour[int(dark)]) for name, line in lines.items()]
    wanted.append((1.0, "greedy = 1", colour("ink", dark)))
    wanted.sort(key=lambda each: each[0])
    places: list[float] = []
    for value, _, _ in wanted:
        places.append(max(value, places[-1] + END_GAP * top) if places else value)
    if len(places) > 1:  # the whole group moves down by half of what its top was pushed up
        pushed = [place - value for place, (value, _, _) in zip(places, wanted, strict=True)]
        places = [place - max(pushed) / 2 for place in places]
    return [
        text(f"<b>{title}</b>" if title != "greedy = 1" else title, last, place, tint, xanchor="left", xshift=12)
        for place, (_, title, tint) in zip(places, wanted, strict=True)
    ]


def _below(sentence: str, last: int, dark: bool) -> dict[str, Any]:
    return text(f"<b>{sentence}</b>", last * 0.02, 0.5, colour("differ", dark), xanchor="left")


def kinds(
    amounts: Mapping[str, Mapping[str, float]],
    words: Mapping[str, str],
    ends: Mapping[str, str],
    unit: str,
    divide: float = 1,
    room: float = 1.22,
    dark: bool = False,
) -> Chart:
    """One bar per method, its kinds one after another; the first kind is solid, the others are hatched outlines.

    Args:
        amounts: by method and kind.
        words: name of each kind that is drawn.
        ends: what stands behind each method's bar.
        unit: what the numbers are, with their scale.
        divide: the scale.
        room: how far the axis goes, in lengths of the longest bar.
    """
    totals = {name: sum(parts[kind] for kind in words) / divide for name, parts in amounts.items()}
    longest = max(totals.values()) or 1
    titles = [METHOD_TITLES[name] for name in amounts]
    data = [
        _kind(kind, word, titles, [parts[kind] / divide for parts in amounts.values()], dark)
        for kind, word in words.items()
        if any(parts[kind] > NEGLIGIBLE * sum(parts.values()) for parts in amounts.values())
    ]
    drawn = figure(
        data,
        LOW,
        barmode="stack",
        bargap=0.4,
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": -0.02, "yanchor": "top", "traceorder": "normal", "itemclick": False}
        | {"itemdoubleclick": False, "font": {"size": 12.5}},
        xaxis={"range": [0, longest * room], "visible": False},
        yaxis={"autorange": "reversed", "ticklabelstandoff": 8, "tickfont": {"size": 13}, "showgrid": False},
        annotations=[
            *(
                text(ends[name], total, METHOD_TITLES[name], colour("muted", dark), xanchor="left", xshift=8)
                for name, total in totals.items()
            ),
            *_numbers_inside(amounts, words, divide, longest, dark),
        ],
    )
    said = "; ".join(
        f"{METHOD_TITLES[name]}: "
        + ", ".join(f"{amounts[name][kind] / divide:,.1f} {word}" for kind, word in words.items())
        + f"; {ends[name]}"
        for name in amounts
    )
    return Chart(drawn, f"{unit}. {said}.")


def _kind(kind: str, word: str, titles: list[str], values: list[float], dark: bool) -> go.Bar:
    name, shape = KIND_STYLES[kind]
    tint = colour(name, dark)
    marker: dict[str, Any] = {"color": tint, "line": {"color": tint, "width": 1.2}}
    if shape:
        marker["pattern"] = {"shape": shape, "fgcolor": tint, "bgcolor": CLEAR, "solidity": 0.3, "size": 6}
    return go.Bar(
        y=titles,
        x=[value or None for value in values],  # an outline of nothing would still be a line
        name=word,
        orientation="h",
        marker=marker,
        hovertemplate=f"%{{y}}, {word}: %{{x:,.1f}}<extra></extra>",
    )


def _numbers_inside(
    amounts: Mapping[str, Mapping[str, float]], words: Mapping[str, str], divide: float, longest: float, dark: bool
) -> list[dict[str, Any]]:
    """The number that stands in a part of a bar, where it has room; on a hatch it brings its own ground."""
    notes = []
    for name, parts in amounts.items():
        start = 0.0
        for kind in words:
            value, hatched = parts[kind] / divide, bool(KIND_STYLES[kind][1])
            ground = {"bgcolor": colour("panel", dark), "borderpad": 1} if hatched else {}
            if value > ROOM_INSIDE * longest:
                tint = colour("ink" if hatched else "panel", dark)
                place = {"xanchor": "left", "xshift": 7, **ground}
                notes.append(
                    text(f"<b>{value:,.{0 if value >= 10 else 1}f}</b>", start, METHOD_TITLES[name], tint, **place)
                )
            start += value
    return notes
