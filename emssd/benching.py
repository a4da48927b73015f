"""The command `bench`: from its arguments to tables, files and a figure."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from emssd.acceptance_replay import AcceptanceReplayDrafter
from emssd.bench_figure import check_figure, draw_figure
from emssd.bench_inputs import COPY_POOR, COPY_RICH, INVENTED, Replay, encode_set, invented_set, read_replay, read_sets
from emssd.bench_model import ModelComparison, compare_with_model
from emssd.bench_plan import GREEDY, BenchPlan, Entry, PromptSet
from emssd.bench_reporting import (
    bench_markdown,
    bench_table,
    copies_warning,
    crossing_lines,
    difference_lines,
    figure_caption,
    model_lines,
    model_table,
)
from emssd.bench_results import BenchResults
from emssd.bench_state import BenchState, read_state
from emssd.benchmark import Benchmark, bench_environment
from emssd.calibrating import calibrate_with_bar
from emssd.cost_model import CostModel
from emssd.drafting import Drafter, DraftModelDrafter, PromptLookupDrafter, check_same_tokenizer
from emssd.errors import ConfigError, PromptError, Terminated
from emssd.language_model import LanguageModel
from emssd.measured_machine import CalibrationError, MeasuredMachine, machine_cost_model, save_calibration
from emssd.random_weights import load_random_weights
from emssd.reporting import plural
from emssd.result_files import STDOUT, check_target, note, write_text
from emssd.session import load
from emssd.streaming import progress_bar

DONE, FAILED = 0, 1
BUSY = 0.75
"""Load average for each processor above which measurements are said to be noisy."""


@contextmanager
def ends_on_sigterm() -> Iterator[None]:
    """SIGTERM raises `Terminated` in the block; a thread beside the main one cannot be reached by it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> NoReturn:
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@ends_on_sigterm()
def bench_command(args: argparse.Namespace) -> int:
    """Measure methods, batch sizes and drafters; 1 where outputs differ or the cost model does not agree."""
    plan, replay = read_plan(args)
    folder = _folder(args.out)
    for target in (args.json, args.csv, args.markdown, args.figure):
        check_target(target)
    if [args.json, args.csv, args.markdown].count(STDOUT) > 1:
        raise ConfigError("Only one of --json, --csv and --markdown can be printed.")
    if args.resume and folder is None:
        raise ConfigError("--resume goes on with the measurements in a folder: name it with --out DIR.")
    figure = args.figure or (str(folder / "figure.svg") if folder else None)
    if figure is not None:
        check_figure(figure)
    texts = read_sets(args.prompts or _default_prompts(args))
    lm = _load(args)
    draft_lm = load(plan.draft_model, args) if plan.draft_model else None
    if draft_lm is not None:
        check_same_tokenizer(lm, draft_lm)
    sets = [_prompt_set(lm, name, prompts, plan, replay, args) for name, prompts in texts.items()]
    for warning in (copies_warning(prompts, plan.batch_sizes) for prompts in sets):
        if warning:
            note(f"warning: {warning}")
    environment = bench_environment(lm)
    with closing(BenchState.open(folder, plan.to_dict(sets), environment, args.resume, note)) as state:
        _warn_of_load(environment)
        _measure(Benchmark(lm, plan, sets, _DrafterMaker(plan, draft_lm, replay), state), args)
        results = BenchResults.of(state)
        comparison = compare_with_model(results, _cost_model(state)) if args.compare_model else None
        if comparison is not None:
            results = replace(results, model=comparison.to_dict())
        _write(results, args, folder, figure)
    _report(results, comparison, args)
    return DONE if results.passed and (comparison is None or comparison.passed) else FAILED


