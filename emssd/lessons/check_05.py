"""Check of lesson 5: inputs, positions, slots, cursor, visible slots and holes of vanilla steps against the layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from emssd.lessons.answers import list_of, text, whole, whole_lists
from emssd.lessons.batches import MAX_ROWS, figure2, random_batch
from emssd.lessons.checking import Failure, Solution, short
from emssd.trace import GenerationTrace, RowTrace

TITLE = "vanilla_step"
METHOD = "vanilla"
ARGUMENTS = ("cursor", "visible", "finished", "drafted", "emitted", "ended")
SEEDS = 40
FIGURE2 = {"input rows": 24, "slots": 20, "holes": 7}
"""Of the worked example, by the paper's own figure: two steps, pads included."""


@dataclass(frozen=True)
class Case:
    """One decode step of vanilla. `rows` are the rows' records in the trace, `before` the slots they could read."""

    rows: list[RowTrace]
    before: list[list[int]]
    cursor: int
    step: int
    seed: int | None
    traces: Mapping[str, GenerationTrace]

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What the learner's function is called with."""
        return (
            self.cursor,
            self.before,
            [row.kind == "finished" for row in self.rows],
            [row.num_drafted for row in self.rows],
            [row.num_emitted for row in self.rows],
            [row.finished for row in self.rows],
        )

    @property
    def words(self) -> str:
        """The arguments, as a message shows them."""
        return ", ".join(f"{name} {value}" for name, value in zip(ARGUMENTS, self.arguments, strict=True))

    @property
    def after(self) -> list[list[int]]:
        """[rows] slots that each row can read after the step."""
        return [
            [*slots, *range(self.cursor, self.cursor + row.num_emitted)]
            for slots, row in zip(self.before, self.rows, strict=True)
        ]

    @property
    def expected(self) -> dict[str, Any]:
        """What the layout did."""
        return {
            "inputs": [row.input_kinds for row in self.rows],
            "positions": [row.position_ids[: _real(row)] for row in self.rows],
            "slots": [row.slots for row in self.rows],
            "cursor": self.rows[0].next_slot,
            "visible": self.after,
            "holes": [row.holes_added for row in self.rows],
        }

    def failure(self, what: str, expected: object, got: object, why: str, **where: Any) -> Failure:
        """A failure that opens the player at this step; `where`: row, sub, pin."""
        what = f"{what} Case: {self.words}."
        return Failure(what, expected, got, step=self.step, seed=self.seed, why=why, traces=self.traces, **where)


def _real(row: RowTrace) -> int:
    """Tokens that a row is fed and needs: its pending token and its drafts."""
    return 0 if row.kind == "finished" else 1 + row.num_drafted


def _tokens(count: int) -> str:
    return f"{count} token{'' if count == 1 else 's'}"


def check(solution: Solution) -> str:
    """Every step of the worked example and of random batches, and the worked example's totals.

    Raises:
        Failure: the first step that is not right.
    """
    totals = dict.fromkeys(FIGURE2, 0)
    cursors = []
    for case in _cases(None, figure2()):
        answer = _check(solution, case)
        totals["input rows"] += sum(map(len, answer["inputs"]))
        totals["holes"] += sum(map(len, answer["holes"]))
        cursors.append((case.cursor, answer["cursor"]))
    totals["slots"] = len(case.rows) * (cursors[-1][1] - cursors[0][0])
    if totals != FIGURE2:
        raise case.failure("The totals of the paper's worked example differ.", FIGURE2, totals, "Add up both steps.")
    steps = 0
    for seed in range(SEEDS):
        rows = 2 + seed * (MAX_ROWS - 1) // SEEDS
        for case in _cases(seed, random_batch(seed, steps=2 * rows, rows=rows, methods=(METHOD,))):
            _check(solution, case)
            steps += 1
    return (
        f"The paper's worked example ({totals['input rows']} input rows, {totals['slots']} slots, "
        f"{totals['holes']} holes), and {steps} steps of {SEEDS} random batches of 2 to 5 rows that end one by one."
    )


