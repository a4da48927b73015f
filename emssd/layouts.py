"""Where every token goes: which token is fed, at which position, into which slot, what is padding, what becomes a hole.

Pure arithmetic. The engine executes a `StepPlan` on tensors; the simulator executes the same plan with invented
acceptance; pictures and lessons read it.

Words: a *slot* is a place in a row's part of the KV cache, a *position* is a token's index among the row's real
tokens. A row's *pending* token is committed but not yet in the cache: it is always the first input of the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from emssd.config import CacheLayout, InputLayout, SpeculativeConfig

RowKind = Literal["prefill", "decode", "finished"]


@dataclass
class Row:
    """One request's place in the batch, as far as layouts care.

    Args:
        index: request index.
        prompt_length: tokens of the prompt.
        slots: visible slots in logical order: `slots[p]` holds the token at position p.
        next_slot: where the row writes next.
        holes: dead slots that later steps still scan, without prompt padding.
        prompt_pads: dead slots between the row's prompt and the shared write column.
        finished: the row has ended.
    """

    index: int
    prompt_length: int
    slots: list[int] = field(default_factory=list)
    next_slot: int = 0
    holes: list[int] = field(default_factory=list)
    prompt_pads: int = 0
    finished: bool = False

    @property
    def cache_len(self) -> int:
        """Visible cells: tokens of this row already in the cache."""
        return len(self.slots)


@dataclass(frozen=True)
class RowPlan:
    """What one row feeds in one forward. The first `len(slots)` of the fed tokens are written to the cache."""

    row: int
    kind: RowKind
    cache_start: int
    """First slot written."""
    input_token_ids: tuple[int, ...]
    """[fed]"""
    input_kinds: tuple[str, ...]
    """[fed] "prompt", "pending", "draft" or "pad"."""
    position_ids: tuple[int, ...]
    """[fed]"""
    slots: tuple[int, ...]
    """[written] slots of this row."""
    num_drafted: int = 0
    prompt_pads: int = 0
    holes: int = 0
    """Holes the row's queries scan."""
    key_positions: npt.NDArray[np.int32] | None = None
    """[span] position held by each slot once this step is written, -1 where dead; None where slot == position."""

    @property
    def num_fed(self) -> int:
        """Tokens fed to the dense layers, pads included."""
        return len(self.input_token_ids)

    @property
    def num_real(self) -> int:
        """Tokens fed that the row needs: prompt, pending and draft tokens."""
        return self.num_fed - self.input_kinds.count("pad")

    @property
    def span(self) -> int:
        """Slots of the row that its queries may look at: 0..span-1."""
        return self.slots[-1] + 1 if self.slots else self.cache_start


@dataclass(frozen=True)
class StepPlan:
    """One forward: the rows' inputs, one after another, make the packed sequence of length sum(num_fed)."""

    rows: tuple[RowPlan, ...]

    @property
    def num_fed(self) -> int:
        """Length of the packed sequence."""
        return sum(row.num_fed for row in self.rows)

    @property
    def live(self) -> tuple[RowPlan, ...]:
        """The rows that are not finished."""
        return tuple(row for row in self.rows if row.kind != "finished")


@dataclass(frozen=True)
class Commit:
    """What a layout did with a verified step."""

    kept: tuple[int, ...]
    """[rows] tokens the row keeps of those emitted; a layout may keep fewer."""
    moves: tuple[tuple[int, int, int], ...]
    """(row, from slot, to slot) copies that the store must make; none in these layouts."""
    holes: tuple[tuple[int, ...], ...]
    """[rows] slots that became holes."""
    freed: tuple[int, ...]
    """Rows whose slots nobody reads any more."""


class Layout(Protocol):
    """Decides slots and padding. `plan` changes nothing; `commit` moves the cursors."""

    def start(self, prompt_lengths: Sequence[int]) -> list[Row]:
        """Rows after prefill: the prompt of row i in slots 0..P_i-1."""
        ...

    def capacities(self, prompt_lengths: Sequence[int], output_limits: Sequence[int], max_drafts: int) -> list[int]:
        """[rows] slots that the run can need at most."""
        ...

    def plan(self, rows: Sequence[Row], pending: Sequence[int], drafts: Sequence[Sequence[int]]) -> StepPlan:
        """The next forward. `pending` and `drafts` are read for live rows only."""
        ...

    def commit(self, rows: Sequence[Row], plan: StepPlan, emitted: Sequence[int], ended: Sequence[bool]) -> Commit:
        """Take in the verified step: `emitted` tokens per row, and whether the row ends with them."""
        ...


