"""Divides by the widest row, as in a padded rectangle.

In a rectangle r // width is the row and r % width the offset; a packed sequence has no common width.
"""

from __future__ import annotations

from itertools import pairwise


def pack(rows: list[list[int]]) -> tuple[list[int], list[int]]:
    """Lay the rows' tokens one after another: tokens [N], cu_seqlens [B + 1]."""
    tokens: list[int] = []
    cu_seqlens = [0]
    for row in rows:
        tokens.extend(row)
        cu_seqlens.append(len(tokens))  # an empty row repeats the number before it
    return tokens, cu_seqlens


def locate(cu_seqlens: list[int], r: int) -> tuple[int, int]:
    """Find the row and the offset of flat index r."""
    width = max(end - start for start, end in pairwise(cu_seqlens))
    return r // width, r % width
