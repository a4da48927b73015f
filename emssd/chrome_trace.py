"""Traces in the Trace Event Format (JSON), which Perfetto and chrome://tracing open: when was what done.

Times are the measured seconds of a trace. They are laid end to end: what happened between two steps is not in a trace.
A trace without any, such as a simulated one, gets the app's modelled time: its decode steps then have no phases, and
its prefill, which the model leaves out, takes none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from emssd.config import METHOD_TITLES
from emssd.cost_model import PAPER_FIT
from emssd.errors import TraceError
from emssd.token_text import visible
from emssd.trace import GenerationTrace, RowTrace, StepTrace

# In the order in which they happen. In prefill the drafter starts when the prompts are in the cache.
DECODE_PHASES = ("draft", "target", "verify", "commit")
PREFILL_PHASES = ("target", "verify", "commit", "draft")
MODELLED = f"modelled for {PAPER_FIT.name}"
LATEST = 2**63 / 1e9
"""Seconds that fit into the viewers' clocks of nanoseconds."""

Event = dict[str, Any]


def chrome_trace(traces: Mapping[str, GenerationTrace]) -> str:
    """Traces as Trace Event Format JSON.

    Args:
        traces: by method name; each becomes a process, and all start at 0.

    Returns:
        A JSON object. Each process has a thread "loop" with a slice for every step, in it the phases (draft, target,
        verify, commit; the rest of the step is recording), a thread for every row, and counters: input rows and
        scanned KV slots by kind for the time of the step, holes so far from its end on. "ts" and "dur" are
        microseconds. The process's label says so where they are modelled.

    Raises:
        TraceError: the seconds of a trace add up to more than the format can hold.
    """
    threads = count(101)  # unlike any process id
    events: list[Event] = []
    for process, (name, trace) in enumerate(traces.items(), start=1):
        thread_ids = [next(threads) for _ in range(1 + len(trace.rows))]
        events += _names(process, thread_ids, name, trace)
        events += sorted(_process(process, thread_ids, trace), key=lambda event: event["ts"])
    about = {name: _about(trace) for name, trace in traces.items()}
    return json.dumps(
        {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}, allow_nan=False, separators=(",", ":")
    )


def _names(process: int, thread_ids: list[int], name: str, trace: GenerationTrace) -> Iterator[Event]:
    """What the viewers call the process and its threads, and in which order they list them."""
    title = METHOD_TITLES.get(name, visible(name))
    yield _metadata(process, thread_ids[0], "process_name", name=title)
    yield _metadata(process, thread_ids[0], "process_sort_index", sort_index=process)
    model = visible(str(trace.model.get("name", "")))
    label = model if is_measured(trace) else f"{model}, {MODELLED}"
    yield _metadata(process, thread_ids[0], "process_labels", labels=label)
    for place, thread in enumerate(thread_ids):
        yield _metadata(process, thread, "thread_name", name=f"row {place - 1}" if place else "loop")
        yield _metadata(process, thread, "thread_sort_index", sort_index=place)


def _metadata(process: int, thread: int, name: str, /, **args: Any) -> Event:
    return {"ph": "M", "pid": process, "tid": thread, "name": name, "args": args}


def _about(trace: GenerationTrace) -> dict[str, Any]:
    model = {name: visible(str(trace.model.get(name, ""))) for name in ("name", "dtype", "device")}
    return {"emssd_version": visible(trace.emssd_version), "created": visible(trace.created),
            "attention": visible(trace.attention), "drafter": visible(str(trace.drafter.get("name", ""))),
            "time": "measured" if is_measured(trace) else MODELLED, "model": model}  # fmt: skip


def is_measured(trace: GenerationTrace) -> bool:
    """Whether any second of the trace was measured."""
    return any(seconds > 0 for step in trace.steps for seconds in step.seconds.values())


