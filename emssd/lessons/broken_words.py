"""What a broken run does, in words: a sentence for each sub-step in which it leaves the right way, and its findings.

Sentences are pieces (text, important), as those of every other run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from emssd.lessons.broken_runs import BrokenRuns, first_wrong_token
from emssd.lessons.faulty_runs import (
    BONUS_MISSING,
    SLOT_AS_POSITION,
    STALE_CELLS_READ,
    WRONG_TOKEN_ACCEPTED,
    StepEvidence,
    first_broken_step,
)

Pieces = list[tuple[str, bool]]
BROKEN_AT = {
    STALE_CELLS_READ: "attend",
    SLOT_AS_POSITION: "write",
    WRONG_TOKEN_ACCEPTED: "verify",
    BONUS_MISSING: "verify",
}
"""The sub-step in which a bug breaks its rule."""


def wrong_token_words(made: BrokenRuns, bug: str) -> str:
    """The first finding: which new token is the first wrong one, and which step put it out; or what it cost.

    New tokens count from 1, prefill's included.
    """
    run = made.runs[bug]
    found = first_wrong_token(run)
    if found is None:
        took, right = len(run.steps), len(made.runs[None].steps)
        return (
            f"None: all {len(run.output)} tokens are right, and the badge stays green. "
            f"But it took **{took} steps** instead of {right}: {_count(took - right, 'step')} lost."
        )
    index, step = found
    return (
        f"New token {index + 1} of row 0 is **“{run.output[index]}”** instead of **“{run.right_output[index]}”**. "
        f"Step {step} put it out."
    )


def broken_rule(made: BrokenRuns, bug: str) -> tuple[int, str, str]:
    """The second finding: (step, sub-step, the rule that broke there in words).

    Of the queries that read too much, it is the one that the player tells of.
    """
    run = made.runs[bug]
    number, _ = first_broken_step(run)
    committed = len(run.prompt) + 1 + sum(len(step.emitted_token_ids) for step in run.steps[: number - 1])
    return number, BROKEN_AT[bug], f"Step {number}: {_RULE_WORDS[bug](run.steps[number - 1], committed)}"


def right_narration(made: BrokenRuns, bug: str | None) -> dict[tuple[int, str], Pieces]:
    """By (step, sub-step): what the right run says of its positions, where the other run has wrong ones."""
    steps = made.runs[None].steps if bug == SLOT_AS_POSITION else []
    return {(number, "write"): _writes(step, "; their positions run on: ") for number, step in enumerate(steps, 1)}


def _position_words(step: StepEvidence, committed: int) -> str:
    return (
        f"{committed} tokens are committed, so the pending token “{step.input_token_ids[0]}” stands at "
        f"position {committed - 1}; it was given {step.position_ids[0]}."
    )


def _read_words(step: StepEvidence, committed: int) -> str:
    place = _told_place(step)
    may = committed + place
    return (
        f"query “{step.input_token_ids[place]}” at position {may - 1} may read {may} cells, one for each token up to "
        f"itself; it read {step.cells_read[place]}."
    )


def _bonus_words(step: StepEvidence, _committed: int) -> str:
    bonus = f"the bonus token “{step.target_token_ids[-1]}” is missing"
    return f"all drafts were right ({len(step.emitted_token_ids)} of {len(step.input_token_ids) - 1}), but {bonus}."


def _token_words(step: StepEvidence, _committed: int) -> str:
    place = _wrong_place(step)
    if place is None:
        raise ValueError("Every token is the target's.")
    ordinal = ("first", "second", "third", "fourth")[place]
    return (
        f"the {ordinal} token it put out, “{step.emitted_token_ids[place]}”, is not the target's "
        f"“{step.target_token_ids[place]}” in that place."
    )


_RULE_WORDS: dict[str, Callable[[StepEvidence, int], str]] = {
    STALE_CELLS_READ: _read_words,
    SLOT_AS_POSITION: _position_words,
    WRONG_TOKEN_ACCEPTED: _token_words,
    BONUS_MISSING: _bonus_words,
}
"""By bug: what broke in a step before which so many tokens are committed."""


def _wrong_place(step: StepEvidence) -> int | None:
    """Which emitted token is the first that is not the target's."""
    pairs = enumerate(zip(step.emitted_token_ids, step.target_token_ids, strict=False))
    return next((place for place, (token, answer) in pairs if token != answer), None)


