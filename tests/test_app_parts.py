"""The pure parts of the page: comparison, narration, the player's columns, hostile token text, opened files."""

from __future__ import annotations

import copy
import json
import re
import threading
from pathlib import Path

import pytest

from emssd import GenerationTrace
from emssd.cells import STATES, Cell, iter_cells
from emssd.config import METHOD_TITLES
from emssd.ui import live_view
from emssd.ui.comparison import Clock, clock, compare_outputs, latest, speed_ups
from emssd.ui.live_run import LiveRequest, LiveRun
from emssd.ui.narration import narrate, plain_text
from emssd.ui.palette import LAYOUT_WORDS, PHASES
from emssd.ui.player_data import ORIGIN_CODES, PARTS, Pane, player_data, too_large
from emssd.ui.setup_form import METHOD_CHOICES, default_ids, own_prompts
from emssd.ui.shown import from_files, from_folder
from emssd.ui.token_text import escaped, visible
from tests.helpers import language_model, prompt_ids
from tests.test_cells import figure2, run_of

TRACES = Path(__file__).resolve().parent.parent / "assets" / "traces"
HOSTILE = ['<script>alert("x")</script>', "\u202eevil", "a\nb\tc", "\x1b[31m", "\u2066", "\ue000", "y" * 500, "&amp;"]


@pytest.fixture(scope="module")
def recorded():
    return from_folder(TRACES)


def file_of(trace: GenerationTrace, name: str = "") -> tuple[str, bytes]:
    return (name or f"{trace.method}.json", trace.to_json().encode())


def test_speed_up_counts_the_baseline_until_it_has_as_many_tokens():
    baseline, method = Clock([0, 2, 4, 6, 8], [0, 1.0, 2.0, 3.0, 4.0]), Clock([0, 3, 8, 9], [0, 0.5, 2.0, 3.0])
    assert speed_ups(baseline, method) == [None, 4.0, 2.0, None]
    assert latest([None, 4.0, 2.0, None]) == 2.0
    assert latest([None]) is None


def test_speed_up_at_the_end_is_the_ratio_of_decode_times(recorded):
    greedy, vanilla = recorded.traces["greedy"], recorded.traces["vanilla"]
    whole = speed_ups(clock(greedy.steps), clock(vanilla.steps))[-1]
    seconds = [trace.summary()["seconds"]["total"] for trace in (greedy, vanilla)]
    assert whole == pytest.approx(seconds[0] / seconds[1])


@pytest.mark.parametrize(
    ("left", "right", "complete", "shared", "first"),
    [
        ([[1, 2], [3]], [[1, 2], [3]], True, 3, None),
        ([[1, 2], [3, 4]], [[1, 9], [3, 9]], True, 2, (0, 2)),
        ([[1, 2], [9, 4]], [[1, 3], [3, 4]], True, 1, (1, 1)),
        ([[1, 2]], [[1]], True, 1, (0, 2)),
        ([[1, 2]], [[1]], False, 1, None),
    ],
)
def test_equality_names_the_first_difference(left, right, complete, shared, first):
    equality = compare_outputs(left, right, complete)
    assert (equality.shared, equality.identical) == (shared, first is None)
    if first:
        assert (equality.row, equality.token) == first
        assert equality.sentence() == f"Output differs from greedy: first at row {first[0]}, new token {first[1]}"
    elif complete:
        assert equality.sentence() == "Output identical to greedy, 3 of 3 tokens"
    else:
        assert equality.sentence() == "Identical to greedy so far, 1 of 1 shared tokens"


def test_a_difference_greys_the_speed_up(recorded):
    clocks = {name: clock(trace.steps) for name, trace in recorded.traces.items()}
    html = live_view.speed_card(clocks, {"vanilla"}, recorded.where, True)
    assert html.count("output differs") == 1
    assert re.search(r'class="s-line invalid" data-testid="speed-vanilla"', html)


