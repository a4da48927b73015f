"""Points of a figure for lesson 9: published, made from known prices, or such that no two prices explain them all.

A point is what `figure_1_points` gives for one batch size: counts of each method, and the speed-ups over greedy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from emssd.acceptance import Acceptance
from emssd.expectation import expected_runs
from emssd.paper import BATCH_SIZES, PUBLISHED, shipped_fits
from emssd.run_counts import RunCounts

METHODS = ("vanilla", "ems-sd")
NOISE = 0.03
RATIOS = np.exp(np.linspace(math.log(1e-5), math.log(50.0), 1500))
"""slot_us / step_ms that are tried for the best fit there is."""
ROOM, SLACK = 1.05, 0.002
"""An error may be this much larger than the largest that a fit by any measure of relative error has."""
PULL = 0.5
"""Where points disagree, a slot's price differs from the true one by up to this, in the logarithm."""
TELLING = 1.03
"""Points tell a wrong fit from a right one if its error is this many times the limit, or more."""
TRIES = 40
OTHERS = (
    "to vanilla's speed-ups alone",
    "to EMS-SD's speed-ups alone",
    "to absolute differences, where a speed-up of 4 weighs more than one of 1",
    "to the first point alone",
    "to the last point alone",
    "to the points alone whose greedy seconds are known",
)
"""What can be fitted by mistake, in words."""

Point = dict[str, Any]


def figure_1_points() -> list[Point]:
    """The eight batch sizes of the paper's Figure 1: published speed-ups, and what each method counts.

    Steps, rows and slots are expected ones of rows that behave as in the shipped fit: prompts of 900 tokens with a
    standard deviation of 450 (assumed), drafts and their acceptance fitted to the paper's tables. Greedy's seconds
    follow from Table 2, which leaves out batches 12 and 20: 128 tokens a row, the first of them free, as the authors
    count.
    """
    published = {(size, name, kind): value for size, name, kind, value in PUBLISHED["swapped"]}
    runs = expected_runs(shipped_fits()["swapped"].acceptance, BATCH_SIZES, ("greedy", *METHODS))
    points = []
    for size in BATCH_SIZES:
        point: Point = {"batch": size, **{name: counts_of(run) for name, run in runs[size].items()}}
        greedy = published.get((size, "greedy", "tps"))
        point["greedy"]["seconds"] = None if greedy is None else round(128 * size / greedy, 4)
        for name in METHODS:
            speed = published.get((size, name, "tps")) or published.get((size, "vanilla", "tps"))  # equal at batch 1
            given = published.get((size, name, "speedup"))
            point[name]["speed_up"] = round(given if given is not None else speed / greedy, 2)  # type: ignore[operator]
        points.append(point)
    return points


def counts_of(run: RunCounts) -> dict[str, Any]:
    """Steps, rows, and slots of the paper's kernel, of a whole batch."""
    counts = run.step_counts()
    slots = float(np.sum(run.happens * run.launches * counts.query_slots))
    return {
        "steps": round(float(run.steps), 2),
        "rows": round(float(np.sum(run.happens * counts.rows)), 1),
        "slots": round(slots),
    }


def report(points: Sequence[Point], step_ms: float, slot_us: float) -> str:
    """Published and modelled speed-ups, as a table."""
    lines = [f"{step_ms:.2f} ms a step, {slot_us:.4f} us a slot", "batch  vanilla: paper, model   ems-sd: paper, model"]
    for point in points:
        cells = [
            f"{point[name]['speed_up']:12.2f} {_speed_up(point, name, slot_us / step_ms):7.2f}" for name in METHODS
        ]
        lines.append(f"{point['batch']:5}  {cells[0]:>22} {cells[1]:>22}")
    return "\n".join([*lines, f"mean error {100 * speed_error(points, slot_us / step_ms):.1f} %"])


def made_points(draw: Random) -> tuple[list[Point], tuple[float, float]]:
    """Points whose speed-ups and seconds follow exactly from prices, and these prices."""
    sizes = sorted(draw.sample(range(1, 33), draw.randint(5, 9)))
    runs = expected_runs(made_rows(draw), sizes, ("greedy", *METHODS))
    points: list[Point] = [
        {"batch": size, **{name: counts_of(runs[size][name]) for name in runs[size]}} for size in sizes
    ]
    step_ms = draw.uniform(1.0, 30.0)
    last = points[-1]["vanilla"]
    slot_us = draw.uniform(0.5, 6.0) * 1e3 * step_ms * last["steps"] / last["slots"]
    for point in points:
        seconds = {name: _seconds(point[name], step_ms, slot_us) for name in ("greedy", *METHODS)}
        point["greedy"]["seconds"] = seconds["greedy"]
        for name in METHODS:
            point[name]["speed_up"] = seconds["greedy"] / seconds[name]
    for point in draw.sample(points, draw.randint(1, len(points) - 2)):
        point["greedy"]["seconds"] = None
    return points, (step_ms, slot_us)


def made_rows(draw: Random) -> Acceptance:
    """Rows of some behaviour; short outputs, so that expectations are quick."""
    mean = draw.choice([60, 150, 300, 600, 900])
    spread = draw.choice([0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.8])
    return Acceptance(
        hit_rate=draw.uniform(0.35, 0.95),
        token_rate=draw.uniform(0.6, 0.99),
        spread=draw.choice([0.0, 0.3, 0.8]),
        prompt_mean=mean,
        prompt_sd=round(spread * mean),
        prompt_law="lognormal" if spread else "equal",
        num_draft_tokens=draw.choice([2, 4, 7, 10]),
        output_tokens=draw.choice([32, 48]),
    )


