"""Driving a layout with a script: drafts and answers are written down beforehand, and no model runs.

The real layouts place every token, so what comes out is an ordinary trace; its seconds are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emssd.accounting import step_account
from emssd.config import SpeculativeConfig
from emssd.layouts import Row, RowPlan, StepPlan, make_layout, prefill_plan
from emssd.trace import PHASES, GenerationTrace, RowTrace, StepTrace, next_kind


@dataclass(frozen=True)
class ScriptedStep:
    """What a row drafts in a step, and what the target answers: [drafted] and [drafted + 1] token ids."""

    drafts: list[int]
    answers: list[int]
    gained: int


@dataclass(frozen=True)
class ScriptedRow:
    """One invented request: its prompt, its output, and its steps with drafts.

    Args:
        prompt, output: token ids.
        steps: decode steps; together they gain the output without its first token.
    """

    prompt: list[int]
    output: list[int]
    steps: list[ScriptedStep]

    def one_by_one(self) -> ScriptedRow:
        """The same output in steps without drafts."""
        return ScriptedRow(self.prompt, self.output, [ScriptedStep([], [token], 1) for token in self.output[1:]])


def drive(trace: GenerationTrace, config: SpeculativeConfig, rows: Sequence[ScriptedRow]) -> None:
    """Append prefill and all decode steps to a trace without steps.

    Args:
        trace: gets the steps.
        config: names the layout; its K and `max_new_tokens` say how many slots are allocated.
        rows: requests; each ends with its last step, or at prefill if it has none.
    """
    layout = make_layout(config, with_masks=False)
    lengths = [len(row.prompt) for row in rows]
    limits, drafts = [config.max_new_tokens] * len(rows), config.max_draft_tokens or 0
    allocated = sum(layout.capacities(lengths, limits, drafts))
    places = layout.start(lengths)
    for place, row in zip(places, rows, strict=True):
        place.finished = not row.steps
    plan = prefill_plan([(number, 0, row.prompt) for number, row in enumerate(rows)])
    now: list[ScriptedStep | None] = [ScriptedStep([], row.output[:1], 1) for row in rows]
    trace.steps.append(_step(0, plan, places, now, [()] * len(rows), allocated))
    pending = [row.output[0] for row in rows]
    while not all(place.finished for place in places):
        index = len(trace.steps)
        now = [None if place.finished else row.steps[index - 1] for row, place in zip(rows, places, strict=True)]
        plan = layout.plan(places, pending, [step.drafts if step else [] for step in now])
        ended = [index >= len(row.steps) for row in rows]
        commit = layout.commit(places, plan, [step.gained if step else 0 for step in now], ended)
        trace.steps.append(_step(index, plan, places, now, commit.holes, allocated))
        pending = [step.answers[step.gained - 1] if step else 0 for step in now]


def _step(
    index: int,
    plan: StepPlan,
    places: Sequence[Row],
    scripted: Sequence[ScriptedStep | None],
    holes: Sequence[tuple[int, ...]],
    allocated: int,
) -> StepTrace:
    rows = [_row(*parts) for parts in zip(plan.rows, places, scripted, holes, strict=True)]
    account = step_account(plan, allocated, sum(len(place.holes) for place in places))
    return StepTrace(index, "decode" if index else "prefill", rows, [], account, dict.fromkeys(PHASES, 0.0))


def _row(planned: RowPlan, place: Row, step: ScriptedStep | None, holes: tuple[int, ...]) -> RowTrace:
    """A row's record once the step is committed; `step` is None for a row that had ended before."""
    drafts, answers, gained = (step.drafts, step.answers, step.gained) if step else ([], [], 0)
    accepted = gained if 0 < gained <= len(drafts) and drafts[gained - 1] == answers[gained - 1] else max(gained - 1, 0)
    return RowTrace(
        row=planned.row,
        kind=planned.kind,
        cache_start=planned.cache_start,
        next_slot=place.next_slot,
        slots=list(planned.slots),
        input_token_ids=list(planned.input_token_ids),
        input_kinds=list(planned.input_kinds),
        position_ids=list(planned.position_ids),
        target_token_ids=list(answers),
        num_drafted=planned.num_drafted,
        num_accepted=accepted,
        num_emitted=gained,
        emitted_token_ids=list(answers[:gained]),
        next_kind=next_kind(planned.num_drafted, accepted, gained),
        cache_len=place.cache_len,
        holes_added=list(holes),
        finished=place.finished,
    )
