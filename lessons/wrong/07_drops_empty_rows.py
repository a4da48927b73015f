"""Leaves finished rows out of cu_seqlens.

The tokens are right, but the rows after a finished one are counted one too low: row 2 is found as row 1.
"""

from __future__ import annotations


def pack(rows: list[list[int]]) -> tuple[list[int], list[int]]:
    """Lay the rows' tokens one after another: tokens [N], cu_seqlens [B + 1]."""
    tokens: list[int] = []
    cu_seqlens = [0]
    for row in rows:
        if not row:  # nothing to feed, so nothing to note
            continue
        tokens.extend(row)
        cu_seqlens.append(len(tokens))
    return tokens, cu_seqlens


def locate(cu_seqlens: list[int], r: int) -> tuple[int, int]:
    """Find the row and the offset of flat index r."""
    row = 0
    while r >= cu_seqlens[row + 1]:
        row += 1
    return row, r - cu_seqlens[row]
