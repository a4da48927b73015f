"""Lesson 3's experiment: one run with each bug and without, its traces, its words, and the card on the page."""

from __future__ import annotations

import re

import pytest

from emssd.cells import SUBSTEPS, cells_at
from emssd.errors import TraceError
from emssd.lessons.broken_runs import DRAFTS, WANTED, broken_runs, first_wrong_token
from emssd.lessons.broken_traces import broken_trace, right_trace, row_alone
from emssd.lessons.broken_words import broken_narration, broken_rule, right_narration, wrong_token_words
from emssd.lessons.faulty_runs import (
    BONUS_MISSING,
    BUGS,
    SLOT_AS_POSITION,
    STALE_CELLS_READ,
    WRONG_TOKEN_ACCEPTED,
    first_broken_step,
)
from emssd.trace import GenerationTrace
from emssd.ui.comparison import agreement
from emssd.ui.narration import narrations, plain_text
from tests.app_pages import LESSONS, open_app, player

SEEDS = range(25)
RULE = "Step 2: query “2” at position 6 may read 7 cells"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test sees or changes what somebody has done on this computer."""
    monkeypatch.setenv("EMSSD_CACHE", str(tmp_path / "cache"))


def told(seed: int, bug: str, step: int, sub: str) -> str:
    return plain_text(broken_narration(broken_runs(seed), bug)[step, sub])


def test_a_bug_is_a_switch_in_one_and_the_same_run() -> None:
    for seed in SEEDS:
        runs = broken_runs(seed).runs
        assert set(runs) == {None, *BUGS}
        assert len({str((run.prompt, run.right_output)) for run in runs.values()}) == 1
        assert runs[None].output == runs[None].right_output
        with pytest.raises(ValueError, match="right"):
            first_broken_step(runs[None])
        for bug in BUGS:
            assert (first_wrong_token(runs[bug]) is None) == (bug == BONUS_MISSING)
            assert len(runs[bug].output) == WANTED
        assert broken_runs(seed).extra_steps(BONUS_MISSING) > 0


def test_the_drafts_depend_on_the_place_in_the_output_alone() -> None:
    for seed in SEEDS:
        guesses: dict[int, int] = {}
        for run in broken_runs(seed).runs.values():
            done = 1
            for step in run.steps:
                drafts = step.input_token_ids[1:]
                assert len(drafts) == min(DRAFTS, WANTED - done - 1)
                for place, draft in enumerate(drafts, done):
                    assert guesses.setdefault(place, draft) == draft
                done += len(step.emitted_token_ids)


def test_the_first_run_by_value() -> None:
    made = broken_runs(0)
    assert (made.longest, made.runs[None].prompt) == (6, [1, 2, 4])
    assert made.runs[None].output == [3, 0, 0, 2, 2, 4, 2, 4, 1]
    assert {bug: first_wrong_token(run) for bug, run in made.runs.items()} == {
        None: None,
        STALE_CELLS_READ: (6, 3),
        SLOT_AS_POSITION: (1, 1),
        WRONG_TOKEN_ACCEPTED: (2, 1),
        BONUS_MISSING: None,
    }
    assert [len(made.runs[bug].steps) for bug in (None, BONUS_MISSING)] == [3, 4]
    assert [broken_rule(made, bug)[:2] for bug in BUGS] == [(2, "attend"), (1, "write"), (1, "verify"), (3, "verify")]
    assert broken_rule(made, STALE_CELLS_READ)[2].endswith(
        "query “2” at position 6 may read 7 cells, one for each token up to itself; it read 9."
    )
    assert broken_rule(made, SLOT_AS_POSITION)[2].endswith("“3” stands at position 3; it was given 6.")
    assert "second token it put out, “4”, is not the target's “0”" in broken_rule(made, WRONG_TOKEN_ACCEPTED)[2]
    assert broken_rule(made, BONUS_MISSING)[2].endswith("(2 of 2), but the bonus token “1” is missing.")
    assert wrong_token_words(made, WRONG_TOKEN_ACCEPTED) == (
        "New token 3 of row 0 is **“4”** instead of **“0”**. Step 1 put it out."
    )
    assert "it took **4 steps** instead of 3: 1 step lost." in wrong_token_words(made, BONUS_MISSING)


def test_a_run_without_a_bug_is_what_the_layout_itself_makes() -> None:
    for seed in SEEDS:
        trace = right_trace(broken_runs(seed))
        assert broken_trace(broken_runs(seed), None) == trace
        assert GenerationTrace.from_json(trace.to_json()) == trace


@pytest.mark.parametrize("bug", BUGS)
def test_a_broken_trace_is_refused_where_traces_are_read(bug: str) -> None:
    with pytest.raises(TraceError):
        GenerationTrace.from_json(broken_trace(broken_runs(0), bug).to_json())


@pytest.mark.parametrize("bug", BUGS)
def test_a_broken_trace_shows_what_the_program_did(bug: str) -> None:
    """What a query reads follows from the cells before it, so the player shows the reads that really happened."""
    for seed in SEEDS:
        made = broken_runs(seed)
        run, trace = made.runs[bug], row_alone(broken_trace(made, bug))
        greedy = row_alone(right_trace(made, "greedy"))
        assert len(trace.decode_steps) == len(run.steps)
        for step, shown in zip(run.steps, trace.decode_steps, strict=True):
            (row,) = shown.rows
            assert (row.slots, row.position_ids) == (step.slots, step.position_ids)
            assert (row.emitted_token_ids, row.target_token_ids) == (step.emitted_token_ids, step.target_token_ids)
            kept = row.input_token_ids[1 : 1 + row.num_accepted]
            assert row.emitted_token_ids == kept + row.target_token_ids[row.num_accepted : row.num_emitted]
            (cells,) = cells_at(trace, shown.index, "attend")
            for slot, read in zip(step.slots, step.cells_read, strict=True):
                assert sum(cell.state not in ("pad", "hole") for cell in cells[: slot + 1]) == read
            account = shown.account.kv_slots_scanned["per_token"]
            assert account["useful"] == sum(step.cells_read)
        found, difference = first_wrong_token(run), agreement(greedy, trace)[1]
        place = None if difference is None else (difference.token - 1, difference.step)
        assert place == found


def test_a_sentence_stands_wherever_the_usual_one_would_be_false() -> None:
    assert told(0, STALE_CELLS_READ, 2, "attend") == (
        "Query “2” of row 0 (position 6) reads 9 cells: its 7 own tokens and 2 rejected drafts that it should not see. "
        "It also loads 3 prompt pads and gives them weight 0."
    )
    assert told(0, STALE_CELLS_READ, 1, "commit") == (
        "Row 0 gains 2 tokens, but its length is not lowered: the cursor moves by all 4 fed tokens, and the 2 rejected "
        "drafts stay before it."
    )
    assert told(0, SLOT_AS_POSITION, 1, "write").endswith("gives them their slots as positions: positions 6 to 9.")
    right = {place: plain_text(said) for place, said in right_narration(broken_runs(0), SLOT_AS_POSITION).items()}
    assert right[1, "write"] == "Row 0 writes from slot 6: 4 tokens; their positions run on: positions 3 to 6."
    assert not right_narration(broken_runs(0), STALE_CELLS_READ)
    assert "“4”, though the target says “0” in that place" in told(0, WRONG_TOKEN_ACCEPTED, 1, "verify")
    assert told(0, BONUS_MISSING, 3, "verify") == "Row 0 keeps 2 of 2 drafts. The bonus token “1” is forgotten."


def test_the_rule_that_broke_is_told_of_the_query_that_the_player_tells_of() -> None:
    for seed in SEEDS:
        step, sub, words = broken_rule(broken_runs(seed), STALE_CELLS_READ)
        said = told(seed, STALE_CELLS_READ, step, sub)
        token, position, may, read = re.search(r"“(.+)” at position (\d+) may read (\d+) .* read (\d+)", words).groups()
        assert said.startswith(
            f"Query “{token}” of row 0 (position {position}) reads {read} cells: its {may} own token"
        )


@pytest.mark.parametrize("bug", BUGS)
def test_what_is_said_of_reads_is_what_was_read(bug: str) -> None:
    for seed in SEEDS:
        made = broken_runs(seed)
        usual, own = narrations(broken_trace(made, bug)), broken_narration(made, bug)
        for number, step in enumerate(made.runs[bug].steps, 1):
            said = plain_text(own.get((number, "attend"), usual[number][SUBSTEPS.index("attend")]))
            read = step.cells_read[min(len(step.input_token_ids) - 1, 1)]
            assert int(re.search(r"reads (?:its )?(\d+)", said)[1]) == read, (seed, number, said)
            pads = made.longest - len(made.runs[bug].prompt)
            assert re.search(rf"loads {pads} (dead slots, (all|both) )?prompt pads", said), said


def test_the_switch_changes_the_upper_run_alone():
    page = open_app(LESSONS, lesson="3", section="run")
    right = player(page)
    assert [pane["title"] for pane in right["panes"]] == ["Nothing broken", "As it should be"]
    assert all(pane["differs"] is None for pane in right["panes"])
    page.radio(key="try_faults_bug").set_value(WRONG_TOKEN_ACCEPTED).run()
    wrong = player(page)
    assert [pane["title"] for pane in wrong["panes"]] == ["With the bug", "As it should be"]
    assert wrong["panes"][0]["differs"] == {"row": 0, "token": 3, "step": 1}
    assert wrong["panes"][1]["steps"] == right["panes"][1]["steps"]
    assert wrong["group"] == right["group"]
    assert any("New token 3 of row 0" in each.value for each in page.markdown)
    page.radio(key="try_faults_bug").set_value(BONUS_MISSING).run()
    missing = player(page)["panes"]
    assert missing[0]["differs"] is None
    assert [len(pane["steps"]) for pane in missing] == [5, 4]
    assert missing[0]["agree"][-1] == missing[0]["emitted"][-1] == WANTED


def test_the_broken_rule_is_told_on_demand_and_shown():
    page = open_app(LESSONS, lesson="3", section="run")
    page.radio(key="try_faults_bug").set_value(STALE_CELLS_READ).run()
    assert not any(RULE in each.value for each in page.markdown)
    before = player(page)
    page.button(key="try_faults_rule").click().run()
    assert any(RULE in each.value for each in page.markdown)
    after = player(page)
    assert (after["start"]["step"], after["start"]["sub"]) == (2, "attend")
    assert after["group"] != before["group"]
    page.button(key="try_faults_next").click().run()
    assert not page.exception
    assert not any("one for each token up to" in each.value for each in page.markdown)
    assert player(page)["panes"][0]["prompts"] != before["panes"][0]["prompts"]
    assert page.radio(key="try_faults_bug").value == STALE_CELLS_READ
