"""Which drafts are kept, and how close the target's choices were: pure tensor functions, no loop over rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

GAP_DIGITS = 4  # what lies beyond is rounding: the smallest gap that counts as a choice is 1e-3 in float32


@dataclass(frozen=True)
class TopTokens:
    """The target's best few tokens.

    Args:
        token_ids: [rows][judged positions][k], the best first.
        logit_gaps: [rows][judged positions][k] logit of the best one minus this one's, rounded to `GAP_DIGITS`.
    """

    token_ids: list[list[list[int]]]
    logit_gaps: list[list[list[float]]]


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


def top_tokens(logits: Tensor, target_token_ids: Tensor, counts: Sequence[int], num_top_tokens: int) -> TopTokens:
    """The target's best few tokens at some positions, in one transfer.

    Among equal logits the target's own choice comes first.

    Args:
        logits: [positions, vocabulary] of the positions asked for, row after row. Changed.
        target_token_ids: [positions] the target's choice at each.
        counts: [rows] positions of each row.
        num_top_tokens: how many; fewer where the vocabulary is smaller.
    """
    chosen = target_token_ids[:, None]
    best = logits.gather(1, chosen)  # (positions, 1)
    logits.scatter_(1, chosen, float("inf"))
    values, ids = logits.topk(min(num_top_tokens, logits.shape[1]), dim=-1)  # (positions, k)
    values[:, :1] = best
    gaps = (best - values).float().nan_to_num(posinf=torch.finfo(torch.float32).max)
    both = torch.stack([ids.int(), gaps.view(torch.int32)]).cpu()  # gaps travel as bits, so that one transfer is enough
    token_ids = both[0].tolist()
    logit_gaps = [[round(gap, GAP_DIGITS) for gap in gaps_here] for gaps_here in both[1].view(torch.float32).tolist()]
    ends = list(pairwise(accumulate(counts, initial=0)))
    return TopTokens([token_ids[a:b] for a, b in ends], [logit_gaps[a:b] for a, b in ends])
