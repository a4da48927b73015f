"""Known faults of stopping: an end inside an accepted block, overshoot, finished rows in a live batch, empty things."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
import torch

from emssd import PromptError, SpeculativeConfig, generate, generate_steps
from emssd.drafting import DraftModelDrafter, PromptLookupDrafter, ScriptedDrafter
from emssd.loading import load_model
from emssd.model_runner import ModelRunner
from emssd.random_models import random_model, random_tokenizer
from emssd.request import encode_prompts
from tests.helpers import (
    ALL_METHODS,
    SPECULATIVE,
    accepted_counts,
    assert_lossless,
    batch,
    empty,
    greedy,
    language_model,
    plain_logits,
    prompt_ids,
    safe_prompt,
    same,
    script,
)
from tests.spies import row_history, snapshot, stores

__all__ = ["stores"]


def config_of(method: str, k, n: int, **settings) -> SpeculativeConfig:
    return SpeculativeConfig.for_method(method, num_draft_tokens=k, max_new_tokens=n, **settings)


# --- end of sequence inside an accepted block ---

K = 5
PLACES = {"first token": 0, "draft 1": 1, "draft 3": 3, "bonus": K + 1, "never": None}


@cache
def ending_batch(name: str) -> tuple[list[list[int]], list[int]]:
    """Prompts and declared end-of-sequence ids such that each row meets its first one at the place of `PLACES`."""
    lm, length = language_model(name), K + 4
    prompts: list[list[int]] = []
    ends: set[int] = set()
    salt = 0
    for place in PLACES.values():
        while True:
            salt += 1
            assert salt < 400
            prompt = safe_prompt(lm, 3 + salt % 5, salt, length)
            output = greedy(lm, prompt, length)
            wanted = ends if place is None else ends | {output[place]}
            if first_end(output, wanted) != place:
                continue
            if all(
                first_end(greedy(lm, p, length), wanted) == at for p, at in zip(prompts, PLACES.values(), strict=False)
            ):
                prompts.append(prompt)
                ends = wanted
                break
    return prompts, sorted(ends)


def first_end(output: list[int], ends: set[int]) -> int | None:
    return next((place for place, token in enumerate(output) if token in ends), None)


@pytest.mark.parametrize(("name", "method"), list(product(["random-llama", "random-gemma3"], ALL_METHODS)))
def test_end_of_sequence_inside_an_accepted_block(name, method):
    """Text after the end: only the last of K + 1 committed tokens is looked at. Tokens that plain decoding made are
    declared to be ends: as first token, as draft 1 and 3, as bonus, and never in one row."""
    lm = language_model(name)
    prompts, ends = ending_batch(name)
    trace = assert_lossless(lm, prompts, config_of(method, K, K + 4), same(lm), eos=ends)
    lengths = [K + 4 if place is None else place + 1 for place in PLACES.values()]
    assert [len(row.output_token_ids) for row in trace.rows] == lengths
    assert [row.finish_reason for row in trace.rows] == ["eos"] * 4 + ["length"]
    if method in SPECULATIVE:
        first = trace.decode_steps[0].rows
        assert [first[row].num_accepted for row in (1, 2, 3)] == [1, 3, K]
        assert [first[row].num_emitted for row in (1, 2, 3)] == [1, 3, K + 1]
        assert [first[row].next_kind for row in (1, 2, 3)] == [None, None, "bonus"]
        assert [step.rows[0].kind for step in trace.steps] == ["prefill"] + ["finished"] * len(trace.decode_steps)


@pytest.mark.parametrize("method", SPECULATIVE)
def test_a_rejected_end_of_sequence_ends_nothing(method):
    """The drafter proposes an end that the target does not choose."""
    lm, n = language_model("random-llama"), 8
    prompt = batch(lm, [5], n)[0]
    output = greedy(lm, prompt, n)
    eos = next(token for token in range(97) if token not in output)
    drafter = ScriptedDrafter(lambda row, ids, step: [eos, output[0]])
    trace = assert_lossless(lm, [prompt], config_of(method, 2, n), drafter, eos=[eos])
    assert trace.rows[0].finish_reason == "length"


@pytest.mark.parametrize("method", SPECULATIVE)
def test_the_recovered_token_may_be_the_end(method):
    lm, n = language_model("random-llama"), 12
    prompt = batch(lm, [5], n)[0]
    output = greedy(lm, prompt, n)
    eos = output[3]
    place = output.index(eos)
    drafter = script([output], [[max(place - 1, 0)]], 97, 4)
    trace = assert_lossless(lm, [prompt], config_of(method, 4, n), drafter, eos=[eos])
    assert trace.steps[-1].rows[0].next_kind == ("recovered" if place else "plain")
    assert trace.rows[0].finish_reason == "eos"


# --- overshoot ---


@pytest.mark.parametrize(("method", "n"), list(product(ALL_METHODS, [0, 1, 2, 3])))
def test_exactly_max_new_tokens_and_never_more(method, n, monkeypatch):
    """Overshoot: up to K extra tokens where the cap is not kept, also one token right after prefill, and none at all
    without a single forward."""
    lm = language_model("random-llama")
    prompts = batch(lm, [4, 9, 1], 8)
    if n == 0:
        monkeypatch.setattr(ModelRunner, "forward", lambda *args: pytest.fail("a forward ran"))
    trace = assert_lossless(lm, prompts, config_of(method, 5, n), same(lm))
    assert [len(row.output_token_ids) for row in trace.rows] == [n] * 3
    assert [row.finish_reason for row in trace.rows] == ["length"] * 3
    assert len(trace.steps) == (0 if n == 0 else {1: 1, 2: 2, 3: 3 if "greedy" in method else 2}[n])
    summary = trace.summary()
    assert summary["tokens"] == 3 * n
    assert summary["decode_tokens"] == 3 * max(n - 1, 0)
    for step in trace.decode_steps:
        for row in (row for row in step.rows if row.kind == "decode"):
            done = sum(each.rows[row.row].num_emitted for each in trace.steps[: step.index])
            assert 1 + row.num_drafted <= n - done  # what is not needed is not even fed


# --- no, one and several end-of-sequence ids ---


@pytest.mark.parametrize("method", ["greedy", "vanilla", "ems-sd"])
@pytest.mark.parametrize("kind", ["none", "empty", "one", "two", "outside the draft's vocabulary"])
def test_end_of_sequence_ids_may_be_none_one_or_several(method, kind):
    """Optional end of sequence: none configured, a list of two, one that the draft model has no embedding for; with a
    repeating prompt, so that prompt lookup really fires."""
    lm, n = language_model("random-llama"), 12
    prompt = [5, 6, 7, 5, 6, 7, 5, 6, 7, 5, 6, 7, 5, 6]
    output = greedy(lm, prompt, n)
    eos = {"none": None, "empty": (), "one": output[4], "two": (output[7], 96), "outside the draft's vocabulary": 95}
    chosen = eos[kind]
    ends = [] if chosen is None else [chosen] if isinstance(chosen, int) else list(chosen)
    draft_lm = language_model("random-llama", seed=3, vocab_size=90)
    for drafter in (PromptLookupDrafter(1, "context"), DraftModelDrafter(draft_lm)):
        config = config_of(method, 3, n, eos_token_ids=chosen)
        trace = generate(lm, [prompt, [5]], config, drafter)
        assert trace.rows[0].output_token_ids == greedy(lm, prompt, n, ends)
        assert trace.rows[1].output_token_ids == greedy(lm, [5], n, ends)
        assert trace.config["eos_token_ids"] == ends
        if method != "greedy":
            assert any(row.num_drafted for row in trace.live_rows())


def test_pad_and_end_of_sequence_may_be_the_same_id():
    """Pads are known by their place, not by their id: rows that end with the pad's id are not masked or cut early."""
    lm, n = language_model("random-llama"), 12
    prompts = [[0, 5, 0, 7], [0], [9, 0, 0, 0, 0, 1]]
    assert lm.pad_token_id == 0
    for method in ALL_METHODS:
        assert_lossless(lm, prompts, config_of(method, 3, n), same(lm), eos=[0])


