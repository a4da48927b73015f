"""A batch of two rows whose every draft the reader chooses, as traces: the layouts place the tokens, no model runs."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from emssd.lessons.batches import METHODS, Script, run_script
from emssd.scripted_run import ScriptedRow, ScriptedStep
from emssd.simulator import FIRST_ID, WORDS, words
from emssd.trace import GenerationTrace

PROMPTS = (5, 3)
"""Prompt lengths of the worked example."""
DRAFTS = 5
"""K, the most drafts of a step."""
STEPS = 3
TOKENS = 2 + STEPS * (DRAFTS + 1)
"""max_new_tokens: no row can end within these steps, so that the last one leaves its holes, too."""


def own_batch(
    kept: Sequence[Sequence[int]],
    methods: Sequence[str] = METHODS,
    drafted: Sequence[Sequence[int]] | None = None,
) -> dict[str, GenerationTrace]:
    """Traces by method of a batch that keeps as many drafts as asked for; the same words whatever is kept.

    Nobody ends: the traces stop after the last step asked for, but "greedy", which decodes the texts to `TOKENS`.

    Args:
        kept: [rows][`STEPS`] accepted drafts, 0 to `DRAFTS`; as many rows as `PROMPTS`.
        methods: command-line names; "greedy" gets no drafts.
        drafted: [rows][`STEPS`] drafts, at least as many as are kept, at most `DRAFTS`; None: `DRAFTS` in every step.

    Raises:
        ValueError: a count is out of range, or there are not as many rows and steps.
    """
    drafted = drafted or [[DRAFTS] * len(row) for row in kept]
    for counts in (kept, drafted):
        if [len(row) for row in counts] != [STEPS] * len(PROMPTS):
            sizes = [len(row) for row in counts]
            raise ValueError(f"{len(PROMPTS)} rows of {STEPS} steps are needed, not rows of {sizes}.")
    pairs = [list(zip(*both, strict=True)) for both in zip(kept, drafted, strict=True)]
    if any(not 0 <= few <= many <= DRAFTS for row in pairs for few, many in row):
        raise ValueError(f"From 0 to {DRAFTS} drafts can be made and from 0 to all of them kept, not {pairs}.")
    traces = {}
    for method in methods:
        rows = tuple(own_row(number, pair, method == "greedy") for number, pair in enumerate(pairs))
        trace = run_script(Script(rows, FIRST_ID + len(WORDS), DRAFTS, TOKENS), method)
        traces[method] = trace if method == "greedy" else _stopped(trace)
    return traces


def own_text(number: int, length: int) -> tuple[list[int], list[int], list[int]]:
    """A row's prompt of so many tokens, the text that follows, and wrong drafts that occur in neither."""
    draw = Random(f"own batch {number}")
    ids = draw.sample(range(FIRST_ID, FIRST_ID + len(WORDS)), len(WORDS))
    return ids[:length], ids[length:-DRAFTS], ids[-DRAFTS:]


def own_row(number: int, pairs: Sequence[tuple[int, int]], to_the_end: bool) -> ScriptedRow:
    """One request: a step for each pair (kept, drafted), then one without drafts; or its whole text for greedy."""
    prompt, text, wrong = own_text(number, PROMPTS[number])
    steps, done = [], 1
    for kept, drafted in [*pairs, (0, 0)]:
        right, rest = text[done : done + kept + 1], wrong[: drafted - kept]
        steps.append(ScriptedStep(right[:kept] + rest, right + rest, kept + 1))
        done += kept + 1
    return ScriptedRow(prompt, text[: TOKENS if to_the_end else done], steps)


def _stopped(trace: GenerationTrace) -> GenerationTrace:
    """The trace without its last step, which only kept the rows alive."""
    last = trace.steps.pop()
    for row, request in zip(last.rows, trace.rows, strict=True):
        request.output_token_ids = request.output_token_ids[: -row.num_emitted]
        request.output_text = words(request.output_token_ids)
        request.finish_reason = None
    return trace
