"""Known faults of numbers: rounding that looks like a bug, bugs that look like rounding, and oracles that flip."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from emssd import SpeculativeConfig, generate
from emssd.drafting import DraftModelDrafter
from emssd.kv_cache import KVStore
from emssd.model_runner import ModelRunner
from tests.helpers import (
    PROMPT_LENGTHS,
    SAFE_GAP,
    SPECULATIVE,
    assert_lossless,
    batch,
    gaps,
    greedy,
    language_model,
    plain_logits,
    prompt_ids,
    recompute,
    safe_prompt,
    same,
    top2_gaps,
)

MODELS = ["opt", "gpt2", "llama", "qwen3", "glm4", "gemma3"]
# logit distance that half precision may flip, at the logit sizes of the tiny models
TIE = {torch.bfloat16: 0.25, torch.float16: 0.05}


def config_of(method: str, k, n: int, **settings) -> SpeculativeConfig:
    return SpeculativeConfig.for_method(method, num_draft_tokens=k, max_new_tokens=n, **settings)


@pytest.mark.parametrize(("name", "size"), list(product(MODELS, [1, 2, 5, 8])))
def test_float32_agrees_at_every_batch_size(name, size):
    """In float32 the batch size changes no token: a difference is a bug, not rounding."""
    lm = language_model(f"random-{name}")
    prompts = batch(lm, PROMPT_LENGTHS["mixed-8"], 10)[:size]
    assert_lossless(lm, prompts, config_of("ems-sd", 3, 10), same(lm))


@pytest.mark.parametrize(("method", "attention"), list(product(SPECULATIVE, ["sdpa", "reference"])))
def test_float64_is_a_second_oracle(method, attention):
    """In float64 our output also equals a full recomputation without a cache, token by token."""
    lm = language_model("random-llama", torch.float64)
    prompts = batch(lm, [3, 8], 12)
    outputs = [recompute(lm, prompt, 12) for prompt in prompts]
    assert_lossless(lm, prompts, config_of(method, 3, 12, attention=attention), same(lm), outputs=outputs)


@pytest.mark.parametrize(
    ("name", "dtype", "method"),
    list(product(["llama", "opt", "gemma3"], [torch.bfloat16, torch.float16], ["vanilla", "ems-sd"])),
)
def test_half_precision_emits_only_best_tokens_or_near_ties(name, dtype, method):
    """The rule that separates rounding from bugs: feed the output back, every emitted token must be the plain model's
    best or within a small logit gap of it. It checks every position, not only up to the first flip."""
    lm = language_model(f"random-{name}", dtype)
    draft_lm = language_model(f"random-{name}", dtype, noise=0.1)
    trace = generate(lm, [prompt_ids(3), prompt_ids(12)], config_of(method, 3, 20), DraftModelDrafter(draft_lm))
    for row in trace.rows:
        assert len(row.output_token_ids) == 20
        assert max(gaps(lm, row.prompt_token_ids, row.output_token_ids)) <= TIE[dtype]
    assert trace.summary()["accepted"] > 0


def test_the_near_tie_rule_finds_a_real_bug():
    """A wrong token is far below the best one on these models, so the rule of the test above is not empty."""
    lm = language_model("random-llama", torch.bfloat16)
    prompt = prompt_ids(12)
    output = greedy(lm, prompt, 10)
    wrong = [*output[:5], (output[5] + 1) % 97, *output[6:]]
    assert max(gaps(lm, prompt, wrong)) > 4 * TIE[torch.bfloat16]


@pytest.mark.parametrize(("name", "chunk"), list(product(MODELS, [1, 2, 3, 7])))
def test_the_split_of_the_prefill_changes_nothing(name, chunk):
    """Prompts fed in pieces of any size, rows mixed in one forward, give the logits of the plain model."""
    lm = language_model(f"random-{name}")
    prompts = [prompt_ids(5), prompt_ids(1), prompt_ids(17)]
    store = KVStore([len(prompt) for prompt in prompts], fill=float("nan"))
    logits = ModelRunner(lm.hooked).prefill(prompts, store, chunk_tokens=chunk)
    for row, prompt in enumerate(prompts):
        right = plain_logits(lm, prompt)[-1]
        assert float((logits[row] - right).abs().max()) <= 1e-5 * max(1.0, float(right.abs().max()))


@pytest.mark.parametrize("name", MODELS)
def test_the_oracle_has_no_near_ties(name):
    """Flaky oracle: two logits almost equal. Prompts whose greedy path comes within 1e-3 of a tie are not used."""
    lm = language_model(f"random-{name}")
    for salt, length in enumerate([1, 2, 5, 9, 14]):
        prompt = safe_prompt(lm, length, salt)
        assert min(top2_gaps(lm, prompt, greedy(lm, prompt, 24))) >= SAFE_GAP >= 1e-3
        assert greedy(lm, prompt, 24) == recompute(lm, prompt, 24)
