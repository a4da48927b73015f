"""The stand-alone page: complete in one file, nothing in it but its own script runs, and no text becomes markup."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from emssd import __version__
from emssd.errors import TraceError
from emssd.trace import GenerationTrace
from emssd.ui import html_export
from emssd.ui.html_export import notebook_html, row_titles, side_by_side, standalone_from_traces, standalone_html
from emssd.ui.player_assets import UI_ASSETS, script, styles
from emssd.ui.player_data import MAX_STEPS, Pane, measured, player_data
from emssd.ui.token_text import visible
from tests.browser import Witness, pass_time, watched_page
from tests.recorded import HOSTILE, RECORDED, hostile_trace, recorded, scripted_run

TAGS = ["html", "head", "meta", "meta", "meta", "title", "link", "style", "body", "header", "h1", "p", "div",
        "noscript", "script", "script"]  # fmt: skip


class Page(HTMLParser):
    """Tags with their attributes, and the text inside each kind of tag."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.comments: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)

    def handle_comment(self, data):
        self.comments.append(data)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.tags]

    def text(self, tag: str) -> str:
        return "".join(self.texts.get(tag, []))

    def policy(self) -> dict[str, list[str]]:
        content = next(attrs["content"] for _, attrs in self.tags if attrs.get("http-equiv"))
        return {name: sources for name, *sources in (part.split() for part in content.split(";"))}


def page_data(trace: GenerationTrace, titles: list[str] | None = None) -> dict:
    """As JSON has it: lists, no tuples."""
    data = player_data([Pane(trace, trace.method, None)], titles or list(row_titles(trace)))
    return json.loads(json.dumps(data))


def scripts_of(text: str) -> tuple[str, str]:
    """Data and code, as they stand in the file."""
    found = re.findall(r"<script[^>]*>(.*?)</script>", text, flags=re.DOTALL)
    assert len(found) == 2
    return found[0], found[1]


def test_one_file_with_everything_in_it():
    data = page_data(scripted_run("vanilla"))
    text = standalone_html(data, "The worked example")
    page = Page(text)
    assert text.startswith("<!doctype html>\n")
    assert page.names == TAGS
    assert page.comments == []
    encoded, code = scripts_of(text)
    assert json.loads(encoded) == data
    assert code.strip() == script("entry_page.js").strip()
    assert styles() in text
    assert page.text("title") == page.text("h1") == "The worked example"
    assert data["time"]["fixed"]
    where = "always OPT-6.7B, paper’s GPU"
    assert page.text("p") == f"Vanilla · random-llama · Modelled time: {where} · emssd {__version__}"
    root = next(attrs for tag, attrs in page.tags if tag == "div")
    assert root["data-testid"] == "player"


def test_nothing_is_fetched_and_only_the_script_itself_may_run():
    text = standalone_html(page_data(scripted_run("ems-sd")), "x")
    page = Page(text)
    _, code = scripts_of(text)
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    assert page.policy() == {
        "default-src": ["'none'"],
        "script-src": [f"'sha256-{digest}'"],
        "style-src": ["'unsafe-inline'"],
        "img-src": ["data:", "blob:"],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
    }
    for tag, attrs in page.tags:
        assert "src" not in attrs, tag
        assert attrs.get("href", "data:,") == "data:,"
        assert not [name for name in attrs if name.startswith("on")], tag
    assert set(re.findall(r"https?://[\w./-]*", text)) <= {"http://www.w3.org/2000/svg"}
    assert "@import" not in text
    assert "url(" not in styles()


def test_the_scripts_hold_nothing_that_ends_or_hides_a_script():
    for entry in ("entry_page.js", "entry_streamlit.js"):
        code = script(entry).lower()
        assert "</script" not in code
        assert "<!--" not in code
        assert "<script" not in code
    assert "</style" not in styles().lower()
    assert "innerhtml" not in script("entry_page.js").lower()


