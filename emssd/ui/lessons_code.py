"""The source behind a lesson's references, read from the files. Nothing is imported for it."""

from __future__ import annotations

import ast
import html
import re
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import streamlit as st

from emssd.lessons.text import REFERENCE
from emssd.ui.lessons_words import own_links

ROOT = Path(__file__).resolve().parents[2]
LONG_LINES, CODE_HEIGHT = 16, 320
ITEM = re.compile(r"^[-*] ", re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """Where a name is defined: file from the repository's root, number of the first line, the lines."""

    file: str
    line: int
    text: str


def source_of(file: str, symbol: str) -> Source:
    """The definition of a class, function, method or variable.

    Raises:
        LookupError: there is no such file, or no such name in it.
    """
    path = (ROOT / file).resolve()
    if not path.is_relative_to(ROOT) or not path.is_file():
        raise LookupError(f"There is no file {file}.")
    return _find(file, symbol, path.stat().st_mtime_ns)


@cache
def _find(file: str, symbol: str, changed: int) -> Source:
    source = (ROOT / file).read_text(encoding="utf-8")
    node: ast.AST | None = ast.parse(source)
    for part in symbol.split("."):
        node = next((each for each in getattr(node, "body", []) if part in _names(each)), None)
    if not isinstance(node, ast.stmt):
        raise LookupError(f"{file} has no {symbol}.")
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(each.lineno for each in decorators)])
    lines = source.splitlines()[first - 1 : node.end_lineno]
    return Source(file, first, textwrap.dedent("\n".join(lines)))


def _names(node: ast.AST) -> list[str]:
    """What a statement defines."""
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign):
        return [node.target.id] if isinstance(node.target, ast.Name) else []
    name = getattr(node, "name", None)
    return [name] if isinstance(name, str) else []


def show_references(markdown: str) -> None:
    """The section "In the code": each item, and below it the lines that it speaks of."""
    first, *items = ITEM.split(markdown)
    if first.strip():
        st.markdown(own_links(first), anchors=False)
    for item in items:
        references = REFERENCE.findall(item)
        st.markdown(own_links(_short(item)), anchors=False)
        for file, symbol in references:
            _listing(file, symbol)


def _short(item: str) -> str:
    """An item that begins with the name alone; the file stands over the lines."""
    return REFERENCE.sub(lambda found: f"**`{found[2]}`**", item)


def _listing(file: str, symbol: str) -> None:
    try:
        source = source_of(file, symbol)
    except LookupError as error:
        st.html(f'<p class="l-note">{html.escape(str(error))}</p>')
        return
    with st.expander(f"{source.file}, line {source.line}"):
        tall = source.text.count("\n") >= LONG_LINES
        st.code(source.text, language="python", wrap_lines=True, height=CODE_HEIGHT if tall else "content")
