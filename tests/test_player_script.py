"""The player's pure functions in a browser: cells equal Python's, events, marks, the clock, and what cards say."""

from __future__ import annotations

import shutil

import pytest

from emssd.ui.player_assets import read_asset
from tests.player_samples import cell_samples

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

# The files that need no page.
PURE = ("player_cells.js", "player_clock.js", "player_describe.js", "player_focus.js", "player_panels.js")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: `make browser` installs it where that is allowed"),
]

COMPARE = """samples => {
  const wrong = [];
  let compared = 0;
  samples.forEach(({ data, cells }, number) => {
    const run = decodePane(data.panes[0]);
    const places = cells.flatMap((subs, step) => subs.map((rows, n) => [step, step ? SUBSTEPS[n] : "commit", rows]));
    for (const order of [places, places.slice().reverse()]) for (const [step, sub, rows] of order) {
      const grid = cellsAt(run, step, sub);
      rows.forEach((slots, row) => slots.forEach((expected, slot) => {
        const i = row * grid.slots + slot;
        const got = [grid.state[i], grid.word[i], grid.position[i], grid.step[i], grid.cause[i]];
        compared++;
        if (got.join() !== expected.join()) wrong.push({ number, step, sub, row, slot, got, expected });
      }));
      if (rows[0].length !== grid.slots || rows.length !== grid.rows) wrong.push({ number, step, sub });
    }
  });
  return { compared, wrong: wrong.slice(0, 5) };
}"""


@pytest.fixture(scope="module")
def page():
    """An empty page that holds the player's functions."""
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.add_script_tag(content="\n".join(read_asset(name) for name in PURE))
        yield page
        browser.close()
        assert not errors


def test_every_cell_is_what_python_says(page):
    samples = cell_samples(60, seed=11)
    found = page.evaluate(COMPARE, samples)
    assert found["wrong"] == []
    assert found["compared"] > 50_000
