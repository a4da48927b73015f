"""The lossless tests on a CUDA device, with the same code (`make gpu-test`). Where there is none they are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests import test_bfloat16, test_lossless_matrix, test_script_patterns
from tests.helpers import ALL_METHODS, METHODS5, language_model

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
EVERY = 5  # part of the patterns and of the matrix; coprime to what they cycle through
MATRIX = range(0, len(test_lossless_matrix.CASES), EVERY)


@pytest.fixture(autouse=True)
def exact_float32() -> Iterator[None]:
    """No reduced precision inside float32 products."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("method", METHODS5)
@pytest.mark.parametrize("architecture", test_script_patterns.ARCHITECTURES)
def test_patterns_of_acceptance_are_lossless(architecture: str, method: str) -> None:
    lm = language_model(architecture, device=DEVICE)
    for number, pattern in enumerate(test_script_patterns.PATTERNS[::EVERY]):
        test_script_patterns.run_pattern(lm, method, pattern, check_invariants=number % 4 == 0)


@pytest.mark.parametrize("number", MATRIX)
def test_output_is_that_of_plain_decoding(number: int) -> None:
    test_lossless_matrix.run_case(test_lossless_matrix.CASES[number], number, DEVICE)


@pytest.mark.parametrize("method", ALL_METHODS)
@pytest.mark.parametrize("architecture", test_bfloat16.ARCHITECTURES)
@pytest.mark.parametrize("dtype", test_bfloat16.HALF, ids=str)
def test_half_precision_is_the_best_up_to_rounding(architecture: str, dtype: torch.dtype, method: str) -> None:
    lm = language_model(architecture, dtype, device=DEVICE)
    for drafter in ("scripted",) if method.startswith("greedy") else ("scripted", "same", "near"):
        assert test_bfloat16.half_precision_run(lm, method, drafter) > test_bfloat16.SMALLEST_SHARE
