"""Drafters without a target: prompt lookup against a naive search, scripts, and what a trace says about them."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from emssd.config import SpeculativeConfig
from emssd.drafting import Batch, DraftRow, PromptLookupDrafter, ScriptedDrafter
from emssd.errors import ConfigError
from emssd.layouts import Row


def rows_of(prompts: list[list[int]], k: int, outputs: list[list[int]] | None = None) -> list[DraftRow]:
    outputs = outputs or [[] for _ in prompts]
    return [
        DraftRow(Row(index, len(prompt)), [*prompt, *output], k)
        for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
    ]


def start(drafter, rows):
    return drafter.start(None, rows, Batch(SpeculativeConfig(), [0] * len(rows)))


def naive_lookup(drafter: PromptLookupDrafter, prompt: list[int], output: list[int], k: int, limit: int):
    """Try every start: the key must match and k tokens must follow it inside the text that is searched."""
    size = drafter.ngram_size
    committed = prompt + output
    text = prompt if drafter.source == "prompt" else committed
    key = committed[-size:]
    found = [start for start in range(len(text)) if text[start : start + size] == key and start + size + k <= len(text)]
    if limit <= 0 or len(committed) < size or not found:
        return None, []
    begin = (found[-1] if drafter.match == "last" else found[0]) + size
    return begin, text[begin : begin + min(k, limit)]


@pytest.mark.parametrize(
    ("size", "source", "match"), list(product([1, 2, 3], ["prompt", "context"], ["last", "first"]))
)
def test_prompt_lookup_equals_a_naive_search(size, source, match):
    drafter = PromptLookupDrafter(size, source, match)
    draw, hits = Random(size), 0
    for _ in range(60):
        k = draw.randint(1, 5)
        prompts = [[draw.randrange(3) for _ in range(draw.randint(1, 14))] for _ in range(3)]
        outputs = [[draw.randrange(3)] for _ in prompts]
        session = start(drafter, rows_of(prompts, k, outputs))
        for _ in range(6):
            limits = [draw.randint(0, 6) for _ in prompts]
            drafts = session.propose(rows_of(prompts, k, outputs), limits)
            for row, (prompt, output, limit) in enumerate(zip(prompts, outputs, limits, strict=True)):
                begin, tokens = naive_lookup(drafter, prompt, output, k, limit)
                assert drafts[row] == tokens, (prompt, output, k, limit)
                assert session.draft_sources.get(row) == begin
                hits += bool(tokens)
            emitted = {row: [draw.randrange(3) for _ in range(draw.randint(1, 3))] for row in range(len(prompts))}
            session.observe(emitted)
            for row, tokens in emitted.items():
                outputs[row].extend(tokens)
    assert hits > 50


def test_a_key_starts_at_most_k_plus_two_before_the_prompts_end():
    """Key starts are 0..P-K-2, so that K tokens always follow: the default drafter copies K tokens or none."""
    k = 3
    for prompt_length in range(2, 12):
        for place in range(prompt_length - 1):
            prompt = [90 + i for i in range(prompt_length)]
            prompt[place : place + 2] = [1, 2]
            rows = rows_of([prompt], k, [[1, 2]])
            draft = start(PromptLookupDrafter(), rows).propose(rows, [k])[0]
            assert (draft != []) == (place <= prompt_length - k - 2)
            assert len(draft) in (0, k)
            assert draft == (prompt[place + 2 : place + 2 + k] if draft else [])


def test_the_example_of_the_docstring():
    rows = rows_of([[7, 8, 9, 4, 5, 7, 8]], 3)
    session = start(PromptLookupDrafter(), rows)
    assert session.propose(rows, [3]) == [[9, 4, 5]]
    assert session.draft_sources == {0: 2}


def test_last_or_first_match_wins():
    prompt = [1, 2, 10, 11, 1, 2, 20, 21, 5, 5]
    rows = rows_of([prompt], 2, [[1, 2]])
    assert start(PromptLookupDrafter(match="last"), rows).propose(rows, [2]) == [[20, 21]]
    assert start(PromptLookupDrafter(match="first"), rows).propose(rows, [2]) == [[10, 11]]


def test_a_last_match_without_room_falls_back_to_an_earlier_one():
    """A key that stands too near the end never gets into the paper's table, so an earlier one is found."""
    rows = rows_of([[1, 2, 10, 11, 12, 1, 2, 20]], 3, [[1, 2]])
    assert start(PromptLookupDrafter(), rows).propose(rows, [3]) == [[10, 11, 12]]


