"""Runs a learner's file against the check of its exercise, and says in one sentence what is wrong.

The learner's code runs in this process, because it is the learner's own machine. It gets copies of its inputs, a limit
of processor time, and nothing of it is left in `sys.modules` afterwards.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import inspect
import io
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, TextIO

from emssd.errors import ConfigError, shown
from emssd.lessons.catalog import exercise_file
from emssd.trace import GenerationTrace

SECONDS = 3.0
MAX_PRINTED = 8_000
MAX_SOURCE = 1_000_000
ARGUMENTS = 600
"""Characters to which the arguments of a failing call are shortened, over all of them."""
CALLED = "called"
UNWRITTEN = "is not written yet"


@dataclass(eq=False)
class Failure(Exception):
    """Why a solution is not right yet.

    Args:
        what: one sentence: what is wrong, in the learner's terms.
        expected, got: the values that differ; left out of the report where both are None.
        row, step, seed: where; `seed` gives the same case again.
        why: what to look at, or which rule of the lesson this breaks.
        traces: correct traces of this very case by method, to open in the player.
        sub, pin: where the player opens: a sub-step, and a cell "row.slot".
        untouched: nothing has been written yet, so that this is no try.
    """

    what: str
    expected: object = None
    got: object = None
    row: int | None = None
    step: int | None = None
    seed: int | None = None
    why: str | None = None
    traces: Mapping[str, GenerationTrace] | None = None
    sub: str = "commit"
    pin: str | None = None
    untouched: bool = field(default=False, init=False)

    def __str__(self) -> str:
        return self.what

    def to_dict(self) -> dict[str, Any]:
        """Plain data: values as short text, the traces by name only."""
        compared = self.expected is not None or self.got is not None
        return {
            "what": self.what,
            "expected": short(self.expected) if compared else None,
            "got": short(self.got) if compared else None,
            "row": self.row,
            "step": self.step,
            "seed": self.seed,
            "why": self.why,
            "traces": sorted(self.traces or {}),
            "sub": self.sub,
            "pin": self.pin,
        }


@dataclass(frozen=True)
class Outcome:
    """What a check found. `tried` says what was checked where it passed; `seconds` is wall time."""

    number: int
    title: str
    file: str
    passed: bool
    tried: str | None
    failure: Failure | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {
            "lesson": self.number,
            "exercise": self.title,
            "file": self.file,
            "passed": self.passed,
            "tried": self.tried,
            "failure": None if self.failure is None else self.failure.to_dict(),
            "seconds": round(self.seconds, 3),
        }


def short(value: object, limit: int = 300) -> str:
    """A learner's value on one line, whatever it is and whatever its own `repr` does."""
    try:
        text = " ".join(repr(value).split())
    except Exception as error:
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def said(error: BaseException, limit: int = 300) -> str:
    """What an exception says, on one line; too long a text ends at a word."""
    try:
        text = " ".join(str(error).split()).rstrip(".")
    except Exception:
        return ""
    return text if len(text) <= limit else f"{text[: limit - 3].rsplit(' ', 1)[0]}..."


