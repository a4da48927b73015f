"""Record the example that the page opens with: greedy, vanilla and EMS-SD on the prompts of a first run.

Run by hand: `OMP_WAIT_POLICY=PASSIVE python assets/traces/make_traces.py`. The three runs take one step each in turn,
as on the page. The fastest of three recordings is kept, so that what else the machine does enters as little as
possible. Titles and the words about the hardware go to index.json.
"""

from __future__ import annotations

import json
from pathlib import Path

from emssd.loading import LanguageModel, load_model
from emssd.prompts import default_prompts
from emssd.ui.live_run import LiveRequest, LiveRun
from emssd.ui.setup_form import DEFAULT_NEW_TOKENS, DEFAULT_PROMPTS

HERE = Path(__file__).resolve().parent
METHODS = ("vanilla", "ems-sd")
DRAFTS = 7
REPEATS = 3


def record(lm: LanguageModel, request: LiveRequest) -> LiveRun:
    """One run to its end."""
    run = LiveRun(lm, request, heartbeat=3600).start()
    run.join()
    if run.state != "finished":
        raise SystemExit(f"The run ended as {run.state}: {run.error}")
    return run


def decode_seconds(run: LiveRun) -> float:
    """Decode time of all methods together."""
    return sum(trace.summary()["seconds"]["total"] for trace in run.traces.values())


def main() -> None:
    """Record and write."""
    lm = load_model("smollm2-135m", device="cpu")
    entries = [entry for entry in default_prompts() if entry.id in DEFAULT_PROMPTS]
    request = LiveRequest(
        prompts=tuple(tuple(lm.encode(entry.prompt)) for entry in entries),
        titles=tuple(entry.title for entry in entries),
        methods=METHODS,
        num_draft_tokens=DRAFTS,
        max_new_tokens=DEFAULT_NEW_TOKENS,
    )
    run = min((record(lm, request) for _ in range(REPEATS)), key=decode_seconds)
    for name, trace in run.traces.items():
        trace.to_json(HERE / f"{name}.json")
    index = {
        "traces": list(run.traces),
        "panes": list(METHODS),
        "titles": list(request.titles),
        "where": run.hardware.replace("this CPU", "a CPU"),
        "note": f"{len(entries)} shipped prompts, SmolLM2-135M, {DRAFTS} drafts by prompt lookup. "
        "Press Run to do it here.",
    }
    (HERE / "index.json").write_text(json.dumps(index, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
