"""Gives the pads positions of their own, after the drafts."""

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
    """What is fed, where it is written, and what the step leaves behind."""
    width = max(1 + count for count, over in zip(drafted, finished, strict=True) if not over)
    largest = max(emitted)
    step: dict[str, Any] = {"inputs": [], "positions": [], "slots": [], "visible": [], "holes": []}
    for row, slots in enumerate(visible):
        real = 0 if finished[row] else 1 + drafted[row]
        kinds = ["pending", *["draft"] * drafted[row]] if real else []
        step["inputs"].append(kinds + ["pad"] * (width - real))
        step["positions"].append(list(range(len(slots), len(slots) + width)) if real else [])
        step["slots"].append(list(range(cursor, cursor + width)) if real else [])
        step["visible"].append(slots + list(range(cursor, cursor + emitted[row])))
        step["holes"].append([] if ended[row] else list(range(cursor + emitted[row], cursor + largest)))
    step["cursor"] = cursor + largest
    return step
