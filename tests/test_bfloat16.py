"""Half precision by the near-tie rule: every token, fed back through the plain model, is its best up to rounding.

Other shapes round in other orders, so equal text is not required. What rounding can do is measured on the plain model
alone: its logits against those of the same weights in float32, for the very text in question.
"""

from __future__ import annotations

import math
from functools import cache, partial

import pytest
import torch
from torch import Tensor

from emssd.config import SpeculativeConfig
from emssd.decoding import generate
from emssd.drafting import Drafter, DraftModelDrafter, PromptLookupDrafter
from emssd.kv_cache import KVStore
from emssd.loading import LanguageModel
from emssd.model_runner import ModelRunner
from emssd.random_models import random_model
from emssd.trace import GenerationTrace
from tests.helpers import (
    ALL_METHODS,
    PROMPTS,
    device_of,
    gaps,
    greedy,
    language_model,
    plain_logits,
    prompt_ids,
    same,
    script,
)

HALF = (torch.bfloat16, torch.float16)
ARCHITECTURES = ("random-llama", "random-gemma2", "random-opt")
NEW_TOKENS = 20
K = 4
LARGEST_ALLOWED = 1.5
"""A rule more generous than this would be none: these models' logits spread by 4, the best is near 10."""
SMALLEST_SHARE = 0.9
"""Tokens that must be the very best; a fault that moves logits a little everywhere would show here."""


@cache
def _upcast(name: str, dtype: torch.dtype) -> LanguageModel:
    """The same rounded weights, computed in float32."""
    rounded = language_model(name, dtype)
    twin = random_model(name)
    twin.load_state_dict({key: value.float() for key, value in rounded.model.state_dict().items()})
    return LanguageModel(twin, twin, name=name)


def rounding(lm: LanguageModel, text: list[int], first: int) -> float:
    """The logit gap that rounding explains, from position `first` of the text on.

    Two tokens' logits computed twice hold four errors, so their difference deviates by 2 errors (root mean square);
    three deviations are 6. Two logits that share a value after rounding can also swap by one place each.
    """
    ours, exact = plain_logits(lm, text)[first:], plain_logits(_upcast(lm.name, lm.dtype), text)[first:]
    error = float((ours.float().cpu() - exact.float().cpu()).pow(2).mean().sqrt())
    place = torch.finfo(lm.dtype).eps * 2.0 ** math.floor(math.log2(float(exact.abs().max())))
    return max(6 * error, 2 * place)


def assert_best_up_to_rounding(lm: LanguageModel, trace: GenerationTrace) -> float:
    """The near-tie rule for every row and position; returns the share of tokens that are the very best."""
    exact = total = 0
    for number, row in enumerate(trace.rows):
        prompt, output = row.prompt_token_ids, row.output_token_ids
        allowed = rounding(lm, [*prompt, *output[:-1]], len(prompt) - 1)
        assert allowed < LARGEST_ALLOWED, f"{lm.name} in {lm.dtype}: rounding would excuse a gap of {allowed}"
        for place, gap in enumerate(gaps(lm, prompt, output)):
            assert gap <= allowed, (
                f"{lm.name} ({lm.dtype}), method {trace.method}, drafter {trace.drafter['name']}: row {number}, "
                f"position {place}: token {output[place]} is {gap:.3f} below the plain model's best, "
                f"where rounding allows {allowed:.3f}"
            )
            exact += gap == 0
            total += 1
    return exact / total


def _drafters(lm: LanguageModel, prompts: list[list[int]]) -> dict[str, Drafter]:
    outputs = [greedy(lm, prompt, NEW_TOKENS + K) for prompt in prompts]
    pattern = [[(row + turn) % (K + 1) for turn in range(K + 1)] for row in range(len(prompts))]
    return {
        "scripted": script(outputs, pattern, lm.vocab_size, K),
        "same": same(lm),
        "near": DraftModelDrafter(language_model(lm.name, lm.dtype, noise=0.05, device=device_of(lm).type)),
        "prompt lookup": PromptLookupDrafter(ngram_size=1, source="context"),
    }


def half_precision_run(lm: LanguageModel, method: str, drafter: str, attention: str = "auto") -> float:
    """One batch of eight ragged rows; returns the share of tokens that are the plain model's very best."""
    prompts = PROMPTS["mixed-8"]
    config = SpeculativeConfig.for_method(method, num_draft_tokens=K, max_new_tokens=NEW_TOKENS, attention=attention)
    trace = generate(lm, prompts, config, _drafters(lm, prompts)[drafter])
    assert [len(row.output_token_ids) for row in trace.rows] == [NEW_TOKENS] * len(prompts)
    return assert_best_up_to_rounding(lm, trace)


@pytest.mark.parametrize("method", ALL_METHODS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_every_token_is_the_best_up_to_rounding(architecture: str, dtype: torch.dtype, method: str) -> None:
    lm = language_model(architecture, dtype)
    for drafter in ("scripted",) if method.startswith("greedy") else ("scripted", "same", "near", "prompt lookup"):
        assert half_precision_run(lm, method, drafter) > SMALLEST_SHARE


def test_the_rule_notices_a_wrong_token() -> None:
    lm = language_model("random-llama", torch.bfloat16)
    trace = generate(lm, PROMPTS["1-2-9"], SpeculativeConfig.greedy(max_new_tokens=6))
    assert_best_up_to_rounding(lm, trace)
    output = trace.rows[1].output_token_ids
    output[3] = int(plain_logits(lm, [*trace.rows[1].prompt_token_ids, *output[:3]])[-1].float().topk(5).indices[4])
    with pytest.raises(AssertionError, match="row 1, position 3"):
        assert_best_up_to_rounding(lm, trace)


@pytest.mark.parametrize("attention", ["auto", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_nan_is_ever_computed_or_cached(
    architecture: str, dtype: torch.dtype, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt of 1 beside one of 30: 29 dead slots, and pads as queries. No key, value or logit may be NaN."""
    write, forward = KVStore.write, ModelRunner.forward
    checked = {"written": 0, "logits": 0}

    def careful_write(store: KVStore, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        assert torch.isfinite(key).all()
        assert torch.isfinite(value).all()
        checked["written"] += len(slots)
        return write(store, layer, slots, key, value)

    def careful_forward(runner: ModelRunner, *arguments: object) -> Tensor:
        logits = forward(runner, *arguments)  # type: ignore[arg-type]
        assert torch.isfinite(logits).all()
        checked["logits"] += len(logits)
        return logits

    lm = language_model(architecture, dtype)
    prompts = [prompt_ids(1), prompt_ids(30)]
    outputs = [greedy(lm, prompt, 16) for prompt in prompts]
    monkeypatch.setattr(KVStore, "write", careful_write)
    monkeypatch.setattr(ModelRunner, "forward", careful_forward)
    for method in ALL_METHODS:
        drafter = script(outputs, [[0, 3, 1], [2, 0, 3]], lm.vocab_size, 3)
        config = SpeculativeConfig.for_method(method, num_draft_tokens=3, max_new_tokens=12, attention=attention)
        assert_best_up_to_rounding(lm, generate(lm, prompts, config, drafter))
    assert checked["written"] > 0
    assert checked["logits"] > 0


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_invariants_hold_in_half_precision(dtype: torch.dtype) -> None:
    lm = language_model("random-llama", dtype)
    config = partial(SpeculativeConfig.for_method, num_draft_tokens=K, max_new_tokens=10, check_invariants=True)
    for method in ALL_METHODS:
        assert generate(lm, PROMPTS["1-2-9"], config(method), _drafters(lm, PROMPTS["1-2-9"])["scripted"]).finished
