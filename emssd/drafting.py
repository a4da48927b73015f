"""Drafters: whatever proposes tokens for the target to verify.

A drafter is an immutable factory; the session it starts holds all state of one run, keyed by request index.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from emssd.config import SpeculativeConfig
from emssd.errors import ConfigError, shown
from emssd.kv_cache import KVStore
from emssd.layouts import Row, RowPlan, StepPlan, lagging_plan
from emssd.loading import LanguageModel
from emssd.model_runner import ModelRunner

Proposals = Sequence[Sequence[Sequence[int]]] | Callable[[int, list[int], int], Sequence[int]]


@dataclass
class DraftRow:
    """What a drafter sees of one live row."""

    place: Row
    token_ids: list[int]
    """Committed tokens, prompt + output so far; the last one is pending."""
    num_draft_tokens: int = 0
    """K wanted in this step, before caps."""

    @property
    def index(self) -> int:
        """Request index."""
        return self.place.index


@dataclass(frozen=True)
class Batch:
    """The run that a session drafts for."""

    config: SpeculativeConfig
    capacities: list[int]
    """[rows] slots of each row's cache."""
    should_stop: Callable[[], bool] = lambda: False


class DrafterSession(ABC):
    """State of a drafter in one run. Subclasses fill the two records of the latest `propose`."""

    draft_sources: dict[int, int]
    """Row -> index in its committed tokens where a copied draft begins."""
    draft_forwards: list[dict[str, list[int]]]
    """One entry per forward of a draft model: "tokens_per_row" and "pads_per_row", by request index."""

    def __init__(self) -> None:
        self.draft_sources = {}
        self.draft_forwards = []

    @abstractmethod
    def propose(self, rows: Sequence[DraftRow], limits: Sequence[int]) -> list[list[int]]:
        """Draft tokens for each of `rows`, at most `limits` of them; called once per decode step."""

    def observe(self, committed: dict[int, list[int]]) -> None:  # noqa: B027  a drafter without memory needs none
        """Take in what each live row emitted in this step, by request index."""


class Drafter(Protocol):
    """Makes sessions; may be used by many runs at once."""

    def start(self, lm: LanguageModel, rows: Sequence[DraftRow], batch: Batch) -> DrafterSession:
        """A session for a run on `lm` whose rows have just been prefilled."""
        ...

    def describe(self) -> dict[str, Any]:
        """Name and settings, as recorded in the trace."""
        ...


@dataclass(frozen=True)
class PromptLookupDrafter:
    """Copies what followed the last tokens where they occurred before; the defaults are the paper's LLMA drafter.

    With `ngram_size` 2, prompt `[7, 8, 9, 4, 5, 7, 8]` and K = 3 the key is `[7, 8]`; it occurs at 0, three tokens
    follow it, so the draft is `[9, 4, 5]`. A key must leave room for all K tokens: it starts at 0..P-K-2.

    Args:
        ngram_size: tokens of the key.
        source: "prompt" looks in the row's own prompt only, "context" also in what it has generated.
        match: which occurrence wins, "last" or "first".
    """

    ngram_size: int = 2
    source: Literal["prompt", "context"] = "prompt"
    match: Literal["last", "first"] = "last"

    def __post_init__(self) -> None:
        size = self.ngram_size
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 64:
            raise ConfigError(f"ngram_size must be a whole number from 1 to 64, not {size!r}.")
        if self.source not in ("prompt", "context"):
            raise ConfigError(f"source must be prompt or context, not {self.source!r}.")
        if self.match not in ("last", "first"):
            raise ConfigError(f"match must be last or first, not {self.match!r}.")

    def start(self, lm: LanguageModel, rows: Sequence[DraftRow], batch: Batch) -> DrafterSession:
        """Index every prompt."""
        return _PromptLookupSession(self, rows)

    def describe(self) -> dict[str, Any]:
        """Name and settings."""
        return {
            "name": "prompt-lookup",
            "ngram_size": self.ngram_size,
            "source": self.source,
            "match": self.match,
        }


