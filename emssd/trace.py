"""What a run did, step by step, as plain data: schema 1, JSON in and out.

The command line, the app, lessons, metrics and tests read traces; nothing else reports what happened.

Optional row fields, left out where they were not recorded: `logit_gaps`; and, where `config.num_top_tokens` asks for
them, `top_token_ids` and `top_logit_gaps`, both [judged positions][k]. Judged are the answers that verification looked
at: `num_accepted` + 1 of them, `num_accepted` after an accepted end of sequence, 1 in prefill; so one for each emitted
token. Of each they hold the target's k best tokens, its own choice first, and how far their logits lie below its logit
(0 for itself, rising, rounded to 4 digits).
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emssd.accounting import ATTENTION_MODES, INPUT_KINDS, SCAN_KINDS, StepAccount
from emssd.errors import TraceError

SCHEMA = 1
OPTIONAL_ROW_FIELDS = ("logit_gaps", "top_token_ids", "top_logit_gaps")
PHASES = ("draft", "target", "verify", "commit", "total")


@dataclass
class RowTrace:
    """One request in one step. `row` is the request's index everywhere; slots are places in the row's own cache."""

    row: int
    kind: str
    cache_start: int
    next_slot: int
    slots: list[int]
    input_token_ids: list[int]
    input_kinds: list[str]
    position_ids: list[int]
    target_token_ids: list[int]
    num_drafted: int
    num_accepted: int
    num_emitted: int
    emitted_token_ids: list[int]
    next_kind: str | None
    cache_len: int
    holes_added: list[int]
    finished: bool
    draft_source: int | None = None
    logit_gaps: list[float] | None = None
    top_token_ids: list[list[int]] | None = None
    top_logit_gaps: list[list[float]] | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def draft_token_ids(self) -> list[int]:
        """The drafts of this step."""
        return self.input_token_ids[1 : 1 + self.num_drafted] if self.kind == "decode" else []

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as stored."""
        data = {name: value for name, value in vars(self).items() if name != "extra"}
        for name in OPTIONAL_ROW_FIELDS:
            if data[name] is None:
                del data[name]
        return {**data, **self.extra}


@dataclass
class StepTrace:
    """One step of all rows. `index` 0 is prefill; decode steps count from 1. Seconds are wall time by phase."""

    index: int
    kind: str
    rows: list[RowTrace]
    draft_forwards: list[dict[str, Any]]
    account: StepAccount
    seconds: dict[str, float]
    extra: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as stored."""
        return {
            "index": self.index,
            "kind": self.kind,
            "rows": [row.to_dict() for row in self.rows],
            "draft_forwards": [dict(forward) for forward in self.draft_forwards],
            "account": self.account.to_dict(),
            "seconds": dict(self.seconds),
            **self.extra,
        }


@dataclass
class RequestTrace:
    """One request: its prompt, and what it has put out so far. `finish_reason` is None while it is unfinished."""

    prompt_token_ids: list[int]
    prompt_text: str | None
    output_token_ids: list[int] = field(default_factory=list)
    output_text: str | None = None
    finish_reason: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as stored."""
        return {**{name: value for name, value in vars(self).items() if name != "extra"}, **self.extra}


