"""Fit the model of `emssd.paper` to the paper's 31 numbers, for both assignments of the ablation rows.

    python assets/paper/fit_paper.py [--check]

writes `fit.json` (parameters, bounds, errors) and `residuals.md` beside it; `--check` only says whether they would
stay as they are. Least squares of the logarithms, equal weight for each number, by Nelder-Mead inside the bounds of
`emssd.paper.BOUNDS`: behaviour (hit rate, token rate, spread) outside, costs inside, where counted steps are kept. The
law of the prompt lengths is assumed, not fitted: lognormal, mean 900, standard deviation 450, cut at 1919 tokens.

Swapped labels: reading the weights and computing a row cost what an A100 80 GB's data sheet says; a step and a slot
cost what the player's modelled time uses (`emssd.cost_model.PAPER_FIT`), so that one product has one set of costs. What
is lost by that is reported: another fit leaves those two free. Printed labels: all four costs are free, and end at
bounds.
Needs numpy alone, and about ten minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

from emssd import paper  # noqa: E402
from emssd.acceptance import Acceptance  # noqa: E402
from emssd.cost_model import PAPER_FIT  # noqa: E402
from emssd.run_counts import RunCounts, count_batches  # noqa: E402

Array = NDArray[np.float64]

A100 = {"weights_ms": 6.5, "row_us": 42.7}
"""13.3 GB at 2.04 TB/s; 2 * 6.65e9 FLOPs at 312 TFLOP/s."""
BEHAVIOUR = ("hit_rate", "token_rate", "spread")
PLAYER = {"step_ms": PAPER_FIT.step_ms - A100["weights_ms"], "slot_us": PAPER_FIT.slot_us}
FREE_COSTS = {"swapped": (), "swapped, costs free": ("step_ms", "slot_us"), "printed": paper.COSTS}
STARTS = {
    "swapped": ({"hit_rate": 0.85, "token_rate": 0.916, "spread": 0.08}, {**PLAYER, **A100}),
    "swapped, costs free": ({"hit_rate": 0.85, "token_rate": 0.916, "spread": 0.08}, {**PLAYER, **A100}),
    "printed": (
        {"hit_rate": 0.52, "token_rate": 0.998, "spread": 0.05},
        {"step_ms": 6.0, "weights_ms": 6.5, "row_us": 120.0, "slot_us": 0.2},
    ),
}
DIGITS = {"step_ms": 2, "weights_ms": 2, "row_us": 1, "slot_us": 4, "hit_rate": 3, "token_rate": 4, "spread": 2}
ROUNDS = 4  # of 480 prompts while fitting
OUTER, INNER = 90, 120  # evaluations at most


class CountedSpeeds:
    """Speeds of all batch sizes and methods for one behaviour, for any costs: steps are counted once."""

    def __init__(self, acceptance: Acceptance, rounds: int) -> None:
        rows = paper.paper_rows(acceptance, rounds=rounds)
        self.parts: dict[tuple[int, str], tuple[Array, Array, Array]] = {}
        for size in paper.BATCH_SIZES:
            batches = rows.batches(size)
            for method in paper.METHODS:
                counts = count_batches(batches, method)
                read = counts.step_counts()
                slots = (counts.happens * read.query_slots * read.launches).sum(1)
                tokens = np.asarray(paper.counted_tokens(rows, counts), dtype=float)
                self.parts[size, method] = (tokens, _steps_by_rows(counts), slots)

    def speeds(self, costs: dict[str, float]) -> dict[tuple[int, str], float]:
        """Tokens per second by batch size and method."""
        result = {}
        for key, (tokens, by_rows, slots) in self.parts.items():
            fed = np.arange(by_rows.shape[1])
            step_ms = costs["step_ms"] + np.maximum(costs["weights_ms"], 1e-3 * costs["row_us"] * fed)
            result[key] = float(np.mean(tokens / (1e-3 * (by_rows @ step_ms) + 1e-6 * costs["slot_us"] * slots)))
        return result


def _steps_by_rows(counts: RunCounts) -> Array:
    """[batches, rows fed] number of steps."""
    rows = sum(counts.input_rows.values(), np.zeros(())).astype(int)
    table = np.zeros((len(rows), rows.max() + 1))
    batch, step = np.nonzero(counts.happens)
    np.add.at(table, (batch, rows[batch, step]), 1.0)
    return table


def squares(speeds: dict[tuple[int, str], float], labels: str) -> float:
    """Sum of squared logarithms of model / published."""
    return float(sum(np.log(point.model / point.published) ** 2 for point in paper.points_of(speeds, labels)))


def nelder_mead(
    loss: Callable[[Array], float], start: Array, scale: Array, low: Array, high: Array, evaluations: int
) -> Array:
    """The best point found by the simplex of Nelder and Mead (1965); points outside the bounds move onto them."""

    def at(point: Array) -> tuple[float, Array]:
        inside = np.clip(point, low, high)
        return loss(inside), inside

    simplex = [at(start)] + [at(start + step) for step in np.diag(scale)]
    used = len(simplex)
    while used < evaluations:
        simplex.sort(key=lambda item: item[0])
        if simplex[-1][0] - simplex[0][0] < 1e-8:
            break
        centre = np.mean([point for _, point in simplex[:-1]], axis=0)
        worst = simplex[-1]
        trial = at(2 * centre - worst[1])
        if trial[0] < simplex[0][0]:
            trial = min(trial, at(3 * centre - 2 * worst[1]), key=lambda item: item[0])
            used += 1
        elif trial[0] >= simplex[-2][0]:
            trial = at((centre + min(trial, worst, key=lambda item: item[0])[1]) / 2)
            used += 1
        used += 1
        if trial[0] < worst[0]:
            simplex[-1] = trial
        else:
            simplex = [simplex[0]] + [at((simplex[0][1] + point) / 2) for _, point in simplex[1:]]
            used += len(simplex) - 1
    return min(simplex, key=lambda item: item[0])[1]


def fit(name: str) -> tuple[Acceptance, dict[str, float]]:
    """Behaviour and costs with the smallest sum of squares, rounded as they are shipped."""
    behaviour, costs = STARTS[name]
    free, labels = FREE_COSTS[name], name.partition(",")[0]
    low, high = (np.array([paper.BOUNDS[name][end] for name in free]) for end in (0, 1))
    best: dict[str, Any] = {"loss": np.inf, "costs": dict(costs)}

    def price(counted: CountedSpeeds, start: dict[str, float]) -> dict[str, float]:
        if not free:
            return start

        def inner(point: Array) -> float:
            return squares(counted.speeds({**start, **dict(zip(free, point, strict=True))}), labels)

        begin = np.array([start[name] for name in free])
        found = nelder_mead(inner, begin, 0.1 * begin, low, high, INNER)
        return {**start, **dict(zip(free, map(float, found), strict=True))}

    def outer(point: Array) -> float:
        hit, token, spread = 1 / (1 + np.exp(-point[0])), 1 / (1 + np.exp(-point[1])), point[2]
        acceptance = Acceptance(hit_rate=float(hit), token_rate=float(token), spread=float(spread))
        counted = CountedSpeeds(acceptance, ROUNDS)
        found = price(counted, best["costs"])
        loss = squares(counted.speeds(found), labels)
        if loss < best["loss"]:
            best.update(loss=loss, costs=found, acceptance=acceptance)
            print(f"{name}: {loss:.4f} {hit:.4f} {token:.4f} {spread:.3f} {found}", file=sys.stderr, flush=True)
        return loss

    start = np.array(
        [np.log(behaviour[rate] / (1 - behaviour[rate])) for rate in BEHAVIOUR[:2]] + [behaviour["spread"]]
    )
    nelder_mead(outer, start, np.array([0.3, 0.3, 0.15]), np.array([-3.0, -3.0, 0.0]), np.array([4.0, 7.0, 2.0]), OUTER)
    acceptance = best["acceptance"]
    return (
        acceptance.with_settings(**{item: round(getattr(acceptance, item), DIGITS[item]) for item in BEHAVIOUR}),
        {item: round(best["costs"][item], DIGITS[item]) for item in paper.COSTS},
    )


def described(name: str, acceptance: Acceptance, costs: dict[str, float]) -> tuple[dict[str, Any], str]:
    """What is shipped of a fit: its record, and its residuals as a table."""
    labels = name.partition(",")[0]
    speeds = paper.predicted_speeds(acceptance, paper.paper_cost_model(costs))
    points = paper.points_of(speeds, labels)
    errors = {quantity: round(value, 5) for quantity, value in paper.mean_errors(points).items()}
    lines = [
        f"## Labels {name}",
        "",
        ", ".join(
            f"{name} {value:g}" for name, value in {**costs, **acceptance.to_dict()}.items() if name != "prompt_law"
        ),
        "",
        f"Mean absolute error: tokens/s {100 * errors['tps']:.2f} %, speed-ups {100 * errors['speedup']:.2f} %; "
        f"root mean square of all 31: {100 * np.sqrt(squares(speeds, labels) / len(points)):.2f} %.",
        "",
        "| batch | method | quantity | published | model | error |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {p.batch} | {p.method} | {p.quantity} | {p.published:.2f} | {p.model:.2f} | {100 * p.error:+.1f} % |"
        for p in points
    ]
    record = {"acceptance": acceptance.to_dict(), "costs": costs, "errors": errors}
    return record, "\n".join(lines)


def main() -> int:
    """Fit both assignments; write the files or compare with them."""
    parser = argparse.ArgumentParser(description="Fit the cost model to the paper's numbers.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the files would change")
    check = parser.parse_args().check
    results = {name: described(name, *fit(name)) for name in FREE_COSTS}
    head = "# Residuals of the fits\n\nWritten by `fit_paper.py`; `emssd simulate --paper` prints the same.\n"
    files = {
        HERE / "fit.json": json.dumps({name: results[name][0] for name in paper.LABELS}, indent=1) + "\n",
        HERE / "residuals.md": "\n".join([head, *[f"{table}\n" for _, table in results.values()]]),
    }
    if check:
        return int(any(path.read_text(encoding="utf-8") != text for path, text in files.items()))
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