def _told_place(step: StepEvidence) -> int:
    """The fed token whose reading the player tells of: the first draft, or else the pending token."""
    return min(len(step.input_token_ids) - 1, 1)


def broken_narration(made: BrokenRuns, bug: str) -> dict[tuple[int, str], Pieces]:
    """By (step, sub-step): what happens where the run is not like a right one. Elsewhere the usual sentences hold."""
    run = made.runs[bug]
    told: dict[tuple[int, str], Pieces] = {}
    committed = len(run.prompt) + 1
    for number, step in enumerate(run.steps, 1):
        for sub, pieces in _told(made, bug, step, committed):
            told[number, sub] = pieces
        committed += len(step.emitted_token_ids)
    return told


def _told(made: BrokenRuns, bug: str, step: StepEvidence, committed: int) -> Iterator[tuple[str, Pieces]]:
    drafts, emitted = step.input_token_ids[1:], step.emitted_token_ids
    rejected = len(drafts) - len(emitted) + 1
    if bug == SLOT_AS_POSITION:
        yield "write", _writes(step, ", and gives them their slots as positions: ")
        yield "attend", _reads(made, bug, step, 0)
    elif bug == STALE_CELLS_READ:
        yield "attend", _reads(made, bug, step, step.cells_read[0] - committed)
        if rejected:
            yield "commit", _keeps_length(step, rejected)
    elif bug == WRONG_TOKEN_ACCEPTED:
        wrong = _wrong_place(step)
        if wrong is not None:
            yield "verify", _keeps_wrong(step, wrong)
    elif bug == BONUS_MISSING and emitted == drafts:
        yield "verify", _forgets_bonus(step)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _writes(step: StepEvidence, how: str) -> Pieces:
    first, last, slot = step.position_ids[0], step.position_ids[-1], step.slots[0]
    place = f"position {first}" if first == last else f"positions {first} to {last}"
    return [
        ("Row 0 writes from slot ", False),
        (str(slot), True),
        (": ", False),
        (_count(len(step.slots), "token"), True),
        (how, False),
        (place, True),
        (".", False),
    ]


def _reads(made: BrokenRuns, bug: str, step: StepEvidence, stale: int) -> Pieces:
    """Of the first draft, or else the pending token; `stale` of the cells it reads are rejected drafts."""
    place = _told_place(step)
    pads = _count(made.longest - len(made.runs[bug].prompt), "prompt pad")
    query = f"Query “{step.input_token_ids[place]}” of row 0 (position {step.position_ids[place]}) reads "
    own = _count(step.cells_read[place] - stale, "own token")
    more = f". It also loads {pads} and gives them weight 0."
    if not stale:
        return [(query + "its ", False), (own, True), (more, False)]
    wrong = _count(stale, "rejected draft")
    return [
        (query, False),
        (_count(step.cells_read[place], "cell"), True),
        (f": its {own} and ", False),
        (wrong, True),
        (" that it should not see" + more, False),
    ]


def _keeps_length(step: StepEvidence, rejected: int) -> Pieces:
    stay = "the rejected draft stays" if rejected == 1 else f"the {rejected} rejected drafts stay"
    return [
        ("Row 0 gains ", False),
        (_count(len(step.emitted_token_ids), "token"), True),
        (", but its length is not lowered: the cursor moves by all ", False),
        (_count(len(step.slots), "fed token"), True),
        (f", and {stay} before it.", False),
    ]


def _keeps_wrong(step: StepEvidence, wrong: int) -> Pieces:
    drafts, kept = step.input_token_ids[1:], len(step.emitted_token_ids) - 1
    return [
        ("Row 0 keeps ", False),
        (f"{kept} of {len(drafts)}", True),
        (f" drafts, among them “{drafts[wrong]}”, though the target says ", False),
        (f"“{step.target_token_ids[wrong]}”", True),
        (" in that place.", False),
    ]


def _forgets_bonus(step: StepEvidence) -> Pieces:
    drafts = step.input_token_ids[1:]
    return [
        ("Row 0 keeps ", False),
        (f"{len(drafts)} of {len(drafts)}", True),
        (f" drafts. The bonus token “{step.target_token_ids[-1]}” is ", False),
        ("forgotten", True),
        (".", False),
    ]
