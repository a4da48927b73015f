"""The step player: one component that holds whole traces, so that a step changes without a script run."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import streamlit as st

from emssd.ui.palette import css_variables, player_palette

ASSETS = Path(__file__).resolve().parents[2] / "assets"
UI_ASSETS = ASSETS / "ui"
_PARTS = ("player_draw.js", "player.js", "player_paint.js")


def _read(name: str) -> str:
    return (UI_ASSETS / name).read_text(encoding="utf-8")


_mount = st.components.v2.component(
    "emssd_player",
    html='<div class="player" data-testid="player" tabindex="0" role="application"'
    ' aria-label="Step player: arrow keys change the step, Space plays"></div>',
    css=f":host {{ {css_variables()} }}\n{_read('player.css')}\n{_read('origins.css')}",
    js="\n".join(_read(name) for name in _PARTS),
)


def player_id(data: dict[str, Any]) -> str:
    """Names the content, so that the player keeps its step when only the page around it has changed."""
    return hashlib.sha256(repr(data).encode()).hexdigest()[:16]


def show_player(data: dict[str, Any], start: int, differs: list[bool]) -> None:
    """Mount the player.

    Args:
        data: what `player_data` made, with its "id".
        start: step shown at first.
        differs: [panes] whether the pane's output is not the baseline's.
    """
    panes = [
        {**pane, "differs": differ, "isBaseline": pane["method"] == "greedy"}
        for pane, differ in zip(data["panes"], differs, strict=True)
    ]
    _mount(key="player", data={**data, "panes": panes, "start": start, "palette": player_palette()})


def page_css() -> str:
    """Style of everything outside the player."""
    return f"<style>:root {{ {css_variables()} }}\n{_read('page.css')}\n{_read('origins.css')}</style>"
