"""Known faults of sliding windows and of length limits."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from emssd import PromptError, SpeculativeConfig, generate, generate_steps
from emssd.attention import QueryGroup, StepAttention, visible_slots
from emssd.kv_cache import KVStore
from emssd.layouts import Row, make_layout
from emssd.model_runner import ModelRunner
from emssd.request import encode_prompts
from tests.helpers import (
    ALL_METHODS,
    SPECULATIVE,
    accepted_counts,
    assert_lossless,
    batch,
    greedy,
    language_model,
    prompt_ids,
    safe_prompt,
    same,
    script,
)
from tests.spies import assert_cursors

LIMIT = 64


def config_of(method: str, k, n: int, **settings) -> SpeculativeConfig:
    return SpeculativeConfig.for_method(method, num_draft_tokens=k, max_new_tokens=n, **settings)


# --- sliding windows ---


@pytest.mark.parametrize(("name", "method"), list(product(["gemma3", "mistral", "gpt-oss"], SPECULATIVE)))
def test_rollback_past_a_sliding_window_takes_back_what_was_asked_for(name, method):
    """A ring cache that has wrapped cannot be trimmed, and nobody looks at the answer: prompt 7, window 8, 30 tokens
    with runs of 0, 0, 5 and 1 accepted drafts; each round takes back exactly the rejected ones."""
    lm, n, k = language_model(f"random-{name}"), 30, 5
    prompts = batch(lm, [7, 3], n + k)
    outputs = [greedy(lm, prompt, n + k) for prompt in prompts]
    drafter = script(outputs, [[0, 0, 5, 1], [2, 5, 0, 3]], lm.vocab_size, k)
    trace = assert_lossless(lm, prompts, config_of(method, k, n), drafter)
    assert_cursors(trace)
    assert accepted_counts(trace)[0][:8] == [0, 0, 5, 1, 0, 0, 5, 1]
    for row in trace.live_rows():
        written = row.num_drafted + 1
        kept = row.num_emitted
        assert written - kept == row.num_drafted - row.num_accepted
        if trace.config["cache_layout"] == "ragged":
            assert row.next_slot == row.cache_start + kept == row.cache_len


def groups_of(cache: str, inputs: str, lengths: list[int], drafts: list[int]) -> list[QueryGroup]:
    """The attention groups of one decode step of rows that hold `lengths` tokens."""
    layout = make_layout(SpeculativeConfig(cache_layout=cache, input_layout=inputs))
    rows = layout.start(lengths)
    plan = layout.plan(rows, [1] * len(rows), [[2] * count for count in drafts])
    return StepAttention(plan, KVStore([64] * len(rows))).groups


@pytest.mark.parametrize("window", [8, None])
def test_each_query_token_has_its_own_window(window):
    """One window start for all query rows hides keys from the early drafts: cache lengths 3, 8 and 20, window 8, a
    row without drafts. Query j of a row of length L sees exactly positions L + j - 7 .. L + j."""
    lengths, drafts = [3, 8, 20], [4, 0, 4]
    groups = groups_of("ragged", "packed", lengths, drafts)
    assert [group.rows[0].row for group in groups] == [0, 1, 2]
    for group, length, count in zip(groups, lengths, drafts, strict=True):
        shown = visible_slots(group, window)[0]  # (n, L)
        first = max(length - 7, 0) if window else 0
        right = np.zeros((count + 1, length + count + 1 - first), dtype=bool)
        for j in range(count + 1):
            for position in range(length + j + 1):
                if window is None or position >= length + j - 7:
                    right[j, position - first] = True
        assert np.array_equal(shown, right), f"L={length}"


def test_the_window_counts_positions_not_slots_where_the_cache_has_holes():
    """In a padded cache holes and prompt pads lie between the keys: they are hidden and do not use up the window."""
    layout = make_layout(SpeculativeConfig.vanilla())
    rows = [
        Row(0, 3, slots=[0, 1, 2, 6, 7, 9, 12], next_slot=14, holes=[8, 10, 11, 13], prompt_pads=3),
        Row(1, 6, slots=[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], next_slot=14, holes=[10, 11, 12, 13]),
        Row(2, 6, slots=[0, 1, 2, 3, 4, 5, 6], next_slot=14, holes=[], finished=True),
    ]
    plan = layout.plan(rows, [1, 1, 1], [[2, 2], [], []])
    groups = StepAttention(plan, KVStore([32] * 3)).groups
    shown = visible_slots(groups[0], 4)  # both live rows are one group: (2, 3, 17)
    assert shown.shape == (2, 3, 17)
    # row 0 holds positions 0..6, feeds 7, 8, 9 into slots 14, 15, 16
    sees = [[9, 7, 12, 14], [9, 12, 14, 15], [12, 14, 15, 16]]
    for query, slots in enumerate(sees):
        assert np.flatnonzero(shown[0, query]).tolist() == sorted(slots)
    # row 1 feeds position 10 into slot 14 and then two pads, which see what its last real token sees
    for query in range(3):
        assert np.flatnonzero(shown[1, query]).tolist() == [7, 8, 9, 14]


def test_pads_see_no_more_than_the_rows_last_real_token():
    groups = groups_of("ragged", "padded", [3, 8], [4, 0])
    shown = visible_slots(groups[1], 8)[0]
    assert (shown == shown[0]).all()
    assert shown[0].sum() == 8


@pytest.mark.parametrize(("name", "method"), list(product(["gemma3", "mistral"], ["vanilla", "ems-sd"])))
@pytest.mark.parametrize("length", [7, 8, 9])
def test_prompts_around_the_window(name, method, length):
    """One below, at and one above the window."""
    lm = language_model(f"random-{name}")
    prompts = batch(lm, [length, 8, 2], 12)
    assert_lossless(lm, prompts, config_of(method, 3, 12), same(lm))


# --- length limits ---


@pytest.mark.parametrize(("name", "method"), list(product(["opt", "gpt2"], ALL_METHODS)))
def test_positions_are_never_clamped_at_the_limit(name, method):
    """Overflow hidden by clamping: limit 64, prompt 60, 10 new tokens, K = 4. 64 positions can be fed, so the fifth
    token is emitted unfed; then the row stops with "context", equal to plain decoding up to there."""
    lm = language_model(f"random-{name}")
    prompts = batch(lm, [60, 5], 10)
    trace = assert_lossless(lm, prompts, config_of(method, 4, 10), same(lm))
    assert [len(row.output_token_ids) for row in trace.rows] == [5, 10]
    assert [row.finish_reason for row in trace.rows] == ["context", "length"]
    fed = [p for step in trace.steps for row in step.rows for p in row.position_ids]
    assert max(fed) == LIMIT - 1
    real = [row.position_ids[: 1 + row.num_drafted] for row in trace.live_rows()]
    assert all(positions == sorted(set(positions)) for positions in real)


def test_the_cap_at_the_limit_lowers_the_drafts_not_the_output():
    """The limit for drafts is the context, not the limit plus the draft length, nor minus it."""
    lm = language_model("random-opt")
    trace = generate(lm, [prompt_ids(60)], config_of("ems-sd", 4, 10), same(lm))
    assert [(row.num_drafted, row.num_emitted) for row in trace.live_rows()] == [(3, 4)]


@pytest.mark.parametrize("draft_limit", [16, 24])
def test_a_draft_model_with_a_smaller_limit_stops_drafting_and_nothing_else_changes(draft_limit):
    """Draft limit below the target's: the drafter is never fed beyond it, then the row goes on without drafts."""
    lm = language_model("random-opt")
    draft_lm = language_model("random-opt", max_positions=draft_limit)
    prompts = batch(lm, [10, 4], 30)
    trace = assert_lossless(lm, prompts, config_of("ems-sd", 4, 30), same(draft_lm))
    for step in trace.decode_steps:
        for row in step.rows:
            if row.num_drafted:
                fed = row.position_ids[0] + row.num_drafted  # the last draft is never fed
                assert fed <= draft_limit
    assert any(row.num_drafted == 0 and row.kind == "decode" for step in trace.decode_steps for row in step.rows)
    assert any(row.num_drafted == 4 for row in trace.live_rows())


