"""Averages the steps' means, so that a step with one live row weighs as much as one with four."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Trace = dict[str, Any]


def decode_rows(trace: Trace, kind: str = "decode") -> Iterator[dict[str, Any]]:
    """Every row of that kind in every decode step: prefill stays out, and finished rows are no live ones."""
    for step in trace["steps"]:
        if step["kind"] == "decode":
            yield from (row for row in step["rows"] if row["kind"] == kind)


def acceptance_rate(trace: Trace) -> float | None:
    """Drafts kept by drafts judged, over the whole run; None if nothing was drafted."""
    drafted = sum(row["num_drafted"] for row in decode_rows(trace))
    accepted = sum(row["num_accepted"] for row in decode_rows(trace))
    return accepted / drafted if drafted else None


def mean_emitted(trace: Trace) -> float | None:
    """Tokens that a live row gains in a decode step; None if no row was decoded."""
    gains = []
    for step in trace["steps"]:
        live = [row["num_emitted"] for row in step["rows"] if row["kind"] == "decode"]
        if live:
            gains.append(sum(live) / len(live))
    return sum(gains) / len(gains) if gains else None


def waste(trace: Trace) -> dict[str, int]:
    """What decode steps did for nothing, by kind: "pad_rows", "finished_rows", "dead_slots"."""
    pads = dead = 0
    for row in decode_rows(trace):
        fed_pads = row["input_kinds"].count("pad")
        queries = len(row["input_kinds"]) - fed_pads
        pads += fed_pads
        dead += queries * (row["cache_start"] - row["position_ids"][0])
    finished = sum(len(row["input_kinds"]) for row in decode_rows(trace, "finished"))
    return {"pad_rows": pads, "finished_rows": finished, "dead_slots": dead}
