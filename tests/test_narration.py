"""The sentences of the player: golden texts of the worked example, and every number follows from the trace."""

from __future__ import annotations

import re
from copy import deepcopy

import pytest

from emssd.cells import SUBSTEPS, cells_at
from emssd.trace import GenerationTrace, RowTrace, StepTrace
from emssd.ui.narration import FEW_ROWS, attended, narrations, plain_text, plural
from tests.player_samples import invented_trace, random_trace
from tests.test_cells import figure2


def told(trace: GenerationTrace) -> list[list[str]]:
    """[steps][sub-steps] sentences with bold pieces in asterisks."""
    return [
        ["".join(f"*{text}*" if bold else text for text, bold in said) for said in step] for step in narrations(trace)
    ]


def worked_example(method: str) -> list[list[str]]:
    """The worked example with every token called x."""
    trace = deepcopy(figure2(method))
    trace.tokens = dict.fromkeys(map(str, range(97)), "x")
    return told(trace)


PREFILL = {
    True: "Prefill: 2 prompts, *8 tokens*. The shared cursor starts after the longest prompt, at slot 5: "
    "*2 prompt pads*.",
    False: "Prefill: 2 prompts, *8 tokens*, no padding. Each row’s cursor starts at the end of its own prompt.",
}
DRAFT = ["Row 0 drafts *5 tokens*; row 1 drafts *2 tokens*.", "Row 0 drafts *2 tokens*; row 1 drafts *5 tokens*."]
PACK = {
    True: "*9 input rows* from 2 rows of the batch, *no pads*.",
    False: "Every row is filled up to 6: 2 × 6 = *12 input rows*, *3* of them pads.",
}
WRITE = {
    "vanilla": [
        "All rows write from slot *5*: *9 tokens* and *3 pads*.",
        "All rows write from slot *9*: *9 tokens* and *3 pads*.",
    ],
    "packed-input": ["All rows write from slot *5*: *9 tokens*.", "All rows write from slot *9*: *9 tokens*."],
    "ems-sd": [
        "Row 0 writes from slot *5*; row 1 writes from slot *3*.",
        "Row 0 writes from slot *9*, over *2 rejected cells*; row 1 writes from slot *4*, over *2 rejected cells*.",
    ],
}
WRITE["ragged-cache"] = WRITE["ems-sd"]
ATTEND = {
    True: [
        "Query “x” of row 1 (position 4) reads its *5* own tokens. It also loads *2 dead slots*, both prompt "
        "pads, and gives them weight 0.",
        "Query “x” of row 1 (position 5) reads its *6* own tokens. It also loads *5 dead slots*, 2 prompt pads "
        "and 3 holes, and gives them weight 0.",
    ],
    False: [
        "Query “x” of row 1 (position 4) reads its *5* own tokens, in slots 0 to 4. *Nothing else* is loaded.",
        "Query “x” of row 1 (position 5) reads its *6* own tokens, in slots 0 to 5. *Nothing else* is loaded.",
    ],
}
VERIFY = [
    "Row 0 keeps *3 of 5* drafts; the target says “x” instead. "
    "Row 1 keeps *0 of 2* drafts; the target says “x” instead.",
    "Row 0 keeps *1 of 2* drafts; the target says “x” instead. Row 1 keeps all *5*; the target adds “x”.",
]
COMMIT = {
    True: [
        "Row 0 keeps *3 of 5* drafts and the target’s own “x”; row 1 keeps *0 of 2* drafts and the target’s own “x”. "
        "The shared cursor moves by the largest gain, 4, so row 1 leaves *3 holes*.",
        "Row 0 keeps *1 of 2* drafts and the target’s own “x”; row 1 keeps *5 of 5* drafts and the bonus “x”. "
        "The shared cursor moves by the largest gain, 6, so row 0 leaves *4 holes*.",
    ],
    False: [
        "Row 0 gains *4 tokens*, row 1 gains *1*. Each cursor moves by its own gain, *5 → 9* and *3 → 4*: no holes. "
        "Rejected drafts stay beyond the cursors until they are written over: 2 in row 0 and 2 in row 1.",
        "Row 0 gains *2 tokens*, row 1 gains *6*. Each cursor moves by its own gain, *9 → 11* and *4 → 10*: no holes. "
        "Row 0’s rejected “x” stays in slot 11 until the next step writes over it.",
    ],
}


@pytest.mark.parametrize("method", ["vanilla", "packed-input", "ragged-cache", "ems-sd"])
def test_worked_example_in_words(method):
    shared, packed = method in ("vanilla", "packed-input"), method in ("packed-input", "ems-sd")
    steps = [
        [DRAFT[n], PACK[packed], WRITE[method][n], ATTEND[shared][n], VERIFY[n], COMMIT[shared][n]] for n in range(2)
    ]
    assert worked_example(method) == [[PREFILL[shared]], *steps]


def single(method: str, **settings) -> list[list[str]]:
    return told(invented_trace(method, [[1, 2, 3]], 6, settings.pop("max_drafts", 3), **settings))


