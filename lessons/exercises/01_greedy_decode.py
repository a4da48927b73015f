"""Lesson 1: decode greedily with a KV cache.

Feed the prompt once, then one token at a time. Every forward writes the keys and values of what it is fed to the
cache, so nothing is ever fed twice. Only new tokens are returned:

    model = ToyModel(vocab_size=7, seed=3)
    greedy_decode(model, [4, 1, 5], 4)  ->  a list of 4 token ids; 3 + 4 - 1 = 6 input rows in 4 forwards
"""

from __future__ import annotations

from collections.abc import Sequence

from emssd.lessons.toy import ToyModel


def greedy_decode(model: ToyModel, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """The `max_new_tokens` tokens that follow `prompt`, each the model's own choice.

    What the model offers:
        cache = model.new_cache()                            an empty cache for this text
        choices = model.forward(token_ids, position_ids, cache)
            token_ids, position_ids: [n] tokens to feed, and where each stands in the text, counted from 0.
            choices: [n] for each fed token, the model's choice of the token after it.
            The cache grows by n cells. The query of token i reads all older cells and those of tokens 0 .. i of this
            call: its own, and none behind it.

    Args:
        model: a model; its tokens are whole numbers from 0.
        prompt: [P] token ids, at least one.
        max_new_tokens: how many to return; 0 returns [] without a forward.

    Returns:
        [max_new_tokens] new token ids, without the prompt. Forwards: `max_new_tokens`, the first one for the whole
        prompt. Input rows: P + max_new_tokens - 1.
    """
    raise NotImplementedError
