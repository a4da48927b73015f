"""The player on a page of its own: keys, play, breakpoints, pins, predictions, clocks, address, and new data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from emssd.ui.html_export import standalone_html
from emssd.ui.library import load_preset
from emssd.ui.player_data import Pane, Start, player_data
from tests.browser import SECONDS, open_table, pass_time, watched_page

ADDRESS = "http://player.test/"
PANES = ("pane-left", "pane-right")

pytestmark = pytest.mark.browser


def preset_data(
    name: str = "figure2", left: str = "vanilla", right: str = "ems-sd", step: int = 1, sub: str = "draft"
) -> dict:
    chosen = load_preset(name)
    panes = [Pane(chosen.traces[method], method, chosen.traces["greedy"]) for method in (left, right)]
    link = {"preset": name, "left": left, "right": right}
    return player_data(panes, chosen.titles, group=name, start=Start(step, sub, None), link=link)


@pytest.fixture
def opened(browser) -> Iterator[Callable]:
    """Opens a page with data; no error may reach the console."""
    with watched_page(browser) as (page, witness):

        def open_page(data: dict):
            html = standalone_html(data, "A run")
            page.route(f"{ADDRESS}**", lambda route: route.fulfill(body=html, content_type="text/html; charset=utf-8"))
            page.goto(ADDRESS)
            page.locator('[data-testid="player"][data-ready="1"]').wait_for()
            page.evaluate("window.player = document.querySelector('.player').player")
            page.get_by_test_id("player").focus()
            return page

        yield open_page
        page.unroute_all()
    assert not witness.complaints


def place(page) -> tuple[int, str]:
    root = page.get_by_test_id("player")
    return int(root.get_attribute("data-step")), root.get_attribute("data-substep")


def pane_steps(page) -> list[int]:
    return [int(page.get_by_test_id(pane).get_attribute("data-step")) for pane in PANES]


def wait_until(page, condition: str) -> None:
    """Asks again and again: the page's own policy forbids what `wait_for_function` does."""
    for _ in range(20 * SECONDS):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"{condition} did not come true; the player is at {place(page)}")


def widen(page, width: int) -> None:
    """Another window, and the player painted in it."""
    page.set_viewport_size({"width": width, "height": 900})
    wait_until(page, "player.transport.markedWidth === player.transport.track.clientWidth")


def press(page, *keys: str) -> tuple[int, str]:
    for key in keys:
        page.keyboard.press(key)
    return place(page)


def counters(page, pane: str) -> dict[str, float]:
    found = page.get_by_test_id(pane).locator("[data-counter]").all()
    return {each.get_attribute("data-counter"): float(each.get_attribute("data-value")) for each in found}


def pictures(page) -> str:
    return page.evaluate("[...document.querySelectorAll('.pane canvas')].map(c => c.toDataURL()).join()")


def centre(page, pane: int, item: dict) -> tuple[float, float]:
    script = """([pane, item]) => { const { node, view } = player.panes[pane], box = view.box(item);
      const at = node.getBoundingClientRect();
      return [at.left + box.x + box.w / 2, at.top + box.y + box.h / 2]; }"""
    return tuple(page.evaluate(script, [pane, item]))


def test_keys_step_and_keep_the_sub_step(opened):
    page = opened(preset_data())
    assert (place(page), page.get_by_test_id("player").get_attribute("data-steps")) == ((1, "draft"), "3")
    assert press(page, "ArrowRight") == (2, "draft")
    assert press(page, "Shift+ArrowRight", "Shift+ArrowRight") == (2, "write")
    assert press(page, "Home") == (0, "commit")
    assert press(page, "ArrowRight") == (1, "write")
    assert press(page, "End") == (2, "commit")
    assert press(page, "Shift+ArrowLeft") == (2, "verify")
    assert pane_steps(page) == [2, 2]
    assert press(page, "ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowLeft") == (0, "commit")
    assert press(page, "Shift+ArrowRight") == (1, "draft")
    assert press(page, "Shift+ArrowLeft") == (0, "commit")
    for key in ("r", "c", "Control+ArrowRight", "Alt+ArrowRight", "Meta+ArrowRight"):
        assert press(page, key) == (0, "commit")


