"""A screen without the player begins with its text at the top; on other screens the player sees to that."""

from __future__ import annotations

import streamlit as st

SCRIPT = """const seen = new WeakSet();
export default ({ parentElement }) => {
  if (!seen.has(parentElement)) document.querySelector(".st-key-lesson_body")?.scrollTo(0, 0);
  seen.add(parentElement);
};"""

_mount = st.components.v2.component("emssd_lessons_top", html="<span></span>", js=SCRIPT)


def begin_at_top(key: str) -> None:
    """Bring the text to its top, once for each time that the screen opens.

    Args:
        key: names the screen.
    """
    _mount(key=f"top_{key}")
