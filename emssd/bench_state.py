"""What `bench` has measured so far, kept on disk after every repeat, so that an interrupted benchmark goes on.

The file has one JSON object a line: first the settings, then the expected outputs of a prompt set, a calibration, or
one repeat at one batch size. A repeat is kept whole or not at all, so that its runs are from one process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from emssd.errors import ConfigError, shown
from emssd.step_counts import StepCounts

if sys.platform != "win32":
    import fcntl

VERSION = 1
FILE_NAME = "measurements.jsonl"
MAX_BYTES = 2**30
PASSING = ("load_average", "date")
"""Entries of the environment that may differ between the parts of one benchmark."""

COUNTS = len(fields(StepCounts))

Record = dict[str, Any]


@dataclass
class BenchState:
    """Measurements of one benchmark.

    Args:
        header: version, settings and environment.
        path: the file; None keeps nothing on disk.
        records: in the order in which they were made.
        lock: descriptor of the file that keeps other processes from it until `close`; None where nothing is kept.
    """

    header: Record
    path: Path | None = None
    records: list[Record] = field(default_factory=list)
    lock: int | None = None

    @classmethod
    def open(
        cls, folder: Path | None, settings: Record, environment: Record, resume: bool, say: Callable[[str], None]
    ) -> BenchState:
        """Begin a benchmark, or go on with the one in `folder`.

        Args:
            folder: where measurements are kept; None keeps none.
            settings: what the measurements are of.
            environment: where they are made.
            resume: go on with those in the folder.
            say: hears what was found.

        Raises:
            ConfigError: the folder has other measurements, a damaged file, is used by another benchmark, or cannot be
                written.
        """
        header = {"emssd_bench": VERSION, "settings": settings, "environment": environment}
        if folder is None:
            return cls(header)
        path = folder / FILE_NAME
        lock = _locked(path)
        try:
            if not os.fstat(lock).st_size:
                if resume:
                    say(f"There are no measurements in {folder} yet: this is the beginning.")
                _append(path, header)
                return cls(header, path, lock=lock)
            if not resume:
                raise ConfigError(f"{folder} has measurements already: add --resume to go on, or name another folder.")
            found = read_state(path)
            _check_same(folder, found.header, header)
        except BaseException:
            os.close(lock)
            raise
        repeats = sum(record["kind"] == "repeat" for record in found.records)
        say(f"Going on after {repeats} finished repeat{'' if repeats == 1 else 's'} in {folder}.")
        found.lock = lock
        return found

    def close(self) -> None:
        """Let others write to the file. The records stay."""
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def add(self, record: Record) -> None:
        """Keep a record; with a file it is on disk when this returns.

        Raises:
            ConfigError: it cannot be written.
        """
        if self.path is not None:
            _append(self.path, record)
        self.records.append(record)

    def repeats(self, prompts: str, batch: int) -> list[Record]:
        """Finished repeats of a prompt set at a batch size."""
        return [
            record
            for record in self.records
            if record["kind"] == "repeat" and record["prompts"] == prompts and record["batch"] == batch
        ]

    def expected(self, prompts: str) -> list[list[int]] | None:
        """Outputs of plain decoding, if they are known."""
        for record in self.records:
            if record["kind"] == "expected" and record["prompts"] == prompts:
                return [list(output) for output in record["outputs"]]
        return None

    @property
    def calibration(self) -> Record | None:
        """The measurement of the machine that was made with this benchmark."""
        found = [record["measured"] for record in self.records if record["kind"] == "calibration"]
        return found[-1] if found else None


def _locked(path: Path) -> int:
    """The file, made where it is missing, as a descriptor that locks it where the system has such locks.

    Raises:
        ConfigError: another process has it, or it cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigError(f"Cannot write {path}: {error.strerror or error}.") from None
    if sys.platform != "win32":
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise ConfigError(
                f"Another bench is writing to {path.parent}: wait until it has ended, or name another folder."
            ) from None
        except OSError:  # a file system without locks
            pass
    return descriptor


