"""Counts the target's own token as an accepted draft."""

from __future__ import annotations

from collections.abc import Sequence


def verify_greedy(
    draft: Sequence[int], target: Sequence[int], eos_token_ids: Sequence[int] = ()
) -> tuple[int, list[int]]:
    """Keep the leading drafts that the target would have chosen itself, then add the target's own next token."""
    num_accepted = 0
    while num_accepted < len(draft) and draft[num_accepted] == target[num_accepted]:
        num_accepted += 1
        if draft[num_accepted - 1] in eos_token_ids:
            return num_accepted, list(target[:num_accepted])
    return num_accepted + 1, list(target[: num_accepted + 1])