class _PromptLookupSession(DrafterSession):
    def __init__(self, drafter: PromptLookupDrafter, rows: Sequence[DraftRow]) -> None:
        super().__init__()
        self.drafter = drafter
        self.texts = {row.index: row.token_ids[: row.place.prompt_length] for row in rows}
        # key -> starts in rising order
        self.tables: dict[int, dict[tuple[int, ...], list[int]]] = {row.index: {} for row in rows}
        for row in rows:
            self._index(row.index, 0)
            if drafter.source == "context":
                self.observe({row.index: row.token_ids[row.place.prompt_length :]})

    def _index(self, row: int, first_start: int) -> None:
        size, text, table = self.drafter.ngram_size, self.texts[row], self.tables[row]
        for start in range(max(first_start, 0), len(text) - size + 1):
            table.setdefault(tuple(text[start : start + size]), []).append(start)

    def propose(self, rows: Sequence[DraftRow], limits: Sequence[int]) -> list[list[int]]:
        self.draft_sources = {}
        drafts: list[list[int]] = []
        for row, limit in zip(rows, limits, strict=True):
            begin = self._find(row) if limit > 0 else None
            if begin is None:
                drafts.append([])
                continue
            self.draft_sources[row.index] = begin
            drafts.append(self.texts[row.index][begin : begin + min(row.num_draft_tokens, limit)])
        return drafts

    def _find(self, row: DraftRow) -> int | None:
        size, text = self.drafter.ngram_size, self.texts[row.index]
        if len(row.token_ids) < size:
            return None
        starts = self.tables[row.index].get(tuple(row.token_ids[-size:]), [])
        usable = bisect_right(starts, len(text) - row.num_draft_tokens - size)
        if not usable:
            return None
        return (starts[usable - 1] if self.drafter.match == "last" else starts[0]) + size

    def observe(self, committed: dict[int, list[int]]) -> None:
        if self.drafter.source == "prompt":
            return
        for row, token_ids in committed.items():
            known = len(self.texts[row])
            self.texts[row] = self.texts[row] + token_ids
            self._index(row, known - self.drafter.ngram_size + 1)


@dataclass(frozen=True)
class ScriptedDrafter:
    """Proposes what it is told: for golden examples, lessons and tests.

    Args:
        proposals: `proposals[row][n]` are the ids for decode step n + 1 (exhausted: no draft), or a callable
            `(row, committed_ids, step) -> ids`, where committed_ids is prompt + output so far and step counts from 1.
    """

    proposals: Proposals

    def __post_init__(self) -> None:
        if not callable(self.proposals) and not isinstance(self.proposals, (list, tuple)):
            raise ConfigError(f"proposals must be a list per row or a function, not {shown(self.proposals)}.")

    def start(self, lm: LanguageModel, rows: Sequence[DraftRow], batch: Batch) -> DrafterSession:
        """A session at step 1."""
        return _ScriptedSession(self.proposals)

    def describe(self) -> dict[str, Any]:
        """Name, and whether a function decides."""
        return {"name": "scripted", "proposals": "callable" if callable(self.proposals) else "list"}


class _ScriptedSession(DrafterSession):
    def __init__(self, proposals: Proposals) -> None:
        super().__init__()
        self.proposals = proposals
        self.step = 0

    def propose(self, rows: Sequence[DraftRow], limits: Sequence[int]) -> list[list[int]]:
        self.step += 1
        proposals = [check_ids(self._proposal(row), row.index) for row in rows]
        return [proposal[:limit] for proposal, limit in zip(proposals, limits, strict=True)]

    def _proposal(self, row: DraftRow) -> Sequence[int]:
        if callable(self.proposals):
            return self.proposals(row.index, list(row.token_ids), self.step)
        mine = self.proposals[row.index] if row.index < len(self.proposals) else []
        return mine[self.step - 1] if self.step <= len(mine) else []


@dataclass(frozen=True)
class DraftModelDrafter:
    """A small model drafts greedily, with its own KV cache in the target's layout.

    After full acceptance its cache lacks the last draft; then the first draft forward feeds two tokens for that row
    (paper code: the all-accepted case). It may lag any number of tokens behind and catches up first. A row whose text
    is longer than the draft model's context, or holds an id it has no embedding for, gets no drafts.

    Args:
        draft_lm: the draft model; its tokenizer must be the target's.
    """

    draft_lm: LanguageModel

    def __post_init__(self) -> None:
        given: object = self.draft_lm
        if not isinstance(given, LanguageModel):
            raise ConfigError(f"The draft model must come from load_model, not {shown(given)}.")

    def start(self, lm: LanguageModel, rows: Sequence[DraftRow], batch: Batch) -> DrafterSession:
        """Check the tokenizers and prefill the draft's cache.

        Raises:
            ConfigError: the two tokenizers differ.
        """
        check_same_tokenizer(lm, self.draft_lm)
        return _DraftModelSession(self.draft_lm, lm.vocab_size, rows, batch)

    def describe(self) -> dict[str, Any]:
        """Name and draft model."""
        return {"name": "draft-model", "model": self.draft_lm.description()}


