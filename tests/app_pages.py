"""What the tests of the pages share: opening the app, going from page to page, reading what is shown."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

ROOT = Path(__file__).resolve().parent.parent
EXPLORE, LIVE, COMPARE, LESSONS = "explore", "run-live", "compare", "lessons"


def open_app(page_name: str = EXPLORE, **query: str) -> AppTest:
    """A new visit that begins on a page."""
    page = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    for name, value in query.items():
        page.query_params[name] = value
    page._page_hash = calc_hash(page_name)
    page.run()
    assert not page.exception
    return page


def go(page: AppTest, page_name: str) -> AppTest:
    """The same visit on another page."""
    page._page_hash = calc_hash(page_name)
    page.run()
    assert not page.exception
    return page


def texts(page: AppTest) -> str:
    """All markup of the page."""
    return "\n".join(each.proto.body for each in page.get("html"))


def warnings(page: AppTest) -> list[str]:
    """All warnings of the page, as they are read: without the backslashes of Markdown."""
    return [re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", each.value) for each in page.warning]


def player(page: AppTest) -> dict[str, Any]:
    """The data of the one player."""
    (component,) = page.get("bidi_component")
    return json.loads(component.proto.json)


def methods(page: AppTest) -> list[str]:
    """The methods in the player's panes."""
    return [pane["method"] for pane in player(page)["panes"]]


def run_count(page: AppTest) -> int:
    """Script runs of this visit."""
    body = next(each.proto.body for each in page.get("html") if 'data-testid="run-count"' in each.proto.body)
    return int(body.split(">")[1].split("<")[0])


def join_live_runs() -> None:
    """Wait for the threads of live runs: one that goes on would spoil the next test."""
    for thread in threading.enumerate():
        if thread.name == "emssd-live-run":
            thread.join(15)
            assert not thread.is_alive()
