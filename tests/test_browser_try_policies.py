"""Lesson 4's experiment in a browser: a cut run's cells and words, and a slider that changes both panes."""

from __future__ import annotations

import json

from emssd.lessons.cut_batch import CUT, cut_batch
from emssd.ui.player_assets import read_asset
from emssd.ui.player_data import Pane, player_data
from tests.browser import (
    cell,
    expect,
    focus,
    hover,
    in_browser,
    player,
    press,
    query,
    state,
    wait_for_player,
    wait_until,
)
from tests.player_samples import all_cells
from tests.test_browser_lessons import in_sight, learning
from tests.test_player_script import COMPARE, PURE

pytestmark = in_browser
STEPS = "root => root.player.panes.map((pane) => pane.steps.length - 1)"


def samples() -> list[dict]:
    found = []
    for guessed in (((4, 0), (0, 5)), ((5, 1), (2, 3))):
        trace = cut_batch(guessed, (CUT,))[CUT]
        data = player_data([Pane(trace, CUT)], ["row 0", "row 1"])
        found.append({"data": data, "cells": all_cells(trace, data)})
    return found


def test_a_cut_run_is_shown_and_changed(browser, server):
    with learning(browser, server, 4, viewport={"width": 1024, "height": 768}) as page:
        page.get_by_role("radio", name="Run", exact=True).click()
        reading, card, tip = (
            page.get_by_test_id("reading"),
            page.locator(".st-key-lesson_try"),
            page.get_by_role("tooltip"),
        )
        expect(reading).to_contain_text("10 confirmed tokens thrown away")
        wait_for_player(page)
        assert player(page).evaluate(STEPS) == [6, 4]
        wait_until(lambda: in_sight(page))
        focus(page)
        press(page, *["Shift+ArrowRight"] * 4)
        assert state(page) == ("1", "verify")
        hover(page, 0, query(0, 2))
        expect(tip).to_contain_text("unused: cut to what the slowest row gained")
        press(page, "Shift+ArrowRight")
        hover(page, 0, cell(0, 7))
        expect(tip).to_contain_text("Cut off")
        hover(page, 1, cell(0, 7))
        expect(tip).to_contain_text("Accepted")
        card.locator('input[aria-label^="Row 1, steps 1"]').focus()
        press(page, *["ArrowRight"] * 4)
        wait_until(lambda: player(page).evaluate(STEPS) == [3, 3])
        expect(reading).to_contain_text("3 steps, 3 confirmed tokens thrown away")
        assert state(page) == ("1", "commit")
    page = browser.new_page()
    page.add_script_tag(content="\n".join(read_asset(name) for name in PURE))
    found = page.evaluate(COMPARE, json.dumps(samples()))
    page.close()
    assert found["wrong"] == []
    assert found["compared"] > 1000
