"""The page Lessons: every screen, addresses, questions, the learner's file checked, and a failed case on Explore."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from random import Random
from urllib.parse import parse_qsl, urlsplit

import pytest

from emssd.errors import TraceError
from emssd.lessons.catalog import FOLDER, entries, exercise_file, solution_file
from emssd.lessons.checking import Failure
from emssd.lessons.states import failure_link, load_state, save_state
from emssd.lessons.text import EXPERIMENTS, RUN_NOTE, Target, as_typed, parse_lesson, read_lesson
from emssd.ui import lessons_check, lessons_overview, lessons_try
from emssd.ui.lessons_answers import judge, places
from emssd.ui.lessons_code import source_of
from emssd.ui.lessons_library import target_of
from emssd.ui.lessons_link import SECTIONS, Place, read_place
from emssd.ui.lessons_player import lesson_data, seal_of
from emssd.ui.lessons_words import own_links, pieces
from emssd.ui.library import load_preset
from emssd.ui.link import read_state
from emssd.ui.player_data import Start
from tests.app_pages import EXPLORE, LESSONS, ROOT, go, methods, open_app, player, texts, warnings

BEGUN = "def pack(rows):\n    return [], [0]\n\n\ndef locate(starts, r):\n    raise NotImplementedError\n"
LESSONS_READ = {entry.number: read_lesson(entry.text) for entry in entries()}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test sees or changes what somebody has done on this computer."""
    monkeypatch.setenv("EMSSD_CACHE", str(tmp_path / "cache"))


def open_lesson(number: int, section: str = "question", **query: str):
    return open_app(LESSONS, lesson=str(number), section=section, **query)


def place_of(page) -> dict[str, str]:
    return {name: values[0] if isinstance(values, list) else values for name, values in page.query_params.items()}


def shown_target(page) -> tuple:
    data = player(page)
    return methods(page), data["start"]["step"], data["start"]["sub"]


def go_on(page) -> None:
    page.button(key="lesson_continue").click().run()
    assert not page.exception


def test_every_experiment_is_drawn_and_belongs_to_one_lesson():
    used = [lesson.section(SECTIONS["run"]).experiment for lesson in LESSONS_READ.values()]
    assert sorted(name for name in used if name) == sorted(EXPERIMENTS)
    assert set(lessons_try.EXPERIMENTS) == set(EXPERIMENTS)


@pytest.mark.parametrize("number", sorted(LESSONS_READ))
def test_every_screen_of_a_lesson_opens_and_moves_the_player(number):
    lesson, page, keys = LESSONS_READ[number], open_lesson(number), set()
    screens = [
        Place(number, name, question)
        for name in SECTIONS
        for question in range(1, 1 + (len(lesson.questions) if name == "predict" else 1))
    ]
    for screen in screens:
        assert place_of(page) == screen.query()
        assert not warnings(page)
        assert f"Lesson {number} of 10" in texts(page)
        assert f"<h1>{lesson.title}" in texts(page).replace("&#x27;", "'")
        assert SECTIONS[screen.section] in texts(page)
        if screen.section == "run" and lesson.section(SECTIONS["run"]).experiment:
            keys.add(screen)
            assert page.get("bidi_component") or page.get("plotly_chart")  # what the experiment leads to
            assert "Try it" in texts(page)
            go_on(page)
            continue
        data, target = player(page), target_of(lesson, screen, answered=False)
        assert methods(page) == [name for name in (target.left, target.right) if name]
        assert (data["start"]["step"], data["start"]["pin"]) == (target.step, target.pin)
        asks = screen.section == "predict" or (screen.section == "question" and bool(target.hide))
        assert data["lesson"]["asks"] == asks
        assert len(data["lesson"]["hide"]) == (len(target.hide) if asks else 0)
        keys.add(data["lesson"]["key"])
        if screen != screens[-1]:
            go_on(page)
    assert len(keys) == len(screens)
    assert page.button(key="lesson_continue").disabled
    page.button(key="lesson_back").click().run()
    assert place_of(page) == screens[-2].query()


