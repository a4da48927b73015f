"""One toy run with each of lesson 3's bugs and without: the same prompt, model and drafts, so that a bug is a switch.

The drafter has a guess of the whole output, right in most places; a step that begins after n output tokens gets the
guesses from n on. Of each bug the kind is taken that an ordinary trace can carry, where what a query reads follows from
the write cursor: a stale cell is read because the row's length is not lowered, so that later tokens stand behind it;
of a wrong draft that is accepted, the target's answer behind it follows, as if the draft had been right.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from random import Random

from emssd.lessons.faulty_runs import (
    BONUS_MISSING,
    BUGS,
    STALE_CELLS_READ,
    WRONG_TOKEN_ACCEPTED,
    Evidence,
    StepEvidence,
    ToyRun,
)
from emssd.lessons.toy import ToyModel, plain_greedy

DRAFTS = 3
WANTED = 9
MOST_STEPS = 4
MOST_SLOTS = 26
GUESSED_RIGHT = 0.7


@dataclass(frozen=True)
class BrokenRuns:
    """A row of a padded batch, decoded with and without each bug.

    Args:
        longest: tokens of the batch's longest prompt: the slot from which decoded tokens are written.
        vocab_size: token ids are 0 .. vocab_size - 1.
        runs: by bug, None for the right run.
    """

    longest: int
    vocab_size: int
    runs: dict[str | None, Evidence]

    def extra_steps(self, bug: str | None) -> int:
        """Steps that a run takes more than the right one."""
        return len(self.runs[bug].steps) - len(self.runs[None].steps)


def first_wrong_token(run: Evidence) -> tuple[int, int] | None:
    """(index in the output, step that emitted it) of the first token that greedy decoding does not put out.

    Steps count from 1. None where the output is right.
    """
    wrong = (place for place, pair in enumerate(zip(run.output, run.right_output, strict=True)) if pair[0] != pair[1])
    index = next(wrong, None)
    if index is None:
        return None
    done = 1
    for number, step in enumerate(run.steps, 1):
        done += len(step.emitted_token_ids)
        if done > index:
            return index, number
    raise ValueError("The steps do not put out the whole output.")


@lru_cache(maxsize=64)
def broken_runs(seed: int) -> BrokenRuns:
    """The runs of a seed, in which every bug shows: all but the missing bonus make a wrong token, that one costs steps.

    Shared between callers: read it, do not change it.
    """
    for attempt in range(10_000):
        made = _made(f"broken runs {seed} {attempt}")
        if _tells(made):
            return made
    raise RuntimeError(f"No run of seed {seed} shows every bug.")


def _made(seed: str) -> BrokenRuns:
    runs, decoders = dict[str | None, Evidence](), [_GuessedRun(bug, Random(seed)) for bug in (None, *BUGS)]
    for decoder in decoders:
        runs[decoder.bug] = decoder.decode()
    return BrokenRuns(decoders[0].longest, decoders[0].model.vocab_size, runs)


def _tells(made: BrokenRuns) -> bool:
    """Whether every bug shows, and the runs are short enough to be looked at."""
    right, runs = made.runs[None], made.runs
    full = [step.input_token_ids[1:] == step.target_token_ids[:-1] for step in right.steps if step.input_token_ids[1:]]
    wrong = [first_wrong_token(runs[bug]) is not None for bug in BUGS]
    return (
        len(right.steps) <= MOST_STEPS
        and any(full)
        and not all(full)
        and wrong == [bug != BONUS_MISSING for bug in BUGS]
        and made.extra_steps(BONUS_MISSING) > 0
        and runs[STALE_CELLS_READ].steps[-1].slots[-1] < MOST_SLOTS
        and not any(map(_is_ambiguous, runs[WRONG_TOKEN_ACCEPTED].steps))
    )


def _is_ambiguous(step: StepEvidence) -> bool:
    """Whether the target's own token is the next draft: then it cannot be seen which of the two was put out."""
    gained = len(step.emitted_token_ids)
    return step.emitted_token_ids == step.input_token_ids[1 : 1 + gained]


class _GuessedRun(ToyRun):
    """A run whose drafts are guesses from the drafter's own text."""

    def __post_init__(self) -> None:
        draw = self.draw
        self.model = ToyModel(draw.randint(6, 9), draw.randrange(10**6))
        self.prompt = [draw.randrange(self.model.vocab_size) for _ in range(draw.randint(3, 5))]
        self.wanted = WANTED
        self.right = plain_greedy(self.model, self.prompt, WANTED)
        self.next_slot = self.longest = len(self.prompt) + draw.randint(2, 3)
        self.kind = self.rejections = self.full = 0
        self.guess = [token if draw.random() < GUESSED_RIGHT else self._other(token) for token in self.right]

    def _other(self, token: int) -> int:
        return (token + self.draw.randint(1, self.model.vocab_size - 1)) % self.model.vocab_size

    def begin_drafts(self, done: int, most: int) -> int:
        """`DRAFTS` guesses, where the output has room for them."""
        self.done = done
        return min(DRAFTS, most)

    def draft(self, place: int, answer: int) -> int:
        """The guess of the output token in that place, whatever the model says."""
        return self.guess[self.done + place]
