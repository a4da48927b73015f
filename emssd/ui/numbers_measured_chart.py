"""The chart of a benchmark's results over the lines that the model gives for the same runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from emssd.config import METHOD_TITLES
from emssd.ui.charts import Chart
from emssd.ui.method_style import METHOD_STYLES
from emssd.ui.numbers_charts import LOW, colour, figure
from emssd.ui.numbers_measured import Measured


def measured(lines: Mapping[str, Sequence[Measured]], dark: bool = False) -> Chart:
    """Measured speed-ups with their quartiles as points, over the model's as lines.

    Args:
        lines: method -> points by rising batch size.
    """
    batches = sorted({each.batch for line in lines.values() for each in line})
    highest = max(each.high for line in lines.values() for each in line)
    data = []
    for name, line in lines.items():
        data += [*_modelled(name, line, dark), _with_quartiles(name, line, dark)]
    ink = colour("ink", dark)
    greedy = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1}
    drawn = figure(
        data,
        LOW,
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "itemclick": False},
        xaxis={"type": "log", "tickvals": batches, "title": {"text": "batch size", "standoff": 2}, "showgrid": False},
        yaxis={"range": [0, 1.1 * max(highest, 1.2)], "ticksuffix": "×", "tickformat": "~g", "zeroline": False},
        shapes=[{**greedy, "line": {"color": ink, "width": 1.5, "dash": "5px,4px"}}],
    )
    said = "; ".join(
        f"{METHOD_TITLES[name]} "
        + ", ".join(
            f"{each.median:.2f}{'' if math.isnan(each.modelled) else f' (model {each.modelled:.2f})'} at {each.batch}"
            for each in line
        )
        for name, line in lines.items()
    )
    return Chart(drawn, f"Measured speed-up over greedy by batch size. {said}.")


def _modelled(name: str, line: Sequence[Measured], dark: bool) -> list[go.Scatter]:
    style, known = METHOD_STYLES[name], [each for each in line if not math.isnan(each.modelled)]
    if not known:
        return []
    return [
        go.Scatter(
            x=[each.batch for each in known],
            y=[each.modelled for each in known],
            mode="lines",
            showlegend=False,
            line={"color": style.colour[int(dark)], "dash": style.dash, "width": 2},
            hovertemplate=f"{METHOD_TITLES[name]}, model: batch %{{x}}, %{{y:.2f}}×<extra></extra>",
        )
    ]


def _with_quartiles(name: str, line: Sequence[Measured], dark: bool) -> go.Scatter:
    style = METHOD_STYLES[name]
    tint = style.colour[int(dark)]
    return go.Scatter(
        x=[each.batch for each in line],
        y=[each.median for each in line],
        error_y={
            "type": "data",
            "array": [each.high - each.median for each in line],
            "arrayminus": [each.median - each.low for each in line],
            "color": tint,
            "thickness": 1.5,
            "width": 4,
        },
        mode="markers",
        name=METHOD_TITLES[name],
        marker={"symbol": style.symbol, "size": 9, "color": tint, "line": {"width": 1.5, "color": tint}},
        hovertemplate=f"{METHOD_TITLES[name]}, measured: batch %{{x}}, %{{y:.2f}}×<extra></extra>",
    )
