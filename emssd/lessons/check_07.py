"""Check of lesson 7: rows go into one packed sequence, and every token of it is found again."""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, product

from emssd.acceptance import Acceptance
from emssd.lessons.checking import Failure, Solution
from emssd.simulator import simulate
from emssd.trace import GenerationTrace

TITLE = "pack and locate"
SEEDS = 24
SWAPPED = "The order is swapped: row first, then offset."
TELLING = ((2, 0, 2), (4, 2, 1))
"""Flat index, row and offset in rows that feed 3, 0 and 2 tokens."""
BATCHES = Acceptance(
    hit_rate=0.5,
    token_rate=0.7,
    spread=1.0,
    prompt_mean=6,
    prompt_sd=4,
    prompt_max=14,
    num_draft_tokens=7,
    output_tokens=14,
)


@dataclass(frozen=True)
class Case:
    """What the rows of a batch feed in one step: [B] lists of token ids. `traces`: the run it is taken from."""

    rows: list[list[int]]
    seed: int | None = None
    step: int | None = None
    traces: Mapping[str, GenerationTrace] | None = None
    first_slots: tuple[int, ...] = ()

    @property
    def tokens(self) -> list[int]:
        """[N] the packed sequence."""
        return [token for row in self.rows for token in row]

    @property
    def cu_seqlens(self) -> list[int]:
        """[B + 1] where each row starts."""
        return [0, *accumulate(len(row) for row in self.rows)]

    def failure(self, what: str, expected: object, got: object, why: str, row: int = 0, offset: int = 0) -> Failure:
        """A failure that opens the player on this step's packed inputs."""
        pin = f"{row}.{self.first_slots[row] + offset}" if self.first_slots and self.rows[row] else None
        where = row if self.rows else None
        return Failure(what, expected, got, where, self.step, self.seed, why, traces=self.traces, sub="pack", pin=pin)


def check(solution: Solution) -> str:
    """Pack and locate every token of random batches and of all batches of up to four rows that feed 0, 1 or 8.

    Raises:
        Failure: the first case that is not right.
    """
    tokens = cases = 0
    for case in [*_simulated_cases(), *_small_cases()]:
        _check_pack(solution, case)
        _check_locate(solution, case)
        cases += 1
        tokens += len(case.tokens)
    return (
        f"{tokens} tokens packed and found again in {cases} batches: all of up to four rows that feed 0, 1 or 8 "
        f"tokens, and every step of {SEEDS} random batches of 2 to 7 rows that finish one after another."
    )


def _simulated_cases() -> list[Case]:
    """Every decode step of random batches; rows that have ended feed nothing."""
    cases = []
    for seed in range(SEEDS):
        traces = simulate(BATCHES, 2 + seed % 6, ("vanilla", "ems-sd"), seed)
        for step in traces["ems-sd"].decode_steps:
            rows = [list(row.input_token_ids) for row in step.rows]
            starts = tuple(row.cache_start for row in step.rows)
            cases.append(Case(rows, seed, step.index, traces, starts))
    return cases


def _small_cases() -> list[Case]:
    """All batches of up to four rows that feed 0, 1 or 8 tokens; no id occurs twice."""
    cases = []
    for size in range(5):
        for lengths in product((0, 1, 8), repeat=size):
            rows = [[100 * (row + 1) + place for place in range(length)] for row, length in enumerate(lengths)]
            cases.append(Case(rows))
    return cases


def _check_pack(solution: Solution, case: Case) -> None:
    answer = solution.call("pack", case.rows, seed=case.seed, step=case.step, traces=case.traces, sub="pack")
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        what = "pack must return two things: the tokens and cu_seqlens."
        raise case.failure(what, (case.tokens, case.cu_seqlens), answer, "End with `return tokens, cu_seqlens`.")
    tokens, cu_seqlens = _numbers(case, "tokens", answer[0]), _numbers(case, "cu_seqlens", answer[1])
    fed = [len(row) for row in case.rows]
    if (tokens, cu_seqlens) == (case.cu_seqlens, case.tokens) and tokens != cu_seqlens:
        what = "pack returns the right two lists in the wrong order."
        why = "The order is swapped: end with `return tokens, cu_seqlens`."
        raise case.failure(what, (case.tokens, case.cu_seqlens), answer, why)
    if tokens != case.tokens:
        what = f"The packed tokens are wrong for rows that feed {fed} tokens."
        raise case.failure(what, case.tokens, tokens, _why_tokens(case, tokens), _first_wrong_row(case, tokens))
    if len(cu_seqlens) != len(fed) + 1:
        what = f"cu_seqlens has {len(cu_seqlens)} numbers for {len(fed)} rows that feed {fed} tokens."
        raise case.failure(what, case.cu_seqlens, cu_seqlens, _why_length(case, cu_seqlens), _empty_row(case))
    if cu_seqlens != case.cu_seqlens:
        what = f"cu_seqlens is wrong for rows that feed {fed} tokens."
        why = "Entry i + 1 is the number of tokens that rows 0 to i feed together."
        place = next(n for n, pair in enumerate(zip(cu_seqlens, case.cu_seqlens, strict=True)) if pair[0] != pair[1])
        raise case.failure(what, case.cu_seqlens, cu_seqlens, why, max(place - 1, 0))
    _check_rows_are_kept(solution, case)


