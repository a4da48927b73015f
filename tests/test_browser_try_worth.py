"""Lesson 9's experiment in a browser: text, chart and table in sight together, and a key on a slider moves the line."""

from __future__ import annotations

import re

from tests.browser import expect, in_browser, visitor, wait_until

pytestmark = in_browser

OUTSIDE = """() => {
  const all = [...document.querySelectorAll(
    ".st-key-lesson_try, .st-key-try_worth_chart, .js-plotly-plot, .l-numbers, .st-key-lesson_steps")];
  const outside = all.filter((each) => {
    const box = each.getBoundingClientRect();
    return box.top < 40 || box.bottom > innerHeight + 1 || box.right > innerWidth + 1 || !box.width;
  });
  const scrolls = ["[data-testid=stMain]", ".st-key-lesson_side"].map((list) => document.querySelector(list))
    .some((each) => each.scrollHeight > each.clientHeight + 1);
  return all.length === 5 && !outside.length && !scrolls;
}"""
SIZES = ({"width": 1440, "height": 900}, {"width": 1024, "height": 768})


def test_the_prices_move_the_lines_and_all_is_in_sight(browser, server):
    with visitor(browser, server.url) as page:
        page.get_by_role("link", name="Lessons", exact=True).click()
        page.get_by_role("link", name="9. What is it worth?", exact=True).click()
        page.get_by_role("radio", name="Run", exact=True).click()
        readings, names = page.get_by_test_id("readings"), page.locator(".js-plotly-plot .annotation-text")
        page.locator(".js-plotly-plot .annotation-text").last.wait_for(state="attached")
        expect(readings).to_contain_text("never up to 24")
        expect(names).to_have_count(4)
        for size in SIZES:
            page.set_viewport_size(size)
            page.wait_for_function(OUTSIDE)
        page.get_by_role("slider", name="Price of a KV slot").press("End")
        expect(readings).to_contain_text("from batch 5")
        below = "At these prices slower than not speculating: vanilla from batch 5"
        charts = page.locator(".js-plotly-plot")  # two, while one takes the other's place
        wait_until(lambda: below in "".join(charts.all_text_contents()))
        page.get_by_role("button", name=re.compile("Show the (answer|fit)")).click()
        expect(readings).to_contain_text("3.0 %")
        expect(names).to_have_count(4)
