"""Record the example runs that the page opens with: every set with every method, through the command line.

Run by hand: `OMP_WAIT_POLICY=PASSIVE python assets/traces/make_traces.py [SET ...]`; without a name it makes all sets.
The methods of a set are recorded in turn, three times over, and of each method the fastest run is kept, so that what
else the machine does enters its times as little as possible. index.json lists the sets in the order of the page's menu.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from emssd import session
from emssd.__main__ import main as emssd_command
from emssd.trace import GenerationTrace

HERE = Path(__file__).resolve().parent
PROMPTS = HERE.parent / "prompts" / "presets"
METHODS = ("greedy", "vanilla", "packed-input", "ragged-cache", "ems-sd")
REPEATS = 3
THREADS = 2
MODEL = ("--model", "smollm2-135m", "--device", "cpu", "--dtype", "float32")


@dataclass(frozen=True)
class Preset:
    """One set: `settings` go to every method, `drafting` to all but greedy."""

    name: str
    title: str
    note: str
    settings: tuple[str, ...]
    drafting: tuple[str, ...] = ("--num-draft-tokens", "7")

    @property
    def prompts(self) -> Path:
        """Its prompts: id, title and prompt, one JSON object a line."""
        return PROMPTS / f"{self.name}.jsonl"

    def titles(self) -> list[str]:
        """Short row names."""
        return [json.loads(line)["title"] for line in self.prompts.read_text(encoding="utf-8").splitlines()]


PRESETS = (
    Preset(
        "figure2",
        "Paper’s worked example · 2 rows",
        "The first row keeps 3 of 5 drafts and the second none of 2; then they keep 1 of 2 and all 5. "
        "The drafts are scripted so that these counts are those of the paper’s Figure 2.",
        ("--max-new-tokens", "9"),
        (
            *("--drafter", "scripted", "--proposals", str(PROMPTS / "figure2-proposals.json")),
            *("--num-draft-tokens", "5", "--steps", "2"),
        ),
    ),
    Preset(
        "copy-rich",
        "Copy-rich batch · 8 rows",
        "Every row copies from its prompt, but each keeps its own number of drafts: "
        "vanilla moves all rows by the largest gain, and leaves holes in the others.",
        ("--max-new-tokens", "48"),
    ),
    Preset(
        "no-copy",
        "Nothing to copy · 4 rows",
        "The texts are new, so prompt lookup finds next to nothing, and nearly all of that is rejected: "
        "a row gains hardly more than one token a step, as without drafts.",
        ("--max-new-tokens", "40"),
    ),
    Preset(
        "slow-row",
        "One slow row · 4 rows",
        "Three rows copy, the storm report does not. Vanilla moves all rows by the fastest one’s gain, "
        "so holes pile up in the slow row, and every later step scans them.",
        ("--max-new-tokens", "40"),
    ),
    Preset(
        "all-accepted",
        "Everything accepted · 4 rows",
        "Every row copies word for word, and prompt lookup’s drafts are all kept in every step. "
        "All rows move by the same number of tokens, so vanilla has no holes; what is left is prompt padding.",
        ("--max-new-tokens", "41"),
        ("--num-draft-tokens", "4"),
    ),
    Preset(
        "early-finisher",
        "Early finisher · 4 rows",
        "The first row answers in one sentence and ends, the others go on. "
        "Vanilla keeps feeding the finished row to the model in every step; EMS-SD drops it.",
        ("--max-new-tokens", "56", "--chat"),
    ),
)


def record(preset: Preset) -> None:
    """Write the traces of one set."""
    folder = HERE / preset.name
    folder.mkdir(exist_ok=True)
    fastest: dict[str, GenerationTrace] = {}
    for _ in range(REPEATS):
        for method in METHODS:
            trace = _run(preset, method)
            if method not in fastest or _seconds(trace) < _seconds(fastest[method]):
                fastest[method] = trace
    for method, trace in fastest.items():
        text = trace.to_json(folder / f"{method}.json")
        print(f"{preset.name}/{method}: {len(text) / 1000:.0f} kB, {_seconds(trace):.2f} s", flush=True)


def _run(preset: Preset, method: str) -> GenerationTrace:
    """One run of `python -m emssd record`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.json"
        command = ["record", str(path), "--method", method, "--prompts", str(preset.prompts)]
        command += [*MODEL, "--top-tokens", "4", "--quiet", *preset.settings]
        command += preset.drafting if method != "greedy" else ()
        if code := emssd_command(command):
            raise SystemExit(code)
        return GenerationTrace.from_json(path)


def _seconds(trace: GenerationTrace) -> float:
    """Decode time."""
    return float(trace.summary()["seconds"]["total"])


def write_index() -> None:
    """The list that the page reads before it opens a set."""
    entries = [
        {
            "name": preset.name,
            "title": preset.title,
            "note": preset.note,
            "methods": list(METHODS),
            "titles": preset.titles(),
            "where": f"a CPU: {THREADS} threads, float32",
        }
        for preset in PRESETS
    ]
    text = json.dumps({"presets": entries}, ensure_ascii=False, indent=2)
    (HERE / "index.json").write_text(text + "\n", encoding="utf-8")


def main(names: list[str]) -> None:
    """Record the named sets, or all, and write index.json."""
    torch.set_num_threads(THREADS)
    session.load_model = cache(session.load_model)  # loaded once for all runs
    for preset in PRESETS:
        if not names or preset.name in names:
            record(preset)
    write_index()


if __name__ == "__main__":
    main(sys.argv[1:])
