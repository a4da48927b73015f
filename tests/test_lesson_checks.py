"""Every exercise's check accepts the solution, and refuses the stub and each known wrong solution, in useful words."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from emssd.lessons.catalog import FOLDER, NUMBERS, exercise_file, solution_file, wrong_files
from emssd.lessons.checking import Failure, Outcome, Solution, check_module, run_check, short
from emssd.lessons.states import failure_link, load_state
from emssd.trace import GenerationTrace

WRONG = sorted((FOLDER / "wrong").glob("*.py"))
FEWEST_WRONG = 3
MOST_CALLS = 60_000
HEAVY = ("torch", "transformers", "streamlit", "plotly")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EMSSD_CACHE", str(tmp_path / "cache"))


def outcome(number: int, path: Path) -> Outcome:
    return run_check(number, path, seconds=60.0)


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def defined(path: Path) -> set[str]:
    """Names of the functions and classes of a file."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


@pytest.mark.parametrize("number", NUMBERS)
def test_the_solution_passes(number):
    found = outcome(number, solution_file(number))
    assert found.failure is None, found.failure
    assert found.passed
    assert found.title
    assert re.search(r"\d", found.tried), "says how much was tried"
    assert found.tried.rstrip().endswith(".")


@pytest.mark.parametrize("number", NUMBERS)
def test_the_stub_is_not_written_yet(number):
    found = outcome(number, exercise_file(number))
    assert not found.passed
    assert "not written yet" in found.failure.what