def make_layout(config: SpeculativeConfig, pad_token_id: int = 0, with_masks: bool = True) -> Layout:
    """The layout that a configuration names. Without masks no `key_positions` are made: nobody will run the plans."""
    return BatchLayout(config.cache_layout, config.input_layout, pad_token_id, with_masks)


class BatchLayout:
    """The paper's 2 x 2: cache padded or ragged, inputs padded or packed (section 3 of the paper; Table 2)."""

    def __init__(self, cache: CacheLayout, inputs: InputLayout, pad_token_id: int = 0, with_masks: bool = True) -> None:
        self.cache = cache
        self.inputs = inputs
        self.pad_token_id = pad_token_id
        self.with_masks = with_masks

    def start(self, prompt_lengths: Sequence[int]) -> list[Row]:
        """Rows after prefill. A padded cache starts every row at the longest prompt's end."""
        column = max(prompt_lengths, default=0)
        rows = []
        for index, length in enumerate(prompt_lengths):
            first = column if self.cache == "padded" else length
            rows.append(Row(index, length, list(range(length)), first, prompt_pads=first - length))
        return rows

    def capacities(self, prompt_lengths: Sequence[int], output_limits: Sequence[int], max_drafts: int) -> list[int]:
        """[rows] slots that a run can need at most.

        The first token comes from prefill, so row i decodes N_i - 1 tokens. A shared column advances by the largest
        gain of each step: at most K + 1 in each of max(N_i) - 1 steps, and at most all rows' tokens together.
        """
        decoded = [max(limit - 1, 0) for limit in output_limits]
        longest = max(decoded, default=0)
        drafts = min(max_drafts, max(longest - 1, 0))
        if self.cache == "padded":
            advance = min(sum(decoded), longest * (drafts + 1))
            return [max(prompt_lengths, default=0) + advance + drafts] * len(prompt_lengths)
        slack = drafts if self.inputs == "padded" else 0
        return [length + count + slack for length, count in zip(prompt_lengths, decoded, strict=True)]

    def plan(self, rows: Sequence[Row], pending: Sequence[int], drafts: Sequence[Sequence[int]]) -> StepPlan:
        """The next forward: live rows feed 1 + drafted tokens, padded inputs fill every row up to the longest."""
        longest = max((1 + len(drafts[row.index]) for row in rows if not row.finished), default=0)
        width = longest if self.inputs == "padded" else 0
        plans = []
        for row in rows:
            if row.finished:
                plans.append(self._plan_finished(row, width))
            else:
                plans.append(self._plan_live(row, pending[row.index], drafts[row.index], width))
        return StepPlan(tuple(plans))

    def _plan_live(self, row: Row, pending: int, drafts: Sequence[int], width: int) -> RowPlan:
        real = 1 + len(drafts)
        pads = max(width - real, 0)
        start, first = row.next_slot, row.cache_len
        positions = (*range(first, first + real), *[first + real - 1] * pads)
        return RowPlan(
            row=row.index,
            kind="decode",
            cache_start=start,
            input_token_ids=(pending, *drafts, *[self.pad_token_id] * pads),
            input_kinds=("pending", *["draft"] * len(drafts), *["pad"] * pads),
            position_ids=positions,
            slots=tuple(range(start, start + real + pads)),
            num_drafted=len(drafts),
            prompt_pads=row.prompt_pads,
            holes=len(row.holes),
            key_positions=key_positions(row, real, pads) if self.cache == "padded" and self.with_masks else None,
        )

    def _plan_finished(self, row: Row, width: int) -> RowPlan:
        last_position = max(row.cache_len - 1, 0)
        return RowPlan(
            row=row.index,
            kind="finished",
            cache_start=row.next_slot,
            input_token_ids=(self.pad_token_id,) * width,
            input_kinds=("pad",) * width,
            position_ids=(last_position,) * width,
            slots=(),
            prompt_pads=row.prompt_pads,
            holes=len(row.holes),
        )

    def commit(self, rows: Sequence[Row], plan: StepPlan, emitted: Sequence[int], ended: Sequence[bool]) -> Commit:
        """Keep all emitted tokens. Rollback lowers a length: it moves and zeroes nothing.

        A shared column advances by the largest gain of the rows live at the step's start; slower rows that live on
        are left with masked holes for ever.
        """
        largest = max((emitted[row.row] for row in plan.live), default=0)
        holes: list[tuple[int, ...]] = []
        kept = [0] * len(rows)
        for row, row_plan in zip(rows, plan.rows, strict=True):
            new_holes: tuple[int, ...] = ()
            if row_plan.kind != "finished":
                kept[row.index] = gain = emitted[row.index]
                row.slots.extend(range(row.next_slot, row.next_slot + gain))
                if self.cache == "padded" and not ended[row.index]:
                    new_holes = tuple(range(row.next_slot + gain, row.next_slot + largest))
                row.holes.extend(new_holes)
                row.finished = ended[row.index]
                row.next_slot += gain if self.cache == "ragged" else 0
            row.next_slot += largest if self.cache == "padded" else 0
            holes.append(new_holes)
        freed = tuple(row.row for row in plan.live if ended[row.row])
        return Commit(tuple(kept), (), tuple(holes), freed)