def _cases(seed: int | None, traces: Mapping[str, GenerationTrace]) -> Iterator[Case]:
    """The decode steps of vanilla, with the slots that rows can read before each."""
    trace = traces[METHOD]
    visible = [list(range(len(row.prompt_token_ids))) for row in trace.rows]
    cursor = max(map(len, visible))
    for step in trace.decode_steps:
        case = Case(step.rows, visible, cursor, step.index, seed, {METHOD: trace})
        yield case
        visible, cursor = case.after, step.rows[0].next_slot


def _check(solution: Solution, case: Case) -> dict[str, Any]:
    """Hold one step against the layout; returns the learner's values as plain lists."""
    where: dict[str, Any] = {"step": case.step, "seed": case.seed, "traces": case.traces}
    answer = solution.call(TITLE, *case.arguments, called=case.words, **where)
    right = case.expected
    if not isinstance(answer, dict):
        what = f"vanilla_step must return a dictionary, not {short(answer, 60)}."
        raise case.failure(what, list(right), answer, "The docstring of the exercise lists all six entries.")
    if missing := [name for name in right if name not in answer]:
        what = f"The dictionary that vanilla_step returns has no entry {', '.join(map(repr, missing))}."
        why = "The docstring of the exercise lists all six entries."
        raise case.failure(what, list(right), list(answer), why)
    plain = {name: _plain(case, name, answer[name]) for name in right}
    for name in right:
        if name == "cursor":
            _check_cursor(case, plain["cursor"])
            continue
        for row, (expected, got) in enumerate(zip(right[name], plain[name], strict=True)):
            if got != expected:
                what, why, sub = JUDGES[name](case, row, got)
                raise case.failure(what, expected, got, why, row=row, sub=sub, pin=_pin(case, name, row, expected, got))
    return plain


def _plain(case: Case, name: str, value: object) -> Any:
    """An entry of the learner's dictionary as plain Python."""
    right = case.expected[name]
    if name == "cursor":
        number = whole(value)
        if number is None:
            what = "cursor must be one whole number: vanilla has one write cursor for the whole batch."
            raise case.failure(what, right, value, "A cursor for each row is the idea of lesson 6.", pin=f"0.{right}")
        return number
    lists = list_of(lambda item: list_of(text, item), value) if name == "inputs" else whole_lists(value)
    if lists is None or len(lists) != len(case.rows):
        kind = 'texts, each "pending", "draft" or "pad"' if name == "inputs" else "whole numbers"
        what = f"{name} must be a list of {len(case.rows)} lists of {kind}: one list per row."
        raise case.failure(what, right, value, "A finished row keeps its place in the list.")
    return lists


def _pin(case: Case, name: str, row: int, expected: list[int], got: list[int]) -> str | None:
    """The cell that shows the difference: the first slot where two lists of slots part, else the row's first write."""
    slot = case.cursor
    if name in ("slots", "visible", "holes"):
        same = [left == right for left, right in zip(expected, got, strict=False)]
        first = same.index(False) if False in same else len(same)
        slot = next((slots[first] for slots in (expected, got) if len(slots) > first), slot)
    written = max(max(each.slots, default=0) for each in case.rows)
    return f"{row}.{slot}" if 0 <= slot <= written else None


def _inputs(case: Case, row: int, got: list[str]) -> tuple[str, str, str]:
    record, width = case.rows[row], len(case.rows[row].input_kinds)
    what = f"Row {row} is fed {_tokens(width)}: {_real(record)} of its own and {width - _real(record)} as padding."
    if record.kind == "finished":
        why = "A padded input is a full rectangle: a finished row is in it, too, and is fed pads only."
    elif len(got) != width:
        why = "Pads fill every row up to the longest feed of this step: 1 + the largest number of drafts of a live row."
    else:
        why = "A live row feeds its pending token first, then its drafts, then pads."
    return what, why, "pack"


