"""Reads a lesson's Markdown file. What machines need is in HTML comments and <details>, which GitHub does not show.

The form is fixed: headings, player lines, questions and hints are listed in `HEADINGS` and in the classes below. Every
mistake is an error that names file and line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from emssd.cells import SUBSTEPS
from emssd.config import METHODS
from emssd.errors import EmssdError

HEADINGS = ("Question", "Predict", "Idea", "In the code", "Run it", "Check yourself", "Next")
PRESETS = ("figure2", "copy-rich", "no-copy", "slow-row", "all-accepted", "early-finisher")
SIDES = ("left", "right")
MAX_HINTS = 3
MAY_SAY = ("pin", "query", "hide")
"""What a player line need not say."""
COMMENT = re.compile(r"\s?<!--\s*(.*?)\s*-->")
COMMENT_KINDS = ("player:", "picture:", "source:", "try:", "= ")
EXPERIMENTS = ("faults", "policies", "padding", "layouts", "worth", "metrics")
"""What a `try:` line may name: things to change in the app, on the screen "Run it"."""
TITLE = re.compile(r"# (\d+)\. (\S.*)")
FENCE = re.compile(r"\s*(```+|~~~+)\s*(\S*)")
DETAILS = re.compile(r"<details>\s*<summary>(.*?)</summary>\s*")
NUMBERED = re.compile(r"(\s*\d+)([.)])(?=\s|$)")
RUN_NOTE = (
    "To run it, save the code as a file in the repository’s root folder, for example `try.py`, "
    "and there type `.venv/bin/python try.py`."
)
"""How code in "Run it" is run; the app and the printed page say it below the heading."""
COMMAND = re.compile(r"(?<![\w/])python -m emssd")
REFERENCE = re.compile(r"`((?:emssd|lessons|tests|assets)/[\w./-]+\.py)::([A-Za-z_][\w.]*)`")


class LessonError(EmssdError):
    """A lesson's text is not of the agreed form."""


@dataclass(frozen=True)
class Target:
    """What the player shows.

    Args:
        preset: a recorded set.
        left, right: methods; no right one for a single pane.
        step, sub: where the clock stands.
        pin: a cell, "row.slot".
        query: (row, place among the tokens that it feeds): whose reading "attend" shows, where it is not the player's
            own choice.
        hide: (side, row) whose new cells and counters are hidden until the question is answered.
    """

    preset: str
    left: str
    right: str | None
    step: int
    sub: str
    pin: str | None = None
    hide: tuple[tuple[str, int], ...] = ()
    query: tuple[int, int] | None = None


@dataclass(frozen=True)
class Question:
    """A question to answer before the reveal.

    Args:
        text: the question; markdown: what stands between it and the options.
        options: two to five, or none where a number is typed.
        hints: up to three, as Markdown.
        answer: one of the options, or a number; explanation: the whole answer as Markdown.
        before, after: what the player shows before and after the answer; None keeps what it showed.
        line: in the file.
    """

    text: str
    markdown: str
    options: tuple[str, ...]
    hints: tuple[str, ...]
    answer: str
    explanation: str
    before: Target | None
    after: Target | None
    line: int


@dataclass(frozen=True)
class Section:
    """One screen: its Markdown without comments, details and questions.

    Args:
        target: what the player shows; None: as before.
        line: in the file.
        experiment: what the reader can change on this screen, one of `EXPERIMENTS`.
    """

    heading: str
    markdown: str
    target: Target | None
    line: int
    experiment: str | None = None

    @property
    def opening(self) -> tuple[str, str]:
        """The first paragraph where it is about the experiment, and the rest."""
        told, _, rest = self.markdown.partition("\n\n") if self.experiment else ("", "", self.markdown)
        return told, rest


@dataclass(frozen=True)
class Fence:
    """A block of code: its language, text and first line in the file."""

    language: str
    text: str
    section: str
    line: int


@dataclass(frozen=True)
class Reference:
    """A name in the source that the lesson points to."""

    file: str
    symbol: str
    line: int


@dataclass(frozen=True)
class Lesson:
    """A lesson. `intro` is the line below the title, without its stars; `hints` are those of the exercise."""

    number: int
    slug: str
    title: str
    minutes: int
    intro: str
    sections: tuple[Section, ...]
    questions: tuple[Question, ...]
    hints: tuple[str, ...]
    fences: tuple[Fence, ...]
    references: tuple[Reference, ...]
    path: Path

    def section(self, heading: str) -> Section:
        """The section with a heading of `HEADINGS`."""
        return next(section for section in self.sections if section.heading == heading)


