"""The figure of `bench`: speed-up over greedy by batch size, with quartiles, like the paper's Figure 1."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from emssd.bench_plan import GREEDY, TRANSFORMERS, TRANSFORMERS_LOOKUP, Entry
from emssd.bench_results import BenchResults
from emssd.config import METHOD_TITLES
from emssd.errors import ConfigError

FORMATS = ("svg", "png", "pdf")
INK, BRAND, GREY, ORANGE = "#1F2430", "#4B4ACF", "#6B7280", "#A85400"
CAPTION_SIZE, WIDTH_OF_A_CHARACTER, POINTS_PER_INCH = 6.5, 0.58, 72
STYLES: dict[str, tuple[str, str, str, bool]] = {
    "greedy-ragged": ("D", INK, ":", False),
    "vanilla": ("s", GREY, "--", False),
    "packed-input": ("<", GREY, ":", True),
    "ragged-cache": ("v", GREY, ":", True),
    "ems-sd": ("o", BRAND, "-", True),
    TRANSFORMERS: ("x", ORANGE, "", True),
    TRANSFORMERS_LOOKUP: ("+", ORANGE, "", True),
}
"""Method -> marker, colour, line, whether the marker is filled: never told apart by colour alone."""
TITLES = {**METHOD_TITLES, TRANSFORMERS: "transformers", TRANSFORMERS_LOOKUP: "transformers, its lookup"}


def check_figure(path: str) -> None:
    """Refuse a figure that could not be drawn, before any work.

    Raises:
        ConfigError: its name ends in no known format, or matplotlib is missing.
    """
    if Path(path).suffix.lower().lstrip(".") not in FORMATS:
        raise ConfigError(f"The figure {path} must end in .{', .'.join(FORMATS)}.")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise ConfigError(
            "Figures need matplotlib, which is not installed: run `make setup`, or leave out --figure and --out."
        ) from None


def draw_figure(results: BenchResults, path: Path, caption: str) -> None:
    """Write the figure: a column of panels per prompt set, a row per drafter.

    Args:
        results: what was measured.
        path: ends in one of `FORMATS`; the same results give the same bytes.
        caption: written small above the panels, on as many lines as it needs.

    Raises:
        ConfigError: the file cannot be written.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sets, drafters = results.prompt_sets, results.drafters
    settings = {"svg.hashsalt": "emssd", "font.family": "DejaVu Sans", "font.size": 9, "pdf.fonttype": 42}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(1.2 + 4.4 * len(sets), 0.9 + 3.2 * len(drafters)), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(len(drafters), len(sets), squeeze=False, sharex=True, sharey=True)
        for row, drafter in enumerate(drafters):
            for column, prompts in enumerate(sets):
                _panel(panels[row][column], results, prompts, drafter)
        for line in panels:
            line[0].set_ylabel("speed-up over greedy")
        for panel in panels[-1]:
            panel.set_xlabel("batch size")
        characters = int(figure.get_figwidth() * POINTS_PER_INCH / (CAPTION_SIZE * WIDTH_OF_A_CHARACTER))
        lines = "\n".join(textwrap.wrap(caption, characters))
        figure.suptitle(lines, fontsize=CAPTION_SIZE, color=GREY, parse_math=False)  # a label below hits the legend
        handles = {name: each for line in panels for panel in line for each, name in _legend(panel)}
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=4, frameon=False)
        try:
            figure.savefig(path, metadata=_metadata(path), dpi=200)
        except OSError as error:
            raise ConfigError(f"Cannot write {path}: {error.strerror or error}.") from error


def _legend(panel: Any) -> list[tuple[Any, str]]:
    return list(zip(*panel.get_legend_handles_labels(), strict=True))


def _metadata(path: Path) -> dict[str, Any]:
    title = "Speed-up over greedy by batch size"
    kind = path.suffix.lower()
    if kind == ".svg":
        return {"Date": None, "Title": title}
    return {"CreationDate": None, "Title": title} if kind == ".pdf" else {"Title": title}


def _panel(panel: Any, results: BenchResults, prompts: str, drafter: str) -> None:
    sizes = results.batch_sizes
    panel.axhline(1, color=INK, linewidth=1, linestyle=(0, (5, 4)), label=TITLES[GREEDY.method])
    entries = [entry for entry in results.entries(prompts, drafter) if entry != GREEDY]
    for number, entry in enumerate(entries):
        _line(panel, results, prompts, entry, 0.05 * (number - (len(entries) - 1) / 2))
    panel.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    panel.set_xlim(-0.4, len(sizes) - 0.6)
    panel.set_ylim(bottom=0)
    panel.grid(axis="y", color="#E3E5EA", linewidth=0.8)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    panel.set_title(prompts if len(results.drafters) == 1 else f"{prompts}, {drafter}", fontsize=10)


def _line(panel: Any, results: BenchResults, prompts: str, entry: Entry, shift: float) -> None:
    """A method's points. Error bars are quartiles; `shift` keeps those of several methods apart."""
    marker, colour, dash, filled = STYLES[entry.method]
    places, spreads = [], []
    for place, batch in enumerate(results.batch_sizes):
        point = results.point(prompts, batch, entry)
        if point is not None and point.speed_up is not None:
            places.append(place + shift)
            spreads.append(point.speed_up)
    if not spreads:
        return
    panel.errorbar(
        places,
        [spread.median for spread in spreads],
        yerr=[[each.median - each.low for each in spreads], [each.high - each.median for each in spreads]],
        marker=marker,
        markersize=4.5 if marker == "D" else 7,
        markeredgewidth=1.5,
        markerfacecolor=colour if filled else "none",
        color=colour,
        linestyle=dash or "none",
        linewidth=1.8 if entry.method == "ems-sd" else 1.2,
        elinewidth=1,
        capsize=2.5,
        label=TITLES[entry.method],
    )
