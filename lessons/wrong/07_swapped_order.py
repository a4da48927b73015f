"""Returns cu_seqlens before the tokens, and the offset before the row."""

from __future__ import annotations


def pack(rows: list[list[int]]) -> tuple[list[int], list[int]]:
    """Lay the rows' tokens one after another: tokens [N], cu_seqlens [B + 1]."""
    tokens: list[int] = []
    cu_seqlens = [0]
    for row in rows:
        tokens.extend(row)
        cu_seqlens.append(len(tokens))  # an empty row repeats the number before it
    return cu_seqlens, tokens


def locate(cu_seqlens: list[int], r: int) -> tuple[int, int]:
    """Find the row and the offset of flat index r."""
    row = 0
    while r >= cu_seqlens[row + 1]:
        row += 1
    return r - cu_seqlens[row], row
