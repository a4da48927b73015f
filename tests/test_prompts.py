"""The shipped prompts are complete, and the reader names what is wrong with a user's file."""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from emssd.errors import PromptError
from emssd.prompts import COPYING, KINDS, default_prompts, parse_prompts, prompt_sets, read_prompts


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# --- the shipped sets


def test_shipped_sets_are_the_two_documented_ones() -> None:
    assert prompt_sets() == ["copy_rich", "default"]


def test_default_set_has_enough_of_each_kind() -> None:
    entries = default_prompts()
    counts = Counter(entry.kind for entry in entries)
    assert len(entries) >= 24
    assert set(counts) == set(KINDS)
    assert min(counts.values()) >= 4
    assert {entry.copying for entry in entries} == set(COPYING)


@pytest.mark.parametrize("name", ["default", "copy_rich"])
def test_shipped_entries_are_well_formed(name: str) -> None:
    entries = default_prompts(name)
    assert len({entry.id for entry in entries}) == len(entries)
    assert len({entry.title for entry in entries}) == len(entries)
    assert len({entry.prompt for entry in entries}) == len(entries)
    for entry in entries:
        assert entry.id == entry.id.lower()
        assert entry.id.replace("-", "").isalnum()
        assert 0 < len(entry.title) <= 24
        assert entry.kind in KINDS
        assert entry.copying in COPYING
        assert entry.prompt.strip()
        # A blank at the end splits the next word in two for the tokenizer.
        assert not entry.prompt.endswith(" ")


def test_default_batch_mixes_copying_and_lengths() -> None:
    batch = default_prompts()[:8]
    assert Counter(entry.copying for entry in batch) == {"rich": 5, "some": 2, "none": 1}
    assert {entry.kind for entry in batch} == set(KINDS)
    lengths = sorted(len(entry.prompt) for entry in batch)
    assert lengths[-1] > 10 * lengths[0]


def test_copy_rich_set_is_eight_rich_prompts() -> None:
    entries = default_prompts("copy_rich")
    assert [entry.copying for entry in entries] == ["rich"] * 8


def test_sets_agree_where_they_share_an_id() -> None:
    default = {entry.id: entry for entry in default_prompts()}
    for entry in default_prompts("copy_rich"):
        assert default.get(entry.id, entry) == entry


def test_unknown_set_is_named_with_the_choices() -> None:
    with pytest.raises(PromptError, match=r"'nothing'; choose one of: copy_rich, default\."):
        default_prompts("nothing")


@pytest.mark.parametrize("name", ["../prompts/default", "default.jsonl", ""])
def test_set_name_is_no_path(name: str) -> None:
    with pytest.raises(PromptError):
        default_prompts(name)


# --- the reader: what it reads


def test_text_is_one_prompt_a_line_without_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", "First prompt\n\n   \r\n  Second, indented\r\nThird\tand last")
    assert read_prompts(path) == ["First prompt", "  Second, indented", "Third\tand last"]


def test_text_with_byte_order_mark(tmp_path: Path) -> None:
    assert read_prompts(str(write(tmp_path, "a.txt", b"\xef\xbb\xbfGr\xc3\xbc\xc3\x9fe\n"))) == ["Grüße"]


def test_text_keeps_separators_that_are_no_line_feed(tmp_path: Path) -> None:
    assert read_prompts(write(tmp_path, "a.txt", "one\u2028still one\x0cand one\n")) == [
        "one\u2028still one\x0cand one"
    ]


def test_jsonl_with_prompt_and_turns(tmp_path: Path) -> None:
    lines = [{"prompt": "a\nb", "id": 1}, {"question_id": 81, "turns": ["first", "second"], "category": "writing"}]
    path = write(tmp_path, "a.JSONL", "\n\n".join(json.dumps(line) for line in lines))
    assert read_prompts(path) == ["a\nb", "first"]


def test_jsonl_keeps_raw_line_separators_inside_strings(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"prompt": "one\u2028two\u0085three"}\n{"prompt": "four"}\n')
    assert read_prompts(path) == ["one\u2028two\u0085three", "four"]


def test_empty_prompt_is_left_to_the_decoder(tmp_path: Path) -> None:
    assert read_prompts(write(tmp_path, "a.jsonl", '{"prompt": ""}\n{"prompt": "x"}')) == ["", "x"]


