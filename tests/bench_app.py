"""The app for `tests.bench_ui`: every live run notes when its steps ended; a run without a page can be asked for.

Files in the folder BENCH_FOLDER: the n-th run to end writes `run-n.json`; a file `bare` starts the latest request again
with a poller that only polls.
"""

import json
import os
import runpy
import threading
import time
from pathlib import Path

from emssd.ui.live_part import poll_seconds
from emssd.ui.live_run import LiveRun

FOLDER = Path(os.environ["BENCH_FOLDER"])


def note(run: LiveRun) -> None:
    """Write a run's times; steps are (method's step, clock when it ended)."""
    LiveRun.count += 1
    tokens = {
        name: sum(row.num_emitted for step in trace.steps if step.kind == "decode" for row in step.rows)
        for name, trace in run.traces.items()
    }
    facts = {
        "state": run.state,
        "tokens": tokens,
        "steps": run.step_ends,
        "ended": time.time(),
        "cancelled": getattr(run, "cancelled_at", None),
        "bare": getattr(run, "bare", False),
    }
    part = FOLDER / "part"
    part.write_text(json.dumps(facts))
    part.rename(FOLDER / f"run-{LiveRun.count}.json")


def patch() -> None:
    """Make live runs note what they do, once in this process."""
    LiveRun.count, make, work, advance, cancel = 0, LiveRun.__init__, LiveRun._work, LiveRun._next, LiveRun.cancel

    def __init__(run, lm, request, **settings):
        run.step_ends = []
        LiveRun.latest = (lm, request)
        make(run, lm, request, **settings)

    def _work(run):
        work(run)
        note(run)

    def _next(run, generation):
        step = advance(run, generation)
        if step is not None:
            run.step_ends.append((step, time.time()))
        return step

    def cancelled(run):
        run.cancelled_at = time.time()
        cancel(run)

    LiveRun.__init__, LiveRun._work, LiveRun._next, LiveRun.cancel = __init__, _work, _next, cancelled
    threading.Thread(target=wait_for_orders, daemon=True).start()


def wait_for_orders() -> None:
    """Run the latest request again whenever the file `bare` appears."""
    while True:
        time.sleep(0.2)
        order = FOLDER / "bare"
        if not order.exists():
            continue
        order.unlink()
        run = LiveRun(*LiveRun.latest)
        run.bare = True
        run.start()
        while not run.done:
            run.poll()
            run.join(poll_seconds(run))


if not hasattr(LiveRun, "count"):
    patch()

runpy.run_path("app.py")
