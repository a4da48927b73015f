"""Slots that invented rows scan in a layer with a sliding window: exact, as `work.row_scans` counts them from plans.

A query sees the last `window` tokens up to its own, and scans from the slot of the first of them on. In a padded cache
a row's prompt padding lies between its prompt and its output, and its holes behind the tokens of the step that left
them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emssd.acceptance import Ints

Kinds = dict[str, Ints]


@dataclass(frozen=True)
class FedRows:
    """What rows are fed and hold in every step. Arrays are [batches, steps, rows].

    Args:
        before: output tokens in the cache.
        own: the same and the prompt's.
        prompt_pads, holes: dead slots of the row.
        real: tokens fed, 0 once the row has ended.
        pads: pads fed behind them.
    """

    before: Ints
    own: Ints
    prompt_pads: Ints
    holes: Ints
    real: Ints
    pads: Ints


def window_scans(rows: FedRows, window: int) -> tuple[Kinds, Kinds]:
    """Slots by kind that rows scan in one layer, for each query and once per row: two tables of [batches, steps, rows].

    Args:
        rows: in every step.
        window: tokens that a query sees, itself included.
    """
    real, kinds = rows.real, ("useful", "prompt_pad", "hole")
    per_token = {kind: np.zeros_like(rows.own) for kind in kinds}
    last = np.zeros_like(rows.own)
    first: Kinds = {}
    for query in range(int(real.max(initial=0))):
        scanned = _one_query(rows, window, query)
        first = first or scanned
        for kind in kinds:
            per_token[kind] += np.where(query < real, scanned[kind], 0)
        last = np.where(query == real - 1, sum(scanned.values()), last)
    per_token["pad_query"] = rows.pads * last + rows.pads * (rows.pads + 1) // 2
    varlen = {kind: np.where(real > 0, first[kind], 0) if first else per_token[kind] for kind in kinds}
    varlen["useful"] = varlen["useful"] + np.maximum(real - 1, 0)
    return per_token, {**varlen, "pad_query": rows.pads}


def _one_query(rows: FedRows, window: int, query: int) -> Kinds:
    """Slots that the row's n-th query scans, from its window's first token to its own."""
    output = rows.before + query + 1 - window  # the first visible token's number in the output; below 0 in the prompt
    return {
        "useful": np.minimum(rows.own + query + 1, window),
        "prompt_pad": np.where(output < 0, rows.prompt_pads, 0),
        "hole": np.where(output <= 0, rows.holes, rows.holes - _holes_before(rows, output)),
    }


def _holes_before(rows: FedRows, output: Ints) -> Ints:
    """Holes that a row had when the step began which fed its `output`-th output token."""
    if not rows.holes.any() or not (output > 0).any():
        return np.zeros_like(output)
    batches, steps, count = output.shape
    fed, holes, wanted = (
        np.moveaxis(each, 1, 2).reshape(-1, steps) for each in (rows.before, rows.holes, np.maximum(output, 0))
    )
    apart = (int(fed.max()) + int(wanted.max()) + 2) * np.arange(len(fed))[:, None]
    step = np.searchsorted((fed + apart).ravel(), (wanted + apart).ravel(), side="right").reshape(fed.shape)
    step = np.minimum(step - 1 - steps * np.arange(len(fed))[:, None], np.arange(steps))
    found = np.take_along_axis(holes, np.maximum(step, 0), axis=1)
    return np.moveaxis(found.reshape(batches, count, steps), 2, 1)
