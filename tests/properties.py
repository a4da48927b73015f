"""Properties of whole runs and of the layout alone, as strategies and checks that the tests and the soak run.

Engine cases are small and shrink well, so a failing one is close to a teaching example.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import hypothesis.strategies as st
from hypothesis import assume, event
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from torch import Tensor

from emssd.accounting import step_account
from emssd.attention import QueryGroup, visible_slots
from emssd.config import METHODS, SpeculativeConfig
from emssd.decoding import generate
from emssd.drafting import Drafter, DraftModelDrafter, PromptLookupDrafter
from emssd.kv_cache import KVStore
from emssd.layouts import Layout, Row, RowPlan, StepPlan, make_layout, output_limits
from emssd.loading import LanguageModel
from emssd.model_runner import ModelRunner
from emssd.trace import GenerationTrace
from tests.helpers import (
    ALL_METHODS,
    SAFE_GAP,
    SPECULATIVE,
    VOCAB,
    assert_lossless,
    greedy,
    language_model,
    never,
    plain_logits,
    script,
    top2_gaps,
)

LARGEST_DRAFT = 5
LARGEST_OUTPUT = 12
SHORT_CONTEXT = 16

MODELS = {
    "llama": partial(language_model, "random-llama"),
    "opt": partial(language_model, "random-opt"),
    "gemma2": partial(language_model, "random-gemma2"),
    "llama, 16 positions": partial(language_model, "random-llama", max_positions=SHORT_CONTEXT),
    "opt, 16 positions": partial(language_model, "random-opt", max_positions=SHORT_CONTEXT),
}
DRAFTERS = ("scripted", "near", "prompt-lookup", "never")

token_ids = st.integers(0, VOCAB - 1)
prompt = st.lists(token_ids, min_size=1, max_size=12)
prompts_of = st.lists(prompt, min_size=1, max_size=4)


# --- whole runs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EngineCase:
    """One run. Lists per row are cycled, so that a row can be dropped without changing the others."""

    model: str
    method: str
    prompts: list[list[int]]
    drafter: str
    draft_lengths: list[int]
    accept: list[list[int]]
    """[rows][rounds] drafts that the script lets pass."""
    max_new: int
    eos_places: list[tuple[int, int]]
    """(row, place): that token of the row's greedy output ends a row."""
    eos_ids: list[int]
    attention: str

    @property
    def lm(self) -> LanguageModel:
        """The target."""
        return MODELS[self.model]()

    @property
    def outputs(self) -> list[list[int]]:
        """[rows] greedy output, a full draft longer than the run."""
        return [greedy(self.lm, prompt, LARGEST_OUTPUT + LARGEST_DRAFT) for prompt in self.prompts]

    @property
    def eos(self) -> tuple[int, ...]:
        """Ids that end a row."""
        outputs = self.outputs
        declared = [outputs[row % len(outputs)][place : place + 1] for row, place in self.eos_places]
        return tuple(dict.fromkeys([*(token for found in declared for token in found), *self.eos_ids]))

    def pattern(self) -> list[list[int]]:
        """[rows][rounds] drafts to accept."""
        return [self.accept[row % len(self.accept)] for row in range(len(self.prompts))]

    def config(self, **changes: Any) -> SpeculativeConfig:
        """The settings."""
        lengths = [self.draft_lengths[row % len(self.draft_lengths)] for row in range(len(self.prompts))]
        settings = {
            "num_draft_tokens": tuple(lengths),
            "max_new_tokens": self.max_new,
            "eos_token_ids": self.eos,
            "attention": self.attention,
            **changes,
        }
        return SpeculativeConfig.for_method(self.method, **settings)

    def make_drafter(self) -> Drafter:
        """A fresh drafter."""
        if self.drafter == "scripted":
            return script(self.outputs, self.pattern(), VOCAB, LARGEST_DRAFT)
        if self.drafter == "near":
            return DraftModelDrafter(MODELS[self.model](noise=0.05))
        return never(self.lm) if self.drafter == "never" else PromptLookupDrafter(ngram_size=1, source="context")

    def assume_no_near_ties(self) -> None:
        """Leave out prompts on which float32 rounding could flip a choice."""
        for prompt, output in zip(self.prompts, self.outputs, strict=True):
            used = output[: self.max_new]
            assume(not used or min(top2_gaps(self.lm, prompt, used)) >= SAFE_GAP)


