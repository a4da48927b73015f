"""Takes the first choice of prefill for the next token, not the last one."""

from __future__ import annotations

from collections.abc import Sequence

from emssd.lessons.toy import ToyModel


def greedy_decode(model: ToyModel, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """The `max_new_tokens` tokens that follow `prompt`, each the model's own choice."""
    if max_new_tokens == 0:
        return []
    cache = model.new_cache()
    choices = model.forward(prompt, range(len(prompt)), cache)  # prefill
    output = [choices[0]]
    while len(output) < max_new_tokens:
        pending = output[-1]
        position = len(prompt) + len(output) - 1  # of the pending token: the cache holds all before it
        output += model.forward([pending], [position], cache)
    return output
