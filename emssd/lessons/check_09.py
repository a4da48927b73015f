"""Lesson 9: two prices fitted to points, and the faster ablation of a regime; expected counts come from the engine."""

from __future__ import annotations

import math
import numbers
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from emssd.acceptance import Acceptance
from emssd.cost_model import KERNELS, CostModel
from emssd.expectation import expected_runs
from emssd.lessons.checking import Failure, Solution, short
from emssd.paper import BATCH_SIZES, PUBLISHED, shipped_fits
from emssd.run_counts import RunCounts

TITLE = "fit_costs, faster_ablation"
METHODS = ("vanilla", "ems-sd")
ABLATIONS = ("packed-input", "ragged-cache")
SEEDS = 20
REGIMES = 160
SAME = 0.01
"""How far prices may be from those that made points without noise, relative. Closer regimes are left out."""
NOISE = 0.03
RATIOS = np.exp(np.linspace(math.log(1e-5), math.log(50.0), 4000))
"""slot_us / step_ms that are tried for the best fit there is."""
ROOM, SLACK = 1.35, 0.01
"""An error may be this much larger than the best there is: other measures of error have other best fits."""

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
        point: Point = {"batch": size, **{name: _counts(run) for name, run in runs[size].items()}}
        greedy = published.get((size, "greedy", "tps"))
        point["greedy"]["seconds"] = None if greedy is None else round(128 * size / greedy, 4)
        for name in METHODS:
            speed = published.get((size, name, "tps")) or published.get((size, "vanilla", "tps"))  # equal at batch 1
            given = published.get((size, name, "speedup"))
            point[name]["speed_up"] = round(given if given is not None else speed / greedy, 2)  # type: ignore[operator]
        points.append(point)
    return points


def _counts(run: RunCounts) -> dict[str, Any]:
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


def check(solution: Solution) -> str:
    """Points made from known prices, the same with noise, Figure 1, then random regimes.

    Raises:
        Failure: the first prices or the first ablation that is not right.
    """
    for seed in range(SEEDS):
        draw = Random(f"lesson 9 {seed}")
        points, prices = made_points(draw)
        _check_exact(prices, _prices(solution, points, seed), seed)
        if seed % 2:
            _check_best(blurred(points, draw), solution, f"points with {100 * NOISE:g} % of noise", seed)
    figure = figure_1_points()
    step_ms, slot_us = _check_best(figure, solution, "Figure 1", None)
    wins = _check_regimes(solution)
    error = 100 * speed_error(figure, slot_us / step_ms)
    return (
        f"{SEEDS + SEEDS // 2} sets of made points and Figure 1, where your {step_ms:.1f} ms a step and {slot_us:.3f} "
        f"us a slot are off by {error:.1f} % on average; {sum(wins.values())} regimes: packed-input wins "
        f"{wins['packed-input']}, ragged-cache {wins['ragged-cache']}."
    )


def made_points(draw: Random) -> tuple[list[Point], tuple[float, float]]:
    """Points whose speed-ups and seconds follow exactly from prices, and these prices."""
    sizes = sorted(draw.sample(range(1, 33), draw.randint(5, 9)))
    runs = expected_runs(_rows(draw), sizes, ("greedy", *METHODS))
    points: list[Point] = [
        {"batch": size, **{name: _counts(runs[size][name]) for name in runs[size]}} for size in sizes
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


def _rows(draw: Random) -> Acceptance:
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


def scale_error(points: Sequence[Point], step_ms: Any, slot_us: Any) -> Any:
    """Mean absolute relative error of greedy's seconds, where they are known."""
    known = [point["greedy"] for point in points if point["greedy"]["seconds"] is not None]
    errors = [
        np.abs((1e-3 * step_ms * each["steps"] + 1e-6 * slot_us * each["slots"]) / each["seconds"] - 1)
        for each in known
    ]
    return sum(errors) / len(errors)


def _prices(solution: Solution, points: Sequence[Point], seed: int | None) -> tuple[float, float]:
    """The learner's two prices.

    Raises:
        Failure: they are not two positive numbers.
    """
    got = solution.call("fit_costs", list(points), seed=seed)
    values = list(got) if isinstance(got, (tuple, list, np.ndarray)) else []
    good = len(values) == 2 and all(
        isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value) for value in values
    )
    if not good:
        raise Failure(
            f"fit_costs must return two numbers, (step_ms, slot_us), not {short(got, 80)}.", got=got, seed=seed
        )
    step_ms, slot_us = (float(value) for value in values)
    if step_ms <= 0 or slot_us <= 0:
        raise Failure("fit_costs returned a price that is not above 0.", got=(step_ms, slot_us), seed=seed)
    return step_ms, slot_us


def _check_exact(prices: tuple[float, float], got: tuple[float, float], seed: int) -> None:
    if all(abs(value / right - 1) <= SAME for value, right in zip(got, prices, strict=True)):
        return
    expected, shown = (tuple(float(f"{value:.5g}") for value in each) for each in (prices, got))
    raise Failure(
        "fit_costs misses the prices that these points were made from, without any noise.",
        expected=expected,
        got=shown,
        seed=seed,
        why=_why(prices, got),
    )


