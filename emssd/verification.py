"""Which drafts are kept: pure tensor functions, one result per row, no loop over rows and no transfer."""

from __future__ import annotations

import torch
from torch import Tensor


def verify_greedy(
    target_token_ids: Tensor, draft_token_ids: Tensor, num_drafted: Tensor, eos_token_ids: Tensor
) -> tuple[Tensor, Tensor]:
    """Keep the leading run of drafts that the target would have chosen itself (paper, section 3).

    Words: an *accepted* token is a draft that is kept; the *recovered* token is the target's own in place of the first
    rejected draft; the *bonus* token is the target's own after all drafts were kept.
    The walk stops at the first mismatch, or at an accepted end-of-sequence token, which is then the last emitted one.
    What a row emits is `target_token_ids[row, :num_emitted]`, since accepted drafts equal the target's choices.

    Args:
        target_token_ids: [rows, K + 1] the target's choice after the pending token and after each draft.
        draft_token_ids: [rows, K] drafts; entries from `num_drafted` on are not looked at.
        num_drafted: [rows] drafts of each row, 0..K.
        eos_token_ids: [any number] token ids that end a row.

    Returns:
        num_accepted [rows], 0..num_drafted, and num_emitted [rows], num_accepted + 1 or num_accepted after an
        accepted end-of-sequence token.
    """
    width = draft_token_ids.shape[1]
    drafted = torch.arange(width, device=draft_token_ids.device) < num_drafted[:, None]  # (rows, K)
    ends = torch.isin(draft_token_ids, eos_token_ids) & drafted
    before_end = ends.cumsum(dim=1) - ends.long() == 0
    matches = (target_token_ids[:, :width] == draft_token_ids) & drafted & before_end
    leading = matches.long().cumprod(dim=1)  # (rows, K): 1 up to the first mismatch
    num_accepted = leading.sum(dim=1)
    ended = (leading.bool() & ends).any(dim=1)
    return num_accepted, num_accepted + (~ended).long()
