"""The texts of the lessons: form, links, names in the source, players, numbers, pictures, and code that runs."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from emssd.cells import SUBSTEPS, cells_at
from emssd.lessons.catalog import FOLDER, NUMBERS, entries
from emssd.lessons.text import HEADINGS, Fence, Lesson, LessonError, Target, parse_lesson, read_lesson
from emssd.trace import GenerationTrace
from emssd.ui.palette import CHROME, PHASES
from lessons import build, drawing, facts, svg

ROOT = FOLDER.parent
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
CODE_SPAN = re.compile(r"`[^`]*`")
FENCED = re.compile(r"^(```|~~~).*?^\1\s*$", re.S | re.M)
COMMENT = re.compile(r"<!--.*?-->")
# a decimal number, a percentage or a factor; not part of a name such as OPT-6.7B, a version or a section
CLAIM = re.compile(r"(?<![\w.\-/])\d[\d,]*(?:\.\d+(?!\w|\.\d)| ?%| ?x\b|\.\d+ ?x\b)")
PLACES = r"sections?|tables?|figures?|chapters?|appendix|lessons?|equations?"
NAMES_A_PLACE = re.compile(rf"(?:(?:{PLACES})\s+(?:[\d.]+(?:,| and| to)\s+)*|§\s*)$", re.I)
MARKED = re.compile(r"\d(?:[\d.,]*)(?: ?[%x])?(?:\*\*|`)? ?[%x]?<!-- = ")
MOST_WORDS = 1_600


@cache
def lesson(number: int) -> Lesson:
    return read_lesson(next(entry.text for entry in entries() if entry.number == number))


@cache
def texts() -> tuple[Path, ...]:
    return tuple(sorted(FOLDER.glob("*.md")))


def prose(path: Path) -> str:
    """A text without blocks of code; as many lines as before."""
    text = path.read_text(encoding="utf-8")
    return FENCED.sub(lambda match: "\n" * match[0].count("\n"), text)


# --- form ---


def test_the_ten_lessons_are_there_and_nothing_else():
    assert [entry.number for entry in entries()] == list(NUMBERS)
    names = {path.name for path in texts()} - {entry.text.name for entry in entries()}
    assert names == {"README.md", "TEACHING.md"}


@pytest.mark.parametrize("number", NUMBERS)
def test_a_lesson_has_the_agreed_form(number):
    found = lesson(number)
    assert tuple(section.heading for section in found.sections) == HEADINGS
    assert found.minutes == 10
    assert 1 <= len(found.questions) <= 3
    assert len(found.hints) == 3, "hints of the exercise"
    assert f"lesson check {number:02d}" in found.section("Check yourself").markdown
    assert f"solutions/{entries()[number - 1].solution.name}" in found.section("Check yourself").markdown
    assert f"exercises/{entries()[number - 1].exercise.name}" in found.section("Check yourself").markdown
    assert found.references, "at least one name in the source"
    assert [fence.language for fence in found.fences].count("python") >= 1
    for section in found.sections[:1] + found.sections[2:]:
        assert section.markdown, section.heading


@pytest.mark.parametrize("number", NUMBERS)
def test_a_lesson_takes_ten_minutes(number):
    words = len(re.findall(r"\w+", COMMENT.sub("", prose(lesson(number).path))))
    assert words <= MOST_WORDS, f"{words} words"


@pytest.mark.parametrize("number", NUMBERS)
def test_lessons_lead_to_each_other(number):
    following = lesson(number).section("Next").markdown
    if number + 1 in NUMBERS:
        assert f"({lesson(number + 1).path.name})" in following
    if number - 1 in NUMBERS:
        assert f"({lesson(number - 1).path.name})" in lesson(number).intro


def targets(found: Lesson) -> list[Target]:
    both = [target for question in found.questions for target in (question.before, question.after)]
    return [target for target in [section.target for section in found.sections] + both if target]


@pytest.mark.parametrize("number", NUMBERS)
def test_every_player_line_names_what_there_is(number):
    for target in targets(lesson(number)):
        runs = [facts.trace(target.preset, name) for name in (target.left, target.right) if name]
        assert target.step < max(len(run.steps) for run in runs), target
        assert target.sub in SUBSTEPS
        assert target.step > 0 or target.sub == "commit", target
        if target.pin:
            row, slot = map(int, target.pin.split("."))
            assert row < len(runs[0].rows), target
            assert any(slot < len(cells_at(run, min(target.step, len(run.steps) - 1))[row]) for run in runs), target
        for _, row in target.hide:
            assert row < len(runs[0].rows), target
        if target.query and target.step:
            row, place = target.query
            assert all(place <= run.steps[target.step].rows[row].num_drafted for run in runs), target


@pytest.mark.parametrize("number", NUMBERS)
def test_every_answer_is_computed(number):
    lines = lesson(number).path.read_text(encoding="utf-8").splitlines()
    for question in lesson(number).questions:
        start = next(n for n, line in enumerate(lines[question.line :], question.line) if "<summary>Answer" in line)
        answer = next(line for line in lines[start:] if "**" in line)
        assert re.search(re.escape(f"**{question.answer}**") + r"(?: ?[%x])?<!-- = ", answer), answer


@pytest.mark.parametrize("number", NUMBERS)
def test_a_question_gives_nothing_away(number):
    """What is hidden before the answer is shown after it."""
    for question in lesson(number).questions:
        if question.before and question.before.hide:
            assert question.after, question.text
        if question.after:
            assert not question.after.hide, question.text


# --- links and names ---


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives a file's headings."""
    heads = re.findall(r"^#+ (.*)$", prose(path), re.M)
    return {re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", texts(), ids=lambda path: path.stem)
def test_every_link_resolves(path):
    for target in LINK.findall(prose(path)):
        if re.match(r"https?://", target):
            assert re.match(r"https://(arxiv\.org|doi\.org|aclanthology\.org|github\.com|docs\.)", target), target
            continue
        name, _, anchor = target.partition("#")
        found = (path.parent / name).resolve() if name else path
        assert found.exists(), f"{path.name}: {target}"
        assert found.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(found), f"{path.name}: {target}"


def defined(tree: ast.AST, parts: list[str]) -> bool:
    """Whether a module or class body has the name, and in it the rest."""
    for node in ast.iter_child_nodes(tree):
        names = []
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        if parts[0] in names:
            return len(parts) == 1 or defined(node, parts[1:])
    return False


@pytest.mark.parametrize("number", NUMBERS)
def test_every_name_in_the_source_exists(number):
    for reference in lesson(number).references:
        path = ROOT / reference.file
        assert path.is_file(), f"line {reference.line}: {reference.file}"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert defined(tree, reference.symbol.split(".")), f"line {reference.line}: {reference.symbol}"


@pytest.mark.parametrize("path", texts(), ids=lambda path: path.stem)
def test_every_file_that_is_named_exists(path):
    for name in re.findall(r"`((?:emssd|lessons|assets|tests)/[\w./-]+)`", prose(path)):
        assert "my-" in name or (ROOT / name).exists(), f"{path.name}: {name}"  # my-: what a reader would make


# --- numbers and pictures ---


def test_numbers_and_pictures_are_up_to_date():
    changes = build.build(check=True)
    assert changes == [], "run `make lessons`:\n" + "\n".join(map(str, changes))


def claims_without_source(text: str) -> list[str]:
    """Decimal numbers, percentages and factors in running text that are not computed and whose block has no source."""
    found = []
    for block in re.split(r"\n\s*\n", text):
        for line in block.splitlines() if "<!-- source:" not in block else ():
            bare = CODE_SPAN.sub(_blanked, LINK.sub(_blanked, line))
            for claim in CLAIM.finditer(COMMENT.sub(_blanked, bare)):
                place = NAMES_A_PLACE.search(bare[: claim.start()]) and claim[0][-1] not in "%x"
                if not (place or MARKED.match(bare[claim.start() :])):
                    found.append(f"{claim[0]!r} in {line.strip()[:120]!r}")
    return found


def _blanked(match: re.Match[str]) -> str:
    """As long as before, so that places stay."""
    return "_" * len(match[0]) if match[0][0] != "`" else f"`{'_' * (len(match[0]) - 2)}`"


@pytest.mark.parametrize("path", texts(), ids=lambda path: path.stem)
def test_every_claim_is_computed_or_has_a_source(path):
    assert claims_without_source(prose(path)) == []


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("It is 3.5 times.", 1),
        ("It is 3.5x faster, 20 % less, 7% and **2x**.", 4),
        ("It is 3.5<!-- = 3.5 | .1f --> and **2.0x**<!-- = 2 | .1f -->, 20 %<!-- = 20 -->.", 0),
        ("It is 3.5<!-- = 3.5 | .1f --> and 2.5.", 1),
        ("It is 3.5.\n<!-- source: paper Table 2 -->", 0),
        ("It is 3.5.\n\nOther 2.5.<!-- source: paper Table 2 -->", 1),
        ("Section 3.2, sections 3.1 and 3.2, OPT-6.7B, `1.5`, [x](a1.5.md), row 3, slots 4 to 6.", 0),
        ("Section 3.2 gives 50 %.", 1),
    ],
)
def test_claims_are_found(text, number):
    assert len(claims_without_source(text)) == number