def read_plan(args: argparse.Namespace) -> tuple[BenchPlan, Replay | None]:
    """The settings of the command line, checked; nothing is loaded.

    Raises:
        ConfigError: says what does not fit.
    """
    if args.num_prompts is not None and args.num_prompts < 1:
        raise ConfigError(f"--num-prompts must be a whole number from 1, not {args.num_prompts}.")
    plan = BenchPlan(
        batch_sizes=tuple(_numbers(args.batch_sizes)),
        methods=tuple(_names(args.methods)),
        drafters=tuple(_names(args.drafters)),
        repeats=args.repeats,
        max_new_tokens=args.max_new_tokens,
        num_draft_tokens=args.num_draft_tokens,
        ngram_size=args.ngram_size,
        lookup=args.lookup,
        draft_model=args.draft_model,
        replay=args.replay,
        ignore_eos=args.ignore_eos,
        transformers=not args.no_transformers,
        seed=args.seed,
    )
    PromptLookupDrafter(plan.ngram_size, args.lookup)
    replay = read_replay(plan.replay, plan.num_draft_tokens, plan.max_new_tokens) if plan.replay else None
    prompts = args.prompts or _default_prompts(args)
    if args.random_weights and prompts != [INVENTED]:
        raise ConfigError("--random-weights has no tokenizer: give --prompts invented with --replay paper.")
    if INVENTED in prompts and (replay is None or replay.acceptance is None):
        raise ConfigError("Invented prompts need lengths to follow: add --drafters replay --replay paper.")
    if args.compare_model and not any(_is_modelled(entry) for entry in plan.entries(plan.batch_sizes[-1])):
        raise ConfigError("--compare-model needs a method beside greedy whose drafter is not a draft model.")
    if args.random_weights and args.draft_model:
        raise ConfigError("--random-weights has no tokenizer to share with a --draft-model: leave one of them out.")
    return (plan if replay is None else replace(plan, replay=replay.name)), replay


def _is_modelled(entry: Entry) -> bool:
    return entry != GREEDY and entry.is_ours and entry.drafter != "draft-model"


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text: str) -> list[int]:
    try:
        return [int(name) for name in _names(text)]
    except ValueError:
        raise ConfigError(f"--batch-sizes must be whole numbers with commas, as in 1,2,4, not {text!r}.") from None


def _default_prompts(args: argparse.Namespace) -> list[str]:
    return [INVENTED] if args.random_weights else [COPY_RICH, COPY_POOR]


def _load(args: argparse.Namespace) -> LanguageModel:
    if args.random_weights:
        return load_random_weights(args.random_weights, args.device, args.dtype)
    return load(args.model, args)


def _folder(out: str | None) -> Path | None:
    """The folder for results, made where it is missing."""
    if out is None:
        return None
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"The folder {out} cannot be made ({error.strerror or error}): name another one.") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"The folder {out} cannot be written: name another one.")
    return folder


def _prompt_set(
    lm: LanguageModel,
    name: str,
    texts: list[str],
    plan: BenchPlan,
    replay: Replay | None,
    args: argparse.Namespace,
) -> PromptSet:
    most = max(plan.batch_sizes)
    if name == INVENTED and not texts:
        assert replay is not None
        assert replay.acceptance is not None  # `read_plan` refuses it otherwise
        return invented_set(lm, replay.acceptance, args.num_prompts or most, plan.max_new_tokens, plan.seed)
    if lm.tokenizer is None:
        raise PromptError(f"{lm.name} has no tokenizer: give --prompts invented with --replay paper.")
    return encode_set(lm, name, texts, args.chat, args.num_prompts, most)


def _warn_of_load(environment: dict[str, Any]) -> None:
    load, cpus = environment["load_average"], environment["cpus"]
    if load and cpus and load[0] > BUSY * cpus:
        note(
            f"warning: the load average is {load[0]:.1f} on {plural(cpus, 'processor')}: other work makes these "
            "measurements noisy."
        )


class _DrafterMaker:
    """Makes the drafter of a batch."""

    def __init__(self, plan: BenchPlan, draft_lm: LanguageModel | None, replay: Replay | None) -> None:
        self.plan, self.draft_lm, self.replay = plan, draft_lm, replay

    def __call__(
        self, name: str, prompts: PromptSet, rows: Sequence[int], expected: Sequence[Sequence[int]]
    ) -> Drafter:
        """The drafter of a batch: see `benchmark.DrafterMaker`."""
        if name == "draft-model" and self.draft_lm is not None:
            return DraftModelDrafter(self.draft_lm)
        if name == "replay" and self.replay is not None:
            lengths = self.replay.for_rows(len(prompts.prompts), self.plan.seed)
            return AcceptanceReplayDrafter([lengths[row] for row in rows], expected, repeat=True)
        source: Any = self.plan.lookup
        return PromptLookupDrafter(self.plan.ngram_size, source)


