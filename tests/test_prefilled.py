"""Runs that start from copied prompt keys and values are the same runs, token by token and field by field."""

from __future__ import annotations

import pytest
import torch

from emssd.config import METHODS, SpeculativeConfig
from emssd.decoding import GenerationRun
from emssd.drafting import Drafter, DraftModelDrafter, PromptLookupDrafter
from emssd.errors import ConfigError
from emssd.kv_cache import KVStore
from emssd.model_runner import ModelRunner
from emssd.prefilled import PrefilledRun, prefill_batch
from emssd.trace import GenerationTrace
from tests.helpers import assert_lossless, batch, language_model

NEW = 12


def finished(run: GenerationRun) -> GenerationTrace:
    for _ in run:
        pass
    return run.trace


MODELS = [
    *(("random-llama", method) for method in METHODS),
    *((name, method) for name in ("random-gpt2", "random-gemma2") for method in ("vanilla", "ems-sd")),
]


@pytest.mark.parametrize(("name", "method"), MODELS)
def test_a_restored_run_is_a_fresh_run(name: str, method: str) -> None:
    lm = language_model(name)
    prompts = batch(lm, [4, 11, 1, 7], NEW)
    config = SpeculativeConfig.for_method(
        method, num_draft_tokens=3, max_new_tokens=NEW, num_top_tokens=3, eos_token_ids=()
    )
    drafter = PromptLookupDrafter(1, "context")
    fresh = assert_lossless(lm, prompts, config, drafter)
    prefilled = prefill_batch(lm, prompts)
    before = {layer: (keys.clone(), values.clone()) for layer, (keys, values) in prefilled.layers.items()}
    for _ in range(2):  # nothing of the first run is left behind for the second
        assert finished(PrefilledRun(prefilled, config, drafter)) == fresh
    for layer, (keys, values) in before.items():
        assert torch.equal(keys, prefilled.layers[layer][0])
        assert torch.equal(values, prefilled.layers[layer][1])
    assert prefilled.seconds > 0


def test_one_prefill_serves_every_method_and_drafter() -> None:
    lm, draft = language_model("random-llama"), language_model("random-llama", noise=0.05)
    prompts = batch(lm, [9, 2, 5], NEW)
    prefilled = prefill_batch(lm, prompts)
    drafters: list[Drafter] = [PromptLookupDrafter(1, "context"), DraftModelDrafter(draft)]
    for drafter in drafters:
        for method in METHODS:
            config = SpeculativeConfig.for_method(method, num_draft_tokens=3, max_new_tokens=NEW)
            assert finished(PrefilledRun(prefilled, config, drafter)) == finished(
                GenerationRun(lm, prompts, config, drafter)
            )


def test_the_target_is_not_fed_its_prompts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = language_model("random-llama")
    prefilled = prefill_batch(lm, [[5, 6, 7], [8]])
    fed = []
    forward = ModelRunner.forward
    monkeypatch.setattr(
        ModelRunner, "forward", lambda self, plan, *rest: (fed.append(plan.num_fed), forward(self, plan, *rest))[1]
    )
    run = PrefilledRun(prefilled, SpeculativeConfig.greedy(max_new_tokens=4))
    assert next(run).kind == "prefill"
    assert fed == []
    assert next(run).kind == "decode"
    assert fed == [2]


def test_another_attention_is_refused() -> None:
    lm = language_model("random-llama")
    prefilled = prefill_batch(lm, [[5, 6]], "reference")
    with pytest.raises(ConfigError, match="prefilled with attention reference"):
        PrefilledRun(prefilled, SpeculativeConfig.greedy())
    config = SpeculativeConfig.greedy(attention="reference", max_new_tokens=4)
    assert finished(PrefilledRun(prefilled, config)) == finished(GenerationRun(lm, [[5, 6]], config))


def test_snapshots_are_copies_for_any_capacities() -> None:
    small, large = KVStore([2, 3]), KVStore([5, 4], fill=float("nan"))
    keys, values = torch.randn(5, 2, 4), torch.randn(5, 2, 3)
    small.write(7, torch.arange(5), keys, values)
    copies = small.snapshot([2, 1])
    small.poison(0, [0, 1], 9.0)
    large.restore([2, 1], copies)
    assert torch.equal(large.read(7, 0, [0, 1])[0], keys[:2])
    assert torch.equal(large.read(7, 1, [0])[1], values[2:3])
    assert torch.isnan(large.read(7, 1, [1])[0]).all()
    assert torch.isnan(large.read(7, 0, [2])[0]).all()
