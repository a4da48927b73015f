"""Check of lesson 6: cursors over 50 steps, each from the learner's own last ones, and what the cache then holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from emssd.lessons.answers import how_many, whole_list, whole_lists
from emssd.lessons.batches import figure2, random_batch
from emssd.lessons.checking import Failure, Solution
from emssd.lessons.toy import ToyCell, ToyModel, plain_greedy
from emssd.trace import GenerationTrace, RowTrace, StepTrace

TITLE = "ragged_commit"
SEEDS = 20
STEPS = 50
TOY_SEEDS = 4
TOY_TOKENS = 24
TOY_DRAFTS = 4
TOY_PROMPTS = ([3, 1, 4, 1, 5], [2, 7], [1, 6, 1, 8, 0, 3, 2])


@dataclass(frozen=True)
class Case:
    """One decode step of EMS-SD; `cursors` are where the learner's function left the rows."""

    step: StepTrace
    cursors: list[int]
    seed: int | None
    traces: Mapping[str, GenerationTrace]

    @property
    def rows(self) -> list[RowTrace]:
        """The rows' records."""
        return self.step.rows

    @property
    def arguments(self) -> tuple[list[int], list[int], list[int]]:
        """What the learner's function is called with."""
        return self.cursors, [row.num_drafted for row in self.rows], [row.num_emitted for row in self.rows]

    @property
    def words(self) -> str:
        """The arguments, as a message shows them."""
        names = ("cursors", "drafted", "emitted")
        return ", ".join(f"{name} {value}" for name, value in zip(names, self.arguments, strict=True))

    @property
    def stale(self) -> list[list[int]]:
        """[rows] slots that were written in this step, from the new cursor on."""
        return [[slot for slot in row.slots if slot >= row.next_slot] for row in self.rows]

    def failure(self, what: str, expected: object, got: object, why: str, row: int | None = None) -> Failure:
        """A failure that opens the player where the cursors have moved."""
        pin = None if row is None else f"{row}.{self.rows[row].next_slot}"
        what = f"{what} Case: {self.words}."
        return Failure(what, expected, got, row, self.step.index, self.seed, why, self.traces, "commit", pin)


def check(solution: Solution) -> str:
    """The worked example, random batches over 50 steps, and whole outputs of a model that sees every stale cell.

    Raises:
        Failure: the first step that is not right.
    """
    _run(solution, None, figure2())
    for seed in range(SEEDS):
        _run(solution, seed, random_batch(seed, STEPS))
    for seed in range(TOY_SEEDS):
        _check_output(solution, seed)
    return (
        f"The paper's worked example, {SEEDS} random batches over {STEPS} steps each, and {TOY_SEEDS} batches decoded "
        "with your cursors: every row's cache held its text without the last token, and the output was greedy output."
    )


def _run(solution: Solution, seed: int | None, traces: Mapping[str, GenerationTrace]) -> None:
    """Drive a batch's cursors to its end."""
    trace = traces["ems-sd"]
    cursors = [len(row.prompt_token_ids) for row in trace.rows]
    caches = [dict(enumerate(row.prompt_token_ids)) for row in trace.rows]  # slot -> token
    texts = [list(row.prompt_token_ids) + row.output_token_ids[:1] for row in trace.rows]
    for step in trace.decode_steps:
        case = Case(step, cursors, seed, traces)
        next_cursors, stale = _answer(solution, case)
        for row in step.rows:
            number, slots = row.row, range(cursors[row.row], cursors[row.row] + len(row.input_token_ids))
            caches[number].update(zip(slots, row.input_token_ids, strict=True))
            texts[number] += row.emitted_token_ids
            _check_cursor(case, row, next_cursors[number], caches[number], texts[number])
        for row in step.rows:
            _check_stale(case, row, stale[row.row])
        cursors = next_cursors


def _answer(solution: Solution, case: Case) -> tuple[list[int], list[list[int]]]:
    """The learner's cursors and stale slots as plain lists."""
    where: dict[str, Any] = {"step": case.step.index, "seed": case.seed, "traces": case.traces}
    answer = solution.call(TITLE, *case.arguments, called=case.words, **where)
    right = [row.next_slot for row in case.rows]
    if not isinstance(answer, tuple) or len(answer) != 2:
        what = "ragged_commit must return two things: the next cursors and the stale slots."
        what = f"{what} It returned {how_many(answer)}."
        raise case.failure(what, (right, case.stale), answer, "End with `return next_cursors, stale`.")
    cursors, stale = whole_list(answer[0]), whole_lists(answer[1])
    if cursors is None or len(cursors) != len(right):
        what = f"next_cursors must be a list of {len(right)} whole numbers: every row has its own cursor."
        raise case.failure(what, right, answer[0], "A finished row keeps its cursor.")
    if stale is None or len(stale) != len(right):
        what = f"stale must be a list of {len(right)} lists of slots, one per row."
        raise case.failure(what, case.stale, answer[1], "A row without stale slots has [].")
    return cursors, stale


def _check_cursor(case: Case, row: RowTrace, got: int, cache: Mapping[int, int], text: list[int]) -> None:
    """A cursor is right where the slots before it hold the row's text without its last token, and no more."""
    right, gain = row.next_slot, row.num_emitted
    held = [cache.get(slot) for slot in range(max(got, 0))]
    if got == right and held == text[:-1]:
        return
    start = case.cursors[row.row]
    if row.kind == "finished":
        what = f"Row {row.row} had finished before and gains nothing, so its cursor stays at slot {start}."
        raise case.failure(what, right, got, "It wrote nothing in this step.", row.row)
    what = f"Row {row.row} wrote from slot {start} on and gains {gain}, so it writes next at slot {right}."
    raise case.failure(what, right, got, _why_cursor(case, row, got, held, text), row.row)


