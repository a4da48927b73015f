"""Roofline plot of one step: what the hardware allows, and where each method's dense layers and attention lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from emssd.ui.charts import Chart
from emssd.ui.method_style import METHOD_STYLES
from emssd.ui.numbers_charts import MIDDLE, colour, figure, text
from emssd.ui.numbers_settings import attainable

TERA = 1e12
ATTENTION = "attention"
ROOM = 1.9
"""Factor by which the axes go on beyond the outermost point."""

HEADROOM = 2.5
"""Factor by which the axis of FLOP/s goes on above the roof."""
WIDTH, HEIGHT, NAME_WIDTH, NAME_HEIGHT = 430, 235, 150, 16
"""Pixels of the plot and of a point's name, roughly."""
UNDER_ROOF = 50
"""Pixels between the flat roof and a name below it."""
Notes = list[dict[str, Any]]


@dataclass(frozen=True)
class Work:
    """A point of the plot.

    Args:
        label: what it is, as written beside it.
        method: whose sign it gets, or `ATTENTION`.
        intensity: FLOPs per byte that is read.
    """

    label: str
    method: str
    intensity: float


def roofline(works: Sequence[Work], peak: float, bandwidth: float, dark: bool = False) -> Chart:
    """TFLOP/s against arithmetic intensity, both logarithmic.

    Args:
        works: the points, by rising intensity; each lies on the roof, which is what its step can reach at best.
        peak: FLOP/s.
        bandwidth: bytes/s.
    """
    ridge = peak / bandwidth
    first = min(0.5, *(work.intensity / ROOM for work in works))
    last = max(3 * ridge, *(ROOM * work.intensity for work in works))
    ink, muted = colour("ink", dark), colour("muted", dark)
    xs = [first, ridge, last]
    ys = [attainable(x, peak, bandwidth) / TERA for x in xs]
    roof = go.Scatter(x=xs, y=ys, mode="lines", line={"color": ink, "width": 2}, hoverinfo="skip")
    points = [_point(work, attainable(work.intensity, peak, bandwidth) / TERA, dark) for work in works]
    middle = math.sqrt(first * ridge)
    slope = text(f"{bandwidth / TERA:.2g} TB/s", middle, ys[0] * middle / first, muted, yshift=18, xshift=-18)
    top = text(f"{peak / TERA:.3g} TFLOP/s", last, ys[-1], muted, xanchor="right", yshift=12)
    drawn = figure(
        [roof, *points],
        MIDDLE,
        margin={"l": 8, "r": 12, "t": 8, "b": 8},
        xaxis={**_logarithmic(first, last), "title": {"text": "FLOP per byte read", "standoff": 2}},
        yaxis={**_logarithmic(ys[0], ys[-1] * HEADROOM), "title": {"text": "TFLOP/s", "standoff": 2}},
        annotations=[_logs(each) for each in (slope, top, *_names(works, peak, bandwidth, first, last, dark))],
    )
    said = "; ".join(
        f"{work.label}: {work.intensity:.3g} FLOP per byte, at most "
        f"{attainable(work.intensity, peak, bandwidth) / TERA:.3g} TFLOP/s, "
        f"bound by {'arithmetic' if work.intensity >= ridge else 'reading'}"
        for work in works
    )
    head = f"Roofline of one step: {bandwidth / TERA:.3g} TB/s up to {ridge:.0f} FLOP per byte, then "
    return Chart(drawn, f"{head}{peak / TERA:.3g} TFLOP/s. {said}.")


def _logarithmic(low: float, high: float) -> dict[str, Any]:
    return {"type": "log", "range": [math.log10(low), math.log10(high)], "dtick": 1, "exponentformat": "none"}


def _logs(note: dict[str, Any]) -> dict[str, Any]:
    """Plotly wants the logarithms of an annotation's place."""
    return {**note, "x": math.log10(note["x"]), "y": math.log10(note["y"])}


def _point(work: Work, height: float, dark: bool) -> go.Scatter:
    if work.method == ATTENTION:
        symbol, tint = "diamond-open", colour("waste", dark)
    elif work.method == "greedy":
        symbol, tint = "triangle-up-open", colour("ink", dark)
    else:
        symbol, tint = METHOD_STYLES[work.method].symbol, METHOD_STYLES[work.method].colour[int(dark)]
    return go.Scatter(
        x=[work.intensity],
        y=[height],
        mode="markers",
        name=work.label,
        marker={"symbol": symbol, "size": 11, "color": tint, "line": {"width": 2, "color": tint}},
        hovertemplate=f"{work.label}: %{{x:.3g}} FLOP per byte, at most %{{y:.3g}} TFLOP/s<extra></extra>",
    )


def _names(works: Sequence[Work], peak: float, bandwidth: float, first: float, last: float, dark: bool) -> Notes:
    """EMS-SD's name stands above the roof, the others below it, pushed down where one would lie on another.

    Under the flat roof names end at the plot's right edge, low enough to keep clear of the slope.
    """
    decade_x = WIDTH / math.log10(last / first)
    decade_y = HEIGHT / math.log10(HEADROOM * attainable(last, peak, bandwidth) / attainable(first, peak, bandwidth))
    notes: Notes = []
    above: list[tuple[float, float]] = []
    shift: dict[str, Any]
    for work in sorted(works, key=lambda work: (-work.intensity, work.method == ATTENTION)):
        height = attainable(work.intensity, peak, bandwidth) / TERA
        place, shift = work.intensity, {"xanchor": "right", "xshift": -9, "yshift": 11}
        if work.method != "ems-sd":
            x, y = decade_x * math.log10(work.intensity), decade_y * math.log10(height)
            flat = work.intensity * bandwidth > peak
            x = decade_x * math.log10(last) - NAME_WIDTH if flat else x
            wanted = y - (UNDER_ROOF if flat else 7)
            for other_x, other_y in above:
                if abs(other_x - x) < NAME_WIDTH and wanted > other_y - NAME_HEIGHT:
                    wanted = other_y - NAME_HEIGHT
            above.append((x, wanted))
            shift = {"xanchor": "right" if flat else "left", "xshift": 0 if flat else 12, "yshift": wanted - y}
            place = last if flat else work.intensity
        notes.append(text(work.label, place, height, colour("ink", dark), **shift))
    return notes
