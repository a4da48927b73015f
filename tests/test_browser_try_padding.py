"""Lesson 5's experiment in a browser: a slider's ends can be drawn apart; the player keeps its place."""

from __future__ import annotations

from emssd.ui.try_padding import DEFAULT
from tests.browser import expect, focus, in_browser, player, press, state, wait_for_player, wait_until
from tests.test_browser_lessons import in_sight, learning

pytestmark = in_browser
THUMB = """input => {
  const box = input.closest("[style*=translate]").getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
}"""
LAST = "root => root.player.panes.map((pane) => pane.counters.holes.at(-1))"


def test_the_sliders_change_what_the_player_shows(browser, server):
    with learning(browser, server, 5, viewport={"width": 1024, "height": 768}) as page:
        page.get_by_role("radio", name="Run", exact=True).click()
        reading, card = page.get_by_test_id("reading"), page.locator(".st-key-lesson_try")
        expect(reading).to_contain_text("3 in row 1")
        wait_for_player(page)
        focus(page)
        press(page, "ArrowRight", "ArrowRight", "Shift+ArrowRight")
        place = state(page)
        assert place[0] > "1"
        assert DEFAULT[1][1] == (5, 5)  # both ends in one place: each can be drawn away from the other
        start, end = (
            card.locator(f'input[aria-label^="Row 1, step 2"][aria-label$="{each}"]') for each in ("start", "end")
        )
        for thumb, far in ((start, 200), (end, 40)):
            x, y = thumb.evaluate(THUMB)
            page.mouse.move(x, y)
            page.mouse.down()
            page.mouse.move(x - far, y, steps=4)
            page.mouse.up()
        wait_until(lambda: start.evaluate("input => input.value") == "0")
        wait_until(lambda: end.evaluate("input => input.value") in ("2", "3"))
        expect(reading).to_contain_text("5 are holes")
        wait_until(lambda: player(page).evaluate(LAST) == [5])
        assert state(page) == place
        card.get_by_text("EMS-SD beside it").click()
        wait_until(lambda: player(page).evaluate(LAST) == [5, 0])
        assert state(page) == place
        wait_until(lambda: in_sight(page))
        card.get_by_role("button", name="Reset").click()
        wait_until(lambda: player(page).evaluate(LAST) == [8, 0])
        expect(reading).to_contain_text("8 are holes")
