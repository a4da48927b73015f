"""The list of all lessons with what has been done, and the teacher's page."""

from __future__ import annotations

import html
from collections.abc import Sequence
from functools import partial

import streamlit as st

from emssd.errors import EmssdError
from emssd.lessons.catalog import FOLDER, Entry
from emssd.lessons.progress import read_progress
from emssd.lessons.text import Lesson
from emssd.ui.frame import lessons_page
from emssd.ui.lessons_answers import score
from emssd.ui.lessons_library import TOTAL
from emssd.ui.lessons_link import TEACHING, Place
from emssd.ui.lessons_words import show_words

STATE_WORDS = {"passed": "passed", "tried": "tried, not passed yet", "not yet": "not passed yet"}


def overview(lessons: Sequence[tuple[Entry, Lesson]]) -> None:
    """All lessons, one line each."""
    records = read_progress()
    passed = sum(record.passed for record in records.values())
    right, judged = score()
    told = f"{passed} of {TOTAL} exercises passed on this computer"
    told += f" · {right} of {judged} predictions right in this visit" if judged else ""
    st.html(
        '<div class="l-top"><h1>Lessons</h1><p>From a decode loop to EMS-SD in ten steps. Each one asks a question, '
        "lets you predict the next state before you see it, explains it beside the player, and ends with a few lines "
        f'of your own code.</p><p class="l-note" data-testid="progress">{told}</p></div>'
    )
    with st.container(key="lesson_list"):
        for _, lesson in lessons:
            _line(lesson, records[lesson.number].state)
    with st.container(horizontal=True, key="lesson_more"):
        st.page_link(
            lessons_page(),
            label="For teachers",
            icon=":material/school:",
            query_params=Place(teaching=True).query(),
        )
        print_button([entry for entry, _ in lessons], "Print all lessons", "lessons.html")


def _line(lesson: Lesson, state: str) -> None:
    right, judged = score(lesson.number)
    facts = [f"{lesson.minutes} min", STATE_WORDS[state], *([f"{right} of {judged} right"] if judged else [])]
    mark = {"passed": "done", "tried": "tried"}.get(state, "open")
    with st.container(horizontal=True, vertical_alignment="center", key=f"lesson_line_{lesson.number}"):
        st.html(f'<i class="l-mark {mark}" aria-hidden="true"></i>', width="content")
        st.page_link(
            lessons_page(),
            label=f"{lesson.number}. {lesson.title}",
            query_params=Place(lesson.number).query(),
        )
        st.html(f'<span class="l-note">{html.escape(" · ".join(facts))}</span>', width="content")


def print_button(entries: Sequence[Entry], label: str, name: str) -> None:
    """Lessons as one page to print, made when it is asked for."""
    st.download_button(
        label,
        partial(_printed, tuple(entries)),
        file_name=name,
        mime="text/html",
        icon=":material/print:",
        on_click="ignore",
        type="tertiary",
        key="lesson_print",
    )


def _printed(entries: Sequence[Entry]) -> bytes:
    from emssd.lessons.export import lessons_html

    try:
        page = lessons_html(entries)
    except EmssdError as error:
        page = f"<!doctype html><title>Lessons</title><p>{html.escape(str(error))}</p>"
    return page.encode("utf-8")


def teaching() -> None:
    """The teacher's page."""
    path = FOLDER / f"{TEACHING.upper()}.md"
    st.page_link(lessons_page(), label="All lessons", icon=":material/arrow_back:", query_params={})
    with st.container(key="lesson_teaching"):
        try:
            text = path.read_text(encoding="utf-8")
        except OSError:
            st.html('<p class="l-note">The teacher’s page is missing: lessons/TEACHING.md.</p>')
            return
        show_words(text, FOLDER)
