"""The commands that run a model: generate, record, compare, replay. Each returns the exit code."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from emssd.comparing import Comparison, compare_methods, run_batch, total_of
from emssd.config import METHODS
from emssd.errors import ConfigError, EmssdError, PromptError, TraceError
from emssd.language_model import LanguageModel
from emssd.oracle import Difference, compare_outputs
from emssd.output_files import Output, read_outputs, write_outputs
from emssd.replaying import replay
from emssd.reporting import comparison_table, difference_line, plural, summary_line, verdict
from emssd.result_files import STDOUT, check_target, note, write_text
from emssd.session import Batch, Session, drafter_name, given_prompts, load, save_traces, shipped_prompts
from emssd.streaming import progress_bar
from emssd.trace import GenerationTrace
from emssd.trace_diff import diff_lines

DONE, FAILED = 0, 1
NO_PROMPTS = 'There are no prompts: give --prompt "TEXT" or --prompts FILE ("--prompts -" reads stdin).'


def generate_command(args: argparse.Namespace) -> int:
    """Decode prompts and print what they give."""
    return _decode(args, args.json, shown=args.json != STDOUT)


def record_command(args: argparse.Namespace) -> int:
    """Decode prompts and write the trace."""
    if args.out and args.json and args.out != args.json:
        raise ConfigError("Name the trace file once: OUT or --json.")
    target = args.out or args.json
    if not target:
        raise ConfigError("record needs a file for the trace, for example: emssd record run.json --prompt TEXT")
    return _decode(args, target, shown=False)


def _decode(args: argparse.Namespace, target: str | None, shown: bool) -> int:
    check_target(target)
    prompts = given_prompts(args)
    if prompts is None:
        raise PromptError(NO_PROMPTS)
    session = Session.open(args)
    batches = session.batches(prompts, args.batch_size)

    def done(traces: list[GenerationTrace]) -> None:
        if target is not None:
            save_traces(target, traces, args.quiet)
        if not args.quiet:
            note(summary_line(total_of(traces), sum(len(trace.rows) for trace in traces)))

    session.decode(batches, shown, done)
    return DONE


def compare_command(args: argparse.Namespace) -> int:
    """Run all methods on the same prompts, or one against outputs from elsewhere."""
    check_target(args.json)
    check_target(args.save_outputs)
    if args.against:
        return _compare_against(args)
    if args.method:
        raise ConfigError("compare runs all methods: --method goes with --against only.")
    prompts = given_prompts(args)
    if prompts is None:
        prompts = shipped_prompts(args.batch_size)
    session = Session.open(args)
    batches = session.batches(prompts, args.batch_size)
    number = sum(len(batch.rows) for batch in batches)
    bar = progress_bar(number * args.max_new_tokens * (len(METHODS) * args.repeats + 1), args.quiet)

    def progress(what: str, tokens: int) -> None:
        bar.set_description(what, refresh=False)
        bar.update(tokens)

    try:
        comparison = compare_methods(
            session.lm,
            [batch.prompts for batch in batches],
            session.settings,
            session.drafter,
            repeats=args.repeats,
            rows=[row for batch in batches for row in batch.rows],
            progress=progress,
        )
    finally:
        bar.close()
    _report_comparison(session, comparison, batches)
    return DONE if comparison.passed else FAILED


def _report_comparison(session: Session, comparison: Comparison, batches: Sequence[Batch]) -> None:
    args = session.args
    if args.json:
        data = comparison.to_dict(args.with_traces)
        write_text(args.json, json.dumps(data, ensure_ascii=False, allow_nan=False))
    if args.save_outputs:
        write_outputs(args.save_outputs, comparison.prompts, comparison.expected)
    out = sys.stderr if args.json == STDOUT else sys.stdout
    if args.json != STDOUT:
        print(comparison_table(comparison, _description(session, batches)))
    print(verdict(comparison), file=out)
    for name, result in comparison.methods.items():
        for difference in result.differences:
            print(difference_line(session.lm, difference, name, "plain"), file=out)


def _description(session: Session, batches: Sequence[Batch]) -> str:
    args, rows = session.args, sum(len(batch.rows) for batch in batches)
    drafter = drafter_name(args)
    if drafter == "prompt-lookup":
        drafter = f"prompt lookup in the {args.lookup}, {args.ngram_size}-token key, K = {args.num_draft_tokens}"
    elif drafter == "draft-model":
        drafter = f"draft model {args.draft_model}, K = {args.num_draft_tokens}"
    else:
        drafter = "no drafts"
    groups = "" if len(batches) == 1 else f" in {len(batches)} batches of up to {args.batch_size}"
    return (
        f"{session.lm.name}: {plural(rows, 'prompt')}{groups}, up to {args.max_new_tokens} new tokens each, {drafter}"
    )


def _compare_against(args: argparse.Namespace) -> int:
    """Decode the file's prompts and hold our outputs against the file's."""
    if args.prompt or args.prompts:
        raise ConfigError("--against brings its own prompts: leave out --prompt and --prompts.")
    if args.repeats != 1 or args.with_traces or args.save_outputs:
        raise ConfigError("--repeats, --with-traces and --save-outputs do not go with --against: leave them out.")
    outputs = read_outputs(args.against)
    session = Session.open(args)
    _check_ids(session.lm, args.against, outputs)
    longest = args.max_new_tokens if args.limit_given else max(len(output.output_token_ids) for output in outputs)
    config = session.config.with_settings(max_new_tokens=longest)
    bar = progress_bar(longest * len(outputs), args.quiet)
    differences: list[Difference] = []
    size = args.batch_size
    try:
        for start in range(0, len(outputs), size):
            group = outputs[start : start + size]
            trace = run_batch(session.lm, [o.prompt_token_ids for o in group], config, session.drafter, bar.update)
            for row, (output, ours) in enumerate(zip(group, trace.rows, strict=True), start=start):
                found = compare_outputs(
                    session.lm,
                    output.prompt_token_ids,
                    output.output_token_ids,
                    ours.output_token_ids,
                    row=row,
                    max_new_tokens=longest,
                )
                differences += [] if found is None else [found]
    finally:
        bar.close()
    return _report_against(session, outputs, differences, config.method, longest)


def _check_ids(lm: LanguageModel, path: str, outputs: Sequence[Output]) -> None:
    for output in outputs:
        where, length = f"{path}, line {output.line}", len(output.prompt_token_ids)
        for token in (*output.prompt_token_ids, *output.output_token_ids):
            if token >= lm.vocab_size:
                raise PromptError(
                    f"{where}: token id {token} is outside the vocabulary 0..{lm.vocab_size - 1} of {lm.name}."
                )
        if lm.context_length is not None and length > lm.context_length:
            raise PromptError(
                f"{where}: the prompt has {length} tokens, but {lm.name} takes at most {lm.context_length}."
            )


def _report_against(
    session: Session, outputs: Sequence[Output], differences: list[Difference], method: str, longest: int
) -> int:
    args, failures = session.args, [difference for difference in differences if not difference.near_tie]
    same, ties = len(outputs) - len(differences), len(differences) - len(failures)
    if args.json:
        data = {
            "against": args.against,
            "method": method,
            "rows": len(outputs),
            "identical": same,
            "near_ties": [vars(difference) for difference in differences if difference.near_tie],
            "differences": [vars(difference) for difference in failures],
        }
        write_text(args.json, json.dumps(data, ensure_ascii=False, allow_nan=False))
    out = sys.stderr if args.json == STDOUT else sys.stdout
    for difference in differences:
        line = outputs[difference.row].line
        print(f"{difference_line(session.lm, difference, f'line {line}', 'the file has')}", file=out)
    tail = f", {plural(ties, 'near-tie')}" if ties else ""
    limit = f"up to {plural(longest, 'new token')} each"
    print(f"{method}: {same} of {plural(len(outputs), 'output')} identical to {args.against}, {limit}{tail}.", file=out)
    return FAILED if failures else DONE


def replay_command(args: argparse.Namespace) -> int:
    """Run a recorded trace again and compare."""
    trace = GenerationTrace.from_json(Path(args.trace))
    named = trace.model.get("name")
    if args.model is None and not isinstance(named, str):
        raise TraceError("model.name is missing from the trace: give --model.")
    if args.dtype is None:
        args.dtype = str(trace.model.get("dtype", "auto"))
    lm = _load_named(args.model, str(named), "--model", args)
    bar = progress_bar(len(trace.steps), args.quiet, unit="step")
    try:
        _, comparison = replay(
            lm,
            trace,
            lambda name: _load_named(args.draft_model, name, "--draft-model", args),
            lambda step: bar.update(1),
        )
    finally:
        bar.close()
    print("\n".join(diff_lines(comparison, f"recorded ({args.trace})", "this run", len(trace.rows))))
    return DONE if comparison.same else FAILED


def _load_named(given: str | None, recorded: str, option: str, args: argparse.Namespace) -> LanguageModel:
    """The model the user gives, or the one that the trace names."""
    if given is not None:
        return load(given, args)
    try:
        return load(recorded, args)
    except EmssdError as error:
        raise ConfigError(
            f"The model {recorded!r} that the trace names cannot be loaded here: {error} "
            f"If it lies elsewhere, say where with {option}."
        ) from error
