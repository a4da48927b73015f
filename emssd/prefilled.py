"""A batch's prompts fed once, and runs that start from copies of what that gave: for measuring many runs on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from emssd.config import SpeculativeConfig
from emssd.decoding import GenerationRun
from emssd.drafting import Drafter
from emssd.errors import ConfigError
from emssd.kv_cache import KVStore
from emssd.loading import LanguageModel
from emssd.model_runner import PREFILL_CHUNK, ModelRunner


@dataclass(frozen=True)
class PrefilledBatch:
    """What prefill of a batch gives; nothing of it is ever written to.

    Args:
        lm: the model that was fed.
        prompts: [rows] token ids.
        logits: [rows, vocabulary] of each row's last prompt token.
        layers: layer -> keys and values of all prompts, one after another: [sum of lengths, kv_heads, head_dim] each.
        kernels: attention kernels that ran.
        backend: attention that was asked for.
        seconds: wall time of the prefill.
    """

    lm: LanguageModel
    prompts: list[list[int]]
    logits: Tensor
    layers: dict[int, tuple[Tensor, Tensor]]
    kernels: frozenset[str]
    backend: str
    seconds: float


def prefill_batch(lm: LanguageModel, prompts: Sequence[list[int]], attention: str = "auto") -> PrefilledBatch:
    """Feed checked prompts as every method does: unpadded, to slots 0..P-1 of each row."""
    runner, store = ModelRunner(lm.hooked, attention), KVStore([len(prompt) for prompt in prompts])
    runner.synchronize()
    began = time.perf_counter()
    logits = runner.prefill(prompts, store)
    runner.synchronize()
    seconds = time.perf_counter() - began
    assert logits is not None  # nobody could stop it
    copies = store.snapshot(store.capacities)
    return PrefilledBatch(lm, list(prompts), logits, copies, frozenset(runner.kernels), runner.backend, seconds)


class PrefilledRun(GenerationRun):
    """A run whose prefill copies keys and values instead of computing them; all else is `GenerationRun`.

    Args:
        batch: what `prefill_batch` returned.
        config: settings.
        drafter: as in `GenerationRun`; a draft model still prefills its own cache.

    Raises:
        ConfigError: the settings ask for another attention than the prefill, or do not fit.
    """

    def __init__(self, batch: PrefilledBatch, config: SpeculativeConfig, drafter: Drafter | None = None) -> None:
        super().__init__(batch.lm, batch.prompts, config, drafter)
        self.runner = self.builder.runner = _RestoringRunner(batch, config.attention)


class _RestoringRunner(ModelRunner):
    def __init__(self, batch: PrefilledBatch, attention: str) -> None:
        super().__init__(batch.lm.hooked, attention)
        if self.backend != batch.backend:
            raise ConfigError(f"The prompts were prefilled with attention {batch.backend}, not {self.backend}.")
        self.batch = batch

    @torch.inference_mode()
    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        store: KVStore,
        should_stop: Callable[[], bool] = lambda: False,
        chunk_tokens: int = PREFILL_CHUNK,
    ) -> Tensor | None:
        """The prefill that was made before, copied into this run's store."""
        store.restore([len(prompt) for prompt in prompts], self.batch.layers)
        self.kernels |= self.batch.kernels
        return self.batch.logits.clone()