def blurred(points: Sequence[Point], draw: Random) -> list[Point]:
    """The same points with noise on everything that a paper would have measured."""
    result = []
    for point in points:
        new = {name: dict(value) if isinstance(value, dict) else value for name, value in point.items()}
        for name in METHODS:
            new[name]["speed_up"] *= math.exp(draw.gauss(0, NOISE))
        if new["greedy"]["seconds"] is not None:
            new["greedy"]["seconds"] *= math.exp(draw.gauss(0, NOISE))
        result.append(new)
    return result


def pulled_apart(points: Sequence[Point], prices: tuple[float, float], draw: Random, wrong: str) -> list[Point]:
    """The same points with slots that are dearer in some of them: no two prices explain all.

    Drawn again until a fit that is `wrong`, one of `OTHERS`, is clearly worse than one of all points by relative error,
    or until `TRIES` are used up.
    """
    for _ in range(TRIES):
        result = _pulled(points, prices, draw)
        if float(root_mean_square(result, unfair_ratio(result, wrong))[0]) > TELLING * highest_error(result):
            break
    return result


def _pulled(points: Sequence[Point], prices: tuple[float, float], draw: Random) -> list[Point]:
    """One curve against the other, or large batches against small ones."""
    step_ms, slot_us = prices
    sign, by_batch = draw.choice([-1, 1]), draw.random() < 0.5
    result = blurred(points, draw)
    for number, (point, true) in enumerate(zip(result, points, strict=True)):
        for name in METHODS:
            first = 2 * number < len(points) if by_batch else name == METHODS[0]
            dearer = slot_us * math.exp((sign if first else -sign) * PULL * draw.random())
            point[name]["speed_up"] *= _seconds(true[name], step_ms, slot_us) / _seconds(true[name], step_ms, dearer)
    return result


def _seconds(counts: dict[str, Any], step_ms: float, slot_us: float) -> float:
    return float(1e-3 * step_ms * counts["steps"] + 1e-6 * slot_us * counts["slots"])


def _speed_up(point: Point, name: str, ratio: Any) -> Any:
    """Modelled speed-up for slot_us / step_ms; the scale cancels. `ratio` may be an array."""
    greedy, method = ((point[each]["steps"], 1e-3 * point[each]["slots"]) for each in ("greedy", name))
    return (greedy[0] + ratio * greedy[1]) / (method[0] + ratio * method[1])


def speed_error(points: Sequence[Point], ratio: Any) -> Any:
    """Mean absolute relative error of the speed-ups for slot_us / step_ms."""
    errors = [
        np.abs(_speed_up(point, name, ratio) / point[name]["speed_up"] - 1) for point in points for name in METHODS
    ]
    return sum(errors) / len(errors)


def misfits(points: Sequence[Point], ratio: Any, names: Sequence[str] = METHODS) -> Any:
    """[speed-ups, ratios] log(model / published)."""
    ratios = np.atleast_1d(ratio)
    pairs = [(point["greedy"], point[name]) for point in points for name in names]
    steps, slots = ([np.array([[pair[n][what]] for pair in pairs]) for n in (0, 1)] for what in ("steps", "slots"))
    published = np.array([[method["speed_up"]] for _, method in pairs])
    greedy, method = (steps[n] + 1e-3 * slots[n] * ratios for n in (0, 1))
    return np.log(greedy / (method * published))


def root_mean_square(points: Sequence[Point], ratio: Any) -> Any:
    """Root mean square of log(model / published) of all speed-ups: the error that a fit is judged by."""
    return np.sqrt(np.mean(misfits(points, ratio) ** 2, axis=0))


def fair_ratios(points: Sequence[Point]) -> list[float]:
    """The best ratio there is by the check's measure, and by others of the relative error."""
    logs = misfits(points, RATIOS)
    measures = (logs**2, np.expm1(logs) ** 2, np.expm1(-logs) ** 2, np.abs(logs), np.abs(np.expm1(logs)))
    return [_lowest(measure.sum(0)) for measure in measures]


def unfair_ratio(points: Sequence[Point], what: str) -> float:
    """The ratio that another question has for an answer; `what` was fitted, one of `OTHERS`."""
    logs = misfits(points, RATIOS)  # vanilla's and EMS-SD's of the first point, then of the next
    known = [point["greedy"]["seconds"] is not None for point in points for _ in METHODS]
    published = np.array([[point[name]["speed_up"]] for point in points for name in METHODS])
    chosen = {
        OTHERS[0]: logs[0::2],
        OTHERS[1]: logs[1::2],
        OTHERS[2]: published * np.expm1(logs),
        OTHERS[3]: logs[:2],
        OTHERS[4]: logs[-2:],
        OTHERS[5]: logs[known],
    }
    return _lowest((chosen[what] ** 2).sum(0))


def highest_error(points: Sequence[Point]) -> float:
    """The error that a fit may have."""
    return ROOM * float(np.max(root_mean_square(points, np.array(fair_ratios(points))))) + SLACK


def _lowest(errors: Any) -> float:
    return float(RATIOS[int(np.argmin(errors))])


def scale_error(points: Sequence[Point], step_ms: Any, slot_us: Any) -> Any:
    """Mean absolute relative error of greedy's seconds, where they are known."""
    known = [point["greedy"] for point in points if point["greedy"]["seconds"] is not None]
    errors = [
        np.abs((1e-3 * step_ms * each["steps"] + 1e-6 * slot_us * each["slots"]) / each["seconds"] - 1)
        for each in known
    ]
    return sum(errors) / len(errors)