# --- tokens after the end must not stay in the cache ---


@pytest.mark.parametrize("method", ["vanilla", "packed-input", "ragged-cache", "ems-sd"])
def test_the_cache_after_the_end_continues_like_a_fresh_run(method, stores):
    """Late truncation: after a row ended inside a block, its cache holds committed - 1 tokens, and going on from that
    cache gives what a fresh run over the whole text gives."""
    lm = language_model("random-llama")
    prompts, ends = ending_batch("random-llama")
    run = generate_steps(lm, prompts, config_of(method, K, K + 4, eos_token_ids=tuple(ends)), same(lm))
    for _ in run:
        pass
    assert [row.output_token_ids for row in run.trace.rows] == [greedy(lm, p, K + 4, ends) for p in prompts]
    store, rows = stores[-1], [request.place for request in run.requests]
    for request in run.requests:
        assert request.place.cache_len == len(request.token_ids) - 1
    nexts = [21, 22]
    for request in run.requests[1:3]:  # ended at draft 1 and at draft 3
        for row in rows:
            row.finished = row is not request.place
        pending = [each.token_ids[-1] for each in run.requests]
        plan = run.layout.plan(rows, pending, [nexts] * len(rows))
        logits = ModelRunner(lm.hooked).forward(plan, store, real_places(plan, request.place.index))
        right = plain_logits(lm, [*request.token_ids, *nexts])[-3:]
        assert torch.allclose(logits, right, atol=1e-4)


