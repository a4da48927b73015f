"""What the player gets: the trace comes back out of it, its counters are sums over cells, and it stays small."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from functools import cache
from random import Random
from typing import Any

import pytest

from emssd import SpeculativeConfig, generate
from emssd.accounting import attention_flops_per_slot, kv_bytes_per_slot, linear_flops_per_row
from emssd.cells import SUBSTEPS, VISIBLE_STATES, cells_at
from emssd.errors import TraceError
from emssd.trace import GenerationTrace, RowTrace
from emssd.ui.comparison import Clock, agreement, clock, compare_outputs, speed_ups
from emssd.ui.player_data import (
    COUNTERS,
    MAX_BYTES,
    MAX_ROWS,
    MAX_SLOTS,
    MAX_STEPS,
    Pane,
    Start,
    measured,
    player_data,
    too_large,
)
from emssd.ui.token_text import visible
from emssd.work import trace_work
from tests.helpers import METHODS5, language_model, safe_prompt
from tests.player_samples import SAMPLE_METHODS, cell_samples, invented_trace, random_prompts, random_trace
from tests.test_cells import figure2

HOSTILE = ['<script>alert("x")</script>', "\u202eevil", "a\nb\tc", "\x1b[31m", "\u2066", "\ue000", "y" * 500, "&amp;"]


@cache
def baseline() -> GenerationTrace:
    """Plain decoding of the worked example's prompts."""
    lm = language_model("random-llama")
    prompts = [safe_prompt(lm, 5, 0, 20), safe_prompt(lm, 3, 1, 20)]
    return generate(lm, prompts, SpeculativeConfig.greedy(max_new_tokens=9))


def data_of(trace: GenerationTrace, against: GenerationTrace | None = None, **settings: Any) -> dict[str, Any]:
    titles = [f"row {row}" for row in range(len(trace.rows))]
    return player_data([Pane(trace, trace.method, against)], titles, **settings)


def pane_of(trace: GenerationTrace, against: GenerationTrace | None = None, **settings: Any) -> dict[str, Any]:
    return data_of(trace, against, **settings)["panes"][0]


# --- the worked example --------------------------------------------------------------------------------------------

# rows useful, pad; slots useful, dead, pad query; holes after steps 1, 2; prompt pads; slots held; ms
WORKED = {
    "vanilla": (18, 6, 288, 72, 144, [3, 7], 2, 20, 27.524992),
    "packed-input": (18, 0, 288, 72, 0, [3, 7], 2, 20, 27.48928),
    "ragged-cache": (18, 6, 288, 0, 132, [0, 0], 0, 13, 27.504160),
    "ems-sd": (18, 0, 288, 0, 0, [0, 0], 0, 13, 27.471424),
}


@pytest.mark.parametrize("method", WORKED)
def test_counters_of_the_worked_example(method):
    useful, pads, own, dead, pad_query, holes, prompt_pads, held, ms = WORKED[method]
    trace = figure2(method)
    pane = pane_of(trace, baseline())
    counters = pane["counters"]
    assert tuple(counters) == COUNTERS
    assert [counters[name][2] for name in ("rowsUseful", "rowsPad", "rowsFinished")] == [useful, pads, 0]
    assert [counters[name][2] for name in ("slotsUseful", "slotsDead", "slotsPadQuery")] == [own, dead, pad_query]
    assert counters["holes"] == [0, *holes]
    assert counters["promptPads"] == [prompt_pads] * 3
    assert (counters["slotsHeld"][0], counters["slotsHeld"][2]) == (0, held)
    row, slot = linear_flops_per_row(trace.model), attention_flops_per_slot(trace.model)
    wasted_slots = (dead + pad_query) // 2  # two launches read them twice
    assert counters["flopsWasted"][2] == pads * row + wasted_slots * slot
    assert counters["flops"][2] == (18 + pads) * row + (144 + wasted_slots) * slot
    assert counters["ms"][2] == pytest.approx(ms, abs=1e-6)
    assert pane["speed"][2] == pytest.approx(95.931248 / ms, abs=1e-4)
    assert f"{pane['speed'][2]:.2f}" == "3.49"
    assert pane["speed"][0] is None
    assert pane["baseline"] == "vs greedy, modelled, always OPT-6.7B, paper’s GPU"
    assert (pane["agree"], pane["differs"]) == ([2, 7, 15], None)


