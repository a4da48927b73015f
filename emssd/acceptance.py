"""Invented acceptance: how often rows are given drafts, how many of them are right, how long prompts are.

A row's t-th step is the same in every method: decoding is lossless and the batch is static. So one set of invented
rows serves all methods, and only the bookkeeping differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from emssd.errors import ConfigError, shown

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

PROMPT_LAWS = ("lognormal", "normal", "equal")
MAX_DRAFTS = 64
MAX_OUTPUT = 1024
MAX_PROMPT = 131_072
MAX_BATCH = 256
MAX_SPREAD = 5.0
QUANTILES = 256  # places at which a law of prompt lengths is integrated
ROUNDING = 1e-12  # of a uniform number, so that its logarithm exists


@dataclass(frozen=True)
class Acceptance:
    """Rows that behave like a looked-up draft: K tokens or none, each next token right with the same chance.

    Args:
        hit_rate: probability that a live row is given drafts in a step.
        token_rate: probability that the next draft is right, given that all before it are.
        spread: standard deviation between rows: a row's number z from N(0, 1) moves the logits of both rates by
            `spread * z`. 0: all rows alike.
        prompt_mean, prompt_sd: mean and standard deviation of prompt lengths, in tokens.
        prompt_law: "lognormal", "normal", or "equal" (all prompts have `prompt_mean` tokens).
        prompt_min, prompt_max: lengths outside are set to the nearer one.
        num_draft_tokens: K, drafts of a hit; fewer where a row's end is near.
        output_tokens: tokens of every row; the first comes from prefill.

    Raises:
        ConfigError: a value is of the wrong kind or out of range; names it, its value and the range.
    """

    hit_rate: float = 0.85
    token_rate: float = 0.916
    spread: float = 0.08
    prompt_mean: float = 900.0
    prompt_sd: float = 450.0
    prompt_law: str = "lognormal"
    num_draft_tokens: int = 7
    output_tokens: int = 128
    prompt_min: int = 1
    prompt_max: int = 1919

    def __post_init__(self) -> None:
        for name, largest in (("hit_rate", 1), ("token_rate", 1), ("spread", MAX_SPREAD)):
            check_number(name, getattr(self, name), 0, largest)
        check_number("prompt_mean", self.prompt_mean, 1, MAX_PROMPT)
        check_number("prompt_sd", self.prompt_sd, 0, MAX_PROMPT)
        check_whole("num_draft_tokens", self.num_draft_tokens, 0, MAX_DRAFTS)
        check_whole("output_tokens", self.output_tokens, 1, MAX_OUTPUT)
        check_whole("prompt_min", self.prompt_min, 1, MAX_PROMPT)
        check_whole("prompt_max", self.prompt_max, self.prompt_min, MAX_PROMPT)
        if self.prompt_law not in PROMPT_LAWS:
            raise ConfigError(f"prompt_law must be one of {', '.join(PROMPT_LAWS)}, not {shown(self.prompt_law)}.")

    def with_settings(self, **settings: Any) -> Acceptance:
        """A copy with some settings replaced."""
        return replace(self, **settings)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def rates(self, numbers: Floats) -> tuple[Floats, Floats]:
        """Hit rate and token rate of rows whose numbers from N(0, 1) are given: two arrays of the same shape."""
        return _moved(self.hit_rate, self.spread * numbers), _moved(self.token_rate, self.spread * numbers)

    def prompt_lengths(self, numbers: Floats) -> Ints:
        """Prompt lengths of rows whose numbers from N(0, 1) are given: the same shape, whole tokens."""
        return np.clip(np.rint(self._lengths(numbers)), self.prompt_min, self.prompt_max).astype(np.int64)

    def _lengths(self, numbers: Floats) -> Floats:
        if self.prompt_law == "equal":
            return np.full(numbers.shape, self.prompt_mean)
        if self.prompt_law == "normal":
            return self.prompt_mean + self.prompt_sd * numbers
        variance = math.log1p((self.prompt_sd / self.prompt_mean) ** 2)
        return np.exp(math.log(self.prompt_mean) - variance / 2 + math.sqrt(variance) * numbers)

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt that can be drawn."""
        if self.prompt_law == "equal" or not self.prompt_sd:
            return int(self.prompt_lengths(np.zeros(1))[0])
        return self.prompt_max

    def cache_slots(self, batch_size: int, padded: bool) -> float:
        """Expected slots that are set aside for a batch, before it is known how its rows will do.

        Args:
            batch_size: rows.
            padded: all rows have the longest prompt's slots and a column that may advance by K + 1 in each step; else
                every row has its own prompt's and output's.
        """
        if not padded:
            return batch_size * (self.mean_longest_prompt(1) + self.output_tokens)
        row = self.mean_longest_prompt(batch_size) + self.output_tokens * (self.num_draft_tokens + 1)
        return batch_size * row

    def prompt_quantiles(self) -> Ints:
        """[QUANTILES] equally likely prompt lengths."""
        return self.prompt_lengths(_largest_of(1))

    def mean_longest_prompt(self, batch_size: int) -> float:
        """Expected length of the longest of `batch_size` prompts; of 1 it is the mean prompt, cut-offs included."""
        return float(np.mean(self.prompt_lengths(_largest_of(batch_size))))


