"""The random batches of the lessons' checks are correct traces, and hold the cases that catch mistakes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from emssd.config import METHODS, SPECULATIVE_METHODS
from emssd.lessons.answers import list_of, text, whole, whole_list, whole_lists
from emssd.lessons.batches import EOS_ID, figure2, random_batch
from emssd.lessons.text import read_lesson
from emssd.trace import GenerationTrace
from lessons.facts import cells

LESSONS = sorted((Path(__file__).resolve().parent.parent / "lessons").glob("[0-9][0-9]_*.md"))


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_is_correct_in_every_method(seed):
    batch = random_batch(seed, steps=6, methods=tuple(METHODS))
    outputs = [row.output_token_ids for row in batch["greedy"].rows]
    for method, trace in batch.items():
        assert GenerationTrace.from_json(trace.to_json()) == trace, "the reader checks all of it against the layout"
        assert [row.output_token_ids for row in trace.rows] == outputs, method
        assert trace.finished
    for method in SPECULATIVE_METHODS:
        assert len(batch[method].decode_steps) == 6


def test_the_same_seed_gives_the_same_batch():
    assert random_batch(3) == random_batch(3)
    assert random_batch(3) != random_batch(4)


def test_settings_are_kept():
    for seed in range(10):
        trace = random_batch(seed, steps=50, rows=3, eos=False, methods=("ems-sd",))["ems-sd"]
        assert (len(trace.rows), len(trace.decode_steps)) == (3, 50)
        assert all(EOS_ID not in row.output_token_ids for row in trace.rows)


def test_no_batch_is_symmetric_and_all_cases_occur():
    seen: Counter[str] = Counter()
    for seed in range(20):
        trace = random_batch(seed)["vanilla"]
        lengths = [len(row.prompt_token_ids) for row in trace.rows]
        assert len(set(lengths)) == len(lengths) >= 2
        for row in trace.live_rows():
            seen[f"next {row.next_kind}"] += 1
            seen["drafts, none accepted"] += row.num_drafted > 0 == row.num_accepted
        for step in trace.decode_steps:
            seen["unequal feeds"] += len({row.num_drafted for row in step.rows}) > 1
            seen["unequal gains"] += len({row.num_emitted for row in step.rows}) > 1
            seen["finished rows"] += any(row.kind == "finished" for row in step.rows)
            seen["holes"] += any(row.holes_added for row in step.rows)
        for row in trace.rows:
            seen[f"ended by {row.finish_reason}"] += 1
    cases = ("next bonus", "next recovered", "next plain", "next None", "ended by eos", "ended by length")
    for case in (*cases, "drafts, none accepted", "unequal feeds", "unequal gains", "finished rows", "holes"):
        assert seen[case] >= 5, (case, seen)


def test_figure2_is_the_recorded_example():
    for method, trace in figure2().items():
        assert trace.method == method
        assert [[row.num_emitted for row in step.rows] for step in trace.decode_steps] == [[4, 1], [2, 6]]


def test_answers_are_read_whatever_their_type():
    assert whole(np.int32(7)) == 7
    assert [whole(value) for value in (True, 7.0, "7", None, [7])] == [None] * 5
    assert whole_list(np.arange(3)) == whole_list((0, 1, 2)) == whole_list(range(3)) == [0, 1, 2]
    assert whole_list("012") is whole_list([0, 1.5]) is whole_list(iter([0])) is None
    assert whole_lists([[], (1,)]) == [[], [1]]
    assert whole_lists([1, 2]) is None
    assert list_of(text, ["pad", "draft"]) == ["pad", "draft"]
    assert list_of(text, ["pad", 1]) is None


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_the_player_has_what_a_lesson_shows(path):
    """Every step and every pinned cell exists in the recorded set."""
    lesson = read_lesson(path)
    targets = [section.target for section in lesson.sections]
    targets += [target for question in lesson.questions for target in (question.before, question.after)]
    for target in filter(None, targets):
        grid = cells(target.preset, target.left, target.step, target.sub)
        for _, row in target.hide:
            assert row < len(grid)
        if target.pin:
            row, slot = map(int, target.pin.split("."))
            assert any(
                row < len(grid) and slot < len(grid[row])
                for grid in (cells(target.preset, each, target.step) for each in (target.left, target.right) if each)
            ), target
