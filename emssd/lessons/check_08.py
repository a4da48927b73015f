"""Check of lesson 8: the learner's step decodes a whole batch, and everything that it leaves behind is looked at.

What each of the four places gives back is looked at before the step goes on with it, so that a fault is named where it
was made. A fault of the draft model's cache leaves the output right. So such a run goes on to its end, and the failure
then says how many drafts it cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

from emssd.lessons.answers import whole, whole_list
from emssd.lessons.checking import Failure, Solution
from emssd.lessons.ems_batch import (
    EMPTY,
    EOS_TOKEN,
    FIRST_TOKEN,
    BatchDrafter,
    BatchRow,
    LookupDrafter,
    ModelDrafter,
    PackedModel,
)
from emssd.lessons.ems_cases import Case, layout_outputs, make_case
from emssd.scripted_run import ScriptedStep
from emssd.simulator import WORDS

TITLE = "ems_step"
SEEDS = 48
PLACES = {"draft_plan": 1, "pack": 2, "verify": 3, "commit": 4}


def check(solution: Solution) -> str:
    """Decode random batches of 1 to 8 rows with each drafter, and compare every step with each row decoded alone.

    Raises:
        Failure: the first step that is not right.
    """
    kept = steps = 0
    places = {name: solution.function(name) for name in PLACES}
    for seed in range(SEEDS):
        run = _Run(solution, make_case(seed), places)
        run.decode()
        steps, kept = steps + run.step, kept + run.kept
    return (
        f"{SEEDS} batches of 1 to 8 rows, {steps} steps, with prompt lookup, with a draft model and with one that is "
        f"always right ({kept} drafts kept): the text of every row is that of the row alone and of all four layouts, "
        "and both caches hold what their cursors say."
    )


class _Nothing:
    """An empty slot in a message."""

    def __repr__(self) -> str:
        return "nothing"


class _Recording:
    """A drafter that remembers what it proposed last."""

    def __init__(self, drafter: BatchDrafter) -> None:
        self.drafter = drafter
        self.proposed: dict[int, list[int]] = {}

    def propose(self, rows: Sequence[BatchRow], plans: Sequence[tuple[int, int, list[int]]]) -> dict[int, list[int]]:
        """Drafts by row number."""
        drafts = self.drafter.propose(rows, plans)
        self.proposed = {row: list(tokens) for row, tokens in drafts.items()}
        return drafts


@dataclass
class _Before:
    """A row as it was when the step began."""

    token_ids: list[int]
    cursor: int
    draft_cursor: int
    finished: bool


@dataclass
class _Run:
    """One batch, decoded by the learner's step."""

    solution: Solution
    case: Case
    places: dict[str, Callable[..., Any]]
    """The learner's four functions."""
    step: int = 0
    kept: int = 0
    drafted: int = 0
    late: Failure | None = None
    """A fault of the draft cache, told when the run has ended."""
    before: list[_Before] = field(default_factory=list)
    emitted: dict[int, list[int]] = field(default_factory=dict)
    """What place 3 returned in this step, by row."""

    def __post_init__(self) -> None:
        self.target = self.case.target()
        self.rows = self.case.start()
        model = self.case.draft_model()
        self.draft_model = model
        self.drafter = _Recording(LookupDrafter() if model is None else ModelDrafter(model))
        for each in (self.target, model):
            if each is not None:
                _prefill(each, self.case.prompts)

    def decode(self) -> None:
        """All steps, each checked."""
        function = self.solution.function("ems_step")
        for name in PLACES:  # the learner's step finds the watched ones under these names
            self.solution.watch(name, partial(self._watched, name))
        while not all(row.finished for row in self.rows):
            self.step += 1
            self.before = [_Before(list(r.token_ids), r.cursor, r.draft_cursor, r.finished) for r in self.rows]
            self.drafter.proposed, self.target.forwards, self.emitted = {}, [], {}
            try:
                function(self.rows, self.target, self.drafter, self.case.num_draft_tokens(self.step), EOS_TOKEN)
            except Failure as failure:
                if self.late is not None:  # what went wrong first
                    raise self.late from None
                failure.seed, failure.step = self.case.seed, self.step
                failure.traces = None if "not written" in failure.what else self.case.traces
                raise
            self._check_step()
        if self.late is not None:
            raise self._with_price(self.late)
        self._check_layouts()

    def _watched(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """One of the learner's functions, and a look at what it gave back.

        Raises:
            Failure: the step cannot go on with that, or the lesson says otherwise.
        """
        answer = self.places[name](*args, **kwargs)
        row = args[0] if args and isinstance(args[0], BatchRow) else None
        if name == "draft_plan" and row is not None:
            self._check_plan(row.index, answer)
        elif name == "pack":
            self._check_pack(answer)
        elif name == "verify":
            live = [number for number, before in enumerate(self.before) if not before.finished]
            if len(self.emitted) < len(live):
                self._check_verify(live[len(self.emitted)], answer)
        elif name == "commit" and row is not None:
            self._check_commit(row)
        return answer

    def _check_plan(self, number: int, answer: Any) -> None:
        parts = list(answer) if isinstance(answer, (tuple, list)) and len(answer) == 3 else [None] * 3
        limit, first, feed = whole(parts[0]), whole(parts[1]), whole_list(parts[2])
        if limit is None or first is None or feed is None:
            what = f"draft_plan (place 1) must return a number, a number and a list of tokens, also for row {number}."
            raise self._fail(what, None, answer, number, "End with `return limit, first_slot, feed`.", sub="draft")
        if limit < 0 or first < 0:
            what = f"draft_plan (place 1) returns a limit of {limit} and first slot {first} for row {number}."
            raise self._fail(what, None, answer, number, "Neither can be less than 0.", sub="draft")
        if limit and not feed and self.draft_model is not None:
            what = f"draft_plan (place 1) feeds the draft model nothing for row {number}, which may draft {limit}."
            why = "The draft model never has the pending token, the last of token_ids: that one is always fed."
            raise self._fail(what, self.before[number].token_ids[-1:], feed, number, why, sub="draft")
        if limit and self.draft_model is not None and self.late is None:
            self.late = self._wrong_feed(self.draft_model, number, first, feed)

    def _wrong_feed(self, model: PackedModel, number: int, first: int, feed: list[int]) -> Failure | None:
        """What place 1 feeds the draft model: with its cache it must make the row's whole text, without a gap."""
        text = self.before[number].token_ids
        cells = model.read(number, len(text) - 1)
        held = next((slot for slot, token in enumerate(text) if cells[slot] != token), len(text))
        why = f"Feed the tokens from draft_cursor, {self.before[number].draft_cursor}, on: the last is the pending one."
        place = {"sub": "draft", "pin": f"{number}.{held}"}
        if first > held:
            what = (
                f"draft_plan (place 1) feeds slot {first} on for row {number}, but the row's tokens in its draft cache "
            )
            what += f"end at slot {held - 1}."
            return self._fail(what, held, first, number, why, **place)
        if feed != text[first:]:
            what = f"draft_plan (place 1) feeds {_named(feed)} from slot {first} on for row {number}; its text goes on "
            what += f"there with {_named(text[first:])}."
            return self._fail(what, text[first:], feed, number, why, **place)
        return None

    def _check_pack(self, answer: Any) -> None:
        """Four lists that fit together, then what they hold."""
        parts = list(answer) if isinstance(answer, (tuple, list)) and len(answer) == 4 else [None] * 4
        lists = [whole_list(part) for part in parts]
        if any(part is None for part in lists):
            what = "pack (place 2) must return four lists of whole numbers."
            why = "End with `return token_ids, owners, slots, cu_seqlens`."
            raise self._fail(what, None, answer, 0, why, sub="pack")
        token_ids, owners, slots, cu_seqlens = [part or [] for part in lists]
        if not len(token_ids) == len(owners) == len(slots):
            counts = (
                f"{_plural(len(token_ids), 'token')}, {_plural(len(owners), 'owner')} and {_plural(len(slots), 'slot')}"
            )
            what = f"pack (place 2) returns {counts}: each token needs one of each."
            raise self._fail(what, None, answer, 0, "A row that adds k + 1 tokens adds k + 1 of each.", sub="pack")
        for row in self.rows:
            self._check_drafts(row)
        self._check_owners(token_ids, owners, slots)
        self._check_fed(list(zip(owners, slots, token_ids, strict=True)))
        self._check_starts(cu_seqlens)

    def _right_feed(self) -> list[tuple[int, int, int]]:
        """[N] (row, slot, token) of the packed sequence."""
        return [
            (row.index, before.cursor + place, token)
            for row, before in zip(self.rows, self.before, strict=True)
            for place, token in enumerate([] if before.finished else [before.token_ids[-1], *self._drafts(row)])
        ]

    def _check_owners(self, token_ids: list[int], owners: list[int], slots: list[int]) -> None:
        right = self._right_feed()
        same = [slot for _, slot, _ in right] == slots and [token for _, _, token in right] == token_ids
        if same and owners != [owner for owner, _, _ in right]:
            what = "pack (place 2) returns the right tokens and slots, but wrong owners."
            place = next(place for place, fed in enumerate(right) if fed[0] != owners[place])
            why = f"Token {place} of the sequence belongs to row {right[place][0]}, not to row {owners[place]}."
            raise self._fail(what, [owner for owner, _, _ in right], owners, right[place][0], why, sub="pack")

    def _check_starts(self, cu_seqlens: list[int]) -> None:
        owners = [owner for owner, _, _ in self._right_feed()]
        fed = [owners.count(row.index) for row in self.rows]
        right = [0, *accumulate(fed)]
        if cu_seqlens == right:
            return
        what = f"pack (place 2): cu_seqlens is wrong for rows that feed {fed} tokens."
        why = "It is 0, then where each row ends: entry i + 1 is what rows 0 to i feed together."
        if len(cu_seqlens) != len(right):
            numbers, rows = _plural(len(cu_seqlens), "number"), _plural(len(fed), "row")
            what = f"pack (place 2): cu_seqlens has {numbers} for {rows}."
            why = f"It has {len(right)}: 0, then where each row ends."
            if 0 in fed:
                why += " A row that feeds nothing has its number, too: it repeats the one before."
        pairs = zip(cu_seqlens, right, strict=False)
        place = next((place for place, pair in enumerate(pairs) if pair[0] != pair[1]), len(right) - 1)
        raise self._fail(what, right, cu_seqlens, min(max(place - 1, 0), len(fed) - 1), why, sub="pack")

    def _check_verify(self, number: int, answer: Any) -> None:
        emitted = whole_list(answer)
        if emitted is None:
            what = f"verify (place 3) must return a list of tokens, also for row {number}."
            raise self._fail(what, None, answer, number, "End with a `return` of what the row emits.", sub="verify")
        expected, accepted = self._right_emitted(self.rows[number])
        self.emitted[number] = emitted
        if emitted == expected:
            return
        what = f"verify (place 3) lets row {number} emit {_named(emitted)}; decoded alone it goes on with "
        what += f"{_named(expected)}."
        why = _why_text(expected, emitted, accepted, self._drafts(self.rows[number]))
        raise self._fail(what, expected, emitted, number, why, sub="verify")

    def _check_commit(self, row: BatchRow) -> None:
        number = row.index
        if number not in self.emitted:
            return
        right = [*self.before[number].token_ids, *self.emitted[number]]
        if row.token_ids != right:
            what = f"commit (place 4) does not add just what row {number} emitted to its token_ids."
            why = f"verify (place 3) was right: {_named(self.emitted[number])}. They go to the end of token_ids, once."
            raise self._fail(what, right, row.token_ids, number, why)

    def _fail(self, what: str, expected: object, got: object, row: int, why: str, **place: str) -> Failure:
        return Failure(what, expected, got, row, self.step, self.case.seed, why, traces=self.case.traces, **place)

    def _check_step(self) -> None:
        for row in self.rows:
            self._check_drafts(row)
        self._check_feed()
        for row in self.rows:
            self._check_text(row)
            self._check_cursor(row)
        if self.draft_model is not None and self.late is None:
            try:
                for row in self.rows:
                    self._check_draft_cache(row, self.draft_model)
            except Failure as failure:
                self.late = failure

    def _drafts(self, row: BatchRow) -> list[int]:
        return self.drafter.proposed.get(row.index, [])

    def _remaining(self, row: BatchRow) -> int:
        return row.max_new_tokens - len(self.before[row.index].token_ids) + row.prompt_length

    def _check_drafts(self, row: BatchRow) -> None:
        """As many drafts as K and the row's end allow."""
        if self.before[row.index].finished:
            return
        most = self.case.num_draft_tokens(self.step)
        limit, drafts = min(most, self._remaining(row) - 1), self._drafts(row)
        if len(drafts) > limit:
            what = (
                f"draft_plan (place 1): row {row.index} drafts {_plural(len(drafts), 'token')}, but may draft {limit}."
            )
            why = f"K is {most}, and {self._remaining(row)} may still be put out, the target's own token among them."
            raise self._fail(what, limit, len(drafts), row.index, why, sub="draft")
        enough = limit if self.draft_model is not None else len(LookupDrafter.copy(self.before[row.index].token_ids))
        if len(drafts) < min(limit, enough):
            could = min(limit, enough)
            what = f"draft_plan (place 1): row {row.index} drafts {_plural(len(drafts), 'token')}, but could {could}."
            why = f"K is {most}, and {self._remaining(row)} may still be put out, the target's own token among them."
            raise self._fail(what, limit, len(drafts), row.index, why, sub="draft")

    def _check_feed(self) -> None:
        """One forward of the target: every live row's pending token and drafts, from its own cursor on."""
        if len(self.target.forwards) != 1:
            what = f"Step {self.step} runs the target {len(self.target.forwards)} times."
            raise self._fail(what, 1, len(self.target.forwards), 0, "All rows go through one forward.", sub="pack")
        self._check_fed(self.target.forwards[0])

    def _check_fed(self, fed: list[tuple[int, int, int]]) -> None:
        """[N] (row, slot, token) as packed or as fed."""
        expected = self._right_feed()
        for row in self.rows:
            tokens = [token for owner, _, token in expected if owner == row.index]
            self._check_row_feed(row, tokens, [(slot, token) for owner, slot, token in fed if owner == row.index])
        if fed != expected:
            got = [owner for owner, _, _ in fed]
            why = "Row after row, so that cu_seqlens cuts the answers where the tokens were."
            raise self._fail("pack (place 2): the rows are not in order.", expected, fed, got[0], why, sub="pack")

    def _check_row_feed(self, row: BatchRow, tokens: list[int], fed: list[tuple[int, int]]) -> None:
        number, before = row.index, self.before[row.index]
        slots = [slot for slot, _ in fed]
        right = list(range(before.cursor, before.cursor + len(tokens)))
        if before.finished and fed:
            fed_words = f"{_plural(len(fed), 'token')} {'is' if len(fed) == 1 else 'are'} fed for it"
            what = f"pack (place 2): row {number} had finished before step {self.step}, but {fed_words}."
            raise self._fail(what, [], fed, number, "A finished row feeds nothing; cu_seqlens repeats.", sub="pack")
        if [token for _, token in fed] != tokens:
            what = f"pack (place 2): row {number} feeds the wrong tokens to the target."
            why = "A live row feeds its pending token (the last of token_ids) and then its drafts: no pads."
            raise self._fail(what, tokens, [token for _, token in fed], number, why, sub="pack")
        if slots != right:
            what = f"pack (place 2): row {number} writes to the wrong slots of the target's cache."
            why = f"Its own cursor is {before.cursor}: the first fed token goes there, the next ones after it."
            raise self._fail(what, right, slots, number, why, sub="write", pin=f"{number}.{before.cursor}")

    def _right_emitted(self, row: BatchRow) -> tuple[list[int], int]:
        """What a row emits in this step by the text that it has alone, and how many of its drafts that keeps."""
        number, before, drafts = row.index, self.before[row.index], self._drafts(row)
        if before.finished:
            return [], 0
        greedy = [*self.case.prompts[number], *self.case.expected[number].output]
        coming, accepted = greedy[len(before.token_ids) :], 0
        while accepted < min(len(drafts), len(coming)) and coming[accepted] == drafts[accepted]:
            accepted += 1
        return coming[: accepted + 1], accepted

    def _check_text(self, row: BatchRow) -> None:
        """The step's tokens are the greedy ones, as many as the drafts allow."""
        number, before = row.index, self.before[row.index]
        length, drafts = len(before.token_ids), self._drafts(row)
        expected, accepted = self._right_emitted(row)
        right = [*before.token_ids, *expected]
        self.kept, self.drafted = self.kept + accepted, self.drafted + len(drafts)
        got = row.token_ids
        if got == right:
            return
        if not isinstance(got, list) or got[:length] != before.token_ids:
            what, why = f"token_ids of row {number} lost tokens.", "A step only adds to token_ids."
            raise self._fail(what, right, got, number, why, sub="commit")
        emitted = got[length:]
        what = f"Row {number} gains {emitted} in step {self.step}; decoded alone it goes on with {expected}."
        why = _why_text(expected, emitted, accepted, drafts)
        raise self._fail(what, expected, emitted, number, why, sub="verify")

    def _check_cursor(self, row: BatchRow) -> None:
        number = row.index
        right = len(row.token_ids) - 1
        if row.cursor != right:
            what = f"commit (place 4): the cursor of row {number} is wrong after step {self.step}."
            gained = len(row.token_ids) - len(self.before[number].token_ids)
            why = (
                f"Row {number} gained {gained}, so its cursor moves by {gained}: a rejected draft is written over next."
            )
            raise self._fail(what, right, row.cursor, number, why, pin=f"{number}.{right}")
        ended = row.token_ids[-1] == EOS_TOKEN or row.remaining == 0
        if bool(row.finished) != ended:
            state = "finished" if row.finished else "not finished"
            what = f"commit (place 4): row {number} is {state} after step {self.step}."
            why = f"A row ends with token {EOS_TOKEN} or when none remain: here {row.remaining} remain."
            raise self._fail(what, ended, row.finished, number, why)

    def _check_draft_cache(self, row: BatchRow, model: PackedModel) -> None:
        """What draft_cursor promises is in the draft model's cache, and it promises as much as there is."""
        number, before = row.index, self.before[row.index]
        if row.finished:
            return
        reach, drafts = row.draft_cursor, self._drafts(row)
        if not isinstance(reach, int) or not 0 <= reach < len(row.token_ids):
            what = f"commit (place 4) sets draft_cursor of row {number} to {reach}, with {len(row.token_ids)} tokens."
            why = "It counts committed tokens that are cached: no rejected drafts, and not the pending token."
            raise self._fail(what, len(row.token_ids) - 1, reach, number, why)
        cells = model.read(number, reach - 1)
        wrong = next((slot for slot, token in enumerate(cells) if token != row.token_ids[slot]), None)
        if wrong is not None:
            held = "nothing" if cells[wrong] == EMPTY else _named(cells[wrong : wrong + 1])[1:-1]
            what = f"commit (place 4) sets draft_cursor of row {number} to {reach} in step {self.step}, but slot "
            what += f"{wrong} of its draft cache holds {held}."
            why = f"With {reach}, slots 0 to {reach - 1} should hold the row's tokens."
            if wrong == len(before.token_ids) + len(drafts) - 1:
                why += f" The last draft was kept, but never fed to the draft model: {wrong} is right."
            got = _Nothing() if cells[wrong] == EMPTY else cells[wrong]
            why += " The player shows the target's cache, where this slot is filled."
            raise self._fail(what, row.token_ids[wrong], got, number, why, pin=f"{number}.{wrong}")
        gained = len(row.token_ids) - len(before.token_ids)
        least = len(before.token_ids) + min(gained, len(drafts)) - 1 if drafts else before.draft_cursor
        if reach < least:
            lacking = _plural(least - reach, "token")
            what = f"commit (place 4) sets draft_cursor of row {number} to {reach} in step {self.step}, but its draft "
            what += f"cache holds {lacking} more."
            why = "Every kept draft that was fed counts: all but the last one were. It need not be fed again."
            raise self._fail(what, least, reach, number, why)
        self._check_proposals(row)

    def _check_proposals(self, row: BatchRow) -> None:
        right = self.case.expected[row.index].steps[self.step - 1].drafts
        drafts = self._drafts(row)
        if drafts != right:
            what = f"Row {row.index} drafts {_named(drafts)} in step {self.step}; with its whole text before it, "
            what += f"{_named(right)}."
            why = "The draft model read other tokens than the row's: look at first_slot and feed."
            raise self._fail(what, right, drafts, row.index, why, sub="draft")

    def _with_price(self, late: Failure) -> Failure:
        """The draft-cache failure, with what it did to acceptance."""
        steps = [step for row in self.case.expected for step in row.steps]
        drafted = sum(len(step.drafts) for step in steps)
        kept = sum(_accepted(step) for step in steps)
        most = max(len(row.steps) for row in self.case.expected)
        if self.kept < kept or self.step > most:
            late.why = (
                f"{late.why} The text is right all the same, but {self.kept} of {self.drafted} drafts are kept in "
                f"{self.step} steps; with a complete draft cache it is {kept} of {drafted} in {most}."
            )
        return late

    def _check_layouts(self) -> None:
        """The four layouts of the engine, each reading its own cells, put out the same text."""
        for method, trace in (self.case.traces or {}).items():
            for row, output in zip(self.rows, layout_outputs(trace, self.target), strict=True):
                if row.output_token_ids != output:
                    what = f"Row {row.index} puts out another text than in the layout {method}."
                    raise self._fail(what, output, row.output_token_ids, row.index, "Every layout is lossless.")


def _why_text(expected: list[int], emitted: list[int], accepted: int, drafts: list[int]) -> str:
    if emitted[: len(expected)] == expected:
        if expected[-1:] == [EOS_TOKEN]:
            return f"{EOS_TOKEN} ends the text: nothing may follow it, also where it is a kept draft."
        return "Only the leading drafts that equal the target's choice are kept, then one token of its own."
    if expected[: len(emitted)] == emitted:
        if not drafts:
            return "Without drafts the target's answer after the pending token is all that the row emits."
        if accepted == len(drafts):
            return "All drafts were kept; the target's answer after the last one is right, too: the bonus token."
        return "The target's own token in place of the first wrong draft belongs to the output, too."
    if emitted[-1:] == [EOS_TOKEN] == drafts[accepted : accepted + 1] and len(emitted) == accepted + 1:
        return (
            f"Draft {accepted + 1} is {EOS_TOKEN}, the end of sequence, but the target chose otherwise: it is rejected."
        )
    return "Compare draft i with answer i of this row's own slice: where they differ, the answer is emitted."


def _named(tokens: Sequence[int]) -> str:
    """Tokens with their ids and with the words that the player shows."""
    known = {EOS_TOKEN: " <end>"} | {FIRST_TOKEN + place: f" {word}" for place, word in enumerate(WORDS)}
    return "[" + ", ".join(f"{token}{known.get(token, '')}" for token in tokens) + "]"


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _accepted(step: ScriptedStep) -> int:
    """Kept drafts of a step."""
    emitted = step.drafts[: step.gained]
    return sum(draft == answer for draft, answer in zip(emitted, step.answers, strict=False))


def _prefill(model: PackedModel, prompts: Sequence[Sequence[int]]) -> None:
    """Put the prompts into the model's cache; like prefill it is no part of a step."""
    for row, prompt in enumerate(prompts):
        model.cache[row] = dict(enumerate(prompt))
