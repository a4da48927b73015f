"""The page Explore: sets, pairs, addresses, files in and out, and nothing heavy loaded for it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from random import Random

import pytest

from emssd import GenerationTrace
from emssd.cells import SUBSTEPS
from emssd.errors import TraceError
from emssd.ui import library, sets
from emssd.ui.library import default_pair, load_preset, opened_set, preset_index, viewed_set
from emssd.ui.link import read_link
from emssd.ui.player_data import Start
from tests.app_pages import COMPARE, LIVE, ROOT, go, methods, open_app, player, run_count, texts, warnings

HOSTILE = '<script>alert("x")</script>\u202eevil\n'


def file_of(method: str, name: str = "") -> tuple[str, bytes, str]:
    content = (library.FOLDER / "figure2" / f"{method}.json").read_bytes()
    return (name or f"{method}.json", content, "application/json")


def upload(page, *files) -> None:
    page.file_uploader(key="files").set_value(list(files)).run()
    assert not page.exception


def test_first_open_shows_the_worked_example_and_loads_no_model_and_no_chart():
    script = (
        "import sys\n"
        "from tests.app_pages import open_app, player, warnings\n"
        "page = open_app()\n"
        "data = player(page)\n"
        "assert [pane['method'] for pane in data['panes']] == ['vanilla', 'ems-sd'], data\n"
        "assert data['start'] == {'step': 1, 'sub': 'draft', 'pin': None}, data['start']\n"
        "assert not warnings(page)\n"
        # plotly itself is loaded by streamlit where it is installed
        "loaded = {'torch', 'transformers', 'emssd.ui.charts', 'emssd.decoding'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Traceback" not in done.stderr


def test_every_preset_opens_with_its_point_and_after_its_first_step():
    page = open_app()
    for info in preset_index():
        page.selectbox(key="set").set_value(info.name).run()
        assert not page.exception
        assert not warnings(page)
        data = player(page)
        assert data["group"] == info.name
        assert data["start"] == {"step": 1, "sub": "draft" if info.name == "figure2" else "commit", "pin": None}
        assert data["link"] == {"preset": info.name, "left": "vanilla", "right": "ems-sd"}
        assert data["note"] == info.note
        assert data["time"]["label"] == "Modelled time"


def test_any_two_methods_can_be_compared_in_either_order():
    page = open_app()
    names = preset_index()[0].methods
    assert len(names) == 5
    group = player(page)["group"]
    for left in names:
        for right in names:
            if left == right:
                continue
            page.selectbox(key="pane_left").set_value(left)
            page.selectbox(key="pane_right").set_value(right).run()
            assert not warnings(page)
            assert methods(page) == [left, right]
            assert player(page)["group"] == group


def test_the_same_method_twice_is_refused_and_the_last_pair_stays():
    page = open_app()
    page.selectbox(key="pane_left").set_value("ragged-cache").run()
    page.selectbox(key="pane_right").set_value("ragged-cache").run()
    assert warnings(page) == [
        "Both sides are Ragged cache only: choose two different methods. Ragged cache only vs EMS-SD stays on show."
    ]
    assert methods(page) == ["ragged-cache", "ems-sd"]
    page.selectbox(key="pane_right").set_value("greedy").run()
    assert not warnings(page)
    assert methods(page) == ["ragged-cache", "greedy"]


def test_measured_time_names_the_device_and_modelled_time_its_hardware():
    page = open_app()
    assert player(page)["time"]["where"] == "OPT-6.7B, paper’s GPU"
    page.selectbox(key="time").set_value("measured").run()
    data = player(page)
    assert (data["time"]["label"], data["time"]["where"]) == ("Measured time", preset_index()[0].where)
    assert "Not comparable with the paper’s GPU numbers" in data["time"]["help"]


def test_choosing_never_calls_a_model():
    page = open_app()
    page.selectbox(key="set").set_value("copy-rich").run()
    page.selectbox(key="pane_left").set_value("greedy").run()
    page.selectbox(key="time").set_value("measured").run()
    assert "run" not in page.session_state
    assert run_count(page) == 4


def test_choices_stay_when_pages_change():
    page = open_app()
    page.selectbox(key="set").set_value("copy-rich").run()
    page.selectbox(key="pane_left").set_value("packed-input").run()
    go(page, LIVE)
    page.text_area(key="own").set_value("my own words").run()
    go(page, COMPARE)
    assert page.selectbox(key="compare_set").value == "copy-rich"
    go(page, LIVE)
    assert page.text_area(key="own").value == "my own words"
    page = go(page, "explore")
    assert methods(page) == ["packed-input", "ems-sd"]
    assert player(page)["group"] == "copy-rich"


# --- addresses


def read(**query: str):
    return read_link(query, preset_index(), sets.preset)


def test_a_link_restores_everything():
    link, notices = read(
        preset="copy-rich", left="greedy", right="ragged-cache", step="3", sub="verify", pin="2.7", v="1"
    )
    assert not notices
    assert (link.preset, link.left, link.right) == ("copy-rich", "greedy", "ragged-cache")
    assert link.start == Start(3, "verify", "2.7")
    page = open_app(preset="copy-rich", left="greedy", right="ragged-cache", step="3", sub="verify", pin="2.7", v="1")
    assert methods(page) == ["greedy", "ragged-cache"]
    assert player(page)["start"] == {"step": 3, "sub": "verify", "pin": "2.7"}
    page.selectbox(key="set").set_value("figure2").run()
    assert player(page)["start"] == {"step": 1, "sub": "draft", "pin": None}


def test_an_address_without_parameters_is_the_worked_example():
    assert read() == read(preset="figure2", left="vanilla", right="ems-sd", step="1", sub="draft")


@pytest.mark.parametrize(
    ("query", "shown", "notice"),
    [
        ({"preset": "nothing"}, ("figure2", "vanilla", "ems-sd", 1, "draft"), "preset “nothing”, which does not exist"),
        ({"left": "fast"}, ("figure2", "vanilla", "ems-sd", 1, "draft"), "left “fast”, which this set does not have"),
        ({"left": "ems-sd"}, ("figure2", "ems-sd", "vanilla", 1, "draft"), None),
        ({"left": "greedy", "right": "greedy"}, ("figure2", "greedy", "ems-sd", 1, "draft"), "Greedy on both sides"),
        ({"step": "99"}, ("figure2", "vanilla", "ems-sd", 2, "commit"), "step 99, but the last one is 2"),
        ({"step": "-1"}, ("figure2", "vanilla", "ems-sd", 1, "draft"), "step “-1”, which is no step number"),
        ({"step": "٣"}, ("figure2", "vanilla", "ems-sd", 1, "draft"), "which is no step number"),
        ({"step": "9" * 5000}, ("figure2", "vanilla", "ems-sd", 1, "draft"), "which is no step number"),
        ({"step": "0"}, ("figure2", "vanilla", "ems-sd", 0, "commit"), None),
        ({"step": "0", "sub": "draft"}, ("figure2", "vanilla", "ems-sd", 0, "commit"), "prefill does not have"),
        ({"step": "2"}, ("figure2", "vanilla", "ems-sd", 2, "commit"), None),
        ({"sub": "eat"}, ("figure2", "vanilla", "ems-sd", 1, "draft"), "sub “eat”, which does not exist"),
        ({"pin": "7.1"}, ("figure2", "vanilla", "ems-sd", 1, "draft"), "there are 2 rows of"),
        ({"pin": "a"}, ("figure2", "vanilla", "ems-sd", 1, "draft"), "which is not a row and a slot"),
        ({"v": "7"}, ("figure2", "vanilla", "ems-sd", 1, "draft"), "made by a newer version"),
        ({"v": "x"}, ("figure2", "vanilla", "ems-sd", 1, "draft"), "which is no version"),
        ({"what": "ever"}, ("figure2", "vanilla", "ems-sd", 1, "draft"), None),
    ],
)
def test_what_an_address_asks_in_vain_is_said(query, shown, notice):
    link, notices = read(**query)
    assert (link.preset, link.left, link.right, link.start.step, link.start.sub) == shown
    assert len(notices) == (notice is not None)
    if notice:
        assert notice in notices[0]
        assert link.start.pin is None


def fuzzed(draw: Random) -> dict[str, str]:
    pools = {
        "preset": ["figure2", "copy-rich", "", HOSTILE, "../../etc/passwd", "live", "opened"],
        "left": ["greedy", "vanilla", "ems-sd", "", "EMS-SD", HOSTILE],
        "right": ["greedy", "ragged-cache", "ems-sd", "None", HOSTILE],
        "step": ["0", "1", "2", "-3", "1e3", "999999", "9" * 400, "NaN", "0x1", " 1", HOSTILE, "²"],
        "sub": [*SUBSTEPS, "", "Draft", HOSTILE],
        "pin": ["0.0", "1.5", "1.99999", "9.9", ".", "-1.2", "1.2.3", "0.٣", HOSTILE],
        "v": ["1", "2", "", "0", "-1", "1.0", HOSTILE],
        "files": ["x"],
        "set": ["live"],
    }
    return {name: draw.choice(values) for name, values in pools.items() if draw.random() < 0.6}


def test_200_random_addresses_open_something_and_say_what_they_could_not():
    draw, presets = Random(11), preset_index()
    for _ in range(200):
        query = fuzzed(draw)
        link, notices = read_link(query, presets, sets.preset)
        traces = sets.preset(link.preset).traces
        assert link.left != link.right
        assert {link.left, link.right} <= set(traces)
        assert 0 <= link.start.step < max(len(traces[link.left].steps), len(traces[link.right].steps))
        assert link.start.sub in SUBSTEPS
        for notice in notices:
            assert not re.search("[\x00-\x1f\u202a-\u202e]", notice)
            assert len(notice) < 300


def test_hostile_addresses_open_the_page():
    draw = Random(5)
    for _ in range(6):
        page = open_app(**fuzzed(draw))
        assert len(player(page)["panes"]) == 2
        for message in warnings(page):
            assert "\u202e" not in message
            assert "\n" not in message


def test_an_address_is_read_once():
    page = open_app(preset="copy-rich", step="77777")
    assert "the last one is" in warnings(page)[0]
    page.selectbox(key="set").set_value("figure2").run()
    assert not warnings(page)  # it has been said
    page.query_params["preset"] = "copy-rich"
    page.run()
    assert player(page)["group"] == "figure2"


# --- opening


def test_uploaded_traces_are_compared():
    page = open_app()
    upload(page, file_of("greedy"), file_of("ems-sd"), file_of("packed-input"))
    assert not warnings(page)
    assert page.selectbox(key="set").value == "opened"
    assert methods(page) == ["packed-input", "ems-sd"]
    assert player(page)["link"] is None
    assert all(pane["speed"] for pane in player(page)["panes"])
    assert "greedy.json, ems-sd.json, packed-input.json" in player(page)["note"]
    page.selectbox(key="set").set_value("figure2").run()
    assert methods(page) == ["packed-input", "ems-sd"]
    assert player(page)["group"] == "figure2"


def test_one_trace_alone_is_one_pane_and_says_what_is_missing():
    page = open_app()
    upload(page, file_of("ems-sd"))
    assert methods(page) == ["ems-sd"]
    assert player(page)["panes"][0]["speed"] == []
    assert "Open the greedy trace of the same prompts, too" in player(page)["note"]
    assert len([each for each in page.selectbox if each.key == "pane_right"]) == 0
    page.selectbox(key="set").set_value("copy-rich").run()
    assert len(methods(page)) == 2


def test_a_damaged_file_is_one_sentence_beside_the_good_ones():
    page = open_app()
    bad = json.loads(file_of("vanilla")[1])
    bad["steps"][1]["rows"][0]["next_slot"] = "many"
    upload(page, file_of("ems-sd"), ("bad\u202e.json", json.dumps(bad).encode(), "application/json"))
    (message,) = warnings(page)
    assert message.startswith("bad⟨202E⟩.json was left out: ")
    assert "next_slot" in message
    assert methods(page) == ["ems-sd"]


def test_when_no_file_is_good_the_player_stays():
    page = open_app()
    upload(page, ("a.json", b"{}", "application/json"), ("b.json", b"\xff", "application/json"))
    assert [message[:20] for message in warnings(page)] == ["a.json was left out:", "b.json was left out:"]
    assert player(page)["group"] == "figure2"


def test_the_command_lines_files_are_opened_first(monkeypatch, tmp_path):
    names = [str(library.FOLDER / "figure2" / f"{name}.json") for name in ("greedy", "vanilla")]
    monkeypatch.setenv(library.VIEW_VARIABLE, os.pathsep.join([*names, str(tmp_path / "gone.json")]))
    page = open_app(preset="copy-rich")
    assert page.selectbox(key="set").value == "opened"
    assert methods(page) == ["greedy", "vanilla"] or methods(page) == ["vanilla", "greedy"]
    assert warnings(page) == ["gone.json was left out: it cannot be read (No such file or directory)."]
    again = open_app()
    assert again.selectbox(key="set").value == "opened"


def test_viewed_files_may_be_larger_than_uploads(monkeypatch):
    monkeypatch.setattr(library, "MAX_FILE_BYTES", 10)
    path = library.FOLDER / "figure2" / "ems-sd.json"
    shown, problems = viewed_set([path])
    assert (shown.methods, problems) == (("ems-sd",), [])


def test_hostile_texts_in_a_trace_stay_text():
    page = open_app()
    trace = json.loads(file_of("ems-sd")[1])
    trace["tokens"] = dict.fromkeys(trace["tokens"], HOSTILE)
    for row in trace["rows"]:
        row["prompt_text"] = HOSTILE * 3
    trace["model"]["name"] = HOSTILE
    upload(page, (f"{HOSTILE.strip()}.json", json.dumps(trace).encode(), "application/json"))
    shown = texts(page)
    assert "<script>alert" not in shown
    assert "\u202e" not in shown + json.dumps(player(page), ensure_ascii=False)


def test_a_run_too_large_for_the_player_is_summed_up(monkeypatch):
    monkeypatch.setattr(sets, "too_large", lambda trace: "Summary view: more than 500 steps.")
    page = open_app()
    assert not page.get("bidi_component")
    assert [each.value for each in page.info] == ["Summary view: more than 500 steps."]
    shown = texts(page)
    assert "Work" in shown
    assert shown.count('data-testid="texts"') == 3
    assert len(page.get("download_button")) == 8  # no stand-alone page


# --- saving and states


def test_everything_can_be_saved_under_a_telling_name():
    page = open_app()
    names = {each.proto.id.split("save_")[-1]: each for each in page.get("download_button")}
    assert len(names) == 9
    for ending in (
        *(f"figure2-{name}.json" for name in ("greedy", "vanilla", "packed-input", "ragged-cache", "ems-sd")),
        *("figure2-timeline.json", "figure2-rows.csv", "figure2-steps.csv", "figure2-vanilla-vs-ems-sd.html"),
    ):
        assert any(ending in name for name in names), ending


def test_a_saved_trace_opens_again():
    trace = load_preset("figure2").traces["vanilla"]
    again, problems = opened_set([("x.json", trace.to_json().encode())])
    assert not problems
    assert again.traces["vanilla"] == trace
    assert GenerationTrace.from_json(again.traces["vanilla"].to_json()) == trace


def clear_caches() -> None:
    for cached in (sets.presets, sets.preset, sets._preset_data):
        cached.clear()


@pytest.fixture
def other_folder(monkeypatch, tmp_path):
    clear_caches()
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    yield tmp_path
    clear_caches()


def test_without_examples_the_page_says_what_to_do(other_folder):
    page = open_app()
    assert "The list of recorded examples" in warnings(page)[0]
    assert "open a trace, or run your own prompts" in page.info[0].value
    upload(page, ("x.json", (ROOT / "assets/traces/figure2/ems-sd.json").read_bytes(), "application/json"))
    assert methods(page) == ["ems-sd"]
    with pytest.raises(TraceError, match="cannot be read"):
        preset_index()


def test_a_damaged_example_is_one_sentence(other_folder):
    entry = {"name": "figure2", "title": "T", "note": "N", "methods": ["ems-sd"], "titles": ["a"], "where": ""}
    (other_folder / "index.json").write_text(json.dumps({"presets": [entry]}))
    (other_folder / "figure2").mkdir()
    (other_folder / "figure2" / "ems-sd.json").write_text("{}")
    page = open_app()
    assert "schema" in warnings(page)[0]
    assert not page.get("bidi_component")


def test_the_first_pair_is_vanilla_and_ems_sd_where_they_are():
    assert default_pair(("greedy", "vanilla", "packed-input", "ems-sd")) == ("vanilla", "ems-sd")
    assert default_pair(("greedy", "vanilla")) == ("greedy", "vanilla")
    assert default_pair(("greedy", "ragged-cache")) == ("greedy", "ragged-cache")
    assert default_pair(("ems-sd",)) == ("ems-sd", "ems-sd")
