"""Trace Event Format: its rules for slices, counters and names, and times that add up to the trace's own."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest
from hypothesis import given, settings

from emssd.acceptance import Acceptance
from emssd.chrome_trace import chrome_trace
from emssd.config import METHOD_TITLES
from emssd.cost_model import PAPER_FIT
from emssd.decoding import generate
from emssd.errors import TraceError
from emssd.simulator import simulate
from emssd.trace import PHASES, GenerationTrace
from tests.properties import engine_cases, ragged_cases
from tests.recorded import RECORDED, hostile_trace, recorded, scripted_run

METADATA = {
    "process_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


def nanoseconds(microseconds: float) -> int:
    whole = round(microseconds * 1000)
    assert whole / 1000 == microseconds, "finer than the viewers' clocks"
    return whole


def read(text: str) -> list[dict]:
    """The events, once they have passed the format's rules."""
    text.encode("ascii")
    data = json.loads(text)
    assert set(data) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert data["displayTimeUnit"] in ("ms", "ns")
    events = data["traceEvents"]
    for event in events:
        check_event(event)
    check_order(events)
    check_names(events)
    check_nesting(events)
    return events


def check_event(event: dict) -> None:
    assert {"ph", "pid", "tid", "name", "args"} <= set(event), event
    assert type(event["pid"]) is int
    assert type(event["tid"]) is int
    assert isinstance(event["name"], str)
    assert event["name"]
    assert isinstance(event["args"], dict)
    kind = event["ph"]
    assert kind in ("M", "X", "C")
    if kind == "M":
        key, type_ = METADATA[event["name"]]
        assert set(event["args"]) == {key}
        assert isinstance(event["args"][key], type_)
        return
    assert nanoseconds(event["ts"]) >= 0
    assert isinstance(event["cat"], str)
    if kind == "X":
        assert nanoseconds(event["dur"]) >= 0
    else:
        assert event["args"]
        assert all(type(value) is int and value >= 0 for value in event["args"].values()), event


def check_order(events: list[dict]) -> None:
    """Times never go back within a process."""
    latest: dict[int, float] = defaultdict(float)
    for event in events:
        if event["ph"] != "M":
            assert event["ts"] >= latest[event["pid"]], event
            latest[event["pid"]] = event["ts"]


def check_names(events: list[dict]) -> None:
    """Every process and thread that something happens on is named once, and thread ids belong to one process."""
    named = [(event["name"], event["pid"], event["tid"]) for event in events if event["ph"] == "M"]
    assert len(set(named)) == len(named)
    processes = [pid for name, pid, _ in named if name == "process_name"]
    threads = [(pid, tid) for name, pid, tid in named if name == "thread_name"]
    assert len(set(processes)) == len(processes)
    assert len({tid for _, tid in threads}) == len(threads)
    for event in events:
        assert event["pid"] in processes
        assert (event["pid"], event["tid"]) in threads


