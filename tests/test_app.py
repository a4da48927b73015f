"""The page Run live through Streamlit's own test runner: a whole run, cancelling, bad input, memory, shared weights."""

from __future__ import annotations

import gc
import json
import re
import time

import pytest
from streamlit.testing.v1 import AppTest

from emssd import GenerationTrace, loading
from emssd.errors import UnsupportedModelError
from emssd.model_runner import ModelRunner
from emssd.ui import live_run, models
from emssd.ui.live_run import LiveRun
from tests.app_pages import (
    COMPARE,
    EXPLORE,
    LIVE,
    go,
    join_live_runs,
    methods,
    open_app,
    player,
    run_count,
    texts,
    warnings,
)

OWN = "the cat sat on the mat and the cat sat\n\none two three one two three one two"
HOSTILE = '<script>alert("x")</script> \u202eevil <b>and on</b>'


@pytest.fixture(autouse=True)
def no_thread_is_left():
    """Every run ends with its test: a thread that goes on would spoil the next one."""
    yield
    join_live_runs()


def open_page() -> AppTest:
    return open_app(LIVE)


def set_up(page: AppTest, own: str = OWN, tokens: int = 12) -> AppTest:
    """The tiny model and own prompts: no file is read and a run takes a moment."""
    page.selectbox(key="model").set_value("random-llama")
    page.multiselect(key="shipped").set_value([])
    page.text_area(key="own").set_value(own)
    page.number_input(key="tokens").set_value(tokens)
    return page.run()


def start(page: AppTest) -> LiveRun:
    page.button(key="run_button").click().run()
    assert not page.exception
    return page.session_state["run"]


def finish(page: AppTest, run: LiveRun) -> None:
    run.join(30)
    assert run.done
    page.run()
    assert not page.exception


@pytest.fixture
def slow_steps(monkeypatch):
    """Every step takes a moment, so that a run can be met in the middle."""
    original = LiveRun._next

    def slowly(self, run):
        time.sleep(0.05)
        return original(self, run)

    monkeypatch.setattr(LiveRun, "_next", slowly)


@pytest.fixture
def forwards(monkeypatch):
    """How many times a model was called."""
    calls = []
    original = ModelRunner.forward

    def counted(self, *args, **settings):
        calls.append(1)
        return original(self, *args, **settings)

    monkeypatch.setattr(ModelRunner, "forward", counted)
    return calls


def test_a_first_visit_is_an_empty_state_with_a_way_on():
    page = open_page()
    assert "Nothing has been decoded yet" in texts(page)
    assert not page.get("bidi_component")
    assert [link.proto.label for link in page.get("page_link")] == ["Open an example"]
    assert not page.button(key="run_button").disabled
    assert run_count(page) == 1


def test_a_whole_run():
    page = set_up(open_page())
    run = start(page)
    assert page.button(key="run_button").disabled or run.done
    finish(page, run)
    shown = texts(page)
    assert run.state == "finished"
    assert shown.count("Output identical to greedy, 24 of 24 tokens") == 2
    assert "Speed-up vs greedy" in shown
    assert "decode only, prefill excluded, this CPU:" in shown
    assert "Measured on this CPU. Not comparable with the paper’s GPU numbers." in shown
    data = player(page)
    assert methods(page) == ["vanilla", "ems-sd"]
    assert data["rows"] == ["the cat sat on the mat…", "one two three one two t…"]
    assert data["time"]["label"] == "Measured time"
    assert data["link"] is None
    assert all(pane["speed"][-1] > 0 and pane["differs"] is None for pane in data["panes"])
    assert not page.button(key="run_button").disabled
    assert len(page.get("download_button")) == 7


def test_why_drafts_are_rejected_is_recorded_where_asked_for():
    page = set_up(open_page(), tokens=6)
    finish(page, start(page))
    assert [pane["tops"] for pane in player(page)["panes"]] == [{}, {}]
    page.toggle(key="why_rejected").set_value(True).run()
    run = start(page)
    finish(page, run)
    assert {trace.config["num_top_tokens"] for trace in run.traces.values()} == {4}
    for pane in player(page)["panes"]:
        assert "1.0" in pane["tops"]
        assert all(len(best) == 4 for judged in pane["tops"].values() for best in judged)


def test_the_run_can_be_explored_and_compared():
    page = set_up(open_page())
    run = start(page)
    finish(page, run)
    go(page, EXPLORE)
    assert page.selectbox(key="set").value == "figure2"
    page.selectbox(key="set").set_value("live").run()
    assert methods(page) == ["vanilla", "ems-sd"]
    page.selectbox(key="pane_left").set_value("greedy").run()
    assert methods(page) == ["greedy", "ems-sd"]
    go(page, COMPARE)
    assert page.selectbox(key="compare_set").value == "live"
    assert texts(page).count("Output identical to greedy, 24 of 24 tokens") == 2