def test_every_picture_is_asked_for_and_read_aloud():
    """No drawn picture lies about, and each says in words what it shows."""
    asked = {picture.target for picture in build.wanted_pictures()}
    drawn = {f"pictures/{path.name}" for path in (FOLDER / "pictures").glob("*")}
    assert drawn == asked
    for path in texts():
        for words, _ in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", prose(path)):
            assert len(words.split()) >= 4, f"{path.name}: {words!r}"


@pytest.mark.parametrize("picture", list(build.wanted_pictures()), ids=lambda picture: Path(picture.target).stem)
def test_a_picture_is_read_without_colour_and_without_fetching(picture):
    from xml.etree import ElementTree

    drawn = drawing.draw(picture)
    tree = ElementTree.fromstring(drawn)
    assert tree.find("{http://www.w3.org/2000/svg}title").text == picture.alt
    assert "href" not in drawn
    assert "<script" not in drawn
    first = tree.find("{http://www.w3.org/2000/svg}rect")
    assert first.get("fill") == "#FFFFFF", "its own ground"
    width, height = float(tree.get("width")), float(tree.get("height"))
    assert 200 < width < 1400
    assert 60 < height < 1600


@pytest.mark.parametrize("picture", list(build.wanted_pictures()), ids=lambda picture: Path(picture.target).stem)
def test_a_picture_has_the_players_colours_on_a_dark_page(picture):
    drawn = drawing.draw(picture)
    style = re.search(r"<style>(.*)</style>", drawn)[1]
    colours = set(svg.COLOUR.findall(drawn.replace(style, "")))
    assert style.startswith("@media (prefers-color-scheme:dark){")
    assert ("fill", CHROME["panel"][0]) in colours
    for name, light in colours:
        assert (f'[{name}="{light}"]{{{name}:{svg.DARK[light]}}}' in style) == (svg.DARK[light] != light), light
    assert svg.DARK[CHROME["panel"][0]] == CHROME["panel"][1]
    assert all(svg.DARK[PHASES[name].light[1]] == PHASES[name].dark[1] for name in PHASES)


