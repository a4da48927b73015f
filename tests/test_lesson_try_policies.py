"""Lesson 4's experiment: batches cut to the minimum by value, what reads them, and the screen with the sliders."""

from __future__ import annotations

import re
from copy import deepcopy
from importlib.util import module_from_spec, spec_from_file_location
from random import Random

import pytest

from emssd.cells import cells_at, iter_cells, num_slots
from emssd.errors import TraceError
from emssd.lessons.catalog import solution_file
from emssd.lessons.cut_batch import CUT, TOKENS, always_slowest, cut_batch, rows_fed, thrown_away
from emssd.lessons.own_batch import DRAFTS
from emssd.trace import GenerationTrace, verdict
from emssd.trace_checking import check_consistency
from emssd.ui.comparison import agreement
from emssd.ui.narration import narrations, plain_text
from emssd.ui.player_assets import read_asset
from emssd.ui.try_policies import DEFAULT, reading
from tests.app_pages import LESSONS, methods, open_app, player, texts, warnings
from tests.test_cells import picture

METHODS = (CUT, "vanilla", "ems-sd", "greedy")
DRAW = Random("cut batches")
RANDOM = [[DRAW.choices(range(DRAFTS + 1), k=DRAW.randint(1, 3)) for _ in range(2)] for _ in range(14)]
BATCHES = [DEFAULT, [[0], [0]], [[DRAFTS], [DRAFTS]], [[0, 0], [DRAFTS, DRAFTS]], *RANDOM]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EMSSD_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def min_rollback():
    spec = spec_from_file_location("lesson_4_solution_here", solution_file(4))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.min_rollback


def test_the_steps_are_those_counted_by_hand():
    """Row 0 guesses 4, misses 1, misses 1 more, ...; row 1 misses 1, guesses 5, misses 1, ..."""
    traces = cut_batch(((4, 0), (0, 5)), METHODS)
    gains = {name: [[row.num_emitted for row in step.rows] for step in t.decode_steps] for name, t in traces.items()}
    assert gains[CUT] == [[1, 1], [4, 4], [1, 1], [1, 1], [1, 1], [1, 1]]
    assert gains["vanilla"] == gains["ems-sd"] == [[5, 1], [1, 6], [3, 1], [0, 1]]
    assert thrown_away(traces[CUT]) == [4, 2, 1, 2, 1, 0]
    assert thrown_away(traces["vanilla"]) == thrown_away(traces["ems-sd"]) == [0, 0, 0, 0]


@pytest.mark.parametrize("guessed", BATCHES, ids=str)
def test_every_method_decodes_the_same_texts_to_the_same_length(guessed):
    traces = cut_batch(guessed, METHODS)
    for trace in traces.values():
        check_consistency(trace)
        assert GenerationTrace.from_json(trace.to_json()) == trace
        assert agreement(traces["greedy"], trace) == (agreement(trace, trace)[0], None)
        assert [len(row.output_token_ids) for row in trace.rows] == [TOKENS, TOKENS]
        assert [row.finish_reason for row in trace.rows] == ["length", "length"]
        assert num_slots(trace) <= int(re.search(r"SMALL_SLOTS = (\d+)", read_asset("player.js"))[1])
    keepers = traces["vanilla"], traces["ems-sd"]
    for number in range(len(guessed)):
        for trace in keepers:
            steps = [row for step in trace.decode_steps for row in step.rows if row.row == number and row.num_emitted]
            for turn, row in enumerate(steps[:-2]):  # near its end a row drafts fewer
                assert row.num_accepted == guessed[number][turn % len(guessed[number])]
    assert len(traces[CUT].steps) >= len(keepers[0].steps) == len(keepers[1].steps)


