"""Lessons as one page to print: texts, questions, exercises, pictures inside; hints and answers on the last pages."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from emssd.config import METHOD_TITLES
from emssd.errors import ConfigError
from emssd.lessons.catalog import Entry
from emssd.lessons.text import RUN_NOTE, Lesson, Question, Target, as_typed, read_lesson

IMAGE_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 46rem; padding: 1.5rem; background: #fff; color: #262a33;
  font: 16px/1.55 "Source Sans 3", "Source Sans Pro", "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; color: #12151b; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; color: #12151b; margin: 1.6rem 0 .4rem; }
h3 { font-size: 1.03rem; color: #12151b; margin: 1.1rem 0 .3rem; }
h1, h2, h3, p:has(+ :is(pre, table, ul, ol)), .note { break-after: avoid; }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: .86em; }
pre { background: #f6f7f9; border: 1px solid #e6e8ec; border-radius: 4px; padding: .6rem .8rem; white-space: pre-wrap;
  overflow-wrap: anywhere; }
table { border-collapse: collapse; margin: .8rem 0; }
th, td { border: 1px solid #d3d7de; padding: .2rem .6rem; text-align: left; }
img { display: block; max-width: 100%; height: auto; margin: .8rem 0; }
.note { color: #5f6672; font-size: .92em; margin: .2rem 0 .6rem; }
.question { border: 1px solid #d3d7de; border-radius: 6px; padding: .1rem 1rem .6rem; margin: .9rem 0;
  break-inside: avoid; }
.options { list-style: none; padding-left: .2rem; margin: .3rem 0; }
.options li::before { content: "\\2610\\00a0\\00a0"; }
.blank { border-bottom: 1px solid #5f6672; display: inline-block; width: 9rem; height: 1.4rem; }
article + article, .answers { break-before: page; margin-top: 3rem; }
pre, img, table { break-inside: avoid; }
pre.long { break-inside: auto; }
@page { margin: 18mm; }
@media print { body { padding: 0; max-width: none; font-size: 11pt; } a { color: inherit; } }
"""


def lessons_html(chosen: Sequence[Entry]) -> str:
    """One page with the lessons in order. Nothing in it is fetched, and no script runs.

    Raises:
        LessonError: a text is not of the agreed form.
        ConfigError: a picture or an exercise is missing.
    """
    pages = [_Page(entry, {each.text.name: each.number for each in chosen}) for entry in chosen]
    title = pages[0].lesson.title if len(pages) == 1 else "Batched speculative decoding: ten lessons"
    body = "\n".join([*(page.article() for page in pages), *(page.answers() for page in pages)])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
{body}
</body>
</html>
"""


class _Page:
    """One lesson on its way to HTML."""

    def __init__(self, entry: Entry, numbers: dict[str, int]) -> None:
        from markdown_it import MarkdownIt  # only needed here, and not by the checks

        self.entry, self.numbers = entry, numbers
        self.lesson: Lesson = read_lesson(entry.text)
        self.markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
        self.markdown.renderer.rules.update(image=self._image, link_open=self._link)  # type: ignore[attr-defined]

    def article(self) -> str:
        """Text, questions and exercise."""
        lesson = self.lesson
        parts = [
            f'<article id="lesson-{lesson.number:02d}">',
            f"<h1>{lesson.number}. {escape(lesson.title)}</h1>",
            f'<div class="note">{self._html(lesson.intro)}</div>',
        ]
        for section in lesson.sections:
            parts += [f"<h2>{escape(section.heading)}</h2>", self._player(section.target)]
            told, rest = section.opening
            if told:
                parts.append(self._html(told))
            if section.heading == "Run it":
                parts.append(f'<div class="note">{self._html(RUN_NOTE)}</div>')
            parts.append(self._html(rest))
            if section.heading == "Predict":
                parts += [self._question(number, each) for number, each in enumerate(lesson.questions, start=1)]
            if section.heading == "Check yourself":
                parts.append(self._exercise())
        return "\n".join([*(part for part in parts if part), "</article>"])

    def answers(self) -> str:
        """Hints and answers."""
        lesson = self.lesson
        parts = ['<section class="answers">', f"<h2>Lesson {lesson.number}: hints and answers</h2>"]
        for number, question in enumerate(lesson.questions, start=1):
            parts.append(f"<h3>Question {number}: {self._inline(question.text)}</h3>")
            parts += [self._html(f"Hint {n}: {hint}") for n, hint in enumerate(question.hints, start=1)]
            parts.append(self._html(f"Answer: {question.explanation}"))
        if lesson.hints:
            parts.append("<h3>Exercise</h3>")
            parts += [self._html(f"Hint {n}: {hint}") for n, hint in enumerate(lesson.hints, start=1)]
        return "\n".join([*parts, "</section>"])

    def _question(self, number: int, question: Question) -> str:
        options = "".join(f"<li>{self._inline(option)}</li>" for option in question.options)
        place = f'<ul class="options">{options}</ul>' if options else '<p>Number: <span class="blank"></span></p>'
        head = f"<h3>{number}. {self._inline(question.text)}</h3>"
        return (
            f'<div class="question">{head}{self._player(question.before)}{self._html(question.markdown)}{place}</div>'
        )

    def _exercise(self) -> str:
        try:
            source = self.entry.exercise.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{self.entry.exercise}: {error.strerror or error}.") from None
        name = escape(f"lessons/exercises/{self.entry.exercise.name}")
        return f'<p class="note">{name}</p><pre class="long"><code>{escape(source)}</code></pre>'

    def _player(self, target: Target | None) -> str:
        if target is None:
            return ""
        methods = " beside ".join(METHOD_TITLES[name] for name in (target.left, target.right) if name)
        when = "after prefill" if target.step == 0 else f"step {target.step}, {target.sub}"
        return f'<p class="note">In the player: preset {escape(target.preset)}, {escape(methods)}, {when}.</p>'

    def _html(self, markdown: str) -> str:
        return str(self.markdown.render(as_typed(markdown))).strip()

    def _inline(self, markdown: str) -> str:
        return str(self.markdown.renderInline(markdown))

    def _image(self, tokens: Sequence[Any], place: int, options: Any, env: Any) -> str:
        token = tokens[place]
        source, words = str(token.attrs["src"]), escape(token.content)
        path = (self.entry.text.parent / source).resolve()
        kind = IMAGE_TYPES.get(path.suffix)
        if re.match(r"\w+:", source) or kind is None or not path.is_file():
            raise ConfigError(f"{self.entry.text.name}: there is no picture {source}. `make lessons` draws them.")
        data = base64.b64encode(Path(path).read_bytes()).decode("ascii")
        return f'<img alt="{words}" src="data:{kind};base64,{data}">'

    def _link(self, tokens: Sequence[Any], place: int, options: Any, env: Any) -> str:
        """Links to lessons of this page become jumps; other files are not there for a reader of paper."""
        target = str(tokens[place].attrs["href"])
        name = target.partition("#")[0]
        if name in self.numbers:
            return f'<a href="#lesson-{self.numbers[name]:02d}">'
        return f'<a href="{escape(target)}">' if re.match(r"https?://", target) else "<a>"