def arguments(function: Callable[..., Any], args: Sequence[object]) -> str:
    """The arguments of a call on one line, by the names that the function gives them, where it has some."""
    try:
        names = [f"{name} = " for name in inspect.signature(function).bind(*args).arguments]
    except (TypeError, ValueError):
        names = []
    if len(names) != len(args):
        names = [""] * len(args)
    each = max(60, ARGUMENTS // max(len(args), 1))
    texts = [short(value, each) for value in args]
    texts = [f"a {type(value).__name__}" if " at 0x" in text else text for value, text in zip(args, texts, strict=True)]
    return ", ".join(name + text for name, text in zip(names, texts, strict=True))


class _TimeUp(BaseException):
    """Ends code that runs too long; no Exception, so that `except Exception` does not keep it."""


def _raise_at_a_line(frame: FrameType, event: str, value: object) -> Any:
    if event == "line":
        raise _TimeUp
    return _raise_at_a_line


@dataclass
class _Limit:
    """Processor seconds that a learner's code may use in all; counts only inside `running`.

    Processor time, so that a busy machine fails nobody. Works in the main thread of systems with interval timers;
    elsewhere there is no limit.
    """

    seconds: float
    left: float = field(init=False)
    over: bool = field(default=False, init=False)
    _inside: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.left = self.seconds

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of the block.

        Raises:
            _TimeUp: it is used up.
        """
        here = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
        if self._inside or not here:
            yield
            return
        before, tracing = signal.signal(signal.SIGVTALRM, self._ring), sys.gettrace()
        self._inside = True
        try:
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, max(self.left, 1e-3), 0.1)  # again, if the code caught it
                yield
            finally:
                self.left = signal.setitimer(signal.ITIMER_VIRTUAL, 0)[0]
        finally:
            self._inside = False
            signal.signal(signal.SIGVTALRM, before)
            sys.settrace(tracing)
        if self.over:
            raise _TimeUp

    def _ring(self, number: int, frame: FrameType | None) -> None:
        """Raise here; and once that was caught, also at the next line, which then is the one that caught it."""
        if self.over:
            sys.settrace(_raise_at_a_line)
            if frame is not None:
                frame.f_trace = _raise_at_a_line
        self.over = True
        raise _TimeUp


class _Prints(io.TextIOBase):
    """Passes on what the learner's code prints to stderr, up to a limit."""

    def __init__(self, out: TextIO) -> None:
        self.out, self.left = out, MAX_PRINTED

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.left > 0:
            self.out.write(text[: self.left])
            self.left -= len(text)
            if self.left <= 0:
                self.out.write(f"\n... (only the first {MAX_PRINTED} printed characters are shown)\n")
        return len(text)

    def flush(self) -> None:
        self.out.flush()


class Solution:
    """The learner's file, loaded.

    Args:
        path: any Python file.
        seconds: processor time for all its code.

    Raises:
        ConfigError: there is no such file.
        Failure: it cannot be loaded; the sentence names the line.
    """

    def __init__(self, path: Path, seconds: float = SECONDS) -> None:
        self.path = Path(path)
        self._limit = _Limit(seconds)
        self._prints = _Prints(sys.stderr)
        self._module = ModuleType(f"lesson_solution_{id(self):x}")
        self._module.__file__ = str(self.path)
        self._has_answered = False
        source = self._read()
        self._lines = source.splitlines()
        code = self._compile(source)
        sys.modules[self._module.__name__] = self._module  # dataclasses look there for the module of a class
        with self._guarded("", {}):
            exec(code, self._module.__dict__)

    def close(self) -> None:
        """Leave nothing behind in `sys.modules`."""
        sys.modules.pop(self._module.__name__, None)

    def function(self, name: str) -> Callable[..., Any]:
        """The learner's function, under the same guard as `call` but without copies, for use as a callback.

        Raises:
            Failure: it is missing or no function.
        """
        function = self._found(name)

        def guarded(*args: Any, **kwargs: Any) -> Any:
            with self._guarded(name, {}):
                answer = function(*args, **kwargs)
            self._has_answered = True
            return answer

        return guarded

    def call(self, name: str, /, *args: Any, **case: Any) -> Any:
        """What the learner's function returns for copies of `args`.

        Args:
            case: for the message if the call fails: fields of `Failure` (row, step, seed, traces, ...), and `called`:
                the arguments in words; without it they are shown shortened.

        Raises:
            Failure: it is not written yet, raises, or does not end.
        """
        function = self._found(name)
        copies = copy.deepcopy(args)
        with self._guarded(name, {**case, CALLED: lambda: case.get(CALLED) or arguments(function, args)}):
            answer = function(*copies)
        self._has_answered = True
        return answer

    def watch(self, name: str, function: Callable[..., Any]) -> None:
        """Let the learner's other functions find `function` under this name, for a look at calls between them."""
        setattr(self._module, name, function)

    def _found(self, name: str) -> Callable[..., Any]:
        if not hasattr(self._module, name):
            raise Failure(f"{self.path.name} has no function {name}: keep the name that the exercise gives it.")
        function = getattr(self._module, name)
        if not callable(function):
            raise Failure(f"{name} is not a function but {short(function, 60)}.")
        return function

    def _read(self) -> str:
        if not self.path.is_file():
            raise ConfigError(f"There is no file {self.path}.")
        if self.path.stat().st_size > MAX_SOURCE:
            raise Failure(f"{self.path.name} is larger than {MAX_SOURCE // 1_000_000} MB: is it the right file?")
        try:
            with self.path.open("rb") as file:
                return importlib.util.decode_source(file.read())
        except (UnicodeDecodeError, SyntaxError) as error:
            raise Failure(f"{self.path.name} is no Python text: {error}.") from None

    def _compile(self, source: str) -> Any:
        try:
            return compile(source, str(self.path), "exec", dont_inherit=True)
        except SyntaxError as error:
            where = f", line {error.lineno}: {(error.text or '').strip()}" if error.lineno else ""
            raise Failure(f"{self.path.name} is not valid Python ({error.msg}{where}).") from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise Failure(f"{self.path.name} is not valid Python ({error}).") from None

    @contextlib.contextmanager
    def _guarded(self, name: str, case: Mapping[str, Any]) -> Iterator[None]:
        """Run learner's code: prints to stderr, no waiting for input, a limit of time, every error as a Failure.

        Args:
            name: the function that is called; "" while the file is loaded.
            case: fields of the Failure, and under `CALLED` what gives the arguments as text after an error.
        """
        called = case.get(CALLED, str)
        case = {field: value for field, value in case.items() if field != CALLED}
        stdin = sys.stdin
        sys.stdin = io.StringIO()
        try:
            with contextlib.redirect_stdout(self._prints), self._limit.running():
                yield
        except Failure:
            raise
        except NotImplementedError as error:
            what = f"{name or self.path.name} {UNWRITTEN}{self._line(error)}."
            failure = Failure(what)
            failure.untouched = not self._has_answered
            raise failure from None
        except _TimeUp as error:
            line = self._line(error)
            raise Failure(
                f"{name or self.path.name} is still running after {self._limit.seconds:g} s: "
                f"is there a loop that does not end{line}?{_with(called)}",
                **case,
            ) from None
        except SystemExit as error:
            raise Failure(f"{name or self.path.name} leaves Python (exit){self._line(error)}.", **case) from None
        except RecursionError as error:
            what = f"{name or self.path.name} calls itself without end{self._line(error)}."
            raise Failure(f"{what}{_with(called)}", **case) from None
        except Exception as error:
            what = f"{name or self.path.name} raised {type(error).__name__}"
            words = said(error)
            what += f"{': ' if words else ''}{words}{self._line(error)}."
            raise Failure(f"{what}{_with(called)}", **case) from None
        finally:
            sys.stdin = stdin

    def _line(self, error: BaseException) -> str:
        """Where in the learner's file it happened: the innermost of its lines, or nothing."""
        frames = traceback.walk_tb(error.__traceback__)
        lines = [number for frame, number in frames if frame.f_code.co_filename == str(self.path)]
        if not lines:
            return ""
        text = "".join(self._lines[lines[-1] - 1 : lines[-1]]).strip()
        return f" (line {lines[-1]}: {text})" if text else f" (line {lines[-1]})"


def _with(called: Callable[[], str]) -> str:
    text = called()
    return f" Case: {text}." if text else ""


def check_module(number: int) -> ModuleType:
    """The check of a lesson's exercise: TITLE and check(solution).

    Raises:
        ConfigError: there is no such lesson.
    """
    name = f"emssd.lessons.check_{number:02d}"
    if not 0 <= number <= 99 or importlib.util.find_spec(name) is None:
        raise ConfigError(f"There is no lesson {shown(number)}: `emssd lesson list` shows them.")
    return importlib.import_module(name)


def run_check(number: int, path: str | Path, seconds: float = SECONDS) -> Outcome:
    """Check a file against a lesson's exercise.

    Args:
        number: of the lesson.
        path: the learner's file, anywhere.
        seconds: processor time for the learner's code in all.

    Raises:
        ConfigError: no such lesson or file.
    """
    module = check_module(number)
    path = Path(path)
    if not path.is_file():
        lost = path.resolve() == exercise_file(number).resolve()
        advice = "`git checkout lessons/exercises` brings the empty one back" if lost else "is its name right?"
        raise ConfigError(f"There is no file {path}: {advice}")
    start = time.perf_counter()
    tried, failure = _tried(module, path, seconds)
    spent = time.perf_counter() - start
    return Outcome(number, str(module.TITLE), str(path), failure is None, tried, failure, spent)


def _tried(module: ModuleType, path: Path, seconds: float) -> tuple[str | None, Failure | None]:
    solution: Solution | None = None
    before = set(sys.modules)
    try:
        solution = Solution(path, seconds)
        return str(module.check(solution)), None
    except Failure as failure:
        return None, failure
    except Exception as error:
        # the check compares values of any type; what it did not foresee is still the learner's to see
        what = f"What {module.TITLE} returned could not be checked ({type(error).__name__}: {said(error)})."
        return None, Failure(what, why="Compare its type and length with what the docstring of the exercise asks for.")
    finally:
        if solution is not None:
            solution.close()
        for name in set(sys.modules) - before:
            if name.startswith("lesson_solution_"):
                del sys.modules[name]