def test_the_first_view_lists_all_lessons_and_what_has_been_done(tmp_path):
    page = open_app(LESSONS)
    labels = [link.proto.label for link in page.get("page_link")]
    assert [f"{number}. {lesson.title}" in labels for number, lesson in LESSONS_READ.items()] == [True] * 10
    assert "0 of 10 exercises passed on this computer" in texts(page)
    assert not page.get("bidi_component")
    begun = tmp_path / "begun.py"
    begun.write_text(BEGUN)
    for file, tried in ((exercise_file(7), 0), (begun, 1)):
        command = [sys.executable, "-m", "emssd", "lesson", "check", "07", str(file), "--json"]
        assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60).returncode == 1
        page.run()
        assert texts(page).count("tried, not passed yet") == tried


def test_the_teachers_page_opens_from_the_list():
    page = open_app(LESSONS, lesson="teaching")
    assert not page.exception
    assert not warnings(page)
    heading = (FOLDER / "TEACHING.md").read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
    assert any(heading in words.value for words in page.markdown)


BAD = [
    ({"lesson": "11"}, "lesson “11”", Place()),
    ({"lesson": "../../etc"}, "lesson “../../etc”", Place()),
    ({"lesson": "6", "section": "<b>"}, "section “<b>”", Place(6)),
    ({"lesson": "6", "section": "predict", "question": "0"}, "question “0”", Place(6, "predict")),
    ({"lesson": "6", "section": "predict", "question": "x"}, "question “x”", Place(6, "predict")),
]


@pytest.mark.parametrize(("query", "words", "place"), BAD)
def test_a_bad_address_gets_one_sentence_and_the_default(query, words, place):
    page = open_app(LESSONS, **query)
    (notice,) = warnings(page)
    assert words in notice
    assert place_of(page) == place.query()
    page.run()
    assert not warnings(page)  # the address has been put right


def test_no_address_is_an_exception():
    random = Random(5)
    pool = ["6", "0", "-1", "01", "१", "9" * 30, "", "teaching", "predict", "idea", "‮x", "1e3", "2", "None"]
    for _ in range(200):
        query = {
            name: random.choice(pool) for name in ("lesson", "section", "question", "other") if random.random() < 0.8
        }
        place, notices = read_place(query, range(1, 11))
        assert place == read_place(place.query(), range(1, 11))[0]
        assert all(len(notice) < 200 for notice in notices)


def test_a_question_that_the_lesson_does_not_have_is_its_last_one():
    page = open_lesson(6, "predict", question="3")
    assert player(page)["lesson"]["key"].startswith(f"6/predict/{min(3, len(LESSONS_READ[6].questions))}")


# ---- what stays closed while questions are open


def sealed(page) -> tuple[bool, int | None]:
    lesson = player(page)["lesson"]
    return lesson["sealed"], lesson["marked"]


@pytest.mark.parametrize("number", sorted(LESSONS_READ))
def test_the_player_is_sealed_until_every_question_is_answered_or_skipped(number):
    lesson, page = LESSONS_READ[number], open_lesson(number)
    for count in range(1, len(lesson.questions) + 1):
        is_sealed, marked = sealed(page)
        shown = player(page)["start"]
        assert is_sealed
        assert marked <= 6 * shown["step"] + 5
        page.button(key="lesson_continue").click().run()
        assert sealed(page)[0]
        assert place_of(page)["section"] == "predict"
        page.button(key="skip_it").click().run()
        assert sealed(page)[0] == (count < len(lesson.questions))
    assert sealed(page) == (False, None)
    page.button(key="lesson_continue").click().run()
    assert sealed(page) == (False, None)


def test_no_mark_tells_of_what_an_open_question_asks():
    def target(step, sub, hide=(), preset="figure2"):
        return Target(preset, "ems-sd", None, step, sub, None, hide)

    shown, hidden = target(2, "commit"), (("left", 0),)
    assert seal_of(shown, []) == 17
    assert seal_of(shown, [target(1, "verify")]) == 10
    assert seal_of(shown, [target(1, "verify", hidden), target(2, "pack")]) == 5
    assert seal_of(shown, [target(1, "verify", preset="copy-rich")]) == 17
    assert seal_of(target(0, "commit"), [target(1, "draft")]) == 5


