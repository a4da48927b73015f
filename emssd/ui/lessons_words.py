"""A lesson's Markdown on the page: links lead to the page's lessons, code has a copy button, pictures open large."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import streamlit as st

from emssd.lessons.text import as_typed

FENCE = re.compile(r"^(```+)(\w*)\n(.*?)^\1[ \t]*$\n?", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"^!\[([^\]]*)\]\(([^)\s]+)\)[ \t]*$\n?", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
LESSON_FILE = re.compile(r"(?:lessons/)?(\d\d)_\w+\.md")
OUTPUT = "text"


def show_words(markdown: str, folder: Path) -> None:
    """Draw Markdown piece by piece.

    Args:
        folder: where relative pictures lie.
    """
    for kind, words, more in pieces(as_typed(markdown)):
        if kind == "code":
            show_code(words, more)
        elif kind == "picture":
            show_picture(folder / more, words)
        else:
            st.markdown(own_links(words), anchors=False)


def pieces(markdown: str) -> Iterator[tuple[str, str, str]]:
    """("words", Markdown, ""), ("code", text, language) or ("picture", words for it, path), in order."""
    end = 0
    for fence in FENCE.finditer(markdown):
        yield from _words(markdown[end : fence.start()])
        yield "code", fence[3].rstrip("\n"), fence[2]
        end = fence.end()
    yield from _words(markdown[end:])


def _words(markdown: str) -> Iterator[tuple[str, str, str]]:
    end = 0
    for picture in PICTURE.finditer(markdown):
        if before := markdown[end : picture.start()].strip():
            yield "words", before, ""
        yield "picture", picture[1], picture[2]
        end = picture.end()
    if rest := markdown[end:].strip():
        yield "words", rest, ""


def own_links(markdown: str) -> str:
    """Links between the files as links of this page; names of files that a browser cannot open stay as words."""
    return LINK.sub(_own_link, markdown)


def _own_link(found: re.Match[str]) -> str:
    words, target = found[1], found[2]
    name = target.partition("#")[0]
    if re.match(r"https?://", target):
        return found[0]
    if lesson := LESSON_FILE.fullmatch(name):
        return f"[{words}](?lesson={int(lesson[1])})"
    return f"[{words}](?lesson=teaching)" if name == "TEACHING.md" else words


def show_code(text: str, language: str) -> None:
    """Code with a copy button; a program's output is told as such."""
    if language == OUTPUT:
        st.html('<p class="l-note">Prints</p>')
    st.code(text, language=None if language in ("", OUTPUT) else language, wrap_lines=True)


def show_picture(path: Path, words: str) -> None:
    """A picture, which opens large at a press; its words are read to those who do not see it."""
    if not path.is_file():
        st.html(f'<p class="l-note">{html.escape(words)}</p>')
        return
    with st.container(key=f"lesson_picture_{path.stem}"):
        st.image(str(path), alt=words, width="stretch")
        if st.button("Enlarge the picture", key=f"lesson_enlarge_{path.stem}"):
            _large(str(path), words)


@st.dialog("Picture", width="large")
def _large(path: str, words: str) -> None:
    with st.container(key="lesson_large"):
        st.image(path, alt=words, width="stretch")
        st.html(f'<p class="l-note">{html.escape(words)}</p>')
