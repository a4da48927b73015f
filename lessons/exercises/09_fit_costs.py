"""What is it worth? Two prices from Figure 1, and which half of EMS-SD pays.

A run is priced by what it counts: seconds = steps * step_ms / 1000 + slots * slot_us / 1,000,000.

`fit_costs` gets the points of a figure, one for each batch size. `emssd.lessons.check_09.figure_1_points()` makes
Figure 1's; batch 12 reads (rounded):

    {"batch": 12,
     "greedy":  {"steps": 127.0, "rows": 1524.0, "slots": 2612047, "seconds": None},
     "vanilla": {"steps": 29.6, "rows": 2749.3, "slots": 8165234, "speed_up": 0.99},
     "ems-sd":  {"steps": 29.6, "rows": 2005.5, "slots": 3810805, "speed_up": 1.81}}

steps: decode steps of the batch; rows: tokens fed to the dense layers; slots: KV slots read, each query for itself and
in both launches; speed_up: greedy's seconds by the method's, as published; seconds: of greedy, where they are known.

`faster_ablation` gets one regime: two ablations on one kernel, at given prices.

    {"batch": 24, "prompt_mean": 900, "prompt_sd": 75, "kernel": "per_token",
     "costs": {"step_ms": 7.2, "row_us": 42.7, "slot_us": 0.248},
     "counts": {"packed-input": {"steps": ..., "rows": ..., "slots": {"per_token": ..., "varlen": ...}},
                "ragged-cache": {the same}}}
"""

from __future__ import annotations

from typing import Any

Point = dict[str, Any]


def fit_costs(points: list[Point]) -> tuple[float, float]:
    """The two prices that explain a figure best.

    Args:
        points: as above, in any number; "seconds" is None where it was not published, but never everywhere.

    Returns:
        step_ms: milliseconds of a step; slot_us: microseconds of a KV slot that is read. The speed-ups that follow
        from them should be off by as little as possible, in relative terms; and so should greedy's seconds. The check
        calls this some thirty times and has 3 s: trying a few hundred values is fine.
    """
    raise NotImplementedError


def faster_ablation(regime: dict[str, Any]) -> str:
    """Which of the two halves alone takes less time in this regime.

    Args:
        regime: as above. Here a fed row has its price, too: row_us microseconds. The kernel reads the slots that are
            counted under its name.

    Returns:
        "packed-input" or "ragged-cache".
    """
    raise NotImplementedError


if __name__ == "__main__":  # python lessons/exercises/09_fit_costs.py shows your fit beside the paper
    from emssd.lessons.check_09 import figure_1_points, report

    print(report(figure_1_points(), *fit_costs(figure_1_points())))
