"""The app, where a run without drafts takes a while for each step, and the number of live runs on the page.

For tests of what ends a run; the others of Run live use it too, so that torch is loaded by one server.
"""

import runpy
import threading
import time

import streamlit as st

from emssd.ui.live_run import LiveRun

STEP_SECONDS = 0.1

if not hasattr(LiveRun, "quick_next"):
    LiveRun.quick_next = LiveRun._next

    def slow_next(run, generation):
        if not run.request.num_draft_tokens:
            time.sleep(STEP_SECONDS)
        return run.quick_next(generation)

    LiveRun._next = slow_next

runpy.run_path("app.py")
threads = [thread for thread in threading.enumerate() if thread.name == "emssd-live-run"]
st.html(f'<span data-testid="live-runs">{len(threads)}</span>')