def _process(process: int, thread_ids: list[int], trace: GenerationTrace) -> Iterator[Event]:
    """Slices and counters of all steps, a slice before those inside it."""
    loop, now, measured = thread_ids[0], 0.0, is_measured(trace)
    for step in trace.steps:
        phases = PREFILL_PHASES if step.kind == "prefill" else DECODE_PHASES
        end = now + (_measured_seconds(step) if measured else _modelled_seconds(step))
        if end > LATEST:
            raise TraceError(f"steps[{step.index}].seconds is too much time for the Trace Event Format.")
        name = "prefill" if step.kind == "prefill" else f"step {step.index}"
        yield _slice(process, loop, "step", name, now, end, _step_args(step))
        begin = now
        for phase in phases:
            until = min(begin + step.seconds.get(phase, 0.0), end)  # the sum rounds
            if until > begin:
                yield _slice(process, loop, "phase", phase, begin, until, {"step": step.index})
            begin = until
        for row in step.rows:
            if row.input_token_ids:
                yield _slice(process, thread_ids[1 + row.row], "row", _row_name(row), now, end, _row_args(trace, row))
        account = step.account
        yield _counter(process, loop, "input rows", now, account.input_rows)
        yield _counter(process, loop, "KV slots scanned per token", now, account.kv_slots_scanned["per_token"])
        yield _counter(process, loop, "holes", end, {"holes": account.holes_total})
        now = end
    if trace.steps:
        last = trace.steps[-1].account
        yield _counter(process, loop, "input rows", now, dict.fromkeys(last.input_rows, 0))
        kinds = dict.fromkeys(last.kv_slots_scanned["per_token"], 0)
        yield _counter(process, loop, "KV slots scanned per token", now, kinds)


def _measured_seconds(step: StepTrace) -> float:
    """A trace from elsewhere may name a total below its parts."""
    return max(step.seconds.get("total", 0.0), sum(step.seconds.get(phase, 0.0) for phase in DECODE_PHASES))


def _modelled_seconds(step: StepTrace) -> float:
    return 0.0 if step.kind == "prefill" else PAPER_FIT.step_seconds(step.account)


def _slice(process: int, thread: int, category: str, name: str, begin: float, end: float, args: Event) -> Event:
    """Seconds -> microseconds in whole nanoseconds, both ends rounded alike, so that slices stay inside each other."""
    first, last = round(begin * 1e9), round(end * 1e9)
    return {"ph": "X", "cat": category, "pid": process, "tid": thread, "name": name, "ts": first / 1000,
            "dur": (last - first) / 1000, "args": args}  # fmt: skip


def _counter(process: int, thread: int, name: str, at: float, values: Mapping[str, int]) -> Event:
    return {"ph": "C", "cat": "counter", "pid": process, "tid": thread, "name": name, "ts": round(at * 1e9) / 1000,
            "args": dict(values)}  # fmt: skip


def _step_args(step: StepTrace) -> Event:
    rows = step.rows
    return {
        "step": step.index,
        "live rows": sum(row.kind != "finished" for row in rows),
        **{f"input rows, {kind}": number for kind, number in step.account.input_rows.items()},
        "drafted": sum(row.num_drafted for row in rows),
        "accepted": sum(row.num_accepted for row in rows),
        "tokens emitted": sum(row.num_emitted for row in rows),
        "holes added": sum(len(row.holes_added) for row in rows),
        "attention launches per layer": step.account.attention_launches,
        "draft forwards": len(step.draft_forwards),
    }


def _row_name(row: RowTrace) -> str:
    if row.kind == "prefill":
        return f"prompt of {len(row.input_token_ids)}"
    if row.kind == "finished":
        return f"finished, fed {len(row.input_token_ids)}"
    return f"accepted {row.num_accepted} of {row.num_drafted}" if row.num_drafted else "no draft"


def _row_args(trace: GenerationTrace, row: RowTrace) -> Event:
    return {
        "row": row.row,
        "fed": len(row.input_token_ids),
        "pads": row.input_kinds.count("pad"),
        "drafted": row.num_drafted,
        "accepted": row.num_accepted,
        "emitted": row.num_emitted,
        "text": "".join(visible(trace.tokens.get(str(token), f"id {token} ")) for token in row.emitted_token_ids),
        "next slot": row.next_slot,
        "cache length": row.cache_len,
        "holes added": len(row.holes_added),
    }
