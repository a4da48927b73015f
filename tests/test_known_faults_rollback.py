"""Known faults of rolling back a ragged KV cache: one offset for all rows, a drafter's cache that loses its place,
a state that cannot be rolled back at all."""

from __future__ import annotations

from itertools import product

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from emssd import SpeculativeConfig, UnsupportedModelError, generate_steps, load_model
from emssd.drafting import DraftModelDrafter
from tests.helpers import (
    SPECULATIVE,
    accepted_counts,
    assert_lossless,
    batch,
    greedy,
    language_model,
    never,
    plain_logits,
    same,
    script,
)
from tests.spies import Spy, assert_cache_equals_prefill, assert_cursors, row_history, snapshot, stores

__all__ = ["stores"]
PATTERN = [[0, 2, 3], [3, 0, 1], [1, 1, 1]]


def config_of(method: str, k, n: int, **settings) -> SpeculativeConfig:
    return SpeculativeConfig.for_method(method, num_draft_tokens=k, max_new_tokens=n, **settings)


# --- one scalar offset used for a batch that needs a vector ---


@pytest.mark.parametrize(("method", "name"), list(product(SPECULATIVE, ["random-gemma3", "random-llama"])))
def test_ragged_rollback_keeps_length_and_position_per_row_after_every_round(method, name):
    """One offset for the whole batch: rows accept 0-2-3, 3-0-1 and 1-1-1, so their lengths diverge."""
    lm = language_model(name)
    prompts = batch(lm, [5, 9, 14], 24)
    drafter = script([greedy(lm, prompt, 24) for prompt in prompts], PATTERN, lm.vocab_size, 3)
    trace = assert_lossless(lm, prompts, config_of(method, 3, 13), drafter)
    for row, counts in enumerate(accepted_counts(trace)):
        full = counts[:-1]  # the cap shortens the last round
        assert full == [PATTERN[row][step % 3] for step in range(len(full))]
        assert len(full) >= 3
    assert_cursors(trace)


@pytest.mark.parametrize("method", ["vanilla", "ems-sd"])
def test_cached_keys_equal_a_fresh_prefill_after_ragged_rounds(method, stores):
    """A wrong offset leaves a rejected draft's keys in place of a committed token's: compare the cache itself."""
    lm = language_model("random-llama")
    prompts = batch(lm, [5, 9, 14], 24)
    drafter = script([greedy(lm, prompt, 24) for prompt in prompts], PATTERN, lm.vocab_size, 3)
    run = generate_steps(lm, prompts, config_of(method, 3, 13), drafter)
    for _ in run:
        for request in run.requests:
            place, tokens = request.place, request.token_ids[:-1]
            if not place.finished:
                assert_cache_equals_prefill(lm, stores[-1], place.index, place.slots, tokens)


# --- cache types that do not support rollback ---


def tiny(model_type: str, **entries):
    config = AutoConfig.for_model(
        model_type, vocab_size=97, bos_token_id=None, eos_token_id=None, pad_token_id=0, **entries
    )
    return AutoModelForCausalLM.from_config(config).eval()


RECURRENT = {
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "recurrent_gemma": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "lru_width": 32,
    },
    "lfm2": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "layer_types": ["conv", "full_attention"],
    },
}


@pytest.mark.parametrize("model_type", RECURRENT)
def test_a_no_op_crop_is_refused_state_that_cannot_be_rolled_back(model_type):
    """Recurrent and hybrid models keep a state that no crop takes back: refused at load by name, never a silent run."""
    model = tiny(model_type, **RECURRENT[model_type])
    with pytest.raises(UnsupportedModelError) as caught:
        load_model.from_pretrained_model(model)
    assert type(model).__name__ in str(caught.value)
    assert "\n" not in str(caught.value)


# --- draft cache desync: invisible to output tests, so look at the cache and at the acceptance ---