def _positions(case: Case, row: int, got: list[int]) -> tuple[str, str, str]:
    record, length = case.rows[row], len(case.before[row])
    if record.kind == "finished":
        return f"Row {row} is finished: none of its inputs has a position.", "It is fed pads only.", "pack"
    what = f"Row {row} has {_tokens(length)} in its cache, so its pending token has position {length}."
    right = record.position_ids[: _real(record)]
    if got[: len(right)] == right:
        pads = len(record.input_kinds) - len(right)
        what = f"Row {row} feeds {_tokens(len(right))} of its own and {pads} pads, but has {len(got)} positions."
        return what, "Pads need no position: one for the pending token and one for each draft.", "pack"
    if got and got[0] == case.cursor:
        why = (
            f"{case.cursor} is the slot. The dead slots before it hold none of the row's tokens, and take no position."
        )
    elif len(got) != _real(record):
        why = f"One position for the pending token and one for each draft, of which there are {record.num_drafted}."
    else:
        why = "Positions count the row's own tokens: they go on from its cache length, one by one."
    return what, why, "write"


def _slots(case: Case, row: int, got: list[int]) -> tuple[str, str, str]:
    if case.rows[row].kind == "finished":
        return f"Row {row} is finished: it is fed pads, but writes nothing.", "Its output is complete.", "write"
    what = f"Row {row} writes {_tokens(len(case.rows[row].slots))} from the shared cursor, slot {case.cursor}."
    return what, "All fed tokens of a live row are written side by side, its pads after its drafts.", "write"


def _check_cursor(case: Case, got: int) -> None:
    right = case.rows[0].next_slot
    if got == right:
        return
    gains = [row.num_emitted for row in case.rows]
    largest = max(gains)
    fastest = gains.index(largest)
    what = f"The rows gain {gains} tokens, so the cursor moves from slot {case.cursor} to {right}."
    why = "It moves by the largest gain of the rows that were live at the step's start."
    if got == case.cursor + max(len(row.slots) for row in case.rows):
        why += " From there on are rejected drafts and pads: they are overwritten."
    elif got == right - 1:
        why += " A gain is the accepted drafts and the target's own token."
    elif got < right:
        why += f" Row {fastest} has {largest} new tokens in the cache: a smaller move would overwrite some."
    raise case.failure(what, right, got, why, pin=f"{fastest}.{right - 1}")


def _visible(case: Case, row: int, got: list[int]) -> tuple[str, str, str]:
    record = case.rows[row]
    gain, start = record.num_emitted, case.cursor
    if record.kind == "finished":
        return f"Row {row} is finished: what it can read does not change.", "It wrote nothing in this step.", "commit"
    what = f"Row {row} gains {_tokens(gain)}, so its text takes as many more slots, from {start} on."
    extra = [slot for slot in got if slot not in case.after[row]]
    if extra and all(start + gain <= slot < record.next_slot for slot in extra):
        why = f"Slot {extra[0]} is a hole: it holds a rejected draft or a pad, and would be read as text."
    elif len(set(got)) < len(got):
        why = "A slot holds one token, and is listed once."
    else:
        why = "Keep the slots from before, in their order, and add those of the tokens that the row gained."
    return what, why, "commit"


def _holes(case: Case, row: int, got: list[int]) -> tuple[str, str, str]:
    record = case.rows[row]
    largest = max(each.num_emitted for each in case.rows)
    if record.finished:
        what = f"Row {row} has ended, so nobody reads it again: it gets no holes."
        return what, "Holes are counted for rows that live on, which scan them in every later step.", "commit"
    count = largest - record.num_emitted
    holes = f"{count or 'no'} hole{'' if count == 1 else 's'}"
    what = f"The cursor moves by {largest}, row {row} gains {record.num_emitted}: {holes}."
    written = list(range(case.cursor + record.num_emitted, case.cursor + _real(record)))
    if got == written:
        why = "These hold its rejected drafts. A hole is a slot that the cursor has passed, whatever is in it."
    else:
        why = "Holes are the slots between the row's last new token and the new cursor."
    return what, why, "commit"


JUDGES: dict[str, Callable[[Case, int, Any], tuple[str, str, str]]] = {
    "inputs": _inputs,
    "positions": _positions,
    "slots": _slots,
    "visible": _visible,
    "holes": _holes,
}
