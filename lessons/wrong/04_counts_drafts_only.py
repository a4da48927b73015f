"""Counts accepted drafts only and forgets that the target's own token is gained, too."""

from __future__ import annotations


def min_rollback(
    accepted: list[list[int]], next_tokens: list[int | None], finished: list[bool]
) -> tuple[list[list[int]], int]:
    """What the rows of a batch keep of one step, and how many tokens that throws away."""
    live = [drafts for drafts, ended in zip(accepted, finished, strict=True) if not ended]
    smallest = min(len(drafts) for drafts in live)
    kept = [drafts[:smallest] for drafts in accepted]
    lost = sum(len(drafts) - smallest for drafts in live)
    return kept, lost
