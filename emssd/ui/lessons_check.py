"""The section "Check yourself": the learner's file on this computer, checked by the same command as in a terminal.

The page takes no code and no path from the browser: the file is the lesson's own, and it runs in a process of its own.
"""

from __future__ import annotations

import html
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import streamlit as st

from emssd.lessons.catalog import NUMBERS, Entry, exercise_file
from emssd.lessons.checking import UNWRITTEN
from emssd.lessons.progress import LAST_PASSED, read_progress
from emssd.lessons.text import Lesson
from emssd.ui.frame import explore_page
from emssd.ui.lessons_predict import hint_button, shown_hints
from emssd.ui.lessons_words import show_words
from emssd.ui.notices import unformatted

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 30
MAX_OUTPUT = 200_000
LINK_NAMES = ("state", "left", "right", "step", "sub", "pin")


def check_section(entry: Entry, lesson: Lesson) -> None:
    """Task, command, button, result, hints and, after an attempt, a solution."""
    number = lesson.number
    show_words(lesson.section("Check yourself").markdown, lesson.path.parent)
    with st.container(horizontal=True, vertical_alignment="center", key="lesson_checking"):
        st.button("Check my file", type="primary", on_click=_check, args=(number,), key="lesson_check")
        hint_button(f"lesson_hints_{number}_x", len(lesson.hints))
        if not _attempted(number):
            st.button("Show a solution", type="tertiary", on_click=_give_up, args=(number,), key="lesson_give_up")
    told = f"Your file: {_shown(exercise_file(number))}, on this computer."
    told += "" if _attempted(number) else " A solution is shown here after your first try, or when you ask for it."
    st.html(f'<p class="l-note">{html.escape(told)}</p>')
    found = _found(number)
    if found is not None:
        _result(found)
    shown_hints(f"lesson_hints_{number}_x", lesson.hints)
    if _attempted(number):
        _solution(entry)


def said(number: int) -> str:
    """The newest result of this session in words, for those who listen."""
    found = st.session_state.get("lesson_results", {}).get(number)
    if found is None:
        return ""
    return "Passed." if found.get("passed") else f"Not yet. {_what(found)}"


def check_file(number: int) -> dict[str, Any]:
    """Check a lesson's file in a process of its own.

    Returns:
        What `emssd lesson check --json` prints; {"problem": sentence} where it came to no end.
    """
    command = [sys.executable, "-m", "emssd", "lesson", "check", f"{number:02d}", str(exercise_file(number)), "--json"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"The check was stopped after {LIMIT_SECONDS} seconds: is there a loop without an end?"}
    except OSError as error:
        return {"problem": f"The check could not be started ({error.strerror})."}
    try:
        found = json.loads(done.stdout[:MAX_OUTPUT])
    except ValueError:
        found = None
    if isinstance(found, dict) and "passed" in found:
        return found
    last = done.stderr.strip().splitlines()[-1:] or [f"it ended with code {done.returncode}"]
    return {"problem": f"The check came to no result: {last[0][:300]}"}


def _check(number: int) -> None:
    st.session_state.setdefault("lesson_results", {})[number] = check_file(number)


def _give_up(number: int) -> None:
    st.session_state.setdefault("lesson_given_up", set()).add(number)


def _attempted(number: int) -> bool:
    """Whether the learner has tried, or given up: to check a stub that nobody has touched is no try."""
    state = st.session_state
    found = state.get("lesson_results", {}).get(number)
    tried = found is not None and UNWRITTEN not in _what(found)
    return tried or number in state.get("lesson_given_up", ()) or bool(_last(number))


def _found(number: int) -> dict[str, Any] | None:
    """The newest result: of this session, else the one that the command left for the same file."""
    found = st.session_state.get("lesson_results", {}).get(number)
    return found or _last(number) or None


def _last(number: int) -> dict[str, Any]:
    """What the command last found in this very file; a file of another folder has nothing to do with it."""
    last = read_progress()[number].last
    same = last.get("file") and Path(str(last["file"])) == exercise_file(number).resolve()
    return last if same else {}


def _result(found: dict[str, Any]) -> None:
    passed = bool(found.get("passed"))
    when = f" Checked {str(found['checked'])[:16].replace('T', ' ')} UTC." if found.get("checked") else ""
    with st.container(key="lesson_passed" if passed else "lesson_failed"):
        if passed:
            last = f" {LAST_PASSED}" if found.get("lesson") == NUMBERS[-1] else ""
            tried = _escaped(f"{found.get('tried') or ''}{when}{last}")
            st.html(f'<p class="l-verdict right" data-testid="result">Passed.</p><p>{tried}</p>')
            return
        st.html(
            f'<p class="l-verdict wrong" data-testid="result">Not yet.</p><p>{html.escape(_what(found) + when)}</p>'
        )
        failure = found.get("failure") or {}
        lines = "".join(
            f"<div><dt>{name}</dt><dd>{_escaped(failure[name])}</dd></div>"
            for name in ("row", "step", "seed", "expected", "got", "why")
            if failure.get(name) is not None
        )
        if lines:
            st.html(f'<dl class="l-failure">{lines}</dl>')
        query = _state_query(found.get("link"))
        if query:
            st.page_link(
                explore_page(),
                label="Open this state in the player",
                icon=":material/open_in_new:",
                query_params=query,
            )


def _what(found: dict[str, Any]) -> str:
    failure = found.get("failure") or {}
    return str(found.get("problem") or failure.get("what") or "The check says no reason.")


def _escaped(value: object) -> str:
    return html.escape("" if value is None else str(value))


def _state_query(link: object) -> dict[str, str]:
    """The parameters of a link to Explore; nothing of its host."""
    if not isinstance(link, str):
        return {}
    query = dict(parse_qsl(urlsplit(link).query))
    return {name: query[name] for name in LINK_NAMES if name in query} if "state" in query else {}


def _solution(entry: Entry) -> None:
    given_up = entry.number in st.session_state.get("lesson_given_up", ())
    with st.expander(f"One solution: {_shown(entry.solution)}", expanded=given_up):
        try:
            text = entry.solution.read_text(encoding="utf-8")
        except OSError as error:
            st.markdown(unformatted(f"{entry.solution.name} cannot be read ({error.strerror})."))
            return
        st.code(text, language="python", wrap_lines=True, height=420)


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
