"""What the panes draw: one picture per state, nothing jumps or overflows, every item is hit where it is drawn."""

from __future__ import annotations

import json
import re
from random import Random

import pytest

from emssd.ui.html_export import standalone_html
from emssd.ui.library import load_preset
from emssd.ui.narration import narrations, plain_text
from emssd.ui.player_data import Pane, player_data
from tests.browser import HASH
from tests.player_samples import invented_trace, random_trace

pytestmark = pytest.mark.browser

PICTURES = (
    """places => {
  const hash = """
    + HASH
    + """;
  return places.map(([step, sub]) => {
    player.go(step, sub);
    return player.panes.flatMap((pane) => pane.view.canvases.map(({ canvas }) => hash(canvas))).join();
  });
}"""
)

# Every item that the grid, the fed tokens and the text have at a place, and what is hit in the middle of its box.
HITS = """([step, sub]) => {
  player.go(step, sub);
  const missed = [], count = { cell: 0, query: 0, text: 0 };
  for (const pane of player.panes) {
    const { run, view } = pane, items = [];
    for (let row = 0; row < run.rows; row++) {
      for (let slot = 0; slot < run.slots; slot++) items.push({ kind: "cell", row, slot });
      for (let n = 0; n < textLength(pane, row); n++) items.push({ kind: "text", row, n });
    }
    for (const { row, index } of queriesAt(run, step)) items.push({ kind: "query", row, index });
    const { node } = pane, outer = node.getBoundingClientRect();
    const canvases = view.canvases.map(({ canvas }) => [canvas, canvas.getBoundingClientRect()]);
    for (const item of items) {
      const box = view.box(item);
      if (!box) continue;
      const x = outer.left + node.clientLeft + box.x + box.w / 2, y = outer.top + node.clientTop + box.y + box.h / 2;
      const [canvas, at] = canvases.find(([, at]) => x >= at.left && x < at.right && y >= at.top && y < at.bottom);
      const hit = view.hit(canvas, x - at.left, y - at.top);
      count[item.kind]++;
      if (!sameItem(hit, item)) missed.push([item, hit]);
    }
  }
  return { missed: missed.slice(0, 5), count };
}"""

LAYOUT = """places => places.map(([step, sub]) => {
  player.go(step, sub);
  return player.panes.map((pane) => pane.view.canvases.map(({ canvas }) => {
    const at = canvas.getBoundingClientRect(), top = pane.view.node.getBoundingClientRect().top;
    const over = pane.node.scrollWidth - pane.node.clientWidth;
    return { top: at.top - top, height: at.height, width: at.width, room: pane.view.node.clientWidth, over };
  }));
})"""

# Queries whose reads are lit at "attend", of a run that has no page.
NARRATED = """text => {
  const data = JSON.parse(text), run = decodePane(data.panes[0]);
  return Array.from({ length: run.steps - 1 }, (_, n) => narratedQuery(run, n + 1));
}"""


@pytest.fixture(scope="module")
def small(browser, tmp_path_factory):
    chosen = load_preset("figure2")
    panes = [Pane(chosen.traces[name], name, chosen.traces["greedy"]) for name in ("vanilla", "ems-sd")]
    with opened(browser, tmp_path_factory, player_data(panes, chosen.titles)) as page:
        yield page


@pytest.fixture(scope="module")
def batch(browser, tmp_path_factory):
    """16 rows of up to 512 slots, 12 steps."""
    draw = Random(5)
    prompts = [[draw.randrange(8, 90) for _ in range(draw.randint(8, 420))] for _ in range(16)]
    panes = [Pane(invented_trace(name, prompts, 90, 7, 11, max_steps=12), name) for name in ("vanilla", "ems-sd")]
    with opened(browser, tmp_path_factory, player_data(panes, [f"Prompt number {row}" for row in range(16)])) as page:
        yield page


class opened:
    """A stand-alone page with a player; at the end it must have reported no error."""

    def __init__(self, browser, folders, data):
        path = folders.mktemp("views") / "player.html"
        path.write_text(standalone_html(data, "Views"), encoding="utf-8")
        self.page = browser.new_page(viewport={"width": 1440, "height": 1100}, reduced_motion="reduce")
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("[data-ready='1']")
        self.page.evaluate("window.player = document.querySelector('.player').player")

    def __enter__(self):
        return self.page

    def __exit__(self, *_):
        self.page.close()
        assert not self.errors