def test_only_keys_that_the_player_knows_are_used_up(opened):
    page = opened(preset_data())
    script = """() => { window.seen = []; document.addEventListener("keydown", event => seen.push(event.key)); }"""
    page.evaluate(script)
    press(page, "ArrowRight", "r", "c", "Control+ArrowLeft", "x", "End")
    assert [key for key in page.evaluate("seen") if key != "Control"] == ["r", "c", "ArrowLeft", "x"]


def test_typing_a_step_number_jumps_and_its_keys_do_not_step(opened):
    page = opened(preset_data("copy-rich"))
    press(page, "g", "1", "ArrowLeft", "Home", "End", "1")
    assert place(page) == (1, "draft")
    assert page.get_by_role("spinbutton", name="Go to step").input_value() == "11"
    assert press(page, "Enter") == (11, "draft")
    assert press(page, "ArrowRight") == (12, "draft")


def test_a_state_looks_the_same_however_it_was_reached(opened):
    page = opened(preset_data("copy-rich", sub="commit"))
    press(page, *["ArrowRight"] * 6, "Shift+ArrowLeft")
    assert place(page) == (7, "verify")
    walked = pictures(page)
    press(page, "End", "ArrowLeft", "Home", "End")
    page.evaluate("player.go(7, 'verify')")
    assert pictures(page) == walked
    press(page, "ArrowRight")
    assert pictures(page) != walked
    press(page, "ArrowLeft")
    assert pictures(page) == walked


def test_the_worked_example_s_numbers(opened):
    page = opened(preset_data())
    press(page, "End")
    left, right = (counters(page, pane) for pane in PANES)
    names = ("input-rows", "kv-slots", "holes")
    assert [left[name] for name in names] == [24, 504, 7]
    assert [right[name] for name in names] == [18, 288, 0]
    assert (round(left["modelled-time"], 2), round(right["modelled-time"], 2)) == (27.52, 27.47)
    assert right["flops-wasted"] == 0 < left["flops-wasted"]
    for pane in PANES:
        text = page.get_by_test_id(pane).inner_text()
        assert "3.49×" in text
        assert "vs greedy, modelled, always" in text
    assert "Output identical to greedy, 15 of 15 tokens" in page.get_by_test_id("equality").inner_text()
    press(page, "Shift+ArrowLeft")
    assert "Output identical to greedy, 7 of 7 tokens" in page.get_by_test_id("equality").inner_text()
    assert [counters(page, pane)["holes"] for pane in PANES] == [3, 0]
    assert "vs greedy, so far, modelled, always" in page.get_by_test_id("pane-left").inner_text()
    press(page, "ArrowLeft")
    assert "vs greedy" not in page.get_by_test_id("pane-left").inner_text()


PLACES = """() => { window.places = []; const root = document.querySelector(".player");
  const place = () => [+root.dataset.step, root.dataset.substep];
  let before = place().join();
  const note = () => {
    if (place().join() !== before) places.push([...place(), performance.now()]);
    before = place().join();
  };
  new MutationObserver(note).observe(root, { attributes: true, attributeFilter: ["data-step", "data-substep"] }); }"""


def test_a_speed_up_is_of_the_tokens_that_are_committed(opened):
    page = opened(preset_data(step=1, sub="draft"))
    speeds = page.locator(".pane .speed b")
    assert speeds.count() == 0
    press(page, *["Shift+ArrowRight"] * 5)
    assert (place(page), speeds.all_inner_texts()) == ((1, "commit"), ["2.99×", "2.99×"])
    press(page, *["Shift+ArrowRight"] * 5)
    assert (place(page), speeds.all_inner_texts()) == ((2, "verify"), ["2.99×", "2.99×"])
    assert page.get_by_text("so far").count() == 2
    press(page, "Shift+ArrowRight")
    assert speeds.all_inner_texts() == ["3.49×", "3.49×"]