class _DraftModelSession(DrafterSession):
    def __init__(self, draft_lm: LanguageModel, target_vocabulary: int, rows: Sequence[DraftRow], batch: Batch) -> None:
        super().__init__()
        self.config = batch.config
        self.num_rows = len(batch.capacities)
        self.runner = ModelRunner(draft_lm.hooked, batch.config.attention)
        self.store = KVStore(batch.capacities)
        self.vocabulary = min(draft_lm.vocab_size, target_vocabulary)
        self.known_ids = draft_lm.vocab_size
        self.context = draft_lm.context_length
        self.pad_token_id = draft_lm.pad_token_id
        self.cache_lens = [0] * self.num_rows
        """[rows] leading committed tokens whose keys and values the draft's cache holds."""
        self.drafted: dict[int, tuple[int, list[int]]] = {}
        """Row -> (committed tokens when drafting, the drafts)."""
        prompts: list[list[int]] = [[] for _ in range(self.num_rows)]
        for row in rows:
            if self._limit(row, 1) > 0:
                prompts[row.index] = row.token_ids[: row.place.prompt_length]
        if any(prompts) and self.runner.prefill(prompts, self.store, batch.should_stop) is not None:
            self.cache_lens = [len(prompt) for prompt in prompts]

    def _limit(self, row: DraftRow, limit: int) -> int:
        """Drafts that the draft model can make for this row: to draft k tokens it is fed k - 1 of them."""
        if any(token >= self.known_ids for token in row.token_ids[self.cache_lens[row.index] :]):
            return 0
        if self.context is None:
            return limit
        return max(min(limit, self.context - len(row.token_ids) + 1), 0)

    def propose(self, rows: Sequence[DraftRow], limits: Sequence[int]) -> list[list[int]]:
        self.draft_forwards = []
        self.drafted = {}
        wanted = [self._limit(row, limit) for row, limit in zip(rows, limits, strict=True)]
        drafts: dict[int, list[int]] = {row.index: [] for row in rows}
        for number in range(max(wanted, default=0)):
            active = [row for row, count in zip(rows, wanted, strict=True) if count > number]
            for row, token in zip(active, self._forward(active, drafts), strict=True):
                drafts[row.index].append(token)
        for row in rows:
            if drafts[row.index]:
                self.drafted[row.index] = (len(row.token_ids), drafts[row.index])
        return [drafts[row.index] for row in rows]

    def _forward(self, rows: Sequence[DraftRow], drafts: dict[int, list[int]]) -> list[int]:
        """One draft token for each row. The first forward of a step feeds all that the draft's cache lacks."""
        feeds = []
        for row in rows:
            done = drafts[row.index]
            first = len(row.token_ids) + len(done) - 1 if done else self.cache_lens[row.index]
            feeds.append((row, first, [*row.token_ids, *done][first:]))
        width = max(len(token_ids) for _, _, token_ids in feeds) if self.config.input_layout == "padded" else 0
        plans: list[RowPlan] = []
        keep: list[int] = []
        end = 0
        for row, first, token_ids in feeds:
            plan = lagging_plan(row.place, self.config.cache_layout, token_ids, first, width, self.pad_token_id)
            plans.append(plan)
            keep.append(end + len(token_ids) - 1)
            end += plan.num_fed
        self._record(plans)
        logits = self.runner.forward(StepPlan(tuple(plans)), self.store, keep)
        return logits[:, : self.vocabulary].argmax(dim=-1).tolist()

    def _record(self, plans: Sequence[RowPlan]) -> None:
        tokens, pads = [0] * self.num_rows, [0] * self.num_rows
        for plan in plans:
            tokens[plan.row] = plan.num_real
            pads[plan.row] = plan.num_fed - plan.num_real
        self.draft_forwards.append({"tokens_per_row": tokens, "pads_per_row": pads})

    def observe(self, committed: dict[int, list[int]]) -> None:
        """Lower each row's length to what was kept; the last draft was never fed, so it is missing in any case."""
        for row, (length, drafts) in self.drafted.items():
            kept = 0
            for draft, token in zip(drafts[:-1], committed.get(row, []), strict=False):
                if draft != token:
                    break
                kept += 1
            self.cache_lens[row] = min(length + kept, length + len(committed.get(row, [])) - 1)


def check_ids(proposal: Sequence[int], row: int, vocab_size: int | None = None) -> list[int]:
    """The proposed ids as plain numbers.

    Raises:
        ConfigError: it is not a list of ids, or one of them is outside the vocabulary.
    """
    try:
        ids = [operator.index(token) for token in proposal]
    except TypeError:
        raise ConfigError(
            f"The drafter must propose a list of token ids for row {row}, not {shown(proposal)}."
        ) from None
    for token in ids:
        if vocab_size is not None and not 0 <= token < vocab_size:
            raise ConfigError(
                f"The drafter proposed id {shown(token)} for row {row}, outside the vocabulary 0..{vocab_size - 1}."
            )
    return ids


def check_same_tokenizer(lm: LanguageModel, draft_lm: LanguageModel) -> None:
    """Raise ConfigError unless both models mean the same text by every id that both can use.

    Vocabulary sizes may differ by padding; a token that has another id, or none, may not.
    """
    if lm.tokenizer is None or draft_lm.tokenizer is None:
        return
    ours, theirs = ({index: token for token, index in model.tokenizer.get_vocab().items()} for model in (lm, draft_lm))
    for index in sorted(ours.keys() | theirs.keys()):
        if index < min(lm.vocab_size, draft_lm.vocab_size) and ours.get(index) != theirs.get(index):
            raise ConfigError(
                f"The draft model {draft_lm.name} has another tokenizer than {lm.name}: id {index} is "
                f"{theirs.get(index)!r} there and {ours.get(index)!r} here. Choose a draft model of the same family."
            )
