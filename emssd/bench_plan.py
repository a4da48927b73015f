"""What `bench` measures: settings, the prompts of every batch, and which runs are held against each other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from emssd.config import BASELINE, METHODS, SPECULATIVE_METHODS, SpeculativeConfig
from emssd.errors import ConfigError, shown

DRAFTERS = ("prompt-lookup", "draft-model", "replay")
NO_DRAFTER = "none"
TRANSFORMERS, TRANSFORMERS_LOOKUP = "transformers", "transformers-lookup"
"""`generate` of that package, and the same with its own prompt lookup: one row at a time, so at batch size 1 only."""
MAX_BATCH = 1024
MAX_REPEATS = 1000
MOST_MORE = 3
"""How many times as often the shortest runs are timed."""


@dataclass(frozen=True)
class Entry:
    """One of the things that are measured in turn: a method, or a name above, and the drafter that it ran with."""

    method: str
    drafter: str = NO_DRAFTER

    @property
    def is_ours(self) -> bool:
        """Whether this package decodes."""
        return self.method in METHODS


GREEDY = Entry(BASELINE)


@dataclass(frozen=True)
class PromptSet:
    """Prompts that every batch size decodes.

    Args:
        name: shown in tables and figures.
        prompts: token ids, checked; as many as are used.
    """

    name: str
    prompts: list[list[int]]

    def batches(self, batch_size: int) -> list[list[int]]:
        """Numbers of the prompts of each batch. The last batch is filled up with the first prompts again."""
        count = -(-len(self.prompts) // batch_size)
        rows = [row % len(self.prompts) for row in range(count * batch_size)]
        return [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]

    def repeated(self, batch_size: int) -> int:
        """Rows that decode a prompt which another row has decoded already."""
        return sum(map(len, self.batches(batch_size))) - len(self.prompts)

    def copied(self, batch_size: int) -> int:
        """Rows, over all batches, whose prompt is also that of an earlier row of their batch."""
        return sum(len(rows) - len({tuple(self.prompts[row]) for row in rows}) for rows in self.batches(batch_size))

    @property
    def digest(self) -> str:
        """The same for the same prompts."""
        return hashlib.sha256(json.dumps(self.prompts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class BenchPlan:
    """Settings of a benchmark.

    Args:
        batch_sizes: rows decoded together, rising.
        methods: names of `METHODS`; greedy, which speed-ups are against, is always measured.
        drafters: names of `DRAFTERS` for the speculative methods.
        repeats: timed runs of everything, more at large batch sizes: see `repeats_at`.
        max_new_tokens: tokens per row, at least 2: the first comes from prefill.
        num_draft_tokens: K.
        ngram_size, lookup: of prompt lookup.
        draft_model: name, for the drafter "draft-model".
        replay: where the drafter "replay" has its lengths from.
        ignore_eos: decode on where the model would end.
        transformers: measure that package beside batch size 1.
        seed: of invented lengths.

    Raises:
        ConfigError: a value is out of range, a name is unknown, or two settings do not go together.
    """

    batch_sizes: tuple[int, ...]
    methods: tuple[str, ...] = tuple(METHODS)
    drafters: tuple[str, ...] = ("prompt-lookup",)
    repeats: int = 5
    max_new_tokens: int = 64
    num_draft_tokens: int = 7
    ngram_size: int = 2
    lookup: str = "prompt"
    draft_model: str | None = None
    replay: str | None = None
    ignore_eos: bool = False
    transformers: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for size in self.batch_sizes:
            _check_whole("A batch size", size, MAX_BATCH)
        _check_whole("The number of repeats", self.repeats, MAX_REPEATS)
        if not self.batch_sizes:
            raise ConfigError("There are no batch sizes: give some, as in --batch-sizes 1,2,4.")
        object.__setattr__(self, "batch_sizes", tuple(sorted(set(self.batch_sizes))))
        _check_names("method", self.methods, tuple(METHODS))
        _check_names("drafter", self.drafters, DRAFTERS)
        object.__setattr__(self, "methods", tuple(name for name in METHODS if name in {BASELINE, *self.methods}))
        object.__setattr__(self, "drafters", tuple(name for name in DRAFTERS if name in self.drafters))
        self._check_together()

    def _check_together(self) -> None:
        self.config(GREEDY)
        if self.max_new_tokens < 2:
            raise ConfigError("bench needs --max-new-tokens of at least 2: the first token comes from prefill.")
        speculative = [name for name in self.methods if name in SPECULATIVE_METHODS]
        if speculative and not self.drafters:
            raise ConfigError(f"{speculative[0]} needs a drafter: give one of {', '.join(DRAFTERS)} with --drafters.")
        if speculative and self.num_draft_tokens < 1:
            raise ConfigError("bench needs --num-draft-tokens of at least 1; for plain decoding give --methods greedy.")
        for name, value, option in (
            ("draft-model", self.draft_model, "--draft-model NAME"),
            ("replay", self.replay, "--replay SOURCE"),
        ):
            if name in self.drafters and not value:
                raise ConfigError(f"The drafter {name} needs {option}.")
            if value and name not in self.drafters:
                raise ConfigError(f"{option.split()[0]} goes with the drafter {name}: add it to --drafters.")

    def config(self, entry: Entry) -> SpeculativeConfig:
        """Settings of one of our methods."""
        settings: dict[str, Any] = {"eos_token_ids": ()} if self.ignore_eos else {}
        return SpeculativeConfig.for_method(
            entry.method,
            num_draft_tokens=self.num_draft_tokens,
            max_new_tokens=self.max_new_tokens,
            seed=self.seed,
            **settings,
        )

    def entries(self, batch_size: int) -> list[Entry]:
        """Everything that is measured in turn at a batch size."""
        plain = [name for name in self.methods if name not in SPECULATIVE_METHODS]
        found = [Entry(name) for name in plain]
        for drafter in self.drafters:
            found += [Entry(name, drafter) for name in self.methods if name in SPECULATIVE_METHODS]
        if batch_size == 1 and self.transformers:
            found.append(Entry(TRANSFORMERS))
            if "prompt-lookup" in self.drafters:
                found.append(Entry(TRANSFORMERS_LOOKUP, "prompt-lookup"))
        return found

    def tokens(self, prompts: PromptSet) -> int:
        """Tokens of all runs at most, those of the expected outputs among them: what progress counts."""
        rows = {size: sum(map(len, prompts.batches(size))) for size in self.batch_sizes}
        runs = sum(rows[size] * len(self.entries(size)) * repeats_at(self.repeats, size) for size in self.batch_sizes)
        return (runs + len(prompts.prompts)) * self.max_new_tokens

    def to_dict(self, sets: Sequence[PromptSet]) -> dict[str, Any]:
        """Plain data: two benchmarks with equal data may share their measurements."""
        data = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        data["prompts"] = {each.name: {"count": len(each.prompts), "digest": each.digest} for each in sets}
        return data


def repeats_at(repeats: int, batch_size: int) -> int:
    """Timed runs at a batch size: a larger batch decodes the same prompts in less time, so it is timed more often."""
    return repeats * max(1, min(batch_size // 2, MOST_MORE))


def _check_whole(what: str, value: object, largest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        raise ConfigError(f"{what} must be a whole number from 1 to {largest}, not {shown(value)}.")


def _check_names(kind: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(f"The {kind} {shown(name)} is not known: choose from {', '.join(known)}.")
