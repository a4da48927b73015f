"""The part of the page that polls a run: state, progress, texts, equality and speed-ups so far."""

from __future__ import annotations

import streamlit as st

from emssd.config import METHOD_TITLES
from emssd.ui import live_view
from emssd.ui.comparison import clock
from emssd.ui.live_run import LiveRun
from emssd.ui.narration import plural
from emssd.ui.shown import equalities


def live_part(run: LiveRun, running: bool) -> None:
    """Draw a run as far as it has come; `running` says whether the page still thinks that it goes on."""
    run.poll()
    ended = run.done
    steps = {name: count for name, count in run.steps.items() if count}
    traces = {name: run.traces[name] for name in steps}
    equal = equalities(traces, steps)
    compared = {name: equal[name] for name in run.request.methods if name in equal}
    with st.container(border=True, key="status", horizontal=True, vertical_alignment="center"):
        st.html(_status(run, steps) + live_view.badges(compared))
        if not ended:
            st.button("Cancel", icon=":material/stop_circle:", on_click=run.cancel, key="cancel")
    panes = {name: traces[name] for name in run.request.methods if name in traces}
    if panes:
        clocks = {name: clock(trace.steps[: steps[name]]) for name, trace in traces.items()}
        differing = {name for name, each in equal.items() if not each.identical}
        st.html(
            live_view.board(
                live_view.texts(panes, steps, run.request.titles, not ended),
                live_view.speed_card(clocks, differing, run.hardware, run.state == "finished"),
                live_view.work_card({**panes, **traces}, steps),
            )
        )
    if ended and running:
        st.rerun()


def _status(run: LiveRun, steps: dict[str, int]) -> str:
    emitted = dict.fromkeys(run.steps, 0)
    for name, count in steps.items():
        emitted[name] = sum(row.num_emitted for step in run.traces[name].steps[:count] for row in step.rows)
    most = run.request.most_tokens
    counts = ", ".join(f"{METHOD_TITLES[name]} {count}" for name, count in emitted.items())
    share = 1.0 if run.state == "finished" else sum(emitted.values()) / max(most * len(emitted), 1)
    bar = live_view.progress(min(share, 1.0), f"{counts} of at most {most} tokens", f"{run.seconds:.1f} s")
    return live_view.status_line(run.state, *state_words(run, steps)) + bar


def state_words(run: LiveRun, steps: dict[str, int]) -> tuple[str, str]:
    """What the run is doing, and one sentence beside it."""
    last = max((count - 1 for count in steps.values()), default=0)
    kept = "What was decoded is kept." if steps else "Nothing had been decoded yet."
    stopped = f"Stopped after step {last}" if steps else "Stopped"
    rows = plural(len(run.request.titles), "row")
    return {
        "waiting": ("Waiting", "Another run is decoding on this machine."),
        "decoding": ("Decoding", "Greedy and both methods, one step each in turn.")
        if all(run.steps.values())
        else ("Reading the prompts", "Each method fills its own cache first; this is not in its decode time."),
        "finished": ("Finished", f"{rows}. Greedy and both methods took turns, one step each."),
        "cancelled": (stopped, kept),
        "abandoned": (stopped, f"Nobody was watching for {run.heartbeat:.0f} s. {kept}"),
        "failed": ("Failed", f"{run.error} {kept}"),
    }[run.state]
