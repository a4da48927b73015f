"""Plain decoding by transformers itself, and what it means when an output differs from it.

Nothing here uses our cache, attention or loop: the model's own `generate` gives the expected output, and a recompute of
the whole text without a cache (teacher forcing) tells a rounding tie from a real difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig

from emssd.invariants import tie_gap
from emssd.language_model import LanguageModel
from emssd.model_runner import full_logits


@dataclass(frozen=True)
class Difference:
    """The first place where an output leaves the expected one.

    Args:
        row: request index.
        position: index in the output, from 0.
        expected, got: the two tokens there; None where that output has already ended.
        gap: how far the lower of the two logits lies below the best one at that position, by teacher forcing;
            None where one output has ended.
        near_tie: the gap is rounding, and every later token of ours is the plain model's own choice given ours.
    """

    row: int
    position: int
    expected: int | None
    got: int | None
    gap: float | None
    near_tie: bool


@torch.inference_mode()
def plain_generate(
    lm: LanguageModel, prompt_ids: Sequence[int], max_new_tokens: int, eos_token_ids: Sequence[int] = ()
) -> list[int]:
    """Greedy output of transformers' own `generate` for one prompt alone: new tokens only, an end of sequence included.

    The model's own generation settings (penalties, suppressed tokens, sampling) are left out. A model with C positions
    is fed at most C tokens, so at most C - P + 1 tokens come out.

    Args:
        lm: the model.
        prompt_ids: [P] the prompt.
        max_new_tokens: most tokens to put out; 0 gives [] without a forward.
        eos_token_ids: ids that end the output; () for none.
    """
    limit = plain_limit(lm, len(prompt_ids), max_new_tokens)
    if limit <= 0:
        return []
    settings = greedy_settings(lm, limit, eos_token_ids)
    inputs = torch.tensor([list(prompt_ids)], device=lm.device)  # (1, P)
    output = lm.oracle.generate(inputs, attention_mask=torch.ones_like(inputs), generation_config=settings)
    return [int(token) for token in output[0, inputs.shape[1] :].tolist()]


def plain_limit(lm: LanguageModel, prompt_length: int, max_new_tokens: int) -> int:
    """Tokens that plain decoding may put out: the model is fed no more than it has positions for."""
    if lm.context_length is None:
        return max_new_tokens
    return min(max_new_tokens, lm.context_length - prompt_length + 1)


def greedy_settings(lm: LanguageModel, limit: int, eos_token_ids: Sequence[int], **more: Any) -> GenerationConfig:
    """Settings of plain decoding by transformers.

    Args:
        lm: the model.
        limit: most tokens to put out, at least 1.
        eos_token_ids: ids that end the output; () for none.
        more: further fields.
    """
    return GenerationConfig(
        max_new_tokens=limit,
        do_sample=False,
        num_beams=1,
        use_cache=True,
        eos_token_id=list(eos_token_ids) or None,
        pad_token_id=lm.pad_token_id,
        **more,
    )


def teacher_forced_gaps(lm: LanguageModel, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> list[float]:
    """How far each output token's logit lies below the best one, when the plain model reads the text before it.

    Returns:
        [len(output_ids)] gaps from 0 (the token is the model's own greedy choice).
    """
    if not output_ids:
        return []
    logits = _forced_logits(lm, prompt_ids, output_ids)
    own = logits.gather(1, torch.tensor(list(output_ids), device=logits.device)[:, None])[:, 0]
    return [float(gap) for gap in (logits.max(dim=-1).values - own).tolist()]


def _forced_logits(lm: LanguageModel, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> torch.Tensor:
    """[len(output_ids), vocabulary] logits from which each output token was to be chosen."""
    return full_logits(lm.oracle, [*prompt_ids, *output_ids][:-1], len(output_ids)).float()


def compare_outputs(
    lm: LanguageModel,
    prompt_ids: Sequence[int],
    expected: Sequence[int],
    got: Sequence[int],
    *,
    row: int = 0,
    max_new_tokens: int | None = None,
    eos_token_ids: Sequence[int] | None = None,
) -> Difference | None:
    """Hold one output against the expected one.

    A difference is a near-tie when, at the first position that differs, both tokens lie within `tie_gap(dtype)` of the
    best logit, every later token of ours does too, and ours ends where it should.

    Args:
        lm: the model that made `got`.
        prompt_ids: [P] the prompt of both.
        expected: the output to be equal to.
        got: our output.
        row: request index, for the report.
        max_new_tokens: the limit both were made under; None does not check where ours ends by length.
        eos_token_ids: ids that end an output; None takes the model's.

    Returns:
        None where the two are equal.
    """
    if list(expected) == list(got):
        return None
    shorter = min(len(expected), len(got))
    position = next((place for place in range(shorter) if expected[place] != got[place]), shorter)
    if position == shorter:
        wanted = expected[position] if position < len(expected) else None
        mine = got[position] if position < len(got) else None
        return Difference(row, position, wanted, mine, None, False)
    ties = _token_gap(lm, prompt_ids, [*got[:position], expected[position]])
    gaps = teacher_forced_gaps(lm, prompt_ids, got)[position:]
    gap, allowed = max(ties, gaps[0]), tie_gap(lm.dtype)
    ends = _ends_right(
        lm, prompt_ids, got, max_new_tokens, lm.eos_token_ids if eos_token_ids is None else eos_token_ids
    )
    near_tie = gap < allowed and max(gaps) < allowed and ends
    return Difference(row, position, expected[position], got[position], gap, near_tie)


def _token_gap(lm: LanguageModel, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> float:
    return teacher_forced_gaps(lm, prompt_ids, output_ids)[-1]


def _ends_right(
    lm: LanguageModel, prompt_ids: Sequence[int], got: Sequence[int], limit: int | None, eos: Sequence[int]
) -> bool:
    """Whether an output ends at its first end-of-sequence token, or else at its limit."""
    if any(token in eos for token in got[:-1]):
        return False
    if got[-1] in eos or limit is None:
        return True
    if lm.context_length is not None:
        limit = min(limit, lm.context_length - len(prompt_ids) + 1)
    return len(got) == limit