@dataclass(eq=False)
class GenerationTrace:
    """A whole run, or the valid beginning of one."""

    config: dict[str, Any]
    method: str
    drafter: dict[str, Any]
    attention: str
    model: dict[str, Any]
    rows: list[RequestTrace]
    steps: list[StepTrace] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict)
    created: str = ""
    emssd_version: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def decode_steps(self) -> list[StepTrace]:
        """All steps but prefill."""
        return [step for step in self.steps if step.kind == "decode"]

    @property
    def finished(self) -> bool:
        """Whether every row has ended."""
        return all(row.finish_reason is not None for row in self.rows)

    @property
    def cut(self) -> bool:
        """Whether every row keeps only as many tokens as the slowest live row gained: `config["keeps"] = "minimum"`."""
        return self.config.get("keeps") == "minimum"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, schema 1."""
        return {
            "schema": SCHEMA,
            "emssd_version": self.emssd_version,
            "created": self.created,
            "config": dict(self.config),
            "method": self.method,
            "drafter": dict(self.drafter),
            "attention": self.attention,
            "model": dict(self.model),
            "tokens": dict(self.tokens),
            "rows": [row.to_dict() for row in self.rows],
            "steps": [step.to_dict() for step in self.steps],
            **self.extra,
        }

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The trace as JSON text; with `path` it is also written there, whole or not at all."""
        data = self.to_dict()
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        if not _is_utf8(text):  # half of a surrogate pair: only as an escape can it be written to a file
            text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
        if path is not None:
            write_text_atomically(Path(path), text)
        return text

    @classmethod
    def from_json(cls, source: str | os.PathLike[str]) -> GenerationTrace:
        """Read a trace from JSON text or a file, and check everything in it.

        Raises:
            TraceError: the text is not a valid trace; the message names the field.
        """
        from emssd.trace_reading import read_trace

        return read_trace(source)

    def __eq__(self, other: object) -> bool:
        """Equal but for `created` and `seconds`, which are outside trace equality."""
        if not isinstance(other, GenerationTrace):
            return NotImplemented
        return self._comparable() == other._comparable()

    __hash__ = None  # type: ignore[assignment]

    def _comparable(self) -> dict[str, Any]:
        data = self.to_dict()
        del data["created"]
        for step in data["steps"]:
            del step["seconds"]
        return data

    def _repr_html_(self) -> str:
        """What notebooks show: the step player of this trace, or a short table where it cannot be played."""
        from emssd.ui.html_export import notebook_html

        return notebook_html(self)

    def live_rows(self) -> Iterator[RowTrace]:
        """Every live row of every decode step."""
        for step in self.decode_steps:
            for row in step.rows:
                if row.kind == "decode":
                    yield row

    def summary(self) -> dict[str, Any]:
        """Totals of the run. Prefill enters `tokens` alone: no mean, no rows, no slots and no time.

        Returns:
            tokens: all emitted tokens; decode_tokens: those without prefill's; steps: decode steps;
            mean_acceptance_length: mean `num_emitted` over live decode row-steps (None without any);
            acceptance_rate: accepted / drafted (None if nothing was drafted); drafted, accepted: their counts;
            input_rows, kv_slots_scanned: by kind as in a step's account; kv_slots_allocated;
            slots_advanced: slots the write cursors moved; holes: holes at the end; attention_launches;
            seconds: wall time by phase; tokens_per_second: decode_tokens / seconds["total"], None without time.
        """
        live = list(self.live_rows())
        decoded = sum(row.num_emitted for row in live)
        drafted, accepted = sum(row.num_drafted for row in live), sum(row.num_accepted for row in live)
        steps = self.decode_steps
        seconds = {phase: sum(step.seconds.get(phase, 0.0) for step in steps) for phase in PHASES}
        scanned = {
            mode: {kind: sum(step.account.kv_slots_scanned[mode][kind] for step in steps) for kind in SCAN_KINDS}
            for mode in ATTENTION_MODES
        }
        return {
            "tokens": sum(len(row.output_token_ids) for row in self.rows),
            "decode_tokens": decoded,
            "steps": len(steps),
            "mean_acceptance_length": decoded / len(live) if live else None,
            "acceptance_rate": accepted / drafted if drafted else None,
            "drafted": drafted,
            "accepted": accepted,
            "input_rows": {kind: sum(step.account.input_rows[kind] for step in steps) for kind in INPUT_KINDS},
            "kv_slots_scanned": scanned,
            "kv_slots_allocated": self.steps[-1].account.kv_slots_allocated if self.steps else 0,
            "slots_advanced": self._slots_advanced(),
            "holes": self.steps[-1].account.holes_total if self.steps else 0,
            "attention_launches": sum(step.account.attention_launches for step in steps),
            "seconds": seconds,
            "tokens_per_second": decoded / seconds["total"] if seconds["total"] > 0 else None,
        }

    def _slots_advanced(self) -> int:
        if not self.steps:
            return 0
        first, last = self.steps[0].rows, self.steps[-1].rows
        return sum(end.next_slot - start.next_slot for start, end in zip(first, last, strict=True))


def finish_reason(
    output_token_ids: Sequence[int], max_new_tokens: int, output_limit: int, eos_token_ids: Sequence[int]
) -> str | None:
    """Why a row has ended, None if it lives: "eos" before "length" before "context".

    Args:
        output_token_ids: what it has put out.
        max_new_tokens: the setting.
        output_limit: tokens it can put out, fewer where the model's context ends.
        eos_token_ids: ids that end a row.
    """
    if output_token_ids and output_token_ids[-1] in eos_token_ids:
        return "eos"
    if len(output_token_ids) >= max_new_tokens:
        return "length"
    return "context" if len(output_token_ids) >= output_limit else None


def verdict(row: RowTrace, eos_token_ids: Sequence[int] = ()) -> tuple[int, int]:
    """Drafts of a live row that the target accepts, and tokens it gains with them, before any cut to the minimum.

    The walk over the drafts ends at the first that is not the target's answer, or at an accepted end of sequence.
    """
    accepted = 0
    for draft, answer in zip(row.draft_token_ids, row.target_token_ids, strict=False):
        if draft != answer:
            break
        accepted += 1
        if draft in eos_token_ids:
            return accepted, accepted
    return accepted, accepted + 1


def next_kind(num_drafted: int, num_accepted: int, num_emitted: int) -> str | None:
    """What the target's own token of a step is; None where an end of sequence or a cut left no room for one."""
    if num_emitted <= num_accepted:
        return None
    if num_drafted == 0:
        return "plain"
    return "bonus" if num_accepted == num_drafted else "recovered"


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def write_text_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of it.

    A link stays one, and the file that it leads to is written. What is no regular file, for example a pipe or a
    device, is written through.

    Raises:
        TraceError: the folder does not exist or cannot be written.
    """
    temporary = None
    try:
        if not may_be_replaced(path):
            _write_through(path, text)
            return
        target = Path(os.path.realpath(path))
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
        temporary = None
    except OSError as error:
        raise TraceError(f"Cannot write {path}: {error.strerror or error}.") from error
    finally:
        if temporary is not None:
            os.unlink(temporary)


def may_be_replaced(path: Path) -> bool:
    """Whether a regular file is at `path` or behind its links, or nothing yet.

    Raises:
        OSError: the path cannot be looked at, for example because its links go round in a circle.
    """
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return True


def _write_through(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY), "w", encoding="utf-8") as file:  # never makes or cuts a file
        file.write(text)
