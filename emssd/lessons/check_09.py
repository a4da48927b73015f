"""Lesson 9: two prices fitted to points, and the faster ablation of a regime; expected counts come from the engine."""

from __future__ import annotations

import math
import numbers
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np

from emssd.acceptance import Acceptance
from emssd.cost_model import KERNELS, CostModel
from emssd.expectation import expected_runs
from emssd.lessons.checking import CALLED, Failure, Solution, short
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
NEAR = 0.15
"""Prices that are off by less than this, but by more than `SAME`, come from a search that is too coarse."""
RATIOS = np.exp(np.linspace(math.log(1e-5), math.log(50.0), 1500))
"""slot_us / step_ms that are tried for the best fit there is."""
ROOM, SLACK = 1.05, 0.002
"""An error may be this much larger than the largest that a fit by any measure of relative error has."""
SCALE_ROOM, SCALE_SLACK = 1.35, 0.01
PULL = 0.5
"""Where points disagree, a slot's price differs from the true one by up to this, in the logarithm."""
TELLING = 1.03
"""Points tell a wrong fit from a right one if its error is this many times the limit, or more."""
TRIES = 40
UNITS = {
    "step_ms": {1e-3: "seconds", 1e3: "microseconds"},
    "slot_us": {1e-6: "seconds", 1e-3: "milliseconds", 1e3: "nanoseconds"},
}
"""A price in another unit is this many times too large."""
OTHERS = (
    "to vanilla's speed-ups alone",
    "to EMS-SD's speed-ups alone",
    "to absolute differences, where a speed-up of 4 weighs more than one of 1",
    "to the first point alone",
    "to the last point alone",
    "to the points alone whose greedy seconds are known",
)
"""What can be fitted by mistake, in words."""
PRICES = "(step_ms, slot_us): two numbers above 0"

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
            noisy, words = blurred(points, draw), f"points with {100 * NOISE:g} % of noise"
        else:
            wrong = OTHERS[seed // 2 % 3]
            noisy, words = pulled_apart(points, prices, draw, wrong), "points that no two prices explain exactly"
        _check_best(noisy, solution, words, seed)
    figure = figure_1_points()
    step_ms, slot_us = _check_best(figure, solution, "Figure 1", None)
    wins = _check_regimes(solution)
    error = 100 * speed_error(figure, slot_us / step_ms)
    return (
        f"{2 * SEEDS} sets of made points and Figure 1, where your {step_ms:.1f} ms a step and {slot_us:.3f} "
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


def _prices(solution: Solution, points: Sequence[Point], seed: int | None) -> tuple[float, float]:
    """The learner's two prices.

    Raises:
        Failure: they are not two positive numbers.
    """
    known = sum(point["greedy"]["seconds"] is not None for point in points)
    sizes = ", ".join(str(point["batch"]) for point in points)
    called = f"points of batch sizes {sizes}; greedy's seconds are known in {known} of {len(points)}, None elsewhere"
    got = solution.call("fit_costs", list(points), **{"seed": seed, CALLED: called})
    values = list(got) if isinstance(got, (tuple, list, np.ndarray)) else []
    good = len(values) == 2 and all(
        isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value) for value in values
    )
    if not good:
        what = f"fit_costs must return two numbers, (step_ms, slot_us), not {short(got, 80)}."
        raise Failure(what, expected=PRICES, got=got, seed=seed)
    step_ms, slot_us = (float(value) for value in values)
    if step_ms <= 0 or slot_us <= 0:
        what = "fit_costs returned a price that is not above 0."
        raise Failure(what, expected=PRICES, got=(step_ms, slot_us), seed=seed)
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
        why=f"{_why(prices, got)} Each price may be off by {100 * SAME:g} %.",
    )