def test_the_cells_of_a_picture_are_those_of_the_trace():
    """Letter by letter: what is drawn for the worked example is what `emssd.cells` says."""
    options = {"preset": "figure2", "method": "vanilla", "step": "2", "sub": "commit"}
    picture = drawing.Picture("pictures/x.svg", "x", "cache", options, "here")
    letters = re.findall(r'font-size="9"[^>]*>([^<]*)<', drawing.draw(picture))
    grid = cells_at(GenerationTrace.from_json(ROOT / "assets/traces/figure2/vanilla.json"), 2)
    looks = drawing.PHASES
    assert letters == [looks[cell.state].glyph for line in grid for cell in line if looks[cell.state].glyph]


@pytest.mark.parametrize("preset", ["figure2", "early-finisher", "copy-rich"])
@pytest.mark.parametrize("method", ["vanilla", "ragged-cache", "packed-input", "ems-sd"])
def test_a_picture_shows_every_row_that_is_fed(preset, method):
    """Finished rows among them: as many cells as the account of the step has input rows, and the heading says so."""
    for step in facts.trace(preset, method).decode_steps[::3]:
        options = {"preset": preset, "method": method, "step": str(step.index), "sub": "pack"}
        drawn = drawing.draw(drawing.Picture("pictures/x.svg", "x", "input", options, "here"))
        fed = sum(step.account.input_rows.values())
        assert f" feeds {fed} input rows" in drawn
        assert len(re.findall(r'font-size="9"', drawn)) == fed


# --- code ---