def test_play_has_one_clock_however_often_it_is_pressed(opened):
    page = opened(preset_data("copy-rich", sub="commit"))
    page.evaluate(PLACES)
    page.evaluate("player.setSpeed(4)")
    press(page, " ", " ", " ", " ", " ")
    wait_until(page, "player.step === 13 && !player.playing")
    walked = page.evaluate("places")
    assert [step for step, *_ in walked] == list(range(2, 14))
    gaps = [after[2] - before[2] for before, after in pairwise(walked)]
    assert min(gaps) > 150  # a tick is 225 ms
    assert page.get_by_role("button", name="Play again").is_visible()
    page.evaluate("places.length = 0")
    press(page, " ")
    wait_until(page, "player.step >= 2")
    press(page, " ")
    stopped = place(page)
    assert [step for step, *_ in page.evaluate("places")] == list(range(stopped[0] + 1))
    pass_time(page, 600)
    assert place(page) == stopped


def test_a_small_run_plays_by_sub_step(opened):
    page = opened(preset_data())
    page.evaluate(PLACES)
    page.evaluate("player.setSpeed(8)")
    press(page, " ")
    wait_until(page, "player.atEnd() && !player.playing")
    subs = ["draft", "pack", "write", "attend", "verify", "commit"]
    assert [(step, sub) for step, sub, _ in page.evaluate("places")] == [(1, sub) for sub in subs[1:]] + [
        (2, sub) for sub in subs
    ]


def test_play_stops_where_a_breakpoint_is_ticked(opened):
    page = opened(preset_data("copy-rich", sub="draft"))
    page.evaluate("player.setSpeed(8)")
    page.get_by_role("button", name="Breakpoints").click()
    page.get_by_label("a row finished").check()
    page.keyboard.press("Escape")
    first = page.evaluate("player.marks.findIndex(marks => marks.some(mark => mark.key === 'finished'))")
    page.get_by_test_id("player").focus()
    press(page, " ")
    wait_until(page, "!player.playing")
    assert place(page) == (first, "commit")
    press(page, "Home", "b")
    assert place(page) == (first, "commit")
    page.evaluate("player.setBreakpoint('finished', false)")
    assert press(page, "Home", "b")[0] == 1


def test_play_pauses_when_the_page_is_hidden(opened):
    page = opened(preset_data())
    press(page, " ")
    assert page.evaluate("player.playing")
    hide = """() => { Object.defineProperty(document, "hidden", { value: true, configurable: true });
      document.dispatchEvent(new Event("visibilitychange")); }"""
    page.evaluate(hide)
    assert not page.evaluate("player.playing")
    before = place(page)
    pass_time(page, 1200)  # a tick takes 900 ms
    assert place(page) == before


def test_a_click_pins_escape_unpins_and_both_panes_light_up(opened):
    page = opened(preset_data(step=2, sub="attend"))
    page.mouse.click(*centre(page, 0, {"kind": "cell", "row": 1, "slot": 7}))
    card = page.get_by_test_id("pane-left").get_by_role("complementary", name="Pinned")
    assert "6 queries, weight 0" in card.inner_text()
    page.mouse.move(5, 5)
    page.mouse.move(*centre(page, 0, {"kind": "query", "row": 1, "index": 1}))
    wait_until(page, "player.hover?.kind === 'query'")
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    lit = page.evaluate("player.panes.map(pane => [[...pane.focus.queries], Object.fromEntries(pane.focus.cells)])")
    assert [queries for queries, _ in lit] == [["1.1"], ["1.1"]]
    left, right = (list(cells.values()) for _, cells in lit)
    assert (left.count("visible"), left.count("dead")) == (6, 5)
    assert (right.count("visible"), right.count("dead")) == (6, 0)
    page.mouse.move(5, 5)
    page.wait_for_url("**pin=1.7**")
    assert "6 queries, weight 0" in page.get_by_test_id("live").text_content()
    assert press(page, "Escape") == (2, "attend")
    assert not card.is_visible()