def test_the_same_prompts_and_settings_reach_every_method():
    page = set_up(open_page(), tokens=5)
    page.selectbox(key="source").set_value("context")
    page.number_input(key="drafts").set_value(3)
    page.selectbox(key="right").set_value("ragged-cache")
    page.run()
    run = start(page)
    finish(page, run)
    assert list(run.traces) == ["greedy", "vanilla", "ragged-cache"]
    for name, trace in run.traces.items():
        assert trace.config["max_new_tokens"] == 5
        assert trace.config["num_draft_tokens"] == (0 if name == "greedy" else 3)
        assert name == "greedy" or trace.drafter["source"] == "context"
        assert [row.prompt_text for row in trace.rows] == OWN.split("\n\n")


def test_a_draft_model_can_draft():
    page = set_up(open_page())
    page.selectbox(key="source").set_value("draft-model").run()
    assert "Give the draft model" in warnings(page)[0]
    assert page.button(key="run_button").disabled
    page.text_input(key="draft_model").set_value("random-llama").run()
    run = start(page)
    finish(page, run)
    assert run.traces["ems-sd"].drafter["name"] == "draft-model"
    assert texts(page).count("Output identical to greedy, 24 of 24 tokens") == 2


def test_a_draft_model_that_is_not_there_is_one_sentence():
    page = set_up(open_page())
    page.selectbox(key="source").set_value("draft-model").run()
    page.text_input(key="draft_model").set_value("someone/some-model").run()
    page.button(key="run_button").click().run()
    assert "There is no folder 'someone/some-model' on this computer" in warnings(page)[0]
    assert "run" not in page.session_state


def test_no_drafter_is_plain_decoding():
    page = set_up(open_page())
    page.selectbox(key="source").set_value("none").run()
    assert page.number_input(key="drafts").disabled
    run = start(page)
    finish(page, run)
    assert all(len(trace.steps) == 12 for trace in run.traces.values())


def test_greedy_as_a_pane_runs_once():
    page = set_up(open_page())
    page.selectbox(key="left").set_value("greedy").run()
    run = start(page)
    finish(page, run)
    assert list(run.traces) == ["greedy", "ems-sd"]
    assert [pane["isBaseline"] for pane in player(page)["panes"]] == [True, False]


def test_no_drafts_is_plain_decoding_in_both_panes():
    page = set_up(open_page())
    page.number_input(key="drafts").set_value(0).run()
    run = start(page)
    finish(page, run)
    assert all(len(trace.steps) == 12 for trace in run.traces.values())
    assert methods(page) == ["vanilla", "ems-sd"]


@pytest.mark.usefixtures("slow_steps")
def test_cancel_acts_within_one_step_and_keeps_valid_traces():
    page = set_up(open_page(), tokens=200)
    run = start(page)
    while min(run.steps.values()) < 3:
        time.sleep(0.01)
    before = sum(run.steps.values())
    page.run()
    page.button(key="cancel").click().run()
    run.join(10)
    assert run.state == "cancelled"
    assert sum(run.steps.values()) <= before + 6  # at most a step each while the page was drawn, and the one under way
    page.run()
    assert "Stopped after step" in texts(page)
    assert "What was decoded is kept." in texts(page)
    for trace in run.traces.values():
        again = GenerationTrace.from_json(trace.to_json())
        assert not again.finished
    assert [len(pane["steps"]) for pane in player(page)["panes"]] == [run.steps["vanilla"], run.steps["ems-sd"]]


@pytest.mark.usefixtures("slow_steps")
def test_a_run_that_nobody_watches_stops(monkeypatch):
    monkeypatch.setattr(live_run, "HIDDEN_SECONDS", 0.3)
    monkeypatch.setattr(LiveRun.__init__, "__defaults__", (0.3, None, None))
    page = set_up(open_page(), tokens=200)
    run = start(page)
    run.join(10)
    assert run.state == "abandoned"
    page.run()
    assert "Nobody was watching" in texts(page)


@pytest.mark.usefixtures("slow_steps")
@pytest.mark.parametrize("elsewhere", [EXPLORE, COMPARE])
def test_another_page_stops_the_run_at_once_and_can_show_it(elsewhere):
    page = set_up(open_page(), tokens=200)
    run = start(page)
    while min(run.steps.values()) < 2:
        time.sleep(0.01)
    go(page, elsewhere)
    run.join(1)
    assert run.state == "abandoned"
    page.run()
    chooser = page.selectbox(key="set" if elsewhere == EXPLORE else "compare_set")
    assert "Last live run" in chooser.options
    go(page, LIVE)
    assert "Stopped after step" in texts(page)
    assert page.text_area(key="own").value == OWN
    assert page.selectbox(key="model").value == "random-llama"


