"""`simulate --paper`: the paper's numbers with the model's beside them, as text and as JSON, and the exit code."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from emssd.config import METHOD_TITLES
from emssd.paper import (
    BATCH_SIZES,
    BOUNDS,
    LIMIT,
    METHODS,
    SEED,
    PaperFit,
    PaperPoint,
    ablation_by_spread,
    check_labels,
    mean_errors,
    order_flips_at,
    predict,
    shipped_fits,
    speeds_at,
    table_speed_ups,
    varlen_speed_ups,
)
from emssd.result_files import STDOUT, write_text
from emssd.streaming import progress_bar

DONE, FAILED = 0, 1
SLACK = 0.005
"""How much larger than recorded the error of the printed assignment may be: another seed draws other rows."""
LABEL, CELL = 26, 10
FLAG = "*"
COUNTED_NOTE = "Tokens beyond a row's limit, which the authors' code counts with a ragged cache, are left out here."
ABLATION_SPREADS = (0.0, 75.0, 150.0, 300.0, 450.0)


def paper_command(args: argparse.Namespace) -> int:
    """Print or save the reproduction; 1 if it is worse than it may be.

    Raises:
        ConfigError: unknown labels, or a bad seed.
    """
    labels = args.labels or "swapped"
    check_labels(labels)
    fit, seed = shipped_fits()[labels], SEED if args.seed is None else args.seed
    bar = progress_bar(len(BATCH_SIZES), args.quiet, unit="batch size")
    try:
        for size in BATCH_SIZES:
            speeds_at(size, fit.acceptance, fit.cost_model, seed)  # kept for what follows
            bar.update(1)
    finally:
        bar.close()
    points = predict(labels, seed)
    errors = mean_errors(points)
    limits = error_limits(fit)
    if args.json:
        write_text(args.json, json.dumps(paper_data(fit, points, seed), allow_nan=False))
    if args.json != STDOUT:
        print("\n".join(paper_lines(fit, points, seed)))
    return FAILED if any(errors[name] > limits[name] for name in limits) else DONE


def error_limits(fit: PaperFit) -> dict[str, float]:
    """Largest mean errors that pass: 4 % where labels are swapped; as printed, what was recorded and a little."""
    if fit.labels == "swapped":
        return {"tps": LIMIT, "speedup": LIMIT}
    return {name: error + SLACK for name, error in fit.errors.items()}


def paper_data(fit: PaperFit, points: Sequence[PaperPoint], seed: int) -> dict[str, Any]:
    """The reproduction as plain data."""
    return {
        "points": [{**point.to_dict(), "flagged": point.batch == 1} for point in points],
        "parameters": fit.parameters,
        "bounds": {name: list(ends) for name, ends in BOUNDS.items()},
        "labels": fit.labels,
        "seed": seed,
        "mean_absolute_errors": mean_errors(list(points)),
        "limits": error_limits(fit),
        "varlen_counts": COUNTED_NOTE,
        "varlen": [
            {"batch": batch, "method": method, "quantity": "speedup", "model": value}
            for (batch, method), value in varlen_speed_ups(fit, seed).items()
        ],
        "ablation": [{"prompt_sd": spread, "tps": speeds} for spread, speeds in ablation_by_spread(fit)],
    }


def paper_lines(fit: PaperFit, points: Sequence[PaperPoint], seed: int) -> list[str]:
    """The reproduction as lines of text."""
    speeds = [point for point in points if point.quantity == "tps"]
    return [
        "The paper's numbers (OPT-6.7B, looked-up drafts, up to 128 new tokens) and a model fitted to them.",
        *_about_labels(fit.labels),
        "",
        *_about_parameters(fit, seed),
        "",
        _line("Tokens/s, Table 2", [f"batch {size}{FLAG if size == 1 else ''}" for size in BATCH_SIZES]),
        *_blocks(speeds),
        "",
        "Speed-up over greedy: quotients of Table 2; batches 12 and 20 from Figure 1",
        *_blocks(table_speed_ups(list(points))),
        "",
        *_about_errors(fit, points),
        "",
        *_varlen_lines(fit, seed),
        "",
        *_ablation_lines(fit),
    ]


def _about_labels(labels: str) -> list[str]:
    if labels == "printed":
        return ["Labels: as printed in Table 2. Its caption says the opposite; see --labels swapped."]
    return [
        "Labels: the two ablation rows of Table 2 are swapped, as its caption says; see --labels printed. Which of the",
        "two is right cannot be decided from public material.",
    ]


def _about_parameters(fit: PaperFit, seed: int) -> list[str]:
    numbers, costs = fit.parameters, fit.cost_model
    ranges = ", ".join(f"{name} {low:g}..{high:g}" for name, (low, high) in BOUNDS.items())
    return [
        f"Costs: a step {costs.step_ms:g} ms + the longer of {costs.weights_ms:g} ms (weights) and {costs.row_us:g} µs "
        f"a row fed,",
        f"+ {costs.slot_us:g} µs for each KV slot, query and launch (0.5 MiB: {2**19 / costs.slot_us / 1e6:.2f} TB/s).",
        f"Rows: drafts (K = {numbers['num_draft_tokens']}) in {100 * numbers['hit_rate']:.1f} % of steps, the next one "
        f"right with {100 * numbers['token_rate']:.1f} %, spread {numbers['spread']:g};",
        f"prompts {numbers['prompt_law']}, {numbers['prompt_mean']:g} ± {numbers['prompt_sd']:g} tokens, at most "
        f"{numbers['prompt_max']} (assumed, not fitted). Seed {seed}.",
        f"Bounds of what one GPU can do: {ranges}.",
    ]


def _blocks(points: Sequence[PaperPoint]) -> list[str]:
    """Three lines for each method: paper, model, error."""
    lines = []
    for method in METHODS:
        row = {point.batch: point for point in points if point.method == method}
        if row:
            cells = [row.get(size) for size in BATCH_SIZES]
            lines += [
                _line(
                    f"  {METHOD_TITLES[method]:<18} paper",
                    [f"{point.published:.2f}" if point else "" for point in cells],
                ),
                _line(f"{'':<20} model", [f"{point.model:.2f}" if point else "" for point in cells]),
                _line(f"{'':<20} error", [f"{100 * point.error:+.1f} %" if point else "" for point in cells]),
            ]
    return lines


def _line(label: str, cells: Sequence[str]) -> str:
    return (f"{label:<{LABEL}}" + "".join(f"{cell:>{CELL}}" for cell in cells)).rstrip()


def _about_errors(fit: PaperFit, points: Sequence[PaperPoint]) -> list[str]:
    errors, limits = mean_errors(list(points)), error_limits(fit)
    four = [abs(point.error) for point in points if point.quantity == "speedup"]
    every = [abs(point.error) for point in table_speed_ups(list(points))]
    passed = all(errors[name] <= limits[name] for name in limits)
    most = f"tokens/s {100 * limits['tps']:.1f} %, speed-ups {100 * limits['speedup']:.1f} %"
    if fit.labels == "swapped":
        verdict = f"Allowed: {most}: " + ("reproduced." if passed else "NOT reproduced.")
    else:
        verdict = (
            f"With these labels {100 * LIMIT:g} % was not reached inside the bounds. Allowed is what the fit reached, "
            f"half a point more: {most}: " + ("no worse." if passed else "WORSE.")
        )
    return [
        f"Mean absolute error: tokens/s {100 * errors['tps']:.1f} % of {sum(p.quantity == 'tps' for p in points)} "
        f"numbers; speed-ups {100 * sum(four) / len(four):.1f} % of the {len(four)} in Figure 1 alone, "
        f"{100 * sum(every) / len(every):.1f} % of all {len(every)}.",
        "These are drawn batches, measured as the authors do; the page Numbers has expected values, rounded sliders "
        "and the points it shows.",
        verdict,
        f"{FLAG} Batch 1 is flagged: the paper's greedy step grows from 12.6 to 14.5 ms between batch 1 and 2, which "
        "no cost per slot explains. It counts in the errors.",
    ]


def _varlen_lines(fit: PaperFit, seed: int) -> list[str]:
    factors = varlen_speed_ups(fit, seed)
    lowest = min(factors[size, "vanilla"] for size in BATCH_SIZES)
    rest = "never falls" if lowest >= 1 else "still falls"
    return [
        "Prediction: the same costs and rows, but attention that reads each row's slots once (varlen). Speed-up over "
        "greedy:",
        *[
            _line(f"  {METHOD_TITLES[method]}", [f"{factors[size, method]:.2f}" for size in BATCH_SIZES])
            for method in METHODS
            if method != "greedy"
        ],
        f"Vanilla {rest} below greedy there (lowest {lowest:.2f}). {COUNTED_NOTE}",
    ]


def _ablation_lines(fit: PaperFit) -> list[str]:
    results = ablation_by_spread(fit, spreads=ABLATION_SPREADS)
    flip = order_flips_at(fit)
    where = (
        "does not change with the prompts' spread at these costs."
        if flip is None
        else f"changes at a standard deviation of about {flip:.0f} tokens: it depends on the prompts."
    )
    return [
        _line("Batch 24, prompts' sd", [f"{spread:g}" for spread, _ in results]),
        *[
            _line(f"  {METHOD_TITLES[method]}", [f"{speeds[method]:.0f}" for _, speeds in results])
            for method in ("packed-input", "ragged-cache")
        ],
        f"Expected tokens/s: the order of the two {where}",
    ]
