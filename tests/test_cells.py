"""The state of every cache cell: the paper's worked example cell by cell, and identities over whole runs."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import product

import pytest

from emssd import SpeculativeConfig, generate
from emssd.cells import FREE, STATES, SUBSTEPS, VISIBLE_STATES, cells_at, iter_cells, num_slots
from emssd.trace import GenerationTrace
from tests.helpers import ALL_METHODS, SPECULATIVE, batch, greedy, language_model, safe_prompt, same, script


@cache
def figure2(method: str) -> GenerationTrace:
    """The worked example: prompts 5 and 3; drafts 5 and 2, accepted 3 and 0; drafts 2 and 5, accepted 1 and 5."""
    lm = language_model("random-llama")
    prompts = [safe_prompt(lm, 5, 0, 20), safe_prompt(lm, 3, 1, 20)]
    outputs = [greedy(lm, prompt, 20) for prompt in prompts]
    drafts = [[5, 2, 0], [2, 5, 0]]
    wanted = lambda row, step: drafts[row][min(step, 3) - 1]  # noqa: E731
    config = SpeculativeConfig.for_method(method, num_draft_tokens=wanted, max_new_tokens=9)
    run = generate(lm, prompts, config, script(outputs, [[3, 1], [0, 5]], 97, 5))
    trace = GenerationTrace.from_json(run.to_json())
    trace.steps = trace.steps[:3]
    return trace


@cache
def run_of(method: str) -> GenerationTrace:
    """A longer run with an end inside a block, finished rows and every number of accepted drafts."""
    lm = language_model("random-llama")
    prompts = batch(lm, [5, 3, 2], 20)
    outputs = [greedy(lm, prompt, 20) for prompt in prompts]
    eos = next(token for token in outputs[2][3:9] if token not in outputs[0][:14] + outputs[1][:14])
    config = SpeculativeConfig.for_method(method, num_draft_tokens=3, max_new_tokens=14, eos_token_ids=eos)
    return generate(lm, prompts, config, script(outputs, [[2, 0, 3], [0, 1, 2], [3, 3, 3]], 97, 3))


SHORT = {state: state[0] for state in STATES} | {"pending": "w", "pad": "_", "free": ".", "prompt": "P", "plain": "p"}
SHORT |= {"rejected": "x", "recovered": "r", "hole": "O"}


def picture(grid) -> list[str]:
    """One letter per cell: P prompt, p plain, a accepted, r recovered, b bonus, d draft, x rejected, O hole, _ pad."""
    return ["".join(SHORT[cell.state] for cell in row).rstrip(".") for row in grid]


PICTURES = {
    "vanilla": {
        (0, "commit"): ["PPPPP", "PPP__"],
        (1, "draft"): ["PPPPP", "PPP__"],
        (1, "pack"): ["PPPPP", "PPP__"],
        (1, "write"): ["PPPPPpddddd", "PPP__pdd___"],
        (1, "attend"): ["PPPPPpddddd", "PPP__pdd___"],
        (1, "verify"): ["PPPPPpaaaxx", "PPP__pxx___"],
        (1, "commit"): ["PPPPPpaaaxx", "PPP__pOOO__"],
        (2, "write"): ["PPPPPpaaardd___", "PPP__pOOOrddddd"],
        (2, "verify"): ["PPPPPpaaarax___", "PPP__pOOOraaaaa"],
        (2, "commit"): ["PPPPPpaaaraOOOO", "PPP__pOOOraaaaa"],
    },
    "ems-sd": {
        (0, "commit"): ["PPPPP", "PPP"],
        (1, "write"): ["PPPPPpddddd", "PPPpdd"],
        (1, "verify"): ["PPPPPpaaaxx", "PPPpxx"],
        (1, "commit"): ["PPPPPpaaaxx", "PPPpxx"],
        (2, "write"): ["PPPPPpaaardd", "PPPprddddd"],
        (2, "commit"): ["PPPPPpaaarax", "PPPpraaaaa"],
    },
    "packed-input": {(1, "write"): ["PPPPPpddddd", "PPP__pdd"], (2, "commit"): ["PPPPPpaaaraOOOO", "PPP__pOOOraaaaa"]},
    "ragged-cache": {(1, "write"): ["PPPPPpddddd", "PPPpdd___"], (2, "commit"): ["PPPPPpaaarax___", "PPPpraaaaa"]},
}


@pytest.mark.parametrize(
    ("method", "step", "substep"),
    [(method, step, substep) for method, shown in PICTURES.items() for step, substep in shown],
)
def test_worked_example_cell_by_cell(method, step, substep):
    trace = figure2(method)
    assert picture(cells_at(trace, step, substep)) == PICTURES[method][step, substep]


def test_worked_example_counts_seven_holes_and_two_prompt_pads():
    states = Counter(cell.state for row in cells_at(figure2("vanilla"), 2) for cell in row)
    assert (states["hole"], states["pad"]) == (7, 2)
    pads = {cell.cause for row in cells_at(figure2("vanilla"), 2) for cell in row if cell.state == "pad"}
    assert pads == {"prompt"}
    assert all(cell.state != "hole" for row in cells_at(figure2("ems-sd"), 2) for cell in row)


def test_worked_example_what_a_cell_says():
    """Token, position and step of single cells: a position is logical, never the slot, where the cache is padded."""
    trace = figure2("vanilla")
    grid = cells_at(trace, 2)
    prompt, first, second = trace.steps[0].rows[1], trace.steps[1].rows[1], trace.steps[2].rows[1]
    assert (grid[1][0].state, grid[1][0].token_id, grid[1][0].position, grid[1][0].step) == (
        "prompt",
        prompt.input_token_ids[0],
        0,
        0,
    )
    assert (grid[1][5].token_id, grid[1][5].position, grid[1][5].step) == (first.input_token_ids[0], 3, 1)
    # a recovered token keeps its origin; it is written one step later than it was chosen
    assert (grid[1][9].state, grid[1][9].token_id, grid[1][9].position, grid[1][9].step) == (
        "recovered",
        first.emitted_token_ids[-1],
        4,
        2,
    )
    assert [cell.position for cell in grid[1][10:15]] == [5, 6, 7, 8, 9]
    assert [cell.token_id for cell in grid[1][10:15]] == second.draft_token_ids
    hole = grid[1][6]
    assert (hole.state, hole.position, hole.token_id, hole.step) == ("hole", None, first.draft_token_ids[0], 1)
    assert not hole.visible
    assert (grid[1][3].state, grid[1][3].cause, grid[1][3].step) == ("pad", "prompt", None)
    stale = cells_at(trace, 1)[0][9]
    assert (stale.state, stale.token_id) == ("rejected", trace.steps[1].rows[0].draft_token_ids[3])


@pytest.mark.parametrize("method", ALL_METHODS)
def test_visible_cells_are_the_cache_and_hold_the_committed_text(method):
    """Visible cells == cache_len; read in the order of their positions they are the committed tokens but the last."""
    trace = run_of(method)
    committed = [list(row.prompt_token_ids) for row in trace.rows]
    for step, grid in zip(trace.steps, iter_cells(trace), strict=True):
        for row in step.rows:
            committed[row.row] += row.emitted_token_ids
            visible = [cell for cell in grid[row.row] if cell.visible]
            assert len(visible) == row.cache_len
            assert [cell.position for cell in visible] == list(range(row.cache_len))
            assert [cell.token_id for cell in visible] == committed[row.row][: row.cache_len]
            if not row.finished:
                assert row.cache_len == len(committed[row.row]) - 1


@pytest.mark.parametrize("method", ALL_METHODS)
def test_hole_cells_are_the_holes_of_the_account(method):
    trace = run_of(method)
    for step, grid in zip(trace.steps, iter_cells(trace), strict=True):
        holes = sum(cell.state == "hole" for row in grid for cell in row)
        assert holes == step.account.holes_total
        if trace.config["cache_layout"] == "ragged":
            assert holes == 0
    assert (trace.summary()["holes"] > 0) == (method in ("vanilla", "packed-input"))


@pytest.mark.parametrize("method", ALL_METHODS)
def test_origins_count_what_each_step_emitted(method):
    """Accepted, recovered, bonus and plain cells are the emitted tokens by their origin; the last one is pending."""
    trace = run_of(method)
    grid = cells_at(trace, len(trace.steps) - 1)
    for row, request in enumerate(trace.rows):
        steps = [step.rows[row] for step in trace.steps if step.rows[row].kind != "finished"]
        right = Counter({"prompt": len(request.prompt_token_ids)})
        right["accepted"] = sum(each.num_accepted for each in steps)
        right.update(each.next_kind for each in steps if each.next_kind)
        if steps[-1].next_kind is None:
            right["accepted"] -= 1  # an accepted end of sequence stays outside the cache's length
        else:
            right[steps[-1].next_kind] -= 1  # the last token was never fed
        shown = Counter(cell.state for cell in grid[row] if cell.state in VISIBLE_STATES)
        assert shown == +right


@pytest.mark.parametrize(("method", "substep"), list(product(ALL_METHODS, SUBSTEPS)))
def test_every_substep_of_every_step(method, substep):
    trace = run_of(method)
    width = num_slots(trace)
    after = list(iter_cells(trace))
    for step in trace.steps:
        grid = cells_at(trace, step.index, substep)
        assert [len(row) for row in grid] == [width] * 3
        assert {cell.state for row in grid for cell in row} <= set(STATES)
        before = after[step.index - 1] if step.index else [[FREE] * width] * 3
        if substep in ("draft", "pack"):
            assert grid == before  # nothing is written yet
        elif substep == "commit":
            assert grid == after[step.index]
        else:
            for row in step.rows:
                cells = grid[row.row]
                for place, slot in enumerate(row.slots):
                    assert (cells[slot].token_id, cells[slot].step) == (row.input_token_ids[place], step.index)
                drafts = [cells[slot].state for slot in row.slots[1 : 1 + row.num_drafted]]
                rejected = row.num_drafted - row.num_accepted
                verdicts = ["accepted"] * row.num_accepted + ["rejected"] * rejected
                assert drafts == (verdicts if substep == "verify" else ["draft"] * row.num_drafted)
                untouched = set(range(width)) - set(row.slots)
                assert all(cells[slot] == before[row.row][slot] for slot in untouched)


@pytest.mark.parametrize("method", SPECULATIVE)
def test_an_accepted_end_of_sequence_is_pending_and_finished_rows_turn_to_pads(method):
    trace = run_of(method)
    step = next(step for step in trace.steps if step.rows[2].finished)
    row = step.rows[2]
    assert row.next_kind is None, "the script must end row 2 inside a block"
    grid = cells_at(trace, step.index)[2]
    end = grid[row.cache_start + row.num_emitted]
    assert (end.state, end.token_id) == ("pending", row.emitted_token_ids[-1])
    assert not end.visible
    last = cells_at(trace, len(trace.steps) - 1)[2]
    dragged = last[row.cache_start + row.num_emitted + 1 : trace.steps[-1].rows[2].next_slot]
    assert all(cell.state == "pad" and cell.cause == "finished" for cell in dragged)
    assert bool(dragged) == (trace.config["cache_layout"] == "padded")


def test_each_grid_is_the_callers_to_keep():
    trace = run_of("vanilla")
    grids = list(iter_cells(trace))
    grids[0][0][0] = FREE
    assert next(iter_cells(trace))[0][0].state == "prompt"
    assert [picture(grid) for grid in grids[1:]] == [picture(grid) for grid in list(iter_cells(trace))[1:]]


def test_no_such_step_or_substep():
    trace = run_of("ems-sd")
    for step in (-1, len(trace.steps)):
        with pytest.raises(IndexError, match=str(step)):
            cells_at(trace, step)
    with pytest.raises(ValueError, match="rollback"):
        cells_at(trace, 0, "rollback")


def test_a_run_without_steps_has_no_cells():
    lm = language_model("random-llama")
    trace = generate(lm, [[5]], SpeculativeConfig(max_new_tokens=0), same(lm))
    assert num_slots(trace) == 0
    assert list(iter_cells(trace)) == []
