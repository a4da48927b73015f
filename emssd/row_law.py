"""The law of one invented row, step by step: where it can be, what it is fed, what it gains. Nothing is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from emssd.acceptance import Acceptance, Floats, Ints
from emssd.window_expectation import RowStates

NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
WEIGHTS = NODE_WEIGHTS / NODE_WEIGHTS.sum()
NEGLIGIBLE = 1e-9  # chance that any row is live; later steps are left out
NO_PROMPTS = {"prompt_mean": 1.0, "prompt_sd": 0.0, "prompt_law": "equal", "prompt_min": 1, "prompt_max": 1}
"""In place of an acceptance's own: a row's law is the same for all prompts, so that it is found again."""


@dataclass(frozen=True)
class RowLaw:
    """One row's law, step by step: arrays over [steps], or [steps, K + 1] for j = 1 .. K + 1.

    Args:
        live: P(live).
        own: E[own tokens; live], those before the step.
        real: E[rows fed], its own pads left out.
        real_own: E[rows fed * own tokens].
        real_run: E[rows fed * (rows fed + 1) / 2].
        single, single_own: P(live and one row is fed), and E[own tokens; that].
        fed_less: P(rows fed < j), a finished row feeds none.
        own_fed_less: E[own tokens; live and rows fed < j].
        gain_less: P(gain < j), a finished row gains none.
        past_less, past_less_real: sum over live rows of P(gain of an earlier step < j), weighted with 1 and with the
            rows fed now.
        states: where the row can be.
    """

    live: Floats
    own: Floats
    real: Floats
    real_own: Floats
    real_run: Floats
    single: Floats
    single_own: Floats
    fed_less: Floats
    own_fed_less: Floats
    gain_less: Floats
    past_less: Floats
    past_less_real: Floats
    states: RowStates


@lru_cache(maxsize=64)
def row_law(acceptance: Acceptance) -> RowLaw:
    """The law of one row, exact but for the rule over z."""
    drafts, ends = acceptance.num_draft_tokens, acceptance.output_tokens - 1
    hit, token = acceptance.rates(NODES)
    gains = _gain_law(hit, token, drafts)
    weighted = _live_chances(gains, ends)
    steps, tokens = len(weighted), np.arange(ends)
    cap = np.minimum(drafts, ends - tokens - 1)
    mass, first = weighted.sum(2), weighted @ tokens
    real = 1 + hit[:, None] * cap
    run = 1 + hit[:, None] * ((cap + 1) * (cap + 2) / 2 - 1)
    single = np.where(cap == 0, 1.0, 1 - hit[:, None])

    def mean(values: Floats) -> Floats:
        return weighted.reshape(steps, values.size) @ values.reshape(-1)

    hits = np.einsum("tzs,z->ts", weighted, hit)
    fed_less, own_fed_less = _fed_less(hits, mass @ (1 - hit), first @ (1 - hit), cap, drafts)
    ended = 1 - mass.sum(1)
    return RowLaw(
        live=mass.sum(1),
        own=first.sum(1),
        real=mean(real),
        real_own=mean(real * tokens),
        real_run=mean(run),
        single=mean(single),
        single_own=mean(single * tokens),
        fed_less=fed_less + ended[:, None],
        own_fed_less=own_fed_less,
        gain_less=_gain_less(weighted, gains, ended),
        past_less=_past_less(weighted, gains, np.ones_like(real)),
        past_less_real=_past_less(weighted, gains, real),
        states=RowStates(weighted.sum(1) - hits, hits, cap, *_gain_moments(gains)),
    )


def _gain_moments(gains: Floats) -> tuple[float, float]:
    """Means of a gain and of its square, over rows."""
    counts, chances = np.arange(1, gains.shape[1] + 1), WEIGHTS @ gains
    return float(chances @ counts), float(chances @ counts**2)


def _gain_law(hit: Floats, token: Floats, drafts: int) -> Floats:
    """[z, K + 1] chance of gaining 1 .. K + 1 tokens, far from the row's end."""
    run = hit[:, None] * token[:, None] ** np.arange(drafts + 1)
    gains = run.copy()
    gains[:, :-1] -= run[:, 1:]
    gains[:, 0] += 1 - hit
    return gains


def _live_chances(gains: Floats, ends: int) -> Floats:
    """[steps, z, tokens] chance of z and to be live with that many tokens; a row with `ends` tokens has ended."""
    most = gains.shape[1]
    if not ends:
        return np.zeros((0, len(gains), 0))
    padded = np.zeros((len(gains), most + ends))
    padded[:, most] = WEIGHTS
    before = np.lib.stride_tricks.sliding_window_view(padded[:, : most + ends - 1], most, axis=1)
    falling = gains[:, ::-1, None]
    chances = []
    while (now := padded[:, most:]).sum() > NEGLIGIBLE:
        chances.append(now.copy())
        padded[:, most:] = (before @ falling)[:, :, 0]
    return np.array(chances)


def _fed_less(hits: Floats, missed: Floats, missed_own: Floats, cap: Ints, drafts: int) -> tuple[Floats, Floats]:
    """[steps, j] P(live and fed < j), and E[own tokens; that], for j = 1 .. K + 1: a miss, or a hit cut short.

    Args:
        hits: [steps, tokens] chance of a hit; missed, missed_own: [steps] P(miss) and E[own tokens; miss].
        cap: [tokens] drafts of a hit, at most `drafts`.
    """
    tokens, counts = np.arange(len(cap)), np.arange(1, drafts + 2)
    short = (1 + cap[:, None] < counts).astype(float)
    fed_one = counts > 1
    less = missed[:, None] * fed_one + hits @ short
    return less, missed_own[:, None] * fed_one + hits @ (short * tokens[:, None])


def _gain_less(weighted: Floats, gains: Floats, ended: Floats) -> Floats:
    """[steps, j] P(gain < j), j = 1 .. K + 1. A gain of j or more needs j tokens left; the end cuts longer ones."""
    ends = weighted.shape[2]
    counts = np.arange(1, gains.shape[1] + 1)
    at_least = np.cumsum(gains[:, ::-1], axis=1)[:, ::-1]
    below = np.zeros((*weighted.shape[:2], ends + 1))
    np.cumsum(weighted, axis=2, out=below[:, :, 1:])
    reach = below[:, :, np.maximum(ends - counts + 1, 0)]
    return 1 - np.einsum("tzj,zj->tj", reach, at_least)


def _past_less(weighted: Floats, gains: Floats, weights: Floats) -> Floats:
    """[steps, j] E[weight now; live now and the gain of an earlier step < j]: gains of a live row are exchangeable.

    The chance that a row has s tokens after t steps and gained g in one of them is gain(g) * p[t - 1, s - g].
    """
    steps, ends = len(weighted), weighted.shape[2]
    most = gains.shape[1]
    padded = np.concatenate([weights, np.zeros((len(weights), most))], axis=1)
    after = np.stack([padded[:, gain : gain + ends] for gain in range(1, most + 1)], axis=2)
    by_gain = np.matmul(np.moveaxis(weighted[:-1], 1, 0), after) * gains[:, None, :]
    less = np.zeros((steps, most))
    less[1:, 1:] = np.cumsum(by_gain.sum(0), axis=1)[:, :-1]
    return less
