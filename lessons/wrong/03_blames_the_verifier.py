"""Blames the verifier whenever the first wrong token was a draft."""

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
    if run.output == run.right_output:
        return "bonus missing"
    wrong = next(place for place, token in enumerate(run.output) if token != run.right_output[place])
    done = 1
    for step in run.steps:
        if wrong < done + len(step.emitted_token_ids):
            break
        done += len(step.emitted_token_ids)
    if run.output[wrong] in step.input_token_ids[1:]:
        return "wrong token accepted"
    positions = range(len(run.prompt) + done - 1, len(run.prompt) + done - 1 + len(step.position_ids))
    return "stale cells read" if step.position_ids == list(positions) else "slot as position"