def test_a_pin_goes_with_its_section():
    for lesson in LESSONS_READ.values():
        for name, heading in SECTIONS.items():
            if name != "predict" and lesson.section(heading).target is None:
                assert target_of(lesson, Place(lesson.number, name), answered=True).pin is None
        for count, question in enumerate(lesson.questions, start=1):
            if count > 1 and question.before is None:
                assert target_of(lesson, Place(lesson.number, "predict", count), answered=False).pin is None


# ---- questions


def ask(page, given) -> None:
    """Give an answer to the question on the page."""
    (key,) = [each.key for each in (*page.radio, *page.number_input) if str(each.key).startswith("lesson_given")]
    widget = page.radio(key=key) if isinstance(given, str) else page.number_input(key=key)
    widget.set_value(given).run()
    page.button(key="check_it").click().run()
    assert not page.exception


@pytest.mark.parametrize("number", sorted(LESSONS_READ))
def test_every_question_can_be_answered_rightly_and_is_explained(number):
    lesson, page = LESSONS_READ[number], open_lesson(number, "predict")
    for count, question in enumerate(lesson.questions, start=1):
        before = player(page)["lesson"]
        ask(page, question.answer if question.options else float(question.answer))
        data = player(page)
        assert data["lesson"]["reveals"] == before["key"] != data["lesson"]["key"]
        assert not data["lesson"]["asks"]
        assert not data["lesson"]["hide"]
        assert data["lesson"]["says"].startswith("Right.")
        after = target_of(lesson, Place(number, "predict", count), answered=True)
        assert data["start"]["step"] == after.step
        assert f"{count} of {count} right" in texts(page)
        if count < len(lesson.questions):
            page.button(key="lesson_continue").click().run()
    assert any(button.label == "Continue" for button in page.button)


def test_a_wrong_answer_is_marked_explained_and_counted_once():
    page = open_lesson(6, "predict")
    assert player(page)["lesson"]["hide"] == [[1, 1]]
    question = LESSONS_READ[6].questions[0]
    wrong = next(option for option in question.options if option != question.answer)
    ask(page, wrong)
    body = texts(page)
    assert f"Not “{wrong}”." in body
    assert "(your answer)" in body
    assert body.count('<li class="right">') == 1
    assert body.count('<li class="wrong">') == 1
    assert "0 of 1 right" in body
    assert question.explanation.split(".")[1].strip()[:20] in "".join(words.value for words in page.markdown)
    page.run()
    assert "0 of 1 right" in texts(page)
    go(page, LESSONS)
    assert not [each for each in page.radio if str(each.key).startswith("lesson_given")]


def test_a_typed_number_is_shown_after_the_check():
    number, count, question = next(
        (lesson.number, count, question)
        for lesson in LESSONS_READ.values()
        for count, question in enumerate(lesson.questions, start=1)
        if not question.options
    )
    page = open_lesson(number, "predict", question=str(count))
    ask(page, float(question.answer) + 1)
    given = f"{float(question.answer) + 1:g}"
    assert f'data-testid="given">Your answer: <b>{given}</b>' in texts(page)
    assert f"Not {given}." in texts(page)


def test_what_the_first_question_covers_is_covered_before_it_is_asked():
    assert LESSONS_READ[6].section("Question").target.hide == (("right", 1),)
    page = open_lesson(6)
    assert player(page)["lesson"]["hide"] == [[1, 1]]
    page.button(key="lesson_continue").click().run()
    page.button(key="skip_it").click().run()
    page.button(key="lesson_back").click().run()
    assert player(page)["lesson"]["hide"] == []


def test_nothing_is_checked_without_an_answer_and_skipping_reveals_without_a_score():
    page = open_lesson(6, "predict")
    page.button(key="check_it").click().run()
    assert "Choose an answer, or skip the question." in texts(page)
    assert player(page)["lesson"]["asks"]
    page.button(key="skip_it").click().run()
    assert "Skipped." in texts(page)
    assert "right</span>" not in texts(page)
    assert not player(page)["lesson"]["hide"]


def test_the_text_of_an_open_question_does_not_hold_its_answer():
    page = open_lesson(6, "predict")
    said = texts(page) + "".join(words.value for words in page.markdown)
    assert LESSONS_READ[6].questions[0].explanation[:40] not in said
    assert not player(page)["lesson"]["says"]


