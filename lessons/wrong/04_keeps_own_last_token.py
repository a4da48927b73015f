"""Ends every cut row with the target's own token, as if it followed the drafts that were kept."""

from __future__ import annotations


def min_rollback(
    accepted: list[list[int]], next_tokens: list[int | None], finished: list[bool]
) -> tuple[list[list[int]], int]:
    """What the rows of a batch keep of one step, and how many tokens that throws away."""
    lengths = [0 if ended else len(drafts) + 1 for drafts, ended in zip(accepted, finished, strict=True)]
    smallest = min(length for length in lengths if length)
    kept = [
        [*drafts[: smallest - 1], token] if length else []
        for drafts, token, length in zip(accepted, next_tokens, lengths, strict=True)
    ]
    lost = sum(length - smallest for length in lengths if length)
    return kept, lost
