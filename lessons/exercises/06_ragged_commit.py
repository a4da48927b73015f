"""Lesson 6: move every row's own cursor after verification.

In a step a live row writes its pending token and its drafts to the slots from its cursor on. Then verification says how
many tokens it gains. Its cursor moves by just that many. Nothing is copied, masked or erased: what the row wrote from
its new cursor on is stale. Later writes go over it, sooner or later, and no query of a later step reads it before.

Example: row 0 writes slots 7 to 9 and gains 3; row 1 writes slots 2 to 6 and gains 2.

    >>> ragged_commit([7, 2], [2, 4], [3, 2])
    ([10, 4], [[], [4, 5, 6]])
"""

from __future__ import annotations


def ragged_commit(cursors: list[int], drafted: list[int], emitted: list[int]) -> tuple[list[int], list[list[int]]]:
    """Where each row writes next, and which of its slots the next writes may overwrite.

    The lists are copies: change them if you like.

    Args:
        cursors: [rows] slot of the row's pending token in this step. A row's tokens are in slots 0 to cursor - 1.
        drafted: [rows] draft tokens that the row fed after its pending token; 0 for a finished row.
        emitted: [rows] tokens that the row gains, as verification says: at least 1 for a live row, 0 for a row that had
            finished before, which wrote nothing.

    Returns:
        A pair (next_cursors, stale).
        next_cursors: [rows] slot that each row writes next.
        stale: [rows] slots that the row wrote in this step, from its new cursor on, in order; a list or a range
            for each row.
    """
    raise NotImplementedError
