"""Reading a trace: every field is checked, and the layout and the account are computed again from the rows."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from emssd.accounting import StepAccount, step_account
from emssd.config import METHODS, SpeculativeConfig
from emssd.errors import ConfigError, TraceError
from emssd.layouts import Row, RowPlan, StepPlan, make_layout, output_limits, prefill_plan
from emssd.trace import PHASES, SCHEMA, GenerationTrace, RequestTrace, RowTrace, StepTrace, next_kind

MAX_BYTES = 256 * 2**20
MAX_DEPTH = 12
MODEL_TEXTS = ("name", "architecture", "dtype", "device")
MODEL_COUNTS = ("parameters", "layers", "heads", "kv_heads", "head_dim", "hidden", "vocab")
FINISH_REASONS = ("eos", "length", "context", None)
NEXT_KINDS = ("bonus", "recovered", "plain", None)


def read_trace(source: str | os.PathLike[str]) -> GenerationTrace:
    """Read and check a trace from JSON text (it begins with a brace) or from a file.

    Raises:
        TraceError: not readable, too large, not JSON, a newer schema, or a field that is missing, of the wrong kind
            or in contradiction with the others. The message names the field.
    """
    text = _read_text(source)
    if len(text) > MAX_BYTES:
        raise TraceError(f"The trace is larger than {MAX_BYTES // 2**20} MiB: record fewer rows or steps.")
    try:
        data = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        raise TraceError("The trace is nested too deeply to be one of ours.") from None
    except json.JSONDecodeError as error:
        raise TraceError(f"Not JSON: {error.msg} in line {error.lineno}, column {error.colno}.") from None
    except ValueError:  # whole numbers of thousands of digits
        raise TraceError("The trace holds a number that is too large to be one of ours.") from None
    _check_depth(data)
    trace = _trace(data)
    check_consistency(trace)
    return trace


def _read_text(source: str | os.PathLike[str]) -> str:
    if isinstance(source, str) and source.lstrip()[:1] == "{":
        return source
    path = Path(source)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise TraceError(f"{path} is larger than {MAX_BYTES // 2**20} MiB: record fewer rows or steps.")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TraceError(f"{path} is not UTF-8 text (byte {error.start}).") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TraceError(f"Cannot read the trace {str(path)[:200]}: {reason}.") from None


def _refuse_constant(name: str) -> None:
    raise TraceError(f"The trace holds {name}, which is not a JSON number.")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise TraceError(f"The trace holds {text[:60]}, which is too large to be one of ours.")
    return number


def _check_depth(data: Any) -> None:
    level = [data]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(value for value in item if isinstance(value, (dict, list)))
        if not below:
            return
        level = below
    if any(isinstance(item, (dict, list)) for item in level):
        raise TraceError("The trace is nested too deeply to be one of ours.")


class _Reader:
    """Takes typed fields out of one JSON object; what is left over is kept as unknown fields."""

    def __init__(self, data: Any, path: str) -> None:
        if not isinstance(data, dict):
            raise TraceError(f"{path or 'The trace'} must be an object.")
        self.rest = dict(data)
        self.path = f"{path}." if path else ""

    def take(self, name: str, good: Callable[[Any], bool], what: str) -> Any:
        if name not in self.rest:
            raise TraceError(f"{self.path}{name} is missing.")
        value = self.rest.pop(name)
        if not good(value):
            raise TraceError(f"{self.path}{name} must be {what}, not {str(value)[:60]!r}.")
        return value

    def count(self, name: str) -> int:
        return int(self.take(name, _is_count, "a whole number from 0"))

    def text(self, name: str) -> str:
        return str(self.take(name, lambda value: isinstance(value, str), "a text"))

    def optional_text(self, name: str) -> str | None:
        return self.take(name, lambda value: value is None or isinstance(value, str), "a text or null")

    def flag(self, name: str) -> bool:
        return bool(self.take(name, lambda value: isinstance(value, bool), "true or false"))

    def counts(self, name: str) -> list[int]:
        return list(self.take(name, _is_count_list, "a list of whole numbers from 0"))

    def one_of(self, name: str, choices: tuple[str | None, ...]) -> Any:
        return self.take(name, lambda value: value in choices, f"one of {', '.join(map(str, choices))}")

    def table(self, name: str) -> dict[str, Any]:
        return dict(self.take(name, lambda value: isinstance(value, dict), "an object"))

    def list(self, name: str) -> list[Any]:
        return list(self.take(name, lambda value: isinstance(value, list), "a list"))

    def seconds(self, name: str) -> dict[str, float]:
        table = self.take(name, lambda value: isinstance(value, dict), "an object of numbers from 0")
        phases = _Reader(table, f"{self.path}{name}")
        for phase in {*PHASES, *table}:
            phases.take(phase, _is_time, "a number from 0")
        return dict(table)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_count_list(value: Any) -> bool:
    return isinstance(value, list) and all(_is_count(item) for item in value)


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def _trace(data: Any) -> GenerationTrace:
    reader = _Reader(data, "")
    schema = reader.count("schema")
    if schema > SCHEMA:
        raise TraceError(f"The trace has schema {schema}; this version reads up to {SCHEMA}: update emssd.")
    if schema < 1:
        raise TraceError(f"schema must be 1, not {schema}.")
    method = reader.one_of("method", tuple(METHODS))
    tokens = reader.table("tokens")
    if not all(key.isdecimal() and isinstance(value, str) for key, value in tokens.items()):
        raise TraceError("tokens must map ids to texts.")
    trace = GenerationTrace(
        config=reader.table("config"),
        method=method,
        drafter=_described(reader.table("drafter"), "drafter", ("name",), ()),
        attention=reader.text("attention"),
        model=_described(reader.table("model"), "model", MODEL_TEXTS, MODEL_COUNTS),
        rows=[_request(item, f"rows[{row}]") for row, item in enumerate(reader.list("rows"))],
        steps=[_step(item, f"steps[{index}]") for index, item in enumerate(reader.list("steps"))],
        tokens=tokens,
        created=reader.text("created"),
        emssd_version=reader.text("emssd_version"),
    )
    trace.extra = reader.rest
    return trace


def _described(table: dict[str, Any], path: str, texts: Sequence[str], counts: Sequence[str]) -> dict[str, Any]:
    """A description as it is, once the fields that others rely on are known to be there."""
    reader = _Reader(table, path)
    for name in texts:
        reader.text(name)
    for name in counts:
        reader.count(name)
    for name in ("context_length", "pad_token_id"):
        if reader.rest.get(name) is not None:
            reader.count(name)
    return table


def _request(data: Any, path: str) -> RequestTrace:
    reader = _Reader(data, path)
    request = RequestTrace(
        prompt_token_ids=reader.counts("prompt_token_ids"),
        prompt_text=reader.optional_text("prompt_text"),
        output_token_ids=reader.counts("output_token_ids"),
        output_text=reader.optional_text("output_text"),
        finish_reason=reader.one_of("finish_reason", FINISH_REASONS),
    )
    request.extra = reader.rest
    return request


def _step(data: Any, path: str) -> StepTrace:
    reader = _Reader(data, path)
    step = StepTrace(
        index=reader.count("index"),
        kind=reader.one_of("kind", ("prefill", "decode")),
        rows=[_row(item, f"{path}.rows[{row}]") for row, item in enumerate(reader.list("rows"))],
        draft_forwards=[
            _forward(item, f"{path}.draft_forwards[{n}]") for n, item in enumerate(reader.list("draft_forwards"))
        ],
        account=_account(reader.table("account"), f"{path}.account"),
        seconds=reader.seconds("seconds"),
    )
    step.extra = reader.rest
    return step


def _forward(data: Any, path: str) -> dict[str, Any]:
    reader = _Reader(data, path)
    return {"tokens_per_row": reader.counts("tokens_per_row"), **reader.rest}


def _account(data: Any, path: str) -> StepAccount:
    reader = _Reader(data, path)
    account = StepAccount(
        input_rows=reader.table("input_rows"),
        kv_slots_scanned=reader.table("kv_slots_scanned"),
        kv_slots_allocated=reader.count("kv_slots_allocated"),
        holes_total=reader.count("holes_total"),
        attention_launches=reader.count("attention_launches"),
        extra=reader.rest,
    )
    tables = {"input_rows": account.input_rows}
    tables |= {f"kv_slots_scanned.{mode}": kinds for mode, kinds in account.kv_slots_scanned.items()}
    for name, kinds in tables.items():
        counts = _Reader(kinds, f"{path}.{name}")
        for kind in kinds:
            counts.count(kind)
    return account


def _row(data: Any, path: str) -> RowTrace:
    reader = _Reader(data, path)
    row = RowTrace(
        row=reader.count("row"),
        kind=reader.one_of("kind", ("prefill", "decode", "finished")),
        cache_start=reader.count("cache_start"),
        next_slot=reader.count("next_slot"),
        slots=reader.counts("slots"),
        input_token_ids=reader.counts("input_token_ids"),
        input_kinds=[str(kind) for kind in reader.list("input_kinds")],
        position_ids=reader.counts("position_ids"),
        target_token_ids=reader.counts("target_token_ids"),
        num_drafted=reader.count("num_drafted"),
        num_accepted=reader.count("num_accepted"),
        num_emitted=reader.count("num_emitted"),
        emitted_token_ids=reader.counts("emitted_token_ids"),
        next_kind=reader.one_of("next_kind", NEXT_KINDS),
        cache_len=reader.count("cache_len"),
        holes_added=reader.counts("holes_added"),
        finished=reader.flag("finished"),
        draft_source=reader.take("draft_source", lambda v: v is None or _is_count(v), "a whole number or null"),
    )
    if "logit_gaps" in reader.rest:
        good = lambda value: value is None or (isinstance(value, list) and all(_is_time(gap) for gap in value))  # noqa: E731
        row.logit_gaps = reader.take("logit_gaps", good, "a list of numbers from 0")
    row.extra = reader.rest
    return row


def read_config(data: dict[str, Any]) -> SpeculativeConfig:
    """The settings that a trace records. A draft length given by a callable reads as one that allows anything.

    Raises:
        TraceError: a setting is missing, unknown or out of range.
    """
    names = {field.name for field in fields(SpeculativeConfig)}
    known = {name: value for name, value in data.items() if name in names}
    if known.get("num_draft_tokens") == "callable":
        known["num_draft_tokens"] = _unknown_draft_length
    if isinstance(known.get("eos_token_ids"), list):
        known["eos_token_ids"] = tuple(known["eos_token_ids"])
    for name in ("cache_layout", "input_layout", "num_draft_tokens", "max_new_tokens"):
        if name not in known:
            raise TraceError(f"config.{name} is missing.")
    try:
        return SpeculativeConfig(**known)
    except (ConfigError, TypeError) as error:
        raise TraceError(f"config: {error}") from None


def _unknown_draft_length(row: int, step: int) -> int:
    return 1


def check_consistency(trace: GenerationTrace) -> None:
    """Run the trace's layout again over its drafts and emitted counts, and compare all that it shows.

    Raises:
        TraceError: names the first field that differs from what the layout says.
    """
    config = read_config(trace.config)
    _expect("method", trace.method, config.method)
    for step, plan, account in replay_layout(trace):
        for row, planned in zip(step.rows, plan.rows, strict=True):
            path = f"steps[{step.index}].rows[{row.row}]"
            for name in (
                "kind",
                "cache_start",
                "slots",
                "input_token_ids",
                "input_kinds",
                "position_ids",
                "num_drafted",
            ):
                shown, right = getattr(row, name), getattr(planned, name)
                _expect(f"{path}.{name}", shown, list(right) if isinstance(right, tuple) else right)
        for name, right in account.to_dict().items():
            _expect(f"steps[{step.index}].account.{name}", getattr(step.account, name), right)
    limits = _limits(trace, config)
    for index, request in enumerate(trace.rows):
        emitted = [token for step in trace.steps for token in step.rows[index].emitted_token_ids]
        _expect(f"rows[{index}].output_token_ids", request.output_token_ids, emitted)
        ended = bool(trace.steps) and trace.steps[-1].rows[index].finished
        reason = _reason(emitted, config, limits[index]) if ended or config.max_new_tokens == 0 else None
        _expect(f"rows[{index}].finish_reason", request.finish_reason, reason)
        _expect(f"rows[{index}].finish_reason", ended or config.max_new_tokens == 0, reason is not None)


def _limits(trace: GenerationTrace, config: SpeculativeConfig) -> list[int]:
    lengths = [len(row.prompt_token_ids) for row in trace.rows]
    return output_limits(lengths, config.max_new_tokens, trace.model.get("context_length"))


def _reason(output: Sequence[int], config: SpeculativeConfig, limit: int) -> str | None:
    if output and output[-1] in (config.eos_token_ids or ()):  # type: ignore[operator]
        return "eos"
    if len(output) >= config.max_new_tokens:
        return "length"
    return "context" if len(output) >= limit else None


def _expect(path: str, shown: Any, right: Any) -> None:
    if shown != right:
        raise TraceError(f"{path} is {str(shown)[:80]}, but the rest of the trace says {str(right)[:80]}.")


def _check_ids(path: str, row: RowTrace, vocab: int) -> None:
    for name in ("input_token_ids", "target_token_ids"):
        largest = max(getattr(row, name), default=0)
        if largest >= vocab:
            raise TraceError(f"{path}.{name} holds the id {largest}, outside the vocabulary 0..{vocab - 1}.")


def _check_verdict(path: str, row: RowTrace, eos_token_ids: Sequence[int]) -> None:
    """The accepted run, the target's own token and their counts must follow from drafts and target's answers."""
    if row.draft_source is not None and not row.num_drafted:
        raise TraceError(f"{path}.draft_source is {row.draft_source}, but nothing was drafted.")
    if row.kind == "finished":
        for name, right in (("num_accepted", 0), ("num_emitted", 0), ("emitted_token_ids", []), ("next_kind", None)):
            _expect(f"{path}.{name}", getattr(row, name), right)
        _expect(f"{path}.target_token_ids", row.target_token_ids, [])
        return
    drafts = row.draft_token_ids
    _expect(f"{path}.num_drafted", row.num_drafted, len(drafts))
    _expect(f"{path}.target_token_ids", len(row.target_token_ids), 1 + row.num_drafted)
    accepted, ended = 0, False
    while accepted < len(drafts) and not ended and drafts[accepted] == row.target_token_ids[accepted]:
        ended = drafts[accepted] in eos_token_ids
        accepted += 1
    emitted = accepted if ended else accepted + 1
    _expect(f"{path}.num_accepted", row.num_accepted, accepted)
    _expect(f"{path}.num_emitted", row.num_emitted, emitted)
    _expect(f"{path}.emitted_token_ids", row.emitted_token_ids, row.target_token_ids[:emitted])
    _expect(f"{path}.next_kind", row.next_kind, next_kind(row.num_drafted, accepted, emitted))


def _check_widths(path: str, step: StepTrace, config: SpeculativeConfig, places: Sequence[Row]) -> None:
    """Counts that decide how much the layout writes: checked first, so that a small file cannot ask for much memory."""
    live = [row for row, place in zip(step.rows, places, strict=True) if not place.finished]
    fed = max((1 + row.num_drafted for row in live), default=0)
    gain = max((row.num_emitted for row in live), default=0)
    for row, place in zip(step.rows, places, strict=True):
        where = f"{path}.rows[{row.row}]"
        _expect(f"{where}.kind", row.kind, "finished" if place.finished else "decode")
        most = 0 if place.finished else config.draft_length(row.row, step.index)
        if row.num_drafted > most and not callable(config.num_draft_tokens):
            raise TraceError(f"{where}.num_drafted is {row.num_drafted}, but config.num_draft_tokens allows {most}.")
        source = row.draft_source
        if source is not None and (not row.num_drafted or source + row.num_drafted > place.cache_len + 1):
            raise TraceError(
                f"{where}.draft_source is {source}, where the row has no {row.num_drafted} tokens to copy."
            )
        width = fed if config.input_layout == "padded" else 0 if place.finished else 1 + row.num_drafted
        _expect(f"{where}.input_token_ids", f"{len(row.input_token_ids)} tokens", f"{width} tokens")
        holes = gain - row.num_emitted if config.cache_layout == "padded" and not row.finished else 0
        _expect(f"{where}.holes_added", f"{len(row.holes_added)} slots", f"{holes} slots")


def replay_layout(trace: GenerationTrace) -> Iterator[tuple[StepTrace, StepPlan, StepAccount]]:
    """Each step with the plan and account that the trace's own layout gives for its drafts and emitted counts.

    Raises:
        TraceError: rows are missing or out of order, or cursors, cache lengths or holes differ from the layout's.
    """
    config = read_config(trace.config)
    lengths = [len(row.prompt_token_ids) for row in trace.rows]
    if trace.steps and not all(lengths):
        raise TraceError(f"rows[{lengths.index(0)}].prompt_token_ids is empty.")
    limits = _limits(trace, config)
    try:
        config.check_batch(len(lengths))
    except ConfigError as error:
        raise TraceError(f"config: {error}") from None
    layout = make_layout(config, trace.model.get("pad_token_id") or 0, with_masks=False)
    places = layout.start(lengths)
    most = config.max_draft_tokens
    allocated = sum(layout.capacities(lengths, limits, max(limits, default=0) if most is None else most))
    for number, step in enumerate(trace.steps):
        path = f"steps[{number}]"
        _expect(f"{path}.index", step.index, number)
        _expect(f"{path}.kind", step.kind, "decode" if number else "prefill")
        _expect(f"{path}.rows", [row.row for row in step.rows], list(range(len(places))))
        for row in step.rows:
            _check_ids(f"{path}.rows[{row.row}]", row, trace.model["vocab"])
            _check_verdict(f"{path}.rows[{row.row}]", row, config.eos_token_ids or ())  # type: ignore[arg-type]
        if number == 0:
            plan = prefill_plan([(row, 0, trace.rows[row].prompt_token_ids) for row in range(len(places))])
            for place, row in zip(places, step.rows, strict=True):
                place.finished = row.finished
            new_holes: tuple[tuple[int, ...], ...] = ((),) * len(places)
        else:
            _check_widths(path, step, config, places)
            pending = [_pending(trace.steps[number - 1], row, path) for row in step.rows]
            plan = layout.plan(places, pending, [row.draft_token_ids for row in step.rows])
            emitted = [row.num_emitted for row in step.rows]
            new_holes = layout.commit(places, plan, emitted, [row.finished for row in step.rows]).holes
        for place, row in zip(places, step.rows, strict=True):
            where = f"{path}.rows[{row.row}]"
            _expect(f"{where}.next_slot", row.next_slot, place.next_slot)
            _expect(f"{where}.cache_len", row.cache_len, place.cache_len)
            _expect(f"{where}.holes_added", row.holes_added, list(new_holes[row.row]))
            _expect(f"{where}.finished", row.finished, place.finished)
        holes = sum(len(place.holes) for place in places)
        yield step, plan, step_account(plan, allocated, holes)


def _pending(before: StepTrace, row: RowTrace, path: str) -> int:
    if row.kind == "finished":
        return 0
    if not before.rows[row.row].emitted_token_ids:
        raise TraceError(f"{path}.rows[{row.row}] is decoded after a step in which it emitted nothing.")
    return before.rows[row.row].emitted_token_ids[-1]


def planned_rows(trace: GenerationTrace) -> list[tuple[RowPlan, ...]]:
    """[steps] the plans of a trace's rows, made again by its layout."""
    return [plan.rows for _, plan, _ in replay_layout(trace)]
