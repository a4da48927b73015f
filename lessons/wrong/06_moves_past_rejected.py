"""Moves past the rejected drafts and forgets that the next write may overwrite them."""

from __future__ import annotations


def ragged_commit(cursors: list[int], drafted: list[int], emitted: list[int]) -> tuple[list[int], list[list[int]]]:
    """Where each row writes next, and which of its slots the next writes may overwrite."""
    next_cursors = [
        cursor + 1 + count if gain else cursor for cursor, count, gain in zip(cursors, drafted, emitted, strict=True)
    ]
    stale = [list(range(cursor + gain, end)) for cursor, gain, end in zip(cursors, emitted, next_cursors, strict=True)]
    return next_cursors, stale
