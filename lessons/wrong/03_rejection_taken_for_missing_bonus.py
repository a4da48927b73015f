"""Looks for the missing bonus where fewer tokens came out than were fed, also after a rejection."""

from __future__ import annotations

from emssd.lessons.faulty_runs import Evidence
from emssd.lessons.toy import ToyCache


def rewind(cache: ToyCache, n: int) -> None:
    """Forget the last `n` cells that queries can read."""
    if not 0 <= n <= cache.length:
        raise ValueError(f"Cannot forget {n} of {cache.length} cells.")
    cache.length -= n


def name_the_bug(run: Evidence) -> str:
    """Which of the four bugs a run has."""
    committed = len(run.prompt) + 1  # the prompt and prefill's token, which is pending
    for step in run.steps:
        fed, drafts = len(step.input_token_ids), step.input_token_ids[1:]
        positions = list(range(committed - 1, committed - 1 + fed))
        if step.position_ids != positions:
            return "slot as position"
        if step.cells_read != [position + 1 for position in positions]:
            return "stale cells read"
        if step.emitted_token_ids != step.target_token_ids[: len(step.emitted_token_ids)]:
            return "wrong token accepted"
        if drafts and len(step.emitted_token_ids) <= len(drafts):
            return "bonus missing"
        committed += len(step.emitted_token_ids)
    raise ValueError("No rule is broken in this run.")
