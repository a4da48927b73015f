"""The account of a step against counting by hand: one token and one slot at a time."""

from __future__ import annotations

from itertools import product

import pytest

from emssd.accounting import ATTENTION_MODES, INPUT_KINDS, SCAN_KINDS, step_account
from emssd.layouts import prefill_plan
from tests.pure_runs import CACHES, INPUTS, invented_run, layout_of

SHAPES = [([5, 3], [9, 9], 5), ([1, 2, 9], [6, 12, 3], 3), ([4, 1, 12, 7], [13, 2, 8, 20], 7), ([3], [5], 0)]


def count_by_hand(step) -> dict:
    """Every query scans its row's slots up to its own; a slot is classed by its query first, then by itself."""
    inputs = dict.fromkeys(INPUT_KINDS, 0)
    scanned = {mode: dict.fromkeys(SCAN_KINDS, 0) for mode in ATTENTION_MODES}
    for before, row in zip(step.before, step.plan.rows, strict=True):
        if row.kind == "finished":
            inputs["finished"] += len(row.input_token_ids)
            continue
        longest_prompt = max(other.prompt_length for other in step.before)
        for place, kind in enumerate(row.input_kinds):
            inputs["pad" if kind == "pad" else "useful"] += 1
            for slot in range(row.slots[place] + 1):
                scanned["per_token"][_class(before, row, slot, kind == "pad", longest_prompt)] += 1
        for slot in range(row.slots[-1] + 1):
            by_pad = slot > row.slots[row.num_real - 1]
            scanned["varlen"][_class(before, row, slot, by_pad, longest_prompt)] += 1
    return {"input_rows": inputs, "kv_slots_scanned": scanned}


def _class(before, row, slot: int, by_pad: bool, longest_prompt: int) -> str:
    if by_pad:
        return "pad_query"
    if slot in before.slots or slot >= row.cache_start:
        return "useful"
    if slot in before.holes:
        return "hole"
    assert before.prompt_length <= slot < longest_prompt
    return "prompt_pad"


@pytest.mark.parametrize(("cache", "inputs"), list(product(CACHES, INPUTS)))
def test_account_equals_counting_every_query_and_slot(cache, inputs):
    layout = layout_of(cache, inputs)
    for shape, seed in product(SHAPES, range(3)):
        for step in invented_run(layout, *shape, seed=seed):
            holes = sum(len(row.holes) for row in step.after)
            account = step_account(step.plan, 500, holes).to_dict()
            assert {name: account[name] for name in ("input_rows", "kv_slots_scanned")} == count_by_hand(step)
            assert (account["kv_slots_allocated"], account["holes_total"]) == (500, holes)
            several = any(row.num_fed > 1 for row in step.plan.live)
            assert account["attention_launches"] == (2 if several else 1)


@pytest.mark.parametrize(("cache", "inputs"), list(product(CACHES, INPUTS)))
def test_fed_rows_are_live_rows_with_their_drafts_plus_the_layouts_own_pads(cache, inputs):
    layout = layout_of(cache, inputs)
    for shape, seed in product(SHAPES, range(3)):
        for step in invented_run(layout, *shape, seed=seed):
            rows = step_account(step.plan, 0, 0).input_rows
            needed = sum(1 + len(step.drafts[row.row]) for row in step.plan.live)
            assert rows["useful"] == needed
            assert sum(rows.values()) == step.plan.num_fed
            if inputs == "packed":
                assert rows["pad"] == rows["finished"] == 0


@pytest.mark.parametrize(
    ("cache", "inputs", "fed", "per_token", "varlen", "holes"),
    [
        ("padded", "padded", (18, 6), (144, 18, 18, 72), (39, 4, 3, 6), 7),
        ("ragged", "packed", (18, 0), (144, 0, 0, 0), (39, 0, 0, 0), 0),
    ],
)
def test_worked_example_numbers(cache, inputs, fed, per_token, varlen, holes):
    """24 fed rows against 18; 252 = 144 + 18 + 18 + 72 scanned slots against 144; 52 = 39 + 4 + 3 + 6 against 39."""
    layout = layout_of(cache, inputs)
    rows = layout.start([5, 3])
    accounts = []
    for drafts, emitted in (([5, 2], [4, 1]), ([2, 5], [2, 6])):
        plan = layout.plan(rows, [1, 1], [[2] * count for count in drafts])
        layout.commit(rows, plan, emitted, [False, False])
        accounts.append(step_account(plan, 0, sum(len(row.holes) for row in rows)))
    total = {
        mode: tuple(sum(a.kv_slots_scanned[mode][kind] for a in accounts) for kind in SCAN_KINDS)
        for mode in ATTENTION_MODES
    }
    assert tuple(sum(a.input_rows[kind] for a in accounts) for kind in ("useful", "pad")) == fed
    assert total == {"per_token": per_token, "varlen": varlen}
    assert accounts[-1].holes_total == holes
    assert [a.attention_launches for a in accounts] == [2, 2]


def test_prefill_account_scans_every_prompt_once_per_token():
    account = step_account(prefill_plan([(0, 0, [1, 2, 3]), (1, 0, [4, 5])]), 40, 0)
    assert account.input_rows == {"useful": 5, "pad": 0, "finished": 0}
    assert account.kv_slots_scanned["per_token"]["useful"] == (1 + 2 + 3) + (1 + 2)
    assert account.kv_slots_scanned["varlen"]["useful"] == 5
    assert account.attention_launches == 1


def test_plain_data_is_a_copy():
    account = step_account(prefill_plan([(0, 0, [1])]), 4, 0)
    account.to_dict()["input_rows"]["useful"] = 99
    account.to_dict()["kv_slots_scanned"]["varlen"]["useful"] = 99
    assert account.input_rows["useful"] == 1
    assert account.kv_slots_scanned["varlen"]["useful"] == 1
