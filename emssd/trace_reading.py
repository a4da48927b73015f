"""Reading a trace from JSON: every field is checked, then `trace_checking` holds them against each other."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from emssd.accounting import StepAccount
from emssd.config import METHODS
from emssd.errors import TraceError, shown
from emssd.trace import PHASES, SCHEMA, GenerationTrace, RequestTrace, RowTrace, StepTrace
from emssd.trace_checking import check_consistency

MAX_BYTES = 256 * 2**20
MAX_DEPTH = 12
MODEL_TEXTS = ("name", "architecture", "dtype", "device")
MODEL_COUNTS = ("parameters", "layers", "heads", "kv_heads", "head_dim", "hidden", "vocab")
FINISH_REASONS = ("eos", "length", "context", None)
MODEL_OPTIONAL_COUNTS = ("context_length", "pad_token_id")
MODEL_INNER_SIZES = (
    *("value_head_dim", "intermediate", "expert_intermediate", "experts", "experts_per_token", "sliding_window"),
    *("linear_weights_per_row", "head_weights", "expert_weights"),
)
NEXT_KINDS = ("bonus", "recovered", "plain", None)
# What is derived from a trace (FLOPs, sums of seconds) must stay a finite number.
MAX_COUNT = 2**63 - 1
MAX_SECONDS = 10**6
MAX_GAP = 10**39
COUNT_WORDS = "a whole number from 0 to 2**63 - 1"
SECONDS_WORDS = f"a number from 0 to {MAX_SECONDS}"


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
    if not isinstance(source, (str, os.PathLike)):
        raise TraceError(f"A trace is read from JSON text or a path, not from {shown(source)}.")
    if isinstance(source, str):
        text = source.removeprefix("\ufeff")
        if not text.strip():
            raise TraceError("The trace is empty: give JSON text or a path.")
        if text.lstrip()[0] in "{[":
            return text
    path = Path(source)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise TraceError(f"{path} is larger than {MAX_BYTES // 2**20} MiB: record fewer rows or steps.")
        return path.read_text(encoding="utf-8-sig")
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
        return int(self.take(name, _is_count, COUNT_WORDS))

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
            phases.take(phase, _is_time, SECONDS_WORDS)
        return dict(table)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT


def _is_count_list(value: Any) -> bool:
    return isinstance(value, list) and all(_is_count(item) for item in value)


def _is_id_table(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(map(_is_count_list, value)))


def _is_gap_table(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(_is_gap_list(item) for item in value))


def _is_gap_list(value: Any) -> bool:
    return isinstance(value, list) and all(_is_number(gap, MAX_GAP) for gap in value)


def _is_time(value: Any) -> bool:
    return _is_number(value, MAX_SECONDS)


def _is_number(value: Any, most: int) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= most


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
        drafter=_described(reader.table("drafter"), "drafter", ("name",)),
        attention=reader.text("attention"),
        model=_model(reader.table("model")),
        rows=[_request(item, f"rows[{row}]") for row, item in enumerate(reader.list("rows"))],
        steps=[_step(item, f"steps[{index}]") for index, item in enumerate(reader.list("steps"))],
        tokens=tokens,
        created=reader.text("created"),
        emssd_version=reader.text("emssd_version"),
    )
    trace.extra = reader.rest
    return trace


def _described(table: dict[str, Any], path: str, texts: Sequence[str], counts: Sequence[str] = ()) -> dict[str, Any]:
    """A description as it is, once the fields that others rely on are known to be there."""
    reader = _Reader(table, path)
    for name in texts:
        reader.text(name)
    for name in counts:
        reader.count(name)
    return table


def _model(table: dict[str, Any]) -> dict[str, Any]:
    counts = [name for name in MODEL_OPTIONAL_COUNTS if table.get(name) is not None]
    counts += [name for name in MODEL_INNER_SIZES if isinstance(table.get(name), int)]  # some have one size per layer
    return _described(table, "model", MODEL_TEXTS, (*MODEL_COUNTS, *counts))


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
        row.logit_gaps = reader.take("logit_gaps", lambda v: v is None or _is_gap_list(v), "a list of numbers from 0")
    if "top_token_ids" in reader.rest:
        row.top_token_ids = reader.take("top_token_ids", _is_id_table, "lists of whole numbers from 0, one a token")
    if "top_logit_gaps" in reader.rest:
        row.top_logit_gaps = reader.take("top_logit_gaps", _is_gap_table, "lists of numbers from 0, one a token")
    row.extra = reader.rest
    return row
