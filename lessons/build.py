"""Write the computed numbers into the lessons, and draw their pictures.

    python lessons/build.py            rewrite what has changed
    python lessons/build.py --check    only compare; exit 1 where something differs

A number with `<!-- = EXPRESSION -->` or `<!-- = EXPRESSION | FORMAT -->` behind it is computed (`facts.py` has the
functions); an image with `<!-- picture: KIND ... -->` behind it is drawn (`drawing.py`). The same traces give the same
bytes.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from emssd.trace import write_text_atomically
from lessons.drawing import Picture, draw, pictures_of
from lessons.facts import value_of

MARK = re.compile(
    r"(?P<value>\*\*[^*\n]+\*\*|`[^`\n]+`|(?<![\w.])-?\d[\d,]*(?:\.\d+)?)(?P<tail>(?: ?[%x])?)"
    r"<!-- = (?P<expression>(?:(?!-->).)+?)(?: \| (?P<format>[^|\s]+))? -->"
)
ANY_MARK = re.compile(r"<!-- = ")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
FENCE = re.compile(r"\s*(```|~~~)")


@dataclass(frozen=True)
class Change:
    """Something that is not as computed; `line` is 0 for a whole file."""

    file: str
    line: int
    old: str
    new: str

    def __str__(self) -> str:
        place = f"{self.file}, line {self.line}" if self.line else self.file
        return f"{place}: {self.old} should be {self.new}"


class MarkError(Exception):
    """A mark that cannot be computed; the message names file and line."""


def formatted(value: Any, form: str | None, old: str) -> str:
    """A value as text, with thousands separated where the old text has it so.

    Raises:
        ValueError: a number that is not whole has no format.
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if form is not None:
        return format(value, form)
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError(f"{value} needs a format, such as | .2f")
        value = int(value)
    if isinstance(value, int):
        return f"{value:,}" if "," in old else str(value)
    return str(value)


def rewritten(old: str, value: Any, form: str | None) -> str:
    """The marked text with the value in it: a number replaces the number in it, anything else all of it."""
    edge = "**" if old.startswith("**") else "`" if old.startswith("`") else ""
    inner = old.removeprefix(edge).removesuffix(edge)
    new = formatted(value, form, inner)
    if edge and isinstance(value, (int, float)) and not isinstance(value, bool):
        new = NUMBER.sub(lambda _: new, inner, count=1) if NUMBER.search(inner) else new
    return f"{edge}{new}{edge}"


def new_line(line: str, place: str) -> str:
    """A line of a lesson with its marked numbers computed.

    Raises:
        MarkError: a mark that cannot be computed, or has nothing before it.
    """

    def replaced(match: re.Match[str]) -> str:
        expression, form = match["expression"], match["format"]
        try:
            new = rewritten(match["value"], value_of(expression), form)
        except Exception as error:
            raise MarkError(f"{place}: {expression} gives {type(error).__name__}: {error}") from error
        shown = f" | {form}" if form else ""
        return f"{new}{match['tail']}<!-- = {expression}{shown} -->"

    result, found = MARK.subn(replaced, line)
    if found != len(ANY_MARK.findall(line)):
        raise MarkError(f"{place}: a mark has no number, bold text or code right before it")
    return result


def changed_numbers(path: Path) -> tuple[str, list[Change]]:
    """A lesson's text with computed numbers, and what that changed."""
    lines, changes, fenced = [], [], False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        fenced ^= bool(FENCE.match(line))
        new = line if fenced else new_line(line, f"{path.name}, line {number}")
        if new != line:
            pairs = zip(MARK.finditer(line), MARK.finditer(new), strict=True)
            changes += [Change(path.name, number, a["value"], b["value"]) for a, b in pairs if a[0] != b[0]]
        lines.append(new)
    return "\n".join(lines) + "\n", changes


def texts(folder: Path = HERE) -> list[Path]:
    """The files that may hold marks."""
    return sorted(folder.glob("*.md"))


def wanted_pictures(folder: Path = HERE) -> Iterator[Picture]:
    """Every picture that a lesson asks for."""
    for path in texts(folder):
        yield from pictures_of(path)


def build(folder: Path = HERE, check: bool = False) -> list[Change]:
    """Bring texts and pictures up to date, or with `check` only find what is not.

    Raises:
        MarkError: a mark that cannot be computed.
    """
    found: list[Change] = []
    for path in texts(folder):
        text, changes = changed_numbers(path)
        found += changes
        if changes and not check:
            write_text_atomically(path, text)
    for picture in wanted_pictures(folder):
        new, target = draw(picture), folder / picture.target
        old = target.read_text(encoding="utf-8") if target.is_file() else None
        if old != new:
            state = "a missing picture" if old is None else "an old picture"
            found.append(Change(picture.target, 0, state, f"drawn anew ({picture.place})"))
            if not check:
                target.parent.mkdir(exist_ok=True)
                write_text_atomically(target, new)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """0 where everything is up to date or was brought there, 1 where `--check` found something, or a mark is wrong."""
    parser = argparse.ArgumentParser(description="Compute the numbers of the lessons and draw their pictures.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if something differs")
    parser.add_argument("--folder", type=Path, default=HERE, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    try:
        changes = build(args.folder, args.check)
    except (MarkError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    for change in changes:
        print(change)
    return 1 if changes and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