@pytest.mark.usefixtures("slow_steps")
def test_runs_of_two_visitors_go_on_together():
    first, second = set_up(open_page(), tokens=60), set_up(open_page(), own="a b a b a", tokens=60)
    one, two = start(first), start(second)
    deadline = time.monotonic() + 10
    while (sum(one.steps.values()) < 5 or sum(two.steps.values()) < 5) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (one.state, two.state) == ("decoding", "decoding")
    second.run()
    assert "Another run shares this machine" in texts(second)
    first.button(key="cancel").click().run()
    second.button(key="cancel").click().run()
    one.join(5)
    two.join(5)
    assert (one.state, two.state) == ("cancelled", "cancelled")


def test_the_same_request_is_answered_from_memory(forwards):
    page = set_up(open_page(), tokens=3)
    finish(page, start(page))  # loads the model, whose self-check calls it
    page.number_input(key="tokens").set_value(12).run()
    loaded = len(forwards)
    run = start(page)
    finish(page, run)
    decoded, before = len(forwards) - loaded, player(page)["id"]
    assert decoded > 0
    assert "again_button" not in [button.key for button in page.button]
    again = start(page)
    assert again is run
    assert len(forwards) == loaded + decoded
    assert "Shown from memory: the same settings ran before." in [each.value for each in page.caption]
    assert player(page)["id"] == before
    page.number_input(key="tokens").set_value(5).run()
    other = start(page)
    finish(page, other)
    assert other is not run
    page.number_input(key="tokens").set_value(12).run()
    assert start(page) is run
    count = len(forwards)
    page.button(key="again_button").click().run()
    fresh = page.session_state["run"]
    finish(page, fresh)
    assert fresh is not run
    assert len(forwards) == count + decoded
    assert fresh.traces == run.traces


def test_looking_never_calls_the_model(forwards):
    page = set_up(open_page())
    finish(page, start(page))
    count = len(forwards)
    page.selectbox(key="left").set_value("greedy").run()
    page.selectbox(key="left").set_value("vanilla").run()
    go(page, EXPLORE)
    page.selectbox(key="set").set_value("live").run()
    page.selectbox(key="pane_left").set_value("greedy").run()
    page.selectbox(key="time").set_value("measured").run()
    go(page, COMPARE)
    page.segmented_control(key="compare_time").set_value("measured").run()
    go(page, LIVE)
    assert len(forwards) == count


@pytest.mark.usefixtures("slow_steps")
def test_a_cancelled_run_is_not_remembered():
    page = set_up(open_page(), tokens=200)
    run = start(page)
    run.cancel()
    finish(page, run)
    assert run.state == "cancelled"
    again = start(page)
    assert again is not run
    again.cancel()
    finish(page, again)


@pytest.mark.usefixtures("slow_steps")
def test_running_again_and_stopping_keeps_the_finished_run():
    page = set_up(open_page(), tokens=3)
    first = start(page)
    finish(page, first)
    assert start(page) is first
    page.button(key="again_button").click().run()
    again = page.session_state["run"]
    assert again is not first
    again.cancel()
    finish(page, again)
    assert again.state == "cancelled"
    assert start(page) is first


def test_memory_of_runs_is_bounded():
    page = set_up(open_page(), tokens=1)
    for tokens in range(1, 10):
        page.number_input(key="tokens").set_value(tokens).run()
        finish(page, start(page))
    assert len(page.session_state["memory"]) == 6


def test_bad_prompts_are_told_one_by_one_and_the_others_go_on():
    own = "a good prompt, a good one\n\n" + "too long " * 60
    page = set_up(open_page(), own=own)
    run = start(page)
    finish(page, run)
    (message,) = warnings(page)
    assert message.startswith("“too long too long too l…” was left out. Row 1: the prompt has")
    assert run.state == "finished"
    assert run.request.titles == ("a good prompt, a good o…",)
    assert page.text_area(key="own").value == own


def test_when_every_prompt_is_bad_nothing_is_lost():
    own = "x" * 300
    page = set_up(open_page(), own=own)
    page.button(key="run_button").click().run()
    assert not page.exception
    assert "run" not in page.session_state
    assert len(warnings(page)) == 1
    assert page.text_area(key="own").value == own
    assert "Nothing has been decoded yet" in texts(page)