def test_narration_of_the_worked_example():
    def sentences(method):
        trace = figure2(method)
        said = [plain_text(narrate(trace, step)) for step in trace.steps]
        return [re.sub("“.*?”", "“x”", sentence) for sentence in said]

    assert sentences("vanilla") == [
        "Prefill: 2 prompts, 8 tokens. The shared cursor starts after the longest prompt, at slot 5: 2 prompt pads.",
        "Row 0 keeps 3 of 5 drafts and the target’s own “x”; row 1 keeps 0 of 2 drafts and the target’s own “x”. "
        "The shared cursor moves by the largest gain, 4, so row 1 leaves 3 holes.",
        "Row 0 keeps 1 of 2 drafts and the target’s own “x”; row 1 keeps 5 of 5 drafts and a bonus “x”. "
        "The shared cursor moves by the largest gain, 6, so row 0 leaves 4 holes.",
    ]
    assert sentences("ems-sd") == [
        "Prefill: 2 prompts, 8 tokens, no padding. Each row’s cursor starts at the end of its own prompt.",
        "Row 0 keeps 3 of 5 drafts and the target’s own “x”; row 1 keeps 0 of 2 drafts and the target’s own “x”. "
        "Each cursor moves by its own gain, 5 → 9 and 3 → 4: no holes.",
        "Row 0 keeps 1 of 2 drafts and the target’s own “x”; row 1 keeps 5 of 5 drafts and a bonus “x”. "
        "Each cursor moves by its own gain, 9 → 11 and 4 → 10: no holes.",
    ]


def test_narration_counts_match_the_trace(recorded):
    for trace in recorded.traces.values():
        for step in trace.steps[1:]:
            said = plain_text(narrate(trace, step))
            told = [0 if number == "no" else int(number) for number in re.findall(r"(\d+|no) holes?", said)]
            assert told, said
            assert sum(told) == sum(len(row.holes_added) for row in step.rows), said


def test_the_player_can_rebuild_every_cell(recorded):
    data = player_data([Pane(trace, name) for name, trace in recorded.traces.items()], recorded.titles)
    for pane, trace in zip(data["panes"], recorded.traces.values(), strict=True):
        grid = {}
        for flat, truth in zip(pane["changes"], iter_cells(trace), strict=True):
            for place in range(0, len(flat), 5):
                row, slot, state, word, position = flat[place : place + 5]
                grid[row, slot] = (STATES[state], word, position - 1)
            for row, cells in enumerate(truth):
                for slot, cell in enumerate(cells):
                    state, word, position = grid.get((row, slot), ("free", -1, -1))
                    assert (state, position) == (cell.state, -1 if cell.position is None else cell.position)
                    if cell != Cell():
                        token = None if word < 0 else data["words"][word]
                        assert token == (None if cell.token_id is None else visible(trace.tokens[str(cell.token_id)]))


def test_the_players_counters_end_at_the_summary(recorded):
    data = player_data([Pane(trace, name) for name, trace in recorded.traces.items()], recorded.titles)
    for pane, trace in zip(data["panes"], recorded.traces.values(), strict=True):
        last = {part: pane["counters"][part][-1] for part in PARTS}
        summary = trace.summary()
        scanned = summary["kv_slots_scanned"]["per_token"]
        assert [last["input_useful"], last["input_pad"], last["input_finished"]] == list(summary["input_rows"].values())
        assert last["slots_useful"] == scanned["useful"]
        assert last["slots_dead"] == scanned["prompt_pad"] + scanned["hole"]
        assert last["slots_pad_query"] == scanned["pad_query"]
        assert last["holes"] == summary["holes"]
        assert last["ms"] == pytest.approx(1000 * summary["seconds"]["total"], abs=1)
        new = [sum(1 for step in flat[2::3] if step >= 0) for flat in pane["texts"]]
        assert new == [len(row.output_token_ids) for row in trace.rows]
    assert len(json.dumps(data)) < 2_000_000


def test_what_is_too_large_is_said(recorded):
    trace = copy.copy(recorded.traces["greedy"])
    assert too_large(trace) is None
    trace.steps = trace.steps * 20
    assert "at most 500 steps" in too_large(trace)


@pytest.mark.parametrize("text", HOSTILE)
def test_token_text_is_shown_and_never_obeyed(text, recorded):
    shown = escaped(text)
    assert "<" not in shown
    assert not re.search("[\x00-\x1f\u202a-\u202e\u2066-\u2069]", shown)
    assert len(visible(text)) <= 1 + 6 * 200
    trace = copy.deepcopy(recorded.traces["ems-sd"])
    trace.tokens = dict.fromkeys(trace.tokens, text)
    html = live_view.texts({"ems-sd": trace}, {"ems-sd": len(trace.steps)}, [text] * 4, True)
    assert not re.search("<script|[\u202a-\u202e\u2066-\u2069]", html)
    tags = set(re.findall("<(/?[a-z]+)", html))
    assert tags <= {"div", "/div", "i", "/i", "b", "/b", "span", "/span", "p", "/p", "bdi", "/bdi", "br"}
    data = player_data([Pane(trace, "ems-sd")], [text] * 4)
    assert not re.search("[\x00-\x1f\u202a-\u202e\u2066-\u2069]", "".join(data["words"]) + "".join(data["rows"]))


