"""Make the pictures of the README: `OMP_WAIT_POLICY=PASSIVE python assets/figures/make_figures.py`, by hand.

live.png: the page after a real run on the embedded model, light, 1440 pixels wide, from the status card to the legend.
Needs Chromium. Times in the picture are those of the machine that makes it.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
STEP = 3
GAP = 5


def serve() -> tuple[subprocess.Popen[bytes], str]:
    """Start the app on a free port and wait until it answers."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    options = ["--server.headless", "true", "--server.port", str(port), "--server.address", "127.0.0.1"]
    process = subprocess.Popen([sys.executable, "-m", "streamlit", "run", "app.py", *options], cwd=ROOT)
    address = f"http://127.0.0.1:{port}"
    for _ in range(300):
        try:
            urllib.request.urlopen(f"{address}/_stcore/health", timeout=1)
            return process, address
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    process.terminate()
    raise SystemExit("The app did not start within 30 seconds.")


def run_and_step(page: Page) -> None:
    """Decode with what the page offers at first, then go a few steps into the run."""
    page.locator('[data-testid="player"][data-ready="1"]').wait_for(timeout=60_000)
    page.get_by_role("button", name="Run", exact=True).click()
    page.locator('[data-testid="status"][data-state="decoding"]').wait_for(timeout=300_000)
    page.locator('[data-testid="status"][data-state="finished"]').wait_for(timeout=300_000)
    player = page.locator('[data-testid="player"][data-ready="1"]')
    player.wait_for()
    for _ in range(STEP):
        page.get_by_role("button", name="Next step").click()
    page.mouse.move(0, 0)
    page.wait_for_timeout(1500)


def main() -> None:
    """Write live.png."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("Chromium is missing: `make browser` installs it where that is allowed.")
    process, address = serve()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page(viewport={"width": 1440, "height": 2200}, color_scheme="light")
            page.goto(address)
            run_and_step(page)
            top = page.locator(".st-key-status").bounding_box()
            end = page.locator(".legend").bounding_box()
            assert top is not None
            assert end is not None
            height = end["y"] + end["height"] - top["y"] + 2 * GAP
            clip = {"x": 0, "y": top["y"] - GAP, "width": 1440, "height": height}
            page.screenshot(path=HERE / "live.png", clip=clip)
            browser.close()
    finally:
        process.terminate()


if __name__ == "__main__":
    main()