def test_every_variable_of_the_host_page_is_defined_for_both_schemes():
    used = {
        name
        for path in UI_ASSETS.iterdir()
        if path.suffix in (".css", ".js") and path.name != "page.css"
        for name in re.findall(r"--st-([\w-]+)", path.read_text(encoding="utf-8"))
    }
    assert used
    assert used <= set(html_export.HOST_VARIABLES)
    text = standalone_html(page_data(scripted_run("ems-sd")), "x")
    light, dark = text.split("@media (prefers-color-scheme: dark)")[:2]
    for name in used:
        assert f"--st-{name}: " in light
        assert f"--st-{name}: " in dark


@pytest.mark.parametrize("title", HOSTILE)
def test_hostile_texts_stay_text(title):
    trace = hostile_trace()
    trace.model["name"] = title
    data = page_data(trace, [title, title[::-1]])
    text = standalone_html(data, title)
    text.encode("utf-8")
    page = Page(text)
    assert page.names == TAGS
    assert page.comments == []
    assert page.text("h1") == page.text("title") == visible(title)
    assert visible(title) in page.text("p")
    encoded, code = scripts_of(text)
    assert json.loads(encoded) == data
    assert not set("<>&\u2028\u2029") & set(encoded)
    assert encoded.isascii()
    assert "window.hit" not in code
    assert text.count("<script") == text.count("</script") == 2


def test_hostile_json_is_escaped_even_where_nothing_has_made_it_visible():
    data = {**page_data(scripted_run("ems-sd")), "words": HOSTILE}
    encoded, _ = scripts_of(standalone_html(data, "x"))
    assert json.loads(encoded)["words"] == HOSTILE
    assert not set("<>&\u2028\u2029\u202e\n\x00") & set(encoded)


@pytest.mark.parametrize("path", RECORDED)
def test_every_recorded_trace_has_a_page(path):
    trace = recorded(path)
    text = standalone_from_traces({trace.method: trace}, [trace.method], row_titles(trace), path)
    assert Page(text).names == TAGS
    assert len(text) < 3_000_000


def test_panes_baseline_time_and_order():
    traces = {name: scripted_run(name) for name in ("greedy", "vanilla", "ems-sd")}
    time = measured("a CPU: 2 threads, float32")
    text = standalone_from_traces(traces, ["ems-sd", "vanilla"], ["a", "b"], "t", time=time)
    data = json.loads(scripts_of(text)[0])
    assert [pane["method"] for pane in data["panes"]] == ["ems-sd", "vanilla"]
    assert data["rows"] == ["a", "b"]
    assert data["time"]["kind"] == "measured"
    assert all(pane["speed"] for pane in data["panes"])
    assert "EMS-SD and Vanilla" in Page(text).text("p")
    assert "Measured time: a CPU: 2 threads, float32" in Page(text).text("p")


def changed(**fields: object) -> GenerationTrace:
    trace = GenerationTrace.from_json(scripted_run("ems-sd").to_json())
    for name, value in fields.items():
        setattr(trace, name, value)
    return trace


def test_what_cannot_be_played_is_refused_in_one_sentence():
    good, empty = scripted_run("ems-sd"), changed(steps=[])
    long = changed(steps=scripted_run("ems-sd").steps * MAX_STEPS)
    with pytest.raises(TraceError, match=r"no steps, so there is nothing to play\.$"):
        standalone_from_traces({"ems-sd": empty}, ["ems-sd"], ["a", "b"], "t")
    with pytest.raises(TraceError, match=f"too large to play.*{MAX_STEPS} steps"):
        standalone_from_traces({"ems-sd": long}, ["ems-sd"], ["a", "b"], "t")
    other = recorded(RECORDED[0])
    with pytest.raises(TraceError, match="cannot be shown side by side: one has other prompts"):
        standalone_from_traces({"ems-sd": good, "vanilla": other}, ["ems-sd", "vanilla"], ["a", "b"], "t")


# --- notebooks -----------------------------------------------------------------------------------------------------


def frame_of(text: str) -> Page:
    """The page inside the one frame that a notebook is given."""
    outside = Page(text)
    assert outside.names == ["iframe"]
    attributes = outside.tags[0][1]
    assert attributes["sandbox"] == "allow-scripts allow-downloads"
    assert "src" not in attributes
    return Page(attributes["srcdoc"])


