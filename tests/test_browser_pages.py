"""Pages in a browser: opened cold, used by keys, at every width, light and dark, and as text for those who listen."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path

import pytest

from emssd.ui.library import load_preset, preset_index
from emssd.ui.palette import CHROME, PHASES
from tests.browser import (
    Server,
    cell,
    choose,
    expect,
    exploring,
    focus,
    in_browser,
    player,
    press,
    state,
    visiting,
    wait_for_layout,
    wait_for_player,
    wait_until,
)

pytestmark = in_browser
WIDTHS = (1024, 1280, 1440, 1920, 2560)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_first_page_loads_no_torch(browser, tmp_path):
    server = Server(tmp_path / "log.txt")
    try:
        with exploring(browser, server) as page:
            assert state(page) == ("1", "draft")
            press(page, "End")
            page.get_by_role("link", name="Compare").click()
            page.get_by_text("Input rows by kind").wait_for()
            page.get_by_role("link", name="Run live").click()
            page.get_by_role("button", name="Run", exact=True).wait_for()
            page.get_by_role("link", name="Lessons").click()
            page.get_by_role("link", name="6. Give every row its own cursor").click()
            page.get_by_text("Lesson 6 of 10").wait_for()
            wait_for_player(page)
        maps = Path(f"/proc/{server.process.pid}/maps").read_text()
        assert "libpython" in maps or "python" in maps
        assert "libtorch" not in maps
    finally:
        server.stop()
    server.check_log()


def test_every_preset_opens_and_plays(browser, server):
    with exploring(browser, server) as page:
        for info in preset_index():
            choose(page, "Example", f"^{info.title}$")
            page.get_by_test_id("note").get_by_text(info.note).wait_for()
            focus(page)
            press(page, "End")
            steps = max(len(load_preset(info.name).traces[name].steps) for name in ("vanilla", "ems-sd"))
            assert state(page) == (str(steps - 1), "commit")


FOCUS = """() => {
  let at = document.activeElement;
  while (at.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
  const style = getComputedStyle(at), after = getComputedStyle(at, "::after");
  const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
  const ring = outlined || style.boxShadow !== "none" || after.borderTopStyle === "solid";
  const name = at.getAttribute("aria-label") || at.textContent.trim() || at.tagName;
  return { name, inside: !!at.closest(".player"), root: at.matches(".player"), ring };
}"""


def test_every_control_is_reached_by_tab_and_shows_it(browser, server):
    wanted = """root => [...root.querySelectorAll("button, input, summary, [tabindex='0']")]
      .filter((each) => each.tabIndex >= 0 && !each.disabled && each.checkVisibility({ visibilityProperty: true }))
      .map((each) => each.getAttribute("aria-label") || each.textContent.trim() || each.tagName)"""
    with exploring(browser, server) as page:
        names = player(page).evaluate(wanted)
        assert len(names) >= 14
        seen = []
        for _ in range(len(names) + 2):
            page.keyboard.press("Tab")
            at = page.evaluate(FOCUS)
            if not at["inside"] or at["root"]:
                break
            seen.append(at["name"])
            assert at["ring"], f"{at['name']} has the focus and does not show it"
        assert sorted(seen) == sorted(names)
        page.evaluate("document.activeElement.blur()")
        focus(page)
        press(page, "ArrowRight")
        assert page.evaluate(FOCUS)["ring"]


def test_menus_open_and_close_by_keys(browser, server):
    with exploring(browser, server) as page:
        for name in ("Speed", "Breakpoints", "Keyboard help"):
            trigger = page.get_by_role("button", name=name, exact=True)
            trigger.focus()
            press(page, "Enter")
            assert trigger.get_attribute("aria-expanded") == "true"
            press(page, "Tab")
            assert page.evaluate(FOCUS)["ring"]
            press(page, "Escape")
            assert trigger.get_attribute("aria-expanded") == "false"
            assert page.evaluate(FOCUS)["name"] == trigger.evaluate("each => each.getAttribute('aria-label')")


def test_everything_drawn_is_also_text(browser, server):
    with exploring(browser, server) as page:
        assert player(page).get_attribute("role") == "application"
        assert player(page).get_attribute("aria-label")
        tree = player(page).aria_snapshot()
        for words in ('slider "Step"', 'button "Next step"', 'radiogroup "Clock of both panes"', "Row 0 drafts"):
            assert words in tree
        assert page.locator(".player canvas:not([aria-hidden=true])").count() == 0
        live = page.get_by_test_id("live")
        assert live.get_attribute("aria-live") == "polite"
        said = []
        for _ in range(6):
            before = live.text_content()
            press(page, "Shift+ArrowRight")
            wait_until(lambda before=before: live.text_content() != before)
            said.append(live.text_content())
            for side in ("left", "right"):
                story = page.get_by_test_id(f"pane-{side}").locator(".story").inner_text()
                assert story in live.text_content()
        assert len(set(said)) == 6
        assert "Row 0 keeps 3 of 5 drafts; the target says “golden” instead." in said[3]
        assert page.get_by_role("slider", name="Step").get_attribute("aria-valuetext") == "Step 2 of 2, draft"
        summary = page.get_by_text("This step as a table")
        summary.focus()
        press(page, "Enter")
        table = page.get_by_role("table")
        expect(table.get_by_role("row")).to_have_count(1 + 4)
        assert table.get_by_role("columnheader").count() == 11
        focus(page)
        press(page, "Shift+ArrowRight")
        assert "Step 2 of 2, pack" in table.inner_text()


OVERFLOW = """() => {
  const wide = [], main = document.querySelector('[data-testid="stMain"]');
  for (const each of [document.scrollingElement, main]) {
    if (each.scrollWidth > each.clientWidth) wide.push(each.tagName + " " + each.scrollWidth);
  }
  return wide;
}"""


def test_no_page_scrolls_sideways(browser, server):
    with exploring(browser, server) as page:
        first_words = {
            "Compare": "Input rows by kind",
            "Numbers": "Speed-up over greedy by batch size",
            "Run live": "Nothing has been decoded yet.",
            "Lessons": "exercises passed on this computer",
        }
        for place in ("figure2", "copy-rich", *first_words):
            if place == "copy-rich":
                page.goto(f"{server.url}/?preset=copy-rich")
                wait_for_player(page)
            elif place != "figure2":
                page.get_by_role("link", name=place).click()
                page.get_by_text(first_words[place]).first.wait_for()
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                wait_for_layout(page, frames=10)
                wait_until(lambda: page.evaluate(OVERFLOW) == [], what=(place, width))
                if place in ("figure2", "copy-rich"):
                    check_panes(page, width)


def check_panes(page, width: int) -> None:
    """Side by side where there is room, of one width, and nothing in them is too wide."""
    panes = [page.get_by_test_id(f"pane-{side}").bounding_box() for side in ("left", "right")]
    stacked = panes[1]["y"] >= panes[0]["y"] + panes[0]["height"]
    assert stacked == (width == 1024)
    assert panes[0]["width"] == panes[1]["width"]
    assert panes[1]["x"] + panes[1]["width"] - panes[0]["x"] <= 1920
    for pane in page.locator(".pane").all():
        assert pane.evaluate("each => each.scrollWidth - each.clientWidth") <= 0, width


PIXELS = """(root, [item, x, y]) => {
  const section = root.player.panes[0].view.sections.findLast((each) => each.find(item)), box = section.find(item);
  const scale = section.canvas.width / section.canvas.getBoundingClientRect().width;
  const scratch = document.createElement("canvas");
  Object.assign(scratch, { width: section.canvas.width, height: section.canvas.height });
  const ctx = scratch.getContext("2d", { willReadFrequently: true });
  ctx.drawImage(section.canvas, 0, 0);
  const at = [Math.round((box.x + x * box.w) * scale), Math.round((box.y + y * box.h) * scale)];
  return [...ctx.getImageData(...at, 1, 1).data.slice(0, 3)];
}"""


def rgb(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def shows(page, item: dict, colour: list[int]) -> bool:
    return player(page).evaluate(PIXELS, [item, 0.9, 0.15]) == colour


def css_rgb(colour: str) -> str:
    return "rgb({}, {}, {})".format(*rgb(colour))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_schemes_are_painted_in_the_palette(browser, server, scheme):
    other = {"light": "dark", "dark": "light"}
    with exploring(browser, server, "?step=2&sub=commit", color_scheme=scheme) as page:
        for now in (scheme, other[scheme]):  # also when the scheme changes while the page is open
            page.emulate_media(color_scheme=now)
            place = ("light", "dark").index(now)
            for name, item in (("prompt", cell(0, 0)), ("accepted", cell(1, 10))):
                wait_until(partial(shows, page, item, rgb(getattr(PHASES[name], now)[0])))
            panel = page.get_by_test_id("pane-left")
            expect(panel).to_have_css("background-color", css_rgb(CHROME["panel"][place]))
            expect(page.locator(".stApp")).to_have_css("background-color", css_rgb(CHROME["page"][place]))
            inks = [re.escape(css_rgb(CHROME[name][place])) for name in ("ink", "text")]
            expect(panel.locator("h3")).to_have_css("color", re.compile(f"^({'|'.join(inks)})$"))


def test_compare_shows_every_method_with_words_for_each_chart(browser, server):
    with visiting(browser, server, "Compare") as page:
        page.get_by_text("Input rows by kind").wait_for()
        page.locator(".js-plotly-plot").nth(5).wait_for()
        expect(page.get_by_test_id("equality")).to_have_count(4)
        assert all("dentical to greedy" in words for words in page.get_by_test_id("equality").all_inner_texts())
        expect(page.get_by_test_id("stPlotlyChart")).to_have_count(6)
        page.get_by_role("radio", name="Measured").click()
        page.get_by_text("Not comparable with the paper’s GPU numbers.").wait_for()
        wait_for_layout(page)  # the run that goes on takes the file before it away
        with page.expect_download() as download:
            page.get_by_role("button", name="Save as CSV").click()
        lines = Path(download.value.path()).read_text().splitlines()
        assert len(lines) == 6
