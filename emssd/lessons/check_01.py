"""Checks `greedy_decode`: the right text, one forward for the prompt and one for each further token."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from emssd.lessons.answers import whole
from emssd.lessons.checking import Failure, Solution, short
from emssd.lessons.toy import ToyCell, ToyModel, plain_greedy
from emssd.lessons.toy_trace import one_row_trace
from emssd.trace import GenerationTrace

TITLE = "greedy_decode"
SEEDS = 32
FEW = {4: 0, 7: 1}  # seed -> tokens asked for: the two shortest outputs
_CHOICES = "Follow the choices: the last one of a forward is the token after the last one fed."
_FORWARDS = "Prefill feeds the whole prompt in one forward; then each forward feeds the pending token."
_NONE = "0 tokens need no forward: return an empty list before anything is fed."
_LAST = "The last new token is fed, too, although nobody asks what follows it."


def check(solution: Solution) -> str:
    """Decode random prompts with random models.

    Raises:
        Failure: the first one that goes wrong.
    """
    for seed, vocab_size, prompt, wanted in sorted(map(_case, range(SEEDS)), key=_size):
        _check_run(solution, seed, ToyModel(vocab_size, seed), prompt, wanted)
    return f"{SEEDS} random prompts on {SEEDS} models of 2 to 50 tokens: outputs, forwards and fed tokens are right."


def _case(seed: int) -> tuple[int, int, list[int], int]:
    """Seed, tokens of the vocabulary, prompt, and tokens asked for."""
    draw = Random(f"lesson 1 {seed}")
    vocab_size = draw.choice((2, 3, 7, 13, 50))
    prompt = [draw.randrange(vocab_size) for _ in range(draw.randint(1, 14))]
    return seed, vocab_size, prompt, FEW.get(seed, draw.randint(2, 16))


def _size(case: tuple[int, int, list[int], int]) -> tuple[bool, bool, int]:
    """Cases whose prefill choices all differ first, the short ones first; last those that many mistakes pass."""
    seed, vocab_size, prompt, wanted = case
    choices = _choices(ToyModel(vocab_size, seed), prompt)
    return min(vocab_size, 2 * len(prompt), wanted) < 3, len({*choices}) < len(choices), len(prompt) + wanted


def _choices(model: ToyModel, prompt: list[int]) -> list[int]:
    """[P] what prefill returns: the model's choice after each token of the prompt."""
    cells = _cells(prompt)
    return [model.choose(cells[: place + 1], cell) for place, cell in enumerate(cells)]


def _cells(text: list[int]) -> list[ToyCell]:
    """What a text leaves in the cache."""
    return [ToyCell(token, position) for position, token in enumerate(text)]


def _check_run(solution: Solution, seed: int, model: ToyModel, prompt: list[int], wanted: int) -> None:
    output = solution.call(TITLE, model, prompt, wanted, seed=seed)
    if not isinstance(output, list | tuple):
        raise Failure(f"{TITLE} must return a list of token ids, not {short(output, 60)}.", seed=seed)
    run = Run(model, prompt, plain_greedy(model, prompt, wanted), seed)
    if list(output) != run.expected:
        raise _wrong_output(run, list(output))
    _check_work(run)


def _wrong_output(run: Run, output: list[object]) -> Failure:
    for place, item in enumerate(output):
        if whole(item) is None:
            what = f"Output token {place} (counted from 0) must be a token id, not {short(item, 60)}."
            why = "A forward returns a list: one choice for each fed token." if isinstance(item, list) else None
            return Failure(what, run.expected, output, row=0, step=place, seed=run.seed, why=why)
    if why := run.prefill_mistake(output):
        what = f"For the prompt {run.prompt}, output token 0 is not what follows the whole prompt."
        if output[:1] == run.expected[:1]:
            what = f"For the prompt {run.prompt}, more than one token was taken from prefill."
        return run.failure(what, run.expected, output, why, told=why)
    if len(output) != len(run.expected):
        many = "1 token" if len(output) == 1 else f"{len(output)} tokens"
        what = f"For the prompt {run.prompt}, max_new_tokens is {len(run.expected)}, and {many} came out."
        if not run.expected:
            return run.failure(what, run.expected, output, _NONE, told=_NONE)
        if len(output) == len(run.prompt) + len(run.expected):
            what += " Return the new tokens only, without the prompt."
        return run.failure(what, run.expected, output, None)
    first = next(place for place, pair in enumerate(zip(output, run.expected, strict=True)) if pair[0] != pair[1])
    what = f"For the prompt {run.prompt}, output token {first} (counted from 0) is wrong."
    return run.failure(what, run.expected, output, _CHOICES, first)


