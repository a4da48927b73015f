"""Which exercises have been passed or tried: a small file in the user's cache folder. No accounts, nothing is sent."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from emssd.embedded import cache_root
from emssd.errors import TraceError
from emssd.lessons.catalog import NUMBERS, shipped_answer
from emssd.lessons.checking import Outcome
from emssd.trace import write_text_atomically

MAX_BYTES = 2**20
LAST_PASSED = "That was the last exercise of the ten."
STATES = ("passed", "tried", "not yet")


@dataclass(frozen=True)
class Record:
    """What is known of one exercise.

    Args:
        passed: whether a check has ever passed; tries: checks so far.
        last: the newest outcome as `Outcome.to_dict` gives it, with "link" and "checked" (when, UTC).
    """

    passed: bool = False
    tries: int = 0
    last: dict[str, Any] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """One of `STATES`."""
        return "passed" if self.passed else "tried" if self.tries else "not yet"


def progress_file() -> Path:
    """Where progress is kept."""
    return cache_root() / "lessons.json"


def read_progress() -> dict[int, Record]:
    """Every lesson's record; empty ones where nothing is known or the file is damaged."""
    records = {number: Record() for number in NUMBERS}
    try:
        path = progress_file()
        if path.stat().st_size > MAX_BYTES:
            return records
        entries = json.loads(path.read_text(encoding="utf-8"))["lessons"]
        items = list(entries.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return records
    for name, entry in items:
        number = int(name) if str(name).isascii() and str(name).isdecimal() and len(str(name)) <= 3 else -1
        if number in records and isinstance(entry, dict):
            records[number] = _record(entry)
    return records


def record_outcome(outcome: Outcome, link: str | None = None) -> bool:
    """Remember an outcome; neither the solutions that come with the lessons count, nor a stub that is untouched.

    Returns:
        Whether it was written: a cache folder that cannot be written loses only this.
    """
    untouched = outcome.failure is not None and outcome.failure.untouched
    if outcome.number not in NUMBERS or untouched or shipped_answer(Path(outcome.file)):
        return False
    records = read_progress()
    old = records[outcome.number]
    checked = datetime.now(UTC).isoformat(timespec="seconds")
    file = str(Path(outcome.file).resolve())  # another folder may have a file of the same relative name
    last = {**outcome.to_dict(), "file": file, "link": link, "checked": checked}
    records[outcome.number] = Record(old.passed or outcome.passed, old.tries + 1, last)
    known = {str(number): vars(record) for number, record in records.items() if record.tries}
    try:
        progress_file().parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(progress_file(), json.dumps({"schema": 1, "lessons": known}, indent=1))
    except (OSError, TraceError):
        return False
    return True


def _record(entry: dict[str, Any]) -> Record:
    tries, last = entry.get("tries"), entry.get("last")
    return Record(
        entry.get("passed") is True,
        max(tries, 0) if isinstance(tries, int) and not isinstance(tries, bool) else 0,
        last if isinstance(last, dict) else {},
    )
