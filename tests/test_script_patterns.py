"""Every way in which three rows can accept 0 to 3 of 3 drafts, for every method: outputs stay those of plain decoding.

A run has three full rounds. Row i accepts a_i, a_j, a_k in turn (j and k the next rows, cyclically), so every pattern
of a round meets a cache that other patterns have made ragged, and all rows have gained equally much in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest

from emssd.config import SpeculativeConfig
from emssd.loading import LanguageModel
from emssd.trace import GenerationTrace
from tests.helpers import METHODS5, SPECULATIVE, accepted_counts, assert_lossless, batch, greedy, language_model, script

K = 3
ROUNDS = 3
PROMPT_LENGTHS = (2, 9, 6)  # around the window of 8
ARCHITECTURES = ("random-opt", "random-llama", "random-gemma2")
PATTERNS = list(product(range(K + 1), repeat=3))
CHECKED = 8  # every eighth pattern also runs with check_invariants


def rounds(pattern: Sequence[int]) -> list[list[int]]:
    """[rows][rounds] drafts to accept: the pattern, rotated from round to round; then whatever is left is right."""
    return [[*(pattern[(row + turn) % 3] for turn in range(ROUNDS)), K] for row in range(3)]


def run_pattern(lm: LanguageModel, method: str, pattern: Sequence[int], check_invariants: bool) -> GenerationTrace:
    """One run, compared with plain decoding; then accepted drafts, cache lengths and holes by closed forms."""
    prompts = batch(lm, PROMPT_LENGTHS)
    gained = 1 + sum(pattern) + ROUNDS  # by each row after prefill and the full rounds
    tail = K  # leaves room for K drafts in the last full round; the last round drafts tail - 1
    config = SpeculativeConfig.for_method(
        method, num_draft_tokens=K, max_new_tokens=gained + tail, check_invariants=check_invariants
    )
    outputs = [greedy(lm, prompt, gained + tail) for prompt in prompts]
    trace = assert_lossless(lm, prompts, config, script(outputs, rounds(pattern), lm.vocab_size, K), outputs)
    where = f"{lm.name}, {method}, pattern {pattern}"
    if method == "greedy":
        assert len(trace.decode_steps) == gained + tail - 1, where
        return trace

    wanted = [[*rounds(pattern)[row][:ROUNDS], tail - 1] for row in range(3)]
    assert accepted_counts(trace) == wanted, where
    full = trace.decode_steps[:ROUNDS]
    assert all(row.num_drafted == K for step in full for row in step.rows), where
    for number, step in enumerate(full):
        for row in step.rows:
            committed = PROMPT_LENGTHS[row.row] + 1 + sum(count + 1 for count in wanted[row.row][: number + 1])
            assert row.cache_len == committed - 1, where
    holes = ROUNDS * max(pattern) - sum(pattern) if config.cache_layout == "padded" else 0
    assert [sum(len(step.rows[row].holes_added) for step in trace.steps) for row in range(3)] == [holes] * 3, where
    return trace


@pytest.mark.parametrize("first", range(K + 1))
@pytest.mark.parametrize("method", METHODS5)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_pattern_of_acceptance_is_lossless(architecture: str, method: str, first: int) -> None:
    lm = language_model(architecture)
    for number, pattern in enumerate(PATTERNS):
        if pattern[0] == first:
            run_pattern(lm, method, pattern, check_invariants=number % CHECKED == first)


@pytest.mark.parametrize("method", SPECULATIVE)
def test_right_drafts_after_a_spoiled_one_do_not_count(method: str) -> None:
    """Drafts right, wrong, right: one is accepted, not two."""
    lm = language_model("random-llama")
    prompts = batch(lm, PROMPT_LENGTHS)
    outputs = [greedy(lm, prompt, 20) for prompt in prompts]
    config = SpeculativeConfig.for_method(method, num_draft_tokens=K, max_new_tokens=9)
    trace = assert_lossless(lm, prompts, config, script(outputs, [[1]] * 3, lm.vocab_size, K), outputs)
    first = trace.decode_steps[0]
    for row in first.rows:
        draft, right = row.draft_token_ids, outputs[row.row][1 : 1 + K]
        assert [ours == theirs for ours, theirs in zip(draft, right, strict=True)] == [True, False, True]
        assert row.num_accepted == 1