@dataclass(frozen=True)
class _Line:
    number: int
    text: str
    fenced: bool


@dataclass
class _Part:
    """Lines taken apart: Markdown, player lines, experiments, details."""

    markdown: list[str] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    experiments: list[str] = field(default_factory=list)
    details: list[tuple[str, int, list[_Line]]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return re.sub(r"\n{3,}", "\n\n", "\n".join(self.markdown)).strip()


def as_typed(markdown: str) -> str:
    """A text whose commands run without an activated environment, as those of `RUN_NOTE` do."""
    return COMMAND.sub(".venv/bin/python -m emssd", markdown)


def read_lesson(path: Path) -> Lesson:
    """Read and check a lesson.

    Raises:
        LessonError: it cannot be read, or is not of the agreed form; the message names file and line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LessonError(f"The lesson {path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    return parse_lesson(text, Path(path))


def parse_lesson(text: str, path: Path) -> Lesson:
    """The same for a text at hand; `path` gives number and slug.

    Raises:
        LessonError: as `read_lesson`.
    """
    return _Reader(path).lesson(text)


class _Reader:
    """Reads one file; keeps its name for messages."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def error(self, line: int, what: str) -> LessonError:
        return LessonError(f"{self.path.name}, line {line}: {what}.")

    def lesson(self, text: str) -> Lesson:
        name = re.fullmatch(r"(\d\d)_(\w+)\.md", self.path.name)
        if name is None:
            raise LessonError(f"{self.path.name}: a lesson's file is called NN_slug.md.")
        lines = list(self._lines(text))
        number, title, minutes, intro = self._head(lines)
        if number != int(name[1]):
            raise self.error(1, f"the title has number {number}, the file {int(name[1])}")
        parts = self._sections(lines)
        sections, questions, hints = [], [], []
        for heading, line, body in parts:
            own = body[: self._first_question(body)] if heading == "Predict" else body
            part = self._part(own)
            if len(part.targets) > 1:
                raise self.error(line, f"section {heading} has more than one player line")
            if len(part.experiments) > (heading == "Run it"):
                raise self.error(
                    line, f"a try line belongs to Run it, which has at most one; section {heading} has more"
                )
            target = part.targets[0] if part.targets else None
            experiment = part.experiments[0] if part.experiments else None
            sections.append(Section(heading, part.text, target, line, experiment))
            if heading == "Predict":
                questions = list(self._questions(line, body[len(own) :]))
            elif heading == "Check yourself":
                hints = self._hints(part, line)
            elif part.details:
                raise self.error(part.details[0][1], f"details belong to questions and exercises, not to {heading}")
        self._check_start(sections)
        fences = [fence for heading, _, body in parts for fence in _fences(heading, body)]
        references = [
            Reference(file, symbol, line.number)
            for line in lines
            if not line.fenced
            for file, symbol in REFERENCE.findall(line.text)
        ]
        return Lesson(
            number,
            name[2],
            title,
            minutes,
            intro,
            tuple(sections),
            tuple(questions),
            tuple(hints),
            tuple(fences),
            tuple(references),
            self.path,
        )

    def _lines(self, text: str) -> Iterator[_Line]:
        """Lines with their numbers; those of a block of code, its fences too, are marked."""
        closing = ""
        start = 0
        for number, line in enumerate(text.splitlines(), start=1):
            fence = FENCE.match(line)
            if closing:
                yield _Line(number, line, True)
                if fence and fence[1].startswith(closing) and not fence[2]:
                    closing = ""
                continue
            if fence:
                closing, start = fence[1], number
            elif line.count("<!--") != len(COMMENT.findall(line)):
                raise self.error(number, "a comment must begin and end on one line")
            yield _Line(number, line, bool(fence))
        if closing:
            raise self.error(start, "a block of code that does not end")

    def _head(self, lines: Sequence[_Line]) -> tuple[int, str, int, str]:
        found = TITLE.fullmatch(lines[0].text) if lines else None
        if found is None:
            raise self.error(1, 'the first line must be "# N. Title"')
        intro = next((line for line in lines[1:] if line.text.strip()), None)
        if intro is None or not re.fullmatch(r"\*[^*].*\*", intro.text.strip()):
            raise self.error(2, 'below the title stands a line in stars: "*10 minutes. Needs ... Paper: ...*"')
        words = COMMENT.sub("", intro.text).strip()[1:-1]
        minutes = re.match(r"(\d+) minutes\b", words)
        if minutes is None:
            raise self.error(intro.number, 'the line below the title begins with "10 minutes."')
        return int(found[1]), found[2].strip(), int(minutes[1]), words

    def _sections(self, lines: Sequence[_Line]) -> list[tuple[str, int, list[_Line]]]:
        parts: list[tuple[str, int, list[_Line]]] = []
        for line in lines:
            if not line.fenced and line.text.startswith("## "):
                parts.append((line.text[3:].strip(), line.number, []))
            elif parts:
                parts[-1][2].append(line)
        for number, heading in enumerate(HEADINGS):
            if number >= len(parts) or parts[number][0] != heading:
                line_number = parts[number][1] if number < len(parts) else len(lines)
                raise self.error(
                    line_number, f"section {number + 1} must be {heading!r}, in the order {_list(HEADINGS)}"
                )
        if len(parts) > len(HEADINGS):
            raise self.error(parts[len(HEADINGS)][1], f"no section comes after {HEADINGS[-1]!r}")
        return parts

    def _part(self, lines: Sequence[_Line]) -> _Part:
        """Take lines apart. Blocks of code stay as they are."""
        part = _Part()
        inside: list[_Line] | None = None
        for line in lines:
            opening = None if line.fenced else DETAILS.match(line.text.strip())
            if inside is not None:
                if not line.fenced and line.text.strip() == "</details>":
                    inside = None
                elif opening:
                    raise self.error(line.number, "details inside details")
                else:
                    inside.append(line)
            elif opening:
                inside = []
                part.details.append((opening[1].strip(), line.number, inside))
                if rest := DETAILS.sub("", line.text.strip(), count=1):
                    inside.append(_Line(line.number, rest, False))
            elif not line.fenced and ("<details" in line.text or "</details" in line.text):
                raise self.error(line.number, "details begin with <details><summary>...</summary>, end with </details>")
            else:
                self._plain(line, part)
        if inside is not None:
            raise self.error(part.details[-1][1], "details that do not end")
        return part

    def _plain(self, line: _Line, part: _Part) -> None:
        if line.fenced:
            part.markdown.append(line.text)
            return
        for comment in COMMENT.findall(line.text):
            if not comment.startswith(COMMENT_KINDS):
                kinds = ", ".join(kind.strip(": ") for kind in COMMENT_KINDS)
                raise self.error(line.number, f"a comment that is none of {kinds}")
            if comment.startswith("player:"):
                part.targets.append(self.target(comment.removeprefix("player:"), line.number))
            if comment.startswith("try:"):
                part.experiments.append(self.experiment(comment.removeprefix("try:").strip(), line.number))
        words = COMMENT.sub("", line.text)
        if words != line.text and not NUMBERED.match(line.text):
            words = NUMBERED.sub(r"\1\\\2", words, count=1) if NUMBERED.match(words) else words
        if words.strip() or not line.text.strip():
            part.markdown.append(words.rstrip() if not words.endswith("  ") else words)

    def target(self, words: str, line: int) -> Target:
        """A player line: `preset=figure2 left=vanilla right=ems-sd step=1 sub=commit`."""
        values: dict[str, str] = {}
        for word in words.split():
            name, sign, value = word.partition("=")
            if not sign or name in values or name not in ("preset", "left", "right", "step", "sub", *MAY_SAY):
                raise self.error(line, f"the player knows no {word!r}, or has it twice")
            values[name] = value
        for name, allowed in (("preset", PRESETS), ("left", METHODS), ("sub", SUBSTEPS)):
            if values.get(name) not in allowed:
                raise self.error(line, f"player: {name} must be one of {_list(tuple(allowed))}")
        if values.get("right", "vanilla") not in METHODS or values.get("right") == values["left"]:
            raise self.error(line, "player: right must be another method than left")
        if not re.fullmatch(r"\d{1,3}", values.get("step", "")):
            raise self.error(line, "player: step must be a number")
        if "pin" in values and not re.fullmatch(r"\d{1,2}\.\d{1,4}", values["pin"]):
            raise self.error(line, "player: pin must be ROW.SLOT")
        if "query" in values and not re.fullmatch(r"\d{1,2}\.\d{1,2}", values["query"]):
            raise self.error(line, "player: query must be ROW.PLACE")
        row, _, place = values.get("query", "").partition(".")
        query = (int(row), int(place)) if place else None
        hide = tuple(self._hidden(pair, "right" in values, line) for pair in values.get("hide", "").split(",") if pair)
        step = int(values["step"])
        where = values["preset"], values["left"], values.get("right"), step, values["sub"]
        return Target(*where, values.get("pin"), hide, query)

    def experiment(self, name: str, line: int) -> str:
        """A line that says what the reader can change here: `try: padding`."""
        if name not in EXPERIMENTS:
            raise self.error(line, f"try: must be followed by one of {_list(EXPERIMENTS)}")
        return name

    def _hidden(self, pair: str, two: bool, line: int) -> tuple[str, int]:
        side, _, row = pair.partition(":")
        if side not in SIDES or not re.fullmatch(r"\d{1,2}", row) or (side == "right" and not two):
            raise self.error(line, "player: hide must be left:ROW or right:ROW, joined by commas")
        return side, int(row)

    def _first_question(self, body: Sequence[_Line]) -> int:
        starts = (n for n, line in enumerate(body) if not line.fenced and line.text.startswith("### "))
        return next(starts, len(body))

    def _questions(self, line: int, body: Sequence[_Line]) -> Iterator[Question]:
        starts = [n for n, each in enumerate(body) if not each.fenced and each.text.startswith("### ")]
        if not 1 <= len(starts) <= 3:
            raise self.error(line, f"Predict has 1 to 3 questions, not {len(starts)}")
        for start, end in zip(starts, [*starts[1:], len(body)], strict=True):
            yield self._question(body[start], body[start + 1 : end])

    def _question(self, head: _Line, body: Sequence[_Line]) -> Question:
        part, line = self._part(body), head.number
        if len(part.targets) > 1:
            raise self.error(line, "a question has at most one player line before its answer")
        options = tuple(words[2:].strip() for words in part.markdown if words.startswith("- "))
        if (options and not 2 <= len(options) <= 5) or len(set(options)) != len(options):
            raise self.error(line, "a question has 2 to 5 different options, or none")
        *hinted, (summary, where, lines) = part.details or [("", line, [])]
        if summary != "Answer":
            raise self.error(where, "a question's last details must be its Answer")
        part.details = hinted
        hints = self._hints(part, line)
        answer = self._part(lines)
        if len(answer.targets) > 1 or answer.details:
            raise self.error(where, "an answer has at most one player line, and no details")
        bold = re.search(r"\*\*(.+?)\*\*", answer.text)
        if bold is None or not (bold[1] in options if options else re.fullmatch(r"-?\d+(\.\d+)?", bold[1])):
            what = "one of the options" if options else "a number"
            raise self.error(where, f"the answer's first bold text must be {what}")
        markdown = "\n".join(words for words in part.markdown if not words.startswith("- ")).strip()
        before, after = (each.targets[0] if each.targets else None for each in (part, answer))
        words = COMMENT.sub("", head.text[4:]).strip()
        return Question(words, markdown, options, tuple(hints), bold[1], answer.text, before, after, line)

    def _hints(self, part: _Part, line: int) -> list[str]:
        hints = []
        for number, (summary, where, lines) in enumerate(part.details, start=1):
            if summary != f"Hint {number}" or number > MAX_HINTS:
                raise self.error(where, f"hints are called Hint 1 to Hint {MAX_HINTS}, in this order, not {summary!r}")
            inner = self._part(lines)
            if inner.targets or inner.details:
                raise self.error(where, "a hint has no player line and no details")
            hints.append(inner.text)
        return hints

    def _check_start(self, sections: Sequence[Section]) -> None:
        if sections[0].target is None:
            raise self.error(sections[0].line, f"section {sections[0].heading} needs a player line: it is the first")


def _fences(heading: str, body: Sequence[_Line]) -> Iterator[Fence]:
    """The blocks of code of a section."""
    open_at: _Line | None = None
    inside: list[str] = []
    for line in body:
        if not line.fenced:
            continue
        found = FENCE.match(line.text)
        if open_at is None:
            open_at, inside = line, []
        elif found and not found[2] and found[1].startswith(_fence_of(open_at)):
            language = FENCE.match(open_at.text)
            yield Fence(language[2] if language else "", "\n".join(inside) + "\n", heading, open_at.number)
            open_at = None
        else:
            inside.append(line.text)


def _fence_of(line: _Line) -> str:
    found = FENCE.match(line.text)
    return found[1] if found else "```"


def _list(words: Sequence[str]) -> str:
    return ", ".join(words)
