"""Speculative runs of a toy model in which one thing is wrong, with the evidence to find out which.

One row, greedy. Its decoded tokens start at a slot behind the prompt, as in a batch whose longest prompt is longer, so
that a slot is in general not a position. In some runs the row itself has the longest prompt, and slots are positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from emssd.lessons.toy import ToyCell, ToyModel, plain_greedy
from emssd.scripted_run import ScriptedStep

STALE_CELLS_READ = "stale cells read"
SLOT_AS_POSITION = "slot as position"
WRONG_TOKEN_ACCEPTED = "wrong token accepted"
BONUS_MISSING = "bonus missing"
BUGS = (STALE_CELLS_READ, SLOT_AS_POSITION, WRONG_TOKEN_ACCEPTED, BONUS_MISSING)
MAX_DRAFTS = 4


@dataclass(frozen=True)
class StepEvidence:
    """One decode step. The first fed token is the pending one, the others are drafts: n = 1 + drafted.

    Args:
        input_token_ids: [n] tokens fed.
        position_ids: [n] the position each was given.
        slots: [n] the slot each was written to.
        cells_read: [n] cells that each query read, its own included.
        target_token_ids: [n] the model's choice after each.
        emitted_token_ids: what the row gained in this step.
    """

    input_token_ids: list[int]
    position_ids: list[int]
    slots: list[int]
    cells_read: list[int]
    target_token_ids: list[int]
    emitted_token_ids: list[int]


@dataclass(frozen=True)
class Evidence:
    """A run of one row, and what should have come out.

    Args:
        prompt: [P] token ids.
        output: [N] what came out; `output[0]` is prefill's token, which is right in every run.
        right_output: [N] plain greedy output.
        steps: decode steps; together they emit `output[1:]`.
    """

    prompt: list[int]
    output: list[int]
    right_output: list[int]
    steps: list[StepEvidence]


def faulty_runs(seed: int) -> list[tuple[str, Evidence]]:
    """Four runs with one bug each, every one of `BUGS` once, in random order."""
    draw = Random(f"faulty runs {seed}")
    bugs = list(BUGS)
    draw.shuffle(bugs)
    return [(bug, faulty_run(bug, draw.randrange(10**9))) for bug in bugs]


def faulty_run(bug: str | None, seed: int) -> Evidence:
    """A run with a bug in which the bug shows; with None a right run.

    The output of all bugs but `BONUS_MISSING` is wrong. In every run a draft is rejected, and in some step all drafts
    are what the model says.
    """
    for attempt in range(1000):
        run = ToyRun(bug, Random(f"{seed} {attempt}"))
        evidence = run.decode()
        if run.shows(evidence):
            return evidence
    raise RuntimeError(f"No run shows the bug {bug!r}.")


def describe(run: Evidence) -> str:
    """The evidence as text: one line for each list of each step."""
    lines = [f"prompt       {run.prompt}", f"right output {run.right_output}", f"output       {run.output}"]
    for number, step in enumerate(run.steps, 1):
        lines += [f"step {number}"]
        lines += [f"  {name:<17} {value}" for name, value in vars(step).items()]
    return "\n".join(lines)


def scripted_steps(run: Evidence) -> list[ScriptedStep]:
    """The steps of a right run, for a trace."""
    return [
        ScriptedStep(step.input_token_ids[1:], step.target_token_ids, len(step.emitted_token_ids)) for step in run.steps
    ]


@dataclass
class ToyRun:
    """Decodes one row with a bug. Cells are kept by slot; `visible` are the slots that queries may read.

    Args:
        bug: one of `BUGS`, or None.
        draw: model, prompt, drafts and the bug's kind come from it.
    """

    bug: str | None
    draw: Random
    cells: dict[int, ToyCell] = field(default_factory=dict)
    visible: list[int] = field(default_factory=list)
    stale: list[int] = field(default_factory=list)
    """Rejected slots that queries still read, with one kind of the bug."""

    def __post_init__(self) -> None:
        draw = self.draw
        self.model = ToyModel(draw.randint(4, 9), draw.randrange(10**6))
        self.prompt = [draw.randrange(self.model.vocab_size) for _ in range(draw.randint(2, 7))]
        self.wanted = draw.randint(8, 14)
        self.right = plain_greedy(self.model, self.prompt, self.wanted)
        padded = self.bug == SLOT_AS_POSITION or draw.random() < 0.5
        self.next_slot = len(self.prompt) + (draw.randint(1, 4) if padded else 0)
        self.kind = draw.randrange(3)  # of the bug
        self.rejections = self.full = 0

    def decode(self) -> Evidence:
        """The whole run."""
        for position, token in enumerate(self.prompt):
            self.cells[position] = ToyCell(token, position)
            self.visible.append(position)
        output = self.right[:1]
        steps = []
        while len(output) < self.wanted:
            step = self._step(len(self.prompt) + len(output) - 1, output[-1], self.wanted - len(output))
            output += step.emitted_token_ids
            steps.append(step)
        return Evidence(self.prompt, output, self.right, steps)

    def shows(self, run: Evidence) -> bool:
        """Whether the run is evidence: something was rejected, something fully right, and the bug has its effect."""
        usual = self.rejections > 0 and self.full > 0
        return usual and (run.output == run.right_output) == (self.bug in (None, BONUS_MISSING))

    def _step(self, first: int, pending: int, remaining: int) -> StepEvidence:
        drafted = self.begin_drafts(self.wanted - remaining, remaining - 1)
        slots = list(range(self.next_slot, self.next_slot + 1 + drafted))
        self.stale = [slot for slot in self.stale if slot > slots[-1]]  # the others are written over now
        fed, target, read = [pending], list[int](), list[int]()
        positions = slots if self.bug == SLOT_AS_POSITION else list(range(first, first + 1 + drafted))
        for place, (slot, position) in enumerate(zip(slots, positions, strict=True)):
            self.cells[slot] = ToyCell(fed[place], position)
            seen = [*self.visible, *slots[: place + 1], *self.stale]
            read.append(len(seen))
            target.append(self.model.choose([self.cells[each] for each in seen], self.cells[slot]))
            if place < drafted:
                fed.append(self.draft(place, target[place]))
        emitted = self._judge(fed[1:], target)
        self._commit(slots, len(emitted))
        return StepEvidence(fed, positions, slots, read, target, emitted)

    def begin_drafts(self, done: int, most: int) -> int:
        """How many drafts a step gets, at most `most`, when `done` output tokens are committed."""
        drafted = min(self.draw.randint(0, MAX_DRAFTS), most)
        self.right_drafts = self.draw.randint(0, drafted)
        return drafted

    def draft(self, place: int, answer: int) -> int:
        """The step's draft number `place`, which the model judges with `answer`: right before the first wrong place,
        wrong there, anything behind."""
        if place < self.right_drafts:
            return answer
        token = self.draw.randrange(self.model.vocab_size)
        wrong_here = place == self.right_drafts
        return (token + 1) % self.model.vocab_size if wrong_here and token == answer else token

    def _judge(self, drafts: list[int], target: list[int]) -> list[int]:
        matches = [draft == choice for draft, choice in zip(drafts, target, strict=False)]
        kept = [*matches, False].index(False)
        self.rejections += kept < len(drafts)
        self.full += 0 < kept == len(drafts)
        if self.bug == BONUS_MISSING and 0 < kept == len(drafts):
            return drafts
        if self.bug == WRONG_TOKEN_ACCEPTED and kept < len(drafts):
            return self._accept_wrong(drafts, target, kept, sum(matches))
        return target[: kept + 1]

    def _accept_wrong(self, drafts: list[int], target: list[int], kept: int, matches: int) -> list[int]:
        """One draft too many is kept, or as many as there are matches, or a draft stands in the recovered place."""
        count = (kept + 1, matches, kept)[self.kind]
        last = drafts[count] if self.kind == 2 else target[count]
        return [*drafts[:count], last]

    def _commit(self, slots: list[int], gain: int) -> None:
        """Lower the row's length to what was kept, unless the bug forgets to."""
        kept = slots[:gain]
        if self.bug == STALE_CELLS_READ and self.kind == 0:
            kept = slots  # later tokens are written behind the rejected ones
        elif self.bug == STALE_CELLS_READ:
            self.stale = sorted({*self.stale, *slots[gain:]})  # written over later, but read until then
        self.visible += kept
        self.next_slot = kept[-1] + 1


