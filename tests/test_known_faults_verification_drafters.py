"""Known faults of verification and of drafters: which logits judge which draft, vocabularies, shared state."""

from __future__ import annotations

import threading
from itertools import product
from math import ceil

import pytest

from emssd import ConfigError, SpeculativeConfig, generate, generate_steps, load_model
from emssd.drafting import DraftModelDrafter, PromptLookupDrafter, ScriptedDrafter
from emssd.random_models import random_model, random_tokenizer
from tests.helpers import (
    SPECULATIVE,
    accepted_counts,
    assert_lossless,
    batch,
    greedy,
    language_model,
    never,
    safe_prompt,
    same,
    script,
)


def config_of(method: str, k, n: int, **settings) -> SpeculativeConfig:
    return SpeculativeConfig.for_method(method, num_draft_tokens=k, max_new_tokens=n, **settings)


# --- which logits judge which draft ---


@pytest.mark.parametrize(("method", "k"), list(product(SPECULATIVE, [1, 3])))
def test_the_first_draft_is_checked(method, k):
    """Verify row off by one: logits row i judges draft i + 1, so the first draft would pass unseen."""
    lm = language_model("random-llama")
    trace = assert_lossless(lm, batch(lm, [3, 6], 10), config_of(method, k, 10), never(lm))
    assert {count for row in accepted_counts(trace) for count in row} == {0}
    assert trace.summary()["acceptance_rate"] == 0.0


@pytest.mark.parametrize("method", SPECULATIVE)
def test_a_repeating_prompt_with_prompt_lookup_is_checked_from_its_first_draft(method):
    """Prompt [1, 1, 1]: the copied draft begins with the very token that was matched."""
    lm = language_model("random-llama")
    prompts = [[1, 1, 1], [1] * 9]
    for drafter in (PromptLookupDrafter(1), PromptLookupDrafter(1, "context", "first"), PromptLookupDrafter()):
        assert_lossless(lm, prompts, config_of(method, 1, 10), drafter)


@pytest.mark.parametrize("method", SPECULATIVE)
def test_the_row_after_the_rejected_draft_is_not_the_one_that_answers(method):
    """The recovered token comes from the logits that rejected the draft, so it is never the rejected token itself."""
    lm, n = language_model("random-llama"), 12
    prompts = batch(lm, [5, 8], n + 4)
    outputs = [greedy(lm, prompt, n + 4) for prompt in prompts]
    trace = assert_lossless(lm, prompts, config_of(method, 4, n), script(outputs, [[1], [2]], lm.vocab_size, 4))
    for row in trace.live_rows():
        if row.next_kind == "recovered":
            assert row.emitted_token_ids[-1] == row.target_token_ids[row.num_accepted]
            assert row.emitted_token_ids[-1] != row.draft_token_ids[row.num_accepted]


@pytest.mark.parametrize("method", SPECULATIVE)
def test_the_leading_run_counts_not_the_sum_of_matches(method):
    """Only the second of four drafts is wrong: right, wrong, right, right is one accepted draft."""
    lm, n = language_model("random-llama"), 13
    prompts = batch(lm, [5, 8], n + 4)
    outputs = [greedy(lm, prompt, n + 4) for prompt in prompts]
    trace = assert_lossless(lm, prompts, config_of(method, 4, n), script(outputs, [[1], [1]], 97, 4))
    for counts in accepted_counts(trace):
        assert counts[:-1] == [1] * 5
    for step in trace.decode_steps[:4]:
        for row in step.rows:
            place = sum(each.rows[row.row].num_emitted for each in trace.steps[: step.index])
            # the last two are right, and do not count
            assert row.draft_token_ids[2:] == outputs[row.row][place + 2 : place + 4]


@pytest.mark.parametrize("method", SPECULATIVE)
def test_full_acceptance_keeps_the_bonus_token(method):
    """Lost bonus: the last logits row is dropped, so a round commits K instead of K + 1. 21 tokens take 4 rounds of 5
    after the prefill token."""
    lm, k, n = language_model("random-llama"), 4, 21
    trace = assert_lossless(lm, batch(lm, [5, 8], n), config_of(method, k, n), same(lm))
    assert len(trace.decode_steps) == ceil((n - 1) / (k + 1))
    assert all(row.num_emitted == k + 1 and row.next_kind == "bonus" for row in trace.live_rows())
    assert trace.summary()["mean_acceptance_length"] == k + 1
    assert trace.summary()["acceptance_rate"] == 1.0


# --- vocabulary size is not tokenizer identity ---


@pytest.mark.parametrize(("method", "size"), list(product(["vanilla", "ems-sd"], [101, 90])))
def test_draft_vocabularies_of_other_sizes_are_served(method, size):
    """Target vocabulary 97, draft 101 or 90: an id of the draft beyond the target's is never proposed, an id of the
    target beyond the draft's is never fed to the draft."""
    lm = language_model("random-llama")
    draft_lm = language_model("random-llama", seed=4, vocab_size=size)
    prompts = [*batch(lm, [5, 8], 14), [95, 96, 3], [7, 96]]
    fed: list[int] = []
    embedding = draft_lm.hooked.get_input_embeddings()
    hook = embedding.register_forward_pre_hook(lambda module, inputs: fed.extend(inputs[0].flatten().tolist()))
    try:
        trace = assert_lossless(lm, prompts, config_of(method, 3, 14), DraftModelDrafter(draft_lm))
    finally:
        hook.remove()
    drafts = [token for row in trace.live_rows() for token in row.draft_token_ids]
    assert drafts
    assert max(drafts) < min(97, size)
    assert max(fed) < min(97, size)


