"""Where a command's results go: a file, or stdout for "-"; remarks go to stderr."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from emssd.errors import ConfigError
from emssd.trace import write_text_atomically

STDOUT = "-"


def note(text: str) -> None:
    """One line on stderr."""
    print(" ".join(text.split("\n")), file=sys.stderr, flush=True)


def check_target(path: str | None) -> None:
    """Refuse a file that could not be written, before any work.

    Raises:
        ConfigError: its folder is missing or read-only, or it is a folder.
    """
    if path in (None, STDOUT):
        return
    target = Path(str(path))
    folder = target.parent
    if target.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"Cannot write {target}: its folder must exist and be writable, and it must be a file.")


def write_text(path: str, text: str) -> None:
    """Write a result to a file, or to stdout for "-"."""
    if path == STDOUT:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    else:
        write_text_atomically(Path(path), text)