def test_a_notebook_shows_the_player():
    trace = scripted_run("ems-sd")
    page = frame_of(trace._repr_html_())
    assert page.names == TAGS
    assert page.text("h1") == "EMS-SD"
    hostile = hostile_trace()
    inside = frame_of(hostile._repr_html_())
    assert inside.names == TAGS


def test_two_traces_side_by_side_take_greedy_as_the_baseline():
    pair = side_by_side(scripted_run("greedy"), scripted_run("ems-sd"))
    page = html.unescape(pair._repr_html_())
    data = json.loads(scripts_of(page)[0])
    assert [pane["isBaseline"] for pane in data["panes"]] == [True, False]
    assert data["panes"][1]["speed"]
    assert frame_of(pair._repr_html_()).text("h1") == "Greedy and EMS-SD"
    with pytest.raises(TraceError, match="cannot be shown side by side: one has other prompts"):
        side_by_side(scripted_run("greedy"), recorded(RECORDED[0]))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"steps": []}, "no steps"),
        ({"steps": [], "rows": []}, "no steps"),
        ({"steps": None}, "no steps"),
        ({"rows": None, "steps": None, "model": None}, "no steps"),
        ({"model": {}}, "could not be drawn"),
        ({"rows": [None]}, "could not be drawn"),
        ({"steps": [], "model": {"name": "<script>window.hit = 1</script>"}}, "no steps"),
    ],
    ids=["no steps", "no rows", "steps None", "nothing", "no model", "row None", "hostile"],
)
def test_a_notebook_gets_a_table_where_nothing_can_be_played(fields, words):
    page = Page(changed(**fields)._repr_html_())
    assert page.names == ["table", "caption", "tr", *["th"] * 5, "tr", *["td"] * 5]
    assert words in page.text("caption")
    assert page.text("caption").endswith(".")


def test_a_notebook_gets_a_table_of_a_run_that_is_too_large():
    page = Page(changed(steps=scripted_run("ems-sd").steps * MAX_STEPS)._repr_html_())
    assert page.names[0] == "table"
    assert "too large to play" in page.text("caption")
    assert page.texts["td"][0] == "ems-sd"


def test_reading_and_showing_a_trace_loads_neither_torch_nor_streamlit(tmp_path):
    import subprocess
    import sys

    scripted_run("ems-sd").to_json(tmp_path / "run.json")
    code = (
        "import sys; from emssd.trace import GenerationTrace\n"
        f"shown = GenerationTrace.from_json({str(tmp_path / 'run.json')!r})._repr_html_()\n"
        "assert shown.startswith('<iframe'), shown[:300]\n"
        "print([name for name in ('torch', 'streamlit', 'plotly', 'transformers') if name in sys.modules])"
    )
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr


# --- in a browser --------------------------------------------------------------------------------------------------


@contextmanager
def opened(browser, path: Path, scheme: str = "light", query: str = "") -> Iterator[tuple[Any, Witness]]:
    """The page from the file system, offline, and the witness of what it asks for and complains about."""
    with watched_page(browser, offline=True, color_scheme=scheme, reduced_motion="no-preference") as (page, witness):
        page.goto(path.as_uri() + query)
        yield page, witness


def ready(place) -> None:
    place.locator('[data-testid="player"][data-ready="1"]').wait_for(timeout=30_000)


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_file_plays_offline(browser, tmp_path, scheme):
    traces = {name: scripted_run(name) for name in ("greedy", "vanilla", "ems-sd")}
    path = tmp_path / "page.html"
    path.write_text(standalone_from_traces(traces, ["vanilla", "ems-sd"], ["a", "b"], "Example"), encoding="utf-8")
    with opened(browser, path, scheme) as (page, witness):
        ready(page)
        player = page.get_by_test_id("player")
        assert player.get_attribute("data-steps") == str(len(traces["vanilla"].steps))
        for pane, method in (("pane-left", "vanilla"), ("pane-right", "ems-sd")):
            assert page.get_by_test_id(pane).get_attribute("data-method") == method
        player.focus()
        player.press("Home")
        assert player.get_attribute("data-step") == "0"
        before = (player.get_attribute("data-step"), player.get_attribute("data-substep"))
        player.press("ArrowRight")
        assert (player.get_attribute("data-step"), player.get_attribute("data-substep")) != before
        player.press("End")
        assert player.get_attribute("data-step") == str(len(traces["vanilla"].steps) - 1)
        pass_time(page, 600)  # the address is written when the reader rests
        drawn = page.locator(".pane canvas").first.evaluate(
            "node => new Set(node.getContext('2d').getImageData(0, 0, node.width, node.height).data).size"
        )
        assert drawn > 5
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(14, 17, 23)"}[scheme]
        assert witness.words == []
        assert witness.asked == [path.as_uri()]


