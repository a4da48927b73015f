"""Addresses and files in a browser: links that bring back a view, files that are saved and opened, hostile texts."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from emssd.trace import GenerationTrace
from emssd.ui.library import load_preset
from tests.browser import (
    READY,
    cell,
    expect,
    exploring,
    focus,
    hover,
    in_browser,
    open_table,
    picture,
    place_of,
    player,
    press,
    query,
    state,
    upload,
    visitor,
    wait_for_player,
    wait_until,
    watched_page,
)
from tests.recorded import hostile_trace

pytestmark = in_browser


@pytest.mark.parametrize("preset", ["figure2", "slow-row"])
def test_a_copied_link_brings_back_the_view(browser, server, preset):
    address = f"?preset={preset}&left=packed-input&right=ragged-cache&step=2&sub=verify"
    with exploring(browser, server, address) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        slot = player(page).evaluate("root => root.player.panes[0].run.at(2, 1).start")
        page.mouse.click(*place_of(page, 0, **cell(1, slot)))
        page.mouse.move(5, 5)
        focus(page)
        press(page, "Shift+ArrowRight")
        page.get_by_role("button", name="Copy a link to this view").click()
        page.get_by_text("The link to this view is in the clipboard.").wait_for()
        link = page.evaluate("navigator.clipboard.readText()")
        page.context.clear_permissions()
        assert link.startswith(f"{server.url}/?")
        assert sorted(link.split("?")[1].split("&")) == sorted(
            [
                f"preset={preset}",
                "left=packed-input",
                "right=ragged-cache",
                "step=2",
                "sub=commit",
                f"pin=1.{slot}",
                "v=1",
            ]
        )
        card, looks = page.locator(".card:visible").inner_text(), picture(page)
    with visitor(browser, link) as again:
        wait_for_player(again)
        again.mouse.move(5, 5)
        assert state(again) == ("2", "commit")
        assert again.locator(".card:visible").inner_text() == card
        assert picture(again) == looks
        assert again.get_by_test_id("stAlert").count() == 0


@pytest.mark.parametrize(
    ("query_string", "notices", "shown"),
    [
        ("preset=%3Cscript%3Ealert(1)%3C/script%3E", 1, ("1", "draft")),
        ("preset=figure2&step=99&sub=commit", 1, ("2", "commit")),
        ("preset=figure2&step=-1&sub=draft", 1, ("1", "draft")),
        ("preset=figure2&step=2&sub=nothing&pin=7.7&v=x", 3, ("2", "commit")),
        ("left=ems-sd&right=ems-sd&pin=1.99999999999999999999", 2, ("1", "draft")),
        ("left=%00%FF&right=%E2%80%AE&step=%F0%9F%91%A9&sub=&pin=&v=", 6, ("1", "draft")),
        ("v=9&step=1&sub=verify", 1, ("1", "verify")),
    ],
)
def test_a_broken_address_is_said_and_the_page_opens(browser, server, query_string, notices, shown):
    with exploring(browser, server, f"?{query_string}") as page:
        assert state(page) == shown
        expect(page.get_by_test_id("stAlert")).to_have_count(notices)
        for notice in page.get_by_test_id("stAlert").all_inner_texts():
            assert "The address" in notice


def saved(page, label: str) -> tuple[str, bytes]:
    """Name and content of one of the files behind Save."""
    if page.get_by_test_id("stPopoverBody").count() == 0:  # it stays open
        page.get_by_test_id("stPopoverButton").filter(has_text="Save").click()
    with page.expect_download() as download:
        page.get_by_role("button", name=label).click()
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def test_everything_that_is_saved_can_be_used(browser, server, tmp_path):
    traces = load_preset("figure2").traces
    with exploring(browser, server, "?step=2&sub=commit") as page:
        name, content = saved(page, "EMS-SD (JSON)")
        trace = GenerationTrace.from_json(content.decode())
        assert (name, trace.to_json()) == ("figure2-ems-sd.json", traces["ems-sd"].to_json())
        _, content = saved(page, "Timeline for Perfetto (Chrome trace)")
        events = json.loads(content)["traceEvents"]
        assert {"M", "X"} <= {event["ph"] for event in events}
        for label, lines in (("Counts per step and row (CSV)", 2), ("Counts per step (CSV)", 1)):
            _, content = saved(page, label)
            table = list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"))))
            assert len(table) == lines * sum(len(trace.steps) for trace in traces.values())
        name, html = saved(page, "Stand-alone page (HTML)")
        assert name == "figure2-vanilla-vs-ems-sd.html"
        (tmp_path / name).write_bytes(html)
        picture_of_app = picture(page)
    with watched_page(browser, offline=True) as (page, witness):
        page.goto((tmp_path / name).as_uri())
        page.locator(READY).wait_for()
        focus(page)
        press(page, "End")
        assert state(page) == ("2", "commit")
        assert [pane["words"] for pane in picture(page)] == [pane["words"] for pane in picture_of_app]
    assert witness.words == []
    assert witness.asked == [(tmp_path / name).as_uri()]


def test_a_saved_trace_opens_again(browser, server):
    with exploring(browser, server, "?preset=early-finisher&step=3&sub=commit") as page:
        _, content = saved(page, "Vanilla (JSON)")
        words = page.get_by_test_id("pane-left").locator(".counters").inner_text()
        upload(page, mine=content.decode())
        page.get_by_text("Open the greedy trace of the same prompts").wait_for()
        wait_for_player(page)
        assert page.get_by_test_id("pane-left").get_attribute("data-method") == "vanilla"
        expect(page.get_by_test_id("pane-right")).to_have_count(0)
        focus(page)
        press(page, "Home", *["ArrowRight"] * 3)
        assert state(page)[0] == "3"
        while state(page)[1] != "commit":
            press(page, "Shift+ArrowRight")
        values = [line for line in words.split("\n") if line[:1].isdigit()]
        assert [line for line in page.locator(".counters").inner_text().split("\n") if line[:1].isdigit()] == values


def test_a_damaged_trace_is_one_sentence_and_the_page_goes_on(browser, server):
    with exploring(browser, server) as page:
        before = picture(page)
        upload(page, t="{}")
        page.get_by_text("t.json was left out: ").wait_for()
        wait_until(lambda: picture(page) == before)
        traces = load_preset("slow-row").traces
        upload(page, **{name: traces[name].to_json() for name in ("vanilla", "ems-sd")})
        page.get_by_text("vanilla.json, ems-sd.json. Open the greedy trace").wait_for()
        page.get_by_text("t.json was left out: ").wait_for()  # it is still among the chosen files


def test_the_picture_is_a_png_of_the_view(browser, server):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for scheme in ("light", "dark"):
        with exploring(browser, server, "?step=2&sub=commit", color_scheme=scheme) as page:
            with page.expect_download() as download:
                page.get_by_role("button", name="Save picture (PNG)").click()
            assert download.value.suggested_filename == "emssd-vanilla-ems-sd-step-2.png"
            content = Path(download.value.path()).read_bytes()
            assert content[:8] == b"\x89PNG\r\n\x1a\n"
            picture_file = image.open(io.BytesIO(content)).convert("RGB")
            board = page.locator(".panes").bounding_box()
            assert 0 <= picture_file.width - board["width"] < 80
            assert 0 <= picture_file.height - board["height"] < 200
            colours = picture_file.getcolors(1 << 20)
            assert len(colours) > 100
            most = max(colours)[1]
            assert (sum(most) > 600) == (scheme == "light")


@pytest.fixture(scope="module")
def hostile() -> dict[str, str]:
    return {name: hostile_trace(name).to_json() for name in ("greedy", "vanilla", "ems-sd")}


def test_hostile_token_texts_stay_text(browser, server, hostile):
    with exploring(browser, server) as page:
        upload(page, **hostile)
        page.get_by_text("From greedy.json, vanilla.json, ems-sd.json").wait_for()
        wait_for_player(page)
        open_table(page)
        focus(page)
        press(page, "Home")
        table = ""
        for _ in range(6 * int(player(page).get_attribute("data-steps"))):
            press(page, "Shift+ArrowRight")
            table += page.locator(".step-table tbody").text_content()
        for words in ("<script>window.hit = 1</script>", '<img src=x onerror="window.hit = 1">', "=cmd()", "👩‍💻"):
            assert words in table
        assert "\u202e" not in table
        assert "\x1b" not in table
        tips = set()
        for pane in (0, 1):
            items = player(page).evaluate(
                "(root, n) => root.player.panes[n].view.sections.flatMap(({ boxes }) => boxes).map(({ item }) => item)",
                pane,
            )
            for item in items:
                hover(page, pane, item)
                tips.add(page.get_by_role("tooltip").inner_text())
        assert any("<script>window.hit = 1</script>" in tip for tip in tips)
        assert any('<img src=x onerror="window.hit = 1">' in tip for tip in tips)
        for item in (cell(0, 1), query(1, 0)):
            page.mouse.click(*place_of(page, 0, **item))
            assert page.locator(".card:visible").count() == 1
            assert page.get_by_test_id("live").locator("*").count() == 0
        assert page.evaluate("window.hit") is None
        assert page.locator("img[src=x], .player script, .player img, .player i b").count() == 0
        with page.expect_download():
            page.get_by_role("button", name="Save picture (PNG)").click()
        assert page.evaluate("window.hit") is None
