"""Moves by the drafts that were fed, not by the tokens that were gained."""

from __future__ import annotations


def ragged_commit(cursors: list[int], drafted: list[int], emitted: list[int]) -> tuple[list[int], list[list[int]]]:
    """Where each row writes next, and which of its slots the next writes may overwrite."""
    next_cursors = [cursor + count for cursor, count in zip(cursors, drafted, strict=True)]
    ends = [
        cursor + 1 + count if gain else cursor for cursor, count, gain in zip(cursors, drafted, emitted, strict=True)
    ]
    stale = [list(range(cursor, end)) for cursor, end in zip(next_cursors, ends, strict=True)]
    return next_cursors, stale
