"""The page Lessons in a browser: text and player in sight together, cells covered until a question is answered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

from emssd.cells import SUBSTEPS
from emssd.lessons.catalog import entries
from emssd.lessons.text import Target, read_lesson
from emssd.ui.lessons_library import target_of
from emssd.ui.lessons_link import Place
from emssd.ui.palette import CHROME
from tests.browser import (
    cell,
    expect,
    focus,
    hover,
    in_browser,
    open_table,
    player,
    press,
    query,
    state,
    steps_seen,
    visitor,
    wait_for_player,
    wait_until,
    watch_steps,
)

pytestmark = in_browser
LESSONS = {entry.number: read_lesson(entry.text) for entry in entries()}
SIZES = ({"width": 1440, "height": 900}, {"width": 1024, "height": 768})


@contextmanager
def learning(browser, server, number: int, **settings):
    """A new visitor who has opened a lesson from the list."""
    with visitor(browser, server.url, **settings) as page:
        page.get_by_role("link", name="Lessons", exact=True).click()
        page.get_by_role("link", name=f"{number}. {LESSONS[number].title}", exact=True).click()
        page.get_by_text(f"Lesson {number} of 10").wait_for()
        wait_for_player(page)
        yield page


def forward(page) -> None:
    """To the next screen."""
    before = page.url
    page.locator(".st-key-lesson_continue button").click()
    page.wait_for_url(lambda url: url != before)


def at(page, *screens: str) -> bool:
    """Whether the player is at one of some screens; while the page is put together, it may be away for a moment."""
    keys = player(page).evaluate_all("roots => roots.map((root) => root.player?.data.lesson?.key)")
    return len(keys) == 1 and keys[0] in screens


# Everything that a reader needs at once, and what of it is not in the window.
OUTSIDE = """() => {
  const find = (node, list) => [...node.querySelectorAll(list)];
  const text = ".l-line, .st-key-lesson_text h1, .l-heading, .st-key-lesson_steps, .st-key-lesson_links";
  const shadows = find(document, ".st-key-lesson_side *").map((each) => each.shadowRoot).filter(Boolean);
  const all = [...find(document, text), ...[document, ...shadows].flatMap((each) => find(each, ".transport, .pane"))];
  const outside = all.filter((each) => {
    const box = each.getBoundingClientRect();
    return box.top < 40 || box.left < 0 || box.right > innerWidth + 1 || box.bottom > innerHeight + 1 || !box.width;
  });
  const main = document.querySelector('[data-testid="stMain"]');
  if (main.scrollHeight > main.clientHeight + 1) outside.push({ className: "the page scrolls" });
  return { seen: all.length, outside: outside.map((each) => each.className) };
}"""


def in_sight(page) -> bool:
    found = page.evaluate(OUTSIDE)
    return found["seen"] >= 7 and not found["outside"]


def out_of_sight(page, *where) -> tuple:
    return *where, page.evaluate(OUTSIDE)


def test_text_and_player_are_in_sight_together_in_every_lesson(browser, server):
    """Of its two main screens one in each window."""
    with learning(browser, server, 1) as page:
        for number, lesson in LESSONS.items():
            if number > 1:
                page.get_by_role("link", name=f"Lesson {number}", exact=True).click()
                first = f"{number}/question/1"
                wait_until(lambda first=first: at(page, first, f"{first}/before"))
            for screen, size in zip(("predict", "idea"), SIZES if number % 2 else SIZES[::-1], strict=True):
                place = f"{number}/{screen}/1"
                page.get_by_role("radio", name=screen.capitalize()).click()
                wait_until(lambda place=place: at(page, place), what=place)
                page.set_viewport_size(size)
                wait_until(lambda: in_sight(page), what=partial(out_of_sight, page, place, size))
            assert page.url.endswith(f"?lesson={number}&section=idea"), (page.url, lesson.title)


# What of a text lies outside its box, and how high the box is.
CUT = "body => [body.scrollHeight - body.clientHeight, body.clientHeight]"


def test_a_text_stands_whole_above_the_player_in_a_narrow_window(browser, server):
    with learning(browser, server, 1, viewport={"width": 800, "height": 900}) as page:
        body = page.locator(".st-key-lesson_body")

        def whole() -> bool:
            cut, height = body.evaluate(CUT)
            return cut <= 0 and height > 200

        for screen in ("question", "idea", "run"):
            page.get_by_role("radio", name=screen.capitalize(), exact=True).click()
            wait_until(lambda screen=screen: at(page, f"1/{screen}/1", f"1/{screen}/1/before"), what=screen)
            wait_until(whole, what=screen)
        page.set_viewport_size({"width": 390, "height": 900})
        wait_until(whole)
        page.set_viewport_size({"width": 1024, "height": 768})
        wait_until(lambda: body.evaluate(CUT)[0] > 0 and body.evaluate(CUT)[1] > 200)


COVERED = "root => root.player.panes.map((pane) => [...pane.covered.entries()])"
PIXEL = """(root, [pane, item]) => {
  const section = root.player.panes[pane].view.sections.findLast((each) => !each.node.hidden && each.find(item));
  const box = section.find(item), scale = section.canvas.width / section.canvas.getBoundingClientRect().width;
  const scratch = document.createElement("canvas");
  Object.assign(scratch, { width: section.canvas.width, height: section.canvas.height });
  const ctx = scratch.getContext("2d", { willReadFrequently: true });
  ctx.drawImage(section.canvas, 0, 0);
  const at = [box.x + 0.86 * box.w, box.y + 0.2 * box.h].map((each) => Math.round(each * scale));
  const pixel = ctx.getImageData(...at, 1, 1);
  return "#" + [...pixel.data.slice(0, 3)].map((part) => part.toString(16).padStart(2, "0")).join("").toUpperCase();
}"""


def colour(page, pane: int, row: int, slot: int) -> str:
    return player(page).evaluate(PIXEL, [pane, cell(row, slot)])


def number_beside(page, side: str, name: str) -> str:
    return page.get_by_test_id(f"pane-{side}").locator(f'[data-number="{name}"] b').inner_text()


# To the end of a text, and how far that is: 0 while the text is too short.
SCROLLED = "body => { body.scrollTo(0, body.scrollHeight); return body.scrollTop; }"


def test_covered_cells_tell_nothing_until_the_question_is_answered(browser, server):
    question, asked = LESSONS[6].questions[0], target_of(LESSONS[6], Place(6, "predict"), answered=False)
    assert asked.hide == (("right", 1),)
    with learning(browser, server, 6) as page:
        serial = player(page).evaluate("root => root.player.serial")
        assert player(page).evaluate(COVERED)[1] == [[1, [3, 14]]]  # covered on the screen before, too
        expect(page.get_by_test_id("pane-right").locator(".story")).to_have_text("Hidden until Predict: row 1.")
        forward(page)
        wait_until(lambda: at(page, "6/predict/1"))
        tint = CHROME["brand-tint"][0]
        assert [colour(page, 1, 1, slot) == tint for slot in (2, 3, 4, 5, 9)] == [False, True, True, True, True]
        assert colour(page, 0, 1, 6) != tint
        assert number_beside(page, "right", "next-1") == "?"
        assert number_beside(page, "right", "holes") == "?"
        assert number_beside(page, "left", "next-1") != "?"
        pane = page.get_by_test_id("pane-right")
        assert pane.locator(".story").inner_text() == "Answer the question to reveal row 1."
        hover(page, 1, cell(1, 3))
        tip = page.get_by_role("tooltip")
        assert "Hidden" in tip.inner_text()
        assert "slot 3" in tip.inner_text()
        assert question.answer not in tip.inner_text().replace("slot 3", "")
        open_table(page)
        rows = page.get_by_role("table").last.get_by_role("row").all_inner_texts()
        assert rows[-1].count("?") == 8
        focus(page)
        press(page, "i", "i", "ArrowDown")  # inspects the right pane's row 1
        assert "EMS-SD, Hidden, row 1, slot 8" in page.get_by_test_id("live").text_content()
        press(page, "Escape", "End", "Shift+ArrowRight")
        assert state(page) == (str(asked.step), asked.sub)
        assert page.get_by_text("Answer or skip the question to see what comes next.").is_visible()
        assert page.locator(".mark").count() == 0
        page.locator(".st-key-lesson_question label").filter(has_text=question.answer).click()
        page.get_by_role("button", name="Check", exact=True).last.click()
        wait_until(lambda: at(page, "6/predict/1/told"))
        assert player(page).evaluate("root => root.player.serial") == serial
        assert number_beside(page, "right", "next-1") == question.answer
        assert player(page).evaluate(COVERED) == [[], []]
        assert page.get_by_test_id("live").text_content().startswith("Right.")
        assert page.locator(".mark").count() > 0
        body = page.locator(".st-key-lesson_body")
        expect(body.locator(".l-verdict")).to_be_visible()
        page.set_viewport_size({"width": 1024, "height": 768})
        page.get_by_role("radio", name="Idea").click()
        wait_until(lambda: at(page, "6/idea/1"))
        wait_until(lambda: body.evaluate(SCROLLED) > 0)
        page.get_by_role("radio", name="Code").click()
        wait_until(lambda: body.evaluate("body => body.scrollTop") == 0)


def test_a_lesson_about_one_row_tells_of_that_row(browser, server):
    assert LESSONS[1].section("Idea").target.query == (0, 0)
    with learning(browser, server, 1) as page:
        page.get_by_role("radio", name="Idea").click()
        wait_until(lambda: at(page, "1/idea/1"))
        story = page.get_by_test_id("pane-left").locator(".story")
        expect(story).to_contain_text("Query “horizon” of row 0")
        assert colour(page, 0, 0, 1) != colour(page, 0, 1, 1)
        player(page).evaluate("root => root.player.go(1, 'write')")
        assert colour(page, 0, 0, 1) == colour(page, 0, 1, 1)


def played() -> Iterator[tuple[int, int, Target, Target]]:
    """Questions whose answer comes later in the same step, in the same panes: lesson, question, both targets."""
    for number, lesson in LESSONS.items():
        for count in range(1, len(lesson.questions) + 1):
            asked, told = (target_of(lesson, Place(number, "predict", count), done) for done in (False, True))
            same = (asked.preset, asked.left, asked.right, asked.step) == (
                told.preset,
                told.left,
                told.right,
                told.step,
            )
            if same and SUBSTEPS.index(asked.sub) < SUBSTEPS.index(told.sub):
                yield number, count, asked, told


# From now on, the names that the button for playing takes on.
WATCH_PLAY = """root => {
  const { play } = root.player.transport.buttons, plays = (root.plays = []);
  let before = play.ariaLabel;
  const note = () => {
    if (play.ariaLabel !== before) plays.push(play.ariaLabel);
    before = play.ariaLabel;
  };
  new MutationObserver(note).observe(play, { attributes: true, attributeFilter: ["aria-label"] });
}"""


def test_answering_plays_the_step_and_a_section_brings_the_player_back(browser, server):
    number, place, asked, told = next(played())
    with learning(browser, server, number) as page:
        for count in range(1, place + 1):
            forward(page)
            wait_until(lambda count=count: at(page, f"{number}/predict/{count}"))
        assert state(page) == (str(asked.step), asked.sub)
        watch_steps(page)
        player(page).evaluate(WATCH_PLAY)
        page.get_by_role("button", name="Skip").click()
        wait_until(lambda: at(page, f"{number}/predict/{place}/told"))
        wait_until(lambda: state(page) == (str(told.step), told.sub))
        expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()
        way = SUBSTEPS[SUBSTEPS.index(asked.sub) + 1 : SUBSTEPS.index(told.sub) + 1]
        assert [sub for *_, sub in steps_seen(page)] == list(way)
        assert player(page).evaluate("root => root.plays") == ["Pause", "Play"]
        focus(page)
        press(page, "Home")
        assert state(page) == ("0", "commit")
        page.get_by_role("radio", name="Idea").click()
        idea = target_of(LESSONS[number], Place(number, "idea"), answered=True)
        wait_until(lambda: at(page, f"{number}/idea/1"))
        assert state(page) == (str(idea.step), idea.sub)
        press(page, "Home")
        page.go_back()
        wait_until(lambda: at(page, f"{number}/predict/{place}/told"))
        assert state(page) == (str(told.step), told.sub)


def test_queries_of_covered_rows_light_nothing_up(browser, server):
    with learning(browser, server, 6, color_scheme="dark") as page:
        forward(page)
        wait_until(lambda: at(page, "6/predict/1"))
        assert colour(page, 1, 1, 4) == CHROME["brand-tint"][1]
        page.set_viewport_size({"width": 1440, "height": 1100})  # fed tokens and cache at once
        shown = "root => !root.player.panes[0].view.sections.some((section) => section.node.hidden)"
        wait_until(lambda: player(page).evaluate(shown))
        hover(page, 0, query(1, 0))
        assert player(page).evaluate("root => root.player.panes.map((pane) => pane.focus)") == [None, None]
        hover(page, 0, query(0, 0))
        assert player(page).evaluate("root => root.player.panes.every((pane) => pane.focus)")


def test_a_shared_cursor_is_covered_with_any_of_its_rows(browser, server):
    """A question about row 1 of vanilla: the cursor of row 0 would tell where row 1 writes."""
    number, place, asked = next(
        (number, count, target)
        for number, lesson in LESSONS.items()
        for count in range(1, len(lesson.questions) + 1)
        if (target := target_of(lesson, Place(number, "predict", count), answered=False)).hide
        if target.left == "vanilla" and target.right is None and target.step > 0
    )
    with learning(browser, server, number) as page:
        for count in range(1, place + 1):
            forward(page)
            wait_until(lambda count=count: at(page, f"{number}/predict/{count}"))
        assert state(page) == (str(asked.step), asked.sub)
        player(page).evaluate("({ player }) => { player.data.lesson.hide = [[0, 1]]; player.go(player.step); }")
        assert [number_beside(page, "left", f"next-{row}") for row in (0, 1)] == ["?", "?"]
        open_table(page)
        cells = page.get_by_role("table").last.get_by_role("row").nth(1).locator("th, td").all_inner_texts()
        assert cells[7:9] == ["?", "?"]
        hover(page, 0, query(0, 0))
        assert "slot" not in page.get_by_role("tooltip").inner_text().replace("Slot", "")
        assert [row for row, _ in player(page).evaluate(COVERED)[0]] == [1]


LABELS = """root => {
  const { transport } = root.player, ctx = transport.canvas.getContext("2d"), drawn = [], fill = ctx.fillText;
  ctx.fillText = (text, x, y) => {
    const half = ctx.measureText(text).width / 2;
    if (y > 40) drawn.push([x - half, x + half, text]);
  };
  transport.paint();
  ctx.fillText = fill;
  return drawn.sort((a, b) => a[0] - b[0]);
}"""
READERS = """(root, sub) => {
  const { player } = root;
  player.go(2, sub);
  return player.panes[0].focus && [...player.panes[0].focus.queries].sort();
}"""
WIDTH = "node => node.getBoundingClientRect().width"
CARD = """root => {
  const box = (node) => node.getBoundingClientRect(), { card, view } = root.player.panes[0];
  return [box(card.node).top - box(view.node).bottom, card.node.innerText];
}"""


def test_an_open_lesson_is_sealed_and_what_a_section_set_goes_with_it(browser, server):
    lesson = LESSONS[5]
    with learning(browser, server, 5) as page:
        shown, notice = state(page), page.get_by_text("to see what comes next.")
        assert shown == ("1", "draft")
        assert page.locator(".mark").count() == 0
        page.get_by_role("button", name="Next sub-step").click()
        assert state(page) == shown
        assert notice.is_visible()
        forward(page)
        wait_until(lambda: at(page, "5/predict/1"))
        assert not notice.is_visible()
        player(page).evaluate("root => root.player.setBreakpoint('hole', true)")
        for number in range(1, len(lesson.questions) + 1):
            assert page.locator(".mark").count() == 0 or number > 1
            page.get_by_role("button", name="Skip", exact=True).click()
            wait_until(lambda number=number: at(page, f"5/predict/{number}/told"))
            forward(page)
        wait_until(lambda: at(page, "5/idea/1"))
        assert player(page).evaluate("root => [root.player.ticked.size, root.player.pin]") == [0, None]
        assert page.locator(".mark").count() == 5
        player(page).evaluate("root => root.player.go(1, 'attend')")
        for name, place in (("Next", "verify"), ("Next", "commit"), ("Back one", "verify")):
            page.get_by_role("button", name=f"{name} sub-step").click()
            assert state(page) == ("1", place)


def test_a_pin_lies_below_the_cells_and_labels_stand_apart(browser, server):
    with learning(browser, server, 5) as page:
        page.get_by_role("radio", name="Idea").click()
        wait_until(lambda: at(page, "5/idea/1"))
        player(page).evaluate("root => root.player.setPin({ pane: 0, kind: 'cell', row: 1, slot: 9 })")
        every = [f"1.{index}" for index in range(6)]
        readers = [player(page).evaluate(READERS, sub) for sub in ("pack", "write", "attend")]
        assert readers == [None, ["1.0"], every]
        below, words = player(page).evaluate(CARD)
        assert below >= 0
        assert "6 queries" in words
        assert "KiB" not in words
        for width in (1440, 1280, 1024):
            page.set_viewport_size({"width": width, "height": 900})
            wait_until(lambda: in_sight(page))
            for sub in SUBSTEPS:
                player(page).evaluate("(root, sub) => root.player.go(2, sub)", sub)
                labels = player(page).evaluate(LABELS)
                assert sub in [text for *_, text in labels]
                assert all(one[1] < two[0] for one, two in pairwise(labels)), (width, labels)
        picture = page.locator(".st-key-lesson_body img").first
        wait_until(lambda: picture.evaluate("img => img.complete && img.naturalWidth > 0"))
        small = picture.evaluate(WIDTH)
        page.get_by_role("button", name="Enlarge the picture").first.click()
        large = page.get_by_role("dialog").locator("img")
        wait_until(lambda: large.evaluate(WIDTH) > 1.5 * small)
        press(page, "Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
