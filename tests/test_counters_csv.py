"""CSV of a trace's counts: complete, read back by a plain reader, and no text in it becomes a formula."""

from __future__ import annotations

import csv
import io
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from emssd.counters_csv import ROW_COLUMNS, STEP_COLUMNS, counters_csv, spreadsheet_text, totals_csv
from emssd.trace import PHASES
from tests.recorded import HOSTILE, RECORDED, hostile_trace, recorded, scripted_run

STARTS_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]")


def read(text: str) -> list[dict[str, str]]:
    assert text.endswith("\r\n")
    assert "\n" not in text.replace("\r\n", "")
    assert "\r" not in text.replace("\r\n", "")
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


@pytest.mark.parametrize("path", RECORDED)
def test_rows_of_every_recorded_trace_hold_its_counts(path):
    trace = recorded(path)
    lines = read(counters_csv({trace.method: trace}))
    assert tuple(lines[0]) == ROW_COLUMNS
    assert len(lines) == len(trace.steps) * len(trace.rows)
    summary = trace.summary()
    decode = [line for line in lines if line["kind"] == "decode"]
    assert sum(int(line["emitted"]) for line in lines) == summary["tokens"]
    assert sum(int(line["drafted"]) for line in lines) == summary["drafted"]
    assert sum(int(line["accepted"]) for line in lines) == summary["accepted"]
    assert sum(int(line["fed"]) for line in decode) == sum(summary["input_rows"].values())
    finished = [line for line in decode if line["row_kind"] == "finished"]
    assert sum(int(line["fed"]) for line in finished) == summary["input_rows"]["finished"]
    live_pads = sum(int(line["pads"]) for line in decode if line["row_kind"] == "decode")
    assert live_pads == summary["input_rows"]["pad"]
    assert sum(int(line["holes_added"]) for line in lines) == summary["holes"]
    last = [line for line in lines if line["step"] == str(len(trace.steps) - 1)]
    assert [int(line["next_slot"]) for line in last] == [row.next_slot for row in trace.steps[-1].rows]
    assert [int(line["cache_length"]) for line in last] == [row.cache_len for row in trace.steps[-1].rows]


@pytest.mark.parametrize("path", RECORDED)
def test_totals_of_every_recorded_trace(path):
    trace = recorded(path)
    lines = read(totals_csv({trace.method: trace}))
    assert tuple(lines[0]) == STEP_COLUMNS
    decode, summary = [line for line in lines if line["kind"] == "decode"], trace.summary()
    for kind, count in summary["input_rows"].items():
        assert sum(int(line[f"input_rows_{kind}"]) for line in decode) == count
    for mode, kinds in summary["kv_slots_scanned"].items():
        for kind, count in kinds.items():
            assert sum(int(line[f"kv_slots_{mode}_{kind}"]) for line in decode) == count
    for phase in PHASES:
        assert sum(float(line[f"seconds_{phase}"]) for line in decode) == pytest.approx(summary["seconds"][phase])
    assert int(lines[-1]["holes_total"]) == summary["holes"]
    assert sum(int(line["attention_launches"]) for line in decode) == summary["attention_launches"]


def test_the_worked_example_line_by_line():
    """Vanilla, prompts 5 and 3, drafts 5 and 2, accepted 3 and 0: the shared cursor moves by 4, row 1 gets 3 holes."""
    trace = scripted_run("vanilla")
    lines = read(counters_csv({"vanilla": trace}, titles=["long", "short"]))
    prefill, first = lines[:2], lines[2:4]
    assert [line["fed"] for line in prefill] == ["5", "3"]
    assert [(line["title"], line["fed"], line["pads"], line["drafted"], line["accepted"]) for line in first] == [
        ("long", "6", "0", "5", "3"),
        ("short", "6", "3", "2", "0"),
    ]
    assert [(line["emitted"], line["next_slot"], line["cache_length"], line["holes_added"]) for line in first] == [
        ("4", "9", "9", "0"),
        ("1", "9", "4", "3"),
    ]


def test_two_methods_follow_each_other_and_numbers_are_bare():
    traces = {name: scripted_run(name) for name in ("vanilla", "ems-sd")}
    for text in (counters_csv(traces), totals_csv(traces)):
        names = [line["method"] for line in read(text)]
        assert names == sorted(names, key=list(traces).index)
        assert set(names) == set(traces)
        assert text.split("\r\n")[1].startswith('"vanilla",0,"prefill",')
    assert read(counters_csv({})) == []


def test_hostile_texts_are_shown_and_never_obeyed():
    trace = hostile_trace()
    found = []
    for start in range(0, len(HOSTILE), 2):
        text = counters_csv({"ems-sd": trace}, titles=HOSTILE[start : start + 2])
        text.encode("utf-8")  # no half surrogate pairs
        lines = read(text)
        assert len(lines) == len(trace.steps) * len(trace.rows)
        found += [line[name] for line in lines for name in ("title", "text")]
    for shown in found:
        assert not set("\u202e\u200f\u2028\n\t\x00\x1b") & set(shown)
        for cell in shown.split(";"):  # as a program sees it that takes ";" for the separator
            assert not STARTS_FORMULA.match(cell), shown
    assert {"'=cmd()", "<script>window.hit = 1</script>", "\ufffd\ufffd", "half ⟨D83D⟩ surrogate ⟨DC00⟩"} <= set(found)


@given(st.text(alphabet=st.sampled_from("=+-@＝＋';, \t\rab\"\n"), max_size=12) | st.text(max_size=12))
@example("';'=1")
@example("; =1")
@example(';"=1;')
def test_a_formula_cannot_start_and_the_text_comes_back(text):
    safe = spreadsheet_text(text)
    for cell in safe.split(";"):
        assert not STARTS_FORMULA.match(cell)
    file = io.StringIO()
    csv.writer(file, quoting=csv.QUOTE_NONNUMERIC).writerow(["ems-sd", 0, safe.replace("\r", "").replace("\n", "")])
    for cells in csv.reader(io.StringIO(file.getvalue()), delimiter=";"):
        assert not any(map(STARTS_FORMULA.match, cells))
    assert re.sub(r"(^|;)'(?=[\s\"]*[=+\-@＝＋－＠'\t\r])", r"\1", safe) == text
