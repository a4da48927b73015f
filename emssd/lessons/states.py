"""Correct traces of a failing case, kept in the user's cache folder, so that a link can open them in the player.

A file's name is a digest of its content: nothing but such a name is ever looked up, and a file that does not match its
name is not used. The newest few are kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from emssd.config import METHODS, SPECULATIVE_METHODS
from emssd.embedded import cache_root
from emssd.errors import TraceError, shown
from emssd.lessons.checking import Failure
from emssd.trace import GenerationTrace, write_text_atomically

APP_VARIABLE = "EMSSD_APP_URL"
APP_URL = "http://localhost:8501"
IDENTITY = re.compile(r"[0-9a-f]{12}")
KEPT = 32
CHECKED = "ems-sd"
MAX_BYTES = 4 * 2**20


def folder() -> Path:
    """Where the traces lie."""
    return cache_root() / "lesson-states"


def save_state(traces: Mapping[str, GenerationTrace]) -> str | None:
    """Keep traces of one case.

    Args:
        traces: by method name.

    Returns:
        Their id; None where they are too large or the cache folder cannot be written.
    """
    text = json.dumps({name: _plain(trace) for name, trace in traces.items()}, separators=(",", ":"), sort_keys=True)
    content = text.encode("utf-8")
    if not traces or len(content) > MAX_BYTES:
        return None
    identity = _digest(content)
    try:
        folder().mkdir(parents=True, exist_ok=True)
        write_text_atomically(folder() / f"{identity}.json", text)
    except (OSError, TraceError):
        return None
    _forget_old(identity)
    return identity


def load_state(identity: str) -> dict[str, GenerationTrace]:
    """Traces by method name.

    Raises:
        TraceError: there is no such state, or its file is damaged.
    """
    if not IDENTITY.fullmatch(identity):
        raise TraceError(f"There is no state {shown(identity)}: a state's name has 12 of the digits 0-9 and a-f.")
    path = folder() / f"{identity}.json"
    gone = f"The state {identity} is no longer kept: run `emssd lesson check` again for a new link."
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_BYTES:
            raise TraceError(gone)
        content = path.read_bytes()
    except OSError:
        raise TraceError(gone) from None
    if _digest(content) != identity:
        raise TraceError(f"The state {identity} is damaged: run `emssd lesson check` again.")
    data = json.loads(content)
    return {name: GenerationTrace.from_json(json.dumps(data[name])) for name in METHODS if name in data}


def state_link(
    identity: str, left: str, right: str | None = None, step: int = 1, sub: str = "commit", pin: str | None = None
) -> str:
    """The address at which the app shows a state; its base is $EMSSD_APP_URL, else the app's usual one."""
    base = os.environ.get(APP_VARIABLE, "").rstrip("/") or APP_URL
    query: dict[str, Any] = {"state": identity, "left": left, "right": right, "step": step, "sub": sub, "pin": pin}
    return f"{base}/?{urlencode({name: value for name, value in query.items() if value is not None})}"


def failure_link(failure: Failure) -> str | None:
    """Keep a failure's traces and give the address that shows them; None where there is nothing to keep or no place."""
    if not failure.traces:
        return None
    identity = save_state(failure.traces)
    if identity is None:
        return None
    left, right = _pair(list(failure.traces))
    last = min(len(trace.steps) for trace in failure.traces.values()) - 1
    step = min(1 if failure.step is None else failure.step, last)
    return state_link(identity, left, right, step, "commit" if step == 0 else failure.sub, failure.pin)


def _pair(methods: list[str]) -> tuple[str, str | None]:
    """The method that is checked, on the left, where a pin stands; and one to compare it with, where there is one.

    A case with EMS-SD is about EMS-SD; else it is about the first speculative method.
    """
    ordered = [name for name in METHODS if name in methods]
    speculative = [name for name in ordered if name in SPECULATIVE_METHODS]
    checked = CHECKED if CHECKED in methods else (speculative or ordered)[0]
    others = [name for name in (*speculative, *ordered) if name != checked]
    return checked, others[0] if others else None


def _plain(trace: GenerationTrace) -> dict[str, Any]:
    """Without when it was made, so that the same case has the same name."""
    return {**trace.to_dict(), "created": ""}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _forget_old(newest: str) -> None:
    """Remove all but the newest states; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        files = [path for path in folder().glob("*.json") if IDENTITY.fullmatch(path.stem) and path.stem != newest]
        ages = sorted(files, key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in ages[KEPT - 1 :]:
            path.unlink(missing_ok=True)