def places(page) -> list[list]:
    """All places of a run of few steps, else some of them."""
    count = page.evaluate("player.count")
    steps = range(1, count) if count <= 4 else (1, 2, count // 2, count - 1)
    return [[0, "commit"], *([step, sub] for step in steps for sub in page.evaluate("SUBSTEPS"))]


@pytest.mark.parametrize("name", ["small", "batch"])
def test_a_state_looks_the_same_however_it_was_reached(name, request):
    page = request.getfixturevalue(name)
    there = places(page)
    forward = dict(zip(map(tuple, there), page.evaluate(PICTURES, there), strict=True))
    mixed = there[:]
    Random(1).shuffle(mixed)
    assert len(set(forward.values())) > len(there) // 2, "the states must differ for this to mean anything"
    for place, picture in zip(mixed, page.evaluate(PICTURES, mixed), strict=True):
        assert picture == forward[tuple(place)], place


@pytest.mark.parametrize("name", ["small", "batch"])
def test_motion_leaves_nothing_behind(name, request):
    page = request.getfixturevalue(name)
    page.emulate_media(reduced_motion="no-preference")
    try:
        blank = "() => player.panes.map((pane) => pane.overlay.toDataURL())"
        page.evaluate("player.go(1, 'verify')")
        page.wait_for_function("() => !player.links.running.size")
        before = page.evaluate(blank)
        assert page.evaluate("player.go(1, 'commit'), player.links.running.size") == 2
        page.wait_for_function("() => !player.links.running.size && !player.links.frame")
        assert page.evaluate(blank) == before
        assert page.evaluate("player.scrub(2, 'verify', false), player.links.running.size") == 0, (
            "scrubbing is without motion"
        )
    finally:
        page.emulate_media(reduced_motion="reduce")
    assert page.evaluate("player.go(2, 'commit'), player.links.running.size") == 0, "the reader asked for no motion"


def widen(page, width: int) -> None:
    """Another window, and the player painted in it."""
    page.set_viewport_size({"width": width, "height": 1100})
    page.wait_for_function("() => player.transport.markedWidth === player.transport.track.clientWidth")


@pytest.mark.parametrize("width", [1024, 1280, 1440, 2560])
@pytest.mark.parametrize("name", ["small", "batch"])
def test_sections_stay_where_they_are_and_inside_the_pane(name, width, request):
    page = request.getfixturevalue(name)
    widen(page, width)
    try:
        layouts = page.evaluate(LAYOUT, places(page))
    finally:
        widen(page, 1440)
    left, right = layouts[0]
    assert [(part["top"], part["height"]) for part in left] == [(part["top"], part["height"]) for part in right]
    assert all(layout == layouts[0] for layout in layouts)
    assert all(part["width"] <= part["room"] and part["over"] <= 0 for part in left + right)


@pytest.mark.parametrize("name", ["small", "batch"])
def test_every_drawn_item_is_hit_where_it_is_drawn(name, request):
    page = request.getfixturevalue(name)
    for place in places(page)[1:]:
        found = page.evaluate(HITS, place)
        assert found["missed"] == [], place
        assert min(found["count"].values()) > 0, place


def test_dragging_the_map_moves_the_window_and_a_double_click_puts_it_back(batch):
    batch.evaluate("player.go(2, 'commit')")
    canvas = batch.locator("[data-testid=pane-left] [data-part=map]")
    at = canvas.bounding_box()
    x, y = at["x"] + 0.6 * at["width"], at["y"] + 60
    first = "player.panes[1].view.sections.find((section) => section.name === 'near').firsts[3]"
    before = batch.evaluate(first)
    batch.mouse.move(x, y)
    batch.mouse.down()
    batch.mouse.move(x - 120, y, steps=4)
    batch.mouse.up()
    moved = batch.evaluate(first)
    assert moved < before - 20, "both panes move"
    assert batch.evaluate("player.pin") is None, "the end of a drag pins nothing"
    assert "moved by" in batch.locator("[data-testid=pane-left] .part-near .part-note").inner_text()
    batch.mouse.dblclick(x, y)
    assert batch.evaluate(first) == before
    batch.evaluate("player.pin = null, player.paint()")


def told_of(text: str) -> tuple[int, int]:
    row, position = re.search(r"of row (\d+) \(position (\d+)\)", text).groups()
    return int(row), int(position)


def test_attend_lights_up_the_query_that_is_told_of(small):
    compared = 0
    for number in range(12):
        trace = random_trace(number, seed=4)
        data = player_data([Pane(trace, trace.method)], [f"row {row}" for row in range(len(trace.rows))])
        queries, told = small.evaluate(NARRATED, json.dumps(data)), narrations(trace)
        for step, query in zip(trace.steps[1:], queries, strict=True):
            said = plain_text(told[step.index][3])
            if query is None:
                assert "Query" not in said
                continue
            assert told_of(said) == (query["row"], query["position"]), (number, step.index)
            compared += 1
    assert compared > 40


def test_what_a_focus_does_not_touch_steps_back(small):
    """Of the pixels of two cells of one state, the one in focus keeps its colour, the other one fades."""
    small.evaluate("player.go(2, 'verify'), player.panes[0].view.paint(null)")
    faded = """() => {
      const pane = player.panes[0], cache = pane.view.sections.find((section) => section.name === "cache");
      const pen = cache.canvas.getContext("2d");
      const pixel = ({ x, y, w }) => Array.from(pen.getImageData(x + w - 6, y + 5, 1, 1).data).join();
      const at = (slot) => pixel(cache.find({ kind: "cell", row: 0, slot }));
      const plain = [at(0), at(1)];
      const source = { kind: "cell", row: 0, slot: 0 };
      pane.view.paint({ queries: new Set(), cells: new Map([["0.0", "visible"]]), source });
      const focused = [at(0), at(1)];
      pane.view.paint(null);
      return { plain, focused, again: [at(0), at(1)] };
    }"""
    found = small.evaluate(faded)
    assert found["plain"][0] == found["plain"][1]
    assert found["focused"][0] == found["plain"][0]
    assert found["focused"][1] != found["plain"][1]
    assert found["again"] == found["plain"]
