"""Where the lessons and their files lie. Numbers run from 1; a number is written with two digits in file names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from emssd.errors import ConfigError, shown

FOLDER = Path(__file__).resolve().parents[2] / "lessons"
NUMBERS = range(1, 11)
TEXT_NAME = re.compile(r"(\d\d)_([a-z0-9_]+)\.md")


@dataclass(frozen=True)
class Entry:
    """The files of one lesson.

    Args:
        number: from 1.
        slug: the text's name without number and ending.
        text: the Markdown file.
        exercise: the stub that a learner edits; solution: one way to write it. They have the same name.
        wrong: known wrong solutions, by name.
    """

    number: int
    slug: str
    text: Path
    exercise: Path
    solution: Path
    wrong: tuple[Path, ...]


def entries(folder: Path = FOLDER) -> list[Entry]:
    """All lessons that have a text, by number.

    Raises:
        ConfigError: none is there, or two files claim the same place.
    """
    found = []
    for path in sorted(folder.glob("*.md")):
        if name := TEXT_NAME.fullmatch(path.name):
            number = int(name[1])
            found.append(
                Entry(
                    number,
                    name[2],
                    path,
                    _only(folder / "exercises", number),
                    _only(folder / "solutions", number),
                    wrong_files(number, folder),
                )
            )
    if not found:
        raise ConfigError(f"There are no lessons in {folder}: run this from a checkout of the repository.")
    numbers = [entry.number for entry in found]
    if len(set(numbers)) != len(numbers):
        raise ConfigError(f"Two lessons in {folder} have the same number.")
    return found


def entry(number: int, folder: Path = FOLDER) -> Entry:
    """One lesson.

    Raises:
        ConfigError: there is none of that number.
    """
    found = next((each for each in entries(folder) if each.number == number), None)
    if found is None:
        raise ConfigError(f"There is no lesson {shown(number)}: `emssd lesson list` shows them.")
    return found


def exercise_file(number: int, folder: Path = FOLDER) -> Path:
    """The file that a learner edits; it may be missing."""
    return _only(folder / "exercises", number)


def solution_file(number: int, folder: Path = FOLDER) -> Path:
    """One solution; it may be missing."""
    return _only(folder / "solutions", number)


def wrong_files(number: int, folder: Path = FOLDER) -> tuple[Path, ...]:
    """Known wrong solutions, by name."""
    return tuple(sorted((folder / "wrong").glob(f"{number:02d}_*.py")))


def shipped_answer(path: Path, folder: Path = FOLDER) -> bool:
    """Whether a file is one of the solutions or wrong solutions that come with the lessons."""
    return path.resolve().parent in ((folder / "solutions").resolve(), (folder / "wrong").resolve())


def parse_number(text: str) -> int:
    """A lesson's number as people type it: 5 or 05.

    Raises:
        ConfigError: it is not a number of a lesson.
    """
    if not re.fullmatch(r"[0-9]{1,2}", text) or int(text) not in NUMBERS:
        raise ConfigError(f"There is no lesson {shown(text)}: lessons have the numbers {NUMBERS[0]} to {NUMBERS[-1]}.")
    return int(text)


def _only(folder: Path, number: int) -> Path:
    """The one file of a lesson in a folder; a name that does not exist where there is none."""
    found = sorted(folder.glob(f"{number:02d}_*.py"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ConfigError(f"{folder} has more than one file for lesson {number}: {names}. Keep one of them.")
    return found[0] if found else folder / f"{number:02d}.py"