places = st.tuples(st.integers(0, 3), st.integers(0, LARGEST_OUTPUT - 1))
draft_counts = st.integers(0, LARGEST_DRAFT)
engine_cases = st.builds(
    EngineCase,
    model=st.sampled_from(list(MODELS)),
    method=st.sampled_from((*SPECULATIVE, *ALL_METHODS)),
    prompts=prompts_of,
    drafter=st.sampled_from(DRAFTERS),
    draft_lengths=st.lists(draft_counts, min_size=1, max_size=4),
    accept=st.lists(st.lists(draft_counts, min_size=1, max_size=4), min_size=1, max_size=4),
    max_new=st.integers(0, LARGEST_OUTPUT),
    eos_places=st.lists(places, max_size=2),
    eos_ids=st.just([]) | st.lists(token_ids, max_size=2),
    attention=st.sampled_from(("auto", "reference")),
)
"""Anything goes: many of these end early or draft nothing."""

ragged_cases = st.builds(
    EngineCase,
    model=st.sampled_from(list(MODELS)[:3]),
    method=st.sampled_from(SPECULATIVE),
    prompts=st.lists(prompt, min_size=2, max_size=4),
    drafter=st.sampled_from(("scripted", "scripted", "near")),
    draft_lengths=st.lists(st.integers(1, LARGEST_DRAFT), min_size=1, max_size=4),
    accept=st.lists(st.permutations(range(LARGEST_DRAFT + 1)), min_size=2, max_size=4),
    max_new=st.integers(8, LARGEST_OUTPUT),
    eos_places=st.just([]) | st.lists(st.tuples(st.integers(0, 3), st.integers(3, LARGEST_OUTPUT - 1)), max_size=2),
    eos_ids=st.just([]),
    attention=st.sampled_from(("auto", "reference")),
)
"""Rows that live on for several steps and accept different numbers of drafts."""


def check_run(case: EngineCase, methods: Sequence[str] = ALL_METHODS) -> None:
    """With each method the result is that of plain decoding, every invariant holds in every step, and the trace reads
    back as it was."""
    case.assume_no_near_ties()
    for method in methods:
        run = replace(case, method=method)
        trace = assert_lossless(
            run.lm, run.prompts, run.config(check_invariants=True), run.make_drafter(), run.outputs, run.eos
        )
        event(f"holes: {any(row.holes_added for row in trace.live_rows())}")
        if run.drafter == "scripted" and method in SPECULATIVE:
            _check_script(run, trace)
        assert GenerationTrace.from_json(trace.to_json()) == trace


def _check_script(case: EngineCase, trace: GenerationTrace) -> None:
    """Each round accepts what the script let pass, cut by the caps and by the end of the row; the rest follows."""
    for row, output in enumerate(case.outputs):
        done = 1
        for step in trace.decode_steps:
            shown = step.rows[row]
            if shown.kind == "finished":
                break
            pattern = case.pattern()[row]
            passed = output[done : done + min(pattern[(step.index - 1) % len(pattern)], shown.num_drafted)]
            ends = [place for place, token in enumerate(passed) if token in case.eos]
            accepted = ends[0] + 1 if ends else len(passed)
            assert shown.num_accepted == accepted, (row, step.index)
            assert shown.num_emitted == accepted + (0 if ends else 1), (row, step.index)
            assert shown.emitted_token_ids == output[done : done + shown.num_emitted]
            done += shown.num_emitted


