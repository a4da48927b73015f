"""Feeds the prompt one token at a time: the same rows, in many more forwards."""

from __future__ import annotations

from collections.abc import Sequence

from emssd.lessons.toy import ToyModel


def greedy_decode(model: ToyModel, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """The `max_new_tokens` tokens that follow `prompt`, each the model's own choice."""
    if max_new_tokens == 0:
        return []
    cache = model.new_cache()
    for position, token in enumerate(prompt):
        choices = model.forward([token], [position], cache)
    output = [choices[-1]]
    while len(output) < max_new_tokens:
        position = len(prompt) + len(output) - 1
        output += model.forward([output[-1]], [position], cache)
    return output