def _check_rows_are_kept(solution: Solution, case: Case) -> None:
    """The lists that `pack` is given are the caller's."""
    given = copy.deepcopy(case.rows)
    solution.function("pack")(given)
    if given != case.rows:
        row = next((n for n, pair in enumerate(zip(given, case.rows, strict=False)) if pair[0] != pair[1]), 0)
        why = "Start with a list of your own, tokens = []: `tokens = rows[0]` is row 0's own list, and += changes it."
        raise case.failure("pack changes the rows that it is given.", case.rows, given, why, row)


def _numbers(case: Case, name: str, value: object) -> list[int]:
    """A learner's list as whole numbers."""
    try:
        return [operator.index(item) for item in value]  # type: ignore[attr-defined]
    except TypeError:
        expected = case.tokens if name == "tokens" else case.cu_seqlens
        what = f"{name} must be a flat list of whole numbers."
        raise case.failure(what, expected, value, "Rows are joined, not nested.") from None


def _why_tokens(case: Case, tokens: Sequence[int]) -> str:
    if len(tokens) > len(case.tokens):
        return "Every token that a row feeds appears once, and nothing else does: no pads, not even for a finished row."
    if sorted(tokens) == sorted(case.tokens):
        return "The tokens are there, in another order: rows follow each other, and a row keeps its own order."
    return "Every token that a row feeds appears once."


def _why_length(case: Case, cu_seqlens: Sequence[int]) -> str:
    if cu_seqlens == case.cu_seqlens[1:]:
        return "It starts at 0, where row 0 starts, and has one number more than there are rows."
    if not all(case.rows) and len(cu_seqlens) <= len(case.rows):
        return "A finished row has its entry, too: it repeats the number before. Without it later rows change number."
    return "It has one number more than there are rows: 0, then where each row ends."


def _first_wrong_row(case: Case, tokens: Sequence[int]) -> int:
    """The row of the first token that differs."""
    right = case.tokens
    if len(tokens) > len(right) and not all(case.rows):
        return _empty_row(case)
    same = 0
    while same < min(len(tokens), len(right)) and tokens[same] == right[same]:
        same += 1
    return _owner(case, min(same, max(len(right) - 1, 0)))


def _empty_row(case: Case) -> int:
    return next((number for number, row in enumerate(case.rows) if not row), 0)


def _owner(case: Case, r: int) -> int:
    """The row that feeds token r, counted out; 0 where nobody feeds."""
    owners = [number for number, row in enumerate(case.rows) for _ in row]
    return owners[r] if owners else 0


def _check_locate(solution: Solution, case: Case) -> None:
    places = [(number, offset) for number, row in enumerate(case.rows) for offset in range(len(row))]
    for r, (row, offset) in enumerate(places):
        where = {"row": row, "seed": case.seed, "step": case.step, "traces": case.traces}
        answer = solution.call("locate", case.cu_seqlens, r, sub="pack", **where)
        try:
            got_row, got_offset = (operator.index(number) for number in answer)
        except (TypeError, ValueError):
            what = "locate must return two whole numbers: the row and the offset in it."
            raise case.failure(what, (row, offset), answer, "End with `return row, offset`.", row, offset) from None
        if (got_row, got_offset) != (row, offset):
            what = f"Flat index {r} of cu_seqlens {case.cu_seqlens} is row {row}, offset {offset}."
            why = SWAPPED if _is_swapped(solution) else _why_place(case, r, row, got_row)
            raise case.failure(what, (row, offset), (got_row, got_offset), why, row, offset)


def _is_swapped(solution: Solution) -> bool:
    """Whether `locate` returns the offset first, in places where no other mistake looks like that."""
    try:
        return all(tuple(solution.call("locate", [0, 3, 3, 5], r)) == (offset, row) for r, row, offset in TELLING)
    except (Failure, TypeError, ValueError):
        return False


def _why_place(case: Case, r: int, row: int, got: int) -> str:
    starts = case.cu_seqlens
    if got == row:
        return f"The row is right. Its first token is flat index {starts[row]}, so the offset counts from there."
    if not 0 <= got < len(case.rows):
        return f"There are only {len(case.rows)} rows. Row i has cu_seqlens[i] <= r < cu_seqlens[i + 1]."
    if not case.rows[got]:
        return f"Row {got} feeds nothing in this step, so no token can be its own."
    if r == starts[got + 1]:
        return f"{r} is where row {got} has ended: cu_seqlens[i + 1] is the first index that is no longer row i's."
    return "Row i has cu_seqlens[i] <= r < cu_seqlens[i + 1]; rows have no common width."
