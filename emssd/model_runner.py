"""The only file that calls a model: prefill and one forward over a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from emssd.attention import AttentionCall, StepAttention, running
from emssd.kv_cache import KVStore
from emssd.layouts import StepPlan, prefill_chunks, prefill_plan

PREFILL_CHUNK = 512
"""Tokens of one prefill forward: short enough to be stopped within a moment."""


class ModelRunner:
    """Runs a hooked model on packed batches.

    Args:
        hooked: what `attention.hook_model` returned.
        backend: "auto", "sdpa" or "reference".
    """

    def __init__(self, hooked: nn.Module, backend: str = "auto") -> None:
        self.hooked = hooked
        self.backend = "reference" if backend == "reference" else "sdpa"
        self.device = next(hooked.parameters()).device
        self.last_calls: list[AttentionCall] = []
        self.kernels: set[str] = set()
        self.watch: Callable[[StepAttention], AbstractContextManager[object]] = nullcontext
        """Stands around every forward; a `Recorder` puts itself here."""

    @torch.inference_mode()
    def forward(self, plan: StepPlan, store: KVStore, keep: Sequence[int] | None = None) -> Tensor:
        """One forward over a plan; keys and values go into the store.

        Args:
            plan: the rows' inputs, made one packed sequence of T tokens.
            store: has room for every planned slot.
            keep: packed indices whose logits are wanted; None keeps all.

        Returns:
            Logits [T or len(keep), vocabulary], in packed order.
        """
        token_ids = [token for row in plan.rows for token in row.input_token_ids]
        positions = [position for row in plan.rows for position in row.position_ids]
        inputs = torch.tensor([token_ids, positions], dtype=torch.long).to(self.device)  # (2, T)
        wanted = 0 if keep is None else torch.tensor(list(keep), dtype=torch.long).to(self.device)
        with running(StepAttention(plan, store, self.backend)) as step, self.watch(step):
            output = self.hooked(input_ids=inputs[:1], position_ids=inputs[1:], use_cache=False, logits_to_keep=wanted)
        self.last_calls = step.calls
        self.kernels |= step.kernels
        return output.logits[0]

    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        store: KVStore,
        should_stop: Callable[[], bool] = lambda: False,
        chunk_tokens: int = PREFILL_CHUNK,
    ) -> Tensor | None:
        """Feed every prompt, unpadded, to slots 0..P-1 of its row, in chunks that may hold several rows.

        Returns:
            Logits of each row's last prompt token, [rows, vocabulary]; None if `should_stop` said so between chunks.
        """
        last: list[Tensor] = []
        for pieces in prefill_chunks(prompts, chunk_tokens):
            if should_stop():
                return None
            keep, end = [], 0
            for row, start, token_ids in pieces:
                end += len(token_ids)
                if start + len(token_ids) == len(prompts[row]):
                    keep.append(end - 1)
            logits = self.forward(prefill_plan(pieces), store, keep or [end - 1])
            last.extend(logits[: len(keep)])
        return torch.stack(last)

    def synchronize(self) -> None:
        """Wait for the device, so that a clock read next means something."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()


@torch.inference_mode()
def full_logits(model: nn.Module, token_ids: Sequence[int], last: int = 0) -> Tensor:
    """Logits of one sequence by the model's own attention, without a cache: an independent oracle.

    Args:
        model: a plain transformers model, not a hooked one.
        token_ids: the sequence, from position 0.
        last: how many of the last positions to keep; 0 keeps all.

    Returns:
        Logits [last or len(token_ids), vocabulary].
    """
    inputs = torch.tensor([list(token_ids)], device=next(model.parameters()).device)
    return model(input_ids=inputs, use_cache=False, logits_to_keep=last).logits[0]
