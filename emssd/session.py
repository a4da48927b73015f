"""What the commands share: from command-line arguments to a model, a drafter and batches of checked prompts."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers

from emssd.config import SpeculativeConfig
from emssd.decoding import GenerationRun
from emssd.draft_scripts import check_proposals, read_proposals
from emssd.drafting import Drafter, DraftModelDrafter, PromptLookupDrafter, ScriptedDrafter, check_same_tokenizer
from emssd.errors import ConfigError, PromptError
from emssd.language_model import LanguageModel
from emssd.loading import load_model
from emssd.prompts import default_prompts, read_prompts
from emssd.request import Prompt, encode_prompts
from emssd.result_files import STDOUT, note, write_text
from emssd.result_files import check_target as check_target
from emssd.streaming import TextPrinter, progress_bar, writer
from emssd.trace import GenerationTrace


class _Notes(logging.Handler):
    """Shows what the package has to say while it loads, for example a first conversion."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


@dataclass
class Session:
    """A command's model and settings.

    Args:
        args: the command line.
        lm: the target model.
        drafter: None for prompt lookup's defaults, or where nothing is drafted.
        settings: what all methods share.
        proposals: [prompts][steps] token ids of a script, which drafts in place of `drafter`.
    """

    args: argparse.Namespace
    lm: LanguageModel
    drafter: Drafter | None
    settings: dict[str, Any] = field(default_factory=dict)
    proposals: list[list[list[int]]] | None = None

    @classmethod
    def open(cls, args: argparse.Namespace) -> Session:
        """Check the settings, then load the models.

        Raises:
            EmssdError: a setting is out of range, or a model cannot be loaded.
        """
        settings = {
            "num_draft_tokens": args.num_draft_tokens if drafter_name(args) != "none" else 0,
            "max_new_tokens": args.max_new_tokens,
            "seed": args.seed,
            "check_invariants": args.check_invariants,
            "num_top_tokens": args.top_tokens,
        }
        SpeculativeConfig.for_method(args.method or "ems-sd", **settings)
        PromptLookupDrafter(args.ngram_size, args.lookup)
        proposals = _proposals(args)
        lm = load(args.model, args)
        return cls(args, lm, _drafter(args, lm), settings, proposals)

    @property
    def config(self) -> SpeculativeConfig:
        """Settings of the chosen method."""
        return SpeculativeConfig.for_method(self.args.method or "ems-sd", **self.settings)

    def batches(self, prompts: Sequence[Prompt], batch_size: int | None) -> list[Batch]:
        """Encode the prompts, report the bad ones on stderr, and group the good ones.

        Raises:
            PromptError: there are no prompts, or no good ones.
            ConfigError: the script of drafts does not fit.
        """
        if self.proposals is not None:
            most = self.args.num_draft_tokens
            check_proposals(self.args.proposals, self.proposals, len(prompts), most, self.lm.vocab_size)
        encoded = encode_prompts(self.lm, prompts, self.args.chat)
        good = [(row, ids) for row, ids in enumerate(encoded.token_ids) if ids is not None]
        if not good:
            raise PromptError(" ".join(encoded.problems[row] for row in sorted(encoded.problems)))
        for row in sorted(encoded.problems):
            note(f"warning: {encoded.problems[row]} This row is left out.")
        size = batch_size or len(good)
        groups = [good[start : start + size] for start in range(0, len(good), size)]
        return [Batch([row for row, _ in group], [ids for _, ids in group]) for group in groups]

    def decode(self, batches: Sequence[Batch], shown: bool, done: Callable[[list[GenerationTrace]], None]) -> None:
        """Decode the batches one after another, with text on stdout and progress on stderr.

        Args:
            batches: what `batches` returned.
            shown: print the texts.
            done: takes the traces, also the valid beginnings of them when the user interrupts.

        Raises:
            ConfigError: a batch would not fit into memory; nothing has run then.
            KeyboardInterrupt: after `done`.
        """
        runs = [GenerationRun(self.lm, batch.prompts, self.config, self._drafter_of(batch)) for batch in batches]
        alone = len(batches) == 1 and len(batches[0].rows) == 1
        total = sum(request.output_limit for run in runs for request in run.requests)
        bar = progress_bar(total, self.args.quiet or (alone and shown))
        traces = []
        try:
            for run, batch in zip(runs, batches, strict=True):
                traces.append(run.trace)
                printer = TextPrinter(batch.rows, writer(bar) if shown else lambda piece: None, alone)
                try:
                    for step in run:
                        printer.show(run.trace)
                        bar.update(sum(row.num_emitted for row in step.rows))
                        if step.index == self.args.steps:
                            run.close()
                finally:
                    settle(self.lm, run.trace)
                    printer.show(run.trace, ended=True)
        finally:
            bar.close()
            done(traces)

    def _drafter_of(self, batch: Batch) -> Drafter | None:
        if self.proposals is None:
            return self.drafter
        return ScriptedDrafter([self.proposals[row] for row in batch.rows])


