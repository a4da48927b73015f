"""Where a command's results go: a file, or stdout for "-"; remarks go to stderr."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from emssd.errors import ConfigError
from emssd.trace import may_be_replaced, write_text_atomically

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
    try:
        replaced = may_be_replaced(target)
    except OSError as error:
        raise ConfigError(f"Cannot write {target}: {error.strerror or error}.") from None
    written = Path(os.path.realpath(target)).parent if replaced else target  # a folder, or a pipe or device
    if target.is_dir() or not written.exists() or not os.access(written, os.W_OK):
        raise ConfigError(f"Cannot write {target}: its folder must exist and be writable, and it must be a file.")


def write_text(path: str, text: str) -> None:
    """Write a result to a file, or to stdout for "-"."""
    if path == STDOUT:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    else:
        write_text_atomically(Path(path), text)
