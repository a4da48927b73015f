"""The page "Lessons": text on the left, one idea on a screen, and the player on the right, moved to what is told."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import streamlit as st

from emssd.errors import EmssdError
from emssd.lessons.catalog import Entry
from emssd.lessons.progress import read_progress
from emssd.lessons.text import RUN_NOTE, Lesson, Section, Target
from emssd.ui import lessons_check, lessons_predict
from emssd.ui.frame import begin_page, lessons_page
from emssd.ui.lessons_answers import answer_of, open_questions
from emssd.ui.lessons_code import show_references
from emssd.ui.lessons_library import TOTAL, all_lessons, target_of
from emssd.ui.lessons_link import SECTIONS, Place, read_place
from emssd.ui.lessons_overview import overview, print_button, teaching
from emssd.ui.lessons_player import seal_of, show_target
from emssd.ui.lessons_try import Result, draw_experiment
from emssd.ui.lessons_words import own_links, show_words
from emssd.ui.notices import warn
from emssd.ui.player_assets import read_asset

TABS = {
    "question": "Question",
    "predict": "Predict",
    "idea": "Idea",
    "code": "Code",
    "run": "Run",
    "check": "Check",
    "next": "Next",
}
SEALED = ("question", "predict")
"""Sections that come before the answers."""

Lessons = Mapping[int, tuple[Entry, Lesson]]


def page() -> None:
    """Draw the page once."""
    begin_page()
    st.html(f"<style>{read_asset('lessons.css')}</style>")
    try:
        lessons = {lesson.number: (entry, lesson) for entry, lesson in all_lessons()}
    except EmssdError as error:
        warn([str(error)])
        return
    place, notices = read_place(st.query_params.to_dict(), lessons)
    warn(notices)
    _write_address(place)
    if place.teaching:
        teaching()
    elif place.lesson is None:
        overview(list(lessons.values()))
    else:
        _lesson(lessons, place)


def _write_address(place: Place) -> None:
    """A link to the page that is shown already leaves the address as it was."""
    if st.session_state.get("lesson_place") != place:
        st.session_state["lesson_place"] = place
        st.query_params.from_dict(place.query())


def _lesson(lessons: Lessons, place: Place) -> None:
    entry, lesson = lessons[place.lesson or 1]
    place = _existing(place, lesson)
    with st.container(key="lesson_board"):
        with st.container(key="lesson_text"):
            _head(lesson, place)
            with st.container(key="lesson_body"):
                result = _section(lessons, entry, lesson, place)
            _foot(lessons, entry, place)
        with st.container(key="lesson_side"):
            if result is None:
                _player(lesson, place)
            else:
                result(f"{lesson.number}/{place.section}/{place.question}")


def _existing(place: Place, lesson: Lesson) -> Place:
    """The place, on a question that the lesson has."""
    return Place(place.lesson, place.section, min(place.question, len(lesson.questions)))


def _head(lesson: Lesson, place: Place) -> None:
    records = read_progress()
    marks = "".join(
        f'<i class="{"current" if n == lesson.number else "done" if records[n].passed else ""}"></i>'
        for n in range(1, TOTAL + 1)
    )
    st.html(
        f'<div class="l-line"><span>Lesson {lesson.number} of {TOTAL}</span>'
        f'<span class="l-marks" aria-hidden="true">{marks}</span><span>{lesson.minutes} min</span></div>'
        f"<h1>{html.escape(lesson.title)}</h1>"
    )
    st.session_state["lesson_section"] = place.section
    st.segmented_control(
        "Section",
        list(TABS),
        format_func=TABS.__getitem__,
        key="lesson_section",
        required=True,
        label_visibility="collapsed",
        on_change=_choose_section,
        args=(place,),
    )


def _choose_section(place: Place) -> None:
    _go(Place(place.lesson, st.session_state["lesson_section"]))


def _go(place: Place) -> None:
    st.query_params.from_dict(place.query())


def _section(lessons: Lessons, entry: Entry, lesson: Lesson, place: Place) -> Result | None:
    """Draw a screen's text; returns what its experiment shows beside it, if it has one."""
    section = lesson.section(SECTIONS[place.section])
    folder, result = lesson.path.parent, None
    st.html(f'<h2 class="l-heading">{section.heading}</h2>')
    if place.section == "question":
        st.html(f'<p class="l-note">{html.escape(_needs(lesson))}</p>')
    if place.section == "predict":
        if section.markdown and place.question == 1:
            show_words(section.markdown, folder)
        lessons_predict.question_card(lesson, place)
    elif place.section == "code":
        show_references(section.markdown)
    elif place.section == "check":
        lessons_check.check_section(entry, lesson)
    elif place.section == "run":
        result = _run_screen(section, folder)
    else:
        show_words(section.markdown, folder)
    if place.section == "next":
        _next_link(lessons, lesson)
    return result


