"""Draw `flip.svg`: which half of EMS-SD helps more depends on how much the prompts' lengths differ.

    python assets/figures/make_numbers_figures.py [FOLDER]

Expected values at the costs fitted to the paper (`emssd.paper`); nothing is measured. The same code gives
the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

from emssd.bench_figure import GREY, INK, STYLES  # noqa: E402
from emssd.config import METHOD_TITLES  # noqa: E402
from emssd.expectation import expected_steps  # noqa: E402
from emssd.paper import PaperFit, ablation_by_spread, order_flips_at, shipped_fits  # noqa: E402

BATCH = 24
MEANS = (0.0, 450.0)
HALVES = ("packed-input", "ragged-cache")
KINDS = {
    "useful": ("useful", "#4B4ACF", ""),
    "prompt_pad": ("prompt padding", "#E3B23C", "///"),
    "hole": ("holes", "#C2410C", "xxx"),
    "pad_query": ("by padding queries", "#9CA3AF", "..."),
}
COLOURS = {"packed-input": "#A85400", "ragged-cache": "#0F766E"}


def flip_figure(fit: PaperFit) -> Any:
    """The figure: tokens/s by spread of the prompts, and what attention reads at both ends."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5, 4.9), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    _draw_speeds(left, fit)
    _draw_slots(right, fit)
    for panel in (left, right):
        panel.grid(axis="y", color="#E3E5EA", linewidth=0.8)
        panel.set_axisbelow(True)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    figure.supxlabel(f"\n{_about(fit)}", fontsize=10, color=GREY)
    return figure


def _about(fit: PaperFit) -> str:
    """What both panels are of."""
    rows = fit.acceptance
    return (
        f"OPT-6.7B on the paper’s GPU, costs fitted with the ablation rows {fit.labels}; the paper’s attention kernel "
        f"(per token, two launches);\nK = {rows.num_draft_tokens}, {rows.output_tokens} new tokens. Expected values, "
        "nothing measured."
    )


def _draw_speeds(panel: Any, fit: PaperFit) -> None:
    results = ablation_by_spread(fit, BATCH)
    spreads = [spread for spread, _ in results]
    for method in ("ems-sd", *HALVES, "vanilla"):
        marker, colour, dash, filled = STYLES[method]
        colour = COLOURS.get(method, colour)
        panel.plot(
            spreads,
            [speeds[method] for _, speeds in results],
            marker=marker,
            markersize=7,
            markerfacecolor=colour if filled else "none",
            color=colour,
            linestyle="-" if method in HALVES else dash,
            linewidth=2,
            label=METHOD_TITLES[method],
        )
    place = order_flips_at(fit, BATCH)
    if place is not None:
        panel.axvline(place, color=INK, linewidth=1, linestyle=(0, (2, 3)))
        panel.text(place + 10, 330, f"the order flips at\na deviation of {place:.0f} tokens", color=INK, va="bottom")
    panel.set_ylim(bottom=0)
    panel.set_xlabel("standard deviation of prompt lengths, tokens (mean 900)")
    panel.set_ylabel(f"modelled tokens/s, batch {BATCH}")
    panel.set_title("Speed")
    panel.legend(frameon=False, loc="lower right", ncols=2)


def _draw_slots(panel: Any, fit: PaperFit) -> None:
    labels, highest = [], 0.0
    for place, (spread, method) in enumerate((spread, method) for spread in MEANS for method in HALVES):
        acceptance = fit.acceptance.with_settings(prompt_sd=spread, prompt_law="lognormal" if spread else "equal")
        run = expected_steps(acceptance, BATCH, [method])[method]
        bottom = 0.0
        for kind, (words, colour, hatch) in KINDS.items():
            slots = run.kv_slots_scanned["per_token"][kind] * run.launches
            height = float((run.happens * slots).sum() / run.happens.sum()) / 1e3
            panel.bar(
                place + 0.4 * (place > 1),
                height,
                bottom=bottom,
                color=colour,
                hatch=hatch,
                edgecolor="white",
                label=words if place == 0 else None,
            )
            bottom += height
        labels.append(METHOD_TITLES[method].replace(" ", "\n"))
        highest = max(highest, bottom)
    panel.set_ylim(top=1.05 * highest)
    panel.set_xticks([0, 1, 2.4, 3.4], labels)
    for middle, words in ((0.5, "equal prompts"), (2.9, "deviation 450 tokens")):
        panel.text(middle, -0.25, words, ha="center", va="top", transform=panel.get_xaxis_transform(), color=GREY)
    panel.set_ylabel("slots read in a step and layer,\nboth launches, thousands")
    panel.set_title("What attention reads")
    panel.legend(frameon=False, loc="upper left")


def main() -> int:
    """Write the figure."""
    import matplotlib

    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    settings = {"svg.hashsalt": "emssd", "svg.fonttype": "path", "font.family": "DejaVu Sans", "font.size": 11}
    with matplotlib.rc_context(settings):
        figure = flip_figure(shipped_fits()["swapped"])
        title = "Packed input against ragged cache by spread of prompt lengths"
        figure.savefig(folder / "flip.svg", metadata={"Date": None, "Title": title})
    return 0


if __name__ == "__main__":
    sys.exit(main())