def test_flops_of_a_model_with_windows_are_those_of_its_windows():
    """Row by row and layer by layer as `work` counts them; less than if every layer saw everything."""
    trace = invented_trace("vanilla", [[5] * 12, [6] * 5], 12, 3, 2)
    full = pane_of(trace)["counters"]
    trace.model = {**trace.model, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}
    cut = pane_of(trace)["counters"]
    works = trace_work(trace)
    assert cut["flops"][-1] == sum(work.flops() for work in works) < full["flops"][-1]
    assert cut["flopsWasted"][-1] == sum(work.wasted_flops() for work in works) < full["flopsWasted"][-1]
    assert [cut[name] for name in COUNTERS if "flops" not in name] == [
        full[name] for name in COUNTERS if "flops" not in name
    ]


def test_counters_of_plain_decoding():
    """Eight steps of two rows: slots 6..13 each, of which the second row's two prompt pads are dead."""
    pane = pane_of(baseline(), baseline())
    last = {name: column[-1] for name, column in pane["counters"].items()}
    assert (last["rowsUseful"], last["rowsPad"], last["slotsUseful"], last["slotsDead"]) == (16, 0, 76 + 60, 16)
    assert (last["holes"], last["promptPads"], last["slotsHeld"]) == (0, 2, 16)
    assert last["ms"] == pytest.approx(8 * 13.7 + 152 * 0.000248)
    assert pane["counters"]["ms"][7] == pytest.approx(95.931248)
    assert pane["isBaseline"]
    assert (pane["speed"], pane["agree"], pane["differs"], pane["baseline"]) == ([], None, None, "the baseline")


def test_numbers_of_the_worked_example_in_full():
    """The two rows of the first decode step, number by number."""
    trace = deepcopy(figure2("vanilla"))
    data = data_of(trace)
    first = trace.steps[1].rows
    tokens = [[*row.input_token_ids[: 1 + row.num_drafted], *row.target_token_ids] for row in first]
    words = [[data["ids"].index(token) for token in row] for row in tokens]
    assert data["panes"][0]["steps"][1] == [
        [1, 5, 6, 5, 5, 3, 4, 9, 9, 0, 0, 2, -1, 0, *words[0]],
        [1, 5, 6, 3, 2, 0, 1, 9, 4, 0, 3, 2, -1, 3, 6, 7, 8, *words[1]],
    ]


# --- the trace comes back out --------------------------------------------------------------------------------------


def decoded(flat: list[int], ids: list[int], prompt: list[int], row: int) -> dict[str, Any]:
    """A row's step as a `RowTrace` has it, from its numbers by the documented order."""
    kind, start, written, first, drafted, accepted, emitted, after, length, finished, pads, own, source, holes = flat[
        :14
    ]
    words = [ids[word] for word in flat[14 + holes :]]
    fed = [prompt, words[: 1 + drafted], []][kind]
    answers = [words, words[1 + drafted :], []][kind]
    positions = [*range(first, first + len(fed)), *[first + len(fed) - 1 if fed else first] * pads]
    return {
        "row": row,
        "kind": ("prefill", "decode", "finished")[kind],
        "cache_start": start,
        "next_slot": after,
        "slots": list(range(start, start + written)),
        "input_kinds": [["prompt"] * len(prompt), ["pending", *["draft"] * drafted], []][kind] + ["pad"] * pads,
        "fed": fed,
        "position_ids": positions,
        "target_token_ids": answers,
        "num_drafted": drafted,
        "num_accepted": accepted,
        "num_emitted": emitted,
        "emitted_token_ids": answers[:emitted],
        "next_kind": (None, "plain", "recovered", "bonus")[own],
        "cache_len": length,
        "holes_added": flat[14 : 14 + holes],
        "finished": bool(finished),
        "draft_source": None if source < 0 else source,
    }


def expected(row: RowTrace) -> dict[str, Any]:
    pads = row.input_kinds.count("pad")
    table = {name: getattr(row, name) for name in vars(row)}
    table["fed"] = row.input_token_ids[: len(row.input_token_ids) - pads]
    return table


