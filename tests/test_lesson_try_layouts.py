"""Lesson 8's experiment: a recorded batch under all four layouts, and the events at which play stops."""

from __future__ import annotations

import pytest

from emssd.lessons.batches import recorded
from emssd.ui.player_assets import read_asset
from emssd.ui.try_layouts import LAYOUTS, SETS, STOPS, events
from tests.app_pages import LESSONS, methods, open_app, player, warnings


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test sees or changes what somebody has done on this computer."""
    monkeypatch.setenv("EMSSD_CACHE", str(tmp_path / "cache"))


def open_it():
    return open_app(LESSONS, lesson="8", section="run")


def test_all_four_layouts_of_every_batch_are_shown():
    page = open_it()
    groups = set()
    for name in SETS:
        page.segmented_control(key="try_layouts_set").set_value(name).run()
        assert not page.exception
        assert not warnings(page)
        assert methods(page) == list(LAYOUTS)
        data = player(page)
        groups.add(data["group"])
        for pane in data["panes"]:
            trace = recorded(name, pane["method"])
            assert pane["counters"]["holes"][-1] == trace.summary()["holes"]
            assert len(pane["steps"]) == len(trace.steps)
            assert pane["differs"] is None
            assert pane["agree"][-1] == trace.summary()["tokens"]
    assert len(groups) == len(SETS)


def test_the_worked_example_s_rows_and_holes():
    counters = {pane["method"]: pane["counters"] for pane in player(open_it())["panes"]}
    fed = {name: each["rowsUseful"][-1] + each["rowsPad"][-1] for name, each in counters.items()}
    assert fed == {"vanilla": 24, "packed-input": 18, "ragged-cache": 24, "ems-sd": 18}
    assert [counters[name]["holes"][-1] for name in LAYOUTS] == [7, 7, 0, 0]


def test_the_kinds_of_events_of_a_batch():
    assert {name: events(recorded(name, "vanilla")) for name in SETS} == {
        "figure2": {"rejection", "hole", "kept"},
        "all-accepted": {"kept", "finished"},
        "early-finisher": set(STOPS),
    }


def test_stops_are_those_of_the_player_s_menu_and_stay_with_another_batch():
    clock = read_asset("player_clock.js")
    assert all(f'{{ key: "{name}", word:' in clock for name in STOPS)
    page = open_it()
    assert player(page)["lesson"]["stops"] == []
    page.pills(key="try_layouts_stops").set_value(["kept", "finished"]).run()
    assert player(page)["lesson"]["stops"] == ["kept", "finished"]
    assert [each.value for each in page.caption] == ["Worked example has none of these: a row finished."]
    page.segmented_control(key="try_layouts_set").set_value("early-finisher").run()
    assert not page.caption
    assert player(page)["lesson"]["stops"] == ["kept", "finished"]
    assert player(page)["lesson"]["key"].startswith("8/run")
