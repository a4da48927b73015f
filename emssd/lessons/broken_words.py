"""What a broken run does, in words: a sentence for each sub-step in which it leaves the right way, and its findings.

Sentences are pieces (text, important), as those of every other run.
"""

from __future__ import annotations

from collections.abc import Iterator

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
        f"New token {index + 1} of row 0 is **{run.output[index]}** instead of **{run.right_output[index]}**. "
        f"Step {step} put it out."
    )


def broken_rule(made: BrokenRuns, bug: str) -> tuple[int, str, str]:
    """The second finding: (step, sub-step, the rule that broke there in words)."""
    step, rule = first_broken_step(made.runs[bug])
    return step, BROKEN_AT[bug], f"Step {step}: {rule}"


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
        yield "write", _writes(step)
        yield "attend", _reads(made, bug, step, 0)
    elif bug == STALE_CELLS_READ:
        yield "attend", _reads(made, bug, step, step.cells_read[0] - committed)
        if rejected:
            yield "commit", _keeps_length(step, rejected)
    elif bug == WRONG_TOKEN_ACCEPTED:
        wrong = next((place for place, token in enumerate(emitted) if token != step.target_token_ids[place]), None)
        if wrong is not None:
            yield "verify", _keeps_wrong(step, wrong)
    elif bug == BONUS_MISSING and emitted == drafts:
        yield "verify", _forgets_bonus(step)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _writes(step: StepEvidence) -> Pieces:
    first, last, slot = step.position_ids[0], step.position_ids[-1], step.slots[0]
    place = f"position {first}" if first == last else f"positions {first} to {last}"
    return [
        ("Row 0 writes from slot ", False),
        (str(slot), True),
        (": ", False),
        (_count(len(step.slots), "token"), True),
        (", and gives them their slots as positions: ", False),
        (place, True),
        (".", False),
    ]


def _reads(made: BrokenRuns, bug: str, step: StepEvidence, stale: int) -> Pieces:
    """Of the first draft, or else the pending token; `stale` of the cells it reads are rejected drafts."""
    place = min(len(step.input_token_ids) - 1, 1)
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
