"""What a reader can change on the screen "Run it": an experiment draws its controls, then what they lead to."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from emssd.ui import try_faults, try_layouts, try_metrics, try_padding, try_policies, try_worth

Result = Callable[[str], None]
"""Draws what the controls lead to beside the text; gets the key of the screen."""

EXPERIMENTS: dict[str, Callable[[], Result]] = {
    "faults": try_faults.controls,
    "layouts": try_layouts.controls,
    "padding": try_padding.controls,
    "worth": try_worth.controls,
    "metrics": try_metrics.controls,
    "policies": try_policies.controls,
}
"""By the name in a lesson's `try:` line: draws the controls and gives their result."""


def draw_experiment(name: str) -> Result:
    """Draw the card with an experiment's controls; returns what is to be drawn beside the text."""
    with st.container(key="lesson_try"):
        st.html('<h3 class="l-try">Try it</h3>')
        return EXPERIMENTS[name]()