def test_the_card_covers_neither_its_cell_nor_its_row(opened):
    page = opened(preset_data(step=2, sub="attend"))
    script = """() => player.panes[0].run.rows && [...Array(15).keys()].map(slot => {
      player.setPin({ pane: 0, kind: "cell", row: 1, slot });
      const card = player.panes[0].card.node, box = player.panes[0].view.box(player.pin);
      return [card.offsetTop, card.offsetTop + card.offsetHeight, box.y, box.y + box.h]; })"""
    for top, bottom, cell_top, cell_bottom in page.evaluate(script):
        assert bottom <= cell_top or top >= cell_bottom


def test_the_card_of_a_fed_token_covers_nothing_that_it_reads(opened):
    page = opened(preset_data(step=2, sub="verify"))
    script = """() => [0, 1].flatMap(side => [0, 1, 2].map(index => {
      player.setPin({ pane: side, kind: "query", row: 0, index });
      const pane = player.panes[side], card = pane.card.node, size = { w: card.offsetWidth, h: card.offsetHeight };
      const covered = litBoxes(pane).filter(box => overlaps(box, card.offsetLeft, card.offsetTop, size));
      return [litBoxes(pane).length, covered.length]; }))"""
    for lit, covered in page.evaluate(script):
        assert (lit > 9, covered) == (True, 0)


def test_cells_are_reached_and_said_by_keyboard(opened):
    page = opened(preset_data(step=2, sub="commit"))
    press(page, "i", "Home", "ArrowDown", "ArrowRight", "Enter")
    assert page.evaluate("[player.pin.pane, player.pin.row, player.pin.slot]") == [0, 1, 1]
    page.wait_for_url("**pin=1.1**")
    assert "row 1, slot 1" in page.get_by_test_id("live").text_content()
    press(page, "i")
    assert page.evaluate("player.roving.pane") == 1
    assert place(page) == (2, "commit")
    press(page, "Escape", "ArrowLeft")
    assert place(page) == (1, "commit")


def test_predictions_are_scored_explained_and_never_in_the_way(opened):
    page = opened(preset_data("copy-rich"))
    press(page, "p")
    card = page.get_by_label("Predict before you see")
    for right in (True, False):
        step, sub = place(page)
        assert sub == "attend"
        answer = page.evaluate("player.predict.question.answer")
        press(page, *str(answer if right else answer + 1), "Enter")
        assert place(page)[1] in ("verify", "commit")
        assert ("Right." if right else "Not ") in card.inner_text()
        assert press(page, "ArrowRight") == (step + 1, "attend")
    assert "1 of 2 right" in card.inner_text()
    card.get_by_role("button", name="Skip").click()
    assert "Skipped." in card.inner_text()
    assert "1 of 2 right" in card.inner_text()
    assert press(page, "ArrowRight", "ArrowRight")[0] == 5
    press(page, "p")
    assert not card.is_visible()


def test_a_prediction_that_is_no_number_is_answered_and_digits_choose_panes_again_after_it(opened):
    page = opened(preset_data("copy-rich"))
    press(page, "p")
    card = page.get_by_label("Predict before you see")
    card.get_by_role("button", name="Check").click()
    pass_time(page, 400)  # the reader rests after 300 ms
    assert "Type a whole number, or skip." in card.inner_text()
    card.get_by_role("button", name="Skip").click()
    card.get_by_role("button", name="Next question").click()
    assert place(page) == (2, "attend")
    assert "Type a whole number" not in card.inner_text()
    press(page, "0", "Enter", "ArrowRight", "7", "Escape")
    assert not card.is_visible()
    assert press(page, "ArrowRight") == (4, "attend")
    press(page, "1")
    assert [page.get_by_test_id(pane).is_visible() for pane in PANES] == [True, False]


def test_the_keyboard_goes_on_where_the_pressed_button_is_switched_off_or_put_away(opened):
    page = opened(preset_data("copy-rich", step=12, sub="commit"))
    page.get_by_role("button", name="Next step").click()
    assert page.get_by_role("button", name="Next step").is_disabled()
    assert press(page, "ArrowLeft") == (12, "commit")
    press(page, "p")
    page.get_by_role("button", name="Stop predicting").click()
    assert press(page, "ArrowLeft")[0] == 11


