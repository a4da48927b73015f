"""FLOPs and bytes of steps: by hand, by brute force, by the cells of the player, and by PyTorch's FLOP counter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from random import Random

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from emssd.accounting import ATTENTION_MODES, SCAN_KINDS, attention_flops_per_slot, linear_flops_per_row, step_account
from emssd.cells import cells_at
from emssd.config import SpeculativeConfig
from emssd.decoding import generate_steps
from emssd.layouts import key_positions, prefill_plan
from emssd.loading import load_model
from emssd.model_shape import ModelShape
from emssd.random_models import build_random
from emssd.trace_checking import replay_layout
from emssd.work import StepWork, row_scans, step_work, trace_plans, trace_work
from tests.helpers import METHODS5, batch, greedy, language_model, script
from tests.player_samples import random_trace
from tests.pure_runs import CACHES, INPUTS, invented_run, layout_of
from tests.test_accounting import _class
from tests.test_cells import figure2, run_of

# --- the paper's worked example, by hand

# 2 layers, 4 heads of 8 with 2 heads of keys, hidden 32, three matrices of 64, 97 ids, two bytes a number
SHAPE = ModelShape(
    parameters=24_736,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    value_head_dim=8,
    hidden=32,
    intermediate=64,
    expert_intermediate=64,
    experts=0,
    experts_per_token=0,
    vocab=97,
    positions=256,
    tied_embeddings=False,
    bytes_per_value=2,
)
# layer: queries and outputs 2 x 32 x 32, keys and values 2 x 32 x 16, three matrices 32 x 64; two FLOPs a weight
LINEAR = 2 * 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64)  # 36864 per row
HEAD = 2 * 32 * 97  # 6208 per row
PAIR = 2 * 2 * 4 * (8 + 8)  # 256 for one query and one slot: scores and values, 4 heads, 2 layers
SLOT = 2 * 2 * (8 + 8) * 2  # 128 bytes: keys and values of 2 heads, 2 layers
WEIGHTS = (36864 + 6208) // 2 * 2  # bytes: half as many weights as FLOPs a row, two bytes each

# Row A: prompt 5; row B: prompt 3. (useful, prompt_pad, hole, pad_query) of A + of B
BY_HAND = {
    # The column is 5. A feeds 6 to slots 5..10; B feeds 3, padded to 6, to slots 5..10, behind 2 prompt pads.
    ("vanilla", 1): {
        "rows": (6 + 3, 3, 0),
        # A: 6+7+8+9+10+11 = 51. B's queries scan 6+7+8 = 21, 2 pads each; its pads 9+10+11 = 30.
        "per_token": (51 + 15, 3 * 2, 0, 30),
        # A: 11. B: slots 0..7, of which 2 are prompt pads; 3 slots of pads.
        "varlen": (11 + 6, 2, 0, 3),
        # 12 queries x 11 slots. A: 66. B: 3 x (2 prompt pads, 3 slots of pads, 6 others), 3 pads x 11.
        "rectangular": (66 + 18, 6, 0, 9 + 33),
        "written": (9, 3),
    },
    # A kept 4, B 1: the column is 9, B has 3 holes. A feeds 3 of 6 to slots 9..14, B 6.
    ("vanilla", 2): {
        "rows": (3 + 6, 3, 0),
        # A: 10+11+12 = 33, pads 13+14+15 = 42. B: 10+11+12+13+14+15 = 75, each 2 prompt pads and 3 holes.
        "per_token": (33 + 45, 6 * 2, 6 * 3, 42),
        # A: 12 and 3 slots of pads. B: 15 with 2 prompt pads and 3 holes.
        "varlen": (12 + 10, 2, 3, 3),
        # 12 queries x 15 slots. A: 3 x (12 others, 3 slots of pads), 3 pads x 15. B: 6 x (2, 3, 10).
        "rectangular": (36 + 60, 12, 18, 9 + 45),
        "written": (9, 3),
    },
    # A feeds 6 to slots 5..10, B 3 to slots 3..5.
    ("ems-sd", 1): {
        "rows": (6 + 3, 0, 0),
        "per_token": (51 + (4 + 5 + 6), 0, 0, 0),
        "varlen": (11 + 6, 0, 0, 0),
        "rectangular": (6 * 11 + 3 * 6, 0, 0, 0),
        "written": (9, 0),
    },
    # A feeds 3 to slots 9..11, B 6 to slots 4..9.
    ("ems-sd", 2): {
        "rows": (3 + 6, 0, 0),
        "per_token": (33 + (5 + 6 + 7 + 8 + 9 + 10), 0, 0, 0),
        "varlen": (12 + 10, 0, 0, 0),
        "rectangular": (3 * 12 + 6 * 10, 0, 0, 0),
        "written": (9, 0),
    },
}


def kinds(numbers: tuple[int, ...], factor: int) -> dict[str, int]:
    return dict(zip(SCAN_KINDS, (factor * number for number in numbers), strict=True))


@pytest.mark.parametrize(("method", "number"), BY_HAND)
def test_worked_example_by_hand(method, number):
    hand = BY_HAND[method, number]
    useful, pads, finished = hand["rows"]
    step, plan = list(trace_plans(figure2(method)))[number]
    assert step.account.input_rows == {"useful": useful, "pad": pads, "finished": finished}
    assert step.account.kv_slots_scanned == {mode: kinds(hand[mode], 1) for mode in ATTENTION_MODES}
    assert step.account.holes_total == {("vanilla", 1): 3, ("vanilla", 2): 3 + 4}.get((method, number), 0)
    work = step_work(SHAPE, plan, step.account)
    assert work == StepWork(
        rows={"useful": useful, "pad": pads, "finished": finished},
        query_rows={"useful": useful, "pad": pads},
        linear_flops={"useful": useful * LINEAR, "pad": pads * LINEAR, "finished": 0},
        head_flops={"useful": useful * HEAD, "pad": pads * HEAD, "finished": 0},
        attention_flops={
            "causal": kinds(hand["per_token"], PAIR),
            "rectangular": kinds(hand["rectangular"], PAIR),
        },
        weight_bytes=WEIGHTS,
        kv_read_bytes={mode: kinds(hand[mode], SLOT) for mode in ATTENTION_MODES},
        kv_write_bytes=dict(zip(("useful", "pad"), (SLOT * slots for slots in hand["written"]), strict=True)),
        attention_launches=2,
    )


def test_worked_example_totals():
    """252 = 144 + 18 + 18 + 72 slots against 144; 24 rows against 18; the waste is all of the difference."""
    for method, rows, slots in (
        ("vanilla", 24, 252),
        ("packed-input", 18, 180),
        ("ragged-cache", 24, 210),
        ("ems-sd", 18, 144),
    ):
        trace = figure2(method)
        row, slot = linear_flops_per_row(trace.model), attention_flops_per_slot(trace.model)
        works = trace_work(trace)
        assert sum(work.flops() for work in works) == rows * row + slots * slot
        assert sum(work.wasted_flops() for work in works) == (rows - 18) * row + (slots - 144) * slot


def test_worked_example_allocates_a_column_of_slots_or_each_rows_own():
    """Each row decodes 8 tokens after prefill's one. A shared column moves by at most all 16 of both rows.

    How many drafts the function asks for is not known before, but never more than 7: one of the 8 is the target's own.
    """
    for step in figure2("vanilla").decode_steps:
        assert step.account.kv_slots_allocated == 2 * (5 + 16 + 7)
    for step in figure2("ems-sd").decode_steps:
        assert step.account.kv_slots_allocated == (5 + 8) + (3 + 8)


# --- properties


def test_waste_is_rows_and_slots_of_nobody_and_never_rejected_drafts():
    wasted_somewhere = 0
    for number in range(40):
        trace = random_trace(number, 11)
        row, slot = linear_flops_per_row(trace.model), attention_flops_per_slot(trace.model)
        for step, work in zip(trace.decode_steps, trace_work(trace), strict=True):
            fed = [kind for each in step.rows for kind in each.input_kinds]
            scanned = step.account.kv_slots_scanned["per_token"]
            total, wasted = work.flops(), work.wasted_flops()
            assert total == len(fed) * row + sum(scanned.values()) * slot
            assert wasted == fed.count("pad") * row + (sum(scanned.values()) - scanned["useful"]) * slot
            assert 0 <= wasted < total
            assert wasted <= work.wasted_flops("rectangular")
            wasted_somewhere += wasted > 0
            if trace.method == "ems-sd":
                assert wasted == 0
    assert wasted_somewhere > 20


def test_plans_shown_by_a_trace_are_those_of_its_layout():
    for number in range(60):
        trace = random_trace(number, 5)
        for (step, plan), (_, right, account) in zip(trace_plans(trace, False), replay_layout(trace), strict=True):
            assert plan == right
            assert account == step.account


@pytest.mark.parametrize("method", METHODS5)
def test_plans_of_a_padded_cache_say_which_slot_holds_which_position(method):
    """The text of a row read from its plan is its committed text and its drafts."""
    trace = run_of(method)
    committed = [list(row.prompt_token_ids) for row in trace.rows]
    for step, plan in trace_plans(trace):
        for row, shown in zip(plan.rows, step.rows, strict=True):
            padded = trace.config["cache_layout"] == "padded" and row.kind == "decode"
            assert (row.key_positions is not None) == padded
            if padded:
                visible = row.key_positions[row.key_positions >= 0]
                assert visible.tolist() == list(range(len(committed[row.row]) + row.num_drafted))
                assert len(row.key_positions) == row.span
            committed[row.row] += shown.emitted_token_ids


def scans_of_cells(trace, step) -> dict[str, Counter]:
    """Slots by kind from the states of the cells that the player shows while attention runs."""
    grid = cells_at(trace, step.index, "attend")
    found = {mode: Counter() for mode in ATTENTION_MODES}

    def kind(cell) -> str:
        if cell.state == "hole":
            return "hole"
        if cell.state == "pad":
            return {"prompt": "prompt_pad", "input": "pad_query"}[cell.cause]
        assert cell.visible or cell.state == "draft", cell
        return "useful"

    for row in step.rows:
        if row.kind == "finished":
            continue
        cells = grid[row.row]
        for slot, fed in zip(row.slots, row.input_kinds, strict=True):
            scanned = cells[: slot + 1]
            found["per_token"].update(["pad_query"] * len(scanned) if fed == "pad" else map(kind, scanned))
        found["varlen"].update(map(kind, cells[: row.slots[-1] + 1]))
    return found


def test_sums_over_the_cells_shown_are_the_accounts_totals():
    seen = Counter()
    for number in range(100):
        trace = random_trace(number, 23)
        for step in trace.decode_steps:
            for mode, counted in scans_of_cells(trace, step).items():
                shown = step.account.kv_slots_scanned[mode]
                assert {kind: counted[kind] for kind in SCAN_KINDS} == shown, (number, step.index, mode)
                seen.update(shown)
    assert all(seen[kind] > 100 for kind in SCAN_KINDS)


# --- sliding windows


def scans_by_brute_force(step, row, window) -> dict[str, Counter]:
    """One query and one slot at a time: from the slot of the first position in the query's window to its own slot."""
    before = step.before[row.row]
    longest = max(other.prompt_length for other in step.before)
    held = dict(enumerate([*before.slots, *row.slots[: row.num_real]]))  # position -> slot
    found = {"per_token": Counter(), "varlen": Counter()}
    union = set()
    for place, (slot, position) in enumerate(zip(row.slots, row.position_ids, strict=True)):
        pad = row.input_kinds[place] == "pad"
        first = held[max(position - window + 1, 0)]
        found["per_token"].update(_class(before, row, each, pad, longest) for each in range(first, slot + 1))
        if not pad:
            union |= set(range(first, slot + 1))
    found["varlen"].update(_class(before, row, each, False, longest) for each in union)
    found["varlen"]["pad_query"] = row.num_fed - row.num_real
    return found