def _check_work(run: Run) -> None:
    model, prompt, wanted = run.model, run.prompt, len(run.expected)
    rows = len(prompt) + wanted - 1 if wanted else 0
    case = f"The output is right, but for prompt length {len(prompt)} and max_new_tokens {wanted} the"
    if model.rows_computed != rows:
        what = f"{case} model was fed {model.rows_computed} tokens (input rows) instead of {rows}."
        raise run.failure(what, rows, model.rows_computed, _LAST if wanted else _NONE, max(wanted - 1, 0))
    if len(model.forwards) != wanted:
        what = f"{case} number of forwards is {len(model.forwards)} instead of {wanted}."
        raise run.failure(what, wanted, len(model.forwards), _FORWARDS)


@dataclass(frozen=True)
class Run:
    """One case: what the model was fed is in `model.forwards`."""

    model: ToyModel
    prompt: list[int]
    expected: list[int]
    seed: int

    def failure(
        self,
        what: str,
        expected: object,
        got: object,
        otherwise: str | None,
        step: int = 0,
        told: str | None = None,
    ) -> Failure:
        """The report. Its reason is `told`, else the first wrong feed or cache, else `otherwise`."""
        why, forward = (told, step) if told else self._first_fault() or (otherwise, step)
        step = max(min(forward, len(self.expected) - 1), 0)
        return Failure(
            what,
            expected,
            got,
            row=0,
            step=step,
            seed=self.seed,
            why=why,
            traces=self._traces(),
            sub="attend",
        )

    def prefill_mistake(self, output: list[object]) -> str | None:
        """What was taken from a right prefill, if it was not the last choice, and that alone."""
        forwards, length = self.model.forwards, len(self.prompt)
        if not self.expected or not forwards or forwards[0] != _cells(self.prompt) or self.model.cells_read[0] != 1:
            return None
        choices = _choices(self.model, self.prompt)
        kept = min(length, len(output))
        if kept > 1 and output[:kept] == choices[:kept] and output[:kept] != self.expected[:kept]:
            return f"After prefill only the last choice is news: it follows the whole prompt. You kept {kept}."
        goes_on = len(forwards) == 1 or forwards[1][0].token_id == output[0] if output else False
        if goes_on and output[0] in choices[:-1] and output[0] != choices[-1]:
            number = choices.index(output[0])
            return (
                f"After prefill only the last choice is news: choice {length - 1}. Yours is choice {number}, which "
                f"follows the beginning {self.prompt[: number + 1]} of the prompt."
            )
        return None

    def _first_fault(self) -> tuple[str, int] | None:
        """The first wrong feed, or the first feed into a wrong cache if that comes earlier."""
        faults = [fault for fault in (self.first_wrong_feed(), self._wrong_cache()) if fault]
        return min(faults, key=lambda fault: fault[1], default=None)

    def _wrong_cache(self) -> tuple[str, int] | None:
        """The first forward whose first query does not read all cells before it and its own."""
        before = 0
        for number, (fed, read) in enumerate(zip(self.model.forwards, self.model.cells_read, strict=True)):
            if read != before + 1:
                reason = "it got a new cache" if read == 1 else "its cache holds cells of other tokens, too"
                if 1 < read <= before:
                    reason = "its cache lacks some"
                cells = "1 cell" if read == 1 else f"{read} cells"
                forward = f"Forward {number + 1} (step {number})" if number else "The first forward"
                return f"{forward}: its first query read {cells} instead of {before + 1}: {reason}.", number
            before += len(fed)
        return None

    def first_wrong_feed(self) -> tuple[str, int] | None:
        """Where the model's inputs first differ from the prompt, then each new token once at its place in the text.

        Returns:
            A sentence, and the forward counted from 0 as steps are; None where no input is wrong.
        """
        text = [*self.prompt, *self.expected][: len(self.prompt) + max(len(self.expected) - 1, 0)]
        right = _cells(text)
        fed = [(cell, number) for number, cells in enumerate(self.model.forwards) for cell in cells]
        for place, ((got, number), wanted) in enumerate(zip(fed, right, strict=False)):
            if got != wanted:
                before = fed[place - 1][0].token_id if place else None
                forward = f"Forward {number + 1} (step {number})" if number else "The first forward"
                return f"{forward} feeds {self._fault(got, wanted, place, before)}", number
        return None

    def _fault(self, got: ToyCell, wanted: ToyCell, place: int, before: int | None) -> str:
        length = len(self.prompt)
        if place >= length and got == ToyCell(self.prompt[0], 0):
            return (
                "the text again from position 0. Its keys and values are in the cache already: feed only what is new."
            )
        if got.token_id == wanted.token_id:
            return (
                f"token {got.token_id} at position {got.position}; in the text it stands at position {wanted.position} "
                f"(the prompt has {length} tokens)."
            )
        if got.token_id == before:
            return f"token {got.token_id} again: its cell is in the cache already."
        return f"token {got.token_id} where token {wanted.token_id} comes next in the text."

    def _traces(self) -> dict[str, GenerationTrace]:
        if not self.expected:
            return {}
        return {"greedy": one_row_trace("greedy", self.prompt, self.expected, [], self.model.vocab_size)}