def test_hints_come_one_by_one():
    page, question = open_lesson(6, "predict"), LESSONS_READ[6].questions[0]
    for count, hint in enumerate(question.hints, start=1):
        key = "lesson_hints_6_1_next"
        assert page.button(key=key).label == f"Hint {count} of {len(question.hints)}"
        page.button(key=key).click().run()
        said = "".join(words.value for words in page.markdown)
        assert f"**Hint {count}.** {own_links(hint)}" in said
        assert f"**Hint {count + 1}.**" not in said
    assert not [button for button in page.button if str(button.key) == key]


def test_numbers_are_judged_as_precisely_as_the_answer_is_written():
    question = next(each for lesson in LESSONS_READ.values() for each in lesson.questions if not each.options)
    value, step = float(question.answer), 10.0 ** -places(question.answer)
    assert judge(question, value).right
    assert judge(question, value + 0.4 * step).right
    assert not judge(question, value + step).right


def test_sections_without_a_target_keep_what_was_shown():
    for lesson in LESSONS_READ.values():
        shown = None
        for name, heading in SECTIONS.items():
            found = target_of(lesson, Place(lesson.number, name), answered=True)
            own = lesson.section(heading).target
            assert name == "predict" or found == (own or (shown and replace(shown, pin=None)))
            shown = target_of(lesson, Place(lesson.number, name, len(lesson.questions)), answered=True)


# ---- code, check, print


def test_every_reference_shows_its_source():
    for lesson in LESSONS_READ.values():
        for reference in lesson.references:
            source = source_of(reference.file, reference.symbol)
            last = reference.symbol.split(".")[-1]
            assert last in source.text
            line = (ROOT / reference.file).read_text(encoding="utf-8").splitlines()[source.line - 1]
            assert line.strip() == source.text.splitlines()[0]
    for file, symbol in (("emssd/layouts.py", "No.such"), ("emssd/none.py", "x"), ("../x.py", "x")):
        with pytest.raises(LookupError):
            source_of(file, symbol)


def solutions_shown(page) -> list[str]:
    return [each.label for each in page.expander if each.label.startswith("One solution")]


def check_with(monkeypatch, tmp_path, content: str, number: int = 6):
    """The section Check after a press on its button, the learner's file having this content."""
    path = tmp_path / f"{number:02d}_mine.py"
    path.write_text(content, encoding="utf-8")
    monkeypatch.setattr(lessons_check, "exercise_file", lambda number: path)
    page = open_lesson(number, "check")
    assert not solutions_shown(page)
    page.button(key="lesson_check").click().run()
    assert not page.exception
    return page


def test_a_solution_on_disk_passes(monkeypatch, tmp_path):
    page = check_with(monkeypatch, tmp_path, solution_file(6).read_text(encoding="utf-8"))
    assert 'data-testid="result">Passed.' in texts(page)
    assert player(page)["lesson"]["says"] == "Passed."
    assert solutions_shown(page)


def test_a_wrong_file_says_where_and_leads_to_the_state(monkeypatch, tmp_path):
    wrong = sorted((FOLDER / "wrong").glob("06_*.py"))
    linked = 0
    for path in wrong[:3]:
        page = check_with(monkeypatch, tmp_path, path.read_text(encoding="utf-8"))
        body = texts(page)
        assert 'data-testid="result">Not yet.' in body
        assert player(page)["lesson"]["says"].startswith("Not yet. ")
        for link in page.get("page_link"):
            if link.proto.label == "Open this state in the player":
                linked += 1
                assert "state=" in link.proto.query_string
        for session in ("lesson_results", "lesson_given_up"):
            page.session_state[session] = {}
        (tmp_path / "cache" / "lessons.json").unlink()
    assert linked >= 1


def test_a_stub_and_a_file_that_prints_or_never_ends_are_told(monkeypatch, tmp_path):
    page = check_with(monkeypatch, tmp_path, exercise_file(6).read_text(encoding="utf-8"))
    assert "not written yet" in texts(page)
    assert not solutions_shown(page)
    assert page.button(key="lesson_give_up").label == "Show a solution"
    monkeypatch.setattr(lessons_check, "LIMIT_SECONDS", 1)
    (tmp_path / "06_mine.py").write_text("import time\ntime.sleep(60)\n", encoding="utf-8")
    page.button(key="lesson_check").click().run()
    assert "stopped after 1 seconds" in texts(page)
    assert solutions_shown(page)


