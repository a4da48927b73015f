"""What the checks of lessons 1 to 3 hold solutions against: the engine's verdicts, and runs with one bug each."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import torch

from emssd.lessons.catalog import solution_file
from emssd.lessons.check_02 import expected_verdict, small_cases
from emssd.lessons.checking import Failure, run_check
from emssd.lessons.faulty_runs import (
    BONUS_MISSING,
    BUGS,
    SLOT_AS_POSITION,
    STALE_CELLS_READ,
    WRONG_TOKEN_ACCEPTED,
    Evidence,
    describe,
    faulty_run,
    faulty_runs,
    first_broken_step,
    scripted_steps,
    why_not,
)
from emssd.lessons.toy import ToyCache, ToyCell, ToyModel, plain_greedy
from emssd.lessons.toy_trace import one_row_trace, verdict_trace
from emssd.trace import GenerationTrace
from emssd.verification import verify_greedy


def test_expected_verdicts_are_the_engines() -> None:
    groups = defaultdict(list)
    for draft, target, eos in small_cases():
        groups[len(draft), eos].append((draft, target))
    for (drafted, eos), cases in groups.items():
        drafts = torch.tensor([draft for draft, _ in cases], dtype=torch.long).view(len(cases), drafted)
        targets = torch.tensor([target for _, target in cases])
        counts = torch.full((len(cases),), drafted)
        accepted, emitted = verify_greedy(targets, drafts, counts, torch.tensor(eos, dtype=torch.long))
        for (draft, target), kept, gained in zip(cases, accepted.tolist(), emitted.tolist(), strict=True):
            assert expected_verdict(draft, target, eos) == (kept, list(target[:gained]))


@pytest.mark.parametrize(
    ("draft", "target", "eos"),
    [
        ([], [2], ()),
        ([1, 0], [1, 0, 2], ()),
        ([1, 0], [1, 2, 2], ()),
        ([1, 2, 0], [1, 2, 0, 1], (2,)),
        ([2], [0, 1], (2,)),
    ],
)
def test_a_case_of_lesson_2_is_a_valid_trace(draft: list[int], target: list[int], eos: tuple[int, ...]) -> None:
    accepted, emitted = expected_verdict(draft, target, eos)
    trace = verdict_trace(draft, target, len(emitted), eos)
    assert GenerationTrace.from_json(trace.to_json()) == trace
    row = trace.steps[1].rows[0]
    assert (row.num_accepted, row.emitted_token_ids) == (accepted, emitted)


def test_the_toy_model_sees_positions_and_cells_but_no_order() -> None:
    model = ToyModel(vocab_size=50, seed=1)
    cells = [ToyCell(4, 0), ToyCell(9, 1), ToyCell(4, 2)]
    answer = model.choose(cells, cells[-1])
    assert model.choose(cells[::-1], cells[-1]) == answer
    for other in (cells[1:], [*cells, ToyCell(4, 2)], [ToyCell(4, 0), ToyCell(9, 3), ToyCell(4, 2)]):
        assert model.choose(other, cells[-1]) != answer


def test_the_toy_model_with_a_cache_is_plain_greedy() -> None:
    model, prompt = ToyModel(vocab_size=9, seed=2), [3, 1, 3]
    cache = ToyCache()
    output = [model.forward(prompt, range(3), cache)[-1]]
    for position in range(3, 10):
        output += model.forward([output[-1]], [position], cache)
    assert output == plain_greedy(model, prompt, 8)
    assert (model.rows_computed, len(model.forwards), cache.length) == (10, 8, 10)


def rules_broken(run: Evidence) -> set[str]:
    """Which rules of lesson 3 the steps of a run break, without the code that words them."""
    broken, committed = set(), len(run.prompt) + 1
    for step in run.steps:
        positions = range(committed - 1, committed - 1 + len(step.input_token_ids))
        emitted, target, drafts = step.emitted_token_ids, step.target_token_ids, step.input_token_ids[1:]
        kept = [*(a == b for a, b in zip(drafts, target, strict=False)), False].index(False)
        if step.position_ids != list(positions):
            broken.add(SLOT_AS_POSITION)
        if step.cells_read != [position + 1 for position in positions]:
            broken.add(STALE_CELLS_READ)
        if emitted != target[: len(emitted)]:
            broken.add(WRONG_TOKEN_ACCEPTED)
        if len(emitted) == kept == len(drafts):
            broken.add(BONUS_MISSING)
        committed += len(emitted)
    return broken


def test_every_faulty_run_has_its_bug_and_no_other() -> None:
    for seed in range(40):
        runs = faulty_runs(seed)
        assert sorted(bug for bug, _ in runs) == sorted(BUGS)
        for bug, run in runs:
            assert rules_broken(run) == {bug}
            assert (run.output == run.right_output) == (bug == BONUS_MISSING)
            assert first_broken_step(run)[0] in range(1, len(run.steps) + 1)
            assert sum(len(step.emitted_token_ids) for step in run.steps) == len(run.output) - 1


def test_slots_give_no_bug_away() -> None:
    """Runs whose slots are positions exist with every bug but one, and so do others."""
    seen = {(bug, run.steps[0].slots[0] == len(run.prompt)) for seed in range(40) for bug, run in faulty_runs(seed)}
    assert seen == {(bug, same) for bug in BUGS for same in (True, False)} - {(SLOT_AS_POSITION, True)}


def test_a_run_without_a_bug_is_right_and_opens_as_a_trace() -> None:
    for seed in range(10):
        run = faulty_run(None, seed)
        assert run.output == run.right_output
        assert not rules_broken(run)
        with pytest.raises(ValueError, match="right"):
            first_broken_step(run)
        trace = one_row_trace("ems-sd", run.prompt, run.output, scripted_steps(run), vocab_size=10)
        assert GenerationTrace.from_json(trace.to_json()) == trace
        assert [row.num_emitted for row in trace.live_rows()] == [len(step.emitted_token_ids) for step in run.steps]


def test_evidence_is_described_line_by_line() -> None:
    _, run = faulty_runs(0)[0]
    lines = describe(run).splitlines()
    assert len(lines) == 3 + 7 * len(run.steps)
    assert lines[4].split(maxsplit=1) == ["input_token_ids", str(run.steps[0].input_token_ids)]


def test_telling_cases_come_first_and_no_token_ends_them() -> None:
    cases = list(small_cases())
    ends = [bool(eos) for _, _, eos in cases]
    assert ends == sorted(ends)
    assert all(len(draft) == 3 for draft, _, _ in cases[:3])
    assert [draft for draft, _, eos in cases if not eos][-1] == ()


@pytest.mark.parametrize(
    ("number", "source", "words"),
    [
        (1, "def greedy_decode(*args):\n    return args[9]\n", ["tuple index out of range", "ToyModel(", "[0, 3, 11]"]),
        (2, "def verify_greedy(draft, target):\n    return draft[9]\n", ["Case: draft [7, 4, 9], target [7, 4, 2, 5]"]),
        (
            2,
            "def verify_greedy(draft, target):\n    return (x for x in draft) + 1\n",
            ["'generator' and 'int' (line 2"],
        ),
        (
            2,
            "def verify_greedy(draft, target):\n    return 99, target\n",
            ["num_accepted is 99 where 3 drafts were fed"],
        ),
        (3, "def rewind(cache, n):\n    cache.cut(n)\n", ["Case: cache = ToyCache of 3 cells, n = "]),
        (
            4,
            "def min_rollback(accepted, own, over):\n    return own[9]\n",
            ["Case: accepted [[", "finished [False, False]"],
        ),
        (4, "def min_rollback(accepted, own, over):\n    return accepted\n", ["two things", "one thing of type list"]),
        (6, "def ragged_commit(*args):\n    return args[0]\n", ["two things", "Case: cursors [5, 3], drafted [5, 2]"]),
        (
            6,
            "def ragged_commit(*args):\n    return args[9]\n",
            ["Case: cursors [5, 3], drafted [5, 2], emitted [4, 1]"],
        ),
        (
            1,
            "def greedy_decode(model, prompt, n):\n"
            "    out = [model.forward(prompt, range(len(prompt)), model.new_cache())]\n"
            "    return out + [out[-1]] * (n - 1)\n",
            ["Output token 0", "must be a token id, not ["],
        ),
        (
            1,
            "def greedy_decode(model, prompt, n):\n"
            "    cache = model.new_cache()\n"
            "    return model.forward([model.forward(prompt, range(len(prompt)), cache)], [3], cache)\n",
            ["is a list: forward returns a list, one choice for each fed token"],
        ),
        (5, "def vanilla_step(*args):\n    return args[9]\n", ["Case: cursor 5, visible [[0, 1, 2, 3, 4], [0, 1, 2]]"]),
        (
            5,
            "def vanilla_step(*args):\n    return {'cursor': 1}\n",
            ["has no entry 'inputs', 'positions'", "Case: cursor 5"],
        ),
    ],
)
def test_a_failure_says_what_was_called(number: int, source: str, words: list[str], tmp_path: Path) -> None:
    failure = failure_of(number, source, tmp_path)
    for word in words:
        assert word in failure.what
    assert "\n" not in failure.what


def failure_of(number: int, source: str, folder: Path) -> Failure:
    path = folder / "mine.py"
    path.write_text(source, encoding="utf-8")
    failure = run_check(number, path).failure
    assert failure is not None
    return failure


@pytest.mark.parametrize(
    ("number", "old", "new", "words"),
    [
        (1, "choices[-1]", "choices[0]", "only the last choice is news: choice 2. Yours is choice 0"),
        (1, "[choices[-1]]", "list(choices)", "only the last choice is news: it follows the whole prompt. You kept 3."),
        (1, "[position], cache", "[position], model.new_cache()", "Forward 2 (step 1): its first query read 1 cell"),
        (1, "max_new_tokens == 0", "max_new_tokens < 0", "0 tokens need no forward"),
        (3, "raise ValueError", "raise IndexError", "n is not in 0 .. 3: rewind must raise ValueError here."),
        (3, "0 <= n <= cache", "0 <= n < cache", "n = length is allowed"),
        (3, "0 <= n <= cache", "0 < n <= cache", "n = 0 is allowed"),
        (
            3,
            "if step.position_ids != positions:",
            "if step.position_ids == step.slots:",
            "its positions are right: step 2 starts at 8 committed - 1 = 7.",
        ),
    ],
)
def test_a_failure_names_the_cause(number: int, old: str, new: str, words: str, tmp_path: Path) -> None:
    source = solution_file(number).read_text(encoding="utf-8")
    assert old in source
    why = failure_of(number, source.replace(old, new, 1), tmp_path).why
    assert why is not None
    assert words in why


def test_a_run_says_why_it_does_not_have_the_other_bugs() -> None:
    for bug, run in (each for seed in range(20) for each in faulty_runs(seed)):
        for other in set(BUGS) - {bug}:
            words = why_not(other, run)
            assert words.endswith("."), words
            step = run.steps[int(words.split("step ")[1].split()[0]) - 1]
            if other == SLOT_AS_POSITION:
                assert words.endswith(f"= {step.position_ids[0]}.")
            if other == STALE_CELLS_READ:
                assert words.endswith(f"read {step.cells_read[0]} cells.")
            if other == BONUS_MISSING:
                assert len(step.emitted_token_ids) == len(step.input_token_ids)
