"""What the browser tests share: a server, visitors whose every error counts, and handles of the player."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
READY = '[data-testid="player"][data-ready="1"]'
IDLE = '[data-testid="stApp"][data-test-script-state="notRunning"]'
SECONDS = 30
"""How long anything is waited for."""
SUBSTEPS = ("draft", "pack", "write", "attend", "verify", "commit")
NOT_CLEAN = "Traceback|WARNING|Warning|ERROR|deprecat|Exception"

in_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: `make browser` installs it where that is allowed"),
]


class Server:
    """The app, or another script of pages, on a free port of its own."""

    def __init__(self, log: Path, script: str = "app.py", **environment: str) -> None:
        with socket.socket() as place:
            place.bind(("127.0.0.1", 0))
            self.port = place.getsockname()[1]
        self.log = log
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "streamlit", "run", script, "--server.headless", "true"]
        command += ["--server.port", str(self.port), "--server.address", "127.0.0.1"]
        with log.open("w") as file:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **environment}
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> None:
        for _ in range(600):
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            try:
                if urllib.request.urlopen(f"{self.url}/_stcore/health", timeout=1).status == 200:
                    return
            except OSError:
                time.sleep(0.1)
        raise AssertionError("the server did not come up in 60 seconds")

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def check_log(self) -> None:
        """Nothing that went wrong, and nothing that is going out of use."""
        said = self.log.read_text()
        assert not re.search(NOT_CLEAN, said), said[-3000:]


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[Server]:
    """The app; at the end its log must be clean."""
    server = Server(tmp_path_factory.mktemp("server") / "log.txt")
    yield server
    server.stop()
    server.check_log()


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser with a fresh profile."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=1000 * SECONDS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for a file of tests."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium here: `make browser` installs it where that is allowed")
    with chromium() as browser:
        yield browser


EMPTY = "about:blank"
WINDOW = {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light", "reduced_motion": "reduce"}
CONTEXTS: WeakKeyDictionary[Any, dict[bool, tuple[Any, list[Any]]]] = WeakKeyDictionary()


@contextmanager
def empty_page(browser: Any, offline: bool = False, **window: Any) -> Iterator[Any]:
    """A page with nothing in it, in a window with these settings.

    A window costs more than what is opened in it, and a fresh context fetches and compiles all scripts again: pages
    are emptied and used again, and a context stays. A page whose test failed is not used again.
    """
    contexts = CONTEXTS.setdefault(browser, {})
    if offline not in contexts:
        contexts[offline] = (browser.new_context(offline=offline), [])
        contexts[offline][0].set_default_timeout(1000 * SECONDS)
    context, idle = contexts[offline]
    page = idle.pop() if idle else context.new_page()
    try:
        set_up_window(page, **WINDOW | window)
        yield page
    except BaseException:
        page.close()
        raise
    if not page.is_closed():
        page.goto(EMPTY)
        page.mouse.move(0, 0)
        idle.append(page)


def set_up_window(page: Any, viewport: dict[str, int], **media: str) -> None:
    page.set_viewport_size(viewport)
    page.emulate_media(**media)


class Witness:
    """What a page and its pop-ups say on the console, and what they ask for."""

    def __init__(self, page: Any) -> None:
        self.words: list[str] = []  # all that was said
        self.complaints: list[str] = []  # errors and warnings
        self.asked: list[str] = []
        self.page, self.popups = page, []
        self.heard = {"console": self.said, "pageerror": self.failed, "request": self.requested, "popup": self.opened}
        self.listen(page)

    def said(self, message: Any) -> None:
        self.words.append(message.text)
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def failed(self, error: Any) -> None:
        self.words.append(str(error))
        self.complaints.append(str(error))

    def requested(self, request: Any) -> None:
        self.asked.append(request.url)

    def opened(self, page: Any) -> None:
        self.popups.append(page)
        self.listen(page)

    def listen(self, page: Any) -> None:
        for event, listener in self.heard.items():
            page.on(event, listener)

    def leave(self) -> None:
        """Hear no more of the page: it goes to the next test."""
        for event, listener in self.heard.items():
            self.page.remove_listener(event, listener)
        for page in self.popups:
            page.close()


@contextmanager
def watched_page(browser: Any, **settings: Any) -> Iterator[tuple[Any, Witness]]:
    """An empty page and its witness."""
    with empty_page(browser, **settings) as page:
        witness = Witness(page)
        try:
            yield page, witness
        finally:
            witness.leave()


@contextmanager
def visitor(browser: Any, url: str, **settings: Any) -> Iterator[Any]:
    """A new visitor at a page; at the end nothing may have reached the console, and nothing another host."""
    own = "/".join(url.split("/")[:3])
    inside = (own, own.replace("http", "ws", 1), "data:", "blob:")
    with watched_page(browser, **settings) as (page, witness):
        page.goto(url)
        yield page
    assert not witness.complaints, witness.complaints
    outside = [asked for asked in witness.asked if not asked.startswith(inside)]
    assert not outside, outside


@contextmanager
def exploring(browser: Any, server: Server, query: str = "", **settings: Any) -> Iterator[Any]:
    """A new visitor on Explore, with the player painted in its final fonts and focused."""
    with visitor(browser, f"{server.url}/{query}", **settings) as page:
        wait_for_player(page)
        focus(page)
        yield page


@contextmanager
def visiting(browser: Any, server: Server, name: str, **settings: Any) -> Iterator[Any]:
    """A new visitor who went from the first page to another one by its link."""
    with visitor(browser, server.url, **settings) as page:
        page.get_by_role("link", name=name).click()
        yield page


# For some frames no font has been loading and everything has kept its size: what is painted then stays.
SETTLED = """(frames) => new Promise((done) => {
  let quiet = 0, before = "";
  const parts = '[data-testid="stMain"], [data-testid="stElementContainer"]';
  const size = (each) => [each.clientWidth, each.scrollWidth, each.scrollHeight];
  const look = () => {
    const now = [...document.querySelectorAll(parts)].map(size).join();
    quiet = document.fonts.status === "loaded" && now === before ? quiet + 1 : 0;
    before = now;
    if (quiet > frames) done(true);
    else requestAnimationFrame(look);
  };
  look();
})"""


def wait_for_layout(page: Any, frames: int = 3) -> None:
    """Until no script runs and the page has laid itself out."""
    page.locator(IDLE).wait_for()
    page.wait_for_function(SETTLED, arg=frames)


def wait_for_player(page: Any) -> None:
    """Until the player is painted in its final fonts and place."""
    page.locator(READY).wait_for()
    wait_for_layout(page)


# What a click or a key changes in the player alone is there at once. All that comes later, through the server or the
# next frame, is waited for: by `expect` for what an element shows, by `wait_until` for anything else.


def expect(locator: Any) -> Any:
    """Playwright's assertions, which ask again until they hold."""
    from playwright.sync_api import expect as assertion

    return assertion(locator)


