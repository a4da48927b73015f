"""Lesson 7: feed all rows as one packed sequence, and find a token's row again.

Write two functions; both need a few lines and no imports. Example with three rows, of which row 1 has finished:

    pack([[11, 12, 13], [], [31, 32]])  ->  ([11, 12, 13, 31, 32], [0, 3, 3, 5])
    locate([0, 3, 3, 5], 2)             ->  (0, 2)   the last token of row 0
    locate([0, 3, 3, 5], 3)             ->  (2, 0)   the first token of row 2: row 1 feeds nothing

Check it with `python -m emssd lesson check 07`.
"""

from __future__ import annotations


def pack(rows: list[list[int]]) -> tuple[list[int], list[int]]:
    """Lay the rows' tokens one after another, without pads.

    Args:
        rows: [B] the token ids that each row feeds in this step; a finished row feeds none: []. B may be 0. The lists
            are the caller's: leave them as they are.

    Returns:
        tokens: [N] all token ids, row after row.
        cu_seqlens: [B + 1] starts at 0; row i has the flat indices cu_seqlens[i] .. cu_seqlens[i + 1] - 1.
    """
    raise NotImplementedError


def locate(cu_seqlens: list[int], r: int) -> tuple[int, int]:
    """Find the row that a token of the packed sequence belongs to.

    Args:
        cu_seqlens: [B + 1] as `pack` returns it.
        r: flat index, 0 .. cu_seqlens[-1] - 1.

    Returns:
        row: 0 .. B - 1, the row that feeds token r.
        offset: 0 for the first token which that row feeds.
    """
    raise NotImplementedError
