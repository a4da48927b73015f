"""Looking inside a run: its KV stores, its draft session, and what each step says about a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from torch import Tensor

from emssd import decoding
from emssd.drafting import Drafter
from emssd.kv_cache import KVStore
from emssd.language_model import LanguageModel
from emssd.layouts import prefill_plan
from emssd.model_runner import ModelRunner
from emssd.trace import GenerationTrace, RowTrace


class Spy:
    """A drafter that hands on another one's session, keeps it for inspection, and may change its proposals.

    change: `(row, committed_ids, step, drafts) -> drafts`.
    """

    def __init__(self, drafter: Drafter, change: Callable[[int, list[int], int, list[int]], list[int]] | None = None):
        self.drafter = drafter
        self.change = change
        self.session: Any = None
        self.rows: dict[int, Any] = {}
        """Row -> the latest `DraftRow`."""

    def describe(self) -> dict[str, Any]:
        return self.drafter.describe()

    def start(self, lm: LanguageModel, rows: Sequence[Any], batch: Any) -> Any:
        self.session = session = self.drafter.start(lm, rows, batch)
        propose, steps = session.propose, [0]

        def watched(rows: Sequence[Any], limits: Sequence[int]) -> list[list[int]]:
            steps[0] += 1
            self.rows.update({row.index: row for row in rows})
            drafts = propose(rows, limits)
            if self.change is None:
                return drafts
            return [self.change(r.index, list(r.token_ids), steps[0], d) for r, d in zip(rows, drafts, strict=True)]

        session.propose = watched
        return session


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> list[KVStore]:
    """Every target store that a run makes from now on, the latest last."""
    made: list[KVStore] = []

    def make(*arguments: Any, **named: Any) -> KVStore:
        made.append(KVStore(*arguments, **named))
        return made[-1]

    monkeypatch.setattr(decoding, "KVStore", make)
    return made


def fresh_cache(lm: LanguageModel, token_ids: Sequence[int]) -> KVStore:
    """A store that holds one fresh prefill of these tokens."""
    store = KVStore([len(token_ids)])
    ModelRunner(lm.hooked).forward(prefill_plan([(0, 0, list(token_ids))]), store, [0])
    return store


def assert_cache_equals_prefill(
    lm: LanguageModel, store: KVStore, row: int, slots: Sequence[int], token_ids: Sequence[int], tolerance: float = 1e-5
) -> None:
    """The row's keys and values at `slots` are those of a fresh prefill of `token_ids`, relative to the largest."""
    assert len(slots) == len(token_ids)
    fresh = fresh_cache(lm, token_ids)
    for layer in fresh.layers:
        for ours, right in zip(store.read(layer, row, slots), fresh.read(layer, 0, range(len(token_ids))), strict=True):
            error = float((ours - right).abs().max())
            assert error <= tolerance * float(right.abs().max()), f"row {row}, layer {layer}: {error:.1e}"


def snapshot(store: KVStore, row: int) -> list[Tensor]:
    """Copies of everything in the row's part of the cache."""
    slots = range(store.capacities[row])
    return [pool for layer in store.layers for pool in store.read(layer, row, slots)]


def row_history(trace: GenerationTrace, row: int) -> list[RowTrace]:
    """The row's decode steps."""
    return [step.rows[row] for step in trace.decode_steps if step.rows[row].kind == "decode"]


def assert_cursors(trace: GenerationTrace) -> None:
    """After every round each row's cache length is committed - 1, and the next position fed is that length.

    The cursor of a ragged cache is the same number; it takes back exactly what was rejected.
    """
    ragged = trace.config["cache_layout"] == "ragged"
    for row, request in enumerate(trace.rows):
        committed = len(request.prompt_token_ids)
        before = None
        for step in trace.steps:
            now = step.rows[row]
            if now.kind == "finished":
                continue
            if now.kind == "decode":
                assert now.position_ids[0] == before.cache_len == committed - 1
                assert now.cache_start == before.next_slot
                if ragged:
                    assert now.next_slot - now.cache_start == now.num_emitted
            committed += now.num_emitted
            assert now.cache_len == committed - 1
            before = now
