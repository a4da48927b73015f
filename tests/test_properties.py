"""Properties over drawn cases; a failing case is shrunk to a small one. `make soak` draws thousands."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tests.helpers import SPECULATIVE
from tests.properties import (
    EngineCase,
    ForcedRun,
    LayoutMachine,
    check_greedy_output_never_changes,
    check_logits_depend_on_own_tokens_alone,
    check_other_rows_leave_no_mark,
    check_run,
    engine_cases,
    forced_runs,
    prompts_of,
    ragged_cases,
)


@pytest.mark.timeout(900)  # a failing case is shrunk for minutes
@settings(max_examples=30)
@given(case=engine_cases)
def test_result_is_plain_decoding_and_every_invariant_holds(case: EngineCase) -> None:
    check_run(case)


@pytest.mark.timeout(900)  # a failing case is shrunk for minutes
@settings(max_examples=30)
@given(case=ragged_cases)
def test_ragged_batches_are_plain_decoding_too(case: EngineCase) -> None:
    check_run(case, SPECULATIVE)


@settings(max_examples=30)
@given(case=engine_cases | ragged_cases, order=st.permutations(range(4)), size=st.integers(1, 4), other=engine_cases)
def test_order_batch_size_draft_length_and_drafter_change_nothing(
    case: EngineCase, order: list[int], size: int, other: EngineCase
) -> None:
    rows = [row for row in order if row < len(case.prompts)][:size]
    check_greedy_output_never_changes(case, rows, other)


@settings(max_examples=30)
@given(case=engine_cases | ragged_cases, row=st.integers(0, 3), others=prompts_of)
def test_another_prompt_beside_a_row_changes_no_answer(case: EngineCase, row: int, others: list[list[int]]) -> None:
    check_other_rows_leave_no_mark(case, row, others)


@settings(max_examples=60)
@given(run=forced_runs, keep=st.integers(0, 3), shift=st.integers(1, 96))
def test_logits_depend_on_the_row_alone(run: ForcedRun, keep: int, shift: int) -> None:
    check_logits_depend_on_own_tokens_alone(run, keep, shift)


TestLayoutMachine = LayoutMachine.TestCase
TestLayoutMachine.settings = settings(max_examples=60, stateful_step_count=12)