def check_greedy_output_never_changes(case: EngineCase, order: Sequence[int], other: EngineCase) -> None:
    """I8: row order, batch size, draft length, drafter, method and kernel change no output."""
    case.assume_no_near_ties()
    eos = case.eos
    base = _outputs(case, eos)
    changed = replace(
        case,
        method=other.method,
        drafter=other.drafter,
        draft_lengths=other.draft_lengths,
        accept=other.accept,
        attention=other.attention,
    )
    assert _outputs(changed, eos) == base, "draft length, drafter, method or kernel"
    rows = [row for row in order if row < len(case.prompts)]
    assert _outputs(replace(changed, prompts=[case.prompts[row] for row in rows]), eos) == [
        base[row] for row in rows
    ], f"rows {rows} of the batch"


def _outputs(case: EngineCase, eos: tuple[int, ...]) -> list[tuple[list[int], str | None]]:
    trace = generate(case.lm, case.prompts, case.config(eos_token_ids=eos), case.make_drafter())
    return [(row.output_token_ids, row.finish_reason) for row in trace.rows]


def check_other_rows_leave_no_mark(case: EngineCase, row: int, others: list[list[int]]) -> None:
    """I6 in whole runs: with any other prompts of the same lengths beside it, the target answers a row the same."""
    row %= len(case.prompts)
    changed = [
        list(prompt) if index == row else [(a + b) % VOCAB for a, b in zip(prompt, [*noise, *prompt], strict=False)]
        for index, (prompt, noise) in enumerate(zip(case.prompts, others, strict=False))
    ]
    changed += case.prompts[len(changed) :]
    case.assume_no_near_ties()
    eos = case.eos
    answers = []
    for prompts in (case.prompts, changed):
        run = replace(case, prompts=prompts, drafter="scripted")
        trace = generate(run.lm, prompts, run.config(eos_token_ids=eos), run.make_drafter())
        live = [step.rows[row] for step in trace.steps if step.rows[row].kind != "finished"]
        answers.append([(shown.target_token_ids, shown.num_accepted, shown.position_ids) for shown in live])
        if case.config().cache_layout == "ragged" and case.config().input_layout == "packed":
            answers[-1] = [(*answer, shown.slots) for answer, shown in zip(answers[-1], live, strict=True)]
    if case.config().input_layout == "padded":  # only how many pads a row is fed may depend on the others
        answers = [
            [(targets, accepted, positions[: len(targets)]) for targets, accepted, positions in run] for run in answers
        ]
    assert answers[0] == answers[1]


# --- logits of forced runs -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """What one row is made to do in one step, whatever the model would have said."""

    drafts: list[int]
    accepted: int
    following: int
    """The token that becomes pending."""
    ends: bool = False

    @property
    def kept(self) -> list[int]:
        """Tokens the row gains."""
        return [*self.drafts[: min(self.accepted, len(self.drafts))], self.following]


@dataclass(frozen=True)
class ForcedRun:
    """A batch driven through the layout and the model runner with invented acceptance; only logits are looked at."""

    model: str
    method: str
    attention: str
    prompts: list[list[int]]
    turns: list[list[Turn]]
    """[steps][rows], rows cycled"""

    def turn(self, step: int, row: int) -> Turn:
        """The row's turn in a step."""
        return self.turns[step][row % len(self.turns[step])]

    def with_other_tokens(self, keep: int, shift: int) -> ForcedRun:
        """All tokens of all rows but `keep` replaced; every length stays."""

        def other(ids: Sequence[int]) -> list[int]:
            return [(token + shift) % VOCAB for token in ids]

        rows = range(len(self.prompts))
        prompts = [prompt if row == keep else other(prompt) for row, prompt in enumerate(self.prompts)]
        turns = []
        for step in range(len(self.turns)):
            old = [self.turn(step, row) for row in rows]
            turns.append(
                [
                    turn
                    if row == keep
                    else replace(turn, drafts=other(turn.drafts), following=other([turn.following])[0])
                    for row, turn in enumerate(old)
                ]
            )
        return replace(self, prompts=prompts, turns=turns)


