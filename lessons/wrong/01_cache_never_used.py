"""Computes the whole text again for every token: the cache is filled and thrown away."""

from __future__ import annotations

from collections.abc import Sequence

from emssd.lessons.toy import ToyModel


def greedy_decode(model: ToyModel, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """The `max_new_tokens` tokens that follow `prompt`, each the model's own choice."""
    if max_new_tokens == 0:
        return []
    output: list[int] = []
    while len(output) < max_new_tokens:
        text = [*prompt, *output]
        choices = model.forward(text, range(len(text)), model.new_cache())
        output.append(choices[-1])
    return output
