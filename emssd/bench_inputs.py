"""What `bench` is given: prompt sets by name or file, and accepted lengths to replay."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from random import Random
from typing import Any

from emssd.acceptance import MAX_OUTPUT, Acceptance, check_whole
from emssd.acceptance_replay import check_lengths, invented_lengths, trace_lengths
from emssd.bench_plan import PromptSet
from emssd.errors import ConfigError, PromptError, TraceError, shown
from emssd.language_model import LanguageModel
from emssd.prompts import default_prompts, read_prompts
from emssd.request import encode_prompts
from emssd.result_files import note
from emssd.trace import GenerationTrace

COPY_RICH, COPY_POOR, DEFAULT, INVENTED = "copy-rich", "copy-poor", "default", "invented"
NAMED = (COPY_RICH, COPY_POOR, DEFAULT, INVENTED)
MAX_BYTES = 2**28


def named_prompts(name: str) -> list[str]:
    """The prompts of a shipped set.

    "copy-rich": those whose answers stand in them, `copy_rich.jsonl` first; "copy-poor": the others of the default
    set, those that share nothing with their answers first; "default": that set in its order.
    """
    entries = default_prompts()
    if name == COPY_RICH:
        entries = default_prompts("copy_rich") + [entry for entry in entries if entry.copying == "rich"]
    elif name == COPY_POOR:
        kinds = ("none", "some")
        entries = [entry for kind in kinds for entry in entries if entry.copying == kind]
    return list(dict.fromkeys(entry.prompt for entry in entries))


def read_sets(sources: Sequence[str]) -> dict[str, list[str]]:
    """The texts of every prompt set by its name; of "invented" there are none.

    Raises:
        PromptError: a file cannot be read.
        ConfigError: a set is given twice.
    """
    found: dict[str, list[str]] = {}
    for source in sources:
        known = source.replace("_", "-") in NAMED and not Path(source).exists()
        name = source.replace("_", "-") if known else "stdin" if source == "-" else Path(source).name
        if name in found:
            raise ConfigError(f"The prompts {shown(name)} are given twice: leave one of them out.")
        found[name] = [] if name == INVENTED and known else named_prompts(name) if known else read_prompts(source)
    return found


def encode_set(
    lm: LanguageModel, name: str, texts: Sequence[str], chat: bool, number: int | None, most: int
) -> PromptSet:
    """The first good prompts of a set as token ids; bad ones before them are left out, which is said in a sentence.

    Args:
        lm: the model.
        name: of the set.
        texts: its prompts.
        chat: put them into the model's chat template.
        number: how many; None takes `most`, or all where there are fewer.
        most: the largest batch size.

    Raises:
        PromptError: none is good, or there are fewer than `number`.
    """
    if number is not None and len(texts) < number:
        raise PromptError(f"--num-prompts is {number}, but {name} has {len(texts)}: lower it, or give more prompts.")
    wanted = number or most
    encoded = encode_prompts(lm, texts, chat)
    rows = [row for row, ids in enumerate(encoded.token_ids) if ids is not None][:wanted]
    passed = [row for row in encoded.problems if len(rows) < wanted or row < rows[-1]]
    example = f"for example: {encoded.problems[min(passed)]}" if passed else ""
    if len(rows) < (number or 1):
        raise PromptError(
            f"{name} has {len(rows)} of {len(texts)} prompts that {lm.name} can decode, and {number or 1} at least "
            f"must be; {example}"
        )
    if passed:
        note(f"warning: {name}: prompts left out: {len(passed)} of {len(texts)}, {example}")
    return PromptSet(name, [ids for row in rows if (ids := encoded.token_ids[row]) is not None])


def invented_set(lm: LanguageModel, acceptance: Acceptance, number: int, room: int, seed: int) -> PromptSet:
    """Prompts of random ids whose lengths follow the acceptance's law; `room` tokens are left for the output."""
    import numpy as np

    draw = np.random.default_rng(seed)
    draw.standard_normal(number)  # the rows' own numbers come first: `acceptance.draw_rows`
    lengths = acceptance.prompt_lengths(draw.standard_normal(number))
    longest = acceptance.prompt_max if lm.context_length is None else max(lm.context_length - room, 1)
    ids = Random(seed)
    prompts = [[ids.randrange(lm.vocab_size) for _ in range(min(int(length), longest))] for length in lengths]
    return PromptSet(INVENTED, prompts)


