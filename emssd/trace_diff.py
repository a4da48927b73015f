"""Two traces side by side: the settings that differ, the first step that differs, and the outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from emssd.trace import OPTIONAL_ROW_FIELDS, GenerationTrace, StepTrace

SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class FieldDifference:
    """One field that two traces disagree on.

    Args:
        step: index of the step; None for a field outside the steps.
        row: request index; None for a field of the whole step or run.
        field: its name, with dots inside nested ones.
        left, right: the two values.
    """

    step: int | None
    row: int | None
    field: str
    left: Any
    right: Any

    def __str__(self) -> str:
        where = "" if self.step is None else f"step {self.step}, "
        where += "" if self.row is None else f"row {self.row}, "
        return f"{where}{self.field}: {_short(self.left)} | {_short(self.right)}"


@dataclass(frozen=True)
class TraceComparison:
    """What `compare_traces` found.

    Args:
        settings: fields of the run's description that differ (method, config, drafter, model, attention).
        first: the first difference in the steps, else in the requests; None where there is none.
        outputs: per request with another output, the first position that differs and the two tokens there
            (None: that output has ended).
    """

    settings: list[FieldDifference]
    first: FieldDifference | None
    outputs: dict[int, tuple[int, int | None, int | None]]

    @property
    def same(self) -> bool:
        """Whether the two runs did the same, whatever describes them."""
        return self.first is None


def compare_traces(
    left: GenerationTrace, right: GenerationTrace, ignore: frozenset[str] = frozenset()
) -> TraceComparison:
    """Compare two traces; `created`, the version, all seconds and what was recorded of logits are outside it.

    Args:
        left, right: the traces.
        ignore: names of row and step fields to leave out as well.
    """
    settings = [
        FieldDifference(None, None, name, mine, theirs)
        for part in ("method", "config", "drafter", "attention", "model")
        for name, mine, theirs in _leaves(part, getattr(left, part), getattr(right, part))
    ]
    found = next(_step_differences(left, right, ignore), None) or next(_row_differences(left, right), None)
    return TraceComparison(settings, found, _output_differences(left, right))


def _step_differences(
    left: GenerationTrace, right: GenerationTrace, ignore: frozenset[str]
) -> Iterator[FieldDifference]:
    for mine, theirs in zip(left.steps, right.steps, strict=False):
        yield from _differences_of_step(mine, theirs, ignore)
    if len(left.steps) != len(right.steps):
        step = min(len(left.steps), len(right.steps))
        yield FieldDifference(None, None, f"steps (one run ends before step {step})", len(left.steps), len(right.steps))


def _differences_of_step(left: StepTrace, right: StepTrace, ignore: frozenset[str]) -> Iterator[FieldDifference]:
    skipped = ignore | {"row", *OPTIONAL_ROW_FIELDS}  # logits differ by rounding; what was chosen from them must not
    for mine, theirs in zip(left.rows, right.rows, strict=False):
        ours, others = mine.to_dict(), theirs.to_dict()
        for name in dict.fromkeys([*ours, *others]):
            if name not in skipped and ours.get(name) != others.get(name):
                yield FieldDifference(left.index, mine.row, name, ours.get(name), others.get(name))
    if len(left.rows) != len(right.rows):
        yield FieldDifference(left.index, None, "number of rows", len(left.rows), len(right.rows))
    ours, others = left.to_dict(), right.to_dict()
    for name in dict.fromkeys([*ours, *others]):
        if name not in skipped | {"rows", "seconds"}:
            for leaf, value, other in _leaves(name, ours.get(name), others.get(name)):
                yield FieldDifference(left.index, None, leaf, value, other)


def _row_differences(left: GenerationTrace, right: GenerationTrace) -> Iterator[FieldDifference]:
    if len(left.rows) != len(right.rows):
        yield FieldDifference(None, None, "number of rows", len(left.rows), len(right.rows))
    for row, (mine, theirs) in enumerate(zip(left.rows, right.rows, strict=False)):
        for name in ("prompt_token_ids", "output_token_ids", "finish_reason", "prompt_text", "output_text"):
            if getattr(mine, name) != getattr(theirs, name):
                yield FieldDifference(None, row, name, getattr(mine, name), getattr(theirs, name))


def _output_differences(left: GenerationTrace, right: GenerationTrace) -> dict[int, tuple[int, int | None, int | None]]:
    found: dict[int, tuple[int, int | None, int | None]] = {}
    for row in range(max(len(left.rows), len(right.rows))):
        mine = left.rows[row].output_token_ids if row < len(left.rows) else []
        theirs = right.rows[row].output_token_ids if row < len(right.rows) else []
        if mine != theirs:
            position = first_difference(mine, theirs)
            found[row] = (position, _at(mine, position), _at(theirs, position))
    return found


def first_difference(left: list[int], right: list[int]) -> int:
    """Index of the first place where two lists differ, the end of the shorter one included."""
    shorter = min(len(left), len(right))
    return next((place for place in range(shorter) if left[place] != right[place]), shorter)


def _at(tokens: list[int], position: int) -> int | None:
    return tokens[position] if position < len(tokens) else None


def _leaves(name: str, left: Any, right: Any) -> Iterator[tuple[str, Any, Any]]:
    """Every differing leaf below a field, named with dots."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in dict.fromkeys([*left, *right]):
            yield from _leaves(f"{name}.{key}", left.get(key), right.get(key))
    elif left != right:
        yield name, left, right


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def diff_lines(comparison: TraceComparison, left: str, right: str, num_rows: int) -> list[str]:
    """What two traces disagree on, in words. `left` and `right` name them; values stand in that order."""
    lines = [f"left: {left}", f"right: {right}"] if comparison.settings or not comparison.same else []
    lines += [f"settings: {field}" for field in comparison.settings]
    if comparison.first is None:
        return [*lines, "Same steps and same outputs."]
    return [*lines, f"first difference: {comparison.first}", output_verdict(comparison, num_rows)]


def output_verdict(comparison: TraceComparison, num_rows: int) -> str:
    """Whether the outputs of two traces are equal, and where the first one is not."""
    if not comparison.outputs:
        return f"outputs: identical in all {num_rows} rows" if num_rows != 1 else "outputs: identical in the only row"
    row, (position, left, right) = next(iter(comparison.outputs.items()))
    tokens = " | ".join("the end" if token is None else str(token) for token in (left, right))
    return (
        f"outputs: differ in {len(comparison.outputs)} of {num_rows} rows; "
        f"first in row {row} at position {position}: {tokens}"
    )
