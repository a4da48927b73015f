"""Checks `greedy_decode`: the right text, one forward for the prompt and one for each further token."""

from __future__ import annotations

from itertools import chain
from random import Random

from emssd.lessons.checking import Failure, Solution
from emssd.lessons.toy import ToyCell, ToyModel, plain_greedy

TITLE = "greedy_decode"
SEEDS = 32
FEW = {4: 0, 7: 1}  # seed -> tokens asked for: the two shortest outputs
_CHOICES = "Follow the choices: the last one of a forward is the token after the last one fed."
_LAST = "The last new token is fed, too, although nobody asks what follows it."


def check(solution: Solution) -> str:
    """Decode random prompts with random models.

    Raises:
        Failure: the first one that goes wrong.
    """
    for seed in range(SEEDS):
        _check_run(solution, seed)
    return f"{SEEDS} random prompts on {SEEDS} models of 2 to 50 tokens: outputs, forwards and rows are right."


def _check_run(solution: Solution, seed: int) -> None:
    draw = Random(f"lesson 1 {seed}")
    vocab_size = draw.choice((2, 3, 7, 13, 50))
    prompt = [draw.randrange(vocab_size) for _ in range(draw.randint(1, 14))]
    wanted = FEW.get(seed, draw.randint(2, 16))
    model = ToyModel(vocab_size, seed)
    output = solution.call(TITLE, model, prompt, wanted, seed=seed)
    if not isinstance(output, list | tuple):
        raise Failure(f"{TITLE} returns a {type(output).__name__}, not a list of token ids.", seed=seed)
    expected = plain_greedy(model, prompt, wanted)
    if list(output) != expected:
        raise _wrong_output(model, prompt, expected, list(output), seed)
    _check_work(model, prompt, expected, seed)


def _wrong_output(model: ToyModel, prompt: list[int], expected: list[int], output: list[object], seed: int) -> Failure:
    if len(output) != len(expected):
        what = f"max_new_tokens is {len(expected)}, and {len(output)} tokens came out."
        if len(output) == len(prompt) + len(expected):
            what += " Return the new tokens only, without the prompt."
        return Failure(what, expected, output, seed=seed, why=_first_wrong_feed(model, prompt, expected))
    first = next(place for place, pair in enumerate(zip(output, expected, strict=True)) if pair[0] != pair[1])
    what = f"For the prompt {prompt}, output token {first} (counted from 0) is wrong."
    return Failure(what, expected, output, seed=seed, why=_first_wrong_feed(model, prompt, expected) or _CHOICES)


def _check_work(model: ToyModel, prompt: list[int], expected: list[int], seed: int) -> None:
    rows = len(prompt) + len(expected) - 1 if expected else 0
    case = f"prompt length {len(prompt)} and max_new_tokens {len(expected)}"
    if model.rows_computed != rows:
        what = f"The output is right, but for {case} the model computed {model.rows_computed} rows instead of {rows}."
        why = _first_wrong_feed(model, prompt, expected) or _LAST
        raise Failure(what, f"{rows} rows", f"{model.rows_computed} rows", seed=seed, why=why)
    if len(model.forwards) != len(expected):
        what = f"The output is right, but for {case} the number of forwards is {len(model.forwards)}."
        why = "Prefill feeds the whole prompt in one forward; then each forward feeds the pending token."
        raise Failure(what, f"{len(expected)} forwards", f"{len(model.forwards)} forwards", seed=seed, why=why)


def _first_wrong_feed(model: ToyModel, prompt: list[int], expected: list[int]) -> str | None:
    """Where what the model was fed first leaves prompt, then each new token once, at its place in the text."""
    text = [*prompt, *expected][: len(prompt) + max(len(expected) - 1, 0)]
    right = [ToyCell(token, position) for position, token in enumerate(text)]
    fed = list(chain.from_iterable(model.forwards))
    place = next((place for place, pair in enumerate(zip(fed, right, strict=False)) if pair[0] != pair[1]), None)
    if place is None:
        return None
    got, number = fed[place], _forward_of(model, place)
    if place >= len(prompt) and got == right[0]:
        return (
            f"Forward {number} feeds the text again from position 0. Its keys and values are in the cache "
            "already: feed only what is new."
        )
    if got.token_id == right[place].token_id:
        return (
            f"Forward {number} feeds token {got.token_id} at position {got.position}; in the text it stands at "
            f"position {right[place].position} (the prompt has {len(prompt)} tokens)."
        )
    if place and got.token_id == fed[place - 1].token_id:
        return (
            f"Forward {number} feeds token {got.token_id} a second time: the token before the new one is in the cache."
        )
    return f"Forward {number} feeds token {got.token_id} where token {right[place].token_id} comes next in the text."


def _forward_of(model: ToyModel, place: int) -> int:
    """Number of the forward, from 1, that fed the token at `place`."""
    done = 0
    for number, fed in enumerate(model.forwards, 1):
        done += len(fed)
        if place < done:
            return number
    return len(model.forwards)
