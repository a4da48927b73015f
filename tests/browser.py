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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
READY = '[data-testid="player"][data-ready="1"]'
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
    from playwright.sync_api import sync_playwright

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


CONTEXTS: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def context_of(browser: Any, settings: dict[str, Any]) -> Any:
    """The browser's context with these settings: visitors after one another need not fetch the same scripts again."""
    contexts, key = CONTEXTS.setdefault(browser, {}), repr(sorted(settings.items()))
    if key not in contexts:
        contexts[key] = browser.new_context(**settings)
        contexts[key].set_default_timeout(30_000)
    return contexts[key]


@contextmanager
def visitor(browser: Any, url: str, **settings: Any) -> Iterator[Any]:
    """A new visitor at a page; at the end nothing may have reached the console, and nothing another host."""
    settings = {"viewport": {"width": 1440, "height": 900}, "reduced_motion": "reduce"} | settings
    context = context_of(browser, settings)
    errors: list[str] = []
    outside: list[str] = []
    opened: list[Any] = []
    own = "/".join(url.split("/")[:3])
    inside = (own, own.replace("http", "ws", 1), "data:", "blob:")

    def watch(page: Any) -> None:
        opened.append(page)
        page.on("console", lambda said: errors.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda asked: outside.append(asked.url) if not asked.url.startswith(inside) else None)

    context.on("page", watch)
    page = context.new_page()
    try:
        page.goto(url)
        yield page
    finally:
        context.remove_listener("page", watch)
        for each in opened:
            each.close()
    assert not errors, errors
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


# No font has been loading for three frames: what is painted then stays.
SETTLED = """() => new Promise((done) => {
  let quiet = 0;
  const look = () => {
    quiet = document.fonts.status === "loaded" ? quiet + 1 : 0;
    if (quiet > 3) done(true);
    else requestAnimationFrame(look);
  };
  look();
})"""


def wait_for_player(page: Any) -> None:
    page.locator(READY).wait_for()
    page.wait_for_function(SETTLED)


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


def run_count(page: Any) -> int:
    return int(page.get_by_test_id("run-count").inner_text())


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def counters(page: Any, pane: str) -> dict[str, float]:
    """The value of every counter of "left" or "right"."""
    boxes = page.get_by_test_id(f"pane-{pane}").locator("[data-counter]")
    return dict(boxes.evaluate_all("boxes => boxes.map(box => [box.dataset.counter, +box.dataset.value])"))


PICTURE = """root => {
  const scratch = window.scratch ||= document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const hash = (canvas) => {
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
  };
  return [...root.querySelectorAll(".pane")].map((pane) => (
    { canvases: [...pane.querySelectorAll("canvas")].map(hash), words: pane.innerText }
  ));
}"""


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


def hover(page: Any, pane: int, item: dict[str, Any]) -> None:
    page.mouse.move(*place_of(page, pane, **item))
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def choose(page: Any, label: str, option: str) -> None:
    """Choose in one of the page's lists by a pattern."""
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