turns = st.builds(
    Turn,
    drafts=st.lists(token_ids, max_size=4),
    accepted=st.integers(0, 4),
    following=token_ids,
    ends=st.integers(0, 9).map(lambda number: number == 9),
)
forced_runs = st.builds(
    ForcedRun,
    model=st.sampled_from(("llama", "opt", "gemma2")),
    method=st.sampled_from(SPECULATIVE),
    attention=st.sampled_from(("auto", "reference")),
    prompts=prompts_of,
    turns=st.lists(st.lists(turns, min_size=1, max_size=4), min_size=1, max_size=4),
)


def force(run: ForcedRun, poison: bool = False) -> list[tuple[int, list[int], Tensor]]:
    """Every live row's logits in every step: (row, its text up to the last fed token, [fed, vocabulary])."""
    lm = MODELS[run.model]()
    cache, inputs = METHODS[run.method]
    layout = make_layout(SpeculativeConfig(cache_layout=cache, input_layout=inputs))
    rows = layout.start([len(prompt) for prompt in run.prompts])
    store = KVStore([60] * len(rows), fill=float("nan") if cache == "ragged" else 0.0)
    runner = ModelRunner(lm.hooked, run.attention)
    runner.prefill(run.prompts, store)
    texts = [[*prompt, (prompt[0] + 1) % VOCAB] for prompt in run.prompts]
    seen = []
    for step in range(len(run.turns)):
        if poison:
            _poison(rows, store)
        mine = [run.turn(step, row.index) for row in rows]
        plan = layout.plan(rows, [text[-1] for text in texts], [turn.drafts for turn in mine])
        if not plan.live:
            break
        logits = runner.forward(plan, store)
        first = 0
        for row in plan.rows:
            if row.kind != "finished":
                fed = [*texts[row.row], *mine[row.row].drafts]
                seen.append((row.row, fed, logits[first : first + row.num_real].clone()))
            first += row.num_fed
        emitted = [0 if row.finished else len(mine[row.index].kept) for row in rows]
        live = [row.index for row in rows if not row.finished]
        layout.commit(rows, plan, emitted, [turn.ends for turn in mine])
        for index in live:
            texts[index] += mine[index].kept
    return seen


def _poison(rows: Sequence[Row], store: KVStore) -> None:
    """Every slot that no token of the row lives in: large where masked, NaN where sliced away."""
    for row in rows:
        everything, living = range(store.capacities[row.index]), set() if row.finished else set(row.slots)
        masked = [slot for slot in everything if slot < row.next_slot and slot not in living and not row.finished]
        store.poison(row.index, masked, 1e4)
        store.poison(
            row.index, [slot for slot in everything if slot not in living and slot not in masked], float("nan")
        )


def _assert_close(ours: Tensor, right: Tensor, tolerance: float, what: str) -> None:
    error = float((ours - right).abs().max()) / float(right.abs().max())
    assert error <= tolerance, f"{what}: logits differ by {error:.1e} of the largest"


def check_logits_depend_on_own_tokens_alone(run: ForcedRun, keep: int, shift: int) -> None:
    """I6 with logits: other rows' tokens and dead slots change nothing; a verify pass equals a pass over the text."""
    keep %= len(run.prompts)
    base = force(run)
    lm = MODELS[run.model]()
    for row, text, logits in base:
        _assert_close(logits, plain_logits(lm, text)[-len(logits) :], 1e-4, f"row {row} against the plain model")
    for row, text, (_, _, logits), (_, _, poisoned) in zip(
        *zip(*((row, text) for row, text, _ in base), strict=True), base, force(run, poison=True), strict=True
    ):
        _assert_close(poisoned, logits, 1e-6, f"row {row} with {len(text)} tokens, dead slots poisoned")
    for (row, _, logits), (_, _, beside) in zip(base, force(run.with_other_tokens(keep, shift)), strict=True):
        if row == keep:
            _assert_close(beside, logits, 1e-6, f"row {row} beside other tokens")


