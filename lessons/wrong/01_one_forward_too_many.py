"""Feeds the last token as well, though nobody asks what follows it."""

from __future__ import annotations

from collections.abc import Sequence

from emssd.lessons.toy import ToyModel


def greedy_decode(model: ToyModel, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """The `max_new_tokens` tokens that follow `prompt`, each the model's own choice."""
    if max_new_tokens == 0:
        return []
    cache = model.new_cache()
    choices = model.forward(prompt, range(len(prompt)), cache)
    pending, output = choices[-1], []
    while len(output) < max_new_tokens:
        output.append(pending)
        position = len(prompt) + len(output) - 1
        (pending,) = model.forward([pending], [position], cache)
    return output
