"""Two rows cut to the minimum, and the same two under the methods that keep all: traces without a model.

The drafter guesses a row's text but for some words, and guesses the same words again wherever it is asked: a token
that is cut off comes back as a draft of the next step. So both ways decode the same texts with the same drafter.
"""

from __future__ import annotations

from collections.abc import Sequence

from emssd.lessons.batches import Script, run_script
from emssd.lessons.own_batch import DRAFTS, PROMPTS, own_text
from emssd.scripted_run import ScriptedRow, ScriptedStep
from emssd.simulator import FIRST_ID, WORDS
from emssd.trace import GenerationTrace, verdict

CUT = "Cut to the minimum"
"""The policy's name among the methods."""
TOKENS = 10
"""Tokens that each row emits, the one of prefill included."""


def cut_batch(guessed: Sequence[Sequence[int]], methods: Sequence[str]) -> dict[str, GenerationTrace]:
    """Traces by method; each row emits `TOKENS` tokens.

    Args:
        guessed: [rows][any] words that the drafter guesses before one that it misses, 0 to `DRAFTS`, by turns; where
            all rows keep all, a row's n-th step keeps the n-th of them.
        methods: command-line names, and `CUT`: vanilla's layout, where every row keeps as many tokens as the slowest
            live row gained.

    Raises:
        ValueError: a count is out of range, a row has none, or there are not as many rows as `PROMPTS`.
    """
    if len(guessed) != len(PROMPTS) or not all(guessed):
        raise ValueError(f"{len(PROMPTS)} rows with one count or more are needed, not {guessed}.")
    if any(not 0 <= count <= DRAFTS for row in guessed for count in row):
        raise ValueError(f"From 0 to {DRAFTS} words can be guessed, not {guessed}.")
    traces = {}
    for method in methods:
        rows = tuple(_rows(guessed, cut=method == CUT))
        script = Script(rows, FIRST_ID + len(WORDS), DRAFTS, TOKENS)
        traces[method] = run_script(script, "vanilla" if method == CUT else method)
        if method == CUT:
            traces[method].config["keeps"] = "minimum"
    return traces


def thrown_away(trace: GenerationTrace) -> list[int]:
    """[decode steps] tokens that rows gained and did not keep."""
    eos = trace.config.get("eos_token_ids") or ()
    return [
        sum(verdict(row, eos)[1] - row.num_emitted for row in step.rows if row.kind == "decode")
        for step in trace.decode_steps
    ]


def rows_fed(trace: GenerationTrace) -> int:
    """Rows of input in all decode steps, pads among them."""
    return sum(sum(step.account.input_rows.values()) for step in trace.decode_steps)


def always_slowest(trace: GenerationTrace) -> int | None:
    """The first row that is never cut: all steps follow it. None where the slowest row changes."""
    eos = trace.config.get("eos_token_ids") or ()
    for number in range(len(trace.rows)):
        rows = [step.rows[number] for step in trace.decode_steps]
        if all(row.kind == "decode" and verdict(row, eos)[1] == row.num_emitted for row in rows):
            return number
    return None


def _rows(guessed: Sequence[Sequence[int]], cut: bool) -> list[ScriptedRow]:
    """All requests with the steps that they take."""
    missed = [_missed(runs) for runs in guessed]
    texts = [own_text(number, length) for number, length in enumerate(PROMPTS)]
    steps: list[list[ScriptedStep]] = [[] for _ in guessed]
    done = [1] * len(guessed)
    while min(done) < TOKENS:
        live = [row for row, count in enumerate(done) if count < TOKENS]
        now = {row: _step(texts[row], missed[row], done[row]) for row in live}
        smallest = min(step.gained for step in now.values())
        for row, step in now.items():
            gained = smallest if cut else step.gained
            steps[row].append(ScriptedStep(step.drafts, step.answers, gained))
            done[row] += gained
    return [ScriptedRow(prompt, text[:TOKENS], taken) for (prompt, text, _), taken in zip(texts, steps, strict=True)]


def _missed(runs: Sequence[int]) -> set[int]:
    """Places in a row's output where the drafter is wrong; its first token comes from prefill."""
    missed, place, turn = set(), 1, 0
    while place < TOKENS:
        place += runs[turn % len(runs)]
        missed.add(place)
        place, turn = place + 1, turn + 1
    return missed


def _step(text: tuple[list[int], list[int], list[int]], missed: set[int], done: int) -> ScriptedStep:
    """What a row that has emitted `done` tokens drafts, and all that it gains."""
    _, output, wrong = text
    drafted = min(DRAFTS, TOKENS - done - 1)
    kept = next((count for count in range(drafted) if done + count in missed), drafted)
    right, rest = output[done : done + kept + 1], wrong[: drafted - kept]
    return ScriptedStep(right[:kept] + rest, right + rest, kept + 1)