@pytest.mark.parametrize("token", [97, 101, -1])
def test_an_id_that_the_target_cannot_embed_is_never_fed(token):
    lm = language_model("random-llama")
    run = generate_steps(lm, [[5, 6]], config_of("ems-sd", 2, 8), ScriptedDrafter(lambda row, ids, step: [token]))
    next(run)
    with pytest.raises(ConfigError, match=rf"proposed id {token} for row 0, outside the vocabulary 0..96") as caught:
        next(run)
    assert "\n" not in str(caught.value)


def test_another_tokenizer_is_refused_with_the_token_that_differs():
    """The same size of vocabulary does not make the same tokenizer: refused before any forward, naming the token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ours = random_tokenizer()
    words = dict(ours.get_vocab())
    words["q"], words["z"] = words["z"], words["q"]
    swapped = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    swapped.pre_tokenizer = pre_tokenizers.Whitespace()
    theirs = PreTrainedTokenizerFast(tokenizer_object=swapped, unk_token="<unk>", pad_token="<unk>")
    lm = load_model.from_pretrained_model(random_model("random-llama"), ours)
    twin = load_model.from_pretrained_model(random_model("random-llama", seed=2), random_tokenizer())
    other = load_model.from_pretrained_model(random_model("random-llama", seed=2), theirs)
    generate(lm, ["ab"], config_of("ems-sd", 2, 4), DraftModelDrafter(twin))
    with pytest.raises(ConfigError, match="another tokenizer") as caught:
        generate(lm, ["ab"], config_of("ems-sd", 2, 4), DraftModelDrafter(other))
    message = str(caught.value)
    assert repr("q") in message
    assert repr("z") in message
    assert str(ours.get_vocab()["q"]) in message
    assert "\n" not in message


# --- state on a shared model ---


def test_runs_leave_no_state_behind():
    """A, then B, then A again in one process: the two A are the same to the last field, and K is what was asked for."""
    lm, draft_lm = language_model("random-llama"), language_model("random-llama", seed=4)
    drafter, lookup = DraftModelDrafter(draft_lm), PromptLookupDrafter(1, "context")
    prompts, others = batch(lm, [5, 9, 2], 14), batch(lm, [8, 3], 14)

    def run_a():
        return generate(lm, prompts, config_of("ems-sd", 3, 14), drafter)

    first = run_a()
    generate(lm, others, config_of("vanilla", 6, 10), drafter)
    generate(lm, others, config_of("packed-input", 2, 10), lookup)
    generate(draft_lm, others, config_of("ems-sd", 2, 10), lookup)
    again = run_a()
    assert first == again
    assert first.config["num_draft_tokens"] == 3
    left = [14 - 1] * 3
    for step in first.decode_steps:
        for row in (row for row in step.rows if row.kind == "decode"):
            assert row.num_drafted == min(3, left[row.row] - 1)
            left[row.row] -= row.num_emitted


def test_two_runs_in_turns_share_nothing():
    """Two runs of one model and one drafter, step by step in turns, give what each gives alone."""
    lm = language_model("random-llama")
    drafter = same(lm)
    jobs = [
        (batch(lm, [5, 9], 12), config_of("ems-sd", 3, 12)),
        (batch(lm, [3, 4, 7], 12), config_of("vanilla", 2, 12)),
    ]
    alone = [generate(lm, prompts, config, drafter) for prompts, config in jobs]
    runs = [generate_steps(lm, prompts, config, drafter) for prompts, config in jobs]
    live = list(runs)
    while live:
        live = [run for run in live if next(run, None) is not None]
    assert [run.trace for run in runs] == alone


def test_two_runs_in_two_threads_share_nothing():
    """The plan is handed to attention by a context variable, which every thread has for itself."""
    lm = language_model("random-llama")
    jobs = [
        (batch(lm, [5, 9], 16), config_of("ems-sd", 3, 16)),
        (batch(lm, [3, 4, 7], 16), config_of("vanilla", 2, 16)),
    ]
    alone = [generate(lm, prompts, config, same(lm)) for prompts, config in jobs]
    found: list = [None, None]

    def work(place: int) -> None:
        found[place] = generate(lm, *jobs[place], same(lm))

    threads = [threading.Thread(target=work, args=(place,)) for place in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == alone


def test_the_users_model_is_left_as_it_was():
    """Decoding changes no weight, no configuration and no mode of the model that was given to us."""
    model = random_model("random-llama")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config = model.config.to_dict()
    attention = model.config._attn_implementation
    lm = load_model.from_pretrained_model(model)
    output = generate(lm, [safe_prompt(lm, 5, n=8)], config_of("ems-sd", 3, 8), same(lm)).rows[0]
    assert model.config.to_dict() == config
    assert model.config._attn_implementation == attention
    assert all((value == before[name]).all() for name, value in model.state_dict().items())
    assert output.output_token_ids == greedy(lm, output.prompt_token_ids, 8)
