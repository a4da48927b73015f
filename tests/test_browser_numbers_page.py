"""The page Numbers in a browser: sliders that redraw alone, its address, its drawer, its files."""

from __future__ import annotations

import json
import re

from tests.browser import READY, expect, in_browser, run_count, visiting, wait_for_layout, wait_until

pytestmark = in_browser

PLOTS = ".stPlotlyChart .js-plotly-plot .main-svg"
LINE = ".stPlotlyChart .scatterlayer path.js-line"
FORMATS = """() => [...document.querySelectorAll(".js-plotly-plot")].map(
  (plot) => plot._context.toImageButtonOptions.format)"""
ADDRESS = "name => new URL(location).searchParams.get(name)"


def wait_for_charts(page):
    page.wait_for_function(
        "count => document.querySelectorAll('.stPlotlyChart .js-plotly-plot').length >= count", arg=4
    )
    page.locator(PLOTS).first.wait_for()
    wait_for_layout(page)


def slider(page, name):
    return page.get_by_role("slider", name=re.compile(f"^{name}"))


def answers(page):
    return page.get_by_test_id("answers")


def wait_for_address(page, name, value):
    page.wait_for_function(f"([name, value]) => ({ADDRESS})(name) === value", arg=[name, value])


def test_sliders_redraw_alone_and_the_address_follows(browser, server):
    with visiting(browser, server, "Numbers") as page:
        wait_for_charts(page)
        answers(page).get_by_text("From batch 12 on.").wait_for()
        runs = run_count(page)
        plot = page.locator(".stPlotlyChart").first
        before = page.locator(LINE).first.get_attribute("d")
        slider(page, "Draft length").press("ArrowRight")
        page.get_by_text("Draft length 8").wait_for()
        wait_for_address(page, "length", "8")
        page.wait_for_function(
            f"before => document.querySelector({LINE!r}).getAttribute('d') !== before",
            arg=before,
        )
        page.get_by_role("radio", name="Varlen").click()
        answers(page).get_by_text("vanilla no longer falls below greedy").wait_for()
        wait_for_address(page, "kernel", "varlen")
        assert run_count(page) == runs, "a control ran the whole page"
        page.go_back()
        answers(page).get_by_text("From batch").wait_for()
        wait_for_address(page, "kernel", None)
        page.get_by_text("Draft length 8").wait_for()
        page.get_by_role("radio", name="SVG").click()
        page.get_by_role("radio", name="SVG", checked=True).wait_for()
        page.wait_for_function(f"() => ({FORMATS})().every((format) => format === 'svg')")
        wait_for_layout(page)
        plot.hover()
        with page.expect_download() as picture:
            plot.locator('[data-title^="Download"]').click()
        assert picture.value.suggested_filename == "numbers-speed-up.svg"
        with page.expect_download() as table:
            page.get_by_role("button", name="CSV").click()
        assert table.value.path().read_text().startswith("quantity,method,batch")
        page.get_by_role("button", name="See it as cells").click()
        page.locator(READY).wait_for()
        page.get_by_text("Simulated, not decoded").first.wait_for()


def test_on_a_narrow_window_the_controls_are_a_drawer(browser, server):
    with visiting(browser, server, "Numbers", viewport={"width": 1024, "height": 900}, color_scheme="dark") as page:
        wait_for_charts(page)
        controls = page.locator(".st-key-numbers_controls")
        expect(controls).to_be_hidden()
        page.locator(".st-key-numbers_open label").click()
        controls.wait_for()
        slider(page, "Draft found").wait_for()
        wait_for_layout(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 1024
        wait_until(lambda: page.get_by_role("img").count() >= 4)


CONFIG = {
    **{"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "sliding_window": 4096},
}


def test_an_own_config_opens_in_a_popover_and_its_link_restores_it(browser, server):
    with visiting(browser, server, "Numbers") as page:
        wait_for_charts(page)
        page.locator(".st-key-numbers_model").get_by_role("combobox").click()
        page.get_by_role("option", name="Own config…").click()
        pasted = page.locator(".st-key-numbers_own_model_text textarea")
        pasted.fill('{"hidden_size": 0}')
        page.get_by_role("button", name="Use this model").click()
        page.get_by_text("hidden_size must be a whole number from 1").wait_for()
        assert pasted.input_value() == '{"hidden_size": 0}', "a refusal lost what was entered"
        pasted.fill(json.dumps(CONFIG))
        page.get_by_role("button", name="Use this model").click()
        page.get_by_text("mistral with prompt lookup on NVIDIA A100 80 GB (SXM)").wait_for()
        pasted.wait_for(state="hidden")
        page.get_by_text("window 4,096 in 32 layers").wait_for()
        plot = page.locator(".stPlotlyChart").first
        plot.get_by_text("mistral on NVIDIA A100 80 GB (SXM)").wait_for()
        plot.hover()
        with page.expect_download() as picture:
            plot.locator('[data-title^="Download"]').click()
        assert picture.value.suggested_filename == "numbers-speed-up-mistral-on-NVIDIA-A100-80-GB-SXM.png"
        page.wait_for_function(f"({ADDRESS})('model')?.startsWith('own~')")
        page.get_by_role("link", name="Compare").click()
        page.wait_for_url("**/compare*")
        page.get_by_text("mistral with prompt lookup on NVIDIA A100 80 GB (SXM)").wait_for(state="hidden")
        page.go_back()
        page.get_by_text("mistral with prompt lookup on NVIDIA A100 80 GB (SXM)").wait_for()
