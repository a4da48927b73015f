"""Sentences for a visitor. They may quote an address, a file's name or a prompt: shown, never obeyed as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable

import streamlit as st

PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
LINK = re.compile(r"(?i)(https?:/|www)(?=[/.])")


def unformatted(text: str) -> str:
    """The text as Markdown that only shows it: no emphasis, link, picture, formula, colour, icon.

    A backslash takes every ASCII punctuation its meaning (CommonMark 2.4). Bare web addresses become links without any
    punctuation's help; a word joiner (U+2060) keeps them apart.
    """
    return PUNCTUATION.sub(r"\\\1", LINK.sub("\\1\u2060", text))


def warn(sentences: Iterable[str]) -> None:
    """One notice for each sentence."""
    for sentence in sentences:
        st.warning(unformatted(sentence), icon=":material/error:")
