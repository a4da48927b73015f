"""Takes all that was written in the step for stale, the accepted drafts included."""

from __future__ import annotations


def ragged_commit(cursors: list[int], drafted: list[int], emitted: list[int]) -> tuple[list[int], list[list[int]]]:
    """Where each row writes next, and which of its slots the next writes may overwrite."""
    next_cursors = [cursor + gain for cursor, gain in zip(cursors, emitted, strict=True)]
    ends = [
        cursor + 1 + count if gain else cursor for cursor, count, gain in zip(cursors, drafted, emitted, strict=True)
    ]
    stale = [list(range(cursor, end)) for cursor, end in zip(cursors, ends, strict=True)]
    return next_cursors, stale
