"""Run live in a browser: a run to its end, cancelling, two visitors at once, and a page that is closed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from emssd.loading import load_model
from emssd.trace import GenerationTrace
from tests.browser import (
    Server,
    choose,
    count_messages,
    counters,
    expect,
    focus,
    in_browser,
    message_count,
    panes_at,
    pass_time,
    press,
    run_count,
    state,
    visiting,
    visitor,
    wait_for_player,
    wait_until,
)
from tests.helpers import greedy

pytestmark = in_browser
OWN = "the cat sat on the mat and the cat sat\n\none two three one two three one two"
HOSTILE = "<script>window.hit = 1</script>\n\n<img src=x onerror='window.hit = 1'> \u202eevil"


@pytest.fixture(scope="module")
def live_server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("live") / "log.txt", "tests/slow_app.py", PYTHONPATH=".")
    yield server
    server.stop()
    server.check_log()


def set_up(page, own: str = OWN, tokens: int = 12, drafts: int | None = None) -> None:
    page.get_by_role("button", name="Run", exact=True).wait_for()
    choose(page, "Model", "random-llama")
    page.get_by_text("Random weights, random text.").wait_for()
    page.get_by_role("button", name="Clear all").click()
    box = page.get_by_role("textbox", name="Your own prompts")
    box.fill(own)
    box.press("Control+Enter")
    number = page.get_by_role("spinbutton", name="New tokens per row")
    number.fill(str(tokens))
    number.press("Enter")
    if drafts is not None:
        page.get_by_role("spinbutton", name="Draft length").fill(str(drafts))
        page.get_by_role("spinbutton", name="Draft length").press("Enter")
        page.get_by_text(f"{drafts or 'no'} drafts · ").first.wait_for()
    rows = own.count("\n\n") + 1
    page.get_by_text(re.compile(f"{rows} prompts? · .* {tokens} new tokens")).first.wait_for()


def run(page) -> None:
    page.get_by_role("button", name="Run", exact=True).click()


def wait_for_state(page, name: str) -> None:
    page.locator(f'[data-testid="status"][data-state="{name}"]').wait_for(timeout=90_000)


def saved_trace(page, label: str) -> GenerationTrace:
    page.get_by_test_id("stPopoverButton").filter(has_text="Save").click()
    with page.expect_download() as download:
        page.get_by_role("button", name=label).click()
    page.keyboard.press("Escape")
    page.get_by_test_id("stPopoverBody").wait_for(state="hidden")
    return GenerationTrace.from_json(Path(download.value.path()).read_text())


def test_a_whole_run(browser, live_server):
    with visiting(browser, live_server, "Run live") as page:
        page.get_by_text("Nothing has been decoded yet.").wait_for()
        set_up(page)
        run(page)
        wait_for_state(page, "finished")
        badges = page.locator('[data-testid="status"] ~ .badges, .badges').first.get_by_test_id("equality")
        expect(badges).to_have_count(2)
        assert all("Output identical to greedy, 24 of 24 tokens" in words for words in badges.all_inner_texts())
        card = page.locator(".card", has_text="Speed-up vs greedy").inner_text()
        assert "decode only, prefill excluded, this CPU" in card
        assert "Not comparable with the paper’s GPU numbers." in card
        assert re.search(r"\d\.\d\d×", page.get_by_test_id("speed-ems-sd").inner_text())
        wait_for_player(page)
        methods = [page.get_by_test_id(f"pane-{side}").get_attribute("data-method") for side in ("left", "right")]
        assert methods == ["vanilla", "ems-sd"]
        focus(page)
        press(page, "ArrowRight")
        assert panes_at(page) == [state(page)[0]] * 2
        assert set(counters(page, "left")) == {"input-rows", "kv-slots", "holes", "flops-wasted", "measured-time"}
        runs = run_count(page)
        count_messages(page)
        pass_time(page, 2000)  # two polls of a small run
        assert (message_count(page), run_count(page)) == (0, runs)  # nothing polls any more
        trace = saved_trace(page, "EMS-SD (JSON)")
        assert (trace.method, len(trace.rows)) == ("ems-sd", 2)
        before = state(page)
        page.get_by_text("Set up a run").click()
        box = page.get_by_role("textbox", name="Your own prompts")
        box.click()
        box.type(" b i p 1 2 ? rc")
        press(page, "ArrowLeft", "ArrowRight", "Home", "End", "Shift+ArrowLeft")
        assert state(page) == before
        page.get_by_role("link", name="Compare").click(delay=100)  # a person's click: the field is left first
        page.get_by_text("Input rows by kind").wait_for()
        page.get_by_role("link", name="Explore").click()
        wait_for_player(page)
        page.get_by_role("combobox", name="Example").click()
        page.get_by_role("option", name="Last live run").click()
        page.get_by_text("2 of your prompts on random-llama, run here.").wait_for()


def test_hostile_prompts_stay_text(browser, live_server):
    with visiting(browser, live_server, "Run live") as page:
        set_up(page, own=HOSTILE)
        run(page)
        wait_for_state(page, "finished")
        wait_for_player(page)
        expect(page.locator(".p-cards")).to_contain_text("<script>window.hit = 1</script>")
        assert page.evaluate("window.hit") is None
        assert page.locator("img[src=x]").count() == 0


def test_two_visitors_at_once_get_what_each_would_get_alone(browser, live_server):
    owns = ("a quick brown fox and a quick brown fox\n\nzebra zebra zebra", "one two three one two three one two")
    with visiting(browser, live_server, "Run live") as first, visiting(browser, live_server, "Run live") as second:
        for page, own in zip((first, second), owns, strict=True):
            set_up(page, own=own, tokens=100)
        for page in (first, second):
            run(page)
        for page in (first, second):
            wait_for_state(page, "finished")
        lm = load_model("random-llama")
        shared = []
        for page, own in zip((first, second), owns, strict=True):
            wait_for_player(page)
            badges = page.locator(".badges").first.get_by_test_id("equality").all_inner_texts()
            assert len(badges) == 2
            assert all("Output identical to greedy" in words for words in badges)
            shared.append("Another run shared the machine" in page.get_by_test_id("status").inner_text())
            for label in ("Vanilla (JSON)", "EMS-SD (JSON)"):
                trace = saved_trace(page, label)
                assert [row.prompt_text for row in trace.rows] == own.split("\n\n")
                for row in trace.rows:
                    alone = greedy(lm, row.prompt_token_ids, 100, lm.eos_token_ids)
                    assert row.output_token_ids == alone
        assert all(shared)


def live_runs_now(page) -> int:
    page.reload()
    return int(page.get_by_test_id("live-runs").inner_text())


def test_cancel_stops_within_a_moment_and_keeps_what_was_decoded(browser, live_server):
    with visiting(browser, live_server, "Run live") as page:
        set_up(page, tokens=100, drafts=0)
        run(page)
        wait_for_state(page, "decoding")
        count = page.get_by_text(re.compile("Vanilla [1-9][0-9]* of|Vanilla [1-9][0-9]*,")).first
        begun = int(re.search(r"Vanilla (\d+)", count.inner_text())[1]) // 2  # tokens of two rows
        page.get_by_role("button", name="Cancel").click()
        wait_for_state(page, "cancelled")
        assert "What was decoded is kept." in page.get_by_test_id("status").inner_text()
        wait_for_player(page)
        trace = saved_trace(page, "Vanilla (JSON)")
        assert begun <= len(trace.steps) < begun + 30  # of 100: a round of three steps takes 0.3 s or more
        expect(page.get_by_role("button", name="Run", exact=True)).to_be_enabled()
        assert "so far" in page.locator(".card", has_text="Speed-up vs greedy").inner_text()


@pytest.mark.parametrize("how", ["closed", "left"])
def test_a_page_that_is_closed_or_left_stops_its_run(browser, live_server, how):
    with visitor(browser, live_server.url) as other:
        with visiting(browser, live_server, "Run live") as page:
            set_up(page, tokens=200, drafts=0)
            run(page)
            wait_for_state(page, "decoding")
            assert live_runs_now(other) == 1
            if how == "left":
                page.get_by_role("link", name="Explore").click()
                wait_for_player(page)
                page.get_by_role("combobox", name="Example").click()
                page.get_by_role("option", name="Last live run").wait_for()
            else:
                page.close()
        wait_until(lambda: live_runs_now(other) == 0)  # 600 steps would take a minute


def test_the_same_method_twice_cannot_run(browser, live_server):
    with visiting(browser, live_server, "Run live") as page:
        choose(page, "Right method", "Vanilla$")
        page.get_by_text("Both sides are Vanilla: choose two different methods.").wait_for()
        expect(page.get_by_role("button", name="Run", exact=True)).to_be_disabled()
