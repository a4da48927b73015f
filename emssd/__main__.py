"""The command line: `python -m emssd COMMAND`. Arguments are in `arguments`; the work is done in `commands`."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from emssd.arguments import DEFAULT_NEW_TOKENS, build_parser
from emssd.errors import EmssdError, Terminated

DONE, FAILED, BAD_INPUT, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; None takes the process's own.

    Returns:
        The exit code: 0 done, 1 a check failed, 2 bad usage or input, 130 interrupted, 143 terminated.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without emoji still shows the rest
    try:
        args = build_parser(_lazy).parse_args(argv)
        args.limit_given = getattr(args, "max_new_tokens", None) is not None
        if not args.limit_given:
            args.max_new_tokens = DEFAULT_NEW_TOKENS
        args.wait_policy_set = set_wait_policy()
        if "tqdm" not in sys.modules and (not sys.stderr.isatty() or getattr(args, "quiet", False)):
            os.environ.setdefault("TQDM_DISABLE", "1")  # the bars of libraries
        return int(args.run(args))
    except EmssdError as error:
        _complain("error", error)
        return BAD_INPUT
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "emssd":
            raise
        _complain("error", f"{error.name} is not installed: run `make setup`, or `pip install -e .` in the checkout.")
        return BAD_INPUT
    except AssertionError as error:
        if type(error).__name__ != "InvariantError":
            raise
        _complain("check failed", error)
        return FAILED
    except Terminated:
        _complain("terminated", "stopped before the end.")
        return TERMINATED
    except KeyboardInterrupt:
        _complain("interrupted", "stopped before the end.")
        return INTERRUPTED
    except BrokenPipeError:
        # the reader of our output has gone: keep Python from complaining when it closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        _complain("error", f"{error.filename or 'the output'}: {error.strerror or error}.")
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  what is left in the old buffer cannot be written
        return BAD_INPUT
    except SystemExit as leaving:  # --help and --version
        return leaving.code if isinstance(leaving.code, int) else DONE


def set_wait_policy() -> bool:
    """Let OpenMP workers sleep while they wait, where nobody has decided it: spinning slows everything down.

    Returns:
        Whether this took effect; it is too late once torch is loaded.
    """
    if "torch" in sys.modules or "OMP_WAIT_POLICY" in os.environ:
        return False
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    return True


def _complain(kind: str, error: object) -> None:
    print(f"emssd: {kind}: {' '.join(str(error).split())}", file=sys.stderr)


def _lazy(name: str) -> Callable[[argparse.Namespace], int]:
    """The command's function, loaded when it is run, so that help, diff and view need no torch."""

    def run(args: argparse.Namespace) -> int:
        if name == "diff":
            return diff_command(args)
        if name == "view":
            from emssd.viewing import view_command

            return view_command(args)
        if name == "lesson":
            from emssd.lessons.command import lesson_command

            return lesson_command(args)
        if name == "simulate":
            from emssd.simulating import simulate_command

            return simulate_command(args)
        if name == "bench":
            from emssd.benching import bench_command

            return bench_command(args)
        if name == "doctor":
            from emssd.doctor import doctor_command

            return doctor_command(args)
        from emssd import commands

        return int(getattr(commands, f"{name}_command")(args))

    return run


def diff_command(args: argparse.Namespace) -> int:
    """Compare two trace files: 0 if the runs did the same, else 1."""
    from emssd.trace import GenerationTrace
    from emssd.trace_diff import compare_traces, diff_lines

    left, right = GenerationTrace.from_json(Path(args.left)), GenerationTrace.from_json(Path(args.right))
    comparison = compare_traces(left, right)
    print("\n".join(diff_lines(comparison, args.left, args.right, max(len(left.rows), len(right.rows)))))
    return DONE if comparison.same else FAILED


if __name__ == "__main__":
    sys.exit(main())
