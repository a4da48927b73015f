"""The paper's worked example (its figure 2 and table 1): every slot, pad, hole and scanned cell, counted by hand.

Prompts of 5 and 3 tokens. Step 1 drafts 5 and 2 tokens and accepts 3 and 0; step 2 drafts 2 and 5 and accepts 1 and 5.
So the rows gain 4 and 1 tokens, then 2 and 6.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest

from emssd.accounting import StepAccount, step_account
from emssd.config import METHODS, SpeculativeConfig
from emssd.decoding import generate_steps
from emssd.drafting import ScriptedDrafter
from emssd.layouts import Row, StepPlan, make_layout
from emssd.trace import GenerationTrace, StepTrace
from tests.helpers import batch, greedy, language_model, spoil

PROMPT_LENGTHS = (5, 3)
DRAFTED = ((5, 2), (2, 5))  # [step][row]
ACCEPTED = ((3, 0), (1, 5))
GAINED = ((4, 1), (2, 6))
PAD = 96


@dataclass(frozen=True)
class Golden:
    """What one method does in the two decode steps; lists are [step][row]."""

    fed: tuple[tuple[int, int], ...]
    start: tuple[tuple[int, int], ...]
    end: tuple[int, int]
    holes: tuple[tuple[list[int], list[int]], ...]
    prompt_pads: tuple[int, int]
    input_rows: dict[str, int]
    per_token: dict[str, int]
    varlen: dict[str, int]

    @property
    def slots_advanced(self) -> int:
        """Slots that the write cursors moved in the two steps."""
        return sum(self.end) - sum(self.start[0])


# Padded cache: both rows write from the longest prompt's end, column 5; the column advances by max(4, 1) = 4 to 9, then
# by max(2, 6) = 6 to 15. Row 1 gains 1 of 4 in step 1: slots 6..8 become holes; row 0 gains 2 of 6: slots 11..14.
COLUMN_STARTS = ((5, 5), (9, 9))
COLUMN_HOLES = (([], [6, 7, 8]), ([11, 12, 13, 14], []))
# Ragged cache: each row writes where its own tokens end.
OWN_STARTS = ((5, 3), (9, 4))
NO_HOLES = (([], []), ([], []))
# Packed inputs feed pending + drafts; padded ones feed every row 1 + 5.
OWN_FEEDS = ((6, 3), (3, 6))
LONGEST_FEEDS = ((6, 6), (6, 6))

# Useful cells: a query sees its row's tokens up to itself, whatever the layout.
#   step 1, row 0: 6+7+8+9+10+11 = 51; row 1: 4+5+6 = 15.  step 2, row 0: 10+11+12 = 33; row 1: 5+6+7+8+9+10 = 45.
USEFUL_PER_TOKEN = 51 + 15 + 33 + 45
#   whole spans once: step 1: 11 + 6; step 2: 12 + 10.
USEFUL_VARLEN = 11 + 6 + 12 + 10
# Padded cache, row 1: its 3 + 6 real queries each pass the 2 dead slots between prompt and column, and in step 2 the
# 3 holes of step 1. Row 0's holes come in step 2: no query has met them yet.
PROMPT_PAD_PER_TOKEN, HOLE_PER_TOKEN = (3 + 6) * 2, 6 * 3
PROMPT_PAD_VARLEN, HOLE_VARLEN = 2 + 2, 3
# Pads: 3 of row 1 in step 1, 3 of row 0 in step 2; each scans all slots up to its own.
#   padded cache: at slots 8, 9, 10: 9+10+11; then at 12, 13, 14: 13+14+15.
PAD_QUERY_IN_COLUMN = 30 + 42
#   ragged cache: at slots 6, 7, 8: 7+8+9; then at 12, 13, 14: 13+14+15.
PAD_QUERY_IN_OWN_SLOTS = 24 + 42

EIGHTEEN_ROWS = {"useful": 18, "pad": 0, "finished": 0}
TWENTY_FOUR_ROWS = {"useful": 18, "pad": 6, "finished": 0}


def _scan(useful: int, prompt_pad: int, hole: int, pad_query: int) -> dict[str, int]:
    return {"useful": useful, "prompt_pad": prompt_pad, "hole": hole, "pad_query": pad_query}


GOLDEN = {
    "vanilla": Golden(
        LONGEST_FEEDS,
        COLUMN_STARTS,
        (15, 15),
        COLUMN_HOLES,
        (0, 2),
        TWENTY_FOUR_ROWS,
        _scan(USEFUL_PER_TOKEN, PROMPT_PAD_PER_TOKEN, HOLE_PER_TOKEN, PAD_QUERY_IN_COLUMN),
        _scan(USEFUL_VARLEN, PROMPT_PAD_VARLEN, HOLE_VARLEN, 6),
    ),
    "packed-input": Golden(
        OWN_FEEDS,
        COLUMN_STARTS,
        (15, 15),
        COLUMN_HOLES,
        (0, 2),
        EIGHTEEN_ROWS,
        _scan(USEFUL_PER_TOKEN, PROMPT_PAD_PER_TOKEN, HOLE_PER_TOKEN, 0),
        _scan(USEFUL_VARLEN, PROMPT_PAD_VARLEN, HOLE_VARLEN, 0),
    ),
    "ragged-cache": Golden(
        LONGEST_FEEDS,
        OWN_STARTS,
        (11, 10),
        NO_HOLES,
        (0, 0),
        TWENTY_FOUR_ROWS,
        _scan(USEFUL_PER_TOKEN, 0, 0, PAD_QUERY_IN_OWN_SLOTS),
        _scan(USEFUL_VARLEN, 0, 0, 6),
    ),
    "ems-sd": Golden(
        OWN_FEEDS,
        OWN_STARTS,
        (11, 10),
        NO_HOLES,
        (0, 0),
        EIGHTEEN_ROWS,
        _scan(USEFUL_PER_TOKEN, 0, 0, 0),
        _scan(USEFUL_VARLEN, 0, 0, 0),
    ),
}


def test_the_hand_counts_are_the_published_ones() -> None:
    vanilla, ems = GOLDEN["vanilla"], GOLDEN["ems-sd"]
    assert (sum(vanilla.input_rows.values()), sum(ems.input_rows.values())) == (24, 18)
    assert (vanilla.slots_advanced, ems.slots_advanced) == (20, 13)
    assert vanilla.per_token == {"useful": 144, "prompt_pad": 18, "hole": 18, "pad_query": 72}
    assert sum(vanilla.per_token.values()) == 252
    assert sum(ems.per_token.values()) == 144
    assert vanilla.varlen == {"useful": 39, "prompt_pad": 4, "hole": 3, "pad_query": 6}
    assert sum(vanilla.varlen.values()) == 52
    assert sum(ems.varlen.values()) == 39
    assert sum(len(holes) for step in vanilla.holes for holes in step) == 7
    # the ablations, each with one kind of waste only
    assert sum(GOLDEN["packed-input"].per_token.values()) == 180
    assert sum(GOLDEN["ragged-cache"].per_token.values()) == 210


# --- the real engine -----------------------------------------------------------------------------------------------


def _drafts(outputs: list[list[int]], vocab: int) -> list[list[list[int]]]:
    """[row][step] drafts of the wanted lengths with the first one to be rejected spoiled."""
    proposals: list[list[list[int]]] = [[], []]
    for row, output in enumerate(outputs):
        done = 1  # prefill's token
        for step in range(2):
            draft = output[done : done + DRAFTED[step][row]]
            if ACCEPTED[step][row] < len(draft):
                draft[ACCEPTED[step][row]] = spoil(draft[ACCEPTED[step][row]], vocab)
            proposals[row].append(draft)
            done += GAINED[step][row]
    return proposals


@pytest.fixture(scope="module", params=list(GOLDEN))
def example(request: pytest.FixtureRequest) -> tuple[str, GenerationTrace, list[list[int]]]:
    """Method, trace of prefill and two decode steps, greedy outputs."""
    lm = language_model("random-llama")
    prompts = batch(lm, PROMPT_LENGTHS)
    outputs = [greedy(lm, prompt, 20) for prompt in prompts]
    config = SpeculativeConfig.for_method(
        request.param, num_draft_tokens=5, max_new_tokens=9, eos_token_ids=(), check_invariants=True
    )
    run = generate_steps(lm, prompts, config, ScriptedDrafter(_drafts(outputs, lm.vocab_size)))
    for _ in range(3):
        next(run)
    run.close()
    assert list(run) == []
    return request.param, run.trace, outputs


def _total(steps: list[StepTrace], mode: str) -> dict[str, int]:
    kinds = GOLDEN["vanilla"].per_token
    return {kind: sum(step.account.kv_slots_scanned[mode][kind] for step in steps) for kind in kinds}


def test_engine_drafts_accepts_and_emits_as_published(example: tuple) -> None:
    _, trace, outputs = example
    assert [step.kind for step in trace.steps] == ["prefill", "decode", "decode"]
    for number, step in enumerate(trace.decode_steps):
        assert tuple(row.num_drafted for row in step.rows) == DRAFTED[number]
        assert tuple(row.num_accepted for row in step.rows) == ACCEPTED[number]
        assert tuple(row.num_emitted for row in step.rows) == GAINED[number]
    kinds = [[row.next_kind for row in step.rows] for step in trace.decode_steps]
    assert kinds == [["recovered", "recovered"], ["recovered", "bonus"]]
    assert [row.output_token_ids for row in trace.rows] == [outputs[0][:7], outputs[1][:8]]
    assert [row.finish_reason for row in trace.rows] == [None, None]


def test_engine_feeds_and_places_every_token_as_counted(example: tuple) -> None:
    method, trace, _ = example
    golden = GOLDEN[method]
    cached = [list(PROMPT_LENGTHS)]  # [step][row] cells visible before the step
    for step in trace.steps:
        cached.append([row.cache_len for row in step.rows])
    for number, step in enumerate(trace.decode_steps):
        for row in step.rows:
            start, fed = golden.start[number][row.row], golden.fed[number][row.row]
            real, first = 1 + DRAFTED[number][row.row], cached[number + 1][row.row]
            assert row.cache_start == start
            assert row.slots == list(range(start, start + fed))
            assert row.input_kinds == ["pending"] + ["draft"] * (real - 1) + ["pad"] * (fed - real)
            assert row.position_ids == [*range(first, first + real), *[first + real - 1] * (fed - real)]
            assert row.holes_added == golden.holes[number][row.row]
            assert len(row.target_token_ids) == real
    ends = [tuple(row.next_slot for row in step.rows) for step in trace.steps]
    assert ends == [golden.start[0], golden.start[1], golden.end]
    assert cached[-1] == [11, 10]


def test_engine_counts_rows_slots_holes_and_launches(example: tuple) -> None:
    method, trace, _ = example
    golden, steps = GOLDEN[method], trace.decode_steps
    summary = trace.summary()
    assert summary["input_rows"] == golden.input_rows
    assert summary["slots_advanced"] == golden.slots_advanced
    assert summary["holes"] == sum(len(holes) for step in golden.holes for holes in step)
    assert summary["kv_slots_scanned"] == {"per_token": golden.per_token, "varlen": golden.varlen}
    assert _total(steps, "per_token") == golden.per_token
    assert [step.account.attention_launches for step in steps] == [2, 2]
    assert summary["drafted"] == 14
    assert summary["accepted"] == 9
    assert summary["mean_acceptance_length"] == 13 / 4
    allocated = {step.account.kv_slots_allocated for step in trace.steps}
    assert len(allocated) == 1
    assert allocated.pop() >= sum(golden.end)


def test_engine_trace_survives_json(example: tuple) -> None:
    _, trace, _ = example
    assert GenerationTrace.from_json(trace.to_json()) == trace


# --- the layout alone ----------------------------------------------------------------------------------------------


def _layout_steps(method: str) -> tuple[list[StepPlan], list[StepAccount], list[Row]]:
    cache, inputs = METHODS[method]
    layout = make_layout(SpeculativeConfig(cache_layout=cache, input_layout=inputs), PAD)
    rows = layout.start(PROMPT_LENGTHS)
    plans, accounts = [], []
    for step in range(2):
        drafts = [[10 + place for place in range(count)] for count in DRAFTED[step]]
        plan = layout.plan(rows, [1, 2], drafts)
        commit = layout.commit(rows, plan, GAINED[step], [False, False])
        assert commit.kept == GAINED[step]
        assert commit.moves == ()
        assert [list(holes) for holes in commit.holes] == list(GOLDEN[method].holes[step])
        plans.append(plan)
        accounts.append(step_account(plan, 0, sum(len(row.holes) for row in rows)))
    return plans, accounts, rows


@pytest.mark.parametrize("method", list(GOLDEN))
def test_layout_alone_gives_the_same_numbers(method: str) -> None:
    golden = GOLDEN[method]
    plans, accounts, rows = _layout_steps(method)
    for step, plan in enumerate(plans):
        assert tuple(row.num_fed for row in plan.rows) == golden.fed[step]
        assert tuple(row.cache_start for row in plan.rows) == golden.start[step]
        assert plan.num_fed == sum(golden.fed[step])
        for row in plan.rows:
            assert row.input_token_ids[row.num_real :] == (PAD,) * (row.num_fed - row.num_real)
    assert tuple(row.next_slot for row in rows) == golden.end
    assert tuple(row.prompt_pads for row in rows) == golden.prompt_pads
    assert [row.cache_len for row in rows] == [11, 10]
    for kind, count in golden.input_rows.items():
        assert sum(account.input_rows[kind] for account in accounts) == count
    for mode, counts in (("per_token", golden.per_token), ("varlen", golden.varlen)):
        for kind, count in counts.items():
            assert sum(account.kv_slots_scanned[mode][kind] for account in accounts) == count


def test_padded_rows_know_which_cells_are_dead() -> None:
    """Row 1 of vanilla in step 2: prompt in 0..2, two prompt pads, one token, three holes, then the new tokens."""
    plans, _, _ = _layout_steps("vanilla")
    positions = plans[1].rows[1].key_positions
    assert positions is not None
    assert positions.tolist() == [0, 1, 2, -1, -1, 3, -1, -1, -1, 4, 5, 6, 7, 8, 9]
    ems, _, _ = _layout_steps("ems-sd")
    assert ems[1].rows[1].key_positions is None


def test_layout_needs_no_torch() -> None:
    code = "import sys, emssd.layouts, emssd.accounting; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
