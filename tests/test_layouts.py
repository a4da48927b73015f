"""Layout arithmetic: which token goes where, what is padding, what becomes a hole. No model, no tensors."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from emssd.config import SpeculativeConfig
from emssd.layouts import (
    Row,
    key_positions,
    lagging_plan,
    make_layout,
    output_limits,
    prefill_chunks,
    prefill_plan,
)
from tests.pure_runs import CACHES, INPUTS, PAD, invented_run, layout_of

LAYOUTS = list(product(CACHES, INPUTS))
# prompt lengths, output limits, most drafts
SHAPES = [
    ([5, 3], [9, 9], 5),
    ([1], [7], 0),
    ([1, 2, 9], [6, 12, 1], 3),
    ([4, 1, 12, 7], [13, 2, 8, 20], 7),
    ([6, 6], [5, 5], 1),
]


@pytest.fixture(params=LAYOUTS, ids="-".join)
def layout(request):
    return layout_of(*request.param)


def steps_of(layout):
    for shape, seed in product(SHAPES, range(4)):
        for step in invented_run(layout, *shape, seed=seed):
            yield shape, step


def test_a_configuration_names_its_layout():
    for cache, inputs in LAYOUTS:
        made = make_layout(SpeculativeConfig(cache_layout=cache, input_layout=inputs), 4)
        assert (made.cache, made.inputs, made.pad_token_id) == (cache, inputs, 4)


def test_rows_after_prefill(layout):
    """A ragged row writes next behind its own prompt, a padded one behind the longest; the gap is prompt padding."""
    rows = layout.start([5, 3])
    assert [row.slots for row in rows] == [[0, 1, 2, 3, 4], [0, 1, 2]]
    assert [row.cache_len for row in rows] == [5, 3]
    assert [row.next_slot for row in rows] == ([5, 5] if layout.cache == "padded" else [5, 3])
    assert [row.prompt_pads for row in rows] == ([0, 2] if layout.cache == "padded" else [0, 0])
    assert layout.start([]) == []


def test_worked_example_step_by_step(layout):
    """The paper's example: prompts 5 and 3; drafts 5 and 2, accepted 3 and 0; drafts 2 and 5, accepted 1 and 5."""
    rows = layout.start([5, 3])
    first = layout.plan(rows, [10, 20], [[11, 12, 13, 14, 15], [21, 22]])
    padded = layout.inputs == "padded"
    assert [row.num_fed for row in first.rows] == ([6, 6] if padded else [6, 3])
    assert first.num_fed == (12 if padded else 9)
    layout.commit(rows, first, [4, 1], [False, False])
    cursors = [9, 9] if layout.cache == "padded" else [9, 4]
    assert [row.next_slot for row in rows] == cursors
    second = layout.plan(rows, [30, 40], [[31, 32], [41, 42, 43, 44, 45]])
    assert first.num_fed + second.num_fed == (24 if padded else 18)
    layout.commit(rows, second, [2, 6], [False, False])
    assert [row.next_slot for row in rows] == ([15, 15] if layout.cache == "padded" else [11, 10])
    advanced = sum(row.next_slot for row in rows) - sum(row.next_slot for row in layout.start([5, 3]))
    assert advanced == (20 if layout.cache == "padded" else 13)
    holes = [[11, 12, 13, 14], [6, 7, 8]] if layout.cache == "padded" else [[], []]
    assert [row.holes for row in rows] == holes
    assert [row.cache_len for row in rows] == [11, 10]


def test_a_live_row_feeds_its_pending_token_then_its_drafts_then_pads(layout):
    for _, step in steps_of(layout):
        longest = max(1 + len(step.drafts[row.row]) for row in step.plan.live)
        for before, row in zip(step.before, step.plan.rows, strict=True):
            assert row.row == before.index
            if row.kind == "finished":
                continue
            drafts = step.drafts[row.row]
            real = 1 + len(drafts)
            pads = longest - real if layout.inputs == "padded" else 0
            assert row.kind == "decode"
            assert row.input_token_ids == (step.pending[row.row], *drafts, *[PAD] * pads)
            assert row.input_kinds == ("pending", *["draft"] * len(drafts), *["pad"] * pads)
            assert (row.num_fed, row.num_real, row.num_drafted) == (real + pads, real, len(drafts))