@pytest.mark.parametrize(("cache", "inputs"), list(product(CACHES, INPUTS)))
def test_scans_of_windows_equal_brute_force(cache, inputs):
    layout, cut = layout_of(cache, inputs), 0
    for window, seed in product((1, 2, 3, 5, 8, 1000), range(4)):
        for step in invented_run(layout, [4, 1, 12, 7], [13, 2, 8, 20], 5, seed=seed):
            for row in step.plan.live:
                scans = row_scans(row, window)
                for mode, right in scans_by_brute_force(step, row, window).items():
                    assert scans[mode] == {kind: right[kind] for kind in SCAN_KINDS}, (mode, window, row)
                cut += sum(scans["per_token"].values()) < sum(row_scans(row, None)["per_token"].values())
    assert cut > 100


def test_a_window_by_hand():
    """Prompt 3 behind a column of 5, two holes, window 3: a query at position 5 sees positions 3, 4, 5.

    Slots 0 1 2 hold the prompt, 3 4 are prompt padding, 5 holds position 3, 6 7 are holes, 8 holds position 4.
    Queries at positions 4 and 5 (slots 8, 9), one pad at slot 10 with position 5.
    """
    layout = layout_of("padded", "padded")
    place, other = layout.start([3, 5])
    place.slots.append(5)
    place.holes.extend([6, 7])
    place.next_slot = other.next_slot = 8
    other.slots.extend([5, 6, 7])
    row = layout.plan([place, other], [1, 1], [[2], [2, 2]]).rows[0]
    assert key_positions(place, 2, 1).tolist() == [0, 1, 2, -1, -1, 3, -1, -1, 4, 5, -1]
    scans = row_scans(row, 3)
    # position 4 sees from position 2 (slot 2) to slot 8: 2 3 4 5 6 7 8; position 5 from position 3 (slot 5) to slot 9
    assert scans["per_token"] == {"useful": 3 + 3, "prompt_pad": 2, "hole": 2 + 2, "pad_query": 6}
    # slots 2..9 once, and the pad's own
    assert scans["varlen"] == {"useful": 4, "prompt_pad": 2, "hole": 2, "pad_query": 1}
    # this package's attention masks a padded cache and cuts nothing off: 2 x (8 useful, 2, 2, a pad's slot less)
    assert scans["rectangular"] == {"useful": 12, "prompt_pad": 4, "hole": 4, "pad_query": 2 + 11}


