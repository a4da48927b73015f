"""Make the pictures of the README: `make figures`, by hand.

Every page in light and dark, Run live after a real run on the embedded model, and the player going through the paper's
worked example as a short animation. Needs Chromium. Times in the pictures are those of the machine that makes them.
"""

from __future__ import annotations

import io
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SIZE = {"width": 1440, "height": 900}
SCALE = 1.5
SHADES = (256, 128, 64)
LEAST_DISTANCE = 60
MOST_BYTES = 200_000
MOVIE_SHADES = 256
MOVIE_WIDTH = 1100
MOVIE_MS = 620
MOVIE_END_MS = 1600
MOST_MOVIE_BYTES = 1_500_000
READY = '[data-testid="player"][data-ready="1"]'


@contextmanager
def serving() -> Iterator[str]:
    """The app on a free port; gives its address."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    options = ["--server.headless", "true", "--server.port", str(port), "--server.address", "127.0.0.1"]
    process = subprocess.Popen([sys.executable, "-m", "streamlit", "run", "app.py", *options], cwd=ROOT)
    try:
        _wait_for(f"http://127.0.0.1:{port}/_stcore/health")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def _wait_for(address: str) -> None:
    for _ in range(300):
        try:
            urllib.request.urlopen(address, timeout=1)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise SystemExit("The app did not start within 30 seconds.")


def settled(page: Page) -> None:
    """Wait until the player is painted in its final fonts; the pointer rests outside."""
    page.locator(READY).wait_for(timeout=60_000)
    rest(page)


def rest(page: Page) -> None:
    """Wait for fonts and for the end of every fade."""
    page.mouse.move(0, 0)
    page.evaluate("document.fonts.ready.then(() => 1)")
    page.wait_for_timeout(1200)


def palette_of(pictures: list[Image.Image], shades: int) -> np.ndarray:
    """[shades, 3] the colours that cover most, none close to another: flat areas keep their exact colour."""
    counts: Counter[tuple[int, ...]] = Counter()
    for picture in pictures:
        counts.update({colour: count for count, colour in picture.getcolors(1 << 24)})
    chosen = np.empty((0, 3), int)
    for colour, _ in counts.most_common():
        if not ((chosen - colour) ** 2).sum(1).min(initial=10**6) > LEAST_DISTANCE:
            continue
        chosen = np.vstack([chosen, colour])
        if len(chosen) == shades:
            break
    return chosen


def in_palette(picture: Image.Image, palette: np.ndarray) -> Image.Image:
    """The picture with every pixel in its nearest colour of the palette."""
    pixels = np.asarray(picture).astype(np.uint32)
    codes, places = np.unique(pixels[..., 0] << 16 | pixels[..., 1] << 8 | pixels[..., 2], return_inverse=True)
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1).astype(int)
    nearest = np.array([((palette - colour) ** 2).sum(1).argmin() for colour in colours], np.uint8)
    few = Image.fromarray(nearest[places].reshape(pixels.shape[:2]))
    few.putpalette(palette.astype(np.uint8).tobytes())
    return few


def save(page: Page, name: str, full: bool = False) -> None:
    """Write a picture of the window, or of the whole page, with few colours."""
    if full:
        tall = page.locator('[data-testid="stMain"]').evaluate("main => main.scrollHeight + main.offsetTop")
        page.set_viewport_size({"width": SIZE["width"], "height": min(tall, 2400)})
        rest(page)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    path = HERE / f"{name}.png"
    for shades in SHADES:
        in_palette(picture, palette_of([picture], shades)).save(path, optimize=True)
        if path.stat().st_size <= MOST_BYTES:
            break
    print(f"{path.name}: {path.stat().st_size // 1000} kB, {shades} colours")
    page.set_viewport_size(SIZE)


def explore(page: Page, address: str, scheme: str) -> None:
    """The worked example with a pinned hole, and a batch of eight."""
    page.goto(f"{address}/?preset=figure2&step=2&sub=verify&pin=1.6&v=1")
    settled(page)
    save(page, f"explore-{scheme}")
    page.goto(f"{address}/?preset=copy-rich&step=4&sub=commit&v=1")
    settled(page)
    save(page, f"explore-batch-{scheme}", full=True)


def compare(page: Page, address: str, scheme: str) -> None:
    """The charts of the batch of eight."""
    page.goto(f"{address}/?preset=copy-rich")
    settled(page)
    page.get_by_role("link", name="Compare").click()
    page.locator(".js-plotly-plot").nth(5).wait_for()
    rest(page)
    save(page, f"compare-{scheme}")


def numbers(page: Page, address: str, scheme: str) -> None:
    """The model over the paper's points, both halves of EMS-SD among them."""
    page.goto(f"{address}/numbers?labels=swapped")
    page.locator(".js-plotly-plot").nth(3).wait_for(timeout=60_000)
    rest(page)
    save(page, f"numbers-{scheme}")