@pytest.mark.parametrize("number", NUMBERS)
def test_stub_and_solution_define_the_same_names(number):
    """The learner finds everything that the solution needs by name, with what goes in and out."""
    stub, solution = exercise_file(number), solution_file(number)
    asked = {
        node.name
        for node in ast.parse(stub.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and "raise NotImplementedError" in ast.unparse(node)
    }
    assert asked
    assert asked <= defined(solution)
    assert stub.name == solution.name
    assert len(docstring(stub).splitlines()) >= 3
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name in asked:
            words = ast.get_docstring(node) or ""
            assert words, node.name
            gives_nothing = node.returns is not None and ast.unparse(node.returns) == "None"
            assert "Returns" in words or gives_nothing, node.name
            assert "Args" in words or gives_nothing or not node.args.args, node.name


@pytest.mark.parametrize("number", NUMBERS)
def test_there_are_enough_wrong_solutions(number):
    assert len(wrong_files(number)) >= FEWEST_WRONG


def test_every_wrong_solution_belongs_to_a_lesson():
    assert WRONG
    assert {int(path.name[:2]) for path in WRONG} <= set(NUMBERS)


@pytest.mark.parametrize("path", WRONG, ids=lambda path: path.stem)
def test_a_wrong_solution_is_refused_in_useful_words(path):
    number = int(path.name[:2])
    first = docstring(path).split("\n")[0]
    assert first.endswith("."), "its docstring begins with the misconception, in a sentence"
    assert ast.dump(ast.parse(path.read_text("utf-8"))) != ast.dump(ast.parse(solution_file(number).read_text("utf-8")))
    found = outcome(number, path)
    assert not found.passed, f"{path.name} passes: {found.tried}"
    failure = found.failure
    assert len(failure.what) > 15
    assert "\n" not in failure.what
    assert "could not be checked" not in failure.what
    assert "not written yet" not in failure.what
    said = (failure.expected, failure.got, failure.row, failure.step, failure.seed, failure.why)
    assert any(value is not None for value in said), "nothing but a verdict"
    if failure.traces:
        opens(failure)


def opens(failure: Failure) -> None:
    """The traces of a failure are valid, and the link leads to a step, row and cell that they have."""
    link = failure_link(failure)
    assert link is not None
    query = dict(part.split("=") for part in link.partition("?")[2].split("&"))
    traces = load_state(query["state"])
    assert set(traces) == set(failure.traces)
    shown = [traces[query[side]] for side in ("left", "right") if side in query]
    assert all(int(query["step"]) < len(trace.steps) for trace in shown)
    if "pin" in query:
        row = int(query["pin"].partition(".")[0])
        assert row < len(shown[0].rows)
    for trace in failure.traces.values():
        assert GenerationTrace.from_json(trace.to_json()) == trace


@pytest.mark.parametrize("number", NUMBERS)
def test_a_check_is_deterministic(number):
    """The same file fails with the same words, so that a learner can go on where they were."""
    wrong = wrong_files(number)[0]
    first, second = outcome(number, wrong), outcome(number, wrong)
    assert first.failure.to_dict() == second.failure.to_dict()


@pytest.mark.parametrize("number", NUMBERS)
def test_the_work_of_a_check_is_bounded(number, monkeypatch):
    """Counted, not timed: how often the learner's code is called."""
    calls = 0
    guarded = Solution._guarded

    def counted(self, name, case):
        nonlocal calls
        calls += 1
        return guarded(self, name, case)

    monkeypatch.setattr(Solution, "_guarded", counted)
    assert outcome(number, solution_file(number)).passed
    assert 5 <= calls <= MOST_CALLS


RETURNS = {
    "None": "None",
    "a string": "'7'",
    "a number": "7",
    "half a number": "0.5",
    "a dict": "{}",
    "an empty tuple": "()",
    "nested": "([[]], 'x', None)",
    "an endless one": "__import__('itertools').repeat(1, 10**6)",
    "an array": "__import__('numpy').zeros((2, 3))",
    "a class": "int",
    "not comparable": "type('Odd', (), {'__eq__': lambda self, other: 1 / 0, '__hash__': None})()",
}


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("value", RETURNS.values(), ids=RETURNS)
def test_a_value_of_the_wrong_type_is_a_failure_and_no_crash(number, value, tmp_path):
    names = sorted(
        node.name
        for node in ast.parse(exercise_file(number).read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    )
    path = tmp_path / "odd.py"
    path.write_text("\n".join(f"def {name}(*args, **kwargs):\n    return {value}\n" for name in names))
    found = outcome(number, path)
    assert not found.passed
    assert "raised" not in found.failure.what or "/" in value, found.failure.what
    assert found.failure.to_dict()["what"]


@pytest.mark.parametrize("number", NUMBERS)
def test_inputs_that_are_changed_do_not_fool_the_check(number, tmp_path):
    """A function that empties every list it is given gets no other check than one that does not."""
    solution = solution_file(number)
    code = solution.read_text(encoding="utf-8")
    names = [node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]
    tail = f"""

def _spoiling(function):
    import functools

    @functools.wraps(function)
    def spoiled(*args, **kwargs):
        import copy
        result = function(*args, **kwargs)
        result = copy.deepcopy(result) if isinstance(result, (list, dict, tuple)) else result
        if _depth[0] == 0:
            for value in args:
                if isinstance(value, list):
                    value.clear()
        return result

    return spoiled

_depth = [0]
for _name in {names!r}[-1:]:
    globals()[_name] = _spoiling(globals()[_name])
"""
    path = tmp_path / "spoiling.py"
    path.write_text(code + tail, encoding="utf-8")
    found = outcome(number, path)
    assert found.passed, found.failure


def test_all_checks_run_without_torch_in_one_process():
    """What the command promises: no torch, every solution, one fresh interpreter."""
    code = f"""
import sys
from emssd.lessons.catalog import NUMBERS, solution_file
from emssd.lessons.checking import run_check
for number in NUMBERS:
    found = run_check(number, solution_file(number), 60.0)
    assert found.passed, (number, found.failure)
print([name for name in {HEAVY!r} if name in sys.modules], sorted(n for n in sys.modules if "lesson_solution" in n))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=FOLDER.parent, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[] []"


def test_short_shows_any_value():
    class Broken:
        def __repr__(self):
            raise RuntimeError("no")

    assert short(Broken()) == "a Broken that cannot be shown (RuntimeError)"
    assert short("a\nb") == r"'a\nb'"
    assert len(short(list(range(10_000)))) == 300


def test_check_modules_are_complete():
    for number in NUMBERS:
        module = check_module(number)
        assert isinstance(module.TITLE, str)
        assert callable(module.check)


@pytest.mark.parametrize(
    ("loop", "why"),
    [
        ("while True:", "`draft` has K tokens, `target` has K + 1."),
        ("while n < len(draft) and draft[n] not in eos_token_ids:", "it is counted first, then it ends it."),
    ],
)
def test_lesson_2_names_the_bound_and_the_order_that_are_missing(tmp_path, loop, why):
    lines = (
        "def verify_greedy(draft, target, eos_token_ids=()):",
        "    n = 0",
        f"    {loop}",
        "        if draft[n] != target[n]:",
        "            break",
        "        n += 1",
        "    return n, target[: n + 1]",
    )
    path = tmp_path / "mine.py"
    path.write_text("\n".join(lines), encoding="utf-8")
    assert outcome(2, path).failure.why.endswith(why)
