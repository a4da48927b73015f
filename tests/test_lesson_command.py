"""`emssd lesson`: what it prints, its exit codes, and what a learner's file may do to it (nothing)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from emssd.__main__ import main
from emssd.errors import ConfigError, TraceError
from emssd.lessons import checking, command, states
from emssd.lessons.catalog import FOLDER, NUMBERS, entries, exercise_file, parse_number, solution_file, wrong_files
from emssd.lessons.checking import Failure, Outcome, Solution, run_check
from emssd.lessons.progress import Record, progress_file, read_progress, record_outcome
from emssd.trace import GenerationTrace
from tests.commands import Result, refused

TRACES = FOLDER.parent / "assets" / "traces" / "figure2"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder of this test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("EMSSD_CACHE", str(folder))
    monkeypatch.delenv("EMSSD_APP_URL", raising=False)
    monkeypatch.setattr(command, "_watch", lambda: False)  # it would end the tests themselves
    return folder


@pytest.fixture
def lesson(capsys):
    def run(*arguments: str) -> Result:
        code = main(["lesson", *arguments])
        printed = capsys.readouterr()
        return Result(code, printed.out, printed.err)

    return run


@pytest.fixture
def learner(tmp_path):
    """Writes a learner's file, and gives what a made-up check that calls f says about it."""

    def check(source: str | bytes, *args, check=None, seconds: float = 0.4) -> tuple[str | None, Failure | None]:
        path = tmp_path / "mine.py"
        path.write_bytes(source if isinstance(source, bytes) else source.encode())

        class Module:
            TITLE = "f"

            @staticmethod
            def check(solution: Solution) -> str:
                return str((check or (lambda s: s.call("f", *args)))(solution))

        return checking._tried(Module, path, seconds)

    return check


def traces() -> dict[str, GenerationTrace]:
    return {name: GenerationTrace.from_json(TRACES / f"{name}.json") for name in ("vanilla", "ems-sd")}


# --- the command ---


def test_list_names_every_lesson(lesson):
    result = lesson("list")
    assert result.code == 0
    lines = result.out.splitlines()
    assert [int(line[:2]) for line in lines] == list(NUMBERS)
    assert all(line.endswith("not yet") for line in lines)
    listed = json.loads(lesson("list", "--json").out)["lessons"]
    assert [entry["lesson"] for entry in listed] == list(NUMBERS)
    assert {entry["state"] for entry in listed} == {"not yet"}
    assert all(Path(entry["file"]).is_file() and entry["title"] and entry["exercise"] for entry in listed)


@pytest.mark.parametrize("number", ["5", "05"])
def test_check_passes_and_fails(lesson, number):
    passed = lesson("check", number, str(solution_file(5)))
    assert passed.code == 0
    assert "Lesson 05" in passed.out
    assert ": passed." in passed.out
    failed = lesson("check", number)
    assert failed.code == 1
    assert "not written yet" in failed.out
    assert failed.err == ""


def test_a_pass_says_what_follows(lesson):
    assert lesson("check", "5", str(solution_file(5))).out.rstrip().endswith("Next: lesson 06.")
    assert lesson("check", "10", str(solution_file(10))).out.rstrip().endswith("That was the last exercise of the ten.")


def test_a_failure_says_where_and_what_and_links_to_it(lesson):
    link = None
    for number in range(4, 9):
        result = lesson("check", str(number), str(wrong_files(number)[0]))
        assert result.code == 1
        assert ": not yet." in result.out
        found = [
            line for line in result.out.splitlines() if line.startswith("  see it    http://localhost:8501/?state=")
        ]
        link = found[0] if found else link
    assert link is not None, "no check of a batch gives its traces"


def test_json_holds_what_is_printed(lesson):
    result = lesson("check", "6", str(wrong_files(6)[0]), "--json")
    assert result.code == 1
    data = json.loads(result.out)
    assert data["lesson"] == 6
    assert data["passed"] is False
    assert set(data) == {"lesson", "exercise", "file", "passed", "tried", "failure", "seconds", "link"}
    assert set(data["failure"]) == {
        *("what", "expected", "got", "row", "step", "seed", "why", "traces", "sub", "pin"),
    }


@pytest.mark.parametrize("number", ["0", "11", "-1", "x", "005", "1.5", "", "٣"])
def test_an_unknown_lesson_is_bad_input(lesson, number):
    refused(lesson("check", "--", number))


def test_a_missing_file_and_a_folder_are_bad_input(lesson, tmp_path):
    refused(lesson("check", "5", str(tmp_path / "none.py")), "none.py: is its name right?")
    refused(lesson("check", "5", str(tmp_path)), "folder")


