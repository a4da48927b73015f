"""Checks `rewind`, by its contract and in speculative runs, and `name_the_bug` on faulty runs in random order."""

from __future__ import annotations

from random import Random

from emssd.lessons.checking import Failure, Solution, short
from emssd.lessons.faulty_runs import (
    BUGS,
    SLOT_AS_POSITION,
    STALE_CELLS_READ,
    Evidence,
    faulty_runs,
    first_broken_step,
    why_not,
)
from emssd.lessons.toy import ToyCache, ToyCell, ToyModel, plain_greedy
from emssd.lessons.toy_trace import one_row_trace
from emssd.scripted_run import ScriptedStep
from emssd.trace import GenerationTrace

TITLE = "rewind and name_the_bug"
SEEDS = 30
_LENGTH = "A rejected cell must not be read: `cache.length` says how many cells are."


def check(solution: Solution) -> str:
    """Rewind random caches, decode with the learner's rewind, and show faulty runs.

    Raises:
        Failure: the first thing that goes wrong.
    """
    for seed in range(SEEDS):
        _check_contract(solution, seed)
    for seed in range(SEEDS):
        _check_limits(solution, seed)
    for seed in range(SEEDS):
        _check_decoding(solution, seed)
    for seed in range(SEEDS):
        _check_names(solution, seed)
    return (
        f"rewind: {SEEDS} random caches by 0, some and all of their cells, and {SEEDS} speculative runs, all lossless; "
        f"name_the_bug: {len(BUGS) * SEEDS} faulty runs."
    )


def _check_contract(solution: Solution, seed: int) -> None:
    """Some of the cells, then all, then none."""
    draw = Random(f"rewind {seed}")
    length = 3 + seed * 10 // SEEDS
    for count in (draw.randint(1, length - 1), length, 0):
        cache = _random_cache(draw, length)
        written = list(cache.cells)
        allowed = {0: "n = 0 is allowed and changes nothing.", length: "n = length is allowed: it forgets all cells."}
        _rewind(solution, cache, count, seed, allowed.get(count, "n is in 0 .. cache.length."))
        case = f"After {length} cells were written and rewind(cache, {count}),"
        if cache.length != length - count:
            what = f"{case} queries read {short(cache.length, 40)} cells instead of {length - count}."
            why = _LENGTH if cache.length == length else "The cells before the last n are still read, each of them."
            raise Failure(what, length - count, cache.length, seed=seed, why=why)
        if cache.cells != written:
            why = "Rollback lowers a length. It deletes, moves and blanks nothing: the next write goes over the cells."
            raise Failure(f"{case} the cells are not what was written.", written, cache.cells, seed=seed, why=why)
        _check_next_write(cache, written, case, seed)


def _check_limits(solution: Solution, seed: int) -> None:
    """One more than there are, and one less than none."""
    draw = Random(f"limits {seed}")
    length = draw.randint(3, 12)
    for count in (length + 1, -1):
        _check_refusal(solution, _random_cache(draw, length), count, seed)


def _rewind(solution: Solution, cache: ToyCache, count: int, seed: int, why: str) -> None:
    """Call the learner's function; `why` says what is expected of it, should it raise."""
    try:
        solution.call("rewind", cache, count, seed=seed)
    except Failure as failure:
        if failure.what.startswith("rewind raised "):
            failure.why = why
        raise


def _random_cache(draw: Random, length: int) -> ToyCache:
    cache = ToyCache()
    for position in range(length):
        cache.write(ToyCell(draw.randrange(20), position))
    return cache


def _check_next_write(cache: ToyCache, written: list[ToyCell], case: str, seed: int) -> None:
    kept = cache.length
    cell = ToyCell(99, kept)
    cache.write(cell)
    expected = [*written[:kept], cell, *written[kept + 1 :]]
    if cache.cells != expected:
        what = f"{case} the next token is not written to slot {kept}, over the first rejected cell."
        raise Failure(what, expected, cache.cells, seed=seed)


def _check_refusal(solution: Solution, cache: ToyCache, count: int, seed: int) -> None:
    """A count outside 0..length must be refused and change nothing."""
    before = (cache.length, list(cache.cells))
    refused = False
    try:
        why = f"n is not in 0 .. {before[0]}: rewind must raise ValueError here."
        _rewind(solution, cache, count, seed, why)
    except Failure as failure:
        refused = "raised ValueError" in failure.what
        if not refused:
            raise
    what = f"rewind(cache, {count}) on a cache of length {before[0]}"
    if not refused:
        why = "There are not that many cells to forget: the caller has a bug, and silence would hide it."
        raise Failure(f"{what} must raise ValueError.", "ValueError", "no error", seed=seed, why=why)
    if (cache.length, cache.cells) != before:
        raise Failure(
            f"{what} raises ValueError, but has changed the cache before.", before[0], cache.length, seed=seed
        )


