"""Lesson 10's experiment: a run's numbers under both definitions, and the screen with recorded and own runs."""

from __future__ import annotations

import json
import re
import shlex
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from emssd.arguments import build_parser
from emssd.lessons.batches import random_batch, recorded
from emssd.lessons.catalog import FOLDER as TEXTS
from emssd.lessons.catalog import solution_file
from emssd.lessons.check_10 import all_cases, true_waste
from emssd.lessons.run_metrics import measure, quotient
from emssd.ui import player_data, try_metrics
from emssd.ui.library import FOLDER
from emssd.ui.try_metrics import folded, lines_of
from tests.app_pages import EXPLORE, LESSONS, go, methods, open_app, player, texts, warnings

RUN, METHOD, OWN, FILES = (f"try_metrics_{name}" for name in ("run", "method", "own", "files"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EMSSD_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def solution():
    spec = spec_from_file_location("lesson_10_solution_here", solution_file(10))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_numbers_are_those_that_the_exercise_asks_for(solution):
    """Recorded, invented, truncated and unfinished runs: the card says what the learner's functions should find."""
    cut = unfinished = 0
    for case in all_cases():
        found, raw = measure(case.trace), case.raw
        assert quotient(found.share(own=False)) == solution.acceptance_rate(raw)
        assert quotient(found.gain(own=True)) == solution.mean_emitted(raw)
        waste = {"pad_rows": found.pads, "finished_rows": found.finished, "dead_slots": found.holes + found.prompt_pads}
        assert waste == solution.waste(raw) == true_waste(case.trace)
        assert found.equal_rows == len(case.trace.rows)
        assert found.emitted == found.accepted + found.whole
        assert found.whole + found.cut == found.row_steps
        assert (found.unfinished == 0) == case.trace.finished
        cut, unfinished = cut + (found.cut > 0), unfinished + (found.unfinished > 0)
    assert cut > 3
    assert unfinished > 3


def test_the_definition_moves_two_numbers_and_only_one_of_them_keeps_its_name():
    found = measure(recorded("early-finisher", "vanilla"))
    counted, without = lines_of(found, own=True), lines_of(found, own=False)
    assert [(line.value, line.other) for line in counted[:3]] == [
        ("3.84", "2.84 without it"),
        ("92.7 %", "68.5 % without it"),
        ("11.79", ""),
    ]
    assert [(line.value, line.other) for line in without[:2]] == [
        ("2.84", "3.84 with it"),
        ("68.5 %", "92.7 % with it"),
    ]
    assert [line.name for line in (counted[0], without[1])] == ["Mean acceptance length", "Acceptance rate"]
    assert counted[0].how == "emitted / live row-steps, 165 / 43"
    assert without[1].how == "accepted / drafted, 122 / 178"
    assert counted[2:] == without[2:]
    assert lines_of(measure(recorded("all-accepted", "ems-sd")), own=True)[1].value == "125.0 %"


def test_nothing_is_divided_by_nothing():
    greedy = lines_of(measure(recorded("no-copy", "greedy")), own=True)
    assert (greedy[0].value, greedy[1].value, greedy[1].how) == ("1.00", "–", "nothing was drafted")
    assert greedy[1].name == "No rate: nothing was drafted"
    trace = recorded("figure2", "vanilla")
    data = trace.to_dict()
    data["steps"] = data["steps"][:1]
    for row, step in zip(data["rows"], data["steps"][0]["rows"], strict=True):
        row.update(output_token_ids=step["emitted_token_ids"], output_text=None, finish_reason=None)
    started = lines_of(measure(type(trace).from_json(json.dumps(data))), own=False)
    assert [line.value for line in started[:3]] == ["–", "–", "–"]


def test_a_step_that_ends_inside_the_drafts_is_explained():
    found = next(
        measure(trace)
        for seed in range(50)
        for trace in random_batch(seed, methods=("ems-sd",)).values()
        if measure(trace).cut
    )
    *_, output, last = lines_of(found, own=True)
    assert output.right
    assert last.right
    assert last.value == f"{found.row_steps - found.cut} of {found.row_steps}"
    assert last.how.startswith(f"in {found.cut} an end of sequence inside the drafts")
    assert quotient(found.gain(True)) - quotient(found.gain(False)) < 1


def test_a_run_that_contradicts_itself_fails_the_identity():
    trace = type(recorded("figure2", "vanilla")).from_json(FOLDER / "figure2" / "vanilla.json")
    trace.rows[1].output_token_ids.append(5)
    assert measure(trace).equal_rows == 1
    (line,) = [line for line in lines_of(measure(trace), own=True) if line.name == "Emitted = output"]
    assert line.right is False


# ---- the screen


def card(page) -> dict[str, str]:
    body = next(each.proto.body for each in page.get("html") if 'data-testid="metrics"' in each.proto.body)
    found = re.findall(
        r"<dt>(.*?)(?:<small>.*?</small>)?</dt><dd>(?:<i.*?</i>)?(.*?)(?:<small>.*?</small>)?</dd>", body
    )
    return dict(found)


def run_screen():
    page = open_app(LESSONS, lesson="10", section="run")
    assert not warnings(page)
    return page


def back(page):
    """To another page and back to this screen."""
    go(page, EXPLORE)
    page.query_params.update(lesson="10", section="run")
    return go(page, LESSONS)


def upload(page, *files) -> None:
    page.file_uploader(key=FILES).set_value(list(files)).run()
    assert not page.exception


def file_of(method: str, preset: str = "slow-row", name: str = "") -> tuple[str, bytes, str]:
    return (name or f"{method}.json", (FOLDER / preset / f"{method}.json").read_bytes(), "application/json")


def test_the_card_and_the_player_show_the_same_run():
    page = run_screen()
    assert methods(page) == ["vanilla"]
    assert card(page)["Mean acceptance length"] == "3.84"
    data = player(page)
    (pane,) = data["panes"]
    assert data["start"]["step"] == 14
    assert pane["agree"]
    counters = pane["counters"]
    assert card(page)["Rows wasted"] == f"{counters['rowsPad'][-1] + counters['rowsFinished'][-1]:g}" == "183"
    page.toggle(key=OWN).set_value(False).run()
    assert card(page)["Acceptance rate"] == "68.5 %"
    page.selectbox(key=RUN).set_value("all-accepted")
    page.selectbox(key=METHOD).set_value("ems-sd").run()
    assert card(page)["Acceptance rate"] == "100.0 %"
    assert methods(page) == ["ems-sd"]
    assert player(page)["group"] == "all-accepted" != data["group"]
    assert player(page)["lesson"]["key"] == data["lesson"]["key"] == "10/run/1"
    back(page)
    assert card(page)["Acceptance rate"] == "100.0 %"


def test_an_own_run_is_measured_and_stays():
    page = run_screen()
    upload(page, file_of("ems-sd"), file_of("greedy"))
    assert page.selectbox(key=RUN).value == "mine"
    found = measure(recorded("slow-row", "ems-sd"))
    page.selectbox(key=METHOD).set_value("ems-sd").run()
    assert card(page)["Mean acceptance length"] == f"{found.emitted / found.row_steps:.2f}"
    assert player(page)["panes"][0]["agree"]
    back(page)
    assert page.selectbox(key=RUN).value == "mine"
    page.selectbox(key=RUN).set_value("no-copy").run()
    assert card(page)["Mean acceptance length"] == "1.01"
    page.selectbox(key=RUN).set_value("mine").run()
    assert methods(page) == ["ems-sd"]
    assert not warnings(page)


def test_a_bad_file_is_refused_as_on_explore_and_loses_nothing():
    page = run_screen()
    upload(page, file_of("ems-sd", name="mine.json"))
    upload(page, ("broken\u202e.json", b"[]", "application/json"))
    (problem,) = warnings(page)
    assert problem.endswith("was left out: it is not a JSON object.")
    assert "\u202e" not in problem
    assert page.selectbox(key=RUN).value == "mine"
    assert methods(page) == ["ems-sd"]
    page.selectbox(key=RUN).set_value("figure2").run()
    assert not warnings(page)


def test_files_that_are_left_out_share_one_notice():
    page = run_screen()
    bad = [(f"bad{number}.json", b"[]", "application/json") for number in range(4)]
    upload(page, ("none.json", b"", "application/json"), *bad, file_of("ems-sd"))
    (problem,) = warnings(page)
    assert "none.json was left out: it is empty." in problem.replace("\\", "")
    assert problem.count("was left out") == 2
    assert problem.replace("\\", "").endswith("And 3 more files.")
    assert page.selectbox(key=RUN).value == "mine"
    assert not folded([])


def test_a_run_that_is_too_large_for_the_player_gets_its_sentence_and_its_numbers(monkeypatch):
    monkeypatch.setattr(player_data, "MAX_STEPS", 10)
    page = run_screen()
    upload(page, file_of("ems-sd"))
    assert [each.value for each in page.info] == [
        "Summary view: more than 10 steps. Totals and texts of all 26 are shown."
    ]
    assert "Mean acceptance length" in card(page)
    assert not [each for each in page.get("bidi_component") if "panes" in each.proto.json]
    assert 'class="texts' in texts(page)


def test_the_command_that_makes_a_file_is_one():
    python, minus_m, package, *words = shlex.split(try_metrics.RECORD.replace("\\\n", " "))
    assert (python, minus_m, package) == ("python", "-m", "emssd")
    asked = build_parser(lambda name: lambda arguments: 0).parse_args(words)
    assert (words[0], asked.out, asked.method, asked.chat) == ("record", "run.json", "vanilla", True)
    (prompt,) = asked.prompt
    assert shlex.quote(prompt).strip("'") in (TEXTS / "10_measuring_honestly.md").read_text(encoding="utf-8")
