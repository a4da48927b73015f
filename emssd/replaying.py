"""Running a recorded trace again on a model: the same prompts, settings and drafts."""

from __future__ import annotations

from collections.abc import Callable

from emssd.decoding import GenerationRun, generate_steps
from emssd.drafting import Drafter, DraftModelDrafter, PromptLookupDrafter, ScriptedDrafter
from emssd.errors import ConfigError, TraceError
from emssd.language_model import LanguageModel
from emssd.trace import GenerationTrace, StepTrace
from emssd.trace_checking import read_config
from emssd.trace_diff import TraceComparison, compare_traces

# how drafts came about is not recorded for a script, and is lost where recorded drafts are fed instead
DRAFT_ORIGIN = frozenset({"draft_source", "draft_forwards"})


def replay(
    lm: LanguageModel,
    trace: GenerationTrace,
    load_draft: Callable[[str], LanguageModel],
    on_step: Callable[[StepTrace], None] = lambda step: None,
) -> tuple[GenerationTrace, TraceComparison]:
    """Run a trace again, as many steps as it has, and compare.

    Prompt lookup and draft models draft anew. Drafts of a script, of an unknown drafter, or under a draft length that
    a function chose are fed as recorded.

    Args:
        lm: the target model.
        trace: the recorded run.
        load_draft: loads a draft model by the name in the trace.
        on_step: called after every step.

    Returns:
        The new trace, and what differs (left: recorded, right: new).

    Raises:
        TraceError, ConfigError, PromptError: the trace does not say enough, or does not fit the model.
    """
    config = read_config(trace.config)
    drafter: Drafter | None = None
    ignored: frozenset[str] = frozenset()
    if callable(config.num_draft_tokens):
        drafter, ignored = recorded_drafts(trace), DRAFT_ORIGIN
        config = config.with_settings(num_draft_tokens=_recorded_lengths(trace))
    elif config.drafts:
        drafter = drafter_of(trace, load_draft)
        ignored = DRAFT_ORIGIN if isinstance(drafter, ScriptedDrafter) else ignored
    run = generate_steps(lm, [row.prompt_token_ids for row in trace.rows], config, drafter)
    _run_steps(run, len(trace.steps), on_step)
    return run.trace, compare_traces(trace, run.trace, ignored)


def _run_steps(run: GenerationRun, steps: int, on_step: Callable[[StepTrace], None]) -> None:
    if not steps:
        return
    for step in run:
        on_step(step)
        if len(run.trace.steps) >= steps and not run.trace.finished:
            run.close()


def drafter_of(trace: GenerationTrace, load_draft: Callable[[str], LanguageModel]) -> Drafter:
    """The drafter that a trace names; one that cannot be made again becomes a script of the recorded drafts.

    Raises:
        TraceError: the drafter's settings are not valid, or its draft model has no name.
    """
    described = dict(trace.drafter)
    name = described.pop("name", None)
    if name == "prompt-lookup":
        try:
            return PromptLookupDrafter(**described)
        except (TypeError, ConfigError) as error:
            raise TraceError(f"drafter: {error}") from None
    if name == "draft-model":
        model = described.get("model")
        if not isinstance(model, dict) or not isinstance(model.get("name"), str):
            raise TraceError("drafter.model.name is missing: the draft model cannot be loaded again.")
        return DraftModelDrafter(load_draft(model["name"]))
    return recorded_drafts(trace)


def recorded_drafts(trace: GenerationTrace) -> ScriptedDrafter:
    """A drafter that proposes what the trace says was fed as drafts."""
    steps = trace.decode_steps
    return ScriptedDrafter([[step.rows[row].draft_token_ids for step in steps] for row in range(len(trace.rows))])


def _recorded_lengths(trace: GenerationTrace) -> Callable[[int, int], int]:
    lengths = [[row.num_drafted for row in step.rows] for step in trace.decode_steps]
    return lambda row, step: lengths[step - 1][row] if step <= len(lengths) else 0