def check_draft_cache(spy: Spy, draft_lm, run, k: int) -> None:
    """After a round the draft's cache holds committed - 1 tokens, or one fewer after full acceptance; all right."""
    for request in run.requests:
        if request.place.finished or request.place.index not in spy.rows:
            continue
        cached = spy.session.cache_lens[request.place.index]
        step = run.trace.steps[-1].rows[request.place.index]
        lag = len(request.token_ids) - 1 - cached
        assert lag == (1 if step.num_drafted and step.num_accepted == step.num_drafted else 0)
        slots = request.place.slots[:cached]
        tokens = request.token_ids[:cached]
        assert_cache_equals_prefill(draft_lm, spy.session.store, request.place.index, slots, tokens)


@pytest.mark.parametrize("method", SPECULATIVE)
def test_draft_cache_desync_same_model_with_two_spoiled_rounds(method):
    """A draft cache rewound by too many tokens: with the target as its own drafter, acceptance stays K in every
    round that was not spoiled, and the draft's keys equal a fresh prefill after each round."""
    lm, k, n = language_model("random-llama"), 3, 40
    prompts = batch(lm, [5, 9, 14], n)
    spoiled = {(0, 2), (1, 3), (2, 2), (2, 5)}

    def spoil_second(row, committed, step, drafts):
        if (row, step) in spoiled and len(drafts) > 1:
            drafts = [drafts[0], (drafts[1] + 1) % 97, *drafts[2:]]
        return drafts

    spy = Spy(same(lm), spoil_second)
    run = generate_steps(lm, prompts, config_of(method, k, n), spy)
    for _ in run:
        check_draft_cache(spy, lm, run, k)
    assert [row.output_token_ids for row in run.trace.rows] == [greedy(lm, prompt, n) for prompt in prompts]
    for row in range(3):
        for step in run.trace.decode_steps:
            now = step.rows[row]
            if now.kind == "decode":
                assert now.num_accepted == (1 if (row, step.index) in spoiled else now.num_drafted)
                last = now.finished
                assert last or now.num_drafted == k


@pytest.mark.parametrize("method", SPECULATIVE)
def test_draft_cache_desync_another_model_that_is_often_wrong(method):
    """The same look at the cache with real rejections at every place."""
    lm, draft_lm = language_model("random-gpt2"), language_model("random-gpt2", noise=0.1)
    prompts = batch(lm, [5, 9, 14], 30)
    spy = Spy(DraftModelDrafter(draft_lm))
    run = generate_steps(lm, prompts, config_of(method, 3, 30), spy)
    for _ in run:
        check_draft_cache(spy, draft_lm, run, 3)
    assert [row.output_token_ids for row in run.trace.rows] == [greedy(lm, prompt, 30) for prompt in prompts]
    counts = {count for row in accepted_counts(run.trace) for count in row}
    assert len(counts) >= 3, "the draft model must be right sometimes and wrong sometimes"


# --- full acceptance leaves a hole in the draft cache ---


@pytest.mark.parametrize(("method", "k"), list(product(["vanilla", "ems-sd"], [1, 2, 4])))
def test_catch_up_after_full_acceptance_feeds_two_tokens(method, k):
    """Bonus-token cache hole: the drafter has never run its last draft. Row 0 is always right, row 1 never; the next
    round's first draft forward feeds two tokens for row 0 and one for row 1."""
    lm, n = language_model("random-llama"), 16
    prompts = batch(lm, [6, 9], n)
    worst = lambda committed: int(plain_logits(lm, committed)[-1].argmin())  # noqa: E731
    spy = Spy(same(lm), lambda row, ids, step, drafts: [worst(ids)] * len(drafts) if row else drafts)
    run = generate_steps(lm, prompts, config_of(method, k, n), spy)
    for _ in run:
        check_draft_cache(spy, lm, run, k)
    trace = run.trace
    assert [row.output_token_ids for row in trace.rows] == [greedy(lm, prompt, n) for prompt in prompts]
    accepted = accepted_counts(trace)
    assert set(accepted[0][:-1]) == {k}
    assert set(accepted[1]) == {0}
    for step in trace.decode_steps:
        drafting = [row.num_drafted > 0 for row in step.rows]
        if all(drafting):
            first, *later = [forward["tokens_per_row"] for forward in step.draft_forwards]
            assert first == ([1, 1] if step.index == 1 else [2, 1])
            assert all(max(counts) == 1 for counts in later)
            assert 1 + len(later) == max(row.num_drafted for row in step.rows)


