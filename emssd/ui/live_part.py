"""The part of the page that polls a run: state, progress, texts, equality and speed-ups so far."""

from __future__ import annotations

import streamlit as st

from emssd.config import BASELINE, METHOD_TITLES
from emssd.ui import live_view
from emssd.ui.live_run import LiveRun
from emssd.ui.narration import plural
from emssd.ui.progress import RunProgress

SHARED = (
    " Another run shares this machine, one step each in turn: the end comes later, and decode times suffer from cold "
    "caches alone."
)
SMALL_BATCH = 4
POLL_SECONDS = {"small": 1.0, "large": 1.5}
"""A poll costs a browser on the same two cores 0.1 to 0.2 s of one of them, which decoding then lacks. A round of three
steps takes about as long as this; pressing Cancel does not wait for it."""


def poll_seconds(run: LiveRun) -> float:
    """How often the page looks at a run."""
    return POLL_SECONDS["small" if len(run.request.titles) <= SMALL_BATCH else "large"]


def live_part(run: LiveRun, view: RunProgress, running: bool) -> None:
    """Draw a run as far as it has come.

    Args:
        run: polled here, which keeps it going.
        view: what has been drawn of it; only new steps are looked at.
        running: whether the page still thinks that it goes on.
    """
    run.poll()
    ended = run.done
    view.advance(dict(run.steps))
    equal = view.equalities()
    with st.container(border=True, key="status", horizontal=True, vertical_alignment="center"):
        shown = {name: equal[name] for name in run.request.methods if name in equal}
        st.html(_status(run, view) + live_view.badges(shown))
        if not ended:
            icon = ":material/stop_circle:"
            st.button("Cancel", icon=icon, on_click=run.cancel, disabled=run.stopping, key="cancel")
    if any(method.steps for method in view.methods.values()):
        _board(run, view, {name for name, each in equal.items() if not each.identical}, ended)
    if ended and running:
        st.rerun()


def _board(run: LiveRun, view: RunProgress, differing: set[str], ended: bool) -> None:
    panes = {name: view.methods[name] for name in run.request.methods}
    every = {name: view.methods[name] for name in dict.fromkeys((*run.request.methods, *view.methods))}
    with st.container(horizontal=True, key="board", gap=None):
        with st.container(key="prompts", gap=None):
            st.html(_prompts(run))
        with st.container(key="texts", gap=None):
            st.html(live_view.heads(panes))
            for row, title in enumerate(run.request.titles):
                st.html(live_view.text_row(panes, row, title, not ended))
            st.html(live_view.origin_legend())
        with st.container(key="cards", gap=None):
            clocks = {name: method.clock for name, method in every.items()}
            st.html(live_view.speed_card(clocks, differing, run.hardware, run.state == "finished"))
            if acceptance := live_view.acceptance_card(panes):
                st.html(acceptance)
            st.html(live_view.work_card(every))


def _prompts(run: LiveRun) -> str:
    rows = next(iter(run.traces.values())).rows
    request = run.request
    drafter = {
        "prompt": "lookup in the prompt",
        "context": "lookup in prompt and context",
        "draft-model": run.draft_name or "a draft model",
        "none": "none",
    }[request.source]
    facts = {
        "Model": run.model_name,
        "Drafter": drafter,
        "Drafts per step": str(request.num_draft_tokens),
        "New tokens per row": str(request.max_new_tokens),
        "Device": run.hardware.removeprefix("this "),
    }
    texts = [row.prompt_text or "" for row in rows]
    return live_view.prompt_cards(request.titles, texts, [len(ids) for ids in request.prompts], facts)


def _status(run: LiveRun, view: RunProgress) -> str:
    most = run.request.most_tokens
    emitted = {name: method.emitted for name, method in view.methods.items()}
    counts = ", ".join(f"{METHOD_TITLES[name]} {count}" for name, count in emitted.items())
    share = 1.0 if run.state == "finished" else sum(emitted.values()) / max(most * len(emitted), 1)
    bar = live_view.progress(min(share, 1.0), f"{counts} of at most {most} tokens", _time_words(run, share))
    return live_view.status_line(run.state, *state_words(run, view)) + bar


def _time_words(run: LiveRun, share: float) -> str:
    spent = f"{run.seconds:.1f} s"
    if run.done or share <= 0.05:
        return spent
    return f"{spent}, about {run.seconds * (1 - share) / share:.0f} s left"


def state_words(run: LiveRun, view: RunProgress) -> tuple[str, str]:
    """What the run is doing, and one sentence beside it."""
    counts = [method.steps for method in view.methods.values()]
    last = max((count - 1 for count in counts), default=0)
    kept = "What was decoded is kept." if last >= 0 else "Nothing had been decoded yet."
    stopped = f"Stopped after step {last}" if last > 0 else "Stopped before the first step"
    rows = plural(len(run.request.titles), "row")
    shared = SHARED if run.sharing else ""
    every = "Both methods" if BASELINE in run.request.methods else "Greedy and both methods"
    waiting = "Another run is in the middle of a step on this machine; the next turn is yours."
    reading = "Each method fills its own cache first; this is not in its decode time."
    if run.stopping:
        return "Stopping", "What is being computed now is finished first."
    return {
        "waiting": ("Waiting", waiting),
        "decoding": ("Decoding", f"{every}, one step each in turn.{shared}")
        if all(counts)
        else ("Reading the prompts", reading + shared),
        "finished": ("Finished", f"{rows}. {every} took turns, one step each.{_shared_words(run)}"),
        "cancelled": (stopped, kept),
        "abandoned": (stopped, f"Nobody was watching any more. {kept}"),
        "failed": ("Failed", f"{run.error} {kept}"),
    }[run.state]


def _shared_words(run: LiveRun) -> str:
    if not run.shared:
        return ""
    return " Another run shared the machine: its steps are not in these decode times, but they left the caches cold."
