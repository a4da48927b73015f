"""What can be shown: sets of traces of the same prompts, one per method. Recorded, opened from files, or just run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from emssd.config import BASELINE, METHODS
from emssd.errors import TraceError
from emssd.trace import GenerationTrace
from emssd.ui.comparison import Equality, compare_outputs, other_run
from emssd.ui.token_text import visible

FOLDER = Path(__file__).resolve().parents[2] / "assets" / "traces"
VIEW_VARIABLE = "EMSSD_VIEW"
"""Environment variable with files that the page opens with, absolute paths separated by `os.pathsep`."""
MAX_FILE_BYTES = 5 * 2**20
TITLE_LENGTH = 24
FAVOURITES = ("vanilla", "ems-sd")


@dataclass(frozen=True)
class PresetInfo:
    """A recorded set as the index lists it; fields as in `TraceSet`."""

    name: str
    title: str
    note: str
    methods: tuple[str, ...]
    titles: tuple[str, ...]
    where: str


@dataclass(frozen=True)
class TraceSet:
    """Traces of the same prompts.

    Args:
        name: a preset's name, which links use; "live" or "opened" otherwise.
        title: its name in the menu.
        note: the point that the set makes, in a sentence or two.
        traces: by method name, in the order of `METHODS`; "greedy" is the baseline where present.
        titles: [rows] short row names.
        where: where times were measured: "a CPU: 2 threads, float32".
    """

    name: str
    title: str
    note: str
    traces: dict[str, GenerationTrace]
    titles: tuple[str, ...]
    where: str

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods that were run."""
        return tuple(self.traces)

    @property
    def baseline(self) -> GenerationTrace | None:
        """Greedy's trace."""
        return self.traces.get(BASELINE)

    def equalities(self) -> dict[str, Equality]:
        """Each other method's output against greedy's; nothing without greedy."""
        base = self.baseline
        if base is None:
            return {}
        return {
            name: compare_outputs(_outputs(base), _outputs(trace), base.finished and trace.finished)
            for name, trace in self.traces.items()
            if name != BASELINE
        }


def _outputs(trace: GenerationTrace) -> list[list[int]]:
    return [row.output_token_ids for row in trace.rows]


def default_pair(methods: Sequence[str]) -> tuple[str, str]:
    """The two methods that are compared first; the same one twice where there is no other."""
    right = next((name for name in reversed(FAVOURITES) if name in methods), methods[-1])
    others = [name for name in methods if name != right] or [right]
    left = next((name for name in FAVOURITES if name in others), others[-1])
    return left, right


def preset_index() -> list[PresetInfo]:
    """The recorded sets in menu order.

    Raises:
        TraceError: the index is missing or damaged.
    """
    path = FOLDER / "index.json"
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["presets"]
        return [
            PresetInfo(
                name=str(entry["name"]),
                title=str(entry["title"]),
                note=str(entry["note"]),
                methods=_ordered(entry["methods"]),
                titles=tuple(map(str, entry["titles"])),
                where=str(entry["where"]),
            )
            for entry in entries
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise TraceError(f"The list of recorded examples in {path} cannot be read ({reason}).") from None


def load_preset(name: str) -> TraceSet:
    """A recorded set with all its traces.

    Raises:
        TraceError: there is no such set, or a file is missing or damaged.
    """
    info = next((info for info in preset_index() if info.name == name), None)
    if info is None:
        raise TraceError(f"There is no recorded example {visible(name)!r}.")
    traces = {method: GenerationTrace.from_json(FOLDER / info.name / f"{method}.json") for method in info.methods}
    return TraceSet(info.name, info.title, info.note, traces, info.titles, info.where)


def _ordered(methods: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in METHODS if name in methods)


def live_set(traces: Mapping[str, GenerationTrace], titles: Sequence[str], where: str) -> TraceSet | None:
    """The last live run, however it ended; None where nothing was decoded.

    Args:
        traces: by method name; those without a step are left out.
        titles: [rows] short row names.
        where: the device in words, as "this CPU: 2 threads, float32".
    """
    begun = {name: traces[name] for name in _ordered(list(traces)) if traces[name].steps}
    if not begun:
        return None
    first = next(iter(begun.values()))
    whole = all(trace.finished for trace in begun.values())
    note = f"{len(titles)} of your prompts on {visible(str(first.model.get('name', 'a model')))}, run here"
    note += "." if whole else "; the run was stopped before its end, so the methods have come to different steps."
    return TraceSet("live", "Last live run", note, begun, tuple(titles), where)


def opened_set(files: Sequence[tuple[str, bytes]], limit: int = MAX_FILE_BYTES) -> tuple[TraceSet | None, list[str]]:
    """Traces from files, oldest first, all of the newest one's prompts, model and limits.

    Args:
        files: (name, content) of each.
        limit: bytes that a file may have.

    Returns:
        The set, None if no file is good; and one sentence for each file that was left out.
    """
    traces: dict[str, GenerationTrace] = {}
    names: list[str] = []
    problems: list[str] = []
    for name, content in reversed(files):
        try:
            trace = _read(content, limit)
            if trace.method in traces:
                raise TraceError(f"a newer file has the method {trace.method}, too.")
            if traces and (what := other_run(next(iter(traces.values())), trace)):
                raise TraceError(f"it has {what} than {names[-1]}.")
        except TraceError as error:
            problems.append(f"{visible(name)} was left out: {error}")
            continue
        traces[trace.method] = trace
        names.insert(0, visible(name))
    if not traces:
        return None, problems[::-1]
    traces = {name: traces[name] for name in _ordered(list(traces))}
    first = next(iter(traces.values()))
    device, dtype = (visible(str(first.model.get(name, "unknown"))) for name in ("device", "dtype"))
    titles = tuple(prompt_title(row.prompt_text, number) for number, row in enumerate(first.rows))
    missing = "" if BASELINE in traces else " Open the greedy trace of the same prompts, too, to compare with it."
    times = " Measured times are worth comparing where one computer recorded all files." if len(traces) > 1 else ""
    note = f"From {', '.join(names)}.{missing}{times}"
    opened = TraceSet("opened", f"Opened: {', '.join(names)}", note, traces, titles, f"{device}, {dtype}")
    return opened, problems[::-1]


def viewed_files() -> tuple[Path, ...]:
    """Files that the command line asked to open."""
    return tuple(Path(name) for name in os.environ.get(VIEW_VARIABLE, "").split(os.pathsep) if name)


def viewed_set(paths: Sequence[Path]) -> tuple[TraceSet | None, list[str]]:
    """Local files as `opened_set` returns them, without a limit of their size but the reader's own."""
    files: list[tuple[str, bytes]] = []
    problems: list[str] = []
    for path in paths:
        try:
            files.append((path.name, path.read_bytes()))
        except OSError as error:
            problems.append(f"{visible(path.name)} was left out: it cannot be read ({error.strerror}).")
    opened, more = opened_set(files, limit=2**62)
    return opened, problems + more


def _read(content: bytes, limit: int) -> GenerationTrace:
    if len(content) > limit:
        size = f"{len(content) / 2**20:.1f}"
        raise TraceError(f"it has {size} MiB, and the page opens traces of up to {limit // 2**20} MiB.")
    trace = GenerationTrace.from_json(_text(content))
    if not trace.steps:
        raise TraceError("it has no steps, so there is nothing to show.")
    return trace


def _text(content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
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
