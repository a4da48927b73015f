"""Random traces in the player's form, with the cells that `emssd.cells` gives for every step and sub-step."""

from __future__ import annotations

from random import Random
from typing import Any

from emssd.accounting import step_account
from emssd.cells import STATES, SUBSTEPS, Cell, cells_at
from emssd.config import SpeculativeConfig
from emssd.layouts import BatchLayout, RowPlan, StepPlan, make_layout, prefill_plan
from emssd.trace import GenerationTrace, RequestTrace, RowTrace, StepTrace, finish_reason, next_kind
from emssd.trace_checking import check_consistency
from emssd.ui.player_data import Pane, player_data

VOCAB = 97
EOS = 7
CAUSES = (None, "prompt", "input", "finished")
MODEL = {
    "name": "invented",
    "architecture": "LlamaForCausalLM",
    "parameters": 20_000,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 8,
    "hidden": 32,
    "intermediate": 64,
    "vocab": VOCAB,
    "dtype": "float32",
    "device": "cpu",
}
SAMPLE_METHODS = ("greedy", "vanilla", "packed-input", "ragged-cache", "ems-sd")


def invented_trace(
    method: str,
    prompts: list[list[int]],
    max_new_tokens: int,
    max_drafts: int,
    seed: int,
    max_steps: int = 1000,
    accept_chance: float = 0.7,
    hit_chance: float = 0.8,
    vocab: int = VOCAB,
) -> GenerationTrace:
    """A consistent trace without a model: the layout's own plans, with drafts and answers drawn at random.

    A draft may be missing, short, right, wrong, or end the row inside its block; the run may be stopped early.
    """
    draw = Random(seed)
    drafts = 0 if method.startswith("greedy") else max_drafts
    config = SpeculativeConfig.for_method(
        method, num_draft_tokens=drafts, max_new_tokens=max_new_tokens, eos_token_ids=EOS
    )
    layout = make_layout(config, with_masks=False)
    assert isinstance(layout, BatchLayout)
    run = _Invented(config, layout, prompts, draw, accept_chance, hit_chance, vocab)
    while run.live and len(run.trace.steps) <= max_steps:
        run.step(drafts)
    check_consistency(run.trace)
    return run.trace


class _Invented:
    def __init__(
        self,
        config: SpeculativeConfig,
        layout: BatchLayout,
        prompts: list[list[int]],
        draw: Random,
        accept_chance: float,
        hit_chance: float,
        vocab: int,
    ) -> None:
        self.config, self.layout, self.draw, self.vocab = config, layout, draw, vocab
        self.accept_chance, self.hit_chance = accept_chance, hit_chance
        lengths = [len(prompt) for prompt in prompts]
        self.rows = layout.start(lengths)
        self.allocated = sum(
            layout.capacities(lengths, [config.max_new_tokens] * len(lengths), config.max_draft_tokens)
        )
        model = MODEL | {"vocab": vocab}
        requests = [RequestTrace(list(prompt), None) for prompt in prompts]
        self.trace = GenerationTrace(config.to_dict(), config.method, {"name": "none"}, "reference", model, requests)
        answers = [[self.token()] for _ in prompts]
        for row, request, (token,) in zip(self.rows, requests, answers, strict=True):
            request.output_token_ids.append(token)
            row.finished = self.reason(row.index) is not None
        plan = prefill_plan([(row, 0, prompt) for row, prompt in enumerate(prompts)])
        self.record(plan, answers, [0] * len(prompts), [1] * len(prompts), ((),) * len(prompts))

    @property
    def live(self) -> bool:
        return not all(row.finished for row in self.rows)

    def token(self) -> int:
        token = self.draw.randrange(self.vocab)
        return token if token != EOS or self.draw.random() < 0.5 else EOS + 1

    def reason(self, row: int) -> str | None:
        output = self.trace.rows[row].output_token_ids
        return finish_reason(output, self.config.max_new_tokens, self.config.max_new_tokens, (EOS,))

    def step(self, max_drafts: int) -> None:
        drafts: list[list[int]] = [[] for _ in self.rows]
        for row in self.rows:
            left = self.config.max_new_tokens - len(self.trace.rows[row.index].output_token_ids)
            most = max(min(max_drafts, left - 1), 0)
            if not row.finished and self.draw.random() < self.hit_chance:
                count = most if self.draw.random() < 0.5 else self.draw.randint(0, most)
                drafts[row.index] = [self.token() for _ in range(count)]
        pending = [request.output_token_ids[-1] for request in self.trace.rows]
        plan = self.layout.plan(self.rows, pending, drafts)
        answers, accepted, emitted = self.judge(drafts)
        ended = [False] * len(self.rows)
        for row in plan.live:
            self.trace.rows[row.row].output_token_ids += answers[row.row][: emitted[row.row]]
            ended[row.row] = self.reason(row.row) is not None
        commit = self.layout.commit(self.rows, plan, emitted, ended)
        self.record(plan, answers, accepted, emitted, commit.holes)

    def judge(self, drafts: list[list[int]]) -> tuple[list[list[int]], list[int], list[int]]:
        answers: list[list[int]] = [[] for _ in drafts]
        accepted, emitted = [0] * len(drafts), [0] * len(drafts)
        for row in self.rows:
            if row.finished:
                continue
            proposal = drafts[row.index]
            right = [token if self.draw.random() < self.accept_chance else self.token() for token in proposal]
            answers[row.index] = [*right, self.token()]
            kept = 0
            while kept < len(proposal) and proposal[kept] == right[kept]:
                kept += 1
                if proposal[kept - 1] == EOS:
                    break
            cut = kept > 0 and proposal[kept - 1] == EOS
            accepted[row.index], emitted[row.index] = kept, kept if cut else kept + 1
        return answers, accepted, emitted

    def source(self, planned: RowPlan) -> int | None:
        """Where the drafts might have been copied from: anywhere that leaves enough tokens."""
        last = planned.position_ids[0] + 1 - planned.num_drafted if planned.num_drafted else -1
        return self.draw.randint(0, last) if last >= 0 else None

    def record(
        self,
        plan: StepPlan,
        answers: list[list[int]],
        accepted: list[int],
        emitted: list[int],
        holes: tuple[tuple[int, ...], ...],
    ) -> None:
        rows = []
        for row, planned in zip(self.rows, plan.rows, strict=True):
            number = planned.row
            rows.append(
                RowTrace(
                    row=number,
                    kind=planned.kind,
                    cache_start=planned.cache_start,
                    next_slot=row.next_slot,
                    slots=list(planned.slots),
                    input_token_ids=list(planned.input_token_ids),
                    input_kinds=list(planned.input_kinds),
                    position_ids=list(planned.position_ids),
                    target_token_ids=list(answers[number]),
                    num_drafted=planned.num_drafted,
                    num_accepted=accepted[number],
                    num_emitted=emitted[number],
                    emitted_token_ids=answers[number][: emitted[number]],
                    next_kind=next_kind(planned.num_drafted, accepted[number], emitted[number]),
                    cache_len=row.cache_len,
                    holes_added=list(holes[number]),
                    finished=row.finished,
                    draft_source=self.source(planned),
                )
            )
            self.trace.rows[number].finish_reason = self.reason(number)
        index = len(self.trace.steps)
        account = step_account(plan, self.allocated, sum(len(row.holes) for row in self.rows))
        seconds = dict.fromkeys(("draft", "target", "verify", "commit"), 0.0) | {"total": 0.001 * (1 + index % 3)}
        self.trace.steps.append(StepTrace(index, "decode" if index else "prefill", rows, [], account, seconds))


