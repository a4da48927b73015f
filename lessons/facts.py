"""The functions that a marked number in a lesson may use: over the shipped traces, and over the paper's numbers.

In a text: `7<!-- = holes("figure2", "vanilla", 2) -->`, or with a format behind it,
`3.49<!-- = speed_up("figure2", "ems-sd") | .2f -->`.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from emssd import paper as published_numbers
from emssd.cells import Grid, cells_at
from emssd.cost_model import PAPER_FIT
from emssd.trace import GenerationTrace, RowTrace, StepTrace
from emssd.ui import compare_numbers

TRACES = Path(__file__).resolve().parent.parent / "assets" / "traces"


@lru_cache(maxsize=64)
def trace(preset: str, method: str) -> GenerationTrace:
    """A shipped trace."""
    return GenerationTrace.from_json(TRACES / preset / f"{method}.json")


def step(preset: str, method: str, number: int) -> StepTrace:
    """A step; 0 is prefill."""
    return trace(preset, method).steps[number]


def row(preset: str, method: str, number: int, index: int) -> RowTrace:
    """A row of a step."""
    return step(preset, method, number).rows[index]


def next_slot(preset: str, method: str, number: int, index: int) -> int:
    """The slot that a row writes next, after a step."""
    return row(preset, method, number, index).next_slot


def holes(preset: str, method: str, number: int | None = None, index: int | None = None) -> int:
    """Holes after a step, prompt padding left out: of all rows, or of one. Without a step: at the end."""
    steps = trace(preset, method).steps
    last = len(steps) - 1 if number is None else number
    if index is None:
        return steps[last].account.holes_total
    return sum(len(each.rows[index].holes_added) for each in steps[: last + 1])


def summary(preset: str, method: str) -> dict[str, Any]:
    """`GenerationTrace.summary` of a shipped trace."""
    return trace(preset, method).summary()


def total(preset: str, method: str, what: str, *kinds: str) -> int:
    """A count of a whole run, summed over its kinds.

    total("figure2", "vanilla", "input_rows") is 24, with "pad" behind it only the pads;
    total("figure2", "vanilla", "kv_slots_scanned", "per_token", "hole") counts the holes that queries scanned.
    """
    value = summary(preset, method)[what]
    for kind in kinds:
        value = value[kind]
    return int(sum(value.values()) if isinstance(value, dict) else value)


def cells(preset: str, method: str, number: int, sub: str = "commit") -> Grid:
    """The cache's cells [rows][slots] at a sub-step; each has state, token_id, position, step, cause."""
    return cells_at(trace(preset, method), number, sub)


def count_cells(
    preset: str, method: str, number: int, state: str, sub: str = "commit", index: int | None = None
) -> int:
    """How many cells are in a state, of all rows or of one."""
    grid = cells(preset, method, number, sub)
    return sum(cell.state == state for line in (grid if index is None else [grid[index]]) for cell in line)


def seconds(preset: str, method: str) -> float:
    """Modelled decode seconds of a run, as the player shows them: 13.7 ms a step and 0.248 us a slot read."""
    return compare_numbers.modelled_seconds(trace(preset, method))


def speed_up(preset: str, method: str) -> float | None:
    """Greedy's modelled time by the method's for the tokens that the method emitted, as the player shows it."""
    return compare_numbers.modelled_speed_up(trace(preset, "greedy"), trace(preset, method))


def paper(batch: int, method: str, quantity: str = "speedup", labels: str = "swapped") -> float:
    """A published number: "speedup" over greedy (Figure 1's, or a quotient of Table 2's speeds) or "tps" (Table 2).

    Args:
        labels: "swapped" (the two ablation rows of Table 2 exchanged) or "printed".
    """
    points = {(size, name, kind): value for size, name, kind, value in published_numbers.PUBLISHED[labels]}
    if (batch, method, quantity) in points:
        return points[batch, method, quantity]
    return points[batch, method, "tps"] / points[batch, "greedy", "tps"]


@lru_cache(maxsize=2)
def _modelled(labels: str) -> dict[tuple[int, str], float]:
    fit = published_numbers.shipped_fits()[labels]
    return published_numbers.predicted_speeds(fit.acceptance, fit.cost_model)


def model(batch: int, method: str, quantity: str = "speedup", labels: str = "swapped") -> float:
    """What the fitted model gives for a batch size of the paper: "speedup" over greedy or "tps"."""
    speeds = _modelled(labels)
    return speeds[batch, method] / (1.0 if quantity == "tps" else speeds[batch, "greedy"])


def paper_fit(name: str, labels: str = "swapped") -> Any:
    """A fitted parameter: step_ms, weights_ms, row_us, slot_us, hit_rate, token_rate, ..."""
    return published_numbers.shipped_fits()[labels].parameters[name]


def varlen(batch: int, method: str) -> float:
    """Modelled speed-up over greedy where attention reads each row's slots once; the other costs as fitted."""
    return _varlen()[batch, method]


@lru_cache(maxsize=1)
def _varlen() -> dict[tuple[int, str], float]:
    return published_numbers.varlen_speed_ups(published_numbers.shipped_fits()["swapped"])


@lru_cache(maxsize=4)
def flips_at(batch: int = 24) -> float | None:
    """Standard deviation of prompt lengths from which the ragged cache alone beats packed inputs alone."""
    return published_numbers.order_flips_at(published_numbers.shipped_fits()["swapped"], batch)


def cost(name: str) -> float:
    """A number of the two-number fit: step_ms, slot_us."""
    return float(getattr(PAPER_FIT, name))


FUNCTIONS: dict[str, Any] = {
    function.__name__: function
    for function in (
        *(trace, step, row, next_slot, holes, summary, total, cells, count_cells, seconds, speed_up),
        *(paper, model, paper_fit, varlen, flips_at, cost),
    )
}
BUILTINS = (
    sum,
    max,
    min,
    len,
    round,
    sorted,
    abs,
    any,
    all,
    range,
    zip,
    enumerate,
    set,
    list,
    tuple,
    dict,
    str,
    int,
    float,
)
NAMES: dict[str, Any] = {"__builtins__": {}, **FUNCTIONS, **{each.__name__: each for each in BUILTINS}}


def value_of(expression: str) -> Any:
    """The value of a marked number's expression."""
    return eval(expression, dict(NAMES))
