"""Lesson 5: one step of vanilla batched speculative decoding, with both kinds of padding.

All rows write at one shared cursor. In a step each live row (one that has not ended) feeds its pending token and its
drafts, then pads up to the longest feed of a live row; all of it is written to the slots from the cursor on. After
verification the cursor moves by the largest gain of the rows that were live. A row that gained less and lives on is
left with holes: slots before the cursor that hold none of its tokens and stay masked for ever. A finished row is fed
pads, but writes nothing.

Example: the cursor is at 4; row 0 drafts 1 token and gains 2, row 1 drafts 3 and gains 1.

    >>> vanilla_step(4, [[0, 1], [0, 1, 2, 3]], [False, False], [1, 3], [2, 1], [False, False])
    {'inputs': [['pending', 'draft', 'pad', 'pad'], ['pending', 'draft', 'draft', 'draft']],
     'positions': [[2, 3], [4, 5, 6, 7]],
     'slots': [[4, 5, 6, 7], [4, 5, 6, 7]],
     'cursor': 6,
     'visible': [[0, 1, 4, 5], [0, 1, 2, 3, 4]],
     'holes': [[], [5]]}
"""

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
    raise NotImplementedError