def test_a_press_on_the_word_of_a_choice_chooses_it(opened):
    page = opened(preset_data("copy-rich"))
    page.get_by_role("button", name="Speed", exact=True).click()
    page.get_by_text("4×", exact=True).click()
    assert page.evaluate("player.speed") == 4
    assert page.get_by_role("radio", name="4×").is_visible()
    page.get_by_role("button", name="Breakpoints", exact=True).click()
    page.get_by_text("a row finished", exact=True).click()
    page.get_by_text("first hole", exact=True).click()
    assert page.evaluate("[...player.ticked].sort()") == ["finished", "first-hole"]


def test_same_modelled_time_lets_the_faster_pane_run_ahead(opened):
    page = opened(preset_data("copy-rich", "greedy", "ems-sd", step=3, sub="commit"))
    page.get_by_role("radio", name="Same modelled time").click()
    assert pane_steps(page)[1] >= 3
    press(page, "End")
    last = pane_steps(page)
    assert last == page.evaluate("player.panes.map(pane => pane.last)")
    assert last[0] > last[1]
    page.get_by_role("radio", name="Same step").click()
    assert place(page)[0] == last[0]
    assert pane_steps(page) == last


def test_the_address_follows_without_history(opened):
    page = opened(preset_data())
    entries = page.evaluate("history.length")
    press(page, "ArrowRight", "Shift+ArrowRight")
    page.wait_for_url("**sub=pack**")
    found = dict(re.findall(r"(\w+)=([^&]*)", page.url))
    assert found == {"preset": "figure2", "left": "vanilla", "right": "ems-sd", "step": "2", "sub": "pack", "v": "1"}
    assert page.evaluate("history.length") == entries
    told = page.get_by_test_id("live").text_content()
    assert "Vanilla: " in told
    assert "EMS-SD: " in told


def test_new_data_keeps_the_place_in_the_same_group_only(opened):
    page = opened(preset_data())
    press(page, "End", "i", "Enter", "Escape")
    pin = page.evaluate("player.pin")
    load = "data => player.load(data)"
    page.evaluate(load, preset_data())
    assert place(page) == (2, "commit")
    page.evaluate(load, preset_data(left="packed-input"))
    assert (place(page), page.evaluate("player.pin")) == ((2, "commit"), pin)
    assert page.get_by_test_id("pane-left").get_attribute("data-method") == "packed-input"
    page.evaluate(load, preset_data("copy-rich", step=4, sub="write"))
    assert (place(page), page.evaluate("player.pin")) == ((4, "write"), None)


def test_loading_again_and_again_leaves_nothing_behind(opened):
    page = opened(preset_data())
    script = """sets => { const nodes = () => document.querySelectorAll(".player *").length;
      player.load(sets[0]); const before = nodes();
      for (let n = 0; n < 10; n++) for (const data of sets) player.load(data);
      player.play(); player.load(sets[1]); player.load(sets[0]);
      return [before, nodes(), player.playing, player.timer]; }"""
    before, after, playing, timer = page.evaluate(script, [preset_data(), preset_data(left="packed-input")])
    assert (after, playing, timer) == (before, False, None)
    page.evaluate(PLACES)
    press(page, "ArrowRight")
    pass_time(page, 50)
    assert len(page.evaluate("places")) == 1


def test_the_step_is_a_table_too(opened):
    page = opened(preset_data(step=2, sub="attend"))
    open_table(page)
    lines = page.locator(".step-table tbody tr")
    assert lines.count() == 4
    first = lines.nth(0).locator("th, td").all_inner_texts()
    assert first[0] == "Vanilla"
    assert first[4] == "–"
    page.evaluate("player.go(2, 'commit')")
    first = lines.nth(0).locator("th, td").all_inner_texts()
    assert (first[4], first[6], first[7], first[8]) == ("1 of 2", "2", "15", "4")


def test_the_code_of_the_sub_step_is_shown_with_its_deciding_lines(opened):
    data = preset_data(sub="verify")
    page = opened(data)
    page.get_by_role("button", name="Show the code").click()
    listing = page.get_by_label("Code of this sub-step")
    code = data["panes"][0]["code"]["verify"]
    assert f"{code['file']}:{code['line']}" in listing.inner_text()
    active = listing.locator(".active span").all_text_contents()
    assert active[: len(code["active"])] == [code["lines"][n] for n in code["active"]]