# --- steps without drafts must not skip the upkeep ---


@pytest.mark.parametrize("method", SPECULATIVE)
def test_zero_draft_steps_do_not_spoil_the_drafter(method):
    """Draft lengths 3, 0, 0, 3: after two rounds without drafts the drafter has caught up, and 3 of 3 are accepted."""
    lm, n = language_model("random-llama"), 12
    prompts = batch(lm, [5, 8], n)
    schedule = [3, 0, 0, 3]
    config = config_of(method, lambda row, step: schedule[(step - 1) % 4], n)
    trace = assert_lossless(lm, prompts, config, same(lm))
    for row in range(2):
        rounds = row_history(trace, row)[:4]
        assert [now.num_drafted for now in rounds] == schedule
        assert [now.num_accepted for now in rounds] == schedule
    fourth = trace.decode_steps[3].draft_forwards
    # after round 1 one token is missing (full acceptance), rounds 2 and 3 add one each, and the pending one is new
    assert [forward["tokens_per_row"] for forward in fourth] == [[4, 4], [1, 1], [1, 1]]
    assert trace.decode_steps[1].draft_forwards == []


# --- rejected drafts leak to the output ---


@pytest.mark.parametrize("method", SPECULATIVE)
def test_rejected_drafts_never_leak_into_the_output(method):
    """Everything is rejected: the output grows by exactly one token per row and round."""
    lm = language_model("random-llama")
    prompts = batch(lm, [3, 6, 10], 8)
    trace = assert_lossless(lm, prompts, config_of(method, 5, 8), never(lm))
    assert len(trace.decode_steps) == 7
    for step in trace.decode_steps:
        assert [row.num_emitted for row in step.rows] == [1, 1, 1]
        assert [row.next_kind for row in step.rows] == (["recovered"] * 3 if step.index < 7 else ["plain"] * 3)
    assert_cursors(trace)


# --- rollback skipped for the last or only candidate ---


@pytest.mark.parametrize(("method", "pattern"), list(product(SPECULATIVE, ["never", "alternating"])))
def test_the_only_candidate_is_rolled_back_too(method, pattern):
    """K = 1: a rejected only candidate is taken back like any other; also with accept and reject in turns."""
    lm, n = language_model("random-llama"), 14
    prompts = batch(lm, [4, 7], n + 2)
    if pattern == "never":
        drafter = never(lm)
    else:
        outputs = [greedy(lm, prompt, n + 2) for prompt in prompts]
        drafter = script(outputs, [[1, 0], [0, 1]], lm.vocab_size, 1)
    trace = assert_lossless(lm, prompts, config_of(method, 1, n), drafter)
    assert_cursors(trace)
    if pattern == "alternating":
        counts = accepted_counts(trace)
        assert counts[0][:6] == [1, 0, 1, 0, 1, 0]
        assert counts[1][:6] == [0, 1, 0, 1, 0, 1]


def test_rollback_moves_and_zeroes_nothing(stores):
    """Lowering a length is enough: the rejected drafts' keys stay where they were until they are overwritten."""
    lm = language_model("random-llama")
    prompts = batch(lm, [5], 8)
    run = generate_steps(lm, prompts, config_of("ems-sd", 3, 8), never(lm))
    next(run)
    next(run)
    row = run.trace.steps[1].rows[0]
    keys = stores[-1].read(0, 0, row.slots)[0]
    assert (keys.abs().sum(dim=(1, 2)) > 0).all()
    assert len(snapshot(stores[-1], 0)) == 4  # keys and values of two layers
