"""A pytest plugin: stop at once if the package under test is not the copy with the planted fault."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VARIABLE = "EMSSD_COPY_UNDER_TEST"


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compare where `emssd` and its engine were imported from with the folder that the runner made."""
    import emssd
    import emssd.decoding

    wanted = Path(os.environ[VARIABLE]).resolve()
    for module in (emssd, emssd.decoding):
        found = Path(module.__file__ or "").resolve()
        if wanted not in found.parents:
            raise pytest.UsageError(f"{module.__name__} was imported from {found}, not from the copy in {wanted}.")
