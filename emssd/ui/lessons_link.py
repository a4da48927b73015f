"""Addresses of the page "Lessons": which lesson, which section, which question. What they say is not trusted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from emssd.lessons.text import HEADINGS
from emssd.ui.link import quoted

SECTIONS = dict(zip(("question", "predict", "idea", "code", "run", "check", "next"), HEADINGS, strict=True))
"""Name in addresses -> heading in the text."""
FIRST_SECTION = "question"
TEACHING = "teaching"
MAX_QUESTIONS = 3


@dataclass(frozen=True)
class Place:
    """A screen of the page.

    Args:
        lesson: its number; None is the list of all lessons.
        section: one of `SECTIONS`.
        question: number of the question in "predict", from 1.
        teaching: whether the teacher's page is shown instead of lessons.
    """

    lesson: int | None = None
    section: str = FIRST_SECTION
    question: int = 1
    teaching: bool = False

    def query(self) -> dict[str, str]:
        """The parameters that restore it."""
        if self.teaching:
            return {"lesson": TEACHING}
        if self.lesson is None:
            return {}
        query = {"lesson": str(self.lesson), "section": self.section}
        return query | ({"question": str(self.question)} if self.question > 1 else {})


def read_place(query: Mapping[str, str], lessons: Collection[int]) -> tuple[Place, list[str]]:
    """What an address asks for, as far as it exists.

    Args:
        query: parameters of the address: lesson, section, question. Others are ignored.
        lessons: numbers of the lessons that there are.

    Returns:
        The place, and one sentence for each parameter whose value could not be used.
    """
    asked = query.get("lesson")
    if asked is None:
        return Place(), []
    if asked == TEACHING:
        return Place(teaching=True), []
    number = int(asked) if asked.isascii() and asked.isdecimal() and len(asked) <= 3 else None
    if number not in lessons:
        return Place(), [f"The address asks for lesson {quoted(asked)}, which does not exist: all lessons are shown."]
    notices: list[str] = []
    section = query.get("section", FIRST_SECTION)
    if section not in SECTIONS:
        notices.append(
            f"The address asks for section {quoted(section)}, which lessons do not have: the question is shown."
        )
        section = FIRST_SECTION
    return Place(number, section, _question(query, section, notices)), notices


def _question(query: Mapping[str, str], section: str, notices: list[str]) -> int:
    value = query.get("question")
    if value is None or section != "predict":
        return 1
    if value.isascii() and value.isdecimal() and len(value) <= 2 and 1 <= int(value) <= MAX_QUESTIONS:
        return int(value)
    notices.append(f"The address asks for question {quoted(value)}, which does not exist: the first one is shown.")
    return 1