def _why_cursor(case: Case, row: RowTrace, got: int, held: list[int | None], text: list[int]) -> str:
    """What the next query would read with this cursor."""
    rule = f"The cache must hold the row's {len(text)} tokens but the last: {len(text) - 1}."
    largest = max(each.num_emitted for each in case.rows)
    if got < len(text) - 1:
        missing = len(text) - 1 - max(got, 0)
        reason = "A gain counts the target's own token; in the cache the pending token takes its place. "
        hint = reason if got == row.next_slot - 1 else ""
        return f"{hint}{rule} With {got}, {missing} of them would be overwritten."
    wrong = next((slot for slot, token in enumerate(held) if slot >= len(text) - 1), got)
    content = "holds a rejected draft" if held[wrong] is not None else "was never written"
    ending = f"{rule} With {got}, the next query would read slot {wrong}, which {content}."
    if got == case.cursors[row.row] + largest and largest > row.num_emitted:
        return f"{largest} is the largest gain of the batch: that is vanilla's shared cursor. {ending}"
    return ending


def _check_stale(case: Case, row: RowTrace, got: list[int]) -> None:
    right = case.stale[row.row]
    if got == right:
        return
    if row.kind == "finished":
        what = f"Row {row.row} had finished before and wrote nothing, so nothing of it is stale."
        why = "A finished row feeds neither drafts nor a pending token. You know it by its gain of 0."
    else:
        what = f"Row {row.row} wrote slots {row.slots[0]} to {row.slots[-1]}, and its cursor is now at {row.next_slot}."
        why = "Stale are the written slots from the new cursor on."
        if any(slot < row.next_slot for slot in got):
            why += " Those before it hold its text."
        if any(slot > row.slots[-1] for slot in got):
            why += f" Slot {max(got)} was not written."
    raise case.failure(what, right, got, why, row.row)


def _check_output(solution: Solution, seed: int) -> None:
    """Decode with the learner's cursors and a model whose next token depends on every cell that its query reads."""
    model, draw = ToyModel(50, seed), Random(f"ragged commit {seed}")
    right = [plain_greedy(model, prompt, TOY_TOKENS) for prompt in TOY_PROMPTS]
    texts = [[*prompt, output[0]] for prompt, output in zip(TOY_PROMPTS, right, strict=True)]
    caches = [{slot: ToyCell(token, slot) for slot, token in enumerate(prompt)} for prompt in TOY_PROMPTS]
    cursors = [len(prompt) for prompt in TOY_PROMPTS]
    ends = [len(prompt) + TOY_TOKENS for prompt in TOY_PROMPTS]
    step = 0
    while any(len(text) < end for text, end in zip(texts, ends, strict=True)):
        step += 1
        drafted, emitted = [], []
        for row, prompt in enumerate(TOY_PROMPTS):
            left = ends[row] - len(texts[row])
            coming = right[row][len(texts[row]) - len(prompt) :]
            drafts = _drafts(draw, coming, min(draw.randint(0, TOY_DRAFTS), left - 1))
            gained = _forward(model, caches[row], cursors[row], [texts[row][-1], *drafts]) if left else []
            texts[row] += gained
            drafted.append(len(drafts))
            emitted.append(len(gained))
        cursors = _toy_cursors(solution, (cursors, drafted, emitted), step, seed)
    for row, prompt in enumerate(TOY_PROMPTS):
        output = texts[row][len(prompt) :]
        if output != right[row]:
            what = f"Decoded with your cursors, row {row} puts out other tokens than plain greedy decoding."
            raise Failure(what, right[row], output, row=row, seed=seed, why="A query read a cell of another token.")


def _toy_cursors(solution: Solution, given: tuple[list[int], list[int], list[int]], step: int, seed: int) -> list[int]:
    """The learner's next cursors, as many as there are rows."""
    answer = solution.call(TITLE, *given, step=step, seed=seed)
    cursors = whole_list(answer[0]) if isinstance(answer, tuple) and len(answer) == 2 else None
    if cursors is None or len(cursors) != len(given[0]):
        what = f"ragged_commit must return {len(given[0])} next cursors, and the stale slots."
        raise Failure(what, got=answer, step=step, seed=seed)
    return cursors


def _drafts(draw: Random, coming: list[int], count: int) -> list[int]:
    """Drafts that are right up to a random place."""
    drafts = coming[: max(count, 0)]
    wrong = draw.randint(0, TOY_DRAFTS)
    return [(token + 1) % 50 if place == wrong else token for place, token in enumerate(drafts)]


def _forward(model: ToyModel, cache: dict[int, ToyCell], cursor: int, fed: list[int]) -> list[int]:
    """Write the fed tokens from the cursor on; returns the accepted drafts and the target's own token."""
    gained: list[int] = []
    agrees = True
    for place, token in enumerate(fed):
        cell = ToyCell(token, cursor + place)
        cache[cursor + place] = cell
        agrees = agrees and (not gained or gained[-1] == token)
        if agrees:
            visible = [cache[slot] for slot in range(cursor + place + 1) if slot in cache]
            gained.append(model.choose(visible, cell))
    return gained