def first_broken_step(run: Evidence) -> tuple[int, str]:
    """The first step that breaks a rule, counted from 1, and the rule in words.

    Raises:
        ValueError: no rule is broken.
    """
    committed = len(run.prompt) + 1
    for number, step in enumerate(run.steps, 1):
        for rule in (_position_rule, _read_rule, _verdict_rule):
            if words := rule(step, committed):
                return number, words
        committed += len(step.emitted_token_ids)
    raise ValueError("The run is right.")


_Rule = Callable[[StepEvidence, int], "str | None"]


def _positions(step: StepEvidence, committed: int) -> Iterator[tuple[int, int]]:
    """(index in the step, right position) of every fed token: the pending one is the last committed token."""
    return enumerate(range(committed - 1, committed - 1 + len(step.input_token_ids)))


def _position_rule(step: StepEvidence, committed: int) -> str | None:
    for index, position in _positions(step, committed):
        if step.position_ids[index] != position:
            return (
                f"{committed} tokens are committed, so fed token {index} stands at position {position}; "
                f"it was given {step.position_ids[index]}."
            )
    return None


def _read_rule(step: StepEvidence, committed: int) -> str | None:
    for index, position in _positions(step, committed):
        if step.cells_read[index] != position + 1:
            return (
                f"the query at position {position} may read {position + 1} cells, one for each token up to itself; "
                f"it read {step.cells_read[index]}."
            )
    return None