def test_one_row_is_spoken_of_in_the_singular():
    steps = single("greedy", seed=1)
    assert steps[1] == [
        "Row 0 drafts *nothing* and feeds one token.",
        "Every row feeds one token: *1 input row*, *no pads*.",
        "Row 0 writes from slot *3*: *1 token*.",
        steps[1][3],
        steps[1][4],
        "Row 0 gains one token of the target’s own; nothing was drafted. The shared cursor moves by 1: *no holes*.",
    ]
    assert re.fullmatch(
        r"Query “id \d+” of row 0 \(position 3\) reads its \*4\* own tokens, in slots 0 to 3. "
        r"\*Nothing else\* is loaded.",
        steps[1][3],
    )
    assert re.fullmatch(r"Row 0 has no draft; the target says “id \d+”.", steps[1][4])
    assert steps[-1][5].endswith(" Row 0 ends.")
    own = single("ems-sd", seed=4, hit_chance=1.0)
    assert own[1][0] == "Row 0 drafts *3 tokens*."
    assert "Its cursor moves by its own gain, *3 → " in own[1][5]


def test_one_draft_is_not_called_all():
    seen = 0
    for seed in range(10):
        trace = invented_trace("ems-sd", [[1]], 6, 1, seed, accept_chance=1)
        for step, said in zip(trace.steps[1:], told(trace)[1:], strict=True):
            if step.rows[0].next_kind == "bonus":
                assert said[4].startswith("Row 0 keeps its *1 draft*; the target adds “")
                seen += 1
    assert seen


def test_nobody_has_the_most_where_two_have_as_much():
    seen = set()
    for seed in range(20):
        trace = invented_trace("ems-sd", [[1]] * 5, 12, 3, seed)
        for step, said in zip(trace.steps[1:], told(trace)[1:], strict=True):
            live = [row for row in step.rows if row.kind == "decode"]
            for place, name in ((0, "num_drafted"), (4, "num_accepted")):
                counts = [getattr(row, name) for row in live]
                unlike = name == "num_accepted" or len(set(counts)) > 1
                if len(live) > FEW_ROWS and max(counts) and unlike:
                    alone = counts.count(max(counts)) == 1
                    assert (", the most" in said[place]) == alone, said[place]
                    seen.add((place, alone))
    assert len(seen) == 4


def test_many_rows_are_counted_and_the_extreme_one_is_named():
    prompts = [[1] * (row + 1) for row in range(6)]
    for method in ("vanilla", "ems-sd"):
        trace = invented_trace(method, prompts, 20, 5, seed=3)
        step, said = trace.steps[1], told(trace)[1]
        drafted = [row.num_drafted for row in step.rows]
        assert said[0].startswith(f"Row {drafted.index(max(drafted))} drafts *{max(drafted)} tokens*, the most; ")
        kept = [row.num_accepted for row in step.rows]
        best = kept.index(max(kept))
        assert said[4].startswith(
            f"Row {best} keeps *{kept[best]} of {drafted[best]}* drafts{', the most' * (kept.count(max(kept)) == 1)}; "
            f"all rows together keep *{sum(kept)} of {sum(drafted)}*."
        )
        gains = [row.num_emitted for row in step.rows]
        if method == "ems-sd":
            assert f"most in row {gains.index(max(gains))} (+{max(gains)})" in said[5]
            assert said[2] == "Each row writes from its own cursor, slot *1* in row 0 to slot *6* in row 5."
        else:
            assert said[5].startswith(f"Every row moves by the largest gain, *{max(gains)}*: ")
            assert said[2].startswith("All rows write from slot *6*: ")


def test_finished_rows_that_are_still_fed_are_named_where_they_are_fed():
    fed = 0
    for number in range(60):
        trace = random_trace(number, 8)
        for step, said in zip(trace.steps[1:], told(trace)[1:], strict=True):
            finished = [row.row for row in step.rows if row.kind == "finished"]
            rows = step.account.input_rows["finished"]
            assert ("but still fed" in said[1]) == (rows > 0)
            if rows:
                who = f"Row {finished[0]} is" if len(finished) == 1 else f"{len(finished)} rows are"
                assert said[1].endswith(f" {who} finished but still fed *{plural(rows, 'input row')}*.")
                fed += 1
    assert fed > 20


def numbers_of(trace: GenerationTrace, step: StepTrace) -> set[int]:
    """Row numbers, counts and slots that a sentence of the step may name."""
    rows = step.rows
    live = [row for row in rows if row.kind == "decode"]
    known = {0, 1, len(rows), len(live), len(rows) - len(live), *(row.row for row in rows)}
    account = step.account
    known |= {*account.input_rows.values(), sum(account.input_rows.values())}
    for row in live:
        known |= {row.cache_start, row.next_slot, row.num_drafted, row.num_accepted, row.num_emitted}
        known |= {len(row.input_token_ids), len(row.holes_added), row.num_drafted - row.num_accepted}
        known |= {*row.slots, *row.position_ids, *(position + 1 for position in row.position_ids)}
        known |= dead_slots(trace, step, row)
    for name in ("num_drafted", "num_accepted", "num_emitted"):
        known.add(sum(getattr(row, name) for row in live))
    drafting = [row for row in live if row.num_drafted]
    known |= {len(drafting) - 1, len(live) - len(drafting), sum(not row.num_accepted for row in drafting)}
    known |= {sum(row.num_drafted for row in live) - row.num_drafted for row in live}
    known |= {sum(bool(row.holes_added) for row in live), sum(len(row.holes_added) for row in live)}
    return known | {
        sum(row.finished for row in live),
        over(trace, step, None),
        *(over(trace, step, r.row) for r in live),
    }


