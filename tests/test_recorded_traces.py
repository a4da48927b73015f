"""The recorded sets: readable, token-identical, each makes its point, and the code still does what they show."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from emssd.config import SPECULATIVE_METHODS
from emssd.draft_scripts import read_proposals
from emssd.errors import EmssdError
from emssd.language_model import LanguageModel
from emssd.loading import load_model
from emssd.prompts import read_prompts
from emssd.replaying import replay
from emssd.trace import GenerationTrace

ASSETS = Path(__file__).resolve().parent.parent / "assets"
TRACES, PROMPTS = ASSETS / "traces", ASSETS / "prompts" / "presets"
METHODS = ("greedy", *SPECULATIVE_METHODS)
SETS = ("figure2", "copy-rich", "no-copy", "slow-row", "all-accepted", "early-finisher")
EACH = [(name, method) for name in SETS for method in METHODS]


@cache
def presets() -> dict[str, dict[str, Any]]:
    entries = json.loads((TRACES / "index.json").read_text(encoding="utf-8"))["presets"]
    return {entry["name"]: entry for entry in entries}


@cache
def recorded(name: str, method: str) -> GenerationTrace:
    """One recorded trace; not to be changed."""
    return GenerationTrace.from_json(TRACES / name / f"{method}.json")


def holes_by_row(trace: GenerationTrace) -> list[int]:
    return [sum(len(step.rows[row].holes_added) for step in trace.steps) for row in range(len(trace.rows))]


def last_steps(trace: GenerationTrace) -> list[int]:
    """[rows] the step after which the row has ended."""
    return [next(step.index for step in trace.steps if step.rows[row].finished) for row in range(len(trace.rows))]


# --- files


def test_the_index_names_every_set_in_the_menus_order() -> None:
    assert tuple(presets()) == SETS
    for name, entry in presets().items():
        assert sorted(entry) == ["methods", "name", "note", "title", "titles", "where"]
        assert tuple(entry["methods"]) == METHODS
        assert {path.name for path in (TRACES / name).iterdir()} == {f"{method}.json" for method in METHODS}
        assert entry["title"].endswith(f" · {len(entry['titles'])} rows")
        assert all(0 < len(title) <= 24 for title in entry["titles"])
        assert len(set(entry["titles"])) == len(entry["titles"])
        assert 0 < entry["note"].count(". ") + entry["note"].endswith(".") <= 2
        assert entry["where"] == "a CPU: 2 threads, float32"


def test_they_are_small() -> None:
    sizes = {f"{name}/{method}": (TRACES / name / f"{method}.json").stat().st_size for name, method in EACH}
    assert max(sizes.values()) <= 250_000, sizes
    assert sum(sizes.values()) <= 3_000_000


@pytest.mark.parametrize(("name", "method"), EACH)
def test_each_is_valid_and_complete(name: str, method: str) -> None:
    trace = recorded(name, method)
    lines = (PROMPTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    assert trace.method == method
    assert (trace.model["name"], trace.model["dtype"], trace.model["device"]) == ("smollm2-135m", "float32", "cpu")
    assert [entry["title"] for entry in entries] == presets()[name]["titles"]
    for entry, row in zip(entries, trace.rows, strict=True):
        assert sorted(entry) == ["id", "prompt", "title"]
        assert row.prompt_text is not None
        assert entry["prompt"] in row.prompt_text
        assert (row.prompt_text == entry["prompt"]) == (name != "early-finisher")  # that one uses the chat template
    assert trace.finished or (name, trace.method != "greedy") == ("figure2", True)
    shown = {
        token for step in trace.steps for row in step.rows for token in (*row.input_token_ids, *row.target_token_ids)
    }
    for step in trace.steps:
        for row in step.rows:
            assert len(row.top_token_ids or []) == row.num_emitted
            assert all(len(best) == 4 for best in row.top_token_ids or [])
            shown |= {token for best in row.top_token_ids or [] for token in best}
    assert all(trace.tokens[str(token)] for token in shown)


@pytest.mark.parametrize("name", SETS)
def test_all_methods_emit_the_same_tokens(name: str) -> None:
    baseline = recorded(name, "greedy")
    for method in SPECULATIVE_METHODS:
        trace = recorded(name, method)
        assert [row.prompt_token_ids for row in trace.rows] == [row.prompt_token_ids for row in baseline.rows]
        for ours, theirs in zip(trace.rows, baseline.rows, strict=True):
            length = len(ours.output_token_ids) if ours.finish_reason is None else None
            assert ours.output_token_ids == theirs.output_token_ids[:length]
            assert ours.finish_reason in (None, theirs.finish_reason)


# --- the point of each set


def test_figure2_is_the_papers_example() -> None:
    lengths = [len(row.prompt_token_ids) for row in recorded("figure2", "greedy").rows]
    assert lengths == [5, 3]
    assert len(recorded("figure2", "greedy").decode_steps) >= 7
    golden = {  # method: input rows, slots advanced, holes, prompt pads, next slots, scanned per token and varlen
        "vanilla": (24, 20, 7, [(9, 9), (15, 15)], (144, 18, 18, 72), (39, 4, 3, 6)),
        "packed-input": (18, 20, 7, [(9, 9), (15, 15)], (144, 18, 18, 0), (39, 4, 3, 0)),
        "ragged-cache": (24, 13, 0, [(9, 4), (11, 10)], None, None),
        "ems-sd": (18, 13, 0, [(9, 4), (11, 10)], (144, 0, 0, 0), (39, 0, 0, 0)),
    }
    for method, (fed, advanced, holes, cursors, per_token, varlen) in golden.items():
        trace = recorded("figure2", method)
        totals = trace.summary()
        assert totals["steps"] == 2
        assert totals["tokens"] == 15
        first, second = trace.decode_steps
        assert [(row.num_drafted, row.num_accepted) for row in first.rows] == [(5, 3), (2, 0)]
        assert [(row.num_drafted, row.num_accepted) for row in second.rows] == [(2, 1), (5, 5)]
        assert [tuple(row.next_slot for row in step.rows) for step in (first, second)] == cursors
        assert sum(totals["input_rows"].values()) == fed
        assert totals["slots_advanced"] == advanced
        assert totals["holes"] == holes
        if per_token and varlen:
            scanned = totals["kv_slots_scanned"]
            assert (
                tuple(scanned["per_token"][kind] for kind in ("useful", "prompt_pad", "hole", "pad_query")) == per_token
            )
            assert tuple(scanned["varlen"][kind] for kind in ("useful", "prompt_pad", "hole", "pad_query")) == varlen


def test_figure2_is_fed_its_script_of_readable_words() -> None:
    proposals = read_proposals(str(PROMPTS / "figure2-proposals.json"))
    trace = recorded("figure2", "ems-sd")
    fed = [[step.rows[row].draft_token_ids for step in trace.decode_steps] for row in range(2)]
    assert fed == proposals
    read = [token for row in trace.rows for token in (*row.prompt_token_ids, *row.output_token_ids)]
    words = [trace.tokens[str(token)] for token in [*read, *(t for row in proposals for ids in row for t in ids)]]
    assert all(word.strip() and word.isprintable() and word.isascii() for word in words)
    for row, step, place in ((0, 0, 3), (1, 0, 0), (0, 1, 1)):  # rejected, though among the target's best four
        entry = trace.decode_steps[step].rows[row]
        assert place == entry.num_accepted
        assert entry.top_token_ids is not None
        assert proposals[row][step][place] in entry.top_token_ids[place][1:]


def test_copy_rich_rows_keep_different_numbers_of_drafts() -> None:
    vanilla, ours = recorded("copy-rich", "vanilla"), recorded("copy-rich", "ems-sd")
    assert len(vanilla.rows) == 8
    assert vanilla.config["num_draft_tokens"] == 7
    assert ours.summary()["mean_acceptance_length"] > 4
    for step in vanilla.decode_steps[:7]:
        assert len({row.num_emitted for row in step.rows}) >= 2
        assert sum(bool(row.holes_added) for row in step.rows) >= 1
    assert min(holes_by_row(vanilla)) > 0
    assert ours.summary()["holes"] == 0
    fed = {trace.method: sum(trace.summary()["input_rows"].values()) for trace in (vanilla, ours)}
    assert fed["vanilla"] > 1.5 * fed["ems-sd"]


def test_no_copy_gains_next_to_nothing_by_drafting() -> None:
    trace, baseline = recorded("no-copy", "ems-sd"), recorded("no-copy", "greedy")
    totals = trace.summary()
    assert totals["drafted"] > 0
    assert totals["acceptance_rate"] < 0.05
    assert totals["mean_acceptance_length"] < 1.02
    assert totals["steps"] >= baseline.summary()["steps"] - 1


def test_slow_row_collects_the_holes() -> None:
    vanilla = recorded("slow-row", "vanilla")
    holes, ends = holes_by_row(vanilla), last_steps(vanilla)
    slow = presets()["slow-row"]["titles"].index("Storm in the forest")
    assert holes[slow] > 2 * sum(count for row, count in enumerate(holes) if row != slow)
    assert all(ends[slow] > 3 * end for row, end in enumerate(ends) if row != slow)
    rates = [sum(step.rows[row].num_emitted for step in vanilla.decode_steps) / end for row, end in enumerate(ends)]
    assert rates[slow] < 1.1
    assert min(rate for row, rate in enumerate(rates) if row != slow) > 5
    after = vanilla.decode_steps[max(end for row, end in enumerate(ends) if row != slow) :]
    assert after
    assert all(step.account.kv_slots_scanned["varlen"]["hole"] >= holes[slow] for step in after)


def test_all_accepted_keeps_every_draft_in_every_step() -> None:
    for method in SPECULATIVE_METHODS:
        trace = recorded("all-accepted", method)
        assert trace.drafter["name"] == "prompt-lookup"
        assert trace.summary()["acceptance_rate"] == 1.0
        assert {(row.num_drafted, row.num_accepted, row.num_emitted) for row in trace.live_rows()} == {(4, 4, 5)}
        assert trace.summary()["holes"] == 0
        assert {kind: trace.summary()["input_rows"][kind] for kind in ("pad", "finished")} == {"pad": 0, "finished": 0}
    assert recorded("all-accepted", "vanilla").summary()["kv_slots_scanned"]["varlen"]["prompt_pad"] > 0


def test_early_finisher_is_fed_on_by_vanilla() -> None:
    vanilla, ours = recorded("early-finisher", "vanilla"), recorded("early-finisher", "ems-sd")
    ends = last_steps(vanilla)
    assert vanilla.rows[0].finish_reason == "eos"
    assert all(end >= ends[0] + 5 for end in ends[1:])
    for step in vanilla.decode_steps:
        assert step.rows[0].input_token_ids
        assert (step.rows[0].kind == "finished") == (step.index > ends[0])
        assert (step.account.input_rows["finished"] > 0) == (step.index > ends[0])
    assert ours.summary()["input_rows"]["finished"] == 0


# --- they still match the code


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    try:
        return load_model("smollm2-135m", device="cpu", dtype="float32")
    except EmssdError as error:
        pytest.skip(f"the embedded model cannot be loaded: {error}")


REPLAYED = [
    (name, method) for name in SETS for method in METHODS if name == "figure2" or method in ("vanilla", "ems-sd")
]


@pytest.mark.parametrize(("name", "method"), REPLAYED)
def test_the_code_still_does_what_they_show(lm: LanguageModel, name: str, method: str) -> None:
    trace = recorded(name, method)
    again, comparison = replay(lm, trace, lambda draft: lm)
    assert comparison.same, str(comparison.first)
    assert again.rows == trace.rows
    for old, new in zip(trace.steps, again.steps, strict=True):
        for row, other in zip(old.rows, new.rows, strict=True):
            for gaps, others in zip(row.top_logit_gaps or [], other.top_logit_gaps or [], strict=True):
                assert gaps == pytest.approx(others, abs=1e-2)


def test_prompts_are_the_ones_in_the_files(lm: LanguageModel) -> None:
    for name in SETS:
        prompts = read_prompts(PROMPTS / f"{name}.jsonl")
        ids = [lm.encode(prompt, chat=name == "early-finisher") for prompt in prompts]
        assert [row.prompt_token_ids for row in recorded(name, "greedy").rows] == ids