@dataclass(frozen=True)
class Batch:
    """Prompts decoded together; `rows` are their numbers among all prompts given."""

    rows: list[int]
    prompts: list[list[int]]


def settle(lm: LanguageModel, trace: GenerationTrace) -> None:
    """Cut what an interrupted step had put out but not recorded, so that the trace is valid."""
    for row, request in enumerate(trace.rows):
        emitted = [token for step in trace.steps for token in step.rows[row].emitted_token_ids]
        if request.output_token_ids != emitted:
            request.output_token_ids, request.finish_reason = emitted, None
            request.output_text = lm.decode(emitted) if lm.tokenizer is not None else None


def load(name: str, args: argparse.Namespace) -> LanguageModel:
    """Load a model on the device and in the dtype asked for, without the library's own chatter."""
    log = logging.getLogger("emssd")
    if not args.quiet and not any(isinstance(handler, _Notes) for handler in log.handlers):
        log.addHandler(_Notes())
        log.setLevel(logging.INFO)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return load_model(name, device=args.device, dtype=args.dtype)


def drafter_name(args: argparse.Namespace) -> str:
    """The drafter asked for; naming a draft model or a script asks for it."""
    implied = "draft-model" if args.draft_model else "scripted" if args.proposals else "prompt-lookup"
    return str(args.drafter or implied)


def _proposals(args: argparse.Namespace) -> list[list[list[int]]] | None:
    """The script that the command line names; read before anything is loaded."""
    name = drafter_name(args)
    if name == "scripted":
        if not args.proposals:
            raise ConfigError("--drafter scripted needs --proposals FILE.")
        if str(args.method).startswith("greedy"):
            raise ConfigError(
                f"--method {args.method} drafts nothing: leave out --proposals, or choose another method."
            )
        return read_proposals(args.proposals)
    if args.proposals:
        raise ConfigError(f"--proposals goes with --drafter scripted, not with {name}.")
    return None


def _drafter(args: argparse.Namespace, lm: LanguageModel) -> Drafter | None:
    name = drafter_name(args)
    if name != "draft-model" and args.draft_model:
        raise ConfigError(f"--draft-model goes with --drafter draft-model, not with {name}.")
    if name in ("none", "scripted"):
        return None
    if name == "prompt-lookup":
        return PromptLookupDrafter(args.ngram_size, args.lookup)
    if not args.draft_model:
        raise ConfigError("--drafter draft-model needs --draft-model NAME.")
    draft_lm = load(args.draft_model, args)
    check_same_tokenizer(lm, draft_lm)
    return DraftModelDrafter(draft_lm)


def given_prompts(args: argparse.Namespace) -> list[str] | None:
    """The prompts of the command line, in order; None if there are none.

    Raises:
        PromptError: a file cannot be read.
    """
    prompts = list(args.prompt or [])
    for path in args.prompts or []:
        prompts += read_prompts(path)
    return prompts if args.prompt or args.prompts else None


def shipped_prompts(number: int) -> list[str]:
    """The first prompts that come with the package."""
    return [entry.prompt for entry in default_prompts()[:number]]


def save_traces(path: str, traces: Sequence[GenerationTrace], quiet: bool) -> None:
    """Save each batch's trace: FILE, or FILE-1, FILE-2, ... for several; "-" prints one a line."""
    for number, trace in enumerate(traces, start=1):
        target = path
        if path != STDOUT and len(traces) > 1:
            target = str(Path(path).with_name(f"{Path(path).stem}-{number}{Path(path).suffix}"))
        write_text(target, trace.to_json())
        if path != STDOUT and not quiet:
            note(f"Trace written to {target}.")