def dead_slots(trace: GenerationTrace, step: StepTrace, row: RowTrace) -> set[int]:
    before = cells_at(trace, step.index, "draft")[row.row][: row.cache_start]
    pads, holes = (sum(cell.state == state for cell in before) for state in ("pad", "hole"))
    return {pads, holes, pads + holes}


def over(trace: GenerationTrace, step: StepTrace, row: int | None) -> int:
    """Rejected cells that the step writes over, by the cells themselves."""
    grid = cells_at(trace, step.index, "draft")
    rows = [each for each in step.rows if row is None or each.row == row]
    return sum(grid[each.row][slot].state == "rejected" for each in rows for slot in each.slots)


def test_every_number_follows_from_the_trace():
    few = many = 0
    for number in range(50):
        trace = random_trace(number, 5)
        for step, said in zip(trace.steps, narrations(trace), strict=True):
            assert len(said) == (len(SUBSTEPS) if step.index else 1)
            if not step.index:
                continue
            known = numbers_of(trace, step)
            for sub, pieces in zip(SUBSTEPS, said, strict=True):
                text = re.sub("“.*?”", "", plain_text(pieces))
                assert text.endswith("."), text
                assert {int(digits) for digits in re.findall(r"\d+", text)} <= known, (number, step.index, sub, text)
            live = sum(row.kind == "decode" for row in step.rows)
            few, many = few + (live <= FEW_ROWS), many + (live > FEW_ROWS)
    assert few > 50
    assert many > 20


def test_commit_sentences_tell_all_holes_and_all_ends():
    holes = 0
    for number in range(60):
        trace = random_trace(number, 6)
        for step, said in zip(trace.steps[1:], narrations(trace)[1:], strict=True):
            text = plain_text(said[-1])
            told_holes = [0 if digits == "no" else int(digits) for digits in re.findall(r"(\d+|no) holes?", text)]
            assert told_holes, text
            assert sum(told_holes) == sum(len(row.holes_added) for row in step.rows), text
            holes += sum(told_holes)
            ends = sum(row.kind == "decode" and row.finished for row in step.rows)
            assert len(re.findall(r" ends?\.$", text)) == (ends > 0)
    assert holes > 30


def test_attend_names_the_same_query_in_every_layout_and_on_a_shared_column_one_with_most_dead_slots():
    seen = 0
    for number in range(60):
        trace = random_trace(number, 7)
        for step, said in zip(trace.steps[1:], narrations(trace)[1:], strict=True):
            live = [row for row in step.rows if row.kind == "decode"]
            row = min(live, key=lambda each: each.position_ids[0])
            position = row.position_ids[min(row.num_drafted, 1)]
            dead = {each.row: max(dead_slots(trace, step, each)) for each in live}
            text = plain_text(said[3])
            assert f" of row {row.row} (position {position}) reads its {position + 1} own" in text
            assert dead[row.row] == max(dead.values())
            if dead[row.row]:
                assert f"It also loads {plural(dead[row.row], 'dead slot')}, " in text
                seen += 1
            else:
                assert "Nothing else is loaded." in text
    assert seen > 30


def test_a_lesson_may_ask_what_one_query_of_a_row_reads():
    said = attended(figure2("vanilla"), 0, 3)
    assert said[0] is None
    assert "of row 0 (position 8) reads its 9 own tokens, in slots 0 to 8." in plain_text(said[1])
    assert "of row 0 (position 11)" in plain_text(said[2])  # its last fed token: the row feeds fewer
    for trace in (random_trace(number, 7) for number in range(9)):
        live = [step.rows[0].kind == "decode" for step in trace.steps]
        assert [pieces is not None for pieces in attended(trace, 0, 0)] == live


def test_sentences_fit_two_lines():
    """At most about 110 characters fit a line of the pane."""
    for number in range(60):
        for step in narrations(random_trace(number, 9)):
            for pieces in step:
                assert len(plain_text(pieces)) <= 220, plain_text(pieces)


def test_hostile_and_long_tokens_are_shown_and_cut():
    trace = deepcopy(figure2("vanilla"))
    trace.tokens = dict.fromkeys(map(str, range(97)), "\u202e\n" + "y" * 100)
    said = plain_text(narrations(trace)[1][4])
    assert "the target says “⟨202E⟩↵yyyyyyyy…” instead." in said
    assert "\u202e" not in said
    assert max(map(len, re.findall("“(.*?)”", said))) <= 16
