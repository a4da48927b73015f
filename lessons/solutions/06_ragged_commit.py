"""Lesson 6, one solution: each cursor moves by its own gain, and what was written from there on is stale."""

from __future__ import annotations


def ragged_commit(cursors: list[int], drafted: list[int], emitted: list[int]) -> tuple[list[int], list[list[int]]]:
    """Where each row writes next, and which of its slots the next writes may overwrite.

    Args:
        cursors: [rows] slot of the row's pending token in this step. A row's tokens are in slots 0 to cursor - 1.
        drafted: [rows] draft tokens that the row fed after its pending token; 0 for a finished row.
        emitted: [rows] tokens that the row gains, as verification says: at least 1 for a live row, 0 for a row that had
            finished before, which wrote nothing.

    Returns:
        next_cursors: [rows] slot that each row writes next.
        stale: [rows] slots that the row wrote in this step, from its new cursor on, in order.
    """
    next_cursors = [cursor + gain for cursor, gain in zip(cursors, emitted, strict=True)]
    ends = [
        cursor + 1 + count if gain else cursor for cursor, count, gain in zip(cursors, drafted, emitted, strict=True)
    ]
    stale = [list(range(cursor, end)) for cursor, end in zip(next_cursors, ends, strict=True)]
    return next_cursors, stale