def test_shipped_file_can_be_read_as_a_users_file() -> None:
    path = Path(__file__).parent.parent / "assets" / "prompts" / "default.jsonl"
    assert read_prompts(path) == [entry.prompt for entry in default_prompts()]


class Stdin:
    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


def test_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(b'One\n\n{"prompt": "two"}\n'))
    assert read_prompts("-") == ["One", '{"prompt": "two"}']


def test_empty_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(b"\n"))
    with pytest.raises(PromptError, match="standard input holds no prompts"):
        read_prompts("-")


# --- the reader: what it refuses, in one sentence that names the place

BAD_LINES = [
    ("not json", r"line 2 is not JSON \(.* at column 1\); write one JSON object"),
    ('{"prompt": "x"', r"line 2 is not JSON"),
    ("[" * 100_000, r"line 2 is not JSON \(too deep\)"),
    ('"just a string"', r"line 2 is no JSON object"),
    ('["a", "b"]', r"line 2 is no JSON object"),
    ('{"text": "x"}', r'line 2 has neither "prompt" nor "turns"'),
    ('{"prompt": null}', r"line 2: prompt must be a string, not null"),
    ('{"prompt": 7}', r"line 2: prompt must be a string, not a number"),
    ('{"prompt": ["x"]}', r"line 2: prompt must be a string, not a list"),
    ('{"prompt": {"text": "x"}}', r"line 2: prompt must be a string, not an object"),
    ('{"prompt": true}', r"line 2: prompt must be a string, not true or false"),
    ('{"turns": []}', r'line 2: "turns" must be a list with at least one string'),
    ('{"turns": "x"}', r'line 2: "turns" must be a list with at least one string'),
    ('{"turns": [3, "x"]}', r"line 2: the first of turns must be a string, not a number"),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES, ids=range(len(BAD_LINES)))
def test_bad_jsonl_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path, "bad.jsonl", '{"prompt": "good"}\n' + line + "\n")
    with pytest.raises(PromptError, match=message) as caught:
        read_prompts(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_line_numbers_count_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "bad.jsonl", '{"prompt": "good"}\n\n\n{"prompt": 1}\n')
    with pytest.raises(PromptError, match="line 4:"):
        read_prompts(path)


@pytest.mark.parametrize(
    ("data", "offset"), [(b"abc\xff", 3), (b"\xff\xfea\x00", 0), (b"\xef\xbb\xbfab\xe4", 5), (b"caf\xe9\n", 3)]
)
def test_not_utf8_names_the_byte(tmp_path: Path, data: bytes, offset: int) -> None:
    with pytest.raises(PromptError, match=rf"is not UTF-8: the first bad byte is at offset {offset};"):
        read_prompts(write(tmp_path, "a.txt", data))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"nothere\.txt does not exist; check the path\."):
        read_prompts(tmp_path / "nothere.txt")


def test_folder_instead_of_file(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"is a folder; give a \.txt or \.jsonl file\."):
        read_prompts(tmp_path)


def test_path_through_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", "x")
    with pytest.raises(PromptError, match=r"cannot be read \(Not a directory\)"):
        read_prompts(path / "b.txt")


def test_path_with_a_null_byte() -> None:
    with pytest.raises(PromptError, match="cannot be read"):
        read_prompts("a\0b")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("content", ["", "\n \n", "\ufeff"])
def test_empty_file(tmp_path: Path, name: str, content: str) -> None:
    with pytest.raises(PromptError, match="holds no prompts; put one prompt on each line"):
        read_prompts(write(tmp_path, name, content))


def test_a_file_that_was_handed_over_keeps_its_good_lines() -> None:
    content = b'{"prompt": "a"}\n{"x": 1}\n\n[1]\n{bad\n{"turns": ["q", "r"]}\n{"prompt": 3}\n'
    prompts, problems = parse_prompts(content, "f.jsonl")
    assert prompts == ["a", "q"]
    assert [problem.split(" ")[:3] for problem in problems] == [["f.jsonl,", "line", n] for n in ("2", "4", "5", "7:")]
    assert parse_prompts(b"\xef\xbb\xbfa\n\nb \r\n", "f.txt") == (["a", "b "], [])
    assert "not UTF-8" in parse_prompts(b"\xff", "f.txt")[1][0]
    assert "holds no prompts" in parse_prompts(b" \n", "f.txt")[1][0]
