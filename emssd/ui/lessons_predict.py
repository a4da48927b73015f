"""The question card: predict, check or skip, hints one by one, and then why."""

from __future__ import annotations

import html

import streamlit as st

from emssd.lessons.text import Lesson, Question
from emssd.ui.lessons_answers import Answer, answer_of, judge, keep_answer, places, score
from emssd.ui.lessons_link import Place
from emssd.ui.lessons_words import own_links, show_words

SHORT_OPTION = 9
"""Letters up to which options stand side by side."""


def question_card(lesson: Lesson, place: Place) -> None:
    """The question of a place, open or answered."""
    question, number = lesson.questions[place.question - 1], place.question
    answer = answer_of(lesson.number, number)
    with st.container(key="lesson_question"):
        _head(lesson, number)
        st.markdown(f"#### {own_links(question.text)}", anchors=False)
        if question.markdown:
            show_words(question.markdown, lesson.path.parent)
        if answer is None:
            _open(lesson, number, question)
        else:
            _answered(lesson, question, answer)


def said(lesson: Lesson, place: Place) -> str:
    """The result in words, for those who listen."""
    answer = answer_of(lesson.number, place.question)
    if place.section != "predict" or answer is None:
        return ""
    question = lesson.questions[place.question - 1]
    return f"{_verdict(question, answer)} {_plain(question.explanation)}"


def _head(lesson: Lesson, number: int) -> None:
    count = len(lesson.questions)
    right, judged = score(lesson.number)
    told = f"{right} of {judged} right" if judged else ""
    which = f", question {number} of {count}" if count > 1 else ""
    st.html(f'<div class="l-ask"><b>Predict before you look{which}</b><span data-testid="score">{told}</span></div>')


def _open(lesson: Lesson, number: int, question: Question) -> None:
    key = f"lesson_given_{lesson.number}_{number}"
    given: str | float | None
    if question.options:
        beside = all(len(option) <= SHORT_OPTION for option in question.options)
        given = st.radio(
            "Your prediction",
            question.options,
            index=None,
            key=key,
            horizontal=beside,
            label_visibility="collapsed",
        )
    else:
        decimals = places(question.answer)
        step = 10**-decimals if decimals else 1
        given = st.number_input(
            "Your prediction: a number",
            value=None,
            step=step,
            format=f"%.{decimals}f" if decimals else "%d",
            key=key,
            width=200,
        )
    hint_key = f"lesson_hints_{lesson.number}_{number}"
    with st.container(horizontal=True, vertical_alignment="center", key="lesson_answering"):
        st.button("Check", type="primary", on_click=_check, args=(lesson.number, number, question, key), key="check_it")
        st.button("Skip", type="tertiary", on_click=_skip, args=(lesson.number, number), key="skip_it")
        hint_button(hint_key, len(question.hints))
    if given is None and st.session_state.pop("lesson_empty", False):
        st.html('<p class="l-note" role="alert">Choose an answer, or skip the question.</p>')
    shown_hints(hint_key, question.hints)


def _check(lesson: int, number: int, question: Question, key: str) -> None:
    given = st.session_state.get(key)
    if given is None:
        st.session_state["lesson_empty"] = True
        return
    keep_answer(lesson, number, judge(question, given))


def _skip(lesson: int, number: int) -> None:
    keep_answer(lesson, number, Answer("", None))


def _answered(lesson: Lesson, question: Question, answer: Answer) -> None:
    if question.options:
        marked = "".join(_option(option, question, answer) for option in question.options)
        st.html(f'<ul class="l-options">{marked}</ul>')
    elif answer.given:
        st.html(f'<p class="l-note" data-testid="given">Your answer: <b>{html.escape(answer.given)}</b></p>')
    style = "skipped" if answer.right is None else "right" if answer.right else "wrong"
    st.html(f'<p class="l-verdict {style}" data-testid="verdict">{html.escape(_verdict(question, answer))}</p>')
    show_words(question.explanation, lesson.path.parent)


def _option(option: str, question: Question, answer: Answer) -> str:
    right, chosen = option == question.answer, option == answer.given
    mark = "✓" if right else "✗" if chosen else ""
    style = "right" if right else "wrong" if chosen else ""
    yours = " (your answer)" if chosen else ""
    return f'<li class="{style}"><i aria-hidden="true">{mark}</i>{html.escape(_plain(option))}<span>{yours}</span></li>'


def _verdict(question: Question, answer: Answer) -> str:
    if answer.right is None:
        return "Skipped."
    if answer.right:
        return "Right."
    return f"Not “{_plain(answer.given)}”." if question.options else f"Not {answer.given}."


def _plain(markdown: str) -> str:
    """Markdown's words without its signs."""
    return own_links(markdown).replace("**", "").replace("`", "").replace("\\.", ".")


def hint_button(key: str, count: int) -> None:
    """The button for the next of some hints; it tells how many there are."""
    seen = st.session_state.get(key, 0)
    if seen < count:
        st.button(f"Hint {seen + 1} of {count}", type="tertiary", on_click=_next_hint, args=(key,), key=f"{key}_next")


def shown_hints(key: str, hints: tuple[str, ...]) -> None:
    """The hints asked for so far."""
    for number, hint in enumerate(hints[: st.session_state.get(key, 0)], start=1):
        with st.container(key=f"{key}_{number}"):
            st.markdown(f"**Hint {number}.** {own_links(hint)}", anchors=False)


def _next_hint(key: str) -> None:
    st.session_state[key] = st.session_state.get(key, 0) + 1