def test_prompts_come_from_files_line_by_line():
    page = set_up(open_page(), own="")
    content = b'{"prompt": "one two one two"}\n{"turns": ["three four", "x"]}\nbroken\n'
    page.file_uploader(key="prompt_files").set_value([("p.jsonl", content, "application/jsonl")]).run()
    (message,) = warnings(page)
    assert message.startswith("p.jsonl, line 3 is not JSON")
    go(page, EXPLORE)
    go(page, LIVE)
    run = start(page)
    finish(page, run)
    assert [row.prompt_text for row in run.traces["greedy"].rows] == ["one two one two", "three four"]
    page.button(key="drop_files").click().run()
    assert "There is no prompt" in warnings(page)[0]


def test_a_text_file_has_one_prompt_a_line():
    page = set_up(open_page(), own="typed here")
    page.file_uploader(key="prompt_files").set_value([("p.txt", b"one\n\ntwo\n", "text/plain")]).run()
    run = start(page)
    finish(page, run)
    assert run.request.titles == ("typed here", "one", "two")


def test_a_file_without_a_good_prompt_leaves_the_former_ones():
    page = set_up(open_page(), own="")
    page.file_uploader(key="prompt_files").set_value([("p.txt", b"one\ntwo", "text/plain")]).run()
    page.file_uploader(key="prompt_files").set_value([("q.txt", b"\xff", "text/plain")]).run()
    assert "q.txt is not UTF-8" in warnings(page)[0]
    assert page.session_state["filed_prompts"] == ("one", "two")


def test_hostile_prompts_and_file_names_stay_text():
    page = set_up(open_page(), own=HOSTILE)
    page.file_uploader(key="prompt_files").set_value([(f"{HOSTILE}.jsonl", b"[]", "application/jsonl")]).run()
    assert "\u202e" not in " ".join(warnings(page))
    run = start(page)
    finish(page, run)
    assert run.state == "finished"
    shown = texts(page)
    assert "<script>alert" not in shown
    assert "<b>and on" not in shown
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", shown)
    assert "\u202e" not in json.dumps(player(page), ensure_ascii=False)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda page: page.selectbox(key="right").set_value("vanilla"), "Both sides are Vanilla"),
        (lambda page: page.text_area(key="own").set_value(" \n\n "), "There is no prompt"),
        (lambda page: page.text_area(key="own").set_value("\n\n".join("abcdefghijklmnopq")), "at most 16 rows"),
        (lambda page: page.selectbox(key="model").set_value("folder"), "Give the folder"),
    ],
)
def test_what_cannot_run_is_refused_beside_the_controls(change, sentence):
    page = set_up(open_page())
    change(page)
    page.run()
    assert sentence in warnings(page)[0]
    assert page.button(key="run_button").disabled


def test_a_folder_that_is_no_model_is_one_sentence(tmp_path):
    page = set_up(open_page())
    page.selectbox(key="model").set_value("folder").run()
    page.text_input(key="folder").set_value(str(tmp_path)).run()
    page.button(key="run_button").click().run()
    assert not page.exception
    assert "has no config.json" in warnings(page)[0]
    assert page.text_area(key="own").value == OWN


@pytest.mark.parametrize("name", ["/no/such/folder", "owner/model", "x" * 5000, "\x00", "~nobody-here/x"])
def test_a_folder_that_is_not_there_is_one_sentence_and_nothing_is_downloaded(name):
    page = set_up(open_page())
    page.selectbox(key="model").set_value("folder").run()
    page.text_input(key="folder").set_value(name).run()
    page.button(key="run_button").click().run()
    assert not page.exception
    (message,) = warnings(page)
    assert message.startswith("There is no folder ")
    assert len(message) < 500


def test_a_refused_model_says_which_check_failed(monkeypatch):
    models._weights.clear()

    def refuse(name):
        raise UnsupportedModelError("The architecture X keeps a state that our cache does not hold.")

    monkeypatch.setattr(loading, "load_model", refuse)
    page = set_up(open_page())
    page.button(key="run_button").click().run()
    assert warnings(page) == ["The architecture X keeps a state that our cache does not hold."]
    models._weights.clear()


def test_weights_are_loaded_once_for_all_visitors(monkeypatch):
    models._weights.clear()
    calls, original = [], loading.load_model

    def counted(name):
        calls.append(name)
        return original(name)

    monkeypatch.setattr(loading, "load_model", counted)
    for _ in range(2):
        page = set_up(open_page(), tokens=2)
        finish(page, start(page))
        page.run()
        finish(page, start(page))
    assert calls == ["random-llama"]
    assert gc.get_freeze_count() > 100_000  # else the collection after every poll would hold up decoding


def test_every_page_counts_its_script_runs():
    page = open_app()
    for number, name in enumerate((LIVE, COMPARE, EXPLORE), start=2):
        go(page, name)
        assert run_count(page) == number
