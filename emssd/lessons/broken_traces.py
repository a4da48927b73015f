"""Toy runs, right or not, as ordinary traces: a row of a padded batch, which is shown alone as the batch placed it."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from emssd.accounting import step_account
from emssd.layouts import RowPlan, StepPlan
from emssd.lessons.batches import Script, run_script
from emssd.lessons.broken_runs import DRAFTS, BrokenRuns
from emssd.lessons.faulty_runs import BONUS_MISSING, STALE_CELLS_READ, Evidence, StepEvidence, scripted_steps
from emssd.scripted_run import ScriptedRow
from emssd.trace import PHASES, GenerationTrace, RowTrace, StepTrace, next_kind

METHOD: Literal["packed-input"] = "packed-input"
"""Padded cache, so that slots are no positions; packed inputs, so that only the row that lives is fed."""


def row_alone(trace: GenerationTrace) -> GenerationTrace:
    """Changes a trace of the batch to one of row 0 alone; cells and counts of its decode steps stay what they are."""
    trace.rows = trace.rows[:1]
    for step in trace.steps:
        step.rows = step.rows[:1]
    return trace


def right_trace(made: BrokenRuns, method: str = METHOD) -> GenerationTrace:
    """The right run in its batch, placed by the method's own layout.

    Row 0 is the toy row. Row 1 is the batch's longest prompt, which ends with its first token.

    Args:
        made: the runs of a seed.
        method: "packed-input", or "greedy" for the same output without drafts.
    """
    right, end = made.runs[None], made.vocab_size
    row = ScriptedRow(right.prompt, right.right_output, scripted_steps(right))
    other = ScriptedRow([place % made.vocab_size for place in range(made.longest)], [end], [])
    trace = run_script(Script((row, other), made.vocab_size + 1, DRAFTS, len(right.right_output)), method)
    trace.config["eos_token_ids"] = [end]
    trace.tokens = {str(token): f" {token}" for token in range(made.vocab_size)} | {str(end): " <end>"}
    for request in trace.rows:
        request.prompt_text, request.output_text = (
            _text(trace, ids) for ids in (request.prompt_token_ids, request.output_token_ids)
        )
    trace.rows[0].finish_reason, trace.rows[1].finish_reason = "length", "eos"
    return trace


def broken_trace(made: BrokenRuns, bug: str | None) -> GenerationTrace:
    """A run in its batch, as its program went: positions as given, slots as written, tokens as put out.

    Without a bug, it is `right_trace`. A row's `cache_len` and `next_slot` are what the program takes for right: with
    stale cells, rejected ones among them. The account counts as useful what queries read, also by mistake.
    """
    run, trace = made.runs[bug], right_trace(made)
    trace.rows[0].output_token_ids, trace.rows[0].output_text = run.output, _text(trace, run.output)
    prefill, slots = trace.steps[0], trace.steps[0].account.kv_slots_allocated
    trace.steps = [prefill]
    column, cache_len = made.longest, len(run.prompt)
    for number, (step, after) in enumerate(zip(run.steps, _columns_after(run, bug), strict=True), 1):
        cache_len += after - column
        plan = StepPlan((_plan(made, run, step), RowPlan(1, "finished", column, (), (), (), ())))
        rows = [
            _row(plan.rows[0], step, after, cache_len, number == len(run.steps), bug),
            _other_row(plan.rows[1], made.longest, after),
        ]
        trace.steps.append(
            StepTrace(number, "decode", rows, [], step_account(plan, slots, 0), dict.fromkeys(PHASES, 0.0))
        )
        column = after
    return trace


def _text(trace: GenerationTrace, token_ids: list[int]) -> str:
    return "".join(trace.tokens[str(token)] for token in token_ids)


def _columns_after(run: Evidence, bug: str | None) -> list[int]:
    """[steps] the slot that is written next once a step is committed."""
    last = run.steps[-1]
    end = last.slots[-1] + 1 if bug == STALE_CELLS_READ else last.slots[0] + len(last.emitted_token_ids)
    return [*(after.slots[0] for _, after in pairwise(run.steps)), end]


def _plan(made: BrokenRuns, run: Evidence, step: StepEvidence) -> RowPlan:
    drafted = len(step.input_token_ids) - 1
    return RowPlan(
        row=0,
        kind="decode",
        cache_start=step.slots[0],
        input_token_ids=tuple(step.input_token_ids),
        input_kinds=("pending", *["draft"] * drafted),
        position_ids=tuple(step.position_ids),
        slots=tuple(step.slots),
        num_drafted=drafted,
        prompt_pads=made.longest - len(run.prompt),
    )


def _row(planned: RowPlan, step: StepEvidence, after: int, cache_len: int, finished: bool, bug: str | None) -> RowTrace:
    emitted = step.emitted_token_ids
    without_bonus = bug == BONUS_MISSING and emitted == step.input_token_ids[1:]
    accepted = len(emitted) - (0 if without_bonus and emitted else 1)
    return RowTrace(
        row=0,
        kind="decode",
        cache_start=planned.cache_start,
        next_slot=after,
        slots=list(planned.slots),
        input_token_ids=list(planned.input_token_ids),
        input_kinds=list(planned.input_kinds),
        position_ids=list(planned.position_ids),
        target_token_ids=list(step.target_token_ids),
        num_drafted=planned.num_drafted,
        num_accepted=accepted,
        num_emitted=len(emitted),
        emitted_token_ids=list(emitted),
        next_kind=next_kind(planned.num_drafted, accepted, len(emitted)),
        cache_len=cache_len,
        holes_added=[],
        finished=finished,
    )


def _other_row(planned: RowPlan, cache_len: int, after: int) -> RowTrace:
    """The row that ended at prefill: nothing is fed for it, and its cursor is the shared one."""
    return RowTrace(
        row=1,
        kind="finished",
        cache_start=planned.cache_start,
        next_slot=after,
        slots=[],
        input_token_ids=[],
        input_kinds=[],
        position_ids=[],
        target_token_ids=[],
        num_drafted=0,
        num_accepted=0,
        num_emitted=0,
        emitted_token_ids=[],
        next_kind=None,
        cache_len=cache_len,
        holes_added=[],
        finished=True,
    )