def python_fences() -> list[tuple[int, Fence, str | None]]:
    """(lesson, block, the output that stands below it)."""
    found = []
    with contextlib.suppress(Exception):
        for entry in entries():
            fences = read_lesson(entry.text).fences
            for place, fence in enumerate(fences):
                following = fences[place + 1] if place + 1 < len(fences) else None
                output = following.text if following and following.language == "text" else None
                if fence.language == "python":
                    found.append((entry.number, fence, output))
    return found


@pytest.mark.parametrize(
    ("number", "fence", "output"),
    python_fences(),
    ids=[f"{number:02d}-line{f.line}" for number, f, _ in python_fences()],
)
def test_every_block_of_python_runs_and_prints_what_stands_below(number, fence, output, monkeypatch):
    monkeypatch.chdir(ROOT)
    printed, modules = io.StringIO(), set(sys.modules)
    with contextlib.redirect_stdout(printed):
        exec(compile(fence.text, f"lesson {number}, line {fence.line}", "exec"), {"__name__": "__main__"})
    assert "smollm2" not in fence.text, "a lesson's code runs on tiny models or on recorded traces"
    if output is not None:
        assert _trimmed(printed.getvalue()) == _trimmed(output)
    assert not any(name.startswith("lesson_solution") for name in set(sys.modules) - modules)


def _trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").split("\n")]


# --- the reader and the builder themselves ---

GOOD = """\
# 6. A title

*10 minutes. Needs [lesson 5](05_x.md).*

## Question
<!-- player: preset=figure2 left=vanilla right=ems-sd step=1 sub=commit -->
Text.

## Predict

### Which?

- 3
- 4

<details><summary>Hint 1</summary>

Look.
</details>

<details><summary>Answer</summary>

**4**<!-- = 4 -->. Because.
<!-- player: preset=figure2 left=ems-sd step=1 sub=commit pin=1.4 -->
</details>

## Idea
Idea.

## In the code
- `emssd/layouts.py::BatchLayout.commit` moves cursors.

## Run it
```python
print("## no heading <!-- no comment")
```

## Check yourself
Write it.

## Next
The end.
"""


def parsed(text: str) -> Lesson:
    return parse_lesson(text, Path("06_x.md"))


def test_a_lesson_is_read():
    found = parsed(GOOD)
    assert (found.number, found.slug, found.title, found.minutes) == (6, "x", "A title", 10)
    [question] = found.questions
    assert question.options == ("3", "4")
    assert (question.answer, question.hints, question.explanation) == ("4", ("Look.",), "**4**. Because.")
    assert question.after == Target("figure2", "ems-sd", None, 1, "commit", "1.4")
    asked = parsed(GOOD.replace("pin=1.4", "query=0.3")).questions[0].after
    assert (asked.pin, asked.query) == (None, (0, 3))
    assert found.section("Question").markdown == "Text."
    assert found.references[0].symbol == "BatchLayout.commit"
    assert found.fences[0].text == 'print("## no heading <!-- no comment")\n'


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("# 6. A title", "# A title", "line 1"),
        ("# 6.", "# 7.", "number 7"),
        ("*10 minutes.", "*Ten minutes.", "10 minutes"),
        ("## Idea", "## Ideas", "line 27: section 3 must be 'Idea'"),
        ("## Next", "## Next\n## More", "no section comes after"),
        ("step=1 sub=commit -->\nText", "step=x sub=commit -->\nText", "line 6: player: step"),
        ("preset=figure2 left=vanilla", "preset=figure3 left=vanilla", "line 6: player: preset"),
        ("right=ems-sd", "right=vanilla", "line 6: player: right"),
        ("right=ems-sd", "right=ems-sd hide=up:1", "line 6: player: hide"),
        ("right=ems-sd", "right=ems-sd colour=red", "line 6: the player knows no 'colour=red'"),
        ("<!-- player: preset=figure2 left=vanilla right=ems-sd step=1 sub=commit -->\n", "", "needs a player line"),
        ("pin=1.4", "pin=4", "pin"),
        ("pin=1.4", "query=4", "query must be ROW.PLACE"),
        ("- 3\n- 4", "- 4", "2 to 5"),
        ("- 3\n- 4", "- 4\n- 4", "2 to 5"),
        ("**4**", "**5**", "the answer's first bold text"),
        ("Hint 1", "Hint 2", "hints are called"),
        ("Look.\n</details>", "Look.", "details inside details"),
        ("<details><summary>Answer", "<details><summary>Reply", "last details must be its Answer"),
        ("Idea.", "Idea.<!-- todo -->", "a comment that is none of"),
        ("Idea.", "Idea.<!-- try: padding -->", "a try line belongs to Run it"),
        ("## Run it\n", "## Run it\n<!-- try: padding -->\n<!-- try: padding -->\n", "at most one"),
        ("## Run it\n", "## Run it\n<!-- try: paddings -->\n", "try: must be followed by one of"),
        ("Idea.", "Idea.<!-- = 4", "begin and end on one line"),
        ("print(", "```\n```python\nprint(", ""),
        ("```\n\n## Check", "\n\n## Check", "does not end"),
    ],
)
def test_a_mistake_in_a_lesson_names_file_and_line(old, new, words):
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    if not words:
        assert len(parsed(text).fences) == 2
        return
    with pytest.raises(LessonError) as error:
        parsed(text)
    assert str(error.value).startswith("06_x.md, line ")
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('**9**<!-- = next_slot("figure2", "vanilla", 1, 1) -->', None),
        ('3<!-- = holes("figure2", "vanilla") --> holes', '7<!-- = holes("figure2", "vanilla") --> holes'),
        ("**1.00x**<!-- = 2.5 | .2f -->", "**2.50x**<!-- = 2.5 | .2f -->"),
        ("1.0 %<!-- = 2.5 | .1f -->", "2.5 %<!-- = 2.5 | .1f -->"),
        ("1,000<!-- = 2000 -->", "2,000<!-- = 2000 -->"),
        ("**no**<!-- = 3 > 2 -->", "**yes**<!-- = 3 > 2 -->"),
        ('`a`<!-- = "b" -->', '`b`<!-- = "b" -->'),
        ("slot 3 to 4<!-- = 5 -->.", "slot 3 to 5<!-- = 5 -->."),
        ("1<!-- = sum(n for n in range(4)) -->", "6<!-- = sum(n for n in range(4)) -->"),
    ],
)
def test_numbers_are_computed(line, expected):
    assert build.new_line(line, "here") == (line if expected is None else expected)
    assert build.new_line(build.new_line(line, "here"), "here") == build.new_line(line, "here")


