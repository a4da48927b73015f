"""The command `lesson`: list the lessons, check an exercise, write a lesson as a page to print."""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
from pathlib import Path
from typing import Any

from emssd.errors import ConfigError
from emssd.lessons.catalog import NUMBERS, Entry, entries, entry, exercise_file, parse_number
from emssd.lessons.checking import SECONDS, Failure, Outcome, check_module, run_check, short
from emssd.lessons.progress import LAST_PASSED, read_progress, record_outcome
from emssd.lessons.states import APP_VARIABLE, failure_link
from emssd.lessons.text import read_lesson
from emssd.result_files import STDOUT, check_target, note, write_text

DONE, FAILED = 0, 1
STUCK_AFTER = 10.0
"""Seconds after which even code that Python cannot interrupt (waiting, a loop inside one call) is ended."""


def lesson_command(args: argparse.Namespace) -> int:
    """Run one of the three."""
    if args.action == "list":
        return list_lessons(args)
    if args.action == "check":
        return check_lesson(args)
    return export_lessons(args)


def list_lessons(args: argparse.Namespace) -> int:
    """Number, title, exercise and progress of every lesson."""
    lines = [_listed(each) for each in entries()]
    if args.json:
        write_text(STDOUT, json.dumps({"lessons": lines}, ensure_ascii=False))
        return DONE
    widths = [max(len(str(line[name])) for line in lines) for name in ("title", "exercise")]
    for line in lines:
        print(f"{line['lesson']:02d}  {line['title']:<{widths[0]}}  {line['exercise']:<{widths[1]}}  {line['state']}")
    return DONE


def _listed(found: Entry) -> dict[str, Any]:
    record = read_progress()[found.number]
    return {
        "lesson": found.number,
        "slug": found.slug,
        "title": read_lesson(found.text).title,
        "exercise": str(check_module(found.number).TITLE),
        "file": str(found.exercise),
        "state": record.state,
        "tries": record.tries,
    }


def check_lesson(args: argparse.Namespace) -> int:
    """Check an exercise: 0 passed, 1 not yet."""
    number = parse_number(args.number)
    path = Path(args.file) if args.file else exercise_file(number)
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: name the Python file to check.")
    watched = _watch()
    try:
        outcome = run_check(number, path, SECONDS)
    finally:
        if watched:
            faulthandler.cancel_dump_traceback_later()
    link = failure_link(outcome.failure) if outcome.failure else None
    record_outcome(outcome, link)
    if args.json:
        write_text(STDOUT, json.dumps({**outcome.to_dict(), "link": link}, ensure_ascii=False))
    else:
        print("\n".join(outcome_lines(outcome, link)))
    return DONE if outcome.passed else FAILED


def _watch() -> bool:
    """End the process should the learner's code hang where no exception reaches it."""
    try:
        faulthandler.dump_traceback_later(STUCK_AFTER, exit=True, file=sys.__stderr__ or 2)
    except (AttributeError, ValueError, RuntimeError, OSError):  # a stderr without a file: nothing to write to
        return False
    return True


def outcome_lines(outcome: Outcome, link: str | None) -> list[str]:
    """What a check found, in words."""
    head = f"Lesson {outcome.number:02d}, {outcome.title}"
    if outcome.failure is None:
        after = outcome.number + 1
        following = f"Next: lesson {after:02d}." if after in NUMBERS else LAST_PASSED
        return [f"{head}: passed. {outcome.tried}".rstrip() + f" {following}"]
    return [f"{head}: not yet.", f"  {outcome.failure.what}", *_details(outcome.failure, link)]


def _details(failure: Failure, link: str | None) -> list[str]:
    where = [f"{name} {value}" for name in ("seed", "step", "row") if (value := getattr(failure, name)) is not None]
    lines = [f"  where     {', '.join(where)}"] if where else []
    if failure.expected is not None or failure.got is not None:
        lines += [f"  expected  {short(failure.expected)}", f"  got       {short(failure.got)}"]
    if failure.why:
        lines.append(f"  why       {failure.why}")
    if link:
        other = "" if os.environ.get(APP_VARIABLE) else f"; at another address: set {APP_VARIABLE}"
        lines.append(f"  see it    {link}  (with the app open: make app{other})")
    return lines


def export_lessons(args: argparse.Namespace) -> int:
    """Write one or all lessons as one page."""
    from emssd.lessons.export import lessons_html

    if not args.html:
        raise ConfigError("lesson export needs a file, for example: emssd lesson export 05 --html lesson.html")
    check_target(args.html)
    chosen = entries() if args.number == "all" else [entry(parse_number(args.number))]
    write_text(args.html, lessons_html(chosen))
    if args.html != STDOUT:
        note(f"Wrote {args.html}.")
    return DONE
