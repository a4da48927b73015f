"""Settings of one run. The paper's methods are a 2 x 2 of layouts; greedy decoding is the same loop without drafts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from emssd.errors import ConfigError, shown

CacheLayout = Literal["padded", "ragged"]
InputLayout = Literal["padded", "packed"]
DraftLength = int | tuple[int, ...] | Callable[[int, int], int]

MAX_DRAFT_TOKENS = 1024
MAX_NEW_TOKENS = 1_000_000
MAX_TOP_TOKENS = 8
ATTENTION_CHOICES = ("auto", "sdpa", "reference")

# name on the command line -> (cache layout, input layout); "greedy" rows are run without drafts
METHODS: dict[str, tuple[CacheLayout, InputLayout]] = {
    "greedy": ("padded", "padded"),
    "greedy-ragged": ("ragged", "packed"),
    "vanilla": ("padded", "padded"),
    "packed-input": ("padded", "packed"),
    "ragged-cache": ("ragged", "padded"),
    "ems-sd": ("ragged", "packed"),
}
SPECULATIVE_METHODS = ("vanilla", "packed-input", "ragged-cache", "ems-sd")
BASELINE = "greedy"
"""What speed-ups and equality are against."""
METHOD_TITLES = {
    "greedy": "Greedy",
    "greedy-ragged": "Greedy, ragged cache",
    "vanilla": "Vanilla",
    "packed-input": "Packed input only",
    "ragged-cache": "Ragged cache only",
    "ems-sd": "EMS-SD",
}


@dataclass(frozen=True)
class SpeculativeConfig:
    """How a batch is decoded.

    Args:
        cache_layout: "padded" (one write column for all rows, masked holes) or "ragged" (each row its own cursor).
        input_layout: "padded" (every row is fed as many tokens as the longest) or "packed" (rows one after another).
        num_draft_tokens: draft tokens per row and step: one number, one per row, or `(row, step) -> number`
            with steps counted from 1. 0 is plain decoding.
        max_new_tokens: tokens a row may emit; 0 gives empty outputs without a forward.
        eos_token_ids: None takes the model's own, () means none, else an id or several.
        temperature: must be 0.0 (greedy).
        attention: "auto" (fastest correct), "sdpa", or "reference" (plain matrix products).
        check_invariants: assert the invariants of every step; slow, for debugging and tests.
        seed: recorded with the trace; greedy decoding draws nothing from it.
        num_top_tokens: record the target's best few tokens at each position that was judged, 0 (none) to 8.

    Raises:
        ConfigError: a value is of the wrong kind or out of range.
    """

    cache_layout: CacheLayout = "ragged"
    input_layout: InputLayout = "packed"
    num_draft_tokens: DraftLength = 7
    max_new_tokens: int = 64
    eos_token_ids: int | tuple[int, ...] | None = None
    temperature: float = 0.0
    attention: str = "auto"
    check_invariants: bool = False
    seed: int = 0
    num_top_tokens: int = 0

    def __post_init__(self) -> None:
        _check_choice("cache_layout", self.cache_layout, ("padded", "ragged"))
        _check_choice("input_layout", self.input_layout, ("padded", "packed"))
        _check_choice("attention", self.attention, ATTENTION_CHOICES)
        if not isinstance(self.check_invariants, bool):
            raise ConfigError(f"check_invariants must be True or False, not {shown(self.check_invariants)}.")
        _check_count("max_new_tokens", self.max_new_tokens, MAX_NEW_TOKENS)
        _check_seed(self.seed)
        _check_count("num_top_tokens", self.num_top_tokens, MAX_TOP_TOKENS)
        object.__setattr__(self, "num_draft_tokens", _clean_draft_length(self.num_draft_tokens))
        object.__setattr__(self, "eos_token_ids", _clean_eos(self.eos_token_ids))
        if isinstance(self.temperature, bool) or not isinstance(self.temperature, (int, float)):
            raise ConfigError(f"temperature must be a number, not {shown(self.temperature)}.")
        if self.temperature != 0.0 or math.isnan(self.temperature):
            raise ConfigError(f"temperature must be 0.0 (greedy decoding), not {shown(self.temperature)}.")

    @classmethod
    def greedy(cls, cache_layout: CacheLayout = "padded", **settings: Any) -> SpeculativeConfig:
        """Plain decoding: no drafts, whatever draft length is given. The paper's baseline uses the padded cache."""
        inputs: InputLayout = "padded" if cache_layout == "padded" else "packed"
        return cls(cache_layout=cache_layout, input_layout=inputs, **{**settings, "num_draft_tokens": 0})

    @classmethod
    def vanilla(cls, **settings: Any) -> SpeculativeConfig:
        """Padded cache, padded inputs: the usual answer to a ragged batch."""
        return cls(cache_layout="padded", input_layout="padded", **settings)

    @classmethod
    def packed_input_only(cls, **settings: Any) -> SpeculativeConfig:
        """Ablation: only "unpad input tokens" is on; the cache stays padded."""
        return cls(cache_layout="padded", input_layout="packed", **settings)

    @classmethod
    def ragged_cache_only(cls, **settings: Any) -> SpeculativeConfig:
        """Ablation: only "unpad KV cache" is on; the inputs stay padded."""
        return cls(cache_layout="ragged", input_layout="padded", **settings)

    @classmethod
    def ems_sd(cls, **settings: Any) -> SpeculativeConfig:
        """Ragged cache, packed inputs: the paper's method."""
        return cls(cache_layout="ragged", input_layout="packed", **settings)

    @classmethod
    def for_method(cls, method: str, **settings: Any) -> SpeculativeConfig:
        """The preset of a command-line method name, e.g. "ems-sd"; greedy ones take no draft length.

        Raises:
            ConfigError: the name is not one of `METHODS`.
        """
        if method not in METHODS:
            raise ConfigError(f"Unknown method {method!r}: choose one of {', '.join(METHODS)}.")
        cache_layout, input_layout = METHODS[method]
        if method.startswith("greedy"):
            settings["num_draft_tokens"] = 0
        return cls(cache_layout=cache_layout, input_layout=input_layout, **settings)

    @property
    def method(self) -> str:
        """The method's name: a key of `METHODS`."""
        layouts = (self.cache_layout, self.input_layout)
        if not self.drafts:
            if self.cache_layout == "padded" and self.input_layout == "padded":
                return "greedy"
            if self.cache_layout == "ragged" and self.input_layout == "packed":
                return "greedy-ragged"
        return next(name for name in SPECULATIVE_METHODS if METHODS[name] == layouts)

    @property
    def drafts(self) -> bool:
        """Whether any row may ever be given a draft."""
        return self.max_draft_tokens is None or self.max_draft_tokens > 0

    @property
    def max_draft_tokens(self) -> int | None:
        """Most drafts a row may get in a step; None when a callable decides."""
        if callable(self.num_draft_tokens):
            return None
        if isinstance(self.num_draft_tokens, tuple):
            return max(self.num_draft_tokens, default=0)
        return self.num_draft_tokens

    def draft_length(self, row: int, step: int) -> int:
        """Draft tokens wanted for `row` in decode step `step` (from 1).

        Raises:
            ConfigError: a callable returned something else than a whole number in range.
        """
        if callable(self.num_draft_tokens):
            count = self.num_draft_tokens(row, step)
            _check_count(f"num_draft_tokens of row {row} in step {step}", count, MAX_DRAFT_TOKENS)
            return count
        if isinstance(self.num_draft_tokens, tuple):
            return self.num_draft_tokens[row]
        return self.num_draft_tokens

    def check_batch(self, num_rows: int) -> None:
        """Raise ConfigError unless a per-row draft length has one entry per row."""
        lengths = self.num_draft_tokens
        if isinstance(lengths, tuple) and len(lengths) != num_rows:
            raise ConfigError(
                f"num_draft_tokens has {len(lengths)} entries for {num_rows} rows: give one per row, or one number."
            )

    def with_settings(self, **settings: Any) -> SpeculativeConfig:
        """A copy with some settings replaced."""
        return replace(self, **settings)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the trace; a callable draft length becomes the text "callable"."""
        lengths = self.num_draft_tokens
        drafts: Any = "callable" if callable(lengths) else list(lengths) if isinstance(lengths, tuple) else lengths
        eos = self.eos_token_ids
        return {
            "cache_layout": self.cache_layout,
            "input_layout": self.input_layout,
            "num_draft_tokens": drafts,
            "max_new_tokens": self.max_new_tokens,
            "eos_token_ids": list(eos) if isinstance(eos, tuple) else eos,
            "temperature": float(self.temperature),
            "attention": self.attention,
            "check_invariants": self.check_invariants,
            "seed": self.seed,
            **({"num_top_tokens": self.num_top_tokens} if self.num_top_tokens else {}),
        }


def _check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, not {shown(value)}.")


def _check_count(name: str, value: object, largest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number, not {shown(value)}.")
    if not 0 <= value <= largest:
        raise ConfigError(f"{name} must be between 0 and {largest}, not {shown(value)}.")


def _check_seed(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ConfigError(f"seed must be a whole number from 0 to 2**63 - 1, not {shown(value)}.")


def _clean_draft_length(value: Any) -> DraftLength:
    if isinstance(value, (list, tuple)):
        for row, count in enumerate(value):
            _check_count(f"num_draft_tokens of row {row}", count, MAX_DRAFT_TOKENS)
        return tuple(value)
    if not callable(value):
        _check_count("num_draft_tokens", value, MAX_DRAFT_TOKENS)
    return value


def _clean_eos(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    ids = [value] if isinstance(value, int) else value
    if not isinstance(ids, (list, tuple, set, frozenset)):
        raise ConfigError(f"eos_token_ids must be None, a token id or several, not {shown(value)}.")
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < 2**31:
            raise ConfigError(f"eos_token_ids must hold token ids (whole numbers from 0), not {shown(token_id)}.")
    return tuple(dict.fromkeys(ids))
