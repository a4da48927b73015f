"""A toy run as an ordinary trace of one row, so that the case of a failed check opens in the player."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from emssd.lessons.batches import Script, run_script
from emssd.scripted_run import ScriptedRow, ScriptedStep
from emssd.trace import GenerationTrace

SPARE_ID = 1  # vocabularies have one id more than the case needs: the token of steps that only fill a row up


def one_row_trace(
    method: str,
    prompt: Sequence[int],
    output: Sequence[int],
    steps: Sequence[ScriptedStep],
    vocab_size: int,
    eos_token_ids: Collection[int] = (),
) -> GenerationTrace:
    """The correct trace of a row that put out `output` in `steps`; a token's text is its id.

    Args:
        method: "greedy" (then `steps` are not looked at) or "ems-sd".
        prompt, output: token ids; the first of `output` comes from prefill.
        steps: decode steps, together gaining `output[1:]`.
        vocab_size: ids 0 .. vocab_size - 1 exist.
        eos_token_ids: ids that end the row.
    """
    row = ScriptedRow(list(prompt), list(output), list(steps))
    most = max([len(step.drafts) for step in steps], default=0)
    trace = run_script(Script((row,), vocab_size, max(most, 1), len(output)), method)
    trace.config["eos_token_ids"] = sorted(eos_token_ids)
    trace.tokens = {str(token): f" {token}" for token in range(vocab_size)}
    request = trace.rows[0]
    request.prompt_text, request.output_text = _text(prompt), _text(output)
    request.finish_reason = "eos" if output[-1] in eos_token_ids else "length"
    return trace


def verdict_trace(draft: Sequence[int], target: Sequence[int], gained: int, eos: Collection[int]) -> GenerationTrace:
    """A row whose step 1 is judged as given; steps without drafts follow until the row is as long as it could be."""
    vocab_size = max([*draft, *target, *eos]) + 2
    pending = vocab_size - SPARE_ID
    first = ScriptedStep(list(draft), list(target), gained)
    steps, output = [first], [pending, *target[:gained]]
    while output[-1] not in eos and len(output) < len(draft) + 2:
        steps.append(ScriptedStep([], [pending], 1))
        output.append(pending)
    return one_row_trace("ems-sd", [pending], output, steps, vocab_size, eos)


def _text(token_ids: Sequence[int]) -> str:
    return "".join(f" {token}" for token in token_ids)
