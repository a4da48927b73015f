"""Two runs of the same prompts against each other: are the outputs equal, and how many times faster was one.

A speed-up is always against a named baseline, on decode time alone, and only up to a number of tokens that both have
emitted.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from emssd.trace import GenerationTrace, StepTrace


def measured_seconds(step: StepTrace) -> float:
    """Wall time of a step, everything included."""
    return step.seconds.get("total", 0.0)


MODEL_SIZES = ("architecture", "parameters", "layers", "heads", "kv_heads", "head_dim", "hidden", "vocab")


def other_run(first: GenerationTrace, trace: GenerationTrace) -> str | None:
    """What makes two runs no comparison, as "another model"; None where only methods, drafters and layouts differ."""
    weights = "checksum" if first.model.get("checksum") and trace.model.get("checksum") else "name"
    parts = (
        ("other prompts", [row.prompt_token_ids for row in first.rows], [row.prompt_token_ids for row in trace.rows]),
        *(("another model", first.model.get(name), trace.model.get(name)) for name in (weights, *MODEL_SIZES)),
        ("another number format", first.model.get("dtype"), trace.model.get("dtype")),
        ("another device", first.model.get("device"), trace.model.get("device")),
        ("another max_new_tokens", first.config.get("max_new_tokens"), trace.config.get("max_new_tokens")),
        ("other eos_token_ids", first.config.get("eos_token_ids"), trace.config.get("eos_token_ids")),
    )
    return next((what for what, left, right in parts if left != right), None)


@dataclass(frozen=True)
class Clock:
    """Decode tokens and seconds after each step of a run, prefill left out: entry 0 is (0, 0.0)."""

    tokens: list[int]
    seconds: list[float]

    def seconds_until(self, tokens: int) -> float | None:
        """Time until the run had emitted that many decode tokens; None if it has not."""
        place = bisect_left(self.tokens, tokens)
        return self.seconds[place] if place < len(self.tokens) else None


def clock(steps: Sequence[StepTrace], step_seconds: Callable[[StepTrace], float] = measured_seconds) -> Clock:
    """The clock of some first steps of a run; `step_seconds` says how long a decode step took."""
    tokens, seconds = [0], [0.0]
    for step in steps:
        if step.kind == "decode":
            tokens.append(tokens[-1] + sum(row.num_emitted for row in step.rows))
            seconds.append(seconds[-1] + step_seconds(step))
    return Clock(tokens, seconds)


def speed_ups(baseline: Clock, method: Clock) -> list[float | None]:
    """[steps] baseline time / method time for the tokens emitted after each step.

    None where nothing has been decoded, or where the baseline has not emitted that many tokens yet.
    """
    factors: list[float | None] = []
    for tokens, seconds in zip(method.tokens, method.seconds, strict=True):
        factors.append(_speed_up(baseline, tokens, seconds))
    return factors


def latest_speed_up(baseline: Clock, method: Clock) -> float | None:
    """The last one of `speed_ups` that is known, found from the end; None where there is none."""
    ends = zip(reversed(method.tokens), reversed(method.seconds), strict=True)
    factors = (_speed_up(baseline, tokens, seconds) for tokens, seconds in ends)
    return next((factor for factor in factors if factor is not None), None)


def _speed_up(baseline: Clock, tokens: int, seconds: float) -> float | None:
    needed = baseline.seconds_until(tokens) if tokens else None
    factor = needed / seconds if needed and seconds > 0 else math.inf
    return factor if math.isfinite(factor) else None


@dataclass(frozen=True)
class Equality:
    """Whether two outputs agree.

    Args:
        shared: tokens compared and equal, prefill's included.
        total: tokens of the baseline.
        row, token: the first difference; tokens count from 1. None if there is none.
        complete: both runs have ended.
    """

    shared: int
    total: int
    row: int | None
    token: int | None
    complete: bool

    @property
    def identical(self) -> bool:
        """No difference so far."""
        return self.row is None

    def sentence(self, baseline: str = "greedy") -> str:
        """What the badge says."""
        if self.row is not None:
            return f"Output differs from {baseline}: first at row {self.row}, new token {self.token}"
        if self.complete:
            return f"Output identical to {baseline}, {self.shared} of {self.total} tokens"
        return f"Identical to {baseline} so far, {self.shared} of {self.shared} shared tokens"


def compare_outputs(baseline: Sequence[Sequence[int]], other: Sequence[Sequence[int]], complete: bool) -> Equality:
    """Compare outputs row by row; unfinished runs only as far as both have come.

    The first difference is the earliest token number, then the lowest row.
    """
    shared = 0
    differences: list[tuple[int, int]] = []
    for row, (left, right) in enumerate(zip(baseline, other, strict=True)):
        common = _common(left, right)
        shared += common
        if common < min(len(left), len(right)) or (complete and len(left) != len(right)):
            differences.append((common + 1, row))
    token, at_row = min(differences, default=(None, None))
    return Equality(shared, sum(map(len, baseline)), at_row, token, complete)


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Tokens that two outputs begin with in common."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((number for number, (one, two) in pairs if one != two), min(len(left), len(right)))


@dataclass(frozen=True)
class Difference:
    """Where an output first leaves the baseline's: token counts from 1, and the step that emitted it."""

    row: int
    token: int
    step: int


def agreement(baseline: GenerationTrace, trace: GenerationTrace) -> tuple[list[int], Difference | None]:
    """How far a run's output is the baseline's, step by step, prefill included.

    A row that has ended in one run and emits more in the other differs, too. The first difference is that of the
    earliest step, then the earliest token, then the lowest row.

    Returns:
        [steps] tokens emitted so far that equal the baseline's; the first difference, None if there is none.
    """
    emitted = [0] * len(trace.rows)
    common = [_common(b.output_token_ids, t.output_token_ids) for b, t in zip(baseline.rows, trace.rows, strict=True)]
    counts: list[int] = []
    first: Difference | None = None
    for step in trace.steps:
        found = []
        for row in step.rows:
            emitted[row.row] += row.num_emitted
            if _differs(baseline, trace, row.row, common[row.row], emitted[row.row], row.finished):
                found.append((common[row.row] + 1, row.row))
        counts.append(sum(map(min, emitted, common)))
        if found and first is None:
            token, at_row = min(found)
            first = Difference(at_row, token, step.index)
    return counts, first


def _differs(
    baseline: GenerationTrace, trace: GenerationTrace, row: int, common: int, emitted: int, ended: bool
) -> bool:
    """Whether a row's difference is out once it has emitted so many tokens (and, perhaps, ended)."""
    right, own = baseline.rows[row], trace.rows[row]
    if emitted > common:  # one more token than they share: another one, or one after the baseline's end
        return common < len(right.output_token_ids) or right.finish_reason is not None
    return ended and own.finish_reason is not None and common < len(right.output_token_ids)
