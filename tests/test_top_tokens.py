"""The target's best few tokens at each judged position: the right ones, nothing else changes, damage is refused."""

from __future__ import annotations

import copy
import json
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch

from emssd import SpeculativeConfig, generate
from emssd.errors import ConfigError, TraceError
from emssd.replaying import replay
from emssd.trace import OPTIONAL_ROW_FIELDS, GenerationTrace
from emssd.trace_diff import compare_traces
from emssd.verification import GAP_DIGITS, top_tokens
from tests.helpers import ALL_METHODS, VOCAB, batch, greedy, language_model, plain_logits, script


@cache
def decoded(method: str, num_top_tokens: int, dtype: torch.dtype = torch.float32) -> str:
    """A run with pads, holes, an end inside an accepted block and finished rows, as JSON text."""
    lm = language_model("random-llama", dtype)
    prompts = batch(lm, [5, 3, 2], 14)
    outputs = [greedy(lm, prompt, 14) for prompt in prompts]
    eos = next(token for token in outputs[2][3:9] if token not in outputs[0][:9] + outputs[1][:9])
    config = SpeculativeConfig.for_method(
        method, max_new_tokens=9, eos_token_ids=eos, num_draft_tokens=3, num_top_tokens=num_top_tokens
    )
    return generate(lm, prompts, config, script(outputs, [[2, 1, 3], [0, 0, 2], [3, 3, 3]], VOCAB, 3)).to_json()


def trace_of(method: str, num_top_tokens: int, dtype: torch.dtype = torch.float32) -> GenerationTrace:
    return GenerationTrace.from_json(decoded(method, num_top_tokens, dtype))


def without_tops(trace: GenerationTrace) -> GenerationTrace:
    trace.config.pop("num_top_tokens", None)
    for step in trace.steps:
        for row in step.rows:
            row.top_token_ids = row.top_logit_gaps = None
    return trace


# --- what is recorded


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("method", ALL_METHODS)
def test_they_are_the_plain_models_best_after_each_committed_token(method: str, dtype: torch.dtype) -> None:
    lm, trace = language_model("random-llama", dtype), trace_of(method, 5, dtype)
    ended_inside = 0
    for row, request in enumerate(trace.rows):
        text = list(request.prompt_token_ids)
        for step in trace.steps:
            entry = step.rows[row]
            if entry.kind == "finished":
                assert (entry.top_token_ids, entry.top_logit_gaps) == (None, None)
                continue
            judged = entry.num_accepted + 1
            if entry.num_emitted == entry.num_accepted:
                judged, ended_inside = entry.num_accepted, ended_inside + 1
            assert entry.top_token_ids is not None
            assert entry.top_logit_gaps is not None
            assert len(entry.top_token_ids) == len(entry.top_logit_gaps) == judged
            for ids, gaps, token in zip(
                entry.top_token_ids, entry.top_logit_gaps, entry.emitted_token_ids, strict=True
            ):
                values, best = plain_logits(lm, text)[-1].double().sort(descending=True)
                right = (values[0] - values[:5]).tolist()
                assert gaps == pytest.approx(right, abs=2e-4)
                if min(b - a for a, b in pairwise(right)) > 1e-3:  # no tie among the five
                    assert ids == best[:5].tolist()
                text.append(token)
    assert ended_inside or method.startswith("greedy")  # the case with one position less has occurred


@pytest.mark.parametrize("method", ALL_METHODS)
def test_nothing_else_changes(method: str) -> None:
    plain, told = decoded(method, 0), trace_of(method, 4)
    assert not any(name in plain for name in ("num_top_tokens", *OPTIONAL_ROW_FIELDS))
    assert without_tops(told) == GenerationTrace.from_json(plain)


def test_they_survive_a_round_trip_and_invariants_hold_with_them() -> None:
    text = decoded("vanilla", 8)
    assert GenerationTrace.from_json(text).to_json() == text
    lm = language_model("random-llama")
    config = SpeculativeConfig(max_new_tokens=6, num_top_tokens=2, check_invariants=True, eos_token_ids=())
    trace = generate(lm, batch(lm, [4, 7]), config)
    assert all(len(row.top_token_ids or []) == row.num_emitted for row in trace.live_rows())


def test_every_recorded_token_has_its_text() -> None:
    lm = language_model("random-llama")
    lm.tokenizer = _Letters()
    try:
        config = SpeculativeConfig(max_new_tokens=5, num_top_tokens=8, eos_token_ids=())
        trace = generate(lm, [[5, 6], [7]], config)
    finally:
        lm.tokenizer = None
    shown = {token for step in trace.steps for row in step.rows for best in row.top_token_ids or [] for token in best}
    assert len(shown) > len({token for row in trace.rows for token in row.output_token_ids})
    assert {trace.tokens[str(token)] for token in shown} == {f"<{token}>" for token in shown}


class _Letters:
    """A tokenizer that names ids by their numbers."""

    def convert_ids_to_tokens(self, token: int) -> str:
        return f"<{token}>"

    def decode(self, ids: list[int], **settings: Any) -> str:
        return "".join(f"<{token}>" for token in ids)