def test_positions_run_on_from_the_rows_own_cache_length_and_pads_repeat_the_last(layout):
    """A position is never a column, never another row's cursor, and no pad ever gets a new one."""
    for _, step in steps_of(layout):
        for before, row in zip(step.before, step.plan.rows, strict=True):
            if row.kind == "decode":
                first = before.cache_len
                real = list(range(first, first + row.num_real))
                assert list(row.position_ids) == real + [real[-1]] * (row.num_fed - row.num_real)


def test_slots_follow_the_rows_own_cursor(layout):
    for _, step in steps_of(layout):
        columns = {row.next_slot for row in step.before}
        if layout.cache == "padded":
            assert len(columns) == 1  # one write column for all rows
        for before, row in zip(step.before, step.plan.rows, strict=True):
            assert row.cache_start == before.next_slot
            if row.kind == "decode":
                assert list(row.slots) == list(range(before.next_slot, before.next_slot + row.num_fed))
                assert row.span == before.next_slot + row.num_fed
            if layout.cache == "ragged" and row.kind == "decode":
                assert row.cache_start == before.cache_len  # slot == position
                assert row.key_positions is None


def test_finished_rows_are_fed_only_with_padded_inputs_and_never_written(layout):
    seen = 0
    for _, step in steps_of(layout):
        longest = max(1 + len(step.drafts[row.row]) for row in step.plan.live)
        for before, row in zip(step.before, step.plan.rows, strict=True):
            if before.finished:
                seen += 1
                width = longest if layout.inputs == "padded" else 0
                assert row.kind == "finished"
                assert row.input_token_ids == (PAD,) * width
                assert row.input_kinds == ("pad",) * width
                assert set(row.position_ids) <= {before.cache_len - 1}
                assert row.slots == ()
                assert row.num_real == row.num_drafted == 0
    assert seen > 20


def test_commit_keeps_exactly_the_emitted_cells_and_moves_nothing(layout):
    for _, step in steps_of(layout):
        assert step.commit.moves == ()
        assert list(step.commit.kept) == step.emitted
        assert step.commit.freed == tuple(row.row for row in step.plan.live if step.ended[row.row])
        for before, after in zip(step.before, step.after, strict=True):
            gain = step.emitted[before.index]
            assert after.slots == before.slots + list(range(before.next_slot, before.next_slot + gain))
            assert after.finished == (before.finished or step.ended[before.index])


def test_a_shared_column_advances_by_the_largest_gain_a_ragged_row_by_its_own(layout):
    for _, step in steps_of(layout):
        largest = max(step.emitted[row.row] for row in step.plan.live)
        for before, after in zip(step.before, step.after, strict=True):
            gain = largest if layout.cache == "padded" else step.emitted[before.index]
            assert after.next_slot - before.next_slot == gain


def test_holes_are_the_slots_a_slower_living_row_is_dragged_past(layout):
    total = 0
    for _, step in steps_of(layout):
        largest = max(step.emitted[row.row] for row in step.plan.live)
        for before, after in zip(step.before, step.after, strict=True):
            new = after.holes[len(before.holes) :]
            total += len(new)
            assert tuple(new) == step.commit.holes[before.index]
            gets_holes = layout.cache == "padded" and not before.finished and not step.ended[before.index]
            start = before.next_slot + step.emitted[before.index]
            assert new == (list(range(start, before.next_slot + largest)) if gets_holes else [])
            if not after.finished:
                dead = after.next_slot - after.cache_len
                assert dead == len(after.holes) + after.prompt_pads
    assert (total > 0) == (layout.cache == "padded")


def test_key_positions_name_each_slot_once_and_hide_everything_dead():
    """Masks come from here: holes, prompt pads, stale drafts and this step's pads are -1."""
    layout = layout_of("padded", "padded")
    for _, step in steps_of(layout):
        for before, row in zip(step.before, step.plan.rows, strict=True):
            if row.kind == "finished":
                continue
            right = [-1] * row.span
            for position, slot in enumerate(before.slots):
                right[slot] = position
            for place in range(row.num_real):
                right[before.next_slot + place] = before.cache_len + place
            assert row.key_positions.tolist() == right
            visible = [position for position in right if position >= 0]
            assert sorted(visible) == list(range(before.cache_len + row.num_real))
            assert (row.holes, row.prompt_pads) == (len(before.holes), before.prompt_pads)


def test_key_positions_of_a_row_with_holes():
    row = Row(0, 2, slots=[0, 1, 4, 7], next_slot=9, holes=[5, 6, 8], prompt_pads=2)
    assert key_positions(row, 2, 1).tolist() == [0, 1, -1, -1, 2, -1, -1, 3, -1, 4, 5, -1]
    assert key_positions(row, 0).dtype == np.int32


