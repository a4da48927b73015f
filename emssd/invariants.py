"""What must hold after every step, asserted when `check_invariants` is on. Slow: it recomputes everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from emssd.kv_cache import KVStore
from emssd.layouts import prefill_chunks, prefill_plan
from emssd.model_runner import PREFILL_CHUNK, ModelRunner, full_logits
from emssd.trace import RowTrace, StepTrace

if TYPE_CHECKING:
    from emssd.decoding import GenerationRun
    from emssd.request import Request

# |difference| allowed between cached and fresh keys and values, relative to the largest value
CACHE_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
# top-2 logit gap below which two choices count as tied
TIE_GAP = {torch.float64: 1e-9, torch.float32: 1e-3}
LOW_PRECISION_CACHE_TOLERANCE = 0.1
LOW_PRECISION_TIE_GAP = 0.25


class InvariantError(AssertionError):
    """An invariant of the decoder does not hold: the message names it, the row and the step."""


def tie_gap(dtype: torch.dtype) -> float:
    """Largest logit gap that is still rounding, not a choice."""
    return TIE_GAP.get(dtype, LOW_PRECISION_TIE_GAP)


class InvariantChecker:
    """Checks each step of a run, then poisons every dead slot, so that a later read of one cannot go unseen."""

    def __init__(self, run: GenerationRun) -> None:
        self.run = run
        self.dtype = run.lm.dtype

    def check(self, store: KVStore, step: StepTrace) -> None:
        """Assert I1-I5, I7 and I9 for a step that has just been committed.

        Raises:
            InvariantError: one does not hold.
        """
        self._check_fed_rows(step)
        for row in step.rows:
            request = self.run.requests[row.row]
            if row.kind != "finished":
                self._check_counts(step, row, request)
                self._check_positions(step, row)
                self._check_greedy(step, request)
                self._check_cache(step, request, store)
        self._check_padding(step)
        self._poison(store)

    def _fail(self, name: str, step: StepTrace, row: int | None, words: str) -> None:
        where = f"step {step.index}" + ("" if row is None else f", row {row}")
        raise InvariantError(f"{name} does not hold in {where}: {words}")

    def _check_fed_rows(self, step: StepTrace) -> None:
        """I4: fed rows are 1 + drafted of every live row, plus the layout's own pads."""
        decode = [row for row in step.rows if row.kind == "decode"]
        needed = sum(1 + row.num_drafted for row in decode)
        width = max((1 + row.num_drafted for row in decode), default=0)
        if step.kind == "prefill":
            return
        fed = sum(len(row.input_token_ids) for row in step.rows)
        expected = needed if self.run.config.input_layout == "packed" else width * len(step.rows)
        if fed != expected:
            self._fail("I4", step, None, f"{fed} rows were fed instead of {expected}.")
        if step.account.input_rows["useful"] != needed:
            self._fail("I4", step, None, f"{step.account.input_rows['useful']} useful rows instead of {needed}.")

    def _check_counts(self, step: StepTrace, row: RowTrace, request: Request) -> None:
        """I2: the logical cache length is committed - 1. I7: 1 <= emitted <= accepted + 1 <= drafted + 1."""
        committed = len(request.token_ids)
        if not row.cache_len == request.place.cache_len == committed - 1:
            self._fail("I2", step, row.row, f"{row.cache_len} cached cells for {committed} committed tokens.")
        if not 1 <= row.num_emitted <= row.num_accepted + 1 <= row.num_drafted + 1:
            words = f"emitted {row.num_emitted}, accepted {row.num_accepted}, drafted {row.num_drafted}."
            self._fail("I7", step, row.row, words)

    def _check_positions(self, step: StepTrace, row: RowTrace) -> None:
        """I5: real positions run on from the row's cache length; they are never a column."""
        real = len(row.input_token_ids) - row.input_kinds.count("pad")
        first = row.cache_len - row.num_emitted if row.kind == "decode" else 0
        if row.position_ids[:real] != list(range(first, first + real)):
            self._fail("I5", step, row.row, f"positions {row.position_ids[:real]} do not run from {first}.")

    def _check_greedy(self, step: StepTrace, request: Request) -> None:
        """I1: every output token is what the plain model chooses when it recomputes the whole text."""
        emitted = step.rows[request.place.index].num_emitted
        logits = full_logits(self.run.lm.oracle, request.token_ids[:-1], emitted).float()
        for place, token in enumerate(request.output_token_ids[-emitted:]):
            gap = float(logits[place].max() - logits[place, token])
            if gap > tie_gap(self.dtype):
                words = f"token {token} is {gap:.2e} below the plain model's {int(logits[place].argmax())}."
                self._fail("I1", step, request.place.index, words)

    def _check_cache(self, step: StepTrace, request: Request, store: KVStore) -> None:
        """I3: cached keys and values equal a fresh prefill of committed[:-1]."""
        tokens = request.token_ids[:-1]
        fresh = KVStore([len(tokens)])
        runner = ModelRunner(self.run.lm.hooked, self.run.config.attention)
        for pieces in prefill_chunks([tokens], PREFILL_CHUNK):
            runner.forward(prefill_plan(pieces), fresh, [0])
        for layer in fresh.layers:
            ours = store.read(layer, request.place.index, request.place.slots)
            theirs = fresh.read(layer, 0, range(len(tokens)))
            for name, mine, right in zip(("keys", "values"), ours, theirs, strict=True):
                error = float((mine - right).abs().max())
                allowed = CACHE_TOLERANCE.get(self.dtype, LOW_PRECISION_CACHE_TOLERANCE) * float(right.abs().max())
                if not error <= allowed:
                    words = f"{name} of layer {layer} differ from a fresh prefill by {error:.2e}."
                    self._fail("I3", step, request.place.index, words)

    def _check_padding(self, step: StepTrace) -> None:
        """I9: pads and holes equal what lengths say; EMS-SD has none; all emitted tokens are in the outputs."""
        config, requests = self.run.config, self.run.requests
        for request in requests:
            place = request.place
            dead = place.next_slot - place.cache_len - place.prompt_pads
            expected = 0 if config.cache_layout == "ragged" else dead
            if not place.finished and len(place.holes) != expected:
                self._fail("I9", step, place.index, f"{len(place.holes)} holes instead of {expected}.")
        if step.account.holes_total != sum(len(request.place.holes) for request in requests):
            self._fail("I9", step, None, f"the account shows {step.account.holes_total} holes.")
        if config.input_layout == "packed" and step.account.input_rows["pad"] + step.account.input_rows["finished"]:
            self._fail("I9", step, None, "packed inputs hold pads.")
        for row, request in enumerate(requests):
            emitted = sum(each.rows[row].num_emitted for each in self.run.trace.steps)
            if emitted != len(request.output_token_ids):
                self._fail("I9", step, row, f"{emitted} emitted tokens for {len(request.output_token_ids)} put out.")

    def _poison(self, store: KVStore) -> None:
        """Large values where a mask hides the slot, NaN where the slot is sliced away."""
        large = 100.0 if self.dtype == torch.float16 else 1e4
        for request in self.run.requests:
            place = request.place
            visible = set() if place.finished else set(place.slots)
            capacity = store.capacities[place.index]
            masked = [slot for slot in range(place.next_slot) if slot not in visible and not place.finished]
            gone = range(0 if place.finished else place.next_slot, capacity)
            store.poison(place.index, masked, large)
            store.poison(place.index, list(gone), float("nan"))