def _why(prices: tuple[float, float], got: tuple[float, float]) -> str:
    step, slot = got[0] / prices[0], got[1] / prices[1]
    if abs(step / slot - 1) <= 2 * SAME:
        return (
            f"The ratio of the two is right, the scale is not: both are {step:.3g} times too large. Speed-ups hold "
            "for any scale; greedy's seconds, where they are known, fix it."
        )
    if abs(step - 1) <= SAME:
        return (
            f"The step's price is right; the slot's is {slot:.3g} times the true one. Mind the units: slot_us, not ms."
        )
    if abs(slot - 1) <= SAME:
        return f"The slot's price is right; the step's is {step:.3g} times the true one."
    return "Speed-up is greedy's seconds by the method's. Steps and slots are priced, and all points count."


def _check_best(points: Sequence[Point], solution: Solution, name: str, seed: int | None) -> tuple[float, float]:
    """Compare with the best two prices there are.

    Raises:
        Failure: the errors could be clearly smaller.
    """
    step_ms, slot_us = _prices(solution, points, seed)
    errors = speed_error(points, RATIOS)
    ratio = float(RATIOS[int(np.argmin(errors))])
    limit, error = ROOM * float(np.min(errors)) + SLACK, float(speed_error(points, slot_us / step_ms))
    if error > limit:
        raise Failure(
            f"fit_costs explains {name} worse than two prices can: its speed-ups are off by {100 * error:.1f} %.",
            expected=f"at most {100 * limit:.1f} %",
            got=f"{100 * error:.1f} %",
            seed=seed,
            why=f"The best slot_us / step_ms is about {ratio:.4g}, yours is {slot_us / step_ms:.4g}. "
            "Use all points: those without greedy's seconds have speed-ups, too.",
        )
    scales = np.exp(np.linspace(-1.0, 1.0, 801)) * step_ms
    limit = ROOM * float(np.min(scale_error(points, scales, scales * slot_us / step_ms))) + SLACK
    error = float(scale_error(points, step_ms, slot_us))
    if error > limit:
        raise Failure(
            f"fit_costs has the right ratio for {name}, but greedy's seconds are off by {100 * error:.1f} %.",
            expected=f"at most {100 * limit:.1f} %",
            got=f"{100 * error:.1f} %",
            seed=seed,
            why="Speed-ups hold for any scale; greedy's seconds, where they are known, fix it.",
        )
    return step_ms, slot_us


def _check_regimes(solution: Solution) -> Counter[str]:
    """Random regimes against the engine's own prices of expected runs: how often each ablation wins."""
    wins: Counter[str] = Counter()
    for seed in range(REGIMES):
        regime, seconds = made_regime(Random(f"lesson 9 regime {seed}"))
        right = min(seconds, key=lambda name: seconds[name])
        if max(seconds.values()) < (1 + SAME) * min(seconds.values()):
            continue
        got = solution.call("faster_ablation", regime, seed=seed)
        if not isinstance(got, str) or got not in ABLATIONS:
            raise Failure(
                f"faster_ablation must return one of {', '.join(ABLATIONS)}, not {short(got, 80)}.", seed=seed
            )
        if got != right:
            raise Failure(
                f"faster_ablation picks the slower one: batch {regime['batch']}, prompts of {regime['prompt_mean']} ± "
                f"{regime['prompt_sd']} tokens, kernel {regime['kernel']}.",
                expected=right,
                got=got,
                seed=seed,
                why=_compared(regime, seconds),
            )
        wins[right] += 1
    return wins


def made_regime(draw: Random) -> tuple[dict[str, Any], dict[str, float]]:
    """A regime, and the modelled seconds of each ablation in it."""
    rows, size, kernel = _rows(draw), draw.choice([2, 3, 4, 6, 8, 12, 16, 24, 32]), draw.choice(KERNELS)
    costs: dict[str, Any] = {
        "step_ms": round(draw.uniform(1, 15), 2),
        "row_us": draw.choice([0.0, round(draw.uniform(10, 80), 1)]),
        "slot_us": round(draw.uniform(0.05, 0.6), 3),
    }
    runs = expected_runs(rows, [size], ABLATIONS)[size]
    model = CostModel("regime", kernel=kernel, **costs)
    counts = {}
    for name, run in runs.items():
        plain = _counts(run)
        varlen = round(float(np.sum(run.happens * run.step_counts().span_slots)))
        counts[name] = {**plain, "slots": {"per_token": plain["slots"], "varlen": varlen}}
    lengths = {"prompt_mean": round(rows.prompt_mean), "prompt_sd": round(rows.prompt_sd)}
    regime = {"batch": size, **lengths, "kernel": kernel, "costs": costs, "counts": counts}
    return regime, {name: float(run.seconds(model)) for name, run in runs.items()}


def _compared(regime: dict[str, Any], seconds: dict[str, float]) -> str:
    """Rows, slots and time of both, so that the mistake can be seen."""
    parts = []
    for name in ABLATIONS:
        counts, took = regime["counts"][name], f"{1e3 * seconds[name]:.1f} ms"
        slots = counts["slots"][regime["kernel"]]
        parts.append(f"{name} feeds {counts['rows']:,.0f} rows, reads {slots:,} slots and takes {took}")
    costs = regime["costs"]
    return f"{parts[0]}; {parts[1]}, at {costs['row_us']:g} us a row and {costs['slot_us']:g} us a slot."
