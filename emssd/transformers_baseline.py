"""The `transformers` package decoding one prompt, timed like ours: from its first token to its last."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from emssd.language_model import LanguageModel
from emssd.oracle import greedy_settings, plain_limit


@dataclass(frozen=True)
class TimedOutput:
    """What `generate` put out.

    Args:
        token_ids: new tokens.
        seconds: from the end of its first iteration, which holds prefill, to the end of its last.
        decode_tokens: tokens of the iterations after the first.
        steps: iterations after the first.
    """

    token_ids: list[int]
    seconds: float
    decode_tokens: int
    steps: int


class _Clock(StoppingCriteria):
    """Stops nothing; notes time and length after every iteration."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.ticks: list[tuple[float, int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.ticks.append((time.perf_counter(), input_ids.shape[1]))
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


@torch.inference_mode()
def timed_generate(
    lm: LanguageModel,
    prompt: Sequence[int],
    max_new_tokens: int,
    eos_token_ids: Sequence[int],
    lookup_tokens: int | None = None,
    ngram_size: int = 2,
) -> TimedOutput:
    """Greedy `generate` of one prompt.

    Args:
        lm: the model; its own generation settings are left out.
        prompt: [P] token ids.
        max_new_tokens: most tokens to put out.
        eos_token_ids: ids that end the output.
        lookup_tokens: draft this many by the package's own prompt lookup; None drafts nothing.
        ngram_size: its longest key.
    """
    lookup: dict[str, int] = {}
    if lookup_tokens is not None:
        lookup = {"prompt_lookup_num_tokens": lookup_tokens, "max_matching_ngram_size": ngram_size}
    limit = plain_limit(lm, len(prompt), max_new_tokens)
    settings = greedy_settings(lm, limit, eos_token_ids, **lookup)
    inputs = torch.tensor([list(prompt)], device=lm.device)  # (1, P)
    clock = _Clock(lm.device)
    output = lm.oracle.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        generation_config=settings,
        stopping_criteria=StoppingCriteriaList([clock]),
    )
    (began, first), (ended, last) = clock.ticks[0], clock.ticks[-1]
    return TimedOutput(output[0, len(prompt) :].tolist(), ended - began, last - first, len(clock.ticks) - 1)
