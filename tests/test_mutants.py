"""The planted faults of `make mutants` still fit the engine: checked here in a second, tried out there in minutes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.mutants.only_the_copy import VARIABLE, pytest_sessionstart
from tests.mutants.planted import FAST_SUITE, PLANTED

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_each_fault_can_be_planted(planted, tmp_path):
    """Its text occurs exactly once, the change compiles, and its tests exist."""
    target = tmp_path / planted.file
    shutil.copy(ROOT / "emssd" / planted.file, target)
    planted.apply(tmp_path)
    assert planted.new in target.read_text(encoding="utf-8")
    target.write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match=r"0 times in .* instead of once"):
        planted.apply(tmp_path)
    for killer in (*planted.killers, *FAST_SUITE):
        file, _, name = killer.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8") if name else (ROOT / file).is_file()


def test_the_faults_have_names_of_their_own():
    names = [planted.name for planted in PLANTED]
    assert len(set(names)) == len(names) >= 18
    assert len({(planted.file, planted.old, planted.new) for planted in PLANTED}) == len(names)


def test_a_run_against_another_copy_is_refused(tmp_path, monkeypatch):
    """An installed package must not be tested in place of the copy: then every fault would seem to survive."""
    monkeypatch.setitem(os.environ, VARIABLE, str(tmp_path))
    with pytest.raises(pytest.UsageError, match="not from the copy"):
        pytest_sessionstart(None)
    monkeypatch.setitem(os.environ, VARIABLE, str(ROOT))
    pytest_sessionstart(None)