def test_over_long_prompts_are_refused_by_row_and_limit_and_short_rows_go_on(monkeypatch):
    """Prompts of 63, 64, 65 and 200 tokens on limit 64 beside a short one: two rows are refused by name before any
    forward; the rest decodes as if alone."""
    lm = language_model("random-gpt2")
    prompts = [*batch(lm, [63, 64], 10), prompt_ids(65), prompt_ids(200), safe_prompt(lm, 5, n=10)]
    encoded = encode_prompts(lm, prompts)
    assert set(encoded.problems) == {2, 3}
    for row, length in ((2, 65), (3, 200)):
        message = encoded.problems[row]
        assert f"Row {row}" in message
        assert str(length) in message
        assert str(LIMIT) in message
        assert "\n" not in message
    assert [ids is None for ids in encoded.token_ids] == [False, False, True, True, False]

    monkeypatch.setattr(ModelRunner, "forward", lambda *args: pytest.fail("a forward ran"))
    with pytest.raises(PromptError, match=r"Row 2.*Row 3") as caught:
        generate_steps(lm, prompts, config_of("ems-sd", 4, 10))
    assert "\n" not in str(caught.value)
    monkeypatch.undo()

    good = [ids for ids in encoded.token_ids if ids is not None]
    trace = assert_lossless(lm, good, config_of("ems-sd", 4, 10), same(lm))
    assert [row.finish_reason for row in trace.rows] == ["context", "context", "length"]
    assert [len(row.output_token_ids) for row in trace.rows] == [2, 1, 10]
