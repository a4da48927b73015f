"""Two runs of the same prompts against each other: are the outputs equal, and how many times faster was one.

A speed-up is always against a named baseline, on decode time alone, and only up to a number of tokens that both have
emitted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from emssd.trace import GenerationTrace, StepTrace


@dataclass(frozen=True)
class Clock:
    """Decode tokens and seconds after each step of a run, prefill left out: entry 0 is (0, 0.0)."""

    tokens: list[int]
    seconds: list[float]

    def seconds_until(self, tokens: int) -> float | None:
        """Time until the run had emitted that many decode tokens; None if it has not."""
        place = bisect_left(self.tokens, tokens)
        return self.seconds[place] if place < len(self.tokens) else None


def clock(steps: Sequence[StepTrace]) -> Clock:
    """The clock of some first steps of a run."""
    tokens, seconds = [0], [0.0]
    for step in steps:
        if step.kind == "decode":
            tokens.append(tokens[-1] + sum(row.num_emitted for row in step.rows))
            seconds.append(seconds[-1] + step.seconds.get("total", 0.0))
    return Clock(tokens, seconds)


def speed_ups(baseline: Clock, method: Clock) -> list[float | None]:
    """[steps] baseline time / method time for the tokens emitted after each step.

    None where nothing has been decoded, or where the baseline has not emitted that many tokens yet.
    """
    factors: list[float | None] = []
    for tokens, seconds in zip(method.tokens, method.seconds, strict=True):
        needed = baseline.seconds_until(tokens) if tokens else None
        factors.append(needed / seconds if needed and seconds > 0 else None)
    return factors


def latest(factors: Sequence[float | None]) -> float | None:
    """The last known speed-up."""
    return next((factor for factor in reversed(factors) if factor is not None), None)


@dataclass(frozen=True)
class Equality:
    """Whether two outputs agree.

    Args:
        shared: tokens compared and equal, prefill's included.
        total: tokens of the baseline.
        row, token: the first difference; tokens count from 1. None if there is none.
        complete: both runs have ended, so that all tokens were compared.
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
        common = next((n for n, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), None)
        if common is None and complete and len(left) != len(right):
            common = min(len(left), len(right))
        shared += min(len(left), len(right)) if common is None else common
        if common is not None:
            differences.append((common + 1, row))
    token, at_row = min(differences, default=(None, None))
    return Equality(shared, sum(map(len, baseline)), at_row, token, complete)


def outputs_after(trace: GenerationTrace, num_steps: int) -> list[list[int]]:
    """[rows] tokens emitted by the first steps of a run that may still be going on."""
    outputs: list[list[int]] = [[] for _ in trace.rows]
    for step in trace.steps[:num_steps]:
        for row in step.rows:
            outputs[row.row].extend(row.emitted_token_ids)
    return outputs
