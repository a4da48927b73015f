"""The page through Streamlit's own test runner: first open, a whole run, cancelling, bad input, shared weights."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from emssd import GenerationTrace, loading
from emssd.errors import UnsupportedModelError
from emssd.ui import live_run, models
from emssd.ui.live_run import LiveRun

ROOT = Path(__file__).resolve().parent.parent
OWN = "the cat sat on the mat and the cat sat\n\none two three one two three one two"


@pytest.fixture(autouse=True)
def no_thread_is_left():
    """Every run ends with its test: a thread that goes on would spoil the next one."""
    yield
    for thread in threading.enumerate():
        if thread.name == "emssd-live-run":
            thread.join(15)
            assert not thread.is_alive()


def open_page(**query: str) -> AppTest:
    page = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    for name, value in query.items():
        page.query_params[name] = value
    page.run()
    assert not page.exception
    return page


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


def texts(page: AppTest) -> str:
    return "\n".join(each.proto.body for each in page.get("html"))


def warnings(page: AppTest) -> list[str]:
    return [each.value for each in page.warning]


def player(page: AppTest) -> dict:
    (component,) = page.get("bidi_component")
    return json.loads(component.proto.json)


@pytest.fixture
def slow_steps(monkeypatch):
    """Every step takes a moment, so that a run can be met in the middle."""
    original = LiveRun._next

    def slowly(self, run):
        time.sleep(0.05)
        return original(self, run)

    monkeypatch.setattr(LiveRun, "_next", slowly)


def test_first_open_shows_the_recorded_example_without_torch():
    script = (
        "import sys\n"
        "from streamlit.testing.v1 import AppTest\n"
        "page = AppTest.from_file('app.py', default_timeout=60).run()\n"
        "assert not page.exception, page.exception\n"
        "assert len(page.get('bidi_component')) == 1\n"
        "html = ' '.join(each.proto.body for each in page.get('html'))\n"
        "assert 'Recorded example' in html and 'Output identical to greedy' in html\n"
        "loaded = {'torch', 'transformers'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Traceback" not in done.stderr


def test_a_whole_run():
    page = set_up(open_page())
    run = start(page)
    assert page.button(key="run_button").disabled or run.done
    finish(page, run)
    shown = texts(page)
    assert run.state == "finished"
    assert shown.count("Output identical to greedy, 24 of 24 tokens") == 2
    assert "Speed-up vs greedy, padded cache" in shown
    assert "decode only, prefill excluded, this CPU:" in shown
    assert "Measured on this CPU. Not comparable with the paper’s GPU numbers." in shown
    data = player(page)
    assert [pane["method"] for pane in data["panes"]] == ["vanilla", "ems-sd"]
    assert data["rows"] == ["the cat sat on the mat…", "one two three one two t…"]
    assert all(pane["speed"][-1] > 0 and not pane["differs"] for pane in data["panes"])
    assert not page.button(key="run_button").disabled


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
    assert [pane["method"] for pane in player(page)["panes"]] == ["vanilla", "ems-sd"]


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
    assert player(page)["steps"] == max(run.steps["vanilla"], run.steps["ems-sd"])


@pytest.mark.usefixtures("slow_steps")
def test_a_run_that_nobody_watches_stops(monkeypatch):
    monkeypatch.setattr(live_run, "HEARTBEAT_SECONDS", 0.3)
    monkeypatch.setattr(LiveRun.__init__, "__defaults__", (0.3,))
    page = set_up(open_page(), tokens=200)
    run = start(page)
    run.join(10)
    assert run.state == "abandoned"
    page.run()
    assert "Nobody was watching" in texts(page)


@pytest.mark.usefixtures("slow_steps")
def test_runs_of_two_visitors_take_turns():
    first, second = set_up(open_page(), tokens=30), set_up(open_page(), tokens=30)
    one, two = start(first), start(second)
    deadline = time.monotonic() + 5
    while not sum(one.steps.values()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert two.state == "waiting"
    second.run()
    assert "Another run is decoding" in texts(second)
    second.button(key="cancel").click().run()
    two.join(5)
    assert (two.state, sum(two.steps.values())) == ("cancelled", 0)
    one.cancel()
    one.join(5)


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
    assert len(page.get("bidi_component")) == 1  # the recorded example stays


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


@pytest.mark.parametrize(
    ("step", "shown", "notice"),
    [("5", 5, ""), ("0", 0, ""), ("9999", 31, "the last one is 31"), ("-1", 1, "no number"), ("<b>", 1, "no number")],
)
def test_the_address_chooses_the_step(step, shown, notice):
    page = open_page(step=step)
    assert player(page)["start"] == shown
    captions = " ".join(each.value for each in page.caption)
    assert notice in captions if notice else "address" not in captions
