"""Lesson 5, one solution: everything follows from the longest feed and the largest gain."""

from __future__ import annotations

from typing import Any


def vanilla_step(
    cursor: int,
    visible: list[list[int]],
    finished: list[bool],
    drafted: list[int],
    emitted: list[int],
    ended: list[bool],
) -> dict[str, Any]:
    """What is fed, where it is written, and what the step leaves behind.

    Args:
        cursor: slot at which every row writes next.
        visible: [rows][cached tokens] slots that hold a row's tokens, in the order of its text. The token at position
            p is in slot `visible[row][p]`.
        finished: [rows] True where the row had ended before this step.
        drafted: [rows] draft tokens of the row; 0 where finished.
        emitted: [rows] tokens that the row gains in this step, as verification says; 0 where finished.
        ended: [rows] True where the row ends with this step, or had ended before.

    Returns:
        A dictionary:
        inputs: [rows][fed] "pending", "draft" or "pad". All rows are fed equally many tokens.
        positions: [rows][1 + drafted] positions of the pending token and the drafts in the row's text; [] where
            finished. Pads need none.
        slots: [rows][written] slots that the fed tokens are written to, pads included; [] where finished.
        cursor: where every row writes next.
        visible: [rows][cached tokens] as in the arguments, after the step.
        holes: [rows] slots that become holes in this step; none for rows that have ended.
    """
    width = max(1 + count for count, over in zip(drafted, finished, strict=True) if not over)
    largest = max(emitted)
    step: dict[str, Any] = {"inputs": [], "positions": [], "slots": [], "visible": [], "holes": []}
    for row, slots in enumerate(visible):
        real = 0 if finished[row] else 1 + drafted[row]
        kinds = ["pending", *["draft"] * drafted[row]] if real else []
        step["inputs"].append(kinds + ["pad"] * (width - real))
        step["positions"].append(list(range(len(slots), len(slots) + real)))
        step["slots"].append(list(range(cursor, cursor + width)) if real else [])
        step["visible"].append(slots + list(range(cursor, cursor + emitted[row])))
        step["holes"].append([] if ended[row] else list(range(cursor + emitted[row], cursor + largest)))
    step["cursor"] = cursor + largest
    return step