def why_not(bug: str, run: Evidence) -> str:
    """Why a run does not have a bug, in words: what its first broken step shows; for a missing bonus, a full step."""
    number, _ = first_broken_step(run)
    committed = len(run.prompt) + 1 + sum(len(step.emitted_token_ids) for step in run.steps[: number - 1])
    step = run.steps[number - 1]
    if bug == SLOT_AS_POSITION:
        return f"its positions are right: step {number} starts at {committed} committed - 1 = {committed - 1}."
    if bug == STALE_CELLS_READ:
        first, read = committed - 1, step.cells_read[0]
        return f"its queries read no cell too many: in step {number} the one at position {first} read {read} cells."
    if bug == WRONG_TOKEN_ACCEPTED:
        emitted, target = step.emitted_token_ids, step.target_token_ids
        return f"it emits what the target says: in step {number} {emitted}, the beginning of {target}."
    number, step = next((place, step) for place, step in enumerate(run.steps, 1) if _is_full(step))
    drafts, emitted = step.input_token_ids[1:], step.emitted_token_ids
    return f"no bonus is missing: in step {number} the drafts {drafts} are all right, and it emits {emitted}."


def _is_full(step: StepEvidence) -> bool:
    """Whether there are drafts, and all are what the target says."""
    return len(step.input_token_ids) > 1 and step.input_token_ids[1:] == step.target_token_ids[:-1]


def _verdict_rule(step: StepEvidence, committed: int) -> str | None:
    emitted, target, drafts = step.emitted_token_ids, step.target_token_ids, step.input_token_ids[1:]
    for index, token in enumerate(emitted):
        if token != target[index]:
            return f"emitted token {index} is {token}, but the target says {target[index]} in that place."
    if drafts == target[:-1] and len(emitted) == len(drafts):
        return f"the target says what was drafted, {drafts}, and nothing is emitted after it."
    return None