def _run_screen(section: Section, folder: Path) -> Result | None:
    """Experiment and what is said of it, then code and how it is run; returns what the experiment shows."""
    told, rest = section.opening
    result = draw_experiment(section.experiment) if section.experiment else None
    if told:
        show_words(told, folder)
    if "```python" in rest:
        with st.container(key="lesson_how"):
            st.markdown(RUN_NOTE, anchors=False)
    show_words(rest, folder)
    return result


def _needs(lesson: Lesson) -> str:
    """The line below the title, without the minutes that stand above it and without links."""
    words = own_links(lesson.intro).partition("minutes.")[2].strip()
    while "](" in words:
        before, _, rest = words.partition("](")
        opening = before.rfind("[")
        words = before[:opening] + before[opening + 1 :] + rest.partition(")")[2]
    return words


def _next_link(lessons: Lessons, lesson: Lesson) -> None:
    following = lessons.get(lesson.number + 1)
    if following is not None:
        _lesson_link(following[1], f"Begin lesson {following[1].number}", ":material/arrow_forward:")


def _lesson_link(lesson: Lesson, label: str, icon: str, position: str = "left") -> None:
    st.page_link(
        lessons_page(),
        label=label,
        icon=icon,
        icon_position="right" if position == "right" else "left",
        query_params=Place(lesson.number).query(),
    )


def _foot(lessons: Lessons, entry: Entry, place: Place) -> None:
    lesson = lessons[entry.number][1]
    before, after = _neighbours(place, lesson)
    with st.container(horizontal=True, vertical_alignment="center", key="lesson_steps"):
        st.button("Back", disabled=before is None, on_click=_go, args=(before or place,), key="lesson_back")
        label, style = _forward(place, lesson, after)
        st.button(
            label, type=style, disabled=after is None, on_click=_go, args=(after or place,), key="lesson_continue"
        )
    with st.container(horizontal=True, vertical_alignment="center", key="lesson_links"):
        previous, following = lessons.get(entry.number - 1), lessons.get(entry.number + 1)
        if previous is not None:
            _lesson_link(previous[1], f"Lesson {previous[1].number}", ":material/arrow_back:")
        st.page_link(lessons_page(), label="All lessons", query_params={})
        print_button([entry], "Print", f"lesson-{entry.number:02d}.html")
        if following is not None:
            _lesson_link(following[1], f"Lesson {following[1].number}", ":material/arrow_forward:", "right")


def _neighbours(place: Place, lesson: Lesson) -> tuple[Place | None, Place | None]:
    """The screens before and after one; each question is a screen."""
    screens = [
        Place(lesson.number, name, number)
        for name in SECTIONS
        for number in range(1, (len(lesson.questions) if name == "predict" else 1) + 1)
    ]
    at = screens.index(place)
    return screens[at - 1] if at else None, screens[at + 1] if at + 1 < len(screens) else None


def _forward(place: Place, lesson: Lesson, after: Place | None) -> tuple[str, Literal["primary", "secondary"]]:
    """Label and style of the button that goes on; an open question has its own primary button."""
    is_open = place.section == "predict" and answer_of(lesson.number, place.question) is None
    label = "Next question" if after is not None and after.section == place.section else "Continue"
    return label, "secondary" if is_open or place.section == "check" else "primary"


def _player(lesson: Lesson, place: Place) -> None:
    """Show the place's target. An answered question has a screen of its own, to which the player plays.

    The first question's covers are on the screen before it, too, where the text asks for them.
    """
    number, predicts = lesson.number, place.section == "predict"
    answered = predicts and answer_of(number, place.question) is not None
    target = target_of(lesson, place, answered)
    before = place.section == "question" and bool(target.hide) and answer_of(number, 1) is None
    screen = f"{number}/{place.section}/{place.question}"
    key = f"{screen}/told" if answered else f"{screen}/before" if before else screen
    says = lessons_check.said(number) if place.section == "check" else lessons_predict.said(lesson, place)
    seal = _seal(lesson, place, target)
    show_target(target, key, before or (predicts and not answered), screen if answered else "", says, seal)


def _seal(lesson: Lesson, place: Place, target: Target) -> int | None:
    """What of the run stays closed before all questions are done; from "Idea" on the text tells the answers itself."""
    still = open_questions(lesson.number, len(lesson.questions)) if place.section in SEALED else []
    if not still:
        return None
    asked = [target_of(lesson, Place(lesson.number, "predict", number), answered=False) for number in still]
    return seal_of(target, asked)
