"""Runs without a model: a layout is driven with invented drafts and verdicts, as the engine would drive it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from random import Random

from emssd.config import SpeculativeConfig
from emssd.layouts import BatchLayout, Commit, Row, StepPlan, make_layout

CACHES = ("padded", "ragged")
INPUTS = ("padded", "packed")
PAD = 77


@dataclass
class PureStep:
    """One decode step of an invented run."""

    before: list[Row]
    pending: list[int]
    drafts: list[list[int]]
    plan: StepPlan
    emitted: list[int]
    ended: list[bool]
    commit: Commit
    after: list[Row]


def layout_of(cache: str, inputs: str, pad: int = PAD) -> BatchLayout:
    """A layout of the 2 x 2 whose pads are easy to see."""
    layout = make_layout(SpeculativeConfig(cache_layout=cache, input_layout=inputs), pad)
    assert isinstance(layout, BatchLayout)
    return layout


def invented_run(
    layout: BatchLayout,
    prompt_lengths: Sequence[int],
    output_limits: Sequence[int],
    max_drafts: int,
    seed: int,
    eos_chance: float = 0.1,
) -> Iterator[PureStep]:
    """Decode with invented drafts until every row has put out its limit or met an invented end of sequence."""
    draw = Random(seed)
    rows = layout.start(prompt_lengths)
    left = [limit - 1 for limit in output_limits]
    for row in rows:
        row.finished = left[row.index] <= 0
    while not all(row.finished for row in rows):
        before = deepcopy(rows)
        pending = [draw.randrange(50) for _ in rows]
        caps = [max(min(max_drafts, left[row.index] - 1), 0) for row in rows]
        drafts = [[draw.randrange(50) for _ in range(draw.randint(0, cap))] for cap in caps]
        plan = layout.plan(rows, pending, drafts)
        emitted, ended = [0] * len(rows), [False] * len(rows)
        for row in rows:
            if not row.finished:
                emitted[row.index] = draw.randint(0, len(drafts[row.index])) + 1
                left[row.index] -= emitted[row.index]
                ended[row.index] = left[row.index] <= 0 or draw.random() < eos_chance
        commit = layout.commit(rows, plan, emitted, ended)
        yield PureStep(before, pending, drafts, plan, emitted, ended, commit, deepcopy(rows))
