"""Pure parts of the page: hostile token text, opened files, prompts that somebody types."""

from __future__ import annotations

import json
import re

import pytest

from emssd import GenerationTrace
from emssd.config import METHOD_TITLES
from emssd.ui.comparison import other_run
from emssd.ui.library import opened_set
from emssd.ui.notices import unformatted
from emssd.ui.player_data import Pane, player_data
from emssd.ui.setup_form import METHOD_CHOICES, default_ids, own_prompts
from emssd.ui.token_text import escaped, visible
from tests.player_samples import invented_trace
from tests.test_cells import run_of

HOSTILE = ['<script>alert("x")</script>', "\u202eevil", "a\nb\tc", "\x1b[31m", "\u2066", "\ue000", "y" * 500, "&amp;"]


def file_of(method: str, name: str = "") -> tuple[str, bytes]:
    return (name or f"{method}.json", content(run_of(method)))


def content(trace: GenerationTrace) -> bytes:
    return trace.to_json().encode()


@pytest.mark.parametrize("text", HOSTILE)
def test_token_text_is_shown_and_never_obeyed(text):
    shown = escaped(text)
    assert "<" not in shown
    assert not re.search("[\x00-\x1f\u202a-\u202e\u2066-\u2069]", shown)
    assert len(visible(text)) <= 1 + 6 * 200


def test_opened_files_make_a_comparison():
    opened, problems = opened_set([file_of(method) for method in ("ems-sd", "vanilla", "greedy")])
    assert not problems
    assert opened.methods == ("greedy", "vanilla", "ems-sd")
    assert all(each.identical and each.complete for each in opened.equalities().values())
    alone, _ = opened_set([file_of("ems-sd")])
    assert (alone.methods, alone.equalities()) == (("ems-sd",), {})
    pane = player_data([Pane(alone.traces["ems-sd"], "ems-sd", alone.baseline)], alone.titles)["panes"][0]
    assert (pane["speed"], pane["baseline"], pane["agree"]) == ([], "", None)


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (lambda: [("a.json", b"\xff\xfe")], "a.json was left out: it is not UTF-8"),
        (lambda: [("a.json", b"[1]")], "it is not a JSON object"),
        (lambda: [("/etc/passwd", b"/etc/passwd")], "it is not a JSON object"),
        (lambda: [("a.json", b"{}")], "schema"),
        (lambda: [("a.json", b'{"schema": 1' + b"[" * 100_000)], "a.json was left out: "),
        (lambda: [("a.json", b" " * (5 * 2**20 + 1))], "up to 5 MiB"),
        (lambda: [file_of("vanilla"), file_of("vanilla", "b.json")], "a newer file has the method vanilla"),
        (
            lambda: [("a.json", content(invented_trace("vanilla", [[1, 2], [3]], 5, 2, 1))), file_of("ems-sd")],
            "it has other prompts than ems-sd.json",
        ),
    ],
)
def test_files_that_cannot_be_opened_are_one_sentence(files, sentence):
    given = files()
    opened, (problem,) = opened_set(given)
    assert sentence in problem
    assert "\n" not in problem
    assert (opened is None) == (len(given) == 1)


@pytest.mark.parametrize(
    ("part", "name", "value", "what"),
    [
        ("model", "name", "another", "another model"),
        ("model", "layers", 7, "another model"),
        ("model", "dtype", "float16", "another number format"),
        ("model", "device", "cuda:0", "another device"),
        ("config", "max_new_tokens", 99, "another max_new_tokens"),
        ("config", "eos_token_ids", [96], "other eos_token_ids"),
        ("config", "seed", 5, None),
        ("config", "num_top_tokens", 2, None),
    ],
)
def test_only_runs_of_one_model_and_limits_are_compared(part, name, value, what):
    first, other = (GenerationTrace.from_json(content(run_of(method)).decode()) for method in ("greedy", "ems-sd"))
    assert other_run(first, other) is None
    getattr(other, part)[name] = value
    assert other_run(first, other) == what


def test_the_same_weights_under_two_names_are_one_model():
    first, other = (GenerationTrace.from_json(content(run_of(method)).decode()) for method in ("greedy", "ems-sd"))
    first.model.update(name="here", checksum="1")
    other.model.update(name="there", checksum="1")
    assert other_run(first, other) is None
    other.model["checksum"] = "2"
    assert other_run(first, other) == "another model"


def test_a_file_of_another_model_is_left_out_and_one_with_a_byte_order_mark_is_read():
    first, other = run_of("greedy"), json.loads(content(run_of("ems-sd")))
    other["model"]["name"] = "another"
    files = [("other.json", json.dumps(other).encode()), ("greedy.json", b"\xef\xbb\xbf" + content(first))]
    opened, problems = opened_set(files)
    assert opened.methods == ("greedy",)
    assert problems == ["other.json was left out: it has another model than greedy.json."]


def test_methods_that_can_be_chosen_have_titles():
    assert set(METHOD_CHOICES) < set(METHOD_TITLES)


def test_own_prompts_are_blocks():
    assert own_prompts("a b\nc\n\n \n  d\r\n\r\ne\n") == ("a b\nc", "  d", "e")
    assert own_prompts(" \n\n ") == ()


def test_a_set_of_other_prompts_still_has_defaults():
    assert default_ids(["a", "b"]) == ["a", "b"]
    assert len(default_ids("abcdefgh")) == 4


HOSTILE_MARKDOWN = [
    "![i](http://x.example/y.png)",
    "[a](//x.example) **bold** `code` $x^2$ ~~no~~",
    ":red[colour] :material/error: :smile: <b>x</b> -> a -- b",
    "see https://x.example/a or www.x.example",
]


@pytest.mark.parametrize("text", HOSTILE_MARKDOWN)
def test_a_notice_shows_what_it_quotes_and_never_obeys_it(text):
    shown = unformatted(text)
    read = re.sub(r"\\(.)", r"\1", shown)
    assert read.replace("\u2060", "") == text
    assert not re.search(r"https?://|www\.", read)
    assert not re.search(r"[!-/:-@\[-`{-~]", re.sub(r"\\[!-/:-@\[-`{-~]", "", shown))
