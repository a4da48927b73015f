"""Collects the strip in the caller's own list of row 0.

The answer is right, but row 0 now holds every row's tokens, and a batch without rows has no row 0.
"""

from __future__ import annotations


def pack(rows: list[list[int]]) -> tuple[list[int], list[int]]:
    """Lay the rows' tokens one after another: tokens [N], cu_seqlens [B + 1]."""
    cu_seqlens = [0]
    for row in rows:
        cu_seqlens.append(cu_seqlens[-1] + len(row))
    if not rows:
        return [], cu_seqlens
    tokens = rows[0]
    for row in rows[1:]:
        tokens += row
    return tokens, cu_seqlens


def locate(cu_seqlens: list[int], r: int) -> tuple[int, int]:
    """Find the row and the offset of flat index r."""
    row = 0
    while r >= cu_seqlens[row + 1]:
        row += 1
    return row, r - cu_seqlens[row]
