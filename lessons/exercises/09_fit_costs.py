"""What is it worth? Two prices from Figure 1, and which half of EMS-SD pays.

A run is priced by what it counts: seconds = steps * step_ms / 1000 + slots * slot_us / 1,000,000.

`fit_costs` gets the points of a figure, one for each batch size. `emssd.lessons.price_points.figure_1_points()` makes
Figure 1's; batch 12 reads (rounded):

    {"batch": 12,
     "greedy":  {"steps": 127.0, "rows": 1524.0, "slots": 2612047, "seconds": None},
     "vanilla": {"steps": 29.6, "rows": 2749.3, "slots": 8165234, "speed_up": 0.99},
     "ems-sd":  {"steps": 29.6, "rows": 2005.5, "slots": 3810805, "speed_up": 1.81}}

steps: decode steps of the batch; rows: input rows, that is fed tokens; slots: KV slots read, each query for itself, and
twice where any row is fed more than one token (the kernel is then launched twice); speed_up: greedy's seconds by the
method's, as published; seconds: of greedy, where they are known.

`faster_ablation` gets one regime: two ablations (EMS-SD with one half left out) on one kernel, at given prices. Each
has its own number of drafts, so their steps differ, too.

    {"batch": 24, "prompt_mean": 900, "prompt_sd": 75, "drafts": {"packed-input": 7, "ragged-cache": 3},
     "kernel": "per_token",
     "costs": {"step_ms": 7.2, "row_us": 42.7, "slot_us": 0.248},
     "counts": {"packed-input": {"steps": ..., "rows": ..., "slots": {"per_token": ..., "varlen": ...}},
                "ragged-cache": {the same}}}

Here a row has a price of its own, so a step's is lower than the 13.7 ms of a fit with two prices. In the paper's fit
with four, those are 7.2 ms and 6.5 ms for the weights, behind which rows hide; here nothing hides: add all three terms.
"""

from __future__ import annotations

from typing import Any

Point = dict[str, Any]


def fit_costs(points: list[Point]) -> tuple[float, float]:
    """The two prices that explain a figure best.

    Args:
        points: as above, in any number; "seconds" is None where it was not published, but never everywhere.

    Returns:
        step_ms: milliseconds of a step.
        slot_us: microseconds of a KV slot that is read. The sum of squared log(model / published) over all speed-ups,
            both methods' at all points, should be as small as possible; then greedy's seconds should be off by as
            little as possible, in relative terms. Where the points follow exactly from two prices, each may be off by
            1 %. The check calls this some forty times and has 3 s: trying a few hundred values is fine.
    """
    raise NotImplementedError


def faster_ablation(regime: dict[str, Any]) -> str:
    """Which of the two halves alone takes less time in this regime.

    Args:
        regime: as above: step_ms in milliseconds, row_us and slot_us in microseconds. The kernel reads the slots that
            are counted under its name.

    Returns:
        "packed-input" or "ragged-cache".
    """
    raise NotImplementedError


if __name__ == "__main__":  # python lessons/exercises/09_fit_costs.py shows your fit beside the paper
    from emssd.lessons.price_points import figure_1_points, report

    print(report(figure_1_points(), *fit_costs(figure_1_points())))