@pytest.mark.parametrize("seed", range(5))
def test_every_row_of_every_step_comes_back(seed):
    for number in range(20):
        trace = random_trace(number, seed)
        data = data_of(trace)
        pane = data["panes"][0]
        prompts = [[data["ids"][word] for word in row] for row in pane["prompts"]]
        assert prompts == [row.prompt_token_ids for row in trace.rows]
        assert len(pane["steps"]) == len(trace.steps)
        for flat, step in zip(pane["steps"], trace.steps, strict=True):
            for row in step.rows:
                shown = decoded(flat[row.row], data["ids"], prompts[row.row], row.row)
                right = expected(row)
                assert shown == {name: right[name] for name in shown}
        emitted = [[token for flat in pane["steps"] for token in decoded(flat[row], data["ids"], prompts[row], row)
                    ["emitted_token_ids"]] for row in range(len(prompts))]  # fmt: skip
        assert emitted == [row.output_token_ids for row in trace.rows]


# --- counters are sums over cells ----------------------------------------------------------------------------------


def count_by_cells(trace: GenerationTrace) -> list[dict[str, int]]:
    """Per decode step, rows and slots by looking at every query and every cell below it."""
    steps = []
    for step in trace.steps[1:]:
        grid, after = cells_at(trace, step.index, "attend"), cells_at(trace, step.index, "commit")
        count = dict.fromkeys(COUNTERS[:6], 0)
        launches = 1
        for row in step.rows:
            for place, kind in enumerate(row.input_kinds):
                if row.kind == "finished":
                    count["rowsFinished"] += 1
                    continue
                count["rowsPad" if kind == "pad" else "rowsUseful"] += 1
                launches = 2 if len(row.input_kinds) > 1 else launches
                below = grid[row.row][: row.slots[place] + 1]
                if kind == "pad":
                    count["slotsPadQuery"] += len(below)
                    continue
                seen = sum(cell.state in VISIBLE_STATES or cell.state == "draft" for cell in below)
                count["slotsUseful"] += seen
                count["slotsDead"] += len(below) - seen
        for name in ("slotsUseful", "slotsDead", "slotsPadQuery"):
            count[name] *= launches
        count["holes"] = sum(cell.state == "hole" for row in after for cell in row)
        steps.append(count)
    return steps


@pytest.mark.parametrize("seed", range(3))
def test_counters_are_sums_over_rows_and_cells(seed):
    for number in range(20):
        trace = random_trace(number, seed + 50)
        counters = pane_of(trace)["counters"]
        totals = dict.fromkeys(COUNTERS[:6], 0)
        assert all(column[0] == 0 for name, column in counters.items() if name != "promptPads")
        assert counters["promptPads"] == [sum(cell.state == "pad" for row in cells_at(trace, 0) for cell in row)] * len(
            trace.steps
        )
        for index, count in enumerate(count_by_cells(trace), 1):
            for name in totals:
                totals[name] += count[name]
                assert counters[name][index] == totals[name], name
            assert counters["holes"][index] == count["holes"]
        starts = [step.next_slot for step in trace.steps[0].rows]
        held = [sum(row.next_slot for row in step.rows) - sum(starts) for step in trace.steps]
        assert counters["slotsHeld"] == held


def test_counters_end_at_the_summary():
    for number in range(10):
        trace = random_trace(number, 77)
        last = {name: column[-1] for name, column in pane_of(trace, time=measured("here"))["counters"].items()}
        summary = trace.summary()
        assert [last["rowsUseful"], last["rowsPad"], last["rowsFinished"]] == list(summary["input_rows"].values())
        assert (last["holes"], last["slotsHeld"]) == (summary["holes"], summary["slots_advanced"])
        assert last["ms"] == pytest.approx(1000 * summary["seconds"]["total"])


# --- against the baseline ------------------------------------------------------------------------------------------


def test_speed_up_counts_the_baseline_until_it_has_as_many_tokens():
    slow, method = Clock([0, 2, 4, 6, 8], [0, 1.0, 2.0, 3.0, 4.0]), Clock([0, 3, 8, 9], [0, 0.5, 2.0, 3.0])
    assert speed_ups(slow, method) == [None, 4.0, 2.0, None]


def test_speed_up_at_the_end_is_the_ratio_of_decode_times():
    greedy, other = baseline(), figure2("ems-sd")
    longer = deepcopy(greedy)
    for step in longer.steps:
        step.seconds["total"] *= 3
    assert speed_ups(clock(longer.steps), clock(greedy.steps))[-1] == pytest.approx(3)
    pane = pane_of(other, greedy, time=measured("a CPU: 2 threads, float32"))
    seconds = [sum(step.seconds["total"] for step in steps) for steps in (greedy.steps[1:8], other.steps[1:])]
    assert pane["speed"][-1] == pytest.approx(seconds[0] / seconds[1], rel=1e-3)
    assert pane["baseline"] == "vs greedy, measured on a CPU: 2 threads, float32"


