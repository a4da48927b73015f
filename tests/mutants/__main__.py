"""Plant each fault in a copy of the package, run the tests against the copy, and show which test found it.

python -m tests.mutants [NAME ...]    exits 1 if a fault survives, 2 if one cannot be planted or the tests cannot run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.only_the_copy import VARIABLE
from tests.mutants.planted import FAST_SUITE, PLANTED, Planted

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 2
TEST_SECONDS = 60
RUN_SECONDS = 600
TESTS_FAILED = 1  # pytest's exit codes: 0 passed, 1 some failed, more: it could not run them


class CannotRunError(RuntimeError):
    """The tests could not be run against a copy, so nothing can be said about a fault."""


@dataclass(frozen=True)
class Outcome:
    """What the tests said about one fault."""

    planted: Planted
    killer: str | None
    why: str
    seconds: float


def main(names: Sequence[str]) -> int:
    """Check the unmutated copy, then every fault (or the named ones); print a table."""
    unknown = set(names) - {planted.name for planted in PLANTED}
    if unknown:
        print(f"No planted fault is called {', '.join(sorted(unknown))}.", file=sys.stderr)
        return 2
    chosen = [planted for planted in PLANTED if not names or planted.name in names]
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for planted in PLANTED:
                planted.apply(make_copy(Path(folder) / planted.name) / "emssd")
        check_unmutated(chosen)
        print(f"Without a fault all tests pass ({time.monotonic() - began:.0f} s). Planting {len(chosen)}:", flush=True)
        with ThreadPoolExecutor(WORKERS) as pool:
            outcomes = list(pool.map(try_planted, chosen))
    except (CannotRunError, ValueError) as error:
        print(f"Stopped: {error}", file=sys.stderr)
        return 2
    survivors = [outcome.planted.name for outcome in outcomes if outcome.killer is None]
    print_table(outcomes)
    print(f"{len(outcomes) - len(survivors)} of {len(outcomes)} found in {time.monotonic() - began:.0f} s.")
    if survivors:
        print(f"Survived: {', '.join(survivors)}.", file=sys.stderr)
    return 1 if survivors else 0


def make_copy(folder: Path) -> Path:
    """The package, the tests and pytest's settings, in a folder of their own."""
    skip = shutil.ignore_patterns("__pycache__", "ui")
    shutil.copytree(ROOT / "emssd", folder / "emssd", ignore=skip)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=skip)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def check_unmutated(chosen: Sequence[Planted]) -> None:
    """All tests that are used below must exist and pass without a fault."""
    killers = dict.fromkeys(killer for planted in chosen for killer in planted.killers)
    with tempfile.TemporaryDirectory() as folder:
        code, output = run_tests(make_copy(Path(folder) / "unmutated"), [*killers, *FAST_SUITE], "-n", str(WORKERS))
    if code:
        raise CannotRunError(f"the tests do not pass without a fault (exit code {code}):\n{output[-3000:]}")


def try_planted(planted: Planted) -> Outcome:
    """Run the tests against one fault until the first one fails."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        copy = make_copy(Path(folder) / "mutant")
        planted.apply(copy / "emssd")
        code, output = run_tests(copy, planted.killers, "-x")
        if code == 0:  # the tests that should find it did not: try all others
            code, output = run_tests(copy, FAST_SUITE, "-x")
    seconds = time.monotonic() - began
    if code == 0:
        print(f"  SURVIVED  {planted.name}", flush=True)
        return Outcome(planted, None, "", seconds)
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - (.*))?$", output, re.MULTILINE)
    if code != TESTS_FAILED or failed is None:
        raise CannotRunError(f"{planted.name}: pytest ended with exit code {code}:\n{output[-3000:]}")
    print(f"  found     {planted.name} ({seconds:.0f} s)", flush=True)
    return Outcome(planted, failed.group(1), failed.group(2) or "", seconds)


def run_tests(copy: Path, tests: Sequence[str], *options: str) -> tuple[int, str]:
    """pytest against a copy: its exit code and what it printed."""
    environment = {
        **os.environ,
        VARIABLE: str(copy),
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "COLUMNS": "200",
    }
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider"]
    command += ["-p", "tests.mutants.only_the_copy", "--timeout", str(TEST_SECONDS), *options, *tests]
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return -1, f"no end after {RUN_SECONDS} s"
    return done.returncode, done.stdout + done.stderr


def print_table(outcomes: Sequence[Outcome]) -> None:
    """Fault, what it breaks, the test that found it, seconds."""
    rows = [("fault", "what it breaks", "found by", "s")]
    for outcome in outcomes:
        killer = (outcome.killer or "NOTHING: it survived").removeprefix("tests/")
        rows.append((outcome.planted.name, outcome.planted.breaks, killer, f"{outcome.seconds:.0f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    print()
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    print()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