def _why(prices: tuple[float, float], got: tuple[float, float]) -> str:
    """Names what was returned instead, where that can be told from the numbers."""
    step, slot = got[0] / prices[0], got[1] / prices[1]
    wrong_units = _units(prices, got)
    if wrong_units:
        return f"The numbers are right, the units are not: {wrong_units}."
    if _units(prices, (got[1], got[0])) is not None:
        return "The two are swapped: return step_ms first, then slot_us."
    if max(abs(step - 1), abs(slot - 1)) <= NEAR:
        return "Both are near: search closer around the best ratio, where the values that were tried lie too far apart."
    if abs(step / slot - 1) <= 2 * SAME:
        return (
            f"The ratio of the two is right, the scale is not: both are {step:.3g} times the true ones. Speed-ups hold "
            "for any scale; greedy's seconds, where they are known, fix it."
        )
    if abs(step - 1) <= SAME:
        return f"The step's price is right; the slot's is {slot:.3g} times the true one."
    if abs(slot - 1) <= SAME:
        return f"The slot's price is right; the step's is {step:.3g} times the true one."
    return (
        f"The step's price is {step:.3g} times the true one, the slot's {slot:.3g} times. Speed-up is greedy's seconds "
        "by the method's; steps and slots are priced, rows are not."
    )


def _units(prices: tuple[float, float], got: tuple[float, float]) -> str | None:
    """The prices that are right but for the unit, with the unit they are in; None if one is wrong in any unit."""
    found = []
    for (name, units), right, value in zip(UNITS.items(), prices, got, strict=True):
        fits = [factor for factor in (1.0, *units) if abs(value / right / factor - 1) <= NEAR]
        if not fits:
            return None
        found += [f"{name} is in {units[factor]}" for factor in fits if factor != 1]
    return ", ".join(found)


def _check_best(points: Sequence[Point], solution: Solution, name: str, seed: int | None) -> tuple[float, float]:
    """Compare with the best two prices there are.

    Raises:
        Failure: the errors could be clearly smaller.
    """
    step_ms, slot_us = _prices(solution, points, seed)
    ratio, limit = slot_us / step_ms, highest_error(points)
    error = float(root_mean_square(points, ratio)[0])
    if error > limit:
        raise Failure(
            f"fit_costs explains {name} worse than two prices can: its speed-ups are off by {100 * error:.1f} %.",
            expected=f"at most {100 * limit:.1f} %, root mean square of log(model / published)",
            got=f"{100 * error:.1f} %",
            seed=seed,
            why=_why_not_best(points, ratio, fair_ratios(points)[0]),
        )
    scales = np.exp(np.linspace(-1.0, 1.0, 801)) * step_ms
    limit = SCALE_ROOM * float(np.min(scale_error(points, scales, scales * slot_us / step_ms))) + SCALE_SLACK
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


def _why_not_best(points: Sequence[Point], ratio: float, best: float) -> str:
    """Names what was fitted instead, where that can be told from the ratio."""
    text = f"The best slot_us / step_ms is about {best:.3g}, yours is {ratio:.3g}. "
    found = [what for what in OTHERS if abs(ratio / unfair_ratio(points, what) - 1) <= 2 * SAME]
    if found and abs(ratio / best - 1) > 2 * SAME:
        return f"{text}That is a fit {', or '.join(found)}. All points and both methods count, by relative error."
    if abs(math.log(ratio / best)) <= 2 * NEAR:
        return f"{text}It is near: search closer around the best ratio."
    return f"{text}Use all points and both methods: points without greedy's seconds have speed-ups, too."


def _check_regimes(solution: Solution) -> Counter[str]:
    """Random regimes against the engine's own prices of expected runs: how often each ablation wins."""
    wins: Counter[str] = Counter()
    for seed in range(REGIMES):
        regime, seconds = made_regime(Random(f"lesson 9 regime {seed}"))
        right = min(seconds, key=lambda name: seconds[name])
        if max(seconds.values()) < (1 + SAME) * min(seconds.values()):
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
    rows, size, kernel = _rows(draw), draw.choice([2, 3, 4, 6, 8, 12, 16, 24, 32]), draw.choice(KERNELS)
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
        plain = _counts(run)
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