@pytest.mark.parametrize(
    "line", ["4 <!-- = 4 -->", "4<!-- = unknown() -->", "4<!-- = 2.5 -->", "4<!-- = open('x') -->"]
)
def test_a_mark_that_cannot_be_computed_names_its_place(line):
    with pytest.raises(build.MarkError, match=r"06_x\.md, line 3"):
        build.new_line(line, "06_x.md, line 3")


def test_build_writes_what_check_only_reports(tmp_path, capsys):
    path = tmp_path / "06_x.md"
    path.write_text(
        "5<!-- = 2 + 2 -->\n```text\n5<!-- = 2 + 2 -->\n```\n"
        "![some words](pictures/06_a.svg)<!-- picture: cache preset=figure2 method=ems-sd step=1 -->\n"
    )
    before = path.read_text()
    assert build.main(["--check", "--folder", str(tmp_path)]) == 1
    assert "06_x.md, line 1: 5 should be 4" in capsys.readouterr().out
    assert path.read_text() == before
    assert build.main(["--folder", str(tmp_path)]) == 0
    assert path.read_text() == before.replace("5<!--", "4<!--", 1)
    assert (tmp_path / "pictures/06_a.svg").is_file()
    capsys.readouterr()
    assert build.main(["--check", "--folder", str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "request_",
    [
        "![a](pictures/a.svg)<!-- picture: film preset=figure2 -->",
        "![a](pictures/a.svg)<!-- picture: cache preset=figure2 colour=red -->",
        "![](pictures/a.svg)<!-- picture: chart -->",
        "![a](../a.svg)<!-- picture: chart -->",
        "![a](pictures/a.svg) <!-- picture: chart -->",
        "![a](pictures/a.svg)<!-- picture: cache preset=none method=vanilla step=1 -->",
        "![a](pictures/a.svg)<!-- picture: cache preset=figure2 method=vanilla step=9 -->",
        "![a](pictures/a.svg)<!-- picture: cache preset=figure2 method=vanilla step=1 sub=never -->",
    ],
)
def test_a_picture_that_cannot_be_drawn_names_its_place(request_, tmp_path, capsys):
    (tmp_path / "06_x.md").write_text(f"Text.\n\n{request_}\n")
    assert build.main(["--folder", str(tmp_path)]) == 1
    assert "06_x.md, line 3" in capsys.readouterr().err
