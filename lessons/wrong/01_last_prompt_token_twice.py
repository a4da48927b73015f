"""Starts decoding with the last prompt token, which prefill has fed already."""

from __future__ import annotations

from collections.abc import Sequence

from emssd.lessons.toy import ToyModel


def greedy_decode(model: ToyModel, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """The `max_new_tokens` tokens that follow `prompt`, each the model's own choice."""
    if max_new_tokens == 0:
        return []
    cache = model.new_cache()
    model.forward(prompt, range(len(prompt)), cache)
    pending, output = prompt[-1], []
    while len(output) < max_new_tokens:
        position = len(prompt) + len(output)
        (pending,) = model.forward([pending], [position], cache)
        output.append(pending)
    return output