def test_bad_usage(lesson):
    refused(lesson(), "ACTION")
    refused(lesson("check"), "NN")
    refused(lesson("export", "5"), "--html")
    refused(lesson("export", "eleven", "--html", "-"), "eleven")
    refused(lesson("export", "5", "--html", "/nowhere/at/all.html"), "/nowhere/at/all.html")


def test_help_has_examples(lesson):
    for action in ("list", "check", "export"):
        result = lesson(action, "--help")
        assert result.code == 0
        assert f"python -m emssd lesson {action}" in result.out


def test_check_loads_nothing_heavy_and_leaves_no_files():
    """In a fresh interpreter: no torch, and nothing but the progress file is written."""
    code = f"""
import sys
from emssd.__main__ import main
code = main(["lesson", "check", "05", {str(solution_file(5))!r}])
print(code, [name for name in ("torch", "transformers", "streamlit", "plotly") if name in sys.modules])
"""
    before = sorted(FOLDER.rglob("*"))
    done = subprocess.run([sys.executable, "-c", code], cwd=FOLDER.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "0 []"
    assert sorted(path for path in FOLDER.rglob("*") if "__pycache__" not in path.parts) == [
        path for path in before if "__pycache__" not in path.parts
    ]


@pytest.mark.parametrize("stuck", ["__import__('time').sleep(60)", "max(__import__('itertools').repeat(1))"])
def test_code_that_no_exception_reaches_is_ended(stuck, tmp_path):
    """Waiting, or a loop inside one call: the process ends, and the learner sees the line."""
    path = tmp_path / "stuck.py"
    path.write_text(f"def vanilla_step(*args):\n    return {stuck}\n")
    code = f"""
from emssd.__main__ import main
from emssd.lessons import command
command.STUCK_AFTER = 2.0
main(["lesson", "check", "05", {str(path)!r}])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=FOLDER.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert f'"{path}", line 2 in vanilla_step' in done.stderr


def test_export_of_one_lesson_is_one_page(lesson, tmp_path):
    out = tmp_path / "lesson.html"
    result = lesson("export", "06", "--html", str(out))
    assert result.code == 0
    assert result.out == ""
    page = out.read_text(encoding="utf-8")
    found = entries()[5]
    assert 'id="lesson-06"' in page
    assert exercise_file(6).read_text(encoding="utf-8").splitlines()[-1].strip() in page
    assert "hints and answers" in page
    assert "<script" not in page
    assert "src=" not in page.replace('src="data:', "")
    assert found.text.name not in page


def test_export_of_all_has_every_lesson_and_answers_last(lesson):
    page = lesson("export", "all", "--html", "-").out
    places = [page.index(f'<article id="lesson-{number:02d}">') for number in NUMBERS]
    assert places == sorted(places)
    assert page.count('<section class="answers">') == len(NUMBERS)
    assert page.index('<section class="answers">') > places[-1]
    assert 'href="#lesson-02"' in page
    assert "<!-- " not in page


# --- the learner's file ---


def test_what_f_returns_reaches_the_check(learner):
    assert learner("def f(x):\n    return x + 1\n", 1) == ("2", None)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def f(x):\n    raise NotImplementedError\n", ["f is not written yet", "line 2"]),
        ("def f(x):\n    return [][x]\n", ["f raised IndexError: list index out of range", "line 2: return [][x]"]),
        ("def f(x)\n", ["not valid Python", "line 1"]),
        ("def f(x):\nreturn 1\n", ["not valid Python", "line 2"]),
        ("x = 1 / 0\n", ["mine.py raised ZeroDivisionError", "line 1"]),
        ("import no_such_thing\n", ["ModuleNotFoundError", "no_such_thing"]),
        ("import sys\nsys.exit(0)\n", ["leaves Python", "line 2"]),
        ("def f(x):\n    exit()\n", ["f leaves Python", "line 2"]),
        ("def f(x):\n    return f(x)\n", ["calls itself without end"]),
        ("def f(x):\n    return input()\n", ["EOFError"]),
        ("def g(x):\n    pass\n", ["no function f"]),
        ("f = 3\n", ["f is not a function but 3"]),
        ("", ["no function f"]),
        (b"\xff\xfe\x00", ["no Python text"]),
        (b"x = '\x00'\n", ["not valid Python"]),
        ("def f():\n    return 1\n", ["TypeError"]),
    ],
)
def test_every_way_to_fail_is_one_sentence(learner, source, words):
    tried, failure = learner(source, 1)
    assert tried is None
    assert "\n" not in failure.what
    assert failure.what.endswith((".", "?"))
    for word in words:
        assert word in failure.what, failure.what


CATCHING_ALL = """
def f(x):
    while True:
        try:
            while True:
                pass
        except:
            pass
"""
CATCHING_ONCE = """
def f(x):
    try:
        while True:
            pass
    except BaseException:
        return 1
"""
DATACLASS = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass
class A:
    x: int

def f(x):
    return A(x)
"""


@pytest.mark.parametrize(
    "source",
    ["def f(x):\n    while True:\n        pass\n", "while True:\n    pass\n", CATCHING_ALL, CATCHING_ONCE],
)
def test_a_loop_that_does_not_end_is_stopped(learner, source):
    _, failure = learner(source, 1, seconds=0.2)
    assert "still running after 0.2 s: is there a loop that does not end" in failure.what


def test_time_is_counted_over_all_calls(learner):
    source = "def f(n):\n    total = 0\n    for i in range(n):\n        total += i\n    return total\n"
    _, failure = learner(source, check=lambda s: [s.call("f", 200_000) for _ in range(10_000)], seconds=0.2)
    assert "still running" in failure.what


def test_the_timer_of_others_is_left_alone(learner):
    import signal

    before = signal.getsignal(signal.SIGVTALRM)
    learner("def f(x):\n    return x\n", 1)
    assert signal.getsignal(signal.SIGVTALRM) is before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_a_check_runs_in_another_thread_too():
    found: list[Outcome] = []
    thread = threading.Thread(target=lambda: found.append(run_check(2, solution_file(2))))
    thread.start()
    thread.join(60)
    assert found[0].passed


def test_prints_go_to_stderr_and_do_not_spoil_json(learner, capsys):
    learner("print('at import')\ndef f(x):\n    print('hello', x)\n    return x\n", 1)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "at import" in printed.err
    assert "hello 1" in printed.err
    learner("def f(x):\n    print('a' * 100_000)\n", 1)
    assert len(capsys.readouterr().err) < 2 * checking.MAX_PRINTED


def test_nothing_is_left_behind(learner):
    modules, path, stdin = set(sys.modules), list(sys.path), sys.stdin
    assert learner(DATACLASS, 1)[1] is None
    learner("def f(x)\n", 1)
    learner("raise ValueError\n", 1)
    assert {name for name in set(sys.modules) - modules if "lesson" in name} == set()
    assert sys.path == path
    assert sys.stdin is stdin


def test_the_check_keeps_its_own_copies(learner):
    given = [1, 2, 3]
    learner("def f(x):\n    x.clear()\n", check=lambda s: s.call("f", given))
    assert given == [1, 2, 3]


def test_a_callback_may_raise_a_failure(learner):
    def check(solution):
        return solution.call("f", lambda: (_ for _ in ()).throw(Failure("The callback was called twice.")))

    _, failure = learner("def f(call):\n    return call()\n", check=check)
    assert failure.what == "The callback was called twice."


def test_a_case_is_in_the_failure(learner):
    _, failure = learner("def f(x):\n    1 / 0\n", check=lambda s: s.call("f", 1, row=2, step=3, seed=4))
    assert (failure.row, failure.step, failure.seed) == (2, 3, 4)


def test_what_a_check_did_not_foresee_is_a_failure(learner):
    _, failure = learner("def f(x):\n    return None\n", check=lambda s: s.call("f", 1) + [])
    assert "could not be checked (TypeError" in failure.what


def test_a_huge_file_is_refused(learner):
    _, failure = learner("#" * (checking.MAX_SOURCE + 1), 1)
    assert "larger than 1 MB" in failure.what


def test_parse_number():
    assert [parse_number(text) for text in ("1", "01", "10")] == [1, 1, 10]
    with pytest.raises(ConfigError, match="1 to 10"):
        parse_number("11")


# --- states ---


def test_states_come_back_equal_and_have_a_name_by_content(cache):
    kept = traces()
    identity = states.save_state(kept)
    assert states.IDENTITY.fullmatch(identity)
    assert states.save_state(dict(reversed(kept.items()))) == identity
    assert states.load_state(identity) == kept
    assert os.listdir(cache / "lesson-states") == [f"{identity}.json"]


@pytest.mark.parametrize("name", ["", "x", "../lessons", "a" * 11, "A" * 12, "0" * 12, "../../etc/pw", "0" * 12 + "\n"])
def test_only_kept_states_are_loaded(name):
    with pytest.raises(TraceError, match="state") as error:
        states.load_state(name)
    assert "\n" not in str(error.value)


def test_a_changed_or_linked_state_is_not_used(cache, tmp_path):
    identity = states.save_state(traces())
    path = cache / "lesson-states" / f"{identity}.json"
    content = path.read_text()
    path.write_text(content.replace("vanilla", "vanillb", 1))
    with pytest.raises(TraceError, match="damaged"):
        states.load_state(identity)
    outside = tmp_path / "outside.json"
    outside.write_text(content)
    path.unlink()
    path.symlink_to(outside)
    with pytest.raises(TraceError, match="no longer kept"):
        states.load_state(identity)


def test_old_states_are_forgotten(cache, monkeypatch):
    monkeypatch.setattr(states, "KEPT", 2)
    names = []
    for number in range(4):
        run = traces()["vanilla"]
        run.emssd_version = str(number)
        names.append(states.save_state({"vanilla": run}))
        os.utime(cache / "lesson-states" / f"{names[-1]}.json", (number, number))
    assert sorted(os.listdir(cache / "lesson-states")) == sorted(f"{name}.json" for name in names[2:])


def test_too_much_or_nowhere_to_write_loses_only_the_link(cache, monkeypatch, lesson):
    monkeypatch.setattr(states, "MAX_BYTES", 10)
    assert states.save_state(traces()) is None
    monkeypatch.undo()
    blocked = cache.parent / "file"
    blocked.write_text("")
    monkeypatch.setenv("EMSSD_CACHE", str(blocked))
    assert states.save_state(traces()) is None
    result = lesson("check", "6", str(wrong_files(6)[0]))
    assert result.code == 1
    assert "see it" not in result.out


def test_links(monkeypatch):
    address = states.state_link("0123456789ab", "vanilla", "ems-sd", 2, "commit", "1.4")
    assert address == ("http://localhost:8501/?state=0123456789ab&left=vanilla&right=ems-sd&step=2&sub=commit&pin=1.4")
    monkeypatch.setenv("EMSSD_APP_URL", "https://example.org/app/")
    assert states.state_link("0123456789ab", "vanilla").startswith("https://example.org/app/?state=")
    assert states.failure_link(Failure("x")) is None
    link = states.failure_link(Failure("x", step=99, traces={"ems-sd": traces()["ems-sd"]}))
    assert "left=ems-sd" in link
    assert "right" not in link
    assert "step=2" in link


# --- progress ---


def done(number: int = 5, passed: bool = True, file: str = "mine.py") -> Outcome:
    return Outcome(number, "f", file, passed, "Tried." if passed else None, None if passed else Failure("No."), 0.1)


def test_progress_goes_from_not_yet_over_tried_to_passed(lesson):
    assert {record.state for record in read_progress().values()} == {"not yet"}
    assert record_outcome(done(passed=False))
    assert read_progress()[5].state == "tried"
    record_outcome(done(), link="http://x")
    record_outcome(done(passed=False))
    record = read_progress()[5]
    assert (record.state, record.tries, record.last["passed"]) == ("passed", 3, False)
    assert lesson("list").out.splitlines()[4].endswith("passed")


def test_shipped_solutions_do_not_count(lesson):
    lesson("check", "5", str(solution_file(5)))
    lesson("check", "5", str(wrong_files(5)[0]))
    assert not progress_file().exists()
    lesson("check", "5")  # the stub, as it comes
    assert not progress_file().exists()


BEGUN = "def pack(rows):\n    return [], [0]\n\n\ndef locate(starts, r):\n    raise NotImplementedError\n"


def test_the_first_line_of_ones_own_is_a_try(lesson, tmp_path):
    begun = tmp_path / "mine.py"
    begun.write_text(BEGUN)
    lesson("check", "7", str(begun))
    assert read_progress()[7].state == "tried"


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"lessons": 3}', '{"lessons": {"5": 3, "x": {}, "99999999999": {}}}', "[" * 100_000, "\x00"],
)
def test_a_damaged_progress_file_is_as_none(content, lesson):
    progress_file().parent.mkdir(parents=True)
    progress_file().write_text(content)
    assert read_progress() == {number: Record() for number in NUMBERS}
    assert lesson("list").code == 0
    assert record_outcome(done())
    assert read_progress()[5].passed


def test_odd_entries_are_read_as_nothing():
    progress_file().parent.mkdir(parents=True)
    progress_file().write_text('{"lessons": {"5": {"passed": "yes", "tries": true, "last": 3}, "6": {"tries": -4}}}')
    assert read_progress()[5] == Record()
    assert read_progress()[6] == Record()


def test_progress_that_cannot_be_written_fails_nothing(lesson, cache, monkeypatch):
    blocked = cache.parent / "file"
    blocked.write_text("")
    monkeypatch.setenv("EMSSD_CACHE", str(blocked))
    assert not record_outcome(done())
    assert lesson("check", "5").code == 1
