"""Prompts: the ones that ship with the project, and a reader for the user's own files."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emssd.errors import PromptError

KINDS = ("summarise", "extract", "proofread", "edit-code", "answer-from-document", "free-writing")
COPYING = ("rich", "some", "none")
PROMPTS_FOLDER = Path(__file__).resolve().parent.parent / "assets" / "prompts"


@dataclass(frozen=True)
class PromptEntry:
    """One shipped prompt.

    `copying` says how much of the embedded model's greedy answer stands in the prompt: with 7 draft tokens
    prompt lookup emits at least 2.5 tokens a step on "rich" prompts, at least 1.2 on "some", less on "none".
    """

    id: str
    title: str  # short name for row labels
    kind: str  # one of KINDS
    copying: str  # one of COPYING
    prompt: str


def prompt_sets() -> list[str]:
    """Names of the shipped sets, for `default_prompts`, sorted."""
    return sorted(path.stem for path in PROMPTS_FOLDER.glob("*.jsonl"))


def default_prompts(name: str = "default") -> list[PromptEntry]:
    """The shipped set `name`, in its order. The first 8 of "default" are the default batch.

    Raises PromptError if there is no such set, or if its file was damaged.
    """
    if name not in prompt_sets():
        have = ", ".join(prompt_sets()) or f"none in {PROMPTS_FOLDER}; run from a checkout of the project"
        raise PromptError(f"There is no prompt set {name!r}; choose one of: {have}.")
    path = PROMPTS_FOLDER / f"{name}.jsonl"
    return [
        _entry(record, f"{path}, line {number}")
        for number, record in _records(_decode(path.read_bytes(), str(path)), str(path))
    ]


def read_prompts(path: str | Path) -> list[str]:
    """Read prompts from `path`, at least one, in file order.

    A name that ends in .jsonl is read as one JSON object a line, with "prompt" (a string) or "turns" (Spec-Bench:
    the first turn counts). Any other name, and "-" for standard input, is read as text with one prompt a line.
    Blank lines are skipped everywhere.

    Raises PromptError, one sentence that says what to do, if the file is missing, not UTF-8, not JSONL, or empty.
    """
    name = "standard input" if str(path) == "-" else str(path)
    text = _decode(_read_bytes(path, name), name)
    if name.lower().endswith(".jsonl"):
        prompts = [_prompt_of(record, f"{name}, line {number}") for number, record in _records(text, name)]
    else:
        prompts = [line for _, line in _lines(text)]
    if not prompts:
        raise PromptError(f"{name} holds no prompts; put one prompt on each line.")
    return prompts


def parse_prompts(data: bytes, name: str) -> tuple[list[str], list[str]]:
    """The content of a prompt file that was handed over, read like `read_prompts`, line by line.

    Args:
        data: the file's bytes.
        name: its name; one that ends in .jsonl is read as JSON lines.

    Returns:
        The good prompts in file order, and one sentence for each line (or for the whole file) that is not one.
    """
    try:
        text = _decode(data, name)
    except PromptError as error:
        return [], [str(error)]
    prompts: list[str] = []
    problems: list[str] = []
    for number, line in _lines(text):
        if not name.lower().endswith(".jsonl"):
            prompts.append(line)
            continue
        try:
            where = f"{name}, line {number}"
            prompts.append(_prompt_of(_record(line, where), where))
        except PromptError as error:
            problems.append(str(error))
    if not prompts and not problems:
        problems.append(f"{name} holds no prompts; put one prompt on each line.")
    return prompts, problems


def _read_bytes(path: str | Path, name: str) -> bytes:
    if str(path) == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise PromptError(f"The prompt file {name} does not exist; check the path.") from None
    except IsADirectoryError:
        raise PromptError(f"{name} is a folder; give a .txt or .jsonl file.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PromptError(f"The prompt file {name} cannot be read ({reason}); check the path and its rights.") from None


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The codec counts after the byte order mark, people count from the start of the file.
        offset = error.start + (3 if data.startswith(b"\xef\xbb\xbf") else 0)
        raise PromptError(f"{name} is not UTF-8: the first bad byte is at offset {offset}; save it as UTF-8.") from None


def _lines(text: str) -> list[tuple[int, str]]:
    """Numbered lines that are not blank. Only line feeds end a line: JSON strings may hold other separators."""
    lines = text.replace("\r\n", "\n").split("\n")
    return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def _records(text: str, name: str) -> list[tuple[int, dict[str, Any]]]:
    return [(number, _record(line, f"{name}, line {number}")) for number, line in _lines(text)]


def _record(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
        reason = "too deep" if isinstance(error, RecursionError) else "a number is too large"
        if isinstance(error, json.JSONDecodeError):
            reason = f"{error.msg} at column {error.colno}"
        raise PromptError(f"{where} is not JSON ({reason}); write one JSON object on each line.") from None
    if not isinstance(record, dict):
        raise PromptError(f'{where} is no JSON object; write {{"prompt": "..."}} on each line.')
    return record


def _prompt_of(record: dict[str, Any], where: str) -> str:
    if "prompt" in record:
        field, prompt = "prompt", record["prompt"]
    elif "turns" in record:
        turns = record["turns"]
        if not isinstance(turns, list) or not turns:
            raise PromptError(f'{where}: "turns" must be a list with at least one string.')
        field, prompt = "the first of turns", turns[0]
    else:
        raise PromptError(f'{where} has neither "prompt" nor "turns"; add one of them.')
    if not isinstance(prompt, str):
        raise PromptError(f"{where}: {field} must be a string, not {_json_name(prompt)}.")
    return prompt


def _json_name(value: object) -> str:
    names = {dict: "an object", list: "a list", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def _entry(record: dict[str, Any], where: str) -> PromptEntry:
    fields = list(PromptEntry.__dataclass_fields__)
    if sorted(record) != sorted(fields) or not all(isinstance(value, str) for value in record.values()):
        raise PromptError(f"{where} must hold exactly the strings {', '.join(fields)}.")
    return PromptEntry(**record)