def test_an_evil_file_is_shown_as_text_only(monkeypatch, tmp_path):
    content = 'def ragged_commit(*args):\n    raise ValueError("<img src=x onerror=alert(1)>")\n'
    page = check_with(monkeypatch, tmp_path, content)
    assert "<img src=x" not in texts(page)
    assert "&lt;img" in texts(page)


def test_the_solution_comes_after_giving_up():
    page = open_lesson(6, "check")
    assert not solutions_shown(page)
    assert page.button(key="lesson_give_up").label == "Show a solution"
    page.button(key="lesson_give_up").click().run()
    assert solutions_shown(page) == ["One solution: lessons/solutions/06_ragged_commit.py"]
    shown = [code.value for code in page.code]
    assert solution_file(6).read_text(encoding="utf-8") in [f"{text}\n" if text[-1] != "\n" else text for text in shown]


def test_the_check_of_another_folders_file_is_not_this_ones(monkeypatch, tmp_path):
    """A file of the same relative name, checked from another checkout."""
    other = tmp_path / "other"
    relative = exercise_file(6).relative_to(ROOT)
    (other / relative).parent.mkdir(parents=True)
    (other / relative).write_text("def ragged_commit(*_):\n    return [], []\n", encoding="utf-8")
    command = [sys.executable, "-m", "emssd", "lesson", "check", "06", str(relative)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(command, cwd=other, env=environment, capture_output=True, timeout=60).returncode == 1
    page = open_lesson(6, "check")
    assert 'data-testid="result"' not in texts(page)
    assert not solutions_shown(page)
    monkeypatch.setattr(lessons_check, "exercise_file", lambda number: other / relative)
    page.run()
    assert 'data-testid="result">Not yet.' in texts(page)
    assert solutions_shown(page)


def test_how_code_is_run_is_said_once_on_page_and_print():
    page = open_lesson(6, "run")
    assert [words.value for words in page.markdown].count(RUN_NOTE) == 1
    printed = lessons_overview._printed([entry for entry in entries() if entry.number == 6]).decode("utf-8")
    assert printed.count("<code>.venv/bin/python try.py</code>") == 1


def test_a_number_that_begins_a_line_makes_no_list():
    path = LESSONS_READ[6].path
    text = path.read_text(encoding="utf-8").replace(
        "## Idea\n", "## Idea\n\nIt gains\n1<!-- = 1 -->. Then more.\n\n1. item<!-- source: paper -->\n", 1
    )
    words = parse_lesson(text, path).section("Idea").markdown
    assert words.startswith("It gains\n1\\. Then more.\n\n1. item\n")


def test_a_lesson_is_printed_as_one_page():
    chosen = [entry for entry in entries() if entry.number in (2, 6)]
    page = lessons_overview._printed(chosen).decode("utf-8")
    assert page.startswith("<!doctype html>")
    assert all(LESSONS_READ[entry.number].title in page for entry in chosen)


def test_words_code_and_pictures_are_told_apart():
    code = "```python\nprint(1)\n```\n```text\n1\n```\n"
    text = f"One [two](05_x.md).\n\n{code}![a](pictures/x.svg)\nEnd [s](solutions/1.py)."
    assert list(pieces(text)) == [
        ("words", "One [two](05_x.md).", ""),
        ("code", "print(1)", "python"),
        ("code", "1", "text"),
        ("picture", "a", "pictures/x.svg"),
        ("words", "End [s](solutions/1.py).", ""),
    ]
    assert own_links("a [b](05_x.md) [c](https://d) [e](solutions/1.py)") == "a [b](?lesson=5) [c](https://d) e"


def test_commands_need_no_activated_environment():
    assert ".venv/bin/python " in RUN_NOTE
    for number, lesson in LESSONS_READ.items():
        page = open_lesson(number, "check")
        said = "".join(words.value for words in (*page.markdown, *page.code))
        assert said.count("python -m emssd lesson check") == said.count(".venv/bin/python -m emssd lesson check") > 0
        assert as_typed(as_typed(lesson.path.read_text("utf-8"))) == as_typed(lesson.path.read_text("utf-8"))


def test_a_target_that_cannot_be_shown_is_a_sentence():
    target = Target("figure2", "vanilla", "ems-sd", 99, "commit")
    assert lesson_data(target, "x")["start"]["step"] == 2
    with pytest.raises(TraceError):
        lesson_data(Target("no-such", "vanilla", None, 1, "commit"), "x")


def test_a_target_may_say_whose_reading_is_told():
    target = Target("figure2", "vanilla", "ems-sd", 1, "attend", query=(0, 3))
    told = lesson_data(target, "x")["lesson"]
    assert told["query"] == [0, 3]
    assert [[said is None for said in pane] for pane in told["attends"]] == [[True, False, False]] * 2
    assert "".join(text for text, _ in told["attends"][1][1]).startswith("Query “a” of row 0 (position 8)")
    plain = lesson_data(replace(target, query=None), "x")["lesson"]
    assert plain["query"] is plain["attends"] is None


def test_the_page_loads_no_model():
    script = (
        "import sys\n"
        "from tests.app_pages import open_app, go, player\n"
        "page = open_app('lessons', lesson='6', section='predict')\n"
        "assert player(page)['lesson']['asks']\n"
        "open_app('lessons'); open_app('lessons', lesson='9', section='code'); open_app(state='0' * 12)\n"
        "open_app('lessons', lesson='9', section='check')\n"
        "loaded = {'torch', 'transformers', 'emssd.decoding'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Traceback" not in done.stderr


# ---- the case of a failed check on Explore


@pytest.fixture
def saved() -> str:
    traces = load_preset("figure2").traces
    identity = save_state({name: traces[name] for name in ("vanilla", "packed-input", "ems-sd")})
    assert identity
    return identity


def test_explore_opens_a_saved_state(saved):
    page = open_app(state=saved, left="packed-input", right="ems-sd", step="2", sub="write", pin="1.4")
    assert not warnings(page)
    data = player(page)
    assert methods(page) == ["packed-input", "ems-sd"]
    assert data["start"] == {"step": 2, "sub": "write", "pin": "1.4"}
    assert data["link"] == {"state": saved, "left": "packed-input", "right": "ems-sd"}
    page.selectbox(key="pane_left").set_value("vanilla").run()
    assert methods(page) == ["vanilla", "ems-sd"]
    assert player(page)["link"]["left"] == "vanilla"
    page.selectbox(key="set").set_value("figure2").run()
    assert player(page)["link"]["preset"] == "figure2"


def test_explore_opens_a_state_in_a_visit_that_has_begun(saved):
    page = open_app()
    go(page, LESSONS)
    page.query_params["state"] = saved
    page.query_params["step"] = "2"
    go(page, EXPLORE)
    assert player(page)["link"]["state"] == saved
    assert player(page)["start"]["step"] == 2


def test_a_failed_check_opens_with_the_checked_method_on_the_left(saved):
    traces = load_preset("figure2").traces

    def opened(*names):
        failure = Failure("No.", traces={name: traces[name] for name in names}, step=1, pin="1.4")
        query = dict(parse_qsl(urlsplit(failure_link(failure)).query))
        page = open_app(**query)
        assert not warnings(page)
        assert player(page)["start"] == {"step": 1, "sub": "commit", "pin": "1.4"}
        return methods(page)

    assert opened("vanilla", "ems-sd") == ["ems-sd", "vanilla"]
    assert opened("greedy", "vanilla") == ["vanilla", "greedy"]
    assert opened("vanilla") == ["vanilla"]


@pytest.mark.parametrize("identity", ["0" * 12, "../../etc/passwd", "", "A" * 500])
def test_a_state_that_is_not_there_is_one_sentence(identity):
    page = open_app(state=identity, left="nothing", step="77")
    (notice,) = warnings(page)
    assert "state" in notice.lower()
    assert len(notice) < 200
    assert methods(page) == ["vanilla", "ems-sd"]
    assert player(page)["start"] == {"step": 1, "sub": "draft", "pin": None}


def test_what_a_states_address_gets_wrong_is_told(saved):
    link, notices = read_state({"state": saved, "left": "greedy", "step": "9", "pin": "x"}, load_state)
    assert (link.left, link.right) == ("vanilla", "ems-sd")
    assert link.start == Start(2, "commit", None)
    assert len(notices) == 3
