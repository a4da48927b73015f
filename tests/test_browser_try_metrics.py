"""Lesson 10's experiment in a browser: an own file is opened, measured, played, and still there after another page."""

from __future__ import annotations

from emssd.ui.library import FOLDER
from tests.browser import expect, in_browser, state, visitor, wait_for_player, wait_until

pytestmark = in_browser


def test_an_own_run_is_measured_and_stays(browser, server):
    with visitor(browser, server.url, viewport={"width": 1024, "height": 768}) as page:
        page.get_by_role("link", name="Lessons", exact=True).click()
        page.get_by_role("link", name="10. In production, and measuring honestly", exact=True).click()
        page.get_by_role("radio", name="Run", exact=True).click()
        metrics = page.get_by_test_id("metrics")
        expect(metrics).to_contain_text("3.84")
        wait_for_player(page)
        wait_until(lambda: state(page) == ("14", "commit"))
        page.locator(".st-key-try_metrics_open button").click()
        page.locator('input[type="file"]').set_input_files(FOLDER / "all-accepted" / "ems-sd.json")
        expect(metrics).to_contain_text("125.0 %")
        page.keyboard.press("Escape")
        wait_until(lambda: state(page) == ("8", "commit"))
        page.locator(".st-key-try_metrics_own label").click()
        expect(metrics).to_contain_text("100.0 %")
        page.get_by_role("link", name="Numbers", exact=True).click()
        page.wait_for_url("**/numbers*")
        expect(metrics).to_have_count(0)
        page.go_back()
        expect(metrics).to_contain_text("100.0 %")
        expect(page.get_by_role("combobox").first).to_have_value("Opened: ems-sd.json")
