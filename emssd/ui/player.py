"""The step player in the app: one component that holds whole traces, so that a step changes without a script run."""

from __future__ import annotations

from typing import Any

import streamlit as st

from emssd.ui.player_assets import ROOT, script, styles

__all__ = ["script", "show_player", "styles"]

_mount = st.components.v2.component("emssd_player", html=ROOT, css=styles(), js=script("entry_streamlit.js"))


def show_player(data: dict[str, Any], key: str = "player") -> None:
    """Mount the player. It reports no step to Python and writes the page's address itself.

    Args:
        data: what `player_data` made. The same "id" again leaves the reader where they are; another "id" of the same
            "group" keeps step, sub-step and pin; anything else opens at data["start"].
        key: name of this player on the page.
    """
    _mount(key=key, data=data)
