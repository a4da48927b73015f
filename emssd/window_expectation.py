"""Expected slots that rows scan in a layer with a sliding window: what `window_counts` counts, nothing is drawn.

Useful slots and prompt padding are exact, since a row's prompt and its drafts are independent. Where outputs are longer
than the window, the number of steps whose tokens it holds is taken to be its mean: approximate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emssd.acceptance import Acceptance, Floats, Ints

Kinds = dict[str, Floats]
TINY = 1e-300


@dataclass(frozen=True)
class RowStates:
    """Where one row can be, step by step.

    Args:
        miss, hits: [steps, tokens] chance to be live with so many tokens and to be given no drafts, or drafts.
        cap: [tokens] drafts of a hit.
        gain_mean, gain_square: mean gain of a step, and mean of its square, far from a row's end.
    """

    miss: Floats
    hits: Floats
    cap: Ints
    gain_mean: float
    gain_square: float

    @property
    def live(self) -> Floats:
        """[steps, tokens] chance to be live with so many tokens."""
        return self.miss + self.hits


@dataclass(frozen=True)
class RecentHoles:
    """Holes that the last steps left, from the chance that a step's gain is small; a weight is 1, or the rows fed now.

    Args:
        live, own: [steps] E[weight; live], and E[weight * own tokens; live].
        past_less: [steps, K + 1] E[weight; live and the gain of an earlier step < j].
        others_less: [sizes, steps, K + 1] sum over earlier steps of P(no other row gains j or more).
    """

    live: Floats
    own: Floats
    past_less: Floats
    others_less: Floats

    def of(self, share: Floats) -> Floats:
        """[sizes, steps] E[weight * holes of the last `share` of a row's steps]; `share` is [steps]."""
        steps = np.arange(len(self.live))
        start = (1 - share) * steps
        whole = start.astype(np.int64)
        part = (start - whole)[:, None]
        known = self.others_less
        before = (1 - part) * known[:, whole] + part * known[:, np.minimum(whole + 1, steps)]
        moves = self.past_less.shape[1] * share * steps * self.live
        return moves - np.einsum("tj,ntj->nt", self.past_less, known - before) - share * self.own


@dataclass(frozen=True)
class BatchTerms:
    """What the other rows of the batch do to a row; arrays [sizes, steps], those with a third axis by j = 1 .. K + 1.

    Args:
        prompt_pads: [sizes, 1] mean prompt padding of a row.
        holes, real_holes: of a row, weighted with 1 and with the rows it is fed; None in a ragged cache.
        column: mean of the shared column's moves so far while a row is live; 0 in a ragged cache.
        others_less: [sizes, steps, K + 1] P(no other row is fed j or more).
    """

    prompt_pads: Floats
    holes: RecentHoles | None
    real_holes: RecentHoles | None
    column: Floats
    others_less: Floats


class WindowLayer:
    """Expected scans of one layer with a window.

    Args:
        acceptance: how rows behave.
        states: of a row.
        window: tokens that a query sees, itself included.
    """

    def __init__(self, acceptance: Acceptance, states: RowStates, window: int) -> None:
        self.states, self.window = states, window
        self.steps, self.tokens = np.arange(len(states.miss)), np.arange(len(states.cap))
        self.seen = seen_of(acceptance, window, len(states.cap) + acceptance.num_draft_tokens + 2)
        self.upto = np.cumsum(self.seen)
        fed = np.arange(acceptance.num_draft_tokens + 1)
        self.reaches = (self.tokens[:, None] + fed + 1 < window).astype(float)  # [tokens, query]: some of the prompt
        self.share = self._share_of_holes(fed)
        live = states.live
        real = live.sum(1) + states.hits @ states.cap
        self.each, self.once = self._useful()
        self.each_reaches, self.once_reaches = self._sum(self.reaches), live @ self.reaches[:, 0]
        self.each_share = np.minimum(self._sum(self.share) / np.maximum(real, TINY), 1.0)
        once = (live * self.share[:, :, 0]).sum(1) / np.maximum(live.sum(1), TINY)
        self.once_share = np.minimum(once, 1.0)

    def _share_of_holes(self, fed: Ints) -> Floats:
        """[steps, tokens, query] part of a row's holes that lies in the window: of the steps that fed its tokens.

        One entry serves all steps where the window holds every output.
        The last n tokens are from n / mean + (var + mean ** 2 - mean) / (2 * mean ** 2) steps on average.
        """
        mean, square = self.states.gain_mean, self.states.gain_square
        left = self.window - 1 - fed  # output tokens before this step that the query sees
        if len(self.tokens) <= left[-1]:
            return np.ones((1, len(self.tokens), len(fed)))
        more = (square - mean) / (2 * mean**2)
        steps, tokens = np.maximum(self.steps, 1)[:, None, None], np.maximum(self.tokens, 1)[:, None]
        share = np.clip(left / tokens + more / steps, 0.0, 1.0)
        share = np.where(left < 1, 0.0, share)
        return np.where(self.tokens[:, None] <= left, 1.0, share)

    def _sum(self, values: Floats) -> Floats:
        """Sum of [tokens, query], or of [steps, tokens, query], over the rows that are fed: [steps]."""
        inside = values * (np.arange(values.shape[-1]) <= self.states.cap[:, None])
        return (self.states.miss * values[..., 0] + self.states.hits * inside.sum(-1)).sum(1)

    def _useful(self) -> tuple[Floats, Floats]:
        """[steps] E[useful slots], for each query and once per row."""
        states, after = self.states, self.tokens + 1
        each = states.miss @ self.seen[after]
        each = each + states.hits @ (self.upto[after + states.cap] - self.upto[self.tokens])
        extra = states.hits @ states.cap  # queries behind the first one
        return each, states.live @ self.seen[after] + extra

    def scans(self, terms: BatchTerms, pads: Floats) -> tuple[Kinds, Kinds, Floats]:
        """[sizes, steps] E[slots] of a row by kind, for each query and once per row, and where one token is fed.

        Args:
            terms: of the rest of the batch.
            pads: E[pads that a row is fed].
        """
        live, none = self.states.live, np.zeros_like(pads)
        per_token = {
            "useful": self.each + none,
            "prompt_pad": self.each_reaches * terms.prompt_pads,
            "hole": none if terms.real_holes is None else terms.real_holes.of(self.each_share),
            "pad_query": self._pads(terms) if pads.any() else none,
        }
        varlen = {
            "useful": self.once + none,
            "prompt_pad": self.once_reaches * terms.prompt_pads,
            "hole": none if terms.holes is None else terms.holes.of(self.once_share),
            "pad_query": pads,
        }
        alone = np.where(self.states.cap == 0, live, self.states.miss)
        return per_token, varlen, np.einsum("ts,nts->nt", alone, self._last(terms, self.tokens, 0 * self.states.cap))

    def _last(self, terms: BatchTerms, tokens: Ints, query: Ints) -> Floats:
        """[sizes, steps, tokens] slots that a query of a row with so many tokens scans.

        Args:
            terms: of the rest of the batch.
            tokens, query: [tokens] of the row, and the query's number in the step.
        """
        prompt = terms.prompt_pads * self.reaches[tokens, query]
        scanned = (self.seen[tokens + query + 1] + prompt)[:, None]
        if terms.holes is None:
            return np.broadcast_to(scanned, (len(prompt), len(self.steps), len(tokens)))
        return scanned + np.maximum(terms.column[:, :, None] - tokens, 0) * self.share[:, tokens, query]

    def _pads(self, terms: BatchTerms) -> Floats:
        """[sizes, steps] E[slots that pads scan]: all that the last token scans, and the pads up to their own."""
        more = 1 - terms.others_less  # P(another row is fed j or more)
        count = (
            np.cumsum(more[..., ::-1], axis=-1)[..., ::-1] - more
        )  # [.., n]: E[pads behind n tokens], n = 1 .. K + 1
        run = np.cumsum(count[..., ::-1], axis=-1)[..., ::-1]  # E[1 + 2 + .. + pads]
        miss, cap = self.states.miss, self.states.cap
        missed = np.einsum("ts,nts->nt", miss, self._last(terms, self.tokens, 0 * cap))
        found = count[:, :, 0] * missed + run[:, :, 0] * miss.sum(1)
        near = np.flatnonzero(cap < more.shape[2] - 1)  # near its end a row is given fewer drafts, and pads behind them
        hits, query = self.states.hits[:, near], cap[near]
        last = self._last(terms, near, query)
        return found + np.einsum("ts,nts->nt", hits, count[:, :, query] * last + run[:, :, query])


def seen_of(acceptance: Acceptance, window: int, count: int) -> Floats:
    """[count] E[min(prompt + n, window)], tokens that the query behind n of a row's own ones sees, for n = 0, 1, .."""
    lengths = acceptance.prompt_quantiles()
    return np.minimum(lengths[:, None] + np.arange(count), window).mean(0)


def greedy_window(acceptance: Acceptance, window: int, steps: int, prompt_pads: float, size: int) -> dict[str, Floats]:
    """[steps] slots by kind of plain decoding: each row's one query."""
    before = np.arange(steps)
    seen = seen_of(acceptance, window, steps + 1)[1:]
    none = np.zeros(steps)
    pads = np.where(before + 1 < window, size * prompt_pads, 0.0)
    return {"useful": size * seen, "prompt_pad": pads, "hole": none, "pad_query": none}


def mean_layer(tables: Sequence[tuple[float, Kinds]]) -> Kinds:
    """Tables by kind, weighted with their layers' share."""
    return {kind: sum((share * table[kind] for share, table in tables), np.zeros(())) for kind in tables[0][1]}
