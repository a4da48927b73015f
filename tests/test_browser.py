"""The page in a real browser: a run to its end, both panes on one step, cancelling, and no error anywhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OWN = "the cat sat on the mat and the cat sat\n\none two three one two three one two"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: `make browser` installs it where that is allowed"),
]


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The app on a free port; at the end its log must hold no traceback and no warning."""
    port, log = free_port(), tmp_path_factory.mktemp("server") / "log.txt"
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.headless", "true"]
    command += ["--server.port", str(port), "--server.address", "127.0.0.1"]
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, env=os.environ)
        try:
            wait_for_server(port, process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)
    said = log.read_text()
    assert not re.search("Traceback|WARNING|Warning|deprecat|Exception", said), said[-3000:]


def wait_for_server(port: int, process: subprocess.Popen) -> None:
    for _ in range(300):
        assert process.poll() is None, "the server ended at once"
        try:
            if urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=1).status == 200:
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the server did not come up in 30 seconds")


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser, server):
    """A new visitor, with the network cut off but for the server; no error may reach the console."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.set_default_timeout(30_000)
    errors, outside = [], []
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.sent_frames = []
    page.on("websocket", lambda place: place.on("framesent", lambda frame: page.sent_frames.append(len(frame))))
    page.on("request", lambda request: outside.append(request.url) if not inside(request.url, server) else None)
    page.goto(server)
    page.locator('[data-testid="player"][data-ready="1"]').wait_for()
    yield page
    context.close()
    assert not errors
    assert not outside


def inside(url: str, server: str) -> bool:
    return url.startswith((server, server.replace("http", "ws"), "data:", "blob:"))


def player(page):
    return page.locator('[data-testid="player"]')


def steps_shown(page) -> tuple[str | None, ...]:
    panes = ("pane-left", "pane-right")
    return player(page).get_attribute("data-step"), *(
        page.get_by_test_id(pane).get_attribute("data-step") for pane in panes
    )


def run_count(page) -> int:
    return int(page.get_by_test_id("run-count").inner_text())


def choose(page, label: str, option: str) -> None:
    page.get_by_role("combobox", name=label).click()
    page.get_by_role("option", name=re.compile(option)).click()


def set_up(page, own: str = OWN, tokens: int = 12) -> None:
    choose(page, "Model", "random-llama")
    page.get_by_label("Random weights").or_(page.get_by_text("Random weights")).first.wait_for()
    page.get_by_role("button", name="Clear all").click()
    box = page.get_by_role("textbox", name="Your own prompts")
    box.fill(own)
    box.press("Control+Enter")
    number = page.get_by_role("spinbutton", name="New tokens per row")
    number.fill(str(tokens))
    number.press("Enter")
    page.get_by_text(f"{own.count(chr(10) * 2) + 1} prompt").first.wait_for()
    page.get_by_text(f"{tokens} new tokens").first.wait_for()


def wait_for_state(page, state: str) -> None:
    page.locator(f'[data-testid="status"][data-state="{state}"]').wait_for(timeout=60_000)


def test_first_open_steps_without_asking_the_server(page):
    assert page.get_by_text("Recorded example").is_visible()
    assert steps_shown(page) == ("1", "1", "1")
    page.wait_for_timeout(500)
    runs = run_count(page)
    last = str(int(player(page).get_attribute("data-steps")) - 1)
    page.get_by_role("button", name="Next step").click()
    assert steps_shown(page) == ("2", "2", "2")
    page.get_by_role("button", name="Last step").click()
    assert steps_shown(page) == (last, last, last)
    page.get_by_role("button", name="Back one step").click()
    player(page).press("Home")
    assert steps_shown(page) == ("0", "0", "0")
    player(page).press("ArrowRight")
    page.get_by_role("slider", name="Step").fill("7")
    assert steps_shown(page) == ("7", "7", "7")
    page.wait_for_url("**/?step=7")
    assert run_count(page) == runs


def test_a_step_looks_the_same_however_it_was_reached(page):
    def picture() -> str:
        canvases = page.locator(".pane canvas").all()
        return ",".join(canvas.evaluate("canvas => canvas.toDataURL()") for canvas in canvases)

    player(page).press("Home")
    for _ in range(9):
        player(page).press("ArrowRight")
    forward = picture()
    player(page).press("End")
    page.get_by_role("slider", name="Step").fill("9")
    assert steps_shown(page) == ("9", "9", "9")
    assert picture() == forward
    assert forward.count("data:image/png") == 8


def test_stepping_is_quick(page):
    script = """slider => {
      const took = [];
      for (let n = 0; n < 100; n++) {
        const from = performance.now();
        slider.value = (n * 17) % (+slider.max + 1);
        slider.dispatchEvent(new Event("input"));
        took.push(performance.now() - from);
      }
      return took.sort((a, b) => a - b)[95];
    }"""
    p95 = page.get_by_role("slider", name="Step").evaluate(script)
    assert p95 < 150  # 50 ms is the aim on an idle machine; tests share theirs


def test_a_whole_run(page):
    set_up(page)
    page.get_by_role("button", name="Run", exact=True).click()
    wait_for_state(page, "finished")
    badges = page.get_by_test_id("equality")
    assert badges.count() == 2
    assert all("Output identical to greedy, 24 of 24 tokens" in badge for badge in badges.all_inner_texts())
    assert "decode only, prefill excluded, this CPU" in page.locator(".card").first.inner_text()
    assert re.search(r"\d\.\d\d×", page.get_by_test_id("speed-ems-sd").inner_text())
    player(page).wait_for()
    page.get_by_role("button", name="Next step").click()
    assert len(set(steps_shown(page))) == 1
    assert [page.get_by_test_id(pane).get_attribute("data-method") for pane in ("pane-left", "pane-right")] == [
        "vanilla",
        "ems-sd",
    ]
    for counter in ("input-rows", "kv-slots", "holes"):
        assert page.locator(f'[data-counter="{counter}"]').count() == 2
    page.wait_for_timeout(500)
    frames, runs = len(page.sent_frames), run_count(page)
    assert frames > 0
    page.wait_for_timeout(2000)
    assert (len(page.sent_frames), run_count(page)) == (frames, runs)  # nothing polls any more
    with page.expect_download() as download:
        page.locator(".st-key-save_ems-sd button").click()
    trace = json.loads(download.value.path().read_text())
    assert (trace["method"], len(trace["rows"])) == ("ems-sd", 2)


def test_cancel_stops_within_a_moment_and_keeps_the_partial_run(page):
    set_up(page, own="\n\n".join(["the cat sat on the mat and the cat sat"] * 16), tokens=200)
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("button", name="Cancel").click()
    page.locator('[data-testid="status"]', has_text="Stopped").wait_for()
    wait_for_state(page, "cancelled")
    assert "What was decoded is kept." in page.get_by_test_id("status").inner_text()
    player(page).wait_for()
    assert page.get_by_role("button", name="Run", exact=True).is_enabled()


def test_the_same_method_twice_is_refused_beside_the_choice(page):
    choose(page, "Right method", "^Vanilla$")
    page.get_by_text("Both sides are Vanilla: choose two different methods.").wait_for()
    assert page.get_by_role("button", name="Run", exact=True).is_disabled()


def test_a_damaged_trace_is_one_sentence_and_the_page_goes_on(page):
    page.get_by_role("button", name="Open a trace").click()
    page.locator('input[type="file"]').set_input_files(
        {"name": "t.json", "mimeType": "application/json", "buffer": b"{}"}
    )
    page.get_by_text("t.json was left out: ").wait_for()
    good = [str(ROOT / "assets" / "traces" / "copy-rich" / f"{name}.json") for name in ("vanilla", "ems-sd")]
    page.locator('input[type="file"]').set_input_files(good)
    page.get_by_text("Opened trace").wait_for()


def test_no_page_scrolls_sideways(page):
    for width in (1024, 1280, 1440, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(600)
        for part in page.locator('[data-testid="stMain"], .pane').all():
            assert part.evaluate("node => node.scrollWidth - node.clientWidth") <= 0, width