def test_only_the_context_source_learns_from_generated_tokens():
    rows = rows_of([[9, 9]], 1, [[1, 2, 30, 1, 2]])
    assert start(PromptLookupDrafter(source="prompt"), rows).propose(rows, [1]) == [[]]
    assert start(PromptLookupDrafter(source="context"), rows).propose(rows, [1]) == [[30]]


def test_a_row_never_looks_into_another_rows_prompt():
    rows = rows_of([[1, 2, 30, 31, 4], [5, 6, 7, 8, 9]], 2, [[0], [1, 2]])
    assert start(PromptLookupDrafter(), rows).propose(rows, [2, 2]) == [[], []]


def test_the_cap_cuts_a_draft_and_does_not_change_the_match():
    rows = rows_of([[1, 2, 10, 11, 12, 9]], 3, [[1, 2]])
    session = start(PromptLookupDrafter(), rows)
    assert session.propose(rows, [2]) == [[10, 11]]
    assert session.propose(rows, [0]) == [[]]
    assert session.draft_sources == {}


def test_two_sessions_of_one_drafter_share_nothing():
    drafter = PromptLookupDrafter(source="context")
    one, two = rows_of([[1, 2, 3]], 1, [[1]]), rows_of([[4, 5, 6]], 1, [[4]])
    first, second = start(drafter, one), start(drafter, two)
    first.observe({0: [2, 7]})
    rows = rows_of([[4, 5, 6]], 1, [[1, 2]])
    assert second.propose(rows, [1]) == [[]]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ngram_size": 0}, "ngram_size"),
        ({"ngram_size": 65}, "ngram_size"),
        ({"ngram_size": 2.0}, "ngram_size"),
        ({"ngram_size": True}, "ngram_size"),
        ({"source": "output"}, "source"),
        ({"match": "best"}, "match"),
    ],
)
def test_bad_settings_are_refused_with_setting_and_value(settings, words):
    with pytest.raises(ConfigError, match=words) as caught:
        PromptLookupDrafter(**settings)
    assert repr(next(iter(settings.values()))) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_script_of_lists_is_read_by_row_and_step():
    rows = rows_of([[1], [2], [3]], 9)
    session = start(ScriptedDrafter([[[5], [6, 7], []], [[8]]]), rows)
    assert session.propose(rows, [9, 9, 9]) == [[5], [8], []]
    assert session.propose(rows, [1, 9, 9]) == [[6], [], []]
    assert session.propose(rows[:1], [9]) == [[]]
    assert session.propose(rows[:1], [9]) == [[]]


def test_script_by_function_gets_row_committed_tokens_and_step_from_one():
    calls = []

    def propose(row, committed, step):
        calls.append((row, list(committed), step))
        committed.append(99)  # must not reach the engine
        return (4, 5, 6)

    rows = rows_of([[1, 2], [3]], 9, [[7], [8, 9]])
    session = start(ScriptedDrafter(propose), rows)
    assert session.propose(rows, [2, 3]) == [[4, 5], [4, 5, 6]]
    assert session.propose(rows[1:], [3]) == [[4, 5, 6]]
    assert calls == [(0, [1, 2, 7], 1), (1, [3, 8, 9], 1), (1, [3, 8, 9], 2)]
    assert rows[0].token_ids == [1, 2, 7]


def test_drafters_describe_themselves_for_the_trace():
    assert PromptLookupDrafter(3, "context", "first").describe() == {
        "name": "prompt-lookup",
        "ngram_size": 3,
        "source": "context",
        "match": "first",
    }
    assert ScriptedDrafter([]).describe() == {"name": "scripted", "proposals": "list"}
    assert ScriptedDrafter(lambda row, ids, step: []).describe()["proposals"] == "callable"