def wait_until(condition: Callable[[], Any], seconds: float = SECONDS, what: object = "") -> None:
    """Ask again until a condition holds; `what` tells what did not come true, a callable is asked at the end."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, what() if callable(what) else what
        time.sleep(0.05)


def pass_time(page: Any, milliseconds: int) -> None:
    """Until a timer of the page has run out: of what the page had set for an earlier time, nothing is left."""
    page.evaluate("wait => new Promise((done) => setTimeout(done, wait))", milliseconds)


def player(page: Any) -> Any:
    return page.get_by_test_id("player")


def focus(page: Any) -> None:
    """Give the keyboard to the player, without a scroll."""
    player(page).evaluate("root => root.focus({ preventScroll: true })")


def state(page: Any) -> tuple[str, str]:
    """Step and sub-step."""
    return tuple(player(page).evaluate("root => [root.dataset.step, root.dataset.substep]"))


def panes_at(page: Any) -> list[str]:
    """The step of every pane."""
    return player(page).evaluate("root => [...root.querySelectorAll('.pane')].map(pane => pane.dataset.step)")


WATCH = """root => {
  const place = () => [root.dataset.step, root.dataset.substep], seen = (root.seen = []);
  let before = place().join();
  const note = () => {
    if (place().join() !== before) seen.push([performance.now(), ...place()]);
    before = place().join();
  };
  new MutationObserver(note).observe(root, { attributes: true, attributeFilter: ["data-step", "data-substep"] });
}"""


def watch_steps(page: Any) -> None:
    """From now on, note every change of place."""
    player(page).evaluate(WATCH)


def steps_seen(page: Any) -> list[tuple[float, str, str]]:
    """(ms, step, sub-step) of every change of place since the latest `watch_steps`."""
    return [tuple(each) for each in player(page).evaluate("root => root.seen")]


def run_count(page: Any) -> int:
    return int(page.get_by_test_id("run-count").inner_text())


COUNT_MESSAGES = """() => {
  const { send } = WebSocket.prototype;
  window.messages = 0;
  WebSocket.prototype.send = function (...data) { window.messages++; return send.apply(this, data); };
}"""


def count_messages(page: Any) -> None:
    """From now on, count what the page sends to the server."""
    page.evaluate(COUNT_MESSAGES)


def message_count(page: Any) -> int:
    return page.evaluate("window.messages")


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def counters(page: Any, pane: str) -> dict[str, float]:
    """The value of every counter of "left" or "right"."""
    boxes = page.get_by_test_id(f"pane-{pane}").locator("[data-counter]")
    return dict(boxes.evaluate_all("boxes => boxes.map(box => [box.dataset.counter, +box.dataset.value])"))


# A number for what a canvas shows, 0 for nothing.
HASH = """(canvas) => {
  const scratch = window.scratch ||= document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const { width, height } = canvas;
  if (!width || !height) return 0;
  const { canvas: paper } = scratch;
  if (paper.width < width) paper.width = width;
  if (paper.height < height) paper.height = height;
  scratch.clearRect(0, 0, width, height);
  scratch.drawImage(canvas, 0, 0);
  const numbers = new Uint32Array(scratch.getImageData(0, 0, width, height).data.buffer);
  let value = 2166136261;
  for (const number of numbers) value = Math.imul(value ^ number, 16777619);
  return value >>> 0;
}"""

PICTURE = (
    """root => {
  const hash = """
    + HASH
    + """;
  return [...root.querySelectorAll(".pane")].map((pane) => (
    { canvases: [...pane.querySelectorAll("canvas")].map(hash), words: pane.innerText }
  ));
}"""
)


def picture(page: Any) -> list[dict[str, Any]]:
    """For each pane, hashes of its canvases in order (0: nothing drawn), and its words."""
    return player(page).evaluate(PICTURE)


def place_of(page: Any, pane: int, **item: Any) -> tuple[float, float]:
    """Where the middle of a cell, a fed token or a committed token is in the window, scrolled into sight."""
    script = """(root, [pane, item]) => {
      const { view, node } = root.player.panes[pane], found = view.box(item);
      if (!found) return null;
      node.scrollIntoView({ block: "end" });
      const at = node.getBoundingClientRect();
      return [at.left + node.clientLeft + found.x + found.w / 2, at.top + node.clientTop + found.y + found.h / 2];
    }"""
    found = player(page).evaluate(script, [pane, item])
    assert found is not None, f"{item} is not on screen"
    return tuple(found)


def cell(row: int, slot: int) -> dict[str, Any]:
    return {"kind": "cell", "row": row, "slot": slot}


def query(row: int, index: int) -> dict[str, Any]:
    return {"kind": "query", "row": row, "index": index}


# Until the player points at an item and has painted that; false when that does not come true.
POINTED = """(root, [wanted, wait]) => new Promise((done) => {
  const until = performance.now() + wait;
  const look = () => {
    const { hover } = root.player;
    if (hover && Object.entries(wanted).every(([name, value]) => hover[name] === value)) {
      requestAnimationFrame(() => requestAnimationFrame(() => done(true)));
    } else if (performance.now() > until) done(false);
    else requestAnimationFrame(look);
  };
  look();
})"""


def hover(page: Any, pane: int, item: dict[str, Any]) -> None:
    page.mouse.move(*place_of(page, pane, **item))
    assert player(page).evaluate(POINTED, [{"pane": pane, **item}, 1000 * SECONDS]), f"{item} is not pointed at"


def open_table(page: Any) -> None:
    """The step as a table; it is filled once it is open."""
    page.get_by_text("This step as a table").click()
    page.locator(".step-table tbody tr").first.wait_for()


def choose(page: Any, label: str, option: str) -> None:
    """Choose in one of the page's lists by a pattern, once nothing moves that list any more."""
    wait_for_layout(page)
    page.get_by_test_id("stMain").evaluate("main => main.scrollTo(0, 0)")  # a scroll closes a list
    page.get_by_role("combobox", name=label).click()
    page.get_by_role("option", name=re.compile(option)).click()


def upload(page: Any, **files: str) -> None:
    """Open traces, in this order, by their names, and close the panel."""
    runs = run_count(page)
    page.get_by_test_id("stPopoverButton").filter(has_text="Open").click()
    page.locator('input[type="file"]').set_input_files(
        [
            {"name": f"{name}.json", "mimeType": "application/json", "buffer": text.encode("utf-8", "surrogatepass")}
            for name, text in files.items()
        ]
    )
    page.wait_for_function("runs => +document.querySelector('[data-testid=run-count]')?.textContent > runs", arg=runs)
    page.get_by_test_id("stFileChip").nth(len(files) - 1).wait_for()
    page.keyboard.press("Escape")
    page.get_by_test_id("stPopoverBody").wait_for(state="hidden")
