"""Takes row 0 for the slowest row."""

from __future__ import annotations


def min_rollback(
    accepted: list[list[int]], next_tokens: list[int | None], finished: list[bool]
) -> tuple[list[list[int]], int]:
    """What the rows of a batch keep of one step, and how many tokens that throws away."""
    gained = [
        [] if ended else [*drafts, token] for drafts, token, ended in zip(accepted, next_tokens, finished, strict=True)
    ]
    smallest = next(len(tokens) for tokens, ended in zip(gained, finished, strict=True) if not ended)
    kept = [tokens[:smallest] for tokens in gained]
    lost = sum(max(len(tokens) - smallest, 0) for tokens, ended in zip(gained, finished, strict=True) if not ended)
    return kept, lost
