"""The player in one file: no server, no network, and a policy that runs no script but its own. Notebooks show the same.

Texts in a trace come from models and files. They are in the page twice, as JSON data and as escaped header text, and
in no place where a browser would read them as markup or script.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from emssd import __version__
from emssd.config import BASELINE, METHOD_TITLES
from emssd.errors import TraceError
from emssd.trace import GenerationTrace
from emssd.ui.comparison import other_run
from emssd.ui.library import prompt_title
from emssd.ui.palette import CHROME
from emssd.ui.player_assets import ROOT, read_asset, script, styles
from emssd.ui.player_data import MODELLED, Pane, Start, TimeSource, player_data, too_large
from emssd.ui.token_text import escaped

FRAME_HEIGHT = 860
"""CSS pixels of the player in a notebook."""

FONT = '"Source Sans 3", "Source Sans Pro", "Segoe UI", "Helvetica Neue", Arial, sans-serif'
CODE_FONT = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace'
# What Streamlit gives the player, by name and (light, dark) value.
HOST_VARIABLES = {
    "font": (FONT,) * 2,
    "code-font": (CODE_FONT,) * 2,
    "base-font-size": ("16px",) * 2,
    "base-radius": ("0.5rem",) * 2,
    "background-color": CHROME["page"],
    "secondary-background-color": CHROME["sunk"],
    "text-color": CHROME["text"],
    "border-color": CHROME["hairline"],
    "primary-color": CHROME["brand"],
    "link-color": CHROME["brand"],
}
_JSON_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def standalone_html(data: dict[str, Any], title: str) -> str:
    """A page that plays a run offline, from a file.

    Args:
        data: what `player_data` made.
        title: the page's heading.
    """
    # ASCII: half surrogate pairs and direction marks go over as escapes
    encoded = json.dumps(data, allow_nan=False, separators=(",", ":")).translate(_JSON_ESCAPES)
    code = f"\n{script('entry_page.js')}\n"
    digest = base64.b64encode(hashlib.sha256(code.encode("utf-8")).digest()).decode("ascii")
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escaped(title)}</title>
<link rel="icon" href="data:,">
<style>
{_host_styles()}
{styles()}
{read_asset("standalone.css")}</style>
</head>
<body>
<header><h1>{escaped(title)}</h1><p>{_facts(data)}</p></header>
{ROOT}
<noscript>This page plays a recorded run and needs JavaScript.</noscript>
<script type="application/json" id="emssd-data">{encoded}</script>
<script>{code}</script>
</body>
</html>
"""


def standalone_from_traces(
    traces: Mapping[str, GenerationTrace],
    panes: Sequence[str],
    titles: Sequence[str],
    title: str,
    *,
    time: TimeSource = MODELLED,
    start: Start | None = None,
) -> str:
    """The stand-alone page of some methods' traces.

    Args:
        traces: by method name, all of the same prompts; "greedy" is the baseline where it is among them.
        panes: one or two of these names, left first.
        titles: names of the rows.
        title: the page's heading.
        time: where step times come from.
        start: where the player opens.

    Raises:
        TraceError: nothing was recorded, the prompts or the models are not the same, or a run is too large to play.
    """
    chosen = [traces[name] for name in panes]
    _check_playable(chosen)
    sides = [Pane(traces[name], name, traces.get(BASELINE)) for name in panes]
    return standalone_html(player_data(sides, titles, time=time, start=start), title)


def _check_playable(traces: Sequence[GenerationTrace]) -> None:
    for trace in traces:
        if not trace.steps or not trace.rows:
            raise TraceError("The trace has no steps, so there is nothing to play.")
        if reason := too_large(trace):
            raise TraceError(f"The run is too large to play. {reason}")
        if what := other_run(traces[0], trace):
            raise TraceError(f"The traces cannot be shown side by side: one has {what} than the other.")


def row_titles(trace: GenerationTrace) -> tuple[str, ...]:
    """Short names of a trace's rows: how their prompts begin."""
    return tuple(prompt_title(row.prompt_text, number) for number, row in enumerate(trace.rows))


def method_title(method: str) -> str:
    """A method's name as people read it."""
    return METHOD_TITLES.get(method, method)


def _facts(data: dict[str, Any]) -> str:
    """The header's line: which methods, which model, where times come from, which version."""
    time = data["time"]
    methods = " and ".join(pane["title"] for pane in data["panes"])
    where = f"{'always ' if time['fixed'] else ''}{time['where']}"
    facts = (methods, data["model"], f"{time['label']}: {where}", f"emssd {__version__}")
    return " · ".join(escaped(str(fact)) for fact in facts if fact)


def _host_styles() -> str:
    light, dark = (
        " ".join(f"--st-{name}: {values[scheme]};" for name, values in HOST_VARIABLES.items()) for scheme in (0, 1)
    )
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


# --- notebooks -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SideBySide:
    """Two traces of the same prompts, shown by notebooks as one player."""

    left: GenerationTrace
    right: GenerationTrace

    def _repr_html_(self) -> str:
        return notebook_html(self.left, self.right)


def side_by_side(left: GenerationTrace, right: GenerationTrace) -> SideBySide:
    """Two traces for a notebook to show; if one of them is greedy, it is the other one's baseline.

    Raises:
        TraceError: the prompts or the models are not the same, nothing was recorded, or a run is too large to play.
    """
    _check_playable([left, right])
    return SideBySide(left, right)


def notebook_html(*traces: GenerationTrace) -> str:
    """The player of one or two traces in a frame of its own, or a short table where it cannot play them."""
    try:
        page = _notebook_page(traces)
    except Exception as error:  # a notebook's display must not stop the cell that computed the trace
        return _table(traces, error)
    # no allow-same-origin: the frame reaches neither the notebook nor its storage
    return (
        f'<iframe srcdoc="{html.escape(page, quote=True)}" title="Step player" sandbox="allow-scripts allow-downloads"'
        f' style="width: 100%; height: {FRAME_HEIGHT}px; border: 0"></iframe>'
    )


def _notebook_page(traces: Sequence[GenerationTrace]) -> str:
    _check_playable(traces)
    baseline = next((trace for trace in traces if trace.method == BASELINE), None)
    panes = [Pane(trace, trace.method, baseline) for trace in traces]
    title = " and ".join(method_title(trace.method) for trace in traces)
    return standalone_html(player_data(panes, row_titles(traces[0])), title)


def _table(traces: Sequence[GenerationTrace], error: Exception) -> str:
    """What can be said about traces without playing them."""
    reason = str(error) if isinstance(error, TraceError) else "The trace could not be drawn."
    lines = "".join(_table_line(trace) for trace in traces)
    head = "".join(f"<th>{name}</th>" for name in ("method", "model", "rows", "steps", "new tokens"))
    return f"<table><caption>{escaped(reason)}</caption><tr>{head}</tr>{lines}</table>"


def _table_line(trace: GenerationTrace) -> str:
    values: tuple[object, ...] = ("a trace that cannot be read", "", "", "", "")
    with suppress(Exception):  # somebody may have built or changed it by hand
        tokens = sum(len(row.output_token_ids) for row in trace.rows)
        values = (trace.method, trace.model.get("name", ""), len(trace.rows), len(trace.steps), tokens)
    return "<tr>" + "".join(f"<td>{escaped(str(value))}</td>" for value in values) + "</tr>"