def test_hostile_words_stay_text(opened):
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    data = preset_data(step=2, sub="commit")
    data["words"] = [evil + word for word in data["words"]]
    data["rows"] = [evil] * 2
    page = opened(data)
    page.once("dialog", lambda dialog: pytest.fail(dialog.message))
    page.get_by_text("This step as a table").click()
    press(page, "i", "Enter", "p", "Home", "End")
    assert page.locator(".player img, .player script").count() == 0
    assert evil in page.locator(".step-table").inner_text()


def test_one_pane_or_two(opened):
    page = opened(preset_data())
    press(page, "1")
    assert [page.get_by_test_id(pane).is_visible() for pane in PANES] == [True, False]
    press(page, "1")
    assert [page.get_by_test_id(pane).is_visible() for pane in PANES] == [False, True]
    press(page, "2")
    assert [page.get_by_test_id(pane).is_visible() for pane in PANES] == [True, True]


def test_the_picture_is_a_png_of_this_view(opened):
    page = opened(preset_data(step=2, sub="commit"))
    with page.expect_download() as download:
        page.get_by_role("button", name="Save picture (PNG)").click()
    assert download.value.suggested_filename == "emssd-vanilla-ems-sd-step-2.png"
    content = download.value.path().read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(content) > 20_000


def test_outputs_that_differ_are_said_and_found(opened):
    data = preset_data()
    data["panes"][1]["differs"] = {"row": 1, "token": 2, "step": 1}
    page = opened(data)
    badge = page.get_by_test_id("equality")
    assert "Output differs from greedy: first at row 1, new token 2" in badge.inner_text()
    press(page, "End")
    assert "output differs" in page.get_by_test_id("pane-right").locator(".speed").inner_text()
    badge.click()
    assert place(page) == (1, "commit")


@pytest.mark.parametrize("width", [700, 1024, 1280, 1440])
def test_marks_on_the_track_never_lie_on_each_other(opened, width):
    page = opened(preset_data("slow-row", "greedy", "vanilla"))
    widen(page, width)
    boxes = [mark.bounding_box() for mark in page.locator(".mark-group").all()]
    assert len(boxes) > 2
    assert all(one["x"] + one["width"] <= two["x"] + 1 for one, two in pairwise(boxes))
    said = [mark.get_attribute("aria-label") for mark in page.locator(".mark").all()]
    assert sum(len(text.split("; ")) for text in said) == page.evaluate("player.transport.drawn.flat().length")


def test_nothing_that_was_said_of_one_place_stays_at_another(opened):
    page = opened(preset_data("copy-rich"))
    press(page, "End", "b")
    assert page.get_by_text("No event after this place.").is_visible()
    press(page, "ArrowLeft")
    assert not page.get_by_text("No event after this place.").is_visible()


def test_a_player_built_anew_on_the_same_page_goes_on_where_the_reader_was(opened):
    page = opened(preset_data("copy-rich", step=3))
    press(page, "ArrowRight", "Shift+ArrowRight", "i", "Enter")
    kept = page.evaluate("JSON.stringify(player.pin)")
    anew = """entries => { const { root, data } = player; player.detach();
      window.player = new Player(root, { ...data, ...entries }); }"""
    page.evaluate(anew, {"start": {"step": 1, "sub": "draft", "pin": None}})
    assert place(page) == (4, "pack")
    assert page.evaluate("JSON.stringify(player.pin)") == kept
    page.evaluate(anew, {"group": "another"})
    assert place(page) == (1, "draft")


def test_nothing_scrolls_sideways(opened):
    page = opened(preset_data("copy-rich"))
    for width in (1024, 1280, 1440, 1920, 2560):
        widen(page, width)
        parts = "[document.documentElement, ...document.querySelectorAll('.pane')]"
        assert max(page.evaluate(f"{parts}.map(node => node.scrollWidth - node.clientWidth)")) <= 0, width
        assert page.evaluate("player.root.clientWidth") <= 1920