def test_windows_and_full_layers_add_up():
    """Gemma 3: one layer of each kind; FLOPs and bytes are half those of a model of two such layers each."""
    model = language_model("random-gemma3").description()
    trace = figure2("vanilla")
    works = {}
    for name, kinds_of_layers in (("full", ["full"] * 2), ("both", ["sliding_attention", "full"]),
                                  ("windows", ["sliding_attention"] * 2)):  # fmt: skip
        trace.model, kept = {**model, "layer_types": kinds_of_layers, "sliding_window": 4}, trace.model
        works[name] = trace_work(trace)
        trace.model = kept
    for full, both, windows in zip(*works.values(), strict=True):
        for kind in SCAN_KINDS:
            for mode in ATTENTION_MODES:
                parts = (full.kv_read_bytes[mode][kind], windows.kv_read_bytes[mode][kind])
                assert 2 * both.kv_read_bytes[mode][kind] == sum(parts)
            parts = (full.attention_flops["causal"][kind], windows.attention_flops["causal"][kind])
            assert 2 * both.attention_flops["causal"][kind] == sum(parts)
        assert windows.flops() < both.flops() < full.flops()
        assert windows.linear_flops == full.linear_flops


def test_dead_slots_in_a_window_need_positions():
    layout = layout_of("padded", "packed")
    layout.with_masks = False
    plan = layout.plan(layout.start([9, 3]), [1, 1], [[], []])
    with pytest.raises(ValueError, match="key_positions"):
        row_scans(plan.rows[1], 2)
    assert row_scans(plan.rows[1], None)["varlen"] == {"useful": 4, "prompt_pad": 6, "hole": 0, "pad_query": 0}