def real_places(plan, index: int) -> list[int]:
    first = 0
    for row in plan.rows:
        if row.row == index:
            return list(range(first, first + row.num_real))
        first += row.num_fed
    raise AssertionError


# --- finished rows in a live batch ---

N = 10
FINISHING = {
    "rounds 1, 2, 5 and last": [[8], [4, 3], [1, 1, 1, 1, 0], [0]],
    "all but one at once": [[8], [8], [8], [0]],
}


@pytest.mark.parametrize(("method", "name"), list(product(SPECULATIVE, FINISHING)))
def test_finished_rows_in_a_live_batch_stay_as_they_are(method, name, stores):
    """Finished rows that keep growing: they feed nothing (padded inputs feed pads for them), their cache never changes
    again, and they still equal plain decoding."""
    lm = language_model("random-llama")
    prompts = batch(lm, [4, 9, 6, 2], N + 8)
    outputs = [greedy(lm, prompt, N + 8) for prompt in prompts]
    config = config_of(method, 8, N)
    run = generate_steps(lm, prompts, config, script(outputs, FINISHING[name], 97, 8))
    frozen: dict[int, list[torch.Tensor]] = {}
    rounds: dict[int, int] = {}
    for step in run:
        for row in step.rows:
            if row.row in frozen:
                assert row.kind == "finished"
                assert (row.slots, row.num_emitted, row.num_drafted, row.target_token_ids) == ([], 0, 0, [])
                assert set(row.input_kinds) <= {"pad"}
                if config.input_layout == "packed":
                    assert row.input_token_ids == []
                for now, then in zip(snapshot(stores[-1], row.row), frozen[row.row], strict=True):
                    assert torch.equal(now, then)
            elif row.finished:
                frozen[row.row] = snapshot(stores[-1], row.row)
                rounds[row.row] = step.index
    assert [row.output_token_ids for row in run.trace.rows] == [output[:N] for output in outputs]
    assert rounds == ({0: 1, 1: 2, 2: 5, 3: 9} if "rounds" in name else {0: 1, 1: 1, 2: 1, 3: 9})


@pytest.mark.parametrize("method", SPECULATIVE)
def test_taking_a_finished_row_away_changes_no_other_row(method):
    lm = language_model("random-llama")
    prompts = batch(lm, [4, 9, 6, 2], N + 8)
    outputs = [greedy(lm, prompt, N + 8) for prompt in prompts]
    patterns = FINISHING["rounds 1, 2, 5 and last"]
    whole = generate(lm, prompts, config_of(method, 8, N), script(outputs, patterns, 97, 8))
    rest = generate(lm, prompts[1:], config_of(method, 8, N), script(outputs[1:], patterns[1:], 97, 8))
    for row in range(1, 4):
        assert whole.rows[row].output_token_ids == rest.rows[row - 1].output_token_ids
        for with_it, without in zip(row_history(whole, row), row_history(rest, row - 1), strict=True):
            assert with_it.emitted_token_ids == without.emitted_token_ids
            assert with_it.num_accepted == without.num_accepted
            assert with_it.cache_len == without.cache_len


# --- empty things ---


def test_empty_prompts_are_refused_by_row_where_there_is_no_first_token():
    """Zero-length input: without a beginning-of-sequence token an empty prompt is named, and the others still run."""
    lm = language_model("random-llama")
    encoded = encode_prompts(lm, [[], [5]])
    assert encoded.token_ids == [None, [5]]
    assert "Row 0" in encoded.problems[0]
    assert "empty" in encoded.problems[0]
    assert_lossless(lm, [[5]], config_of("ems-sd", 3, 6), same(lm))
    with pytest.raises(PromptError, match="Row 0: the prompt is empty"):
        generate(lm, [[], [5]])


