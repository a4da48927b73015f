"""Greedy verification against a plain loop, over everything that a vocabulary of three can say."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from emssd.verification import verify_greedy

VOCAB = 3
EOS_SETS = [(), (0,), (2,), (0, 1), (0, 1, 2), (7,)]


def walk(target: list[int], drafts: list[int], eos: tuple[int, ...]) -> tuple[int, int]:
    """The definition: walk the drafts, stop at the first mismatch or at an accepted end of sequence."""
    accepted = 0
    for place, draft in enumerate(drafts):
        if draft != target[place]:
            break
        accepted += 1
        if draft in eos:
            return accepted, accepted
    return accepted, accepted + 1


def judge(targets, drafts, counts, eos) -> list[tuple[int, int]]:
    accepted, emitted = verify_greedy(
        torch.tensor(targets), torch.tensor(drafts), torch.tensor(counts), torch.tensor(eos, dtype=torch.long)
    )
    return list(zip(accepted.tolist(), emitted.tolist(), strict=True))


@pytest.mark.parametrize("eos", EOS_SETS, ids=str)
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_every_answer_and_every_draft_of_a_small_vocabulary(k, eos):
    """Exhaustive: all target choices x all drafts, one row each, and every number of drafts up to K."""
    for count in range(k + 1):
        # choices after the last looked-at place cannot matter: fix them to keep the product small
        pairs = list(product(product(range(VOCAB), repeat=count), repeat=2))
        targets = [[*target, 1, *[0] * (k - count)] for target, _ in pairs]
        drafts = [[*draft, *[0] * (k - count)] for _, draft in pairs]
        got = judge(targets, drafts, [count] * len(pairs), eos)
        for (target, draft), row, answer in zip(pairs, targets, got, strict=True):
            assert answer == walk(row, list(draft), eos), (target, draft, eos)


def test_entries_beyond_the_number_of_drafts_are_not_looked_at():
    """A stale entry that happens to equal the target's choice, or an end of sequence, must not count."""
    assert judge([[1, 2, 2, 2]], [[1, 2, 2]], [1], ()) == [(1, 2)]
    assert judge([[1, 2, 2, 2]], [[1, 2, 2]], [1], (2,)) == [(1, 2)]
    assert judge([[1, 2, 2, 2]], [[1, 2, 2]], [0], (1,)) == [(0, 1)]


def test_the_leading_run_counts_not_the_sum_of_matches():
    """Matches [yes, no, yes, yes] are one accepted draft, not three."""
    assert judge([[5, 6, 7, 8, 9]], [[5, 0, 7, 8]], [4], ()) == [(1, 2)]


def test_an_end_of_sequence_after_a_mismatch_ends_nothing():
    assert judge([[5, 6, 7]], [[0, 6]], [2], (6,)) == [(0, 1)]


def test_the_targets_own_end_of_sequence_is_emitted_as_its_own_token():
    """Recovered or bonus end of sequence: it is the last emitted token, and no draft."""
    assert judge([[6, 1]], [[0]], [1], (6,)) == [(0, 1)]
    assert judge([[4, 6]], [[4]], [1], (6,)) == [(1, 2)]


def test_rows_are_judged_apart():
    targets = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    drafts = [[1, 2], [4, 0], [7, 0]]
    assert judge(targets, drafts, [2, 2, 0], (7,)) == [(2, 3), (1, 2), (0, 1)]


def test_no_drafts_at_all():
    accepted, emitted = verify_greedy(
        torch.tensor([[3], [4]]), torch.empty(2, 0, dtype=torch.long), torch.tensor([0, 0]), torch.tensor([3])
    )
    assert accepted.tolist() == [0, 0]
    assert emitted.tolist() == [1, 1]