@pytest.mark.parametrize("guessed", [[[5], [0]], [[1], [4]], *BATCHES], ids=str)
def test_the_cut_takes_as_many_steps_where_one_row_is_always_the_slowest(guessed):
    traces = cut_batch(guessed, (CUT, "ems-sd"))
    steps = {name: len(trace.decode_steps) for name, trace in traces.items()}
    slowest = always_slowest(traces[CUT])
    if slowest is not None:
        assert steps[CUT] == steps["ems-sd"]
    if guessed == [[5], [0]]:
        assert (slowest, steps[CUT], sum(thrown_away(traces[CUT]))) == (1, 9, 18)
        said = reading(traces[CUT], traces["ems-sd"], "EMS-SD")
        assert "As many steps, since row 1 is the slowest in all of them." in said
        assert rows_fed(traces[CUT]) > rows_fed(traces["ems-sd"])
    if guessed == DEFAULT:
        assert slowest is None
        assert "As many" not in reading(traces[CUT], traces["ems-sd"], "EMS-SD")


@pytest.mark.parametrize("guessed", BATCHES, ids=str)
def test_the_cut_is_that_of_the_exercise(guessed, min_rollback):
    trace = cut_batch(guessed, (CUT,))[CUT]
    for step, lost in zip(trace.decode_steps, thrown_away(trace), strict=True):
        accepted = [row.draft_token_ids[: verdict(row)[0]] for row in step.rows]
        own = [row.target_token_ids[len(drafts)] for row, drafts in zip(step.rows, accepted, strict=True)]
        kept, expected = min_rollback(accepted, own, [False, False])
        assert [row.emitted_token_ids for row in step.rows] == kept
        assert lost == expected
        assert step.account.holes_total == 0


@pytest.mark.parametrize("guessed", BATCHES[:12], ids=str)
def test_the_visible_cells_of_a_cut_row_are_its_committed_tokens_but_the_pending_one(guessed):
    trace = cut_batch(guessed, (CUT,))[CUT]
    texts_so_far = [list(row.prompt_token_ids) for row in trace.rows]
    for step, grid in zip(trace.steps, iter_cells(trace), strict=True):
        for row, cells in zip(step.rows, grid, strict=True):
            text = texts_so_far[row.row]
            text += row.emitted_token_ids
            shown = sorted((cell.position, cell.token_id) for cell in cells if cell.visible)
            assert shown == list(enumerate(text[:-1]))
            assert row.cache_len == len(text) - 1


def test_a_token_that_was_kept_of_a_cut_run_stays_an_accepted_one():
    trace = cut_batch(((4, 0), (0, 5)), (CUT,))[CUT]
    assert picture(cells_at(trace, 1)) == ["PPPPPpwxxxx", "PPP__pxxxxx"]
    assert picture(cells_at(trace, 2, "write")) == ["PPPPPpaddddd", "PPP__prddddd"]
    assert picture(cells_at(trace, 2)) == ["PPPPPpaaaaxx", "PPP__praaawx"]
    assert picture(cells_at(trace, 3, "write")) == ["PPPPPpaaaarddd", "PPP__praaaaddd"]


def changed(**values) -> GenerationTrace:
    """The default's cut trace with other values in row 0 of step 1."""
    trace = deepcopy(cut_batch(DEFAULT, (CUT,))[CUT])
    for name, value in values.items():
        setattr(trace.steps[1].rows[0], name, value)
    return trace


def test_a_cut_that_is_none_is_refused():
    unmarked = changed()
    del unmarked.config["keeps"]
    with pytest.raises(TraceError, match=r"steps\[1\].rows\[0\].num_accepted is 1, but .* says 4"):
        check_consistency(unmarked)
    more = changed(num_accepted=2, num_emitted=2)
    with pytest.raises(TraceError, match=r"steps\[1\].rows\[0\].num_accepted is 2, but .* says 1"):
        check_consistency(more)
    uncut = deepcopy(cut_batch(DEFAULT, ("vanilla",))["vanilla"])
    uncut.config["keeps"] = "minimum"
    with pytest.raises(TraceError, match=r"steps\[1\].rows\[0\].num_accepted is 4, but .* says 1"):
        check_consistency(uncut)


@pytest.mark.parametrize("guessed", [[[0]], [[0], []], [[0], [DRAFTS + 1]], [[-1], [0]]])
def test_bad_counts_are_refused(guessed):
    with pytest.raises(ValueError, match=r"are needed|can be guessed"):
        cut_batch(guessed, (CUT,))