def test_traces_with_and_without_them_compare_as_the_same_run_and_replay() -> None:
    plain, told = trace_of("ems-sd", 0), trace_of("ems-sd", 4)
    comparison = compare_traces(plain, told)
    assert comparison.same
    assert [str(field) for field in comparison.settings] == ["config.num_top_tokens: None | 4"]
    row = told.steps[1].rows[0]
    row.top_logit_gaps = [[gap + 0.0001 if gap else gap for gap in gaps] for gaps in row.top_logit_gaps or []]
    again, comparison = replay(language_model("random-llama"), told, lambda name: language_model(name))
    assert comparison.same
    assert [field.field for field in comparison.settings] == ["drafter.proposals"]
    assert again.steps[1].rows[0].top_token_ids == row.top_token_ids


# --- the function


def test_among_equal_logits_the_targets_choice_is_first() -> None:
    logits = torch.zeros(3, 6)
    logits[2, 4] = 1.0
    found = top_tokens(logits, torch.tensor([5, 0, 4]), [2, 0, 1], 3)
    assert [len(row) for row in found.token_ids] == [2, 0, 1]
    assert [found.token_ids[0][0][0], found.token_ids[0][1][0], found.token_ids[2][0][0]] == [5, 0, 4]
    assert all(len(set(ids)) == 3 for row in found.token_ids for ids in row)
    assert found.logit_gaps == [[[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], [], [[0.0, 1.0, 1.0]]]


def test_small_vocabularies_low_precision_and_forbidden_tokens() -> None:
    logits = torch.tensor([[0.5, 2.0, float("-inf")]], dtype=torch.bfloat16)
    found = top_tokens(logits, torch.tensor([1]), [1], 8)
    assert found.token_ids == [[[1, 0, 2]]]
    assert found.logit_gaps[0][0][:2] == [0.0, 1.5]
    assert 1e30 < found.logit_gaps[0][0][2] < float("inf")  # JSON has no infinity


def test_gaps_are_rounded() -> None:
    found = top_tokens(torch.tensor([[1.0, 0.123456789]]), torch.tensor([0]), [1], 2)
    assert found.logit_gaps == [[[0.0, round(1 - 0.123456789, GAP_DIGITS)]]]


# --- settings and reading


@pytest.mark.parametrize("value", [-1, 9, 1.0, True, "four", None])
def test_a_bad_number_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="num_top_tokens must be") as caught:
        SpeculativeConfig(num_top_tokens=value)
    assert "\n" not in str(caught.value)


def bad(change: Any) -> dict[str, Any]:
    """A recorded run whose first row of the first decode step (3 judged positions) is damaged."""
    data = copy.deepcopy(json.loads(decoded("vanilla", 3)))
    change(data["steps"][1]["rows"][0])
    return data


def put(name: str, value: Any) -> Any:
    return lambda row: row.__setitem__(name, value)


def swap(row: dict[str, Any]) -> None:
    first = row["top_token_ids"][0]
    first[0], first[1] = first[1], first[0]


DAMAGE = [
    (lambda row: row.pop("top_token_ids"), "top_token_ids is missing"),
    (lambda row: row.pop("top_logit_gaps"), "top_logit_gaps is missing"),
    (put("top_token_ids", 3), "top_token_ids must be lists of whole numbers"),
    (put("top_token_ids", [1, 2, 3]), "top_token_ids must be lists of whole numbers"),
    (put("top_token_ids", [["a"]]), "top_token_ids must be lists of whole numbers"),
    (put("top_logit_gaps", [[0, -1]]), "top_logit_gaps must be lists of numbers"),
    (put("top_logit_gaps", [[0, None]]), "top_logit_gaps must be lists of numbers"),
    (lambda row: row["top_token_ids"].pop(), "top_token_ids is 2 positions"),
    (lambda row: row["top_logit_gaps"].append([0, 1, 2]), "top_logit_gaps is 4 positions"),
    (lambda row: row["top_token_ids"][1].clear(), "top_token_ids[1] must hold 1 to 3 different ids"),
    (lambda row: row["top_token_ids"][1].append(96), "top_token_ids[1] must hold 1 to 3 different ids"),
    (lambda row: row["top_token_ids"][2].__setitem__(2, VOCAB), "top_token_ids[2] holds the id 97"),
    (lambda row: row["top_token_ids"][2].__setitem__(2, row["top_token_ids"][2][1]), "top_token_ids[2] must hold"),
    (swap, "top_token_ids[0][0] is"),
    (lambda row: row["top_logit_gaps"][1].pop(), "top_logit_gaps[1] must hold 3 numbers that rise from 0"),
    (lambda row: row["top_logit_gaps"][1].__setitem__(0, 0.1), "top_logit_gaps[1] must hold 3 numbers"),
    (lambda row: row["top_logit_gaps"][1].__setitem__(1, 1e6), "top_logit_gaps[1] must hold 3 numbers"),
]


@pytest.mark.parametrize(("change", "words"), DAMAGE, ids=[words for _, words in DAMAGE])
def test_damage_is_refused_by_the_field(change: Any, words: str) -> None:
    with pytest.raises(TraceError) as caught:
        GenerationTrace.from_json(json.dumps(bad(change)))
    assert f"steps[1].rows[0].{words}" in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_trace_that_says_it_has_none_may_hold_none() -> None:
    data = json.loads(decoded("vanilla", 3))
    del data["config"]["num_top_tokens"]
    with pytest.raises(TraceError, match=r"top_token_ids\[0\] .* config.num_top_tokens"):
        GenerationTrace.from_json(json.dumps(data))
    for step in data["steps"]:
        for row in step["rows"]:
            row.pop("top_token_ids", None)
            row.pop("top_logit_gaps", None)
    assert GenerationTrace.from_json(json.dumps(data)) == trace_of("vanilla", 0)
