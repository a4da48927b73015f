"""The rest of the product, for hours when nobody waits: `make soak`.

EMSSD_SOAK_MINUTES (default 30) bounds the random sample of the full matrix; EMSSD_SOAK_EXAMPLES (default 5000) is how
many cases each property draws. New cases are drawn every time; a failing one is printed whole.
"""

from __future__ import annotations

import os
import time
from random import Random

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from emssd.random_models import RANDOM_MODELS
from tests import properties, test_bfloat16, test_lossless_matrix, test_script_patterns
from tests.helpers import METHODS5, SPECULATIVE
from tests.pairwise import Case

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]

MINUTES = float(os.environ.get("EMSSD_SOAK_MINUTES", "30"))
EXAMPLES = int(os.environ.get("EMSSD_SOAK_EXAMPLES", "5000"))
SHARDS = 2
thorough = settings(max_examples=EXAMPLES, derandomize=False, stateful_step_count=20)


def draw_case(draw: Random) -> Case:
    """Any allowed case of the full product."""
    while True:
        case = {name: draw.choice(values) for name, values in test_lossless_matrix.FACTORS.items()}
        if test_lossless_matrix.allowed(case):
            return case


@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_cases_of_the_full_product(shard: int) -> None:
    seed = time.time_ns() + shard
    draw, end, runs = Random(seed), time.monotonic() + 60 * MINUTES / SHARDS, 0
    while time.monotonic() < end:
        case, number = draw_case(draw), draw.randrange(1000)
        try:
            test_lossless_matrix.run_case(case, number)
        except Exception as error:
            raise AssertionError(f"run_case({case!r}, {number}) fails after {runs} good runs: {error}") from error
        runs += 1
    assert runs > 0


@pytest.mark.parametrize("method", METHODS5)
@pytest.mark.parametrize("architecture", list(RANDOM_MODELS))
def test_every_pattern_on_every_architecture(architecture: str, method: str) -> None:
    lm = test_lossless_matrix.target(architecture)
    for pattern in test_script_patterns.PATTERNS:
        test_script_patterns.run_pattern(lm, method, pattern, check_invariants=False)


@pytest.mark.parametrize("dtype", test_bfloat16.HALF, ids=str)
@pytest.mark.parametrize("architecture", [name for name in RANDOM_MODELS if name not in test_lossless_matrix.MIXTURES])
def test_half_precision_on_every_architecture(architecture: str, dtype: torch.dtype) -> None:
    """Mixtures of experts are left out: rounding flips experts, which moves logits by any amount."""
    lm = test_lossless_matrix.language_model(architecture, dtype)
    for method in SPECULATIVE:
        for drafter in ("scripted", "same", "near", "prompt lookup"):
            for attention in ("auto", "reference"):
                share = test_bfloat16.half_precision_run(lm, method, drafter, attention)
                assert share > test_bfloat16.SMALLEST_SHARE


any_case = properties.engine_cases | properties.ragged_cases


@thorough
@given(case=any_case)
def test_result_is_plain_decoding_and_every_invariant_holds(case: properties.EngineCase) -> None:
    properties.check_run(case, [case.method])


@thorough
@given(case=any_case, order=st.permutations(range(4)), size=st.integers(1, 4), other=any_case)
def test_order_batch_size_draft_length_and_drafter_change_nothing(
    case: properties.EngineCase, order: list[int], size: int, other: properties.EngineCase
) -> None:
    rows = [row for row in order if row < len(case.prompts)][:size]
    properties.check_greedy_output_never_changes(case, rows, other)


@thorough
@given(case=any_case, row=st.integers(0, 3), others=properties.prompts_of)
def test_another_prompt_beside_a_row_changes_no_answer(
    case: properties.EngineCase, row: int, others: list[list[int]]
) -> None:
    properties.check_other_rows_leave_no_mark(case, row, others)


@thorough
@given(run=properties.forced_runs, keep=st.integers(0, 3), shift=st.integers(1, 96))
def test_logits_depend_on_the_row_alone(run: properties.ForcedRun, keep: int, shift: int) -> None:
    properties.check_logits_depend_on_own_tokens_alone(run, keep, shift)


TestLayoutMachine = properties.LayoutMachine.TestCase
TestLayoutMachine.settings = thorough