@pytest.mark.parametrize(
    ("left", "right", "complete", "shared", "first"),
    [
        ([[1, 2], [3]], [[1, 2], [3]], True, 3, None),
        ([[1, 2], [3, 4]], [[1, 9], [3, 9]], True, 2, (0, 2)),
        ([[1, 2], [9, 4]], [[1, 3], [3, 4]], True, 1, (1, 1)),
        ([[1, 2]], [[1]], True, 1, (0, 2)),
        ([[1, 2]], [[1]], False, 1, None),
    ],
)
def test_equality_names_the_first_difference(left, right, complete, shared, first):
    equality = compare_outputs(left, right, complete)
    assert (equality.shared, equality.identical) == (shared, first is None)
    if first:
        assert (equality.row, equality.token) == first
        assert equality.sentence() == f"Output differs from greedy: first at row {first[0]}, new token {first[1]}"
    elif complete:
        assert equality.sentence() == "Output identical to greedy, 3 of 3 tokens"
    else:
        assert equality.sentence() == "Identical to greedy so far, 1 of 1 shared tokens"


def common(left: list[int], right: list[int]) -> int:
    same = [one == two for one, two in zip(left, right, strict=False)]
    return same.index(False) if False in same else len(same)


def emitted_by(trace: GenerationTrace, num_steps: int) -> list[list[int]]:
    outputs: list[list[int]] = [[] for _ in trace.rows]
    for step in trace.steps[:num_steps]:
        for row in step.rows:
            outputs[row.row] += row.emitted_token_ids
    return outputs


