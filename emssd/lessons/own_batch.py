"""A batch of two rows whose every gain the reader chooses, as traces: the layouts place the tokens, no model runs."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from emssd.lessons.batches import METHODS, Script, run_script
from emssd.scripted_run import ScriptedRow, ScriptedStep
from emssd.simulator import FIRST_ID, WORDS
from emssd.trace import GenerationTrace

PROMPTS = (5, 3)
"""Prompt lengths of the worked example."""
DRAFTS = 5
"""K: every row drafts as many in every step."""
STEPS = 3


def own_batch(kept: Sequence[Sequence[int]], methods: Sequence[str] = METHODS) -> dict[str, GenerationTrace]:
    """Traces by method of a batch that keeps as many drafts as asked for; the same words whatever is kept.

    Args:
        kept: [rows][steps] accepted drafts, 0 to `DRAFTS`; as many rows as `PROMPTS`.
        methods: command-line names; "greedy" gets no drafts.

    Raises:
        ValueError: a count is out of range, or the rows have different numbers of steps.
    """
    if len(kept) != len(PROMPTS) or len({len(row) for row in kept}) != 1:
        raise ValueError(f"{len(PROMPTS)} rows of equally many steps are needed, not {[len(row) for row in kept]}.")
    if any(not 0 <= count <= DRAFTS for row in kept for count in row):
        raise ValueError(f"From 0 to {DRAFTS} drafts can be kept, not {kept}.")
    rows = tuple(
        _row(number, length, wanted) for number, (length, wanted) in enumerate(zip(PROMPTS, kept, strict=True))
    )
    most = max(len(row.output) for row in rows)
    script = Script(rows, FIRST_ID + len(WORDS), DRAFTS, most + DRAFTS)
    return {method: run_script(script, method) for method in methods}


def _row(number: int, length: int, kept: Sequence[int]) -> ScriptedRow:
    """One request; its words depend on its number alone."""
    draw = Random(f"own batch {number}")
    words = draw.sample(range(FIRST_ID, FIRST_ID + len(WORDS)), len(WORDS))
    prompt, text = words[:length], words[length:]
    steps, done = [], 1
    for count in kept:
        right = text[done : done + count + 1]
        wrong = [words[-1 - place] for place in range(DRAFTS - count)]
        steps.append(ScriptedStep(right[:count] + wrong, right + wrong, count + 1))
        done += count + 1
    return ScriptedRow(prompt, text[:done], steps)
