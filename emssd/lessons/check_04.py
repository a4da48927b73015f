"""Check of lesson 4: live rows keep as many tokens as the slowest gained, and the lost ones are counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from emssd.lessons.answers import how_many, whole, whole_lists
from emssd.lessons.batches import MAX_ROWS, figure2, random_batch
from emssd.lessons.checking import Failure, Solution
from emssd.trace import GenerationTrace, RowTrace

TITLE = "min_rollback"
METHOD = "ems-sd"  # whose steps are cut, and which the player shows
SEEDS = 40


@dataclass(frozen=True)
class Case:
    """One decode step of a batch, as the target has verified it. `rows` are the rows' records in the trace."""

    rows: list[RowTrace]
    step: int
    seed: int | None
    traces: Mapping[str, GenerationTrace]

    @property
    def arguments(self) -> tuple[list[list[int]], list[int | None], list[bool]]:
        """What the learner's function is called with."""
        accepted = [row.emitted_token_ids[: row.num_accepted] for row in self.rows]
        next_tokens = [row.emitted_token_ids[-1] if row.num_emitted else None for row in self.rows]
        return accepted, next_tokens, [row.kind == "finished" for row in self.rows]

    @property
    def words(self) -> str:
        """The arguments, as a message shows them."""
        names = ("accepted", "next_tokens", "finished")
        return ", ".join(f"{name} {value}" for name, value in zip(names, self.arguments, strict=True))

    @property
    def smallest(self) -> int:
        """The smallest gain of a live row."""
        return min(row.num_emitted for row in self.rows if row.kind == "decode")

    @property
    def kept(self) -> list[list[int]]:
        """[rows] the beginning of what each row gained."""
        return [row.emitted_token_ids[: self.smallest] for row in self.rows]

    @property
    def lost(self) -> int:
        """Tokens gained beyond the smallest gain."""
        return sum(row.num_emitted - self.smallest for row in self.rows if row.kind == "decode")

    def failure(self, what: str, expected: object, got: object, why: str, row: int | None = None) -> Failure:
        """A failure that opens the player where this step's drafts have their verdicts."""
        pin = None if row is None else f"{row}.{self.rows[row].cache_start + self.smallest}"
        what = f"{what} Case: {self.words}."
        return Failure(what, expected, got, row, self.step, self.seed, why, self.traces, "verify", pin)


def check(solution: Solution) -> str:
    """Cut every step of the worked example and of random batches.

    Raises:
        Failure: the first step that is not right.
    """
    cases = [*_cases(None, figure2())]
    for seed in range(SEEDS):
        rows = 2 + seed * (MAX_ROWS - 1) // SEEDS
        cases += _cases(seed, random_batch(seed, steps=2 * rows, rows=rows, eos=False, methods=(METHOD,)))
    for case in cases:
        _check(solution, case)
    lost = sum(case.lost for case in cases)
    return (
        f"{len(cases)} steps: the worked example and {SEEDS} random batches of 2 to 5 rows. "
        f"Cutting to the slowest row threw away {lost} of {lost + sum(len(k) for c in cases for k in c.kept)} tokens."
    )


def _cases(seed: int | None, traces: Mapping[str, GenerationTrace]) -> list[Case]:
    shown = {METHOD: traces[METHOD]}
    return [Case(step.rows, step.index, seed, shown) for step in traces[METHOD].decode_steps]


def _check(solution: Solution, case: Case) -> None:
    where: dict[str, Any] = {"step": case.step, "seed": case.seed, "traces": case.traces, "sub": "verify"}
    answer = solution.call(TITLE, *case.arguments, called=case.words, **where)
    if not isinstance(answer, tuple) or len(answer) != 2:
        what = "min_rollback must return two things: the kept tokens and the number of lost ones."
        what = f"{what} It returned {how_many(answer)}."
        raise case.failure(what, (case.kept, case.lost), answer, "End with `return kept, lost`.")
    kept, lost = whole_lists(answer[0]), whole(answer[1])
    if kept is None or len(kept) != len(case.rows):
        what = f"kept must be a list of {len(case.rows)} lists of token ids, one per row."
        raise case.failure(what, case.kept, answer[0], "A finished row keeps its place in the list, with [].")
    for row, (right, got) in enumerate(zip(case.kept, kept, strict=True)):
        if got != right:
            raise _wrong_row(case, row, right, got)
    if lost != case.lost:
        gains = [row.num_emitted for row in case.rows if row.kind == "decode"]
        what = f"The live rows gained {gains} tokens and each keeps {case.smallest}: {case.lost} are lost."
        why = "Every live row loses its gain minus the smallest gain. Add that up over the rows."
        raise case.failure(
            what, case.lost, answer[1], why, gains.index(max(gains)) if len(gains) == len(kept) else None
        )


def _wrong_row(case: Case, row: int, right: list[int], got: list[int]) -> Failure:
    """What a row's wrong tokens tell."""
    record, smallest = case.rows[row], case.smallest
    gained = record.emitted_token_ids
    if record.kind == "finished":
        what = f"Row {row} had ended before this step, so it keeps nothing."
        why = "A finished row is not fed: its list stays empty."
    elif len(got) != smallest:
        what = f"Row {row} keeps {len(got)} tokens, but the slowest live row gained {smallest}."
        why = _why_count(case, got)
    elif got[:-1] == gained[: smallest - 1] and got[-1] == gained[-1]:
        what = f"Row {row} ends with the target's own token {got[-1]}, which does not follow the drafts that it keeps."
        why = (
            f"The target said {gained[-1]} after all {record.num_accepted} accepted drafts. "
            "A row that is cut keeps the beginning of its gain, so its last kept token is an accepted draft."
        )
    else:
        what = f"Row {row} gained {gained} and must keep the first {smallest} of them."
        why = "Kept tokens are a beginning of the gain. Any others would change the output."
    return case.failure(what, right, got, why, row)


def _why_count(case: Case, got: list[int]) -> str:
    live = [row for row in case.rows if row.kind == "decode"]
    if not got and len(live) < len(case.rows):
        return "A finished row gains nothing for ever: if it counted, the batch would stand still until its end."
    if len(got) == min(row.num_accepted for row in live):
        return "A row gains its accepted drafts and one token of the target's own: accepting none still gains one."
    return "The smallest gain of the live rows decides, for all of them."
