"""Lesson 3's experiment in a browser: the switch, the badge, both texts, and what a query wrongly read."""

from __future__ import annotations

from tests.browser import expect, in_browser, player, state, visitor, wait_for_player, wait_until

pytestmark = in_browser

# [panes] a row's whole text, and what its second fed token reads: [own tokens, rejected drafts, masked slots].
TEXTS = """root => root.player.panes.map((pane) =>
  pane.run.texts[0].map(({ word }) => root.player.data.words[word].trim()).join(" "))"""
LIT = """root => root.player.panes.map((pane) => {
  root.player.hover = { pane: pane.index, kind: "query", row: 0, index: 1 };
  root.player.paintFocus();
  const hows = [...pane.focus.cells.values()];
  return ["visible", "stale", "dead"].map((how) => hows.filter((each) => each === how).length);
})"""


def story(page, pane: str):
    return page.get_by_test_id(pane).locator(".story")


def test_a_bug_is_switched_on_and_found(browser, server):
    with visitor(browser, server.url) as page:
        page.get_by_role("link", name="Lessons", exact=True).click()
        page.get_by_role("link", name="3. Lossless, or not", exact=True).click()
        page.get_by_role("radio", name="Run", exact=True).click()
        expect(page.get_by_role("heading", name="Try it")).to_be_visible()
        wait_for_player(page)
        badge = page.get_by_test_id("equality")
        expect(badge).to_contain_text("identical to greedy")
        page.get_by_text("Stale cells read", exact=True).click()
        expect(badge).to_contain_text("differs from greedy: first at row 0, new token 7")
        expect(page.get_by_test_id("pane-left")).to_have_attribute("aria-label", "With the bug")
        badge.click()
        wait_until(lambda: state(page) == ("3", "commit"))
        texts = player(page).evaluate(TEXTS)
        assert texts[0].startswith("1 2 4 3 0 0 2 2 4 5")
        assert texts[1] == "1 2 4 3 0 0 2 2 4 2 4 1"
        page.get_by_role("button", name="Show the broken rule").click()
        wait_until(lambda: state(page) == ("2", "attend"))
        expect(story(page, "pane-left")).to_contain_text("reads 9 cells: its 7 own tokens and 2 rejected drafts")
        expect(story(page, "pane-right")).to_contain_text("reads its 7 own tokens")
        # slots 0 to 6 .. 0 to 9 in step 1; in step 2 from slot 10 on with the bug, from slot 8 on without
        for side, slots in (("left", 34 + 50), ("right", 34 + 42)):
            number = page.get_by_test_id(f"pane-{side}").locator('[data-number="kv-slots"]')
            expect(number.locator("b")).to_have_text(str(2 * slots))
            expect(number.locator(".c-sum")).to_have_text(f"= {slots} × 2 launches")
        assert player(page).evaluate(LIT) == [[7, 2, 3], [7, 0, 3]]
        page.get_by_text("Bonus missing", exact=True).click()
        expect(badge).to_contain_text("identical to greedy")
        expect(page.get_by_text("it took 4 steps instead of 3")).to_be_visible()