def told(guessed, step: int) -> list[str]:
    trace = cut_batch(guessed, (CUT,))[CUT]
    trace.tokens = dict.fromkeys(trace.tokens, "x")
    return [plain_text(said) for said in narrations(trace)[step]]


def test_a_cut_is_told_as_one():
    *_, verify, commit = told(((4, 0), (0, 5)), 1)
    assert verify == (
        "Row 0 has 4 of 5 drafts right, but is cut to 1 token. Row 1 keeps 0 of 5 drafts; the target says “x” instead."
    )
    assert commit == (
        "Row 0 keeps 1 of 5 tokens; row 1 keeps 0 of 5 drafts and the target’s own “x”. "
        "The shared cursor moves by the smallest gain, 1: 4 confirmed tokens are thrown away."
    )
    assert told(((4, 0), (0, 5)), 3)[5].endswith("smallest gain, 1: 1 confirmed token is thrown away.")
    assert told(((4,), (4,)), 1)[4:] == [
        "Row 0 keeps 4 of 5 drafts; the target says “x” instead. Row 1 keeps 4 of 5 drafts; the target says “x” "
        "instead.",
        "Row 0 keeps 4 of 5 drafts and the target’s own “x”; row 1 keeps 4 of 5 drafts and the target’s own “x”. "
        "The shared cursor moves by the smallest gain, 5: nothing is thrown away.",
    ]


@pytest.mark.parametrize("guessed", BATCHES, ids=str)
def test_no_sentence_of_a_cut_run_speaks_of_an_end_or_of_the_largest_gain(guessed):
    trace = cut_batch(guessed, (CUT,))[CUT]
    lost = thrown_away(trace)
    for number, step in enumerate(narrations(trace)[1:]):
        said = " ".join(plain_text(each) for each in step)
        assert "ends with" not in said
        assert "largest" not in said
        assert ("cut to" in said) == (lost[number] > 0)
        assert (f"{lost[number]} confirmed token" in said) == (lost[number] > 0)
        assert (" end." in said) == (number == len(lost) - 1)


# ---- the screen


def open_it():
    page = open_app(LESSONS, lesson="4", section="run")
    assert not warnings(page)
    return page


def shown_reading(page) -> str:
    return re.sub(r"<.*?>", "", re.search(r'data-testid="reading">(.*)', texts(page))[1])


def test_the_screen_shows_the_cut_beside_a_method_that_keeps_all():
    page = open_it()
    assert methods(page) == [CUT, "ems-sd"]
    cut, other = player(page)["panes"]
    assert (cut["title"], cut["layout"], cut["cut"]) == (CUT, "padded cache, padded inputs", True)
    assert (other["title"], other["cut"]) == ("EMS-SD", False)
    assert cut["differs"] is other["differs"] is None
    assert cut["agree"][-1] == other["agree"][-1] == 2 * TOKENS
    assert shown_reading(page) == (
        "Cut to the minimum: 6 steps, 44 rows fed, 10 confirmed tokens thrown away."
        "EMS-SD: 4 steps, 28 rows fed, no confirmed tokens thrown away."
    )
    group = player(page)["group"], player(page)["lesson"]["key"]
    page.segmented_control(key="try_policies_beside").set_value("vanilla").run()
    assert methods(page) == [CUT, "vanilla"]
    assert player(page)["panes"][1]["counters"]["holes"][-1] > 0
    page.slider(key="try_policies_0_1").set_value(4).run()
    page.slider(key="try_policies_1_0").set_value(5).run()
    expected = cut_batch(((4, 4), (5, 5)), (CUT, "vanilla"))
    assert shown_reading(page) in re.sub(r"<.*?>", "", reading(expected[CUT], expected["vanilla"], "Vanilla"))
    assert len(player(page)["panes"][0]["steps"]) == len(expected[CUT].steps)
    assert (player(page)["group"], player(page)["lesson"]["key"]) == group
    page.button(key="lesson_back").click().run()
    page.button(key="lesson_continue").click().run()
    assert methods(page) == [CUT, "vanilla"]
    assert page.slider(key="try_policies_1_0").value == 5
