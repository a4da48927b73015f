"""Lesson 3's experiment: one toy run, a bug that is switched on in it, and what a reader then finds out, in order."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from emssd.lessons.broken_runs import BrokenRuns, broken_runs
from emssd.lessons.broken_traces import METHOD, broken_trace, right_trace, row_alone
from emssd.lessons.broken_words import broken_narration, broken_rule, right_narration, wrong_token_words
from emssd.lessons.faulty_runs import BUGS
from emssd.ui.lessons_player import show_panes
from emssd.ui.player_data import Pane, Start
from emssd.ui.setup_form import KEEP

NONE = "nothing broken"
RIGHT = "As it should be"
SEED, SHOWN = "try_faults_seed", "try_faults_shown"


def controls() -> Callable[[str], None]:
    """Draw the switch and the findings; returns what shows the run with the bug and the right run."""
    state = st.session_state
    seed: int = state.setdefault(SEED, 0)
    chosen: str = st.radio("Switch on", [NONE, *BUGS], format_func=str.capitalize, key="try_faults_bug", **KEEP)
    st.button("Another run", key="try_faults_next", on_click=_next_run)
    made = broken_runs(seed)
    bug = None if chosen == NONE else chosen
    rule = _findings(made, bug, seed)
    return lambda key: _show(made, bug, rule, seed, key)


def _next_run() -> None:
    st.session_state[SEED] += 1


def _findings(made: BrokenRuns, bug: str | None, seed: int) -> Start | None:
    """Write what is known; returns where the broken rule is seen, once the reader has asked for it."""
    if bug is None:
        st.markdown(f"The same run twice: all {len(made.runs[None].output)} tokens are right.")
        return None
    st.markdown(f"**1 First wrong token.** {wrong_token_words(made, bug)}")
    step, sub, words = broken_rule(made, bug)
    if st.session_state.get(SHOWN) != (seed, bug):
        st.markdown("**2 The rule that broke.** Guess first: which one, and in which step?")
        st.button("Show the broken rule", key="try_faults_rule", on_click=_reveal, args=(seed, bug))
        return None
    st.markdown(f"**2 The rule that broke.** {words}")
    return Start(step, sub)


def _reveal(seed: int, bug: str) -> None:
    st.session_state[SHOWN] = (seed, bug)


def _show(made: BrokenRuns, bug: str | None, rule: Start | None, seed: int, key: str) -> None:
    """Both runs; the place is kept from bug to bug, and moved to the rule that broke when that is shown."""
    greedy, told = row_alone(right_trace(made, "greedy")), {} if bug is None else broken_narration(made, bug)
    title, layout = ("With the bug", bug) if bug else ("Nothing broken", "the same run")
    broken = Pane(row_alone(broken_trace(made, bug)), METHOD, greedy, title, layout, told)
    same, right_told = "same model, prompt and drafts", right_narration(made, bug)
    right = Pane(row_alone(right_trace(made)), METHOD, greedy, RIGHT, same, right_told)
    group = f"try-faults-{seed}-{bug}" if rule else "try-faults"
    show_panes([broken, right], ["row 0"], key, group, start=rule)