@dataclass(frozen=True)
class Replay:
    """Accepted lengths to replay: `lengths` as they were read, or made from `acceptance`."""

    source: str
    acceptance: Acceptance | None = None
    lengths: Sequence[Sequence[tuple[int, int]]] = ()

    @property
    def name(self) -> str:
        """The source with a digest of what it held."""
        if self.acceptance is not None:
            return self.source
        digest = hashlib.sha256(json.dumps(self.lengths).encode()).hexdigest()[:12]
        return f"{self.source} ({digest})"

    def for_rows(self, number: int, seed: int) -> Sequence[Sequence[tuple[int, int]]]:
        """[number] lengths of the rows of a prompt set; recorded ones begin again where they are fewer."""
        if self.acceptance is not None:
            return invented_lengths(self.acceptance, number, seed)
        return [self.lengths[row % len(self.lengths)] for row in range(number)]


def read_replay(source: str, num_draft_tokens: int, max_new_tokens: int) -> Replay:
    """Lengths from a trace, from a JSON list [rows][steps] of [drafts, accepted], or invented.

    Args:
        source: a file; "paper" for the acceptance fitted to the paper; or "hit_rate=0.8,token_rate=0.9,..." with
            entries of `Acceptance`.
        num_draft_tokens: K.
        max_new_tokens: tokens of every row.

    Raises:
        ConfigError, TraceError: it is nothing of that kind, or asks for more than K drafts in a step.
    """
    if source == "paper" or ("=" in source and not Path(source).exists()):
        entries = {} if source == "paper" else dict(_entry(part) for part in source.split(","))
        check_whole("--max-new-tokens with invented lengths", max_new_tokens, 1, MAX_OUTPUT)
        settings: dict[str, Any] = {"num_draft_tokens": num_draft_tokens, "output_tokens": max_new_tokens, **entries}
        return Replay(source, acceptance=Acceptance(**settings))
    text = _read(source)
    lengths = check_lengths(json.loads(text) if text.lstrip().startswith("[") else _trace_lengths(source))
    most = max((drafted for row in lengths for drafted, _ in row), default=0)
    if most > num_draft_tokens:
        raise ConfigError(
            f"{source} has steps of {most} drafts, but --num-draft-tokens is {num_draft_tokens}: raise it."
        )
    return Replay(source, lengths=lengths)


def _trace_lengths(source: str) -> list[list[tuple[int, int]]]:
    try:
        return trace_lengths(GenerationTrace.from_json(Path(source)))
    except TraceError as error:
        raise TraceError(f"The accepted lengths {source} cannot be read: {error}") from None


def _read(source: str) -> str:
    path = Path(source)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{source} is too large for accepted lengths.")
        text = path.read_text(encoding="utf-8-sig")
        if text.lstrip().startswith("["):
            json.loads(text)
    except OSError as error:
        raise ConfigError(f"Cannot read the accepted lengths {source}: {error.strerror or error}.") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{source} is neither a trace nor a JSON list of accepted lengths.") from None
    return text


def _entry(part: str) -> tuple[str, float | str]:
    names = {each.name for each in fields(Acceptance)} - {"num_draft_tokens", "output_tokens"}
    name, _, value = (piece.strip() for piece in part.partition("="))
    if name not in names:
        raise ConfigError(f"--replay: {shown(name)} is not known: choose from {', '.join(sorted(names))}.")
    if name == "prompt_law":
        return name, value
    try:
        return name, int(value) if name in ("prompt_min", "prompt_max") else float(value)
    except ValueError:
        raise ConfigError(f"--replay: {name} must be a number, not {shown(value)}.") from None
