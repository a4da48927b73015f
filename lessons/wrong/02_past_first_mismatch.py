"""Counts all matches, also those behind the first mismatch."""

from __future__ import annotations

from collections.abc import Sequence


def verify_greedy(
    draft: Sequence[int], target: Sequence[int], eos_token_ids: Sequence[int] = ()
) -> tuple[int, list[int]]:
    """Keep the leading drafts that the target would have chosen itself, then add the target's own next token."""
    num_accepted = 0
    for drafted, wanted in zip(draft, target, strict=False):
        if drafted == wanted:
            num_accepted += 1
            if drafted in eos_token_ids:
                return num_accepted, list(target[:num_accepted])
    return num_accepted, list(target[: num_accepted + 1])
