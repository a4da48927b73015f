"""Lesson 7, one solution: a running total going in, a scan over it coming out."""

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
    while r >= cu_seqlens[row + 1]:
        row += 1
    return row, r - cu_seqlens[row]
