"""Lesson 5's experiment: its batches by value, the worked example among them, and the screen with the sliders."""

from __future__ import annotations

import re
from random import Random

import pytest

from emssd.cells import num_slots
from emssd.lessons.batches import figure2
from emssd.lessons.own_batch import DRAFTS, PROMPTS, STEPS, TOKENS, own_batch
from emssd.trace import GenerationTrace
from emssd.trace_checking import check_consistency
from emssd.ui.comparison import agreement
from emssd.ui.player_assets import read_asset
from emssd.ui.try_padding import BESIDE, DEFAULT, reading
from tests.app_pages import LESSONS, methods, open_app, player, texts, warnings

METHODS = ("greedy", "vanilla", "ems-sd")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EMSSD_CACHE", str(tmp_path / "cache"))


def traces_of(pairs, chosen=METHODS) -> dict[str, GenerationTrace]:
    """Of [rows][steps] of (kept, drafted)."""
    kept, drafted = ([[pair[end] for pair in row] for row in pairs] for end in (0, 1))
    return own_batch(kept, chosen, drafted)


def random_pairs(seed: int) -> list[list[tuple[int, int]]]:
    draw = Random(f"own batch test {seed}")
    return [
        [(draw.randint(0, drafted), drafted) for drafted in draw.choices(range(DRAFTS + 1), k=STEPS)] for _ in PROMPTS
    ]


CORNERS = [[[pair] * STEPS] * 2 for pair in ((0, 0), (0, DRAFTS), (DRAFTS, DRAFTS))]
CORNERS += [[[(0, 0)] * STEPS, [(DRAFTS, DRAFTS)] * STEPS], [[(DRAFTS, DRAFTS)] * STEPS, [(0, DRAFTS)] * STEPS]]
BATCHES = [*CORNERS, *(random_pairs(seed) for seed in range(14))]


def test_the_first_steps_are_those_of_the_worked_example():
    for method, recorded in figure2().items():
        own = traces_of(DEFAULT, (method,))[method]
        for step, shown in zip(recorded.steps, own.steps, strict=False):
            assert shown.account.input_rows == step.account.input_rows
            assert shown.account.kv_slots_scanned == step.account.kv_slots_scanned
            for row, same in zip(step.rows, shown.rows, strict=True):
                for name in ("slots", "input_kinds", "position_ids", "num_accepted", "num_emitted", "holes_added"):
                    assert getattr(same, name) == getattr(row, name), (method, step.index, name)


@pytest.mark.parametrize("pairs", BATCHES, ids=str)
def test_a_batch_is_valid_and_pays_what_its_numbers_say(pairs):
    traces = traces_of(pairs)
    width, gain = ([max(column) for column in zip(*rows, strict=True)] for rows in _fed_and_gained(pairs))
    for trace in traces.values():
        check_consistency(trace)
        assert GenerationTrace.from_json(trace.to_json()) == trace
        assert agreement(traces["greedy"], trace)[1] is None
    for method in ("vanilla", "ems-sd"):
        padded = method == "vanilla"
        for number, step in enumerate(traces[method].decode_steps):
            for row, (kept, drafted) in zip(step.rows, (row[number] for row in pairs), strict=True):
                assert (row.num_accepted, row.num_drafted, row.num_emitted) == (kept, drafted, kept + 1)
                assert row.input_kinds.count("pad") == padded * (width[number] - drafted - 1)
                assert len(row.holes_added) == padded * (gain[number] - kept - 1)
                assert not row.finished
    assert num_slots(traces["vanilla"]) <= int(re.search(r"SMALL_SLOTS = (\d+)", read_asset("player.js"))[1])


def _fed_and_gained(pairs):
    return [[[drafted + 1 for _, drafted in row] for row in pairs], [[kept + 1 for kept, _ in row] for row in pairs]]


def test_the_words_do_not_depend_on_what_is_kept():
    full = traces_of(CORNERS[2])["greedy"].rows
    assert [len(row.output_token_ids) for row in full] == [TOKENS] * len(PROMPTS)
    for pairs in BATCHES:
        for trace in traces_of(pairs).values():
            for row, whole in zip(trace.rows, full, strict=True):
                assert row.prompt_token_ids == whole.prompt_token_ids
                assert row.output_token_ids == whole.output_token_ids[: len(row.output_token_ids)]


def test_all_drafts_are_made_unless_said_otherwise():
    assert (
        own_batch([[3, 1, 2], [0, 5, 1]], ("vanilla",))["vanilla"]
        == traces_of([[(3, 5), (1, 5), (2, 5)], [(0, 5), (5, 5), (1, 5)]], ("vanilla",))["vanilla"]
    )