def lessons(page: Page, address: str, scheme: str) -> None:
    """A question that is open, beside the player that does not tell yet."""
    page.goto(f"{address}/lessons?lesson=6&section=predict")
    settled(page)
    page.locator(".st-key-lesson_question label").filter(has_text="4").click()
    page.locator(".st-key-lesson_question label:has(input:checked)").wait_for()
    page.evaluate("document.activeElement.blur()")
    rest(page)
    save(page, f"lessons-{scheme}")


def run_live(page: Page, address: str) -> None:
    """What the page offers at first, decoded on this machine; the same run in both schemes."""
    page.goto(f"{address}/run-live")
    page.get_by_role("button", name="Run", exact=True).click()
    page.locator('[data-testid="status"][data-state="finished"]').wait_for(timeout=300_000)
    settled(page)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.locator('[data-testid="stMain"]').evaluate("main => main.scrollTo(0, 0)")
        rest(page)
        save(page, f"run-live-{scheme}")


def movie(page: Page, address: str) -> None:
    """The worked example, sub-step by sub-step."""
    page.goto(f"{address}/?preset=figure2&step=0&v=1")
    settled(page)
    top, board = page.locator(".transport").bounding_box(), page.locator(".panes").bounding_box()
    assert top is not None
    assert board is not None
    clip = {"x": board["x"] - 8, "y": top["y"] - 8, "width": board["width"] + 16}
    clip["height"] = board["y"] + board["height"] - top["y"] + 16
    frames = []
    for place in range(13):
        if place:
            page.get_by_test_id("player").dispatch_event("keydown", {"key": "ArrowRight", "shiftKey": True})
        page.wait_for_timeout(100)
        frame = Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB")
        height = round(frame.height * MOVIE_WIDTH / frame.width)
        frames.append(frame.resize((MOVIE_WIDTH, height), Image.Resampling.LANCZOS))
    palette = palette_of(frames, MOVIE_SHADES)
    few = [in_palette(frame, palette) for frame in frames]
    path = HERE / "player.gif"
    times = [MOVIE_MS] * (len(few) - 1) + [MOVIE_END_MS]
    few[0].save(path, save_all=True, append_images=few[1:], duration=times, loop=0, optimize=True)
    print(f"{path.name}: {path.stat().st_size // 1000} kB, {sum(times) / 1000:.1f} s")
    if path.stat().st_size > MOST_MOVIE_BYTES:
        raise SystemExit(f"{path.name} is larger than {MOST_MOVIE_BYTES // 1000} kB.")


def new_page(browser: Browser, scheme: str) -> Page:
    """A visitor without motion."""
    return browser.new_page(viewport=SIZE, device_scale_factor=SCALE, color_scheme=scheme, reduced_motion="reduce")


def main() -> None:
    """Write every picture."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("Chromium is missing: `make browser` installs it where that is allowed.")
    with serving() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for scheme in ("light", "dark"):
            page = new_page(browser, scheme)
            explore(page, address, scheme)
            compare(page, address, scheme)
            numbers(page, address, scheme)
            lessons(page, address, scheme)
        movie(new_page(browser, "light"), address)
        run_live(new_page(browser, "light"), address)
        browser.close()


if __name__ == "__main__":
    main()
