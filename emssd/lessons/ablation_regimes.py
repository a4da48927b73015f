"""Regimes for lesson 9: which half of the method alone is faster, by the engine's own prices of expected runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from emssd.cost_model import KERNELS, CostModel
from emssd.expectation import expected_runs
from emssd.lessons.checking import CALLED, Failure, Solution, short
from emssd.lessons.price_points import counts_of, made_rows

ABLATIONS = ("packed-input", "ragged-cache")
REGIMES = 160
CLOSE = 0.01
"""Regimes in which the two differ by less are left out."""


def check_regimes(solution: Solution) -> Counter[str]:
    """Random regimes against the engine's own prices of expected runs: how often each ablation wins."""
    wins: Counter[str] = Counter()
    for seed in range(REGIMES):
        regime, seconds = made_regime(Random(f"lesson 9 regime {seed}"))
        right = min(seconds, key=lambda name: seconds[name])
        if max(seconds.values()) < (1 + CLOSE) * min(seconds.values()):
            continue
        got = _ablation(solution, regime, right, seed)
        if got != right:
            raise Failure(
                f"faster_ablation picks the slower one: batch {regime['batch']}, prompts of {regime['prompt_mean']} ± "
                f"{regime['prompt_sd']} tokens, kernel {regime['kernel']}.",
                expected=right,
                got=got,
                seed=seed,
                why=f"{_compared(regime, seconds)}{_mistaken(solution)}",
            )
        wins[right] += 1
    return wins


def _ablation(solution: Solution, regime: dict[str, Any], right: str, seed: int) -> str:
    """The learner's choice.

    Raises:
        Failure: it is none of the two names.
    """
    got = solution.call("faster_ablation", regime, **{"seed": seed, CALLED: repr(regime)})
    if not isinstance(got, str) or got not in ABLATIONS:
        what = f"faster_ablation must return one of {', '.join(ABLATIONS)}, not {short(got, 80)}."
        raise Failure(what, expected=right, got=got, seed=seed)
    return got


def made_regime(draw: Random) -> tuple[dict[str, Any], dict[str, float]]:
    """A regime, and the modelled seconds of each ablation in it. Each has its own draft length, so its own steps."""
    rows, size, kernel = made_rows(draw), draw.choice([2, 3, 4, 6, 8, 12, 16, 24, 32]), draw.choice(KERNELS)
    costs: dict[str, Any] = {
        "step_ms": round(draw.uniform(1, 15), 2),
        "row_us": draw.choice([0.0, round(draw.uniform(10, 80), 1)]),
        "slot_us": round(draw.uniform(0.05, 0.6), 3),
    }
    drafts = dict(zip(ABLATIONS, draw.choice([(4, 4), (7, 7), (3, 7), (7, 3), (2, 7), (7, 2)]), strict=True))
    model = CostModel("regime", kernel=kernel, **costs)
    counts, seconds = {}, {}
    for name, length in drafts.items():
        run = expected_runs(rows.with_settings(num_draft_tokens=length), [size], [name])[size][name]
        plain = counts_of(run)
        varlen = round(float(np.sum(run.happens * run.step_counts().span_slots)))
        counts[name] = {**plain, "slots": {"per_token": plain["slots"], "varlen": varlen}}
        seconds[name] = float(run.seconds(model))
    lengths = {"prompt_mean": round(rows.prompt_mean), "prompt_sd": round(rows.prompt_sd)}
    regime = {"batch": size, **lengths, "drafts": drafts, "kernel": kernel, "costs": costs, "counts": counts}
    return regime, seconds


def _compared(regime: dict[str, Any], seconds: dict[str, float]) -> str:
    """Steps, rows, slots and time of both, so that the mistake can be seen."""
    parts = []
    for name in ABLATIONS:
        counts, took = regime["counts"][name], f"{1e3 * seconds[name]:.1f} ms"
        rows, slots = counts["rows"], counts["slots"][regime["kernel"]]
        parts.append(f"{name} takes {counts['steps']:.1f} steps, {rows:,.0f} rows, {slots:,} slots: {took}")
    step, row, slot = (regime["costs"][name] for name in ("step_ms", "row_us", "slot_us"))
    return f"{parts[0]}; {parts[1]}, at {step:g} ms a step, {row:g} us a row and {slot:g} us a slot."


def _priced(
    step: float = 1e3, row: float = 1.0, slot: float = 1.0, kernel: str | None = None
) -> Callable[[dict[str, Any], str], float]:
    """Microseconds of an ablation in a regime when its prices are multiplied by these."""

    def microseconds(regime: dict[str, Any], name: str) -> float:
        counts, costs = regime["counts"][name], regime["costs"]
        slots = counts["slots"][kernel or regime["kernel"]]
        total = step * costs["step_ms"] * counts["steps"] + row * costs["row_us"] * counts["rows"]
        return float(total + slot * costs["slot_us"] * slots)

    return microseconds


MISTAKES = {
    "step_ms taken for microseconds": _priced(step=1.0),
    "the steps left out": _priced(step=0.0),
    "the rows left out": _priced(row=0.0),
    "row_us taken for milliseconds": _priced(row=1e3),
    "the slots left out": _priced(slot=0.0),
    "slot_us taken for milliseconds": _priced(slot=1e3),
    "the slots of the kernel per_token, whatever the regime's": _priced(kernel="per_token"),
    "the slots of the kernel varlen, whatever the regime's": _priced(kernel="varlen"),
}
"""Prices that learners take by mistake, by what they say to it."""


def _mistaken(solution: Solution) -> str:
    """The mistake that gives the learner's answer in every regime, if one does."""
    left = dict(MISTAKES)
    for seed in range(REGIMES):
        regime, seconds = made_regime(Random(f"lesson 9 regime {seed}"))
        try:
            got = _ablation(solution, regime, min(seconds, key=lambda name: seconds[name]), seed)
        except Failure:
            return ""
        other = next(name for name in ABLATIONS if name != got)
        left = {what: price for what, price in left.items() if price(regime, got) <= price(regime, other) * (1 + 1e-9)}
        if not left:
            return ""
    return f" In all regimes you answer as with {' or '.join(left)}."
