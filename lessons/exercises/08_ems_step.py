"""Lesson 8: one step of EMS-SD for a whole batch.

`ems_step` is written: draft, pack, forward, verify, commit. It calls four functions that you write; each takes three
to eight lines. `pack` is lesson 7, `verify` lesson 2, and the cursor in `commit` lesson 6. New is the draft model's own
cache: which tokens it lacks when a step begins, and how far it reaches when the step ends.

`BatchRow` (in emssd/lessons/ems_batch.py) holds all that a step may change: token_ids, cursor, draft_cursor, finished.
Its `remaining` says how many tokens the row may still put out. A token's slot is its position in token_ids.

Check it with `python -m emssd lesson check 08`.
"""

from __future__ import annotations

from itertools import pairwise

from emssd.lessons.ems_batch import BatchDrafter, BatchRow, PackedModel


def ems_step(
    rows: list[BatchRow], target: PackedModel, drafter: BatchDrafter, num_draft_tokens: int, eos_token_id: int
) -> None:
    """One step of all rows: changes the rows and both caches. Nothing to write here."""
    live = [row for row in rows if not row.finished]
    proposals = drafter.propose(live, [draft_plan(row, num_draft_tokens) for row in live])  # row number -> drafts
    drafts = [proposals.get(row.index, []) for row in rows]
    token_ids, owners, slots, cu_seqlens = pack(rows, drafts)
    answers = target.forward(token_ids, owners, slots)  # [N] the target's choice after each fed token
    for row, drafted, (begin, end) in zip(rows, drafts, pairwise(cu_seqlens), strict=True):
        if not row.finished:
            emitted = verify(drafted, answers[begin:end], eos_token_id)
            commit(row, drafted, emitted, eos_token_id)


def draft_plan(row: BatchRow, num_draft_tokens: int) -> tuple[int, int, list[int]]:
    """Place 1: how much a live row may draft, and what the draft model must read before it can.

    Args:
        row: a live row.
        num_draft_tokens: K, the most drafts of this step.

    Returns:
        limit: drafts for this row, 0 .. K. If all are kept and the target adds its own token, the row must not end up
            with more than `remaining` tokens.
        first_slot: slot of the draft model's cache that the first token of `feed` goes to.
        feed: the committed tokens that the draft model's cache lacks, pending token included. What it holds already may
            be fed again, to the slots where it is.
    """
    raise NotImplementedError("place 1")


def pack(rows: list[BatchRow], drafts: list[list[int]]) -> tuple[list[int], list[int], list[int], list[int]]:
    """Place 2: one sequence for the target. A live row feeds its pending token and its drafts, from its own cursor on.

    Args:
        rows: [B] all rows; a finished one feeds nothing.
        drafts: [B] drafts of each row.

    Returns:
        token_ids: [N] the packed tokens.
        owners: [N] the row number of each.
        slots: [N] the slot in the row's cache that each is written to.
        cu_seqlens: [B + 1] where each row starts, as in lesson 7.

    A row 2 with cursor 4, pending token 30 and drafts [7, 8] adds tokens 30, 7, 8, owners 2, 2, 2 and slots 4, 5, 6.
    """
    raise NotImplementedError("place 2")


def verify(drafts: list[int], answers: list[int], eos_token_id: int) -> list[int]:
    """Place 3: what one row emits.

    Args:
        drafts: [k] the row's drafts.
        answers: [k + 1] the target's choice after the pending token and after each draft.
        eos_token_id: a row ends with this token: nothing follows it.

    Returns:
        The kept drafts and then the target's own token; after a kept end-of-sequence token, no other.
    """
    raise NotImplementedError("place 3")


def commit(row: BatchRow, drafts: list[int], emitted: list[int], eos_token_id: int) -> None:
    """Place 4: take in what the row emitted: token_ids, cursor, draft_cursor, finished.

    The draft model was fed `row.token_ids` as it was, and then all drafts but the last one; with no drafts it was not
    run for this row at all, and its cache falls further behind. `draft_cursor` must be exactly as many of the row's
    tokens, from the first on, as its cache now holds.
    """
    raise NotImplementedError("place 4")