def test_agreement_follows_the_outputs_step_by_step():
    """Against a baseline whose output was changed in one token, cut, or lengthened."""
    draw, differing = Random(4), 0
    for number in range(60):
        trace = random_trace(number, 90)
        right = deepcopy(trace)
        change = draw.choice(("none", "token", "cut", "longer"))
        output = right.rows[draw.randrange(len(right.rows))].output_token_ids
        if change == "token":
            output[draw.randrange(len(output))] += 1
        elif change == "cut":
            del output[len(output) // 2 + 1 :]
        elif change == "longer":
            output.append(1)
        counts, first = agreement(right, trace)
        outputs = [emitted_by(trace, index + 1) for index in range(len(trace.steps))]
        wanted = [
            sum(common(own, row.output_token_ids) for own, row in zip(rows, right.rows, strict=True))
            for rows in outputs
        ]
        assert counts == wanted
        places = [common(o.output_token_ids, t.output_token_ids) for o, t in zip(right.rows, trace.rows, strict=True)]
        out = []
        for row, (other, own) in enumerate(zip(right.rows, trace.rows, strict=True)):
            lengths = [places[row] < len(each.output_token_ids) or each.finish_reason for each in (other, own)]
            if other.output_token_ids != own.output_token_ids and all(lengths):
                out.append(row)
        assert (first is not None) == bool(out)
        if first:
            assert (first.row, first.token) == (out[0], places[out[0]] + 1)
            before = outputs[first.step - 1][first.row] if first.step else []
            ended = trace.steps[first.step].rows[first.row].finished
            assert len(before) < first.token
            assert len(outputs[first.step][first.row]) >= first.token or ended
            assert pane_of(trace, replace_method(right))["differs"] == vars(first)
            differing += 1
    assert differing > 15


def replace_method(trace: GenerationTrace) -> GenerationTrace:
    trace.method = "the baseline of a test"
    return trace


def test_the_earliest_step_counts_as_first():
    trace = invented_trace("ems-sd", [[1, 2], [3]], 12, 4, seed=6)
    right = deepcopy(trace)
    right.method = "greedy"
    late = len(right.rows[0].output_token_ids) - 1
    right.rows[0].output_token_ids[late] += 1
    right.rows[1].output_token_ids[0] += 1
    assert pane_of(trace, right)["differs"] == {"row": 1, "token": 1, "step": 0}


# --- limits --------------------------------------------------------------------------------------------------------


def large_batch(rows: int, steps: int, vocab: int = 5000) -> GenerationTrace:
    prompts = random_prompts(Random(rows), rows, 40, vocab)
    return invented_trace("vanilla", prompts, 8 * steps, 7, 12, steps, vocab=vocab, hit_chance=0.85, accept_chance=0.8)


def size(data: dict[str, Any]) -> int:
    return len(json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode())


def test_sixteen_rows_are_shown_and_all_are_counted():
    trace = large_batch(20, 6)
    data = data_of(trace)
    pane = data["panes"][0]
    assert (len(data["rows"]), data["totalRows"]) == (MAX_ROWS, 20)
    assert data["notices"] == ["Showing 16 of 20 rows. Counters are those of all rows."]
    assert {len(step) for step in pane["steps"]} == {len(pane["prompts"])} == {MAX_ROWS}
    summary = trace.summary()
    assert pane["counters"]["rowsUseful"][-1] == summary["input_rows"]["useful"]
    assert "20 × 8 = " in "".join(text for text, _ in pane["narration"][1][1])
    assert data_of(large_batch(16, 3))["notices"] == []


def test_a_full_pane_fits():
    """16 rows, 500 steps, up to 7 drafts in a row and step."""
    trace = large_batch(16, 499)
    trace.tokens = {str(token): f" token{token}" for token in range(5000)}
    data = data_of(trace)
    assert (len(data["rows"]), len(data["panes"][0]["steps"])) == (16, 500)
    assert size(data) <= MAX_BYTES
    assert max(row.num_drafted for row in trace.live_rows()) == 7
    assert too_large(trace) is None


def test_what_does_not_fit_is_cut_to_fewer_rows_with_a_notice():
    trace = large_batch(16, 499)
    panes = [Pane(trace, "vanilla"), Pane(deepcopy(trace), "vanilla")]
    data = player_data(panes, ["a"] * 16)
    rows = len(data["rows"])
    assert 4 <= rows < 16
    assert 0.8 * MAX_BYTES < size(data) <= MAX_BYTES
    assert data["notices"] == [
        f"Showing {rows} of 16 rows: more would make the page slow. Counters are those of all rows."
    ]
    assert {len(step) for pane in data["panes"] for step in pane["steps"]} == {rows}
    used = {word for pane in data["panes"] for step in pane["steps"] for flat in step for word in flat[14 + flat[13] :]}
    used |= {word for pane in data["panes"] for row in pane["prompts"] for word in row}
    assert used == set(range(len(data["words"])))


def test_one_row_that_does_not_fit_is_refused():
    trace = large_batch(1, 30)
    trace.tokens = {str(token): "\U0010fff0" * 200 for token in range(5000)}
    assert too_large(trace) is None
    long = deepcopy(trace)
    long.rows[0].prompt_token_ids = list(range(3000))
    with pytest.raises(TraceError, match="One row alone is more than 2 MB"):
        data_of(long)
    assert size(data_of(trace)) <= MAX_BYTES


def test_too_many_steps_or_slots_are_one_sentence():
    trace = large_batch(2, 30)
    assert too_large(trace) is None
    trace.steps = trace.steps * 20
    assert (
        too_large(trace)
        == f"Summary view: more than {MAX_STEPS} steps. Totals and texts of all {len(trace.steps)} are shown."
    )
    long = invented_trace("ems-sd", [[1] * MAX_SLOTS], 3, 0, 1)
    assert too_large(long).startswith(f"Summary view: more than {MAX_SLOTS} slots in a row. ")


# --- the rest ------------------------------------------------------------------------------------------------------


def test_panes_share_words_and_say_their_layout():
    panes = [Pane(figure2(method), method, baseline()) for method in METHODS5]
    data = player_data(
        panes, ["a", "b\nc"], group="figure2", link={"preset": "figure2"}, start=Start(2, "verify", "1.7")
    )
    assert [pane["method"] for pane in data["panes"]] == list(METHODS5)
    assert [pane["shared"] for pane in data["panes"]] == [True, True, True, False, False]
    assert [pane["packed"] for pane in data["panes"]] == [False, False, True, False, True]
    assert [pane["isBaseline"] for pane in data["panes"]] == [True, False, False, False, False]
    assert len(set(data["ids"])) == len(data["ids"]) == len(data["words"])
    assert data["rows"] == ["a", visible("b\nc")]
    assert (data["group"], data["link"], data["start"]) == (
        "figure2",
        {"preset": "figure2"},
        {"step": 2, "sub": "verify", "pin": "1.7"},
    )
    assert data["bytesPerSlot"] == kv_bytes_per_slot(figure2("vanilla").model)
    assert data["time"]["kind"] == "modelled"
    assert data["time"]["label"] == "Modelled time"
    assert data["time"]["fixed"]
    assert data["time"]["help"].startswith("One fixed cost model for every trace")
    assert "name the GPU" in data["time"]["help"]
    for pane in data["panes"]:
        assert [len(step) for step in pane["narration"]] == [1] + [len(SUBSTEPS)] * (len(pane["steps"]) - 1)
        assert tuple(pane["code"]) == SUBSTEPS
        assert all(code["active"] for code in pane["code"].values())


def test_the_id_follows_the_content():
    one, two = data_of(figure2("vanilla")), data_of(figure2("vanilla"))
    assert one["id"] == two["id"]
    assert len({one["id"], data_of(figure2("ems-sd"))["id"], data_of(figure2("vanilla"), group="x")["id"]}) == 3


@pytest.mark.parametrize(
    ("start", "shown"),
    [
        (None, (1, "draft")),
        (Start(9, "commit"), (2, "commit")),
        (Start(-3, "verify"), (0, "commit")),
        (Start(0, "draft"), (0, "commit")),
        (Start(1, "rollback"), (1, "draft")),
    ],
)
def test_a_start_outside_the_trace_is_moved_into_it(start, shown):
    data = data_of(figure2("vanilla"), start=start)
    assert (data["start"]["step"], data["start"]["sub"]) == shown


def test_measured_time_says_where():
    data = data_of(figure2("vanilla"), time=measured("a CPU: 2 threads, float32"))
    assert data["time"]["label"] == "Measured time"
    assert data["time"]["where"] == "a CPU: 2 threads, float32"
    assert "Not comparable with the paper’s GPU numbers." in data["time"]["help"]
    assert "odelled" not in json.dumps({**data["time"], "baseline": data["panes"][0]["baseline"]})


def test_the_targets_best_few_tokens_go_over_where_they_were_recorded():
    trace = deepcopy(figure2("ems-sd"))
    row = trace.steps[2].rows[0]
    row.top_token_ids = [[token, (token + 1) % 97] for token in row.emitted_token_ids]
    row.top_logit_gaps = [[0, 0.25], [0, 1.5]]
    data = data_of(trace)
    tops = data["panes"][0]["tops"]
    assert list(tops) == ["2.0"]
    named = [[[data["ids"][word], gap] for word, gap in best] for best in tops["2.0"]]
    assert named == [
        [[token, 0], [(token + 1) % 97, gap]] for token, gap in zip(row.emitted_token_ids, (0.25, 1.5), strict=True)
    ]


@pytest.mark.parametrize("text", HOSTILE)
def test_token_text_and_titles_are_made_visible(text):
    trace = deepcopy(figure2("ems-sd"))
    trace.tokens = {str(token): text for token in range(97)}
    trace.model["name"] = text
    data = player_data([Pane(trace, "ems-sd")], [text] * 2)
    said = "".join(piece for step in data["panes"][0]["narration"] for sub in step for piece, _ in sub)
    shown = "".join(data["words"]) + "".join(data["rows"]) + data["model"] + said
    assert not re.search("[\x00-\x1f\u202a-\u202e\u2066-\u2069\ue000]", shown)
    assert max(map(len, data["words"])) <= 1 + 6 * 200
    json.dumps(data, allow_nan=False)


def test_samples_for_the_browser_hold_all_that_can_happen():
    """The cells that the browser's copy of the rules is tested with: every method, state and cause."""
    states, causes, methods, subs = set(), set(), set(), set()
    for sample in cell_samples(40, 1):
        pane = sample["data"]["panes"][0]
        methods.add(pane["method"])
        assert len(sample["cells"]) == len(pane["steps"])
        for step in sample["cells"]:
            subs.add(len(step))
            for cell in (cell for grid in step for row in grid for cell in row):
                states.add(cell[0])
                causes.add(cell[4])
    assert (states, causes, subs) == (set(range(11)), set(range(4)), {1, 6})
    assert methods == set(SAMPLE_METHODS)