@pytest.mark.parametrize(
    ("kept", "drafted", "words"),
    [
        ([[0, 0, 0]], None, "2 rows of 3 steps are needed"),
        ([[0, 0], [0, 0]], None, "2 rows of 3 steps are needed"),
        ([[0, 0, 0]] * 2, [[1, 1, 1], [1, 1]], "2 rows of 3 steps are needed"),
        ([[0, 6, 0], [0, 0, 0]], None, "From 0 to 5 drafts"),
        ([[0, -1, 0], [0, 0, 0]], None, "From 0 to 5 drafts"),
        ([[3, 0, 0], [0, 0, 0]], [[2, 0, 0], [0, 0, 0]], "From 0 to 5 drafts"),
        ([[0, 0, 0]] * 2, [[6, 0, 0], [0, 0, 0]], "From 0 to 5 drafts"),
    ],
)
def test_bad_counts_are_refused(kept, drafted, words):
    with pytest.raises(ValueError, match=words):
        own_batch(kept, ("vanilla",), drafted)


def told(pairs) -> list[str]:
    """The lines below the sliders, without markup."""
    lines = reading(traces_of(pairs, ("vanilla",))["vanilla"]).replace("</div>", "\n").replace("<p>", "\n")
    return [line for line in re.sub(r"<.*?>", " ", lines.replace("</span>", ";")).splitlines() if line.strip()]


def test_the_reading_says_where_each_padding_is():
    pads, holes, slots = told(DEFAULT)
    assert re.sub(r"\s+", " ", pads).strip() == "Pads 3 in row 1; 3 in row 0; 1 in row 0;"
    assert re.sub(r"\s+", " ", holes).strip() == "Holes 3 in row 1; 4 in row 0; 1 in row 1;"
    assert slots.strip() == "Together the rows pass 26 slots. 18 of them hold a token, 8 are holes."
    pads, holes, slots = told(CORNERS[0])
    assert pads.count("none") == holes.count("none") == STEPS
    assert slots.strip() == "Together the rows pass 6 slots. All of them hold a token."
    assert (
        told([[(1, 1), (0, 0), (0, 0)], [(0, 0)] * STEPS])[2].strip().endswith("7 of them hold a token, 1 is a hole.")
    )


def test_one_padding_without_the_other_is_said():
    nothing = [(0, 0)] * (STEPS - 1)
    assert told([[(0, 5), *nothing], [(0, 0), *nothing]])[2].strip().endswith("Pads without a hole.")
    assert told([[(5, 5), *nothing], [(0, 5), *nothing]])[2].strip().endswith("Holes without a pad.")
    assert "without" not in told(DEFAULT)[2] + told(CORNERS[0])[2]


# ---- the screen


def open_it():
    page = open_app(LESSONS, lesson="5", section="run")
    assert not warnings(page)
    return page


def shown_reading(page) -> str:
    return re.search(r'data-testid="reading">(.*)', texts(page))[1]


def test_a_slider_changes_the_player_and_the_reading_and_keeps_the_place():
    page = open_it()
    assert methods(page) == ["vanilla"]
    first = player(page)
    for row, steps in enumerate(DEFAULT):
        for step, pair in enumerate(steps):
            assert page.slider(key=f"try_padding_{row}_{step}").value == pair
    page.slider(key="try_padding_1_0").set_value((2, 2)).run()
    changed = [list(steps) for steps in DEFAULT]
    changed[1][0] = (2, 2)
    expected = traces_of(changed)["vanilla"]
    assert shown_reading(page) in reading(expected)
    data = player(page)
    assert data["panes"][0]["counters"]["holes"][-1] == expected.summary()["holes"] == 6
    assert data["id"] != first["id"]
    assert (data["group"], data["lesson"]["key"]) == (first["group"], first["lesson"]["key"])
    assert data["panes"][0]["agree"][-1] == expected.summary()["tokens"]
    assert data["panes"][0]["differs"] is None


def test_the_paper_s_numbers_come_back_and_ems_sd_stands_beside_them():
    page = open_it()
    before = shown_reading(page)
    page.slider(key="try_padding_0_0").set_value((0, 1)).run()
    page.toggle(key=BESIDE).set_value(True).run()
    assert methods(page) == ["vanilla", "ems-sd"]
    assert shown_reading(page) != before
    page.button(key="try_padding_reset").click().run()
    assert not page.exception
    traces = traces_of(DEFAULT, ("vanilla", "ems-sd"))
    assert before in reading(traces["vanilla"])
    assert shown_reading(page) in reading(traces["vanilla"], traces["ems-sd"])
    assert "With EMS-SD they pass 18 slots. All of them hold a token." in shown_reading(page)
    assert methods(page) == ["vanilla", "ems-sd"]
    assert page.slider(key="try_padding_0_0").value == DEFAULT[0][0]


def test_the_sliders_are_as_they_were_left_on_the_way_back():
    page = open_it()
    page.slider(key="try_padding_0_2").set_value((5, 5)).run()
    shown = shown_reading(page)
    page.button(key="lesson_continue").click().run()
    assert 'data-testid="reading"' not in texts(page)
    page.button(key="lesson_back").click().run()
    assert page.slider(key="try_padding_0_2").value == (5, 5)
    assert shown_reading(page) == shown
