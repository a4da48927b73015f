"""A run that has ended, in the player, with measured time; and its files to take away."""

from __future__ import annotations

from dataclasses import asdict

import streamlit as st

from emssd.ui.live_run import LiveRun
from emssd.ui.player import show_player
from emssd.ui.player_data import Start
from emssd.ui.saves import save_popover
from emssd.ui.sets import MEASURED_KEY, look_at, pair_data, run_set


def results(run: LiveRun) -> None:
    """Draw the player on a run, however it ended."""
    shown = run_set(run)
    if shown is None:
        return
    look_at(shown)
    panes = tuple(name for name in run.request.methods if name in shown.traces)
    if not panes:
        return
    data, reason = pair_data(shown, panes, MEASURED_KEY)
    with st.container(horizontal=True, vertical_alignment="center", key="results_bar"):
        st.html('<h2 class="section">Step through both caches</h2>')
        save_popover(shown, panes, data)
    if data is None:
        st.info(reason)
        return
    last = max(len(shown.traces[name].steps) for name in panes) - 1
    start = Start(1, "commit") if last else Start(0, "commit")
    show_player({**data, "start": asdict(start)})