# --- the layout alone ------------------------------------------------------------------------------------------------


class LayoutMachine(RuleBasedStateMachine):
    """Layouts against a list of cells per row, kept by the plainest means: a cell is a position or a word.

    Words: "prompt pad" and "hole" are dead cells in front of the cursor, "gone" belongs to a finished row.
    """

    layout: Layout
    rows: list[Row]
    cells: list[list[int | str]]

    @initialize(
        method=st.sampled_from(SPECULATIVE),
        lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
        largest=st.integers(0, 6),
        max_new=st.integers(1, 14),
        context=st.one_of(st.none(), st.integers(9, 20)),
    )
    def begin(self, method: str, lengths: list[int], largest: int, max_new: int, context: int | None) -> None:
        """Prefill: prompts at 0..P-1; a padded cache starts every row at the longest prompt's end."""
        cache, inputs = METHODS[method]
        self.padded_cache, self.padded_inputs = cache == "padded", inputs == "padded"
        self.layout = make_layout(SpeculativeConfig(cache_layout=cache, input_layout=inputs), pad_token_id=0)
        self.limits = output_limits(lengths, max_new, context)
        self.largest = largest
        self.capacities = self.layout.capacities(lengths, self.limits, largest)
        self.rows = self.layout.start(lengths)
        column = max(lengths)
        self.cells = [
            [*range(length), *["prompt pad"] * (column - length if self.padded_cache else 0)] for length in lengths
        ]
        self.emitted = [1] * len(lengths)
        self.alive = [limit > 1 for limit in self.limits]
        for row, alive in zip(self.rows, self.alive, strict=True):
            row.finished = not alive
        self.holes = 0

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """One step with drawn drafts, acceptances and ends; a finished batch feeds nothing."""
        if not any(self.alive):
            assert self.layout.plan(self.rows, [5] * len(self.rows), [[]] * len(self.rows)).num_fed == 0
            return
        number = len(self.rows)
        room = [max(min(self.largest, self.limits[row] - self.emitted[row] - 1), 0) for row in range(number)]
        drafted = [data.draw(st.integers(0, room[row])) if self.alive[row] else 0 for row in range(number)]
        gained = [data.draw(st.integers(1, drafted[row] + 1)) if self.alive[row] else 0 for row in range(number)]
        stops = [self.alive[row] and data.draw(st.integers(0, 7)) == 7 for row in range(number)]
        ended = [stops[row] or self.emitted[row] + gained[row] >= self.limits[row] for row in range(number)]
        drafts = [[10 + place for place in range(count)] for count in drafted]
        before = [list(cells) for cells in self.cells]

        plan = self.layout.plan(self.rows, [5] * number, drafts)
        assert [(row.index, row.next_slot) for row in self.rows] == list(enumerate(map(len, before))), "plan moved"
        self._check_plan(plan, before, drafted)
        commit = self.layout.commit(self.rows, plan, gained, ended)

        largest = max(gained)
        for row in range(number):
            cells = self.cells[row]
            if self.alive[row]:
                known = sum(isinstance(cell, int) for cell in cells)
                cells.extend(range(known, known + gained[row]))
            if self.padded_cache:
                word = "hole" if self.alive[row] and not ended[row] else "gone"
                cells.extend([word] * (largest - gained[row]))
            added = [slot for slot in range(len(before[row]), len(cells)) if cells[slot] == "hole"]
            assert list(commit.holes[row]) == added
            self.holes += len(added)
        assert list(commit.kept) == gained
        assert commit.moves == ()
        assert list(commit.freed) == [row for row in range(number) if self.alive[row] and ended[row]]
        self._check_account(plan, before)
        for row in range(number):
            self.emitted[row] += gained[row]
            self.alive[row] = self.alive[row] and not ended[row]

    @invariant()
    def rows_agree_with_the_cells(self) -> None:
        """Slots, cursor, holes, prompt pads and length of every row, and I2."""
        for row, cells in zip(getattr(self, "rows", []), getattr(self, "cells", []), strict=True):
            assert row.next_slot == len(cells)
            assert [cells[slot] for slot in row.slots] == list(range(row.cache_len))
            assert sorted(row.slots) == [slot for slot, cell in enumerate(cells) if isinstance(cell, int)]
            assert row.holes == [slot for slot, cell in enumerate(cells) if cell == "hole"]
            assert row.prompt_pads == cells.count("prompt pad")
            assert row.finished != self.alive[row.index]
            assert row.cache_len == row.prompt_length + self.emitted[row.index] - 1

    def _check_plan(self, plan: StepPlan, before: list[list[int | str]], drafted: list[int]) -> None:
        width = 1 + max(drafted[row] for row in range(len(self.rows)) if self.alive[row])
        for row, cells in zip(plan.rows, before, strict=True):
            if not self.alive[row.row]:
                assert row.kind == "finished"
                assert row.slots == ()
                assert row.input_kinds == ("pad",) * (width if self.padded_inputs else 0)
                continue
            real = 1 + drafted[row.row]
            fed = width if self.padded_inputs else real
            known = sum(isinstance(cell, int) for cell in cells)
            assert row.input_kinds == ("pending", *["draft"] * (real - 1), *["pad"] * (fed - real))
            assert row.input_token_ids == (5, *range(10, 10 + real - 1), *[0] * (fed - real))
            assert row.slots == tuple(range(len(cells), len(cells) + fed))
            assert row.position_ids == (*range(known, known + real), *[known + real - 1] * (fed - real))
            assert row.slots[-1] < self.capacities[row.row], "a slot beyond the row's capacity"
            for window in (None, 1, 3, 8):
                self._check_mask(row, cells, real, window)

    def _check_mask(self, row: RowPlan, cells: list[int | str], real: int, window: int | None) -> None:
        """A query sees the cells of its own row that hold a position up to its own, inside its own window."""
        known = sum(isinstance(cell, int) for cell in cells)
        written = [*cells, *range(known, known + real), *["dead"] * (row.num_fed - real)]
        seen = visible_slots(QueryGroup(0, (row,), 0, self.capacities[row.row]), window)[0]
        first = len(written) - seen.shape[1]
        for query in range(real):
            at = known + query
            right = [isinstance(cell, int) and at - (window or at + 1) < cell <= at for cell in written]
            assert not any(right[:first])
            assert seen[query].tolist() == right[first:]

    def _check_account(self, plan: StepPlan, before: list[list[int | str]]) -> None:
        """Every query walks over its cells, one at a time."""
        kinds = ("useful", "prompt_pad", "hole", "pad_query")
        per_token, varlen = dict.fromkeys(kinds, 0), dict.fromkeys(kinds, 0)
        inputs = {"useful": 0, "pad": 0, "finished": 0}
        for row, cells in zip(plan.rows, before, strict=True):
            for query, kind in enumerate(row.input_kinds):
                if not self.alive[row.row]:
                    inputs["finished"] += 1
                    continue
                inputs["pad" if kind == "pad" else "useful"] += 1
                for slot in range(len(cells) + query + 1):
                    cell = str(cells[slot]) if slot < len(cells) else "new"
                    word = (
                        "pad_query"
                        if kind == "pad"
                        else {"prompt pad": "prompt_pad", "hole": "hole"}.get(cell, "useful")
                    )
                    per_token[word] += 1
                    if query == row.num_real - 1:
                        varlen[word] += 1
                if kind == "pad":
                    varlen["pad_query"] += 1
        account = step_account(plan, sum(self.capacities), self.holes)
        assert account.input_rows == inputs
        assert account.kv_slots_scanned == {"per_token": per_token, "varlen": varlen}
        assert account.holes_total == self.holes
        several = any(row.num_fed > 1 for row in plan.rows if self.alive[row.row])
        assert account.attention_launches == (2 if several else 1)
