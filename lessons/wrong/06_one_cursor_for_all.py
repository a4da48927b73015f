"""Brings all rows to the cursor of the row that is furthest, so that the batch stays a rectangle."""

from __future__ import annotations


def ragged_commit(cursors: list[int], drafted: list[int], emitted: list[int]) -> tuple[list[int], list[list[int]]]:
    """Where each row writes next, and which of its slots the next writes may overwrite."""
    furthest = max(cursor + gain for cursor, gain in zip(cursors, emitted, strict=True))
    next_cursors = [furthest] * len(cursors)
    ends = [
        cursor + 1 + count if gain else cursor for cursor, count, gain in zip(cursors, drafted, emitted, strict=True)
    ]
    stale = [list(range(cursor, end)) for cursor, end in zip(next_cursors, ends, strict=True)]
    return next_cursors, stale