def test_an_empty_prompt_becomes_the_beginning_of_sequence_token():
    """Documented rule: the empty prompt is one beginning-of-sequence token, if the model has one."""
    model = random_model("random-llama")
    model.generation_config.bos_token_id = 3
    lm = load_model.from_pretrained_model(model, random_tokenizer())
    trace = generate(lm, ["", "a", " ", [], [3]], config_of("ems-sd", 3, 6), same(lm))
    assert trace.rows[0].prompt_token_ids == trace.rows[3].prompt_token_ids == [3]
    assert trace.rows[2].prompt_token_ids == lm.encode(" ") != [3]
    for row in trace.rows:
        assert row.output_token_ids == greedy(lm, row.prompt_token_ids, 6)


def test_no_prompts_at_all_and_a_batch_of_one():
    lm = language_model("random-llama")
    with pytest.raises(PromptError, match="no prompts"):
        generate(lm, [])
    for method in ALL_METHODS:
        assert_lossless(lm, batch(lm, [1], 6), config_of(method, 3, 6), same(lm))


# --- no drafts ---


@pytest.mark.parametrize("method", SPECULATIVE)
def test_zero_drafts_throughout_equal_plain_decoding(method):
    """An empty draft must not enter a speculative path of its own: the number of steps equals the number of tokens."""
    lm, n = language_model("random-llama"), 9
    prompts = batch(lm, [4, 7], n)
    trace = assert_lossless(lm, prompts, config_of(method, 4, n), empty())
    plain = assert_lossless(lm, prompts, config_of(method, 0, n))
    for run in (trace, plain):
        assert len(run.steps) == n
        assert all(row.num_emitted == 1 and row.next_kind == "plain" for row in run.live_rows())
        assert run.summary()["acceptance_rate"] is None
        assert run.summary()["mean_acceptance_length"] == 1.0
        assert all(step.account.attention_launches == 1 for step in run.decode_steps)
        assert run.summary()["holes"] == 0
    for one, other in zip(trace.steps, plain.steps, strict=True):
        assert [row.to_dict() for row in one.rows] == [row.to_dict() for row in other.rows]
        assert one.account.input_rows == other.account.input_rows
        assert one.account.kv_slots_scanned == other.account.kv_slots_scanned


@pytest.mark.parametrize("method", SPECULATIVE)
def test_ten_rounds_without_a_match_and_then_one(method):
    """Prompt lookup that finds nothing for ten rounds and then something: nothing has piled up meanwhile."""
    lm, n = language_model("random-llama"), 24
    for salt in range(200):
        prompt = prompt_ids(5, salt)
        output = greedy(lm, prompt, n)
        keys = [place for place, token in enumerate(output[: n - 4]) if token in prompt[:3]]
        if keys and keys[0] >= 10:
            break
    trace = assert_lossless(lm, [prompt], config_of(method, 2, n), PromptLookupDrafter(ngram_size=1))
    drafted = [row.num_drafted for row in trace.live_rows()]
    assert drafted[:10] == [0] * 10
    assert 2 in drafted


@pytest.mark.parametrize("method", SPECULATIVE)
def test_one_row_without_drafts_beside_rows_with_drafts(method):
    lm, n = language_model("random-llama"), 12
    prompts = batch(lm, [4, 7, 2], n)
    outputs = [greedy(lm, prompt, n) for prompt in prompts]
    right = lambda row, ids, step: [] if row == 1 else outputs[row][len(ids) - len(prompts[row]) :][:3]  # noqa: E731
    trace = assert_lossless(lm, prompts, config_of(method, 3, n), ScriptedDrafter(right))
    assert [len(counts) for counts in accepted_counts(trace)] == [3, 11, 3]
    assert set(accepted_counts(trace)[1]) == {0}


@pytest.mark.parametrize("method", ALL_METHODS)
def test_the_end_as_the_last_allowed_token_is_an_end(method):
    """The cap must not come before the end of sequence: both at once is "eos"."""
    lm, n = language_model("random-llama"), 6
    prompts = batch(lm, [5, 3], n)
    output = greedy(lm, prompts[0], n)
    eos = output[-1]
    assert output.index(eos) == n - 1
    trace = assert_lossless(lm, prompts, config_of(method, 3, n), same(lm), eos=[eos])
    assert trace.rows[0].finish_reason == "eos"
