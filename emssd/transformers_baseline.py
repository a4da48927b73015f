"""The `transformers` package decoding one prompt, timed like ours: from its first token to its last."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from emssd.language_model import LanguageModel


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
    limit = max_new_tokens
    if lm.context_length is not None:
        limit = min(limit, lm.context_length - len(prompt) + 1)
    lookup = {} if lookup_tokens is None else {"prompt_lookup_num_tokens": lookup_tokens}
    if lookup:
        lookup["max_matching_ngram_size"] = ngram_size
    settings = GenerationConfig(
        max_new_tokens=limit,
        do_sample=False,
        num_beams=1,
        use_cache=True,
        eos_token_id=list(eos_token_ids) or None,
        pad_token_id=lm.pad_token_id,
        **lookup,
    )
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
