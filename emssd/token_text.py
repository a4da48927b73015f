"""Token text is untrusted: what a model or a file says is shown, never obeyed."""

from __future__ import annotations

import html
import unicodedata

MARKS = {"\n": "↵", "\r": "␍", "\t": "⇥", "\x00": "␀"}
LONGEST = 200


def visible(text: str) -> str:
    """The text with a visible mark for every character that would otherwise hide, break a line or turn the writing.

    Marks: line ends and tabs as arrows, other control, format and private characters as their code, so that a
    direction override can reach nothing beside it. Very long token texts are cut.
    """
    shown = "".join(MARKS.get(character) or _mark(character) for character in text[:LONGEST])
    return shown + "…" if len(text) > LONGEST else shown


def _mark(character: str) -> str:
    if character == "\u200d" or unicodedata.category(character) not in ("Cc", "Cf", "Co", "Cs", "Zl", "Zp"):
        return character
    return f"⟨{ord(character):04X}⟩"


def escaped(text: str) -> str:
    """`visible` text, safe inside HTML elements and attributes."""
    return html.escape(visible(text), quote=True)
