"""The lessons as the page reads them: parsed once for each state of a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import streamlit as st

from emssd.lessons.catalog import NUMBERS, Entry, entries
from emssd.lessons.text import Lesson, Target, read_lesson
from emssd.ui.lessons_link import SECTIONS, Place

TOTAL = len(NUMBERS)


def all_lessons() -> list[tuple[Entry, Lesson]]:
    """Every lesson with its files, by number.

    Raises:
        ConfigError: there are none.
        LessonError: a text is not of the agreed form.
    """
    return [(entry, lesson_of(entry)) for entry in entries()]


def lesson_of(entry: Entry) -> Lesson:
    """A lesson's text; raises LessonError where it is not of the agreed form."""
    return _read(str(entry.text), entry.text.stat().st_mtime_ns)


@st.cache_resource(max_entries=64, show_spinner=False)
def _read(path: str, changed: int) -> Lesson:
    return read_lesson(Path(path))


def target_of(lesson: Lesson, place: Place, answered: bool) -> Target:
    """What the player shows at a place: what the section asks for, or else what the ones before it left.

    A cell stays pinned only where the place itself says so.

    Args:
        answered: whether the place's question has been answered or skipped.
    """
    found: Target | None = None
    for name, heading in SECTIONS.items():
        found = lesson.section(heading).target or _unpinned(found)
        if name == "predict":
            asked = lesson.questions[: place.question] if place.section == name else lesson.questions
            for number, question in enumerate(asked, start=1):
                found = question.before or (found if number == 1 else _unpinned(found))
                if place.section != name or number < place.question or answered:
                    found = question.after or found
        if name == place.section:
            break
    assert found is not None  # a lesson's first section has a target
    return found


def _unpinned(target: Target | None) -> Target | None:
    return replace(target, pin=None) if target else None