def _check_decoding(solution: Solution, seed: int) -> None:
    """Decode with drafts, rolling back with the learner's function: the output must be plain greedy's."""
    draw = Random(f"lossless {seed}")
    model = ToyModel(draw.randint(2, 9), seed)
    prompt = [draw.randrange(model.vocab_size) for _ in range(draw.randint(1, 9))]
    wanted = draw.randint(6, 16)
    right = plain_greedy(model, prompt, wanted)
    cache = model.new_cache()
    output = [model.forward(prompt, range(len(prompt)), cache)[-1]]
    steps: list[ScriptedStep] = []
    while len(output) < wanted:
        done = len(output)
        drafts = _drafts(draw, model.vocab_size, right[done : wanted - 1])
        first = len(prompt) + done - 1
        choices = model.forward([output[-1], *drafts], range(first, first + 1 + len(drafts)), cache)
        matches = [draft == choice for draft, choice in zip(drafts, choices, strict=False)]
        kept = [*matches, False].index(False)
        solution.call("rewind", cache, len(drafts) - kept, seed=seed, step=len(steps) + 1)
        output += choices[: kept + 1]
        steps.append(ScriptedStep(drafts, choices, kept + 1))
        if output != right[: len(output)]:
            what = f"With this rewind, the output of prompt {prompt} is wrong from step {len(steps)} on."
            raise Failure(what, right[: len(output)], output, row=0, step=len(steps), seed=seed)


def _drafts(draw: Random, vocab_size: int, right: list[int]) -> list[int]:
    """0 to 4 drafts, right up to some place."""
    drafts = right[: draw.randint(0, 4)]
    for place in range(draw.randint(0, len(drafts)), len(drafts)):
        drafts[place] = draw.randrange(vocab_size)
    return drafts


def _check_names(solution: Solution, seed: int) -> None:
    for number, (bug, run) in enumerate(faulty_runs(seed)):
        answer = solution.call("name_the_bug", run, called=f"faulty_runs({seed})[{number}][1]", seed=seed)
        if not isinstance(answer, str) or answer not in BUGS:
            shown = short(answer, 60)
            what = f"For faulty_runs({seed})[{number}][1] name_the_bug returned {shown}, none of the four names."
            raise Failure(what, f"one of {', '.join(BUGS)}", answer, seed=seed)
        if answer != bug:
            raise _wrong_name(bug, answer, run, number, seed)


def _wrong_name(bug: str, answer: str, run: Evidence, number: int, seed: int) -> Failure:
    step, rule = first_broken_step(run)
    show = f"print(describe(faulty_runs({seed})[{number}][1]))"
    why = f"That is not it: {why_not(answer, run)} But in step {step}, {rule}"
    return Failure(
        f"The run faulty_runs({seed})[{number}] does not have the bug “{answer}”.",
        bug,
        answer,
        row=0,
        step=step,
        seed=seed,
        why=f'{why} To see it: python -c "from emssd.lessons.faulty_runs import *; {show}"',
        traces=None if bug == SLOT_AS_POSITION else _right_trace(run, step, include=bug != STALE_CELLS_READ),
        sub="attend" if bug == STALE_CELLS_READ else "verify",
    )


def _right_trace(run: Evidence, broken: int, include: bool) -> dict[str, GenerationTrace]:
    """The run up to its broken step, and that step judged rightly if its answers can be used; then without drafts."""
    steps: list[ScriptedStep] = []
    for step in run.steps[: broken if include else broken - 1]:
        drafts, target = step.input_token_ids[1:], step.target_token_ids
        kept = [*(draft == choice for draft, choice in zip(drafts, target, strict=False)), False].index(False)
        steps.append(ScriptedStep(drafts, target, kept + 1))
    done = 1 + sum(step.gained for step in steps)
    steps += [ScriptedStep([], [token], 1) for token in run.right_output[done:]]
    vocab_size = 1 + max(max(step.input_token_ids + step.target_token_ids) for step in run.steps)
    vocab_size = max(vocab_size, *(token + 1 for token in run.prompt + run.right_output))
    return {"ems-sd": one_row_trace("ems-sd", run.prompt, run.right_output, steps, vocab_size)}
