"""Checks `verify_greedy`: every case over three tokens with up to four drafts, and longer random ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from random import Random

from emssd.lessons.checking import Failure, Solution
from emssd.lessons.toy_trace import verdict_trace

TITLE = "verify_greedy"
VOCABULARY = range(3)
MAX_DRAFTS = 4
EOS_SETS: tuple[tuple[int, ...], ...] = ((), (2,), (0, 1))
EXHAUSTIVE_WITH_EOS = 3  # drafts up to which every set of EOS ids is tried; with four drafts it takes one of them
SEEDS = 40
TELLING = (((7, 4, 9), (7, 4, 2, 5)), ((7, 4, 9), (7, 4, 9, 5)), ((7, 4, 9), (2, 4, 9, 5)))
"""Tried first, because a mistake is seen best in them: a wrong draft at the end, none, and one at the beginning."""

ALL_RIGHT = "All drafts are right here: `draft` has K tokens, `target` has K + 1."
"""Told where the learner's code raises in such a case: it looks for one more draft."""


def check(solution: Solution) -> str:
    """Judge all small cases and some long ones.

    Raises:
        Failure: the first case that is judged wrongly.
    """
    count = 0
    for draft, target, eos in small_cases():
        _check_case(solution, draft, target, eos, None)
        count += 1
    for seed in range(SEEDS):
        _check_case(solution, *_long_case(seed), seed)
    return (
        f"All {count} cases over {len(VOCABULARY)} tokens with 0 to {MAX_DRAFTS} drafts, end-of-sequence tokens among "
        f"them, and {SEEDS} random ones with up to 12 drafts."
    )


def small_cases() -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """Every draft and every target over the vocabulary: first where no token ends the row, then where some do.

    The shortest first, but those without drafts last: hardly a mistake shows there what it is.
    """
    draw = Random("lesson 2")
    later = []
    yield from ((draft, target, ()) for draft, target in TELLING)
    for drafted in (*range(1, MAX_DRAFTS + 1), 0):
        for draft in product(VOCABULARY, repeat=drafted):
            for target in product(VOCABULARY, repeat=drafted + 1):
                some = EOS_SETS if drafted <= EXHAUSTIVE_WITH_EOS else (draw.choice(EOS_SETS),)
                later += [(draft, target, eos) for eos in some if eos]
                if () in some:
                    yield draft, target, ()
    yield from ((draft, target, (end,)) for end in (9, 4) for draft, target in TELLING)
    yield from later


def expected_verdict(draft: Sequence[int], target: Sequence[int], eos: Sequence[int]) -> tuple[int, list[int]]:
    """Accepted drafts and emitted tokens: the leading matches up to the first end-of-sequence token, and one more."""
    wrong = [place for place, token in enumerate(draft) if token != target[place]]
    ends = [place for place, token in enumerate(draft) if token in eos]
    first_wrong, first_end = min(wrong, default=len(draft)), min(ends, default=len(draft))
    if first_end < first_wrong:
        return first_end + 1, list(target[: first_end + 1])
    return first_wrong, list(target[: first_wrong + 1])


def _long_case(seed: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """A draft that mostly agrees with the target, over a larger vocabulary."""
    draw = Random(f"lesson 2 {seed}")
    vocabulary = range(4, 4 + draw.choice((6, 20, 70)))
    drafted = draw.randint(5, 12)
    target = [draw.choice(vocabulary) for _ in range(drafted + 1)]
    rate = draw.uniform(0.5, 1.0)
    draft = [token if draw.random() < rate else draw.choice(vocabulary) for token in target[:drafted]]
    eos = draw.sample(vocabulary, draw.randint(0, 2))
    return tuple(draft), tuple(target), tuple(eos)


def _check_case(
    solution: Solution,
    draft: tuple[int, ...],
    target: tuple[int, ...],
    eos: tuple[int, ...],
    seed: int | None,
) -> None:
    num_accepted, emitted = expected_verdict(draft, target, eos)
    case = f"draft {list(draft)}, target {list(target)}, end-of-sequence ids {list(eos) or 'none'}"
    why = ALL_RIGHT if draft and num_accepted == len(draft) else None
    given = (list(draft), list(target), *([eos] if eos else []))
    answer = solution.call(TITLE, *given, called=case, seed=seed, row=0, step=1, why=why)
    if _is_pair(answer) and answer == (num_accepted, emitted):
        return
    what, why = _fault(answer, draft, target, eos)
    raise Failure(
        f"{what} Case: {case}.",
        (num_accepted, emitted),
        answer,
        row=0,
        step=1,
        seed=seed,
        why=why,
        traces={"ems-sd": verdict_trace(draft, target, len(emitted), eos)},
        sub="verify",
    )


def _is_pair(answer: object) -> bool:
    """Whether it is (int, list)."""
    return isinstance(answer, tuple) and [type(part) for part in answer] == [int, list]


def _fault(answer: object, draft: Sequence[int], target: Sequence[int], eos: Sequence[int]) -> tuple[str, str | None]:
    """What is wrong with a verdict, and the rule that it breaks."""
    if not isinstance(answer, tuple) or not _is_pair(answer):
        return f"{TITLE} must return a pair (num_accepted, emitted_token_ids): an int and a list.", None
    count, tokens = answer
    num_accepted, emitted = expected_verdict(draft, target, eos)
    ended = len(emitted) == num_accepted
    if tokens == emitted and count == num_accepted + 1 and not ended:
        what = f"num_accepted is {count}, but {num_accepted} of {_drafts(draft)} must be kept."
        return what, "It counts the target's own token, too. That one is in the emitted tokens; it is no draft."
    if count != num_accepted:
        return _wrong_count(count, num_accepted, draft, target, ended)
    what = f"num_accepted is right, {num_accepted} of {len(draft)}; the emitted tokens are wrong."
    if len(tokens) == num_accepted and not ended:
        kind = "plain" if not draft else "bonus" if num_accepted == len(draft) else "recovered"
        return what, f"The target's own choice comes after the accepted drafts: here as the {kind} token."
    if ended:
        return what, "An accepted end-of-sequence token ends the row: nothing is emitted after it."
    return what, "Emitted are the accepted drafts, then the target's choice at the place after them."


def _drafts(draft: Sequence[int]) -> str:
    return f"{len(draft)} draft{'' if len(draft) == 1 else 's'}"


def _wrong_count(
    count: int, num_accepted: int, draft: Sequence[int], target: Sequence[int], ended: bool
) -> tuple[str, str]:
    if not 0 <= count <= len(draft):
        what = f"num_accepted is {count} where {_drafts(draft)} were fed."
        return what, f"It is the number of drafts that are kept: 0 to {len(draft)}."
    what = f"num_accepted is {count}, but {num_accepted} of {_drafts(draft)} must be kept."
    if count > num_accepted and ended:
        return (
            what,
            f"Draft {num_accepted - 1} (counted from 0) is an accepted end-of-sequence token, and ends the row.",
        )
    if count > num_accepted:
        wrong = (
            f"Draft {num_accepted} (counted from 0) is {draft[num_accepted]}, the target says {target[num_accepted]}."
        )
        return what, f"{wrong} It and all after it are rejected, whatever comes later."
    if ended and count == num_accepted - 1:
        return what, f"Draft {count} (counted from 0) is right, and ends the row: it is counted first, then it ends it."
    right = f"Draft {count} (counted from 0) is what the target says, {target[count]}, and all before it are kept."
    return what, f"{right} target[i] judges draft[i]."
