"""Random batches for the checks: correct traces by method, made from a seed, without a model and without torch.

`random_batch(seed)` gives the traces of one small batch under several methods, as `simulate` does for large ones, but
made to catch mistakes: prompts of different lengths, from 0 to K drafts in every row and step, rows that end early,
and rows that end with an end-of-sequence token, also inside accepted drafts. The real layouts place every token, so
a trace is the expected answer, and opens in the player. `figure2()` gives the recorded worked example.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from emssd import __version__
from emssd.config import SpeculativeConfig
from emssd.scripted_run import ScriptedRow, ScriptedStep, drive
from emssd.simulator import FIRST_ID, WORDS, words
from emssd.trace import GenerationTrace, RequestTrace

METHODS = ("vanilla", "ems-sd")
EOS_ID = 2
MAX_PROMPT = 9
MAX_ROWS = 5
TRACES = Path(__file__).resolve().parents[2] / "assets" / "traces"


@dataclass(frozen=True)
class Script:
    """What a batch does, whatever the method.

    Args:
        rows: each request's prompt, its output (with the end-of-sequence token, if it ends with one), and its steps.
        vocab: ids 0..vocab - 1 exist; words begin at `FIRST_ID`.
        num_draft_tokens: K, the most drafts of a step.
        max_new_tokens: where rows end that put out no end-of-sequence token.
    """

    rows: tuple[ScriptedRow, ...]
    vocab: int
    num_draft_tokens: int
    max_new_tokens: int


def random_batch(
    seed: int,
    steps: int = 8,
    rows: int | None = None,
    eos: bool = True,
    methods: Sequence[str] = METHODS,
) -> dict[str, GenerationTrace]:
    """Correct traces of one random batch, by method.

    The t-th decode step of a row has the same drafts, answers and gain in all methods ("greedy" gets no drafts).

    Args:
        seed: the same seed gives the same batch.
        steps: decode steps of the slowest row, 1 or more; the other rows end in this step or before.
        rows: 2 to 5; None draws it.
        eos: let some rows end with `EOS_ID`.
        methods: command-line names: "greedy", "vanilla", "packed-input", "ragged-cache", "ems-sd".
    """
    script = random_script(seed, steps, rows, eos)
    return {method: run_script(script, method) for method in methods}


def random_script(seed: int, steps: int = 8, rows: int | None = None, eos: bool = True) -> Script:
    """Draw a batch. Arguments as in `random_batch`; prompts have 1 to 9 tokens, all of different lengths."""
    draw = Random(f"lesson batch {seed}")
    count = draw.randint(2, MAX_ROWS) if rows is None else rows
    most = draw.randint(3, 6)
    vocab = FIRST_ID + draw.randint(8, len(WORDS))
    lengths = draw.sample(range(1, MAX_PROMPT + 1), count)
    wishes = [_wishes(draw, steps, most) for _ in range(count)]
    totals = [sum(accepted + 1 for _, accepted in wish) for wish in wishes]
    decoded = min(totals)
    slowest = totals.index(decoded)
    scripted = []
    for row, (length, wish) in enumerate(zip(lengths, wishes, strict=True)):
        ends = eos and row != slowest and decoded > 1 and draw.random() < 0.4
        scripted.append(_script_row(draw, vocab, length, wish, draw.randint(1, decoded - 1) if ends else decoded, ends))
    return Script(tuple(scripted), vocab, most, decoded + 1)


def _wishes(draw: Random, steps: int, most: int) -> list[tuple[int, int]]:
    """[steps] of (drafts, accepted) that a row would have if it never ended."""
    rate, wishes = draw.uniform(0.2, 0.95), []
    for _ in range(steps):
        drafted = draw.randint(0, most)
        accepted = 0
        while accepted < drafted and draw.random() < rate:
            accepted += 1
        wishes.append((drafted, accepted))
    return wishes


def _script_row(
    draw: Random, vocab: int, length: int, wishes: Sequence[tuple[int, int]], decoded: int, eos: bool
) -> ScriptedRow:
    """A row that decodes `decoded` tokens after its first one; the last of them is `EOS_ID` where `eos` says so."""

    def tokens(number: int) -> list[int]:
        return [draw.randrange(FIRST_ID, vocab) for _ in range(number)]

    prompt, output = tokens(length), tokens(1 + decoded)
    if eos:
        output[-1] = EOS_ID
    steps, done = [], 0
    for drafted, accepted in wishes:
        left = decoded - done
        if not left:
            break
        drafted = drafted if eos else min(drafted, left - 1)  # only an end of sequence may cut drafts
        accepted = min(accepted, drafted, left)
        gained = min(accepted + 1, left)
        right = output[1 + done : 1 + done + gained]
        answers = right + tokens(drafted + 1 - gained)
        drafts = right[:accepted] + tokens(drafted - accepted)
        if accepted < drafted and drafts[accepted] == answers[accepted]:
            drafts[accepted] = FIRST_ID if drafts[accepted] > FIRST_ID else FIRST_ID + 1
        steps.append(ScriptedStep(drafts, answers, gained))
        done += gained
    return ScriptedRow(prompt, output, steps)


def run_script(script: Script, method: str) -> GenerationTrace:
    """The trace of a batch under one method: the method's own layout places the tokens."""
    config = SpeculativeConfig.for_method(
        method,
        num_draft_tokens=script.num_draft_tokens,
        max_new_tokens=script.max_new_tokens,
        eos_token_ids=(EOS_ID,),
    )
    rows = script.rows if config.drafts else tuple(row.one_by_one() for row in script.rows)
    trace = _empty_trace(config, script)
    drive(trace, config, rows)
    return trace


def _empty_trace(config: SpeculativeConfig, script: Script) -> GenerationTrace:
    """A trace that has its requests and no steps."""
    rows = [
        RequestTrace(row.prompt, words(row.prompt), row.output, _text(row.output), _reason(row.output))
        for row in script.rows
    ]
    return GenerationTrace(
        config=config.to_dict(),
        method=config.method,
        drafter={"name": "invented" if config.drafts else "none"},
        attention="simulated",
        model=_model(script.vocab),
        rows=rows,
        tokens={str(FIRST_ID + place): f" {word}" for place, word in enumerate(WORDS)} | {"0": "<pad>", "2": "<end>"},
        emssd_version=__version__,
    )


def _reason(output: Sequence[int]) -> str:
    return "eos" if output[-1] == EOS_ID else "length"


def _text(output: Sequence[int]) -> str:
    return words(output[:-1]) + "<end>" if output[-1] == EOS_ID else words(output)


def _model(vocab: int) -> dict[str, Any]:
    """A model of the smallest sizes, as a trace describes it: nothing is computed with it."""
    sizes = {"layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 8, "hidden": 8, "parameters": 16 * vocab}
    return {
        "name": "invented",
        "architecture": "simulated",
        "dtype": "float32",
        "device": "simulated",
        "vocab": vocab,
        "pad_token_id": 0,
        **sizes,
    }


@lru_cache(maxsize=8)
def recorded(preset: str, method: str) -> GenerationTrace:
    """A shipped trace of `assets/traces`. Shared between callers: read it, do not change it."""
    return GenerationTrace.from_json(TRACES / preset / f"{method}.json")


def figure2() -> dict[str, GenerationTrace]:
    """The paper's worked example as recorded: prompts of 5 and 3 tokens, gains 4 and 1, then 2 and 6."""
    return {method: recorded("figure2", method) for method in METHODS}