def key_positions(row: Row, real: int, pads: int = 0) -> npt.NDArray[np.int32]:
    """Position held by each slot once the row has written `real` tokens and `pads`, -1 where dead: [span]."""
    positions = np.full(row.next_slot + real + pads, -1, dtype=np.int32)
    positions[row.slots] = np.arange(row.cache_len, dtype=np.int32)
    positions[row.next_slot : row.next_slot + real] = np.arange(row.cache_len, row.cache_len + real)
    return positions


def lagging_plan(
    row: Row,
    cache: CacheLayout,
    token_ids: Sequence[int],
    first_position: int,
    width: int = 0,
    pad_token_id: int = 0,
) -> RowPlan:
    """What a draft model feeds for a row: tokens at `first_position` and after, to the slots they have in the target.

    Tokens that the draft's cache lacks go to the target's slots of the same positions; from the pending token on they
    follow the write cursor. Pads fill up to `width`; they are not written.
    """
    end = first_position + len(token_ids)
    pads = max(width - len(token_ids), 0)
    caught_up = row.slots[first_position:]
    ahead = end - row.cache_len
    return RowPlan(
        row=row.index,
        kind="decode",
        cache_start=row.next_slot,
        input_token_ids=(*token_ids, *[pad_token_id] * pads),
        input_kinds=("draft",) * len(token_ids) + ("pad",) * pads,
        position_ids=(*range(first_position, end), *[end - 1] * pads),
        slots=(
            *caught_up,
            *range(row.next_slot + max(first_position - row.cache_len, 0), row.next_slot + ahead),
        ),
        key_positions=None if cache == "ragged" else key_positions(row, ahead),
    )


def prefill_plan(pieces: Sequence[tuple[int, int, Sequence[int]]]) -> StepPlan:
    """A forward over pieces of prompts: `(row, start, token_ids)` goes to slots and positions start, start + 1, ..."""
    plans = []
    for row, start, token_ids in pieces:
        places = tuple(range(start, start + len(token_ids)))
        kinds = ("prompt",) * len(token_ids)
        plans.append(RowPlan(row, "prefill", start, tuple(token_ids), kinds, places, places))
    return StepPlan(tuple(plans))


def prefill_chunks(prompts: Sequence[Sequence[int]], chunk_tokens: int) -> list[list[tuple[int, int, Sequence[int]]]]:
    """Cut prompts into forwards of at most `chunk_tokens` tokens: lists of `(row, start, token_ids)`."""
    chunks: list[list[tuple[int, int, Sequence[int]]]] = [[]]
    room = chunk_tokens
    for row, prompt in enumerate(prompts):
        start = 0
        while start < len(prompt):
            if room == 0:
                chunks.append([])
                room = chunk_tokens
            piece = prompt[start : start + room]
            chunks[-1].append((row, start, piece))
            start += len(piece)
            room -= len(piece)
    return [chunk for chunk in chunks if chunk]


def output_limits(prompt_lengths: Sequence[int], max_new_tokens: int, context_length: int | None) -> list[int]:
    """[rows] tokens each row can emit: a model with C positions can be fed C tokens, so one more is emitted unfed."""
    if context_length is None:
        return [max_new_tokens] * len(prompt_lengths)
    return [min(max_new_tokens, context_length - length + 1) for length in prompt_lengths]