@pytest.mark.browser
@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("?step=2&sub=verify&pin=1.6", ("2", "verify")),
        ("?step=999999&sub=%3Cscript%3E&pin=9.9", ("3", "commit")),
        ("?step=0&sub=draft", ("0", "commit")),
        ("?step=-1&pin=1e-1.2", ("1", "draft")),
        ("?step=", ("1", "draft")),
    ],
)
def test_the_address_says_where_to_open(browser, tmp_path, query, place):
    path = tmp_path / "page.html"
    path.write_text(standalone_html(page_data(scripted_run("vanilla")), "x"), encoding="utf-8")
    with opened(browser, path, query=query) as (page, witness):
        ready(page)
        player = page.get_by_test_id("player")
        assert (player.get_attribute("data-step"), player.get_attribute("data-substep")) == place
        player.focus()
        player.press("Home")
        pass_time(page, 600)
        if page.url != path.as_uri() + query:  # where the browser lets a file change its address
            assert "step=0" in page.url
        assert witness.words == []


@pytest.mark.browser
def test_hostile_texts_do_nothing_in_a_browser(browser, tmp_path):
    trace = hostile_trace("vanilla")
    trace.model["name"] = HOSTILE[1]
    path = tmp_path / "page.html"
    for titles in (HOSTILE[:2], HOSTILE[2:4]):
        path.write_text(standalone_html(page_data(trace, titles), HOSTILE[2]), encoding="utf-8")
        with opened(browser, path) as (page, witness):
            ready(page)
            player = page.get_by_test_id("player")
            player.focus()
            for _ in range(30):
                player.press("ArrowRight")
            page.locator(".pane canvas").first.hover()
            pass_time(page, 300)
            assert page.evaluate("window.hit") is None
            assert page.locator("img, .player script, .player b > b").count() == 0
            assert page.locator("header *").count() == 2
            assert page.locator("script").count() == 2
            assert witness.words == []
            assert witness.asked == [path.as_uri()]


@pytest.mark.browser
def test_the_policy_stops_a_script_that_was_added(browser, tmp_path):
    text = standalone_html(page_data(scripted_run("ems-sd")), "x")
    path = tmp_path / "page.html"
    added = '<script>window.hit = 1</script><img src="https://example.invalid/x" onerror="window.hit = 1"></body>'
    path.write_text(text.replace("</body>", added), encoding="utf-8")
    with opened(browser, path) as (page, witness):
        ready(page)
        pass_time(page, 300)
        assert page.evaluate("window.hit") is None
        assert any("Content Security Policy" in complaint for complaint in witness.complaints)


@pytest.mark.browser
def test_the_frame_of_a_notebook_plays(browser, tmp_path):
    path = tmp_path / "notebook.html"
    shown = notebook_html(scripted_run("vanilla"), scripted_run("ems-sd"))
    path.write_text(f"<!doctype html><meta charset=utf-8><title>notebook</title>{shown}", encoding="utf-8")
    with opened(browser, path) as (page, witness):
        ready(page.frame_locator("iframe"))
        player = page.frame_locator("iframe").get_by_test_id("player")
        player.focus()
        player.press("End")
        pass_time(page, 600)
        assert player.get_attribute("data-step") == str(len(scripted_run("vanilla").steps) - 1)
        assert witness.words == []
