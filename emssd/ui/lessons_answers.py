"""What a visitor has answered in this session: kept by lesson and question, counted, never sent anywhere."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from emssd.lessons.text import Question

HALF = 0.5


@dataclass(frozen=True)
class Answer:
    """What was given; `right` is None where the question was skipped."""

    given: str
    right: bool | None


def answer_of(lesson: int, question: int) -> Answer | None:
    """The answer to a question (from 1); None while it is open."""
    answers: dict[tuple[int, int], Answer] = st.session_state.get("lesson_answers", {})
    return answers.get((lesson, question))


def open_questions(lesson: int, count: int) -> list[int]:
    """Numbers of a lesson's questions, from 1 to `count`, that have been neither answered nor skipped."""
    return [number for number in range(1, count + 1) if answer_of(lesson, number) is None]


def keep_answer(lesson: int, question: int, answer: Answer) -> None:
    """Remember an answer; the first one stays."""
    st.session_state.setdefault("lesson_answers", {}).setdefault((lesson, question), answer)


def score(lesson: int | None = None) -> tuple[int, int]:
    """Right answers, and answers that were not skipped: of one lesson or of all."""
    answers: dict[tuple[int, int], Answer] = st.session_state.get("lesson_answers", {})
    judged = [
        each.right for (number, _), each in answers.items() if lesson in (None, number) and each.right is not None
    ]
    return sum(judged), len(judged)


def judge(question: Question, given: str | float) -> Answer:
    """Whether an option, or a typed number as precise as the answer is written, is the answer."""
    if isinstance(given, str):
        return Answer(given, given == question.answer)
    decimals = places(question.answer)
    near = abs(given - float(question.answer)) < HALF * 10**-decimals
    return Answer(f"{given:.{decimals}f}" if near else f"{given:g}", near)


def places(number: str) -> int:
    """Digits after the point."""
    return len(number.partition(".")[2])