@pytest.mark.parametrize("seed", range(12))
def test_capacities_hold_every_slot_that_a_run_writes(layout, seed):
    """The worst case must fit: slots are allocated once, before the run."""
    for lengths, limits, drafts in SHAPES:
        room = layout.capacities(lengths, limits, drafts)
        for step in invented_run(layout, lengths, limits, drafts, seed, eos_chance=0.05):
            for row, after, capacity in zip(step.plan.rows, step.after, room, strict=True):
                assert max(row.slots, default=-1) < capacity
                if not after.finished:
                    assert after.next_slot <= capacity


def test_capacities_of_small_cases():
    ragged, padded = layout_of("ragged", "packed"), layout_of("padded", "padded")
    assert ragged.capacities([5, 3], [9, 9], 5) == [13, 11]
    assert layout_of("ragged", "padded").capacities([5, 3], [9, 9], 5) == [18, 16]
    assert padded.capacities([5, 3], [9, 9], 0) == [13, 13]  # greedy: one column per token
    assert padded.capacities([5, 3], [9, 9], 5) == [5 + 16 + 5] * 2  # never more than all rows' tokens together
    assert padded.capacities([5], [1], 5) == [5]
    assert padded.capacities([4, 2], [0, 0], 5) == [4, 4]
    assert ragged.capacities([4, 2], [0, 1], 5) == [4, 2]
    assert ragged.capacities([], [], 5) == padded.capacities([], [], 5) == []


def test_the_plan_changes_nothing(layout):
    for _, step in steps_of(layout):
        again = [Row(**vars(row)) for row in step.before]
        layout.plan(again, step.pending, step.drafts)
        assert again == step.before


def test_a_draft_model_feeds_what_its_cache_lacks_at_the_targets_slots():
    """Catch-up tokens go to the target's own slots of their positions; from the pending token on behind the cursor."""
    row = Row(3, 2, slots=[0, 1, 4, 7], next_slot=9, holes=[5, 6, 8], prompt_pads=2)
    plan = lagging_plan(row, "padded", [51, 52, 53], first_position=2)  # positions 2, 3 are cached by the target
    assert plan.row == 3
    assert plan.position_ids == (2, 3, 4)
    assert plan.slots == (4, 7, 9)
    assert plan.key_positions.tolist() == [0, 1, -1, -1, 2, -1, -1, 3, -1, 4]
    later = lagging_plan(row, "padded", [54], first_position=6, width=3, pad_token_id=9)
    assert later.slots == (11,)
    assert later.input_token_ids == (54, 9, 9)
    assert later.input_kinds == ("draft", "pad", "pad")
    assert later.position_ids == (6, 6, 6)
    assert (later.num_real, later.span) == (1, 12)
    ragged = lagging_plan(Row(0, 3, slots=[0, 1, 2, 3], next_slot=4), "ragged", [5, 6], first_position=3)
    assert (ragged.slots, ragged.position_ids, ragged.key_positions) == ((3, 4), (3, 4), None)


def test_prefill_feeds_every_prompt_token_to_the_slot_of_its_position():
    plan = prefill_plan([(0, 0, [5, 6]), (2, 3, [7])])
    assert [row.row for row in plan.rows] == [0, 2]
    assert [row.slots for row in plan.rows] == [(0, 1), (3,)]
    assert [row.position_ids for row in plan.rows] == [(0, 1), (3,)]
    assert all(row.kind == "prefill" and set(row.input_kinds) == {"prompt"} for row in plan.rows)
    assert plan.num_fed == 3
    assert plan.live == plan.rows


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 100])
def test_prefill_chunks_lose_and_reorder_nothing(chunk):
    prompts = [[1, 2, 3], [], [4], [5, 6, 7, 8, 9, 10]]
    chunks = prefill_chunks(prompts, chunk)
    assert all(0 < sum(len(ids) for _, _, ids in pieces) <= chunk for pieces in chunks)
    seen: list[list[int]] = [[] for _ in prompts]
    order = []
    for row, start, ids in (piece for pieces in chunks for piece in pieces):
        assert start == len(seen[row])
        seen[row].extend(ids)
        order.append(row)
    assert seen == prompts
    assert order == sorted(order)


def test_a_model_with_c_positions_emits_one_token_unfed():
    assert output_limits([60, 63, 64, 3], 10, 64) == [5, 2, 1, 10]
    assert output_limits([60, 3], 10, None) == [10, 10]
    assert output_limits([64], 0, 64) == [0]
