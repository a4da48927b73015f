"""Three numbers of a run, from its trace.

Each function gets a trace as plain data: what `json.load` makes of a file that *Save* or `emssd record` wrote
(schema 1; the words are in `emssd/trace.py`). The check takes every step's "account" out: count from the rows.

What you need of it:

    trace["steps"][s]["kind"]            "prefill" (one step, the first) or "decode"
    trace["steps"][s]["rows"][i]         one entry for each request in every step:
        "kind"                           "prefill", "decode" or "finished" (ended in an earlier step)
        "num_drafted", "num_accepted"    drafts judged in this step, and those kept
        "num_emitted"                    tokens gained: the kept drafts, and in most steps one of the target's own
        "input_kinds"                    what was fed: "prompt", "pending", "draft", "pad"; one entry for each row fed
        "position_ids"                   of what was fed; the pending token's is the number of tokens in the cache
        "cache_start"                    slot that the pending token is written to

The worked example (preset figure2), vanilla: 9 of 14 drafts kept, 13 tokens in 4 live row-steps, 6 pads, 36 dead slots:

    acceptance_rate(trace)  ->  9 / 14
    mean_emitted(trace)     ->  13 / 4
    waste(trace)            ->  {"pad_rows": 6, "finished_rows": 0, "dead_slots": 36}
"""

from __future__ import annotations

from typing import Any

Trace = dict[str, Any]


def acceptance_rate(trace: Trace) -> float | None:
    """Drafts kept by drafts judged, over the whole run.

    Args:
        trace: a whole run or the beginning of one.

    Returns:
        A number from 0 to 1; None if nothing was drafted.
    """
    raise NotImplementedError


def mean_emitted(trace: Trace) -> float | None:
    """Tokens that a live row gains in a decode step, on average over all pairs of a live row and a decode step.

    Args:
        trace: a whole run or the beginning of one.

    Returns:
        A number from 1 to K + 1; None if no row was decoded.
    """
    raise NotImplementedError


def waste(trace: Trace) -> dict[str, int]:
    """What decode steps did for nothing, by kind.

    Args:
        trace: a whole run or the beginning of one.

    Returns:
        pad_rows: pads fed for live rows;
        finished_rows: everything fed for rows that had finished;
        dead_slots: slots that pending and draft tokens read in vain, summed over these queries and all steps. A query
            reads its row's slots from 0 up to its own; dead are those that hold no token of the row: holes and prompt
            padding. What pads read is left out.
    """
    raise NotImplementedError