def test_opened_files_make_a_comparison(recorded):
    shown, problems = from_files([file_of(trace) for trace in recorded.traces.values()])
    assert not problems
    assert shown.panes == ("vanilla", "ems-sd")
    assert all(each.identical and each.complete for each in shown.equality().values())
    alone, _ = from_files([file_of(recorded.traces["ems-sd"])])
    assert (alone.panes, alone.equality(), alone.player()["panes"][0]["speed"]) == (("ems-sd",), {}, [])


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (lambda t: [("a.json", b"\xff\xfe")], "a.json was left out: it is not UTF-8"),
        (lambda t: [("a.json", b"[1]")], "it is not a JSON object"),
        (lambda t: [("/etc/passwd", b"/etc/passwd")], "it is not a JSON object"),
        (lambda t: [("a.json", b"{}")], "schema"),
        (lambda t: [("a.json", b'{"schema": 1' + b"[" * 100_000)], "a.json was left out: "),
        (lambda t: [("a.json", b" " * (5 * 2**20 + 1))], "up to 5 MiB"),
        (lambda t: [file_of(t["vanilla"]), file_of(t["vanilla"], "b.json")], "a newer file has the method vanilla"),
        (lambda t: [file_of(t["vanilla"]), file_of(run_of("ems-sd"))], "its prompts are not those of ems-sd.json"),
    ],
)
def test_files_that_cannot_be_opened_are_one_sentence(files, sentence, recorded):
    given = files(recorded.traces)
    shown, (problem,) = from_files(given)
    assert sentence in problem
    assert "\n" not in problem
    assert (shown is None) == (len(given) == 1)


def test_cancelling_between_two_steps_lets_at_most_one_more_happen():
    lm = language_model("random-llama")
    request = LiveRequest((tuple(prompt_ids(9)), tuple(prompt_ids(4))), ("a", "b"), ("vanilla", "ems-sd"), 3, 200)
    for _ in range(5):
        run = LiveRun(lm, request).start()
        while sum(run.steps.values()) < 7:
            pass
        run.cancel()
        then = sum(run.steps.values())
        run.join(10)
        assert run.state == "cancelled"
        assert sum(run.steps.values()) <= then + 1
        assert {name: len(trace.steps) for name, trace in run.traces.items()} == run.steps
    assert not [thread for thread in threading.enumerate() if thread.name == "emssd-live-run"]


def test_a_run_that_breaks_says_so_and_keeps_what_it_has(monkeypatch):
    original = LiveRun._next

    def breaks(self, run):
        if sum(self.steps.values()) > 6:
            raise RuntimeError("the device is gone\nand more")
        return original(self, run)

    monkeypatch.setattr(LiveRun, "_next", breaks)
    run = LiveRun(language_model("random-llama"), LiveRequest((tuple(prompt_ids(9)),), ("a",), ("vanilla",), 3, 50))
    run.start().join(10)
    assert (run.state, run.error) == ("failed", "The run stopped: RuntimeError the device is gone")
    assert sum(run.steps.values()) == 7


def test_tables_of_words_are_complete():
    assert set(PHASES) == set(STATES)
    assert set(LAYOUT_WORDS) == set(METHOD_TITLES)
    assert set(METHOD_CHOICES) < set(METHOD_TITLES)
    glyphs = [phase.glyph for phase in PHASES.values()]
    assert len(set(glyphs)) == len(glyphs)
    assert set(ORIGIN_CODES) < set(PHASES)


def test_own_prompts_are_blocks():
    assert own_prompts("a b\nc\n\n \n  d\r\n\r\ne\n") == ("a b\nc", "  d", "e")
    assert own_prompts(" \n\n ") == ()


def test_a_set_of_other_prompts_still_has_defaults():
    assert default_ids(["a", "b"]) == ["a", "b"]
    assert len(default_ids("abcdefgh")) == 4