def _append(path: Path, record: Record) -> None:
    """Write a record at the file's end. One that is not written whole leaves the file as it was."""
    line = json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":")) + "\n"
    before = path.stat().st_size
    try:
        with open(path, "ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        os.truncate(path, before)
        raise ConfigError(f"Cannot write {path}: {error.strerror or error}.") from error


def _check_same(folder: Path, theirs: Record, ours: Record) -> None:
    for part in ("settings", "environment"):
        before, now = theirs[part], ours[part]
        for name in [*now, *(name for name in before if name not in now)]:
            if name in PASSING or before.get(name) == now.get(name):
                continue
            if name == "prompts":
                raise ConfigError(f"The measurements in {folder} are of other prompts: name another folder.")
            raise ConfigError(
                f"The measurements in {folder} were made with {name} {_short(before.get(name))}, and now it is "
                f"{_short(now.get(name))}: use what was used before, or name another folder."
            )


def _short(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return value if isinstance(value, str) else shown(value)


def read_state(path: Path) -> BenchState:
    """Read kept measurements. A last line that was cut while it was written is dropped, from the file too.

    Raises:
        ConfigError: the file cannot be read or is damaged elsewhere; names the line.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path} is too large for measurements of bench: name another folder.")
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if whole and len(whole) < len(data):
            os.truncate(path, len(whole))
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror or error}.") from None
    lines = whole.split(b"\n")[:-1]
    records = [_read_line(path, number, line) for number, line in enumerate(lines, start=1)]
    header = records[0] if records else {}
    if header.get("emssd_bench") != VERSION or not all(
        isinstance(header.get(name), dict) for name in ("settings", "environment")
    ):
        raise _damaged(path, 1, "it does not begin with the settings of a benchmark")
    for number, record in enumerate(records[1:], start=2):
        problem = _problem(record)
        if problem:
            raise _damaged(path, number, problem)
    return BenchState(header, path, records[1:])


def _damaged(path: Path, number: int, reason: str) -> ConfigError:
    return ConfigError(f"{path}, line {number}, is damaged ({reason}): move the file away, or name another folder.")


def _read_line(path: Path, number: int, line: bytes) -> Record:
    try:
        record = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise _damaged(path, number, "not JSON") from None
    if not isinstance(record, dict):
        raise _damaged(path, number, "not a JSON object")
    return record


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _problem(record: Record) -> str | None:
    """What is wrong with a record; None if nothing."""
    kind = record.get("kind")
    if kind == "calibration":
        return None if isinstance(record.get("measured"), dict) else "measured is missing"
    if kind not in ("expected", "repeat"):
        return "its kind is unknown"
    if not isinstance(record.get("prompts"), str):
        return "prompts is missing"
    if kind == "expected":
        return None if _is_ids(record.get("outputs")) else "outputs must be lists of token ids"
    if not _is_count(record.get("batch")) or not _is_number(record.get("prefill_seconds")):
        return "batch and prefill_seconds must be numbers"
    if not _is_count(record.get("copied_rows", 0)):
        return "copied_rows must be a whole number"
    results = record.get("results")
    if not isinstance(results, list) or not results:
        return "results is missing"
    return next((problem for problem in map(_result_problem, results) if problem), None)


def _result_problem(result: object) -> str | None:
    if not isinstance(result, dict) or not all(isinstance(result.get(name), str) for name in ("method", "drafter")):
        return "a result must name method and drafter"
    if not all(_is_count(result.get(name)) for name in ("rows", "decode_tokens", "steps")):
        return "rows, decode_tokens and steps must be whole numbers"
    seconds = result.get("seconds")
    if not isinstance(seconds, Mapping) or not _is_number(seconds.get("total")):
        return "seconds.total must be a number"
    if not all(_is_number(each) for each in seconds.values()):
        return "seconds must be numbers"
    differences = result.get("differences")
    if not isinstance(differences, list) or not all(isinstance(each, dict) for each in differences):
        return "differences must be a list of objects"
    counts = result.get("counts", [])
    good = isinstance(counts, list) and all(isinstance(step, list) and len(step) == COUNTS for step in counts)
    return None if good and all(_is_number(each) for step in counts for each in step) else "counts must be numbers"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e15


def _is_count(value: object) -> bool:
    return isinstance(value, int) and _is_number(value)


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(output, list) and all(_is_count(token) for token in output) for output in value
    )