def check_nesting(events: list[dict]) -> None:
    """On one thread a slice lies inside the one that is open, or after it."""
    open_until: dict[int, list[int]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            begin = nanoseconds(event["ts"])
            end = begin + nanoseconds(event["dur"])
            stack = open_until[event["tid"]]
            while stack and stack[-1] <= begin:
                stack.pop()
            assert not stack or end <= stack[-1], event
            stack.append(end)


def slices(events: list[dict], category: str) -> list[dict]:
    return [event for event in events if event["ph"] == "X" and event["cat"] == category]


def counters(events: list[dict], name: str) -> list[dict]:
    return [event for event in events if event["ph"] == "C" and event["name"] == name]


def seconds(events: list[dict]) -> float:
    return sum(event["dur"] for event in events) / 1e6


def check_contents(trace: GenerationTrace, events: list[dict]) -> None:
    """Durations add up to the trace's seconds; a slice per step and per fed row, with the trace's counts."""
    steps = slices(events, "step")
    assert [event["args"]["step"] for event in steps] == [step.index for step in trace.steps]
    assert [event["name"] for event in steps][:1] == (["prefill"] if trace.steps else [])
    for event, step in zip(steps, trace.steps, strict=True):
        assert event["dur"] / 1e6 == pytest.approx(step.seconds["total"], abs=2e-9)
    begins = [nanoseconds(event["ts"]) for event in steps]
    ends = [begin + nanoseconds(event["dur"]) for begin, event in zip(begins, steps, strict=True)]
    assert begins == [0, *ends][: len(begins)]  # end to end
    assert [nanoseconds(event["ts"]) for event in counters(events, "input rows")] == [*begins, *ends[-1:]]
    assert [nanoseconds(event["ts"]) for event in counters(events, "holes")] == ends
    for phase in PHASES[:-1]:
        parts = [event for event in slices(events, "phase") if event["name"] == phase]
        whole = sum(step.seconds[phase] for step in trace.steps)
        assert seconds(parts) == pytest.approx(whole, abs=1e-9 * (1 + len(trace.steps)))
    fed = [row for step in trace.steps for row in step.rows if row.input_token_ids]
    rows = slices(events, "row")
    assert len(rows) == len(fed)
    whole_steps = {(event["ts"], event["dur"]) for event in steps}
    assert {(event["ts"], event["dur"]) for event in rows} <= whole_steps
    for name, count in (("accepted", "num_accepted"), ("emitted", "num_emitted"), ("drafted", "num_drafted")):
        total = sum(getattr(row, count) for row in fed)
        assert sum(event["args"][name] for event in rows) == total
        key = "tokens emitted" if name == "emitted" else name
        assert sum(event["args"][key] for event in steps) == total
    inputs = [event["args"] for event in counters(events, "input rows")]
    assert len(inputs) == len(trace.steps) + bool(trace.steps)
    scanned = [event["args"] for event in counters(events, "KV slots scanned per token")]
    assert scanned[: len(trace.steps)] == [step.account.kv_slots_scanned["per_token"] for step in trace.steps]
    assert sum(sum(kinds.values()) for kinds in inputs) == sum(len(row.input_token_ids) for row in fed)
    assert [event["args"]["holes"] for event in counters(events, "holes")] == [
        step.account.holes_total for step in trace.steps
    ]


@pytest.mark.parametrize("path", RECORDED)
def test_every_recorded_trace(path):
    trace = recorded(path)
    check_contents(trace, read(chrome_trace({trace.method: trace})))


@given(engine_cases | ragged_cases)
@settings(max_examples=15)
def test_random_runs(case):
    trace = generate(case.lm, case.prompts, case.config(), case.make_drafter())
    check_contents(trace, read(chrome_trace({trace.method: trace})))


def test_methods_are_processes_side_by_side():
    traces = {name: scripted_run(name) for name in ("vanilla", "ems-sd")}
    events = read(chrome_trace(traces))
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == [METHOD_TITLES["vanilla"], METHOD_TITLES["ems-sd"]]
    for process, trace in enumerate(traces.values(), start=1):
        mine = [event for event in events if event["pid"] == process]
        threads = [event["args"]["name"] for event in mine if event["name"] == "thread_name"]
        assert threads == ["loop", "row 0", "row 1"]
        assert min(event["ts"] for event in mine if "ts" in event) == 0
        check_contents(trace, mine)


def test_the_worked_example_says_what_each_row_did():
    events = read(chrome_trace({"vanilla": scripted_run("vanilla")}))
    names = [event["name"] for event in slices(events, "row")]
    assert names[:6] == [
        *("prompt of 5", "prompt of 3"),
        *("accepted 3 of 5", "accepted 0 of 2"),
        *("accepted 1 of 2", "accepted 5 of 5"),
    ]
    step = slices(events, "step")[1]
    assert step["args"]["input rows, useful"] + step["args"]["input rows, pad"] == 12
    assert step["args"]["holes added"] == 3


def test_prefill_drafts_last_and_decode_drafts_first():
    phases = slices(read(chrome_trace({"ems-sd": scripted_run("ems-sd")})), "phase")
    order = [[event["name"] for event in phases if event["args"]["step"] == step] for step in (0, 1)]
    assert order[0] == ["target", "commit", "draft"]
    assert order[1] == ["draft", "target", "verify", "commit"]


def test_hostile_texts_and_a_total_below_its_parts():
    trace = hostile_trace()
    trace.steps[1].seconds["total"] = 0.0
    events = read(chrome_trace({"ems-sd": trace}))
    shown = "".join(event["args"]["text"] for event in slices(events, "row"))
    assert not set("\u202e\u2028\x00\x1b\n") & set(shown)
    assert "script" in shown or "cmd()" in shown or "SUM" in shown
    step = slices(events, "step")[1]
    assert step["dur"] / 1e6 == pytest.approx(sum(trace.steps[1].seconds.values()), abs=2e-9)


def test_times_that_no_viewer_can_hold_are_refused_by_name():
    trace = hostile_trace()
    trace.steps[1].seconds["target"] = 1e300
    with pytest.raises(TraceError, match=r"^steps\[1\]\.seconds is too much time"):
        chrome_trace({"ems-sd": trace})


def test_a_trace_without_measured_seconds_gets_modelled_ones_and_says_so():
    acceptance = Acceptance(output_tokens=12, prompt_law="equal", prompt_mean=9)
    traces = simulate(acceptance, 3, ["vanilla", "ems-sd"], 1)
    text = chrome_trace(traces)
    events = read(text)
    for process, trace in enumerate(traces.values(), start=1):
        mine = [event for event in events if event["pid"] == process]
        whole = sum(PAPER_FIT.step_seconds(step.account) for step in trace.steps if step.kind == "decode")
        assert whole > 0.01
        assert seconds(slices(mine, "step")) == pytest.approx(whole, abs=1e-7)
        assert all(event["dur"] > 0 for event in slices(mine, "step")[1:])
        assert slices(mine, "step")[0]["dur"] == 0  # prefill is not modelled
        assert slices(mine, "phase") == []
        label = next(event["args"]["labels"] for event in mine if event["name"] == "process_labels")
        assert label == f"opt-6.7b, modelled for {PAPER_FIT.name}"
        assert json.loads(text)["otherData"][trace.method]["time"] == f"modelled for {PAPER_FIT.name}"
    measured = json.loads(chrome_trace({"vanilla": scripted_run("vanilla")}))
    assert measured["otherData"]["vanilla"]["time"] == "measured"


def test_nothing_recorded_is_a_valid_file():
    assert read(chrome_trace({})) == []