def test_sizes_from_elsewhere_can_be_as_large_as_a_trace_may_hold():
    trace = figure2("vanilla")
    trace.model, kept = {**trace.model, "layers": 2**63 - 1}, trace.model
    huge, small = trace_work(trace), kept
    trace.model = kept
    pairs = huge[0].attention_flops["causal"]["useful"]
    assert pairs == 66 * 2 * (2**63 - 1) * small["heads"] * 2 * small["head_dim"]


def test_prefill_asks_the_head_for_one_row_of_each_prompt():
    plan = prefill_plan([(0, 0, [1, 2, 3]), (1, 0, [4, 5])])
    work = step_work(SHAPE, plan, step_account(plan, 40, 0))
    assert work.head_flops == {"useful": 2 * HEAD, "pad": 0, "finished": 0}
    assert work.linear_flops == {"useful": 5 * LINEAR, "pad": 0, "finished": 0}
    assert work.attention_flops["causal"]["useful"] == (1 + 2 + 3 + 1 + 2) * PAIR
    assert work.attention_flops["rectangular"]["useful"] == (9 + 4) * PAIR
    assert work.kv_write_bytes == {"useful": 5 * SLOT, "pad": 0}


# --- PyTorch's own counter


def _attention(query, key, value, *rest, out_shape=None, **named) -> int:
    """query [R, H, n, D], key [R, G, L, D], value [R, G, L, Dv]"""
    rows, heads, queries, width = query
    return 2 * rows * heads * queries * key[-2] * (width + value[-1])


def _grouped(left, right, *rest, out_shape=None, **named) -> int:
    """left [S, K] with one of the matrices in right [E, K, N] for each of its rows"""
    return 2 * left[0] * right[-2] * right[-1]


UNKNOWN_TO_THE_COUNTER = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._grouped_mm: _grouped,
}
ATTENTION_OPS = {"aten.bmm", "aten._scaled_dot_product_flash_attention_for_cpu"}
LINEAR_OPS = {"aten.mm", "aten.addmm", "aten._grouped_mm"}