def _measure(benchmark: Benchmark, args: argparse.Namespace) -> None:
    """Calibrate where asked to, and measure what is missing."""
    benchmark.check()
    try:
        if args.compare_model and benchmark.state.calibration is None:
            _calibrate(benchmark, args)
        _run_with_bar(benchmark, args.quiet)
    except KeyboardInterrupt:
        note(_kept(benchmark.state.path))
        raise


def _kept(path: Path | None) -> str:
    """What an interrupted benchmark has left, by its file: a record may be written and not yet counted."""
    if path is None:
        return "Nothing was kept: with --out DIR an interrupted bench can go on."
    kept = sum(record["kind"] == "repeat" for record in read_state(path).records)
    return (
        f"{plural(kept, 'finished repeat')} {'is' if kept == 1 else 'are'} kept in {path.parent}: "
        "the same command with --resume goes on."
    )


def _run_with_bar(benchmark: Benchmark, quiet: bool) -> None:
    plan = benchmark.plan
    tokens = sum(plan.tokens(prompts) for prompts in benchmark.sets)
    bar = progress_bar(tokens, quiet, done=_tokens_done(benchmark))

    def progress(what: str, tokens: int) -> None:
        bar.set_description(what, refresh=False)
        bar.update(tokens)

    benchmark.progress = progress
    try:
        benchmark.run()
    finally:
        bar.close()


def _tokens_done(benchmark: Benchmark) -> int:
    """Tokens of what was measured in an earlier process, as progress counts them."""
    plan, done = benchmark.plan, 0
    for prompts in benchmark.sets:
        if benchmark.state.expected(prompts.name) is not None:
            done += len(prompts.prompts)
        for size in plan.batch_sizes:
            rows = sum(map(len, prompts.batches(size)))
            done += rows * len(plan.entries(size)) * len(benchmark.state.repeats(prompts.name, size))
    return done * plan.max_new_tokens


def _calibrate(benchmark: Benchmark, args: argparse.Namespace) -> None:
    measured = calibrate_with_bar(benchmark.lm, args.quiet)
    try:
        save_calibration(measured)
    except CalibrationError as error:
        note(f"warning: {error}")
    benchmark.state.add({"kind": "calibration", "measured": measured.to_dict()})


def _cost_model(state: BenchState) -> CostModel:
    """Costs of this machine by the calibration that was made with the benchmark."""
    return machine_cost_model(MeasuredMachine.from_dict(state.calibration or {}))


def _description(results: BenchResults) -> str:
    settings = results.settings
    prompts = ", ".join(plural(about["count"], f"{name} prompt") for name, about in settings["prompts"].items())
    ends = ", ends of sequence ignored" if settings["ignore_eos"] else ""
    return (
        f"{results.environment['model']}: {prompts}; up to {settings['max_new_tokens']} new tokens each{ends}, "
        f"K = {settings['num_draft_tokens']}"
    )


def _write(results: BenchResults, args: argparse.Namespace, folder: Path | None, figure: str | None) -> None:
    """Write the files asked for; "-" prints one of them."""
    data = json.dumps(results.to_dict(), ensure_ascii=False, allow_nan=False, indent=1)
    table, markdown = results.to_csv(), bench_markdown(results, _description(results))
    for target, text in ((args.json, data), (args.csv, table), (args.markdown, markdown)):
        if target:
            write_text(target, text)
    if folder is not None:
        for name, text in (("results.json", data), ("results.csv", table), ("results.md", markdown)):
            write_text(str(folder / name), text)
    for path in {figure, str(folder / "figure.svg") if folder else None} - {None}:
        draw_figure(results, Path(str(path)), figure_caption(results))


def _report(results: BenchResults, comparison: ModelComparison | None, args: argparse.Namespace) -> None:
    printed = STDOUT in (args.json, args.csv, args.markdown)
    out = sys.stderr if printed else sys.stdout
    if not printed:
        print(bench_table(results, _description(results)))
        print()
    for line in [*crossing_lines(results), *difference_lines(results)]:
        print(line, file=out)
    if comparison is not None:
        print("\n".join(model_lines(comparison)) if printed else f"\n{model_table(comparison)}", file=out)
