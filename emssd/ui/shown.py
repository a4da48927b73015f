"""What the page shows: the traces of one run, from wherever they came."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emssd.config import METHODS
from emssd.errors import TraceError
from emssd.trace import GenerationTrace
from emssd.ui.comparison import Equality, compare_outputs, outputs_after
from emssd.ui.live_run import BASELINE, LiveRun
from emssd.ui.player_data import Pane, measured, player_data, too_large
from emssd.ui.token_text import visible

MAX_FILE_BYTES = 5 * 2**20
TITLE_LENGTH = 24


@dataclass
class Shown:
    """Traces by method; `panes` are those that the player compares, the baseline may be one of them."""

    traces: dict[str, GenerationTrace]
    panes: tuple[str, ...]
    titles: tuple[str, ...]
    where: str
    headline: str
    note: str = ""
    recorded: bool = False
    steps: dict[str, int] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    _player: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.steps = {name: len(trace.steps) for name, trace in self.traces.items()}

    @property
    def pane_traces(self) -> dict[str, GenerationTrace]:
        """The compared traces, left first."""
        return {name: self.traces[name] for name in self.panes}

    def equality(self) -> dict[str, Equality]:
        """Each method's output against greedy's."""
        return equalities(self.traces, self.steps)

    def player(self) -> dict[str, Any]:
        """The player's data, made once."""
        if self._player is None:
            baseline = self.traces.get(BASELINE)
            panes = [Pane(self.traces[name], name, baseline) for name in self.panes]
            self._player = player_data(panes, self.titles, time=measured(self.where))
        return self._player

    def too_large(self) -> str | None:
        """Why there is no player, in one sentence."""
        return next((reason for trace in self.pane_traces.values() if (reason := too_large(trace))), None)


def equalities(traces: dict[str, GenerationTrace], steps: dict[str, int]) -> dict[str, Equality]:
    """Each method's output against greedy's, as far as both have come; nothing without greedy."""
    if BASELINE not in traces:
        return {}
    outputs = {name: outputs_after(trace, steps[name]) for name, trace in traces.items()}
    done = {name: trace.finished and steps[name] == len(trace.steps) for name, trace in traces.items()}
    return {
        name: compare_outputs(outputs[BASELINE], output, done[BASELINE] and done[name])
        for name, output in outputs.items()
        if name != BASELINE
    }


def from_run(run: LiveRun) -> Shown:
    """A run that has ended, however it did."""
    names = [name for name in run.request.methods if run.steps[name]]
    shown = Shown({name: trace for name, trace in run.traces.items() if run.steps[name]}, tuple(names),
                  run.request.titles, run.hardware, "")  # fmt: skip
    shown.steps = {name: run.steps[name] for name in shown.traces}
    return shown


def from_folder(folder: Path) -> Shown:
    """The recorded example: index.json names the traces and says where they were measured.

    Raises:
        TraceError: a file is missing or damaged.
    """
    try:
        index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TraceError(f"The recorded example in {folder} cannot be read: {error}.") from None
    traces = {name: GenerationTrace.from_json(folder / f"{name}.json") for name in index["traces"]}
    return Shown(traces, tuple(index["panes"]), tuple(index["titles"]), index["where"], "Recorded example",
                 index["note"], recorded=True)  # fmt: skip


def from_files(files: Sequence[tuple[str, bytes]]) -> tuple[Shown | None, list[str]]:
    """Uploaded traces, oldest first: one or two compared methods and their baseline, all of the newest one's prompts.

    Returns:
        What to show, None if no file is good; and one sentence for each file that was left out.
    """
    traces: dict[str, GenerationTrace] = {}
    names: list[str] = []
    problems: list[str] = []
    for name, content in reversed(files):
        try:
            trace = _read(content)
            if trace.method in traces:
                raise TraceError(f"a newer file has the method {trace.method}, too.")
            if traces and _prompts(trace) != _prompts(next(iter(traces.values()))):
                raise TraceError(f"its prompts are not those of {names[0]}.")
        except TraceError as error:
            problems.append(f"{visible(name)} was left out: {error}")
            continue
        traces[trace.method] = trace
        names.insert(0, visible(name))
    if not traces:
        return None, problems[::-1]
    traces = dict(sorted(traces.items(), key=lambda item: list(METHODS).index(item[0])))
    compared = [name for name in traces if name != BASELINE] or [BASELINE]
    first = next(iter(traces.values()))
    where = f"{first.model.get('device', 'an unknown device')}, {first.model.get('dtype', 'unknown dtype')}"
    titles = tuple(prompt_title(row.prompt_text, number) for number, row in enumerate(first.rows))
    shown = Shown(traces, tuple(compared[:2]), titles, where, "Opened trace", ", ".join(names), recorded=True)
    return shown, problems[::-1]


def _prompts(trace: GenerationTrace) -> list[list[int]]:
    return [row.prompt_token_ids for row in trace.rows]


def _read(content: bytes) -> GenerationTrace:
    if len(content) > MAX_FILE_BYTES:
        raise TraceError(f"it has {len(content) / 2**20:.1f} MiB, and the page opens traces of up to 5 MiB.")
    trace = GenerationTrace.from_json(_text(content))
    if not trace.steps:
        raise TraceError("it has no steps, so there is nothing to show.")
    return trace


def _text(content: bytes) -> str:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TraceError(f"it is not UTF-8 text (byte {error.start}).") from None
    if text.lstrip()[:1] != "{":
        raise TraceError("it is not a JSON object.")
    return text


def prompt_title(text: str | None, number: int) -> str:
    """A short name of a row."""
    words = " ".join((text or "").split())
    if not words:
        return f"row {number}"
    return words if len(words) <= TITLE_LENGTH else words[: TITLE_LENGTH - 1].rstrip() + "…"
