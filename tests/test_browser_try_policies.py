"""Lesson 4's experiment in a browser: a cut run's cells and words, and a slider that changes both panes."""

from __future__ import annotations

import json

from emssd.lessons.cut_batch import CUT, cut_batch, thrown_away
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
CUT_OFF = """text => JSON.parse(text).map(({ data }) => {
  const pane = { ...data.panes[0], run: decodePane(data.panes[0]) }, { run } = pane;
  return Array.from({ length: run.steps - 1 }, (_, n) => {
    const grid = cellsAt(run, n + 1, "commit"), found = { cells: 0, answers: 0 };
    for (let row = 0; row < run.rows; row++) {
      const entry = run.at(n + 1, row);
      for (let slot = 0; slot < run.slots; slot++)
        found.cells += grid.step[row * run.slots + slot] === n + 1 && isCutOff(pane, grid, row, slot);
      entry.fed.forEach((_, index) => { found.answers += isCutAnswer(pane, entry, index); });
    }
    return [found.cells, found.answers];
  });
})"""
STEPS = "root => root.player.panes.map((pane) => pane.steps.length - 1)"


def samples() -> list[dict]:
    found = []
    for guessed in (((4, 0), (0, 5)), ((5, 1), (2, 3))):
        trace = cut_batch(guessed, (CUT,))[CUT]
        data = player_data([Pane(trace, CUT)], ["row 0", "row 1"])
        found.append({"data": data, "lost": thrown_away(trace), "cells": all_cells(trace, data)})
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
        expect(tip).to_contain_text("confirmed, but cut to what the slowest row gained")
        press(page, "Shift+ArrowRight")
        hover(page, 0, cell(0, 7))
        expect(tip).to_contain_text("Cut off")
        hover(page, 0, cell(0, 10))
        expect(tip).to_contain_text("Rejected")
        expect(page.locator(".legend")).to_contain_text("cut off: confirmed, thrown away")
        hover(page, 1, cell(0, 7))
        expect(tip).to_contain_text("Accepted")
        card.locator('input[aria-label^="Row 1, steps 1"]').focus()
        press(page, *["ArrowRight"] * 4)
        wait_until(lambda: player(page).evaluate(STEPS) == [3, 3])
        expect(reading).to_contain_text("3 steps, 26 rows fed, 3 confirmed tokens thrown away")
        assert state(page) == ("1", "commit")
    page = browser.new_page()
    page.add_script_tag(content="\n".join(read_asset(name) for name in PURE))
    drawn = samples()
    found = page.evaluate(COMPARE, json.dumps(drawn))
    cut_off = page.evaluate(CUT_OFF, json.dumps(drawn))
    page.close()
    assert [[answers for _, answers in steps] for steps in cut_off] == [sample["lost"] for sample in drawn]
    assert [cells for cells, _ in cut_off[0]] == [3, 1, 0, 1, 0, 0]  # the target's own token has no cell yet
    assert found["wrong"] == []
    assert found["compared"] > 1000
