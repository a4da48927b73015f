"""Lesson 8's experiment in a browser: four panes in sight, linked, and play from one kind of event to the next."""

from __future__ import annotations

from tests.browser import (
    expect,
    focus,
    in_browser,
    panes_at,
    player,
    press,
    set_up_window,
    state,
    visitor,
    wait_for_player,
    wait_until,
)

pytestmark = in_browser
PANES = ("pane-left", "pane-right", "pane-third", "pane-fourth")
BOXES = "root => [...root.querySelectorAll('.pane')].map((pane) => pane.getBoundingClientRect().toJSON())"
# The timeline as it is drawn, and as it could be once the name of the menu beside it is shorter.
WIDTHS = """root => [root.querySelector(".track canvas").getBoundingClientRect().width,
  root.querySelector(".track").clientWidth]"""
# How many cells each pane lights up for a fed token that the pointer is on in the first pane.
LIT = """root => {
  root.player.hover = { pane: 0, kind: "query", row: 1, index: 2 };
  root.player.paintFocus();
  return root.player.panes.map((pane) => [...pane.focus.cells.values()].filter((how) => how === "visible").length);
}"""


def in_a_grid(page) -> bool:
    """Whether all four panes are seen as two lines of two."""
    boxes, size = player(page).evaluate(BOXES), page.viewport_size
    inside = all(box["bottom"] <= size["height"] and box["right"] <= size["width"] for box in boxes)
    lines = len({round(box["top"]) for box in boxes}) == len({round(box["left"]) for box in boxes}) == 2
    return inside and lines and len(boxes) == 4


def test_four_layouts_are_seen_at_once_and_play_stops_at_events(browser, server):
    with visitor(browser, server.url) as page:
        page.get_by_role("link", name="Lessons", exact=True).click()
        page.get_by_role("link", name="8. EMS-SD, whole", exact=True).click()
        page.get_by_role("radio", name="Run", exact=True).click()
        expect(page.get_by_role("heading", name="Try it")).to_be_visible()
        wait_for_player(page)
        wait_until(lambda: in_a_grid(page))
        set_up_window(page, {"width": 1024, "height": 768})
        wait_until(lambda: in_a_grid(page))
        for name in PANES:
            expect(page.get_by_test_id(name)).to_be_visible()
        page.get_by_text("new holes", exact=True).click()
        wait_until(lambda: player(page).evaluate("root => [...root.player.ticked].join()") == "hole")
        focus(page)
        press(page, "b")
        assert (state(page), panes_at(page)) == (("1", "commit"), ["1"] * 4)
        press(page, "b")
        assert state(page) == ("2", "commit")
        expect(page.get_by_text("after step 2, the same for all four")).to_be_visible()
        assert len(set(player(page).evaluate(LIT))) == 1
        page.get_by_text("new holes", exact=True).click()
        wait_until(lambda: player(page).evaluate("root => !root.player.ticked.size"))
        drawn, room = player(page).evaluate(WIDTHS)
        assert drawn == room
        focus(page)
        press(page, "1")
        expect(page.get_by_test_id("pane-right")).to_be_hidden()
        press(page, "2")
        expect(page.get_by_test_id("pane-fourth")).to_be_visible()
        page.get_by_text("Early finisher", exact=True).click()
        wait_until(lambda: player(page).evaluate("root => root.player.isBatch"))
        wait_until(lambda: in_a_grid(page))
