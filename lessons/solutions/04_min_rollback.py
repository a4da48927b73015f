"""Lesson 4, one solution: every live row keeps as many tokens as the slowest live row gained."""

from __future__ import annotations


def min_rollback(
    accepted: list[list[int]], next_tokens: list[int | None], finished: list[bool]
) -> tuple[list[list[int]], int]:
    """What the rows of a batch keep of one step, and how many tokens that throws away.

    Args:
        accepted: [rows] ids of the drafts that the target accepted, in order; a row may have accepted none.
        next_tokens: [rows] the target's own token after them; None for a finished row.
        finished: [rows] True where the row had ended before this step. Such a row gained nothing.

    Returns:
        kept: [rows] the token ids that each row keeps; [] for a finished row.
        lost: tokens gained but not kept, over all rows.
    """
    gained = [
        [] if ended else [*drafts, token] for drafts, token, ended in zip(accepted, next_tokens, finished, strict=True)
    ]
    smallest = min(len(tokens) for tokens, ended in zip(gained, finished, strict=True) if not ended)
    kept = [tokens[:smallest] for tokens in gained]
    lost = sum(len(tokens) - smallest for tokens, ended in zip(gained, finished, strict=True) if not ended)
    return kept, lost