def _moved(rate: float, shift: Floats) -> Floats:
    """The rate whose logit is that of `rate` plus `shift`; 0 and 1 stay."""
    if rate <= 0 or rate >= 1:
        return np.full(shift.shape, float(rate))
    return np.asarray(1 / (1 + (1 - rate) / rate * np.exp(-shift)))


@lru_cache(maxsize=512)
def _largest_of(batch_size: int) -> Floats:
    """[QUANTILES] equally likely values of the largest of `batch_size` numbers from N(0, 1)."""
    places = ((np.arange(QUANTILES) + 0.5) / QUANTILES) ** (1 / batch_size)
    law = NormalDist()
    return np.array([law.inv_cdf(place) for place in places])


@dataclass(frozen=True)
class Trajectories:
    """What invented rows do, whatever the method.

    Args:
        prompt_lengths: [rows].
        drafted: [steps, rows] drafts of each step, 0 on a miss and once the row has ended.
        gained: [steps, rows] tokens gained, 1 to drafted + 1; 0 once the row has ended.
        decoded: tokens that each row was to decode; what its last step gains beyond them is an overshoot.
    """

    prompt_lengths: Ints
    drafted: Ints
    gained: Ints
    decoded: int

    def first(self, rows: int) -> Trajectories:
        """The first rows alone."""
        return Trajectories(self.prompt_lengths[:rows], self.drafted[:, :rows], self.gained[:, :rows], self.decoded)

    def batches(self, batch_size: int) -> Trajectories:
        """The rows in consecutive groups: prompt_lengths [batches, rows], the others [batches, steps, rows].

        Rows that do not fill a batch are left out.
        """
        count = len(self.prompt_lengths) // batch_size
        kept = count * batch_size

        def group(steps: Ints) -> Ints:
            return np.moveaxis(steps[:, :kept].reshape(len(steps), count, batch_size), 1, 0)

        lengths = self.prompt_lengths[:kept].reshape(count, batch_size)
        return Trajectories(lengths, group(self.drafted), group(self.gained), self.decoded)


def draw_rows(acceptance: Acceptance, num_rows: int, seed: int, capped: bool = True, part: int = 0) -> Trajectories:
    """Invent rows. The same seed gives the same random numbers, also under another acceptance with equal lengths.

    Args:
        acceptance: how rows behave.
        num_rows: how many.
        seed: a whole number from 0.
        capped: drafts are cut so that a row ends with exactly its output tokens, as the engine does. False: as in the
            authors' code, a row's last step may gain more tokens than were left.
        part: other rows of the same seed, for those who draw many in parts.
    """
    check_whole("seed", seed, 0, 2**63 - 1)
    draw = np.random.default_rng([part, seed] if part else seed)
    row_numbers, prompt_numbers = draw.standard_normal(num_rows), draw.standard_normal(num_rows)
    hit_rates, token_rates = acceptance.rates(row_numbers)
    left, decoded = np.full(num_rows, acceptance.output_tokens - 1), acceptance.output_tokens - 1
    drafted, gained = np.zeros((decoded, num_rows), np.int64), np.zeros((decoded, num_rows), np.int64)
    for step in range(decoded):
        hits, runs = draw.random(num_rows), draw.random(num_rows)
        live = left > 0
        if not live.any():
            drafted, gained = drafted[:step], gained[:step]
            break
        most = np.minimum(acceptance.num_draft_tokens, left - 1) if capped else acceptance.num_draft_tokens
        drafted[step] = np.where(live & (hits < hit_rates), most, 0)
        accepted = np.minimum(_run_lengths(runs, token_rates), drafted[step])
        gained[step] = np.where(live, accepted + 1, 0)
        left = left - gained[step]
    return Trajectories(acceptance.prompt_lengths(prompt_numbers), drafted, gained, decoded)


def _run_lengths(uniform: Floats, token_rates: Floats) -> Floats:
    """[rows] drafts that are right in a row: at least a with probability token_rate ** a."""
    rates = np.clip(token_rates, ROUNDING, 1 - ROUNDING)
    return np.floor(np.log(np.maximum(uniform, ROUNDING)) / np.log(rates))


def check_number(name: str, value: object, smallest: float, largest: float) -> None:
    """Raise ConfigError unless `value` is a number in the range; names it, its value and the range."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and smallest <= value <= largest
    if not good:
        raise ConfigError(f"{name} must be a number from {smallest:g} to {largest:g}, not {shown(value)}.")


def check_whole(name: str, value: object, smallest: int, largest: int) -> None:
    """Raise ConfigError unless `value` is a whole number in the range; names it, its value and the range."""
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
        raise ConfigError(f"{name} must be a whole number from {smallest} to {largest}, not {shown(value)}.")