def random_prompts(draw: Random, rows: int, longest: int, vocab: int = VOCAB) -> list[list[int]]:
    """Prompts of 1..longest tokens."""
    return [[draw.randrange(vocab) for _ in range(draw.randint(1, longest))] for _ in range(rows)]


def random_trace(number: int, seed: int) -> GenerationTrace:
    """The n-th of a series of small invented traces: all methods in turn, 1..6 rows, 0..6 drafts."""
    draw = Random(f"{seed}.{number}")
    prompts = random_prompts(draw, draw.randint(1, 6), 9)
    method = SAMPLE_METHODS[number % len(SAMPLE_METHODS)]
    stop = 1000 if draw.random() < 0.8 else draw.randint(1, 3)
    return invented_trace(method, prompts, draw.randint(1, 16), draw.randint(0, 6), draw.randrange(10**9), stop)


def cell_samples(count: int, seed: int) -> list[dict[str, Any]]:
    """`count` traces as {"data": player data of one pane, "cells": [steps][sub-steps] cells of all rows}.

    A cell is [state index, word, position, step, cause code], -1 for none; cells are [rows][slots]. Step 0 has one
    sub-step, "commit".
    """
    samples = []
    for number in range(count):
        trace = random_trace(number, seed)
        data = player_data([Pane(trace, trace.method)], [f"row {row}" for row in range(len(trace.rows))])
        samples.append({"data": data, "cells": all_cells(trace, data)})
    return samples


def all_cells(trace: GenerationTrace, data: dict[str, Any]) -> list[list[list[list[list[int]]]]]:
    """[steps][sub-steps][rows][slots] cells as numbers. A cell that a pad was written to has no word."""
    word_of = {token: word for word, token in enumerate(data["ids"])}
    padded = {
        (step.index, row.row, slot)
        for step in trace.steps
        for row in step.rows
        for slot, kind in zip(row.slots, row.input_kinds, strict=False)
        if kind == "pad"
    }

    def numbers(row: int, slot: int, cell: Cell) -> list[int]:
        named = cell.token_id is not None and (cell.step, row, slot) not in padded
        return [
            STATES.index(cell.state),
            word_of[cell.token_id] if named else -1,
            -1 if cell.position is None else cell.position,
            -1 if cell.step is None else cell.step,
            CAUSES.index(cell.cause),
        ]

    return [
        [
            [
                [numbers(row, slot, cell) for slot, cell in enumerate(cells)]
                for row, cells in enumerate(cells_at(trace, step.index, sub))
            ]
            for sub in (SUBSTEPS if step.index else ("commit",))
        ]
        for step in trace.steps
    ]
