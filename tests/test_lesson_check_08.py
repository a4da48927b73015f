"""Lesson 8's check names the place of a fault of the draft cache: what was fed, or how far the cursor was set."""

from __future__ import annotations

import pytest

from emssd.lessons.catalog import solution_file
from emssd.lessons.checking import Failure, run_check

PLAN = "return limit, row.draft_cursor, row.token_ids[row.draft_cursor :]"


def failure(tmp_path, right: str, wrong: str) -> Failure | None:
    """What the check says of the solution with one piece of it changed."""
    source = solution_file(8).read_text(encoding="utf-8")
    assert right in source
    path = tmp_path / "ems_step.py"
    path.write_text(source.replace(right, wrong), encoding="utf-8")
    return run_check(8, path, seconds=60.0).failure


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        (
            PLAN,
            "return limit, len(row.token_ids) - 1, row.token_ids[-1:]",
            "draft_plan (place 1) feeds slot 14 on for row 1, but the row's tokens in its draft cache end at slot 12.",
        ),
        (
            PLAN,
            "return limit, row.draft_cursor, row.token_ids[-1:]",
            "draft_plan (place 1) feeds [12 of] from slot 13 on for row 1; its text goes on there with [12 of, 12 of].",
        ),
        (
            "min(len(emitted), len(drafts)) - 1",
            "len(emitted) - 1",
            "commit (place 4) sets draft_cursor of row 1 to 14 in step 1, but slot 13 "
            "of its draft cache holds nothing.",
        ),
    ],
)
def test_a_fault_of_the_draft_cache_has_its_place(tmp_path, right, wrong, words):
    found = failure(tmp_path, right, wrong)
    assert found is not None
    assert found.what == words
    assert "with a complete draft cache it is 24 of 30 in 4" in found.why


def test_the_draft_model_may_be_fed_more_than_it_lacks(tmp_path):
    back = "first = max(row.draft_cursor - 2, 0)\n    return limit, first, row.token_ids[first:]"
    assert failure(tmp_path, PLAN, back) is None