def counted_steps(run) -> Iterator[tuple[int, int, int]]:
    """(linear layers, LM head, attention) FLOPs of each step by the counter."""
    head = next(
        name for name, module in run.lm.hooked.named_modules() if module is run.lm.hooked.get_output_embeddings()
    )
    name = f"{type(run.lm.hooked).__name__}.{head}"
    while True:
        with FlopCounterMode(display=False, custom_mapping=UNKNOWN_TO_THE_COUNTER) as counter:
            step = next(run, None)
        if step is None:
            return
        counts = counter.get_flop_counts()
        total = {str(op): flops for op, flops in counts["Global"].items()}
        assert set(total) <= ATTENTION_OPS | LINEAR_OPS
        attention = sum(total.get(op, 0) for op in ATTENTION_OPS)
        in_head = sum(counts[name].values())
        yield sum(total.values()) - attention - in_head, in_head, attention


def shared_experts():
    """DeepSeek with one dense layer and one of 4 experts, 2 a token, and one expert that all tokens share."""
    entries = {
        **{"hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 16, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16},
        **{"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 4},
        **{"n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "vocab_size": 97},
        **{"first_k_dense_replace": 1, "max_position_embeddings": 256},
    }
    return load_model.from_pretrained_model(build_random("deepseek_v3", entries, 0))


COUNTED = ("random-llama", "random-opt", "random-gpt2", "random-gemma2", "random-gemma3", "random-mistral",
           "random-mixtral", "random-gpt-oss", "shared-experts")  # fmt: skip


def models(name: str, experts: str | None):
    lm = shared_experts() if name == "shared-experts" else language_model(name)
    if experts:
        lm = load_model.from_pretrained_model(lm.model)
        lm.hooked.set_experts_implementation(experts)
    return lm


@pytest.mark.parametrize(
    ("name", "experts"), [*((name, None) for name in COUNTED), ("random-mixtral", "eager"), ("shared-experts", "eager")]
)
@pytest.mark.parametrize("method", METHODS5)
def test_flops_are_exactly_those_of_the_flop_counter(name, experts, method):
    """Every step of a ragged batch with drafts of 0 to 4 tokens, an early end and finished rows."""
    lm = models(name, experts)
    prompts = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], [9, 7, 9], [2, 3, 8, 4, 6]]
    outputs = [greedy(lm, prompt, 20) for prompt in prompts]
    drafts = {} if method == "greedy" else {"num_draft_tokens": lambda row, step: (row + 2 * step) % 5}
    eos = next(token for token in outputs[1][2:6])
    config = SpeculativeConfig.for_method(method, max_new_tokens=12, eos_token_ids=eos, **drafts)
    run = generate_steps(
        lm, prompts, config, script(outputs, [[1, 0, 3], [2, 1, 0], [0, 3, 1]], 97, 4) if drafts else None
    )
    counted = list(counted_steps(run))
    shape = ModelShape.from_trace(run.trace.model)
    plans = [(step, plan) for step, plan in trace_plans(run.trace)]
    assert len(counted) == len(plans) > 4
    assert any(row.kind == "finished" for row in plans[-1][1].rows)
    for (step, plan), seen in zip(plans, counted, strict=True):
        work = step_work(shape, plan, step.account)
        ours = [
            sum(kinds.values()) for kinds in (work.linear_flops, work.head_flops, work.attention_flops["rectangular"])
        ]
        assert ours == list(seen), f"step {step.index}"


@pytest.mark.parametrize("name", ["random-llama", "random-gpt2", "random-gemma3"])
def test_causal_flops_are_those_of_a_counter_that_is_shown_one_query_at_a_time(name):
    """A query alone makes a rectangle of its own slots: fed one by one, both forms are the same number."""
    lm = language_model(name)
    prompts = batch(lm, [9, 4], 12)
    run = generate_steps(lm, prompts, SpeculativeConfig.greedy(max_new_tokens=10, cache_layout="ragged"))
    counted = list(counted_steps(run))[1:]
    assert len(counted) == 9
    for work, (_, _, attention) in zip(trace_work(run.trace), counted, strict=True):
        assert sum(work.attention_flops["causal"].values()) == attention
        assert work.attention_flops["causal"] == work.attention_flops["rectangular"]


def test_causal_is_the_sum_over_queries_of_single_rectangles():
    draw = Random(4)
    for number in range(60):
        trace = random_trace(number, 8)
        window = draw.choice([None, 2, 4])
        for _, plan in trace_plans(trace):
            for row in plan.live:
                scans = row_scans(row, window)
                assert sum(scans["per_token"].values()) <= sum(scans["rectangular"].values())
                if row.num_fed == 1 and (window is None or row.key_positions is None):
                    assert scans["per_token"] == scans["rectangular"] == scans["varlen"]
                assert all(count >= 0 for kinds_ in scans.values() for count in kinds_.values())
                assert np.sum(list(scans["varlen"].values())) <= row.span
