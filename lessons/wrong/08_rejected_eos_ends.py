"""Lets a rejected end-of-sequence draft end the row.

It looks for the end before it compares: the draft model thinks the text is over, the target does not.
"""

from __future__ import annotations

from itertools import pairwise

from emssd.lessons.ems_batch import BatchDrafter, BatchRow, PackedModel


def ems_step(
    rows: list[BatchRow], target: PackedModel, drafter: BatchDrafter, num_draft_tokens: int, eos_token_id: int
) -> None:
    """One step of all rows: changes the rows and both caches."""
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
    """How much a live row may draft, and what the draft model must read first: (limit, first_slot, feed)."""
    limit = min(num_draft_tokens, row.remaining - 1)
    return limit, row.draft_cursor, row.token_ids[row.draft_cursor :]


def pack(rows: list[BatchRow], drafts: list[list[int]]) -> tuple[list[int], list[int], list[int], list[int]]:
    """One sequence for the target: token_ids [N], owners [N], slots [N], cu_seqlens [B + 1]."""
    token_ids: list[int] = []
    owners: list[int] = []
    slots: list[int] = []
    cu_seqlens = [0]
    for row, drafted in zip(rows, drafts, strict=True):
        fed = [] if row.finished else [row.token_ids[-1], *drafted]
        token_ids += fed
        owners += [row.index] * len(fed)
        slots += range(row.cursor, row.cursor + len(fed))
        cu_seqlens.append(len(token_ids))
    return token_ids, owners, slots, cu_seqlens


def verify(drafts: list[int], answers: list[int], eos_token_id: int) -> list[int]:
    """What one row emits: the kept drafts and the target's own token, or up to a kept end-of-sequence token."""
    emitted: list[int] = []
    for draft, answer in zip(drafts, answers, strict=False):
        if draft == eos_token_id:
            return [*emitted, draft]
        emitted.append(answer)
        if draft != answer:
            return emitted
    return [*emitted, answers[len(drafts)]]


def commit(row: BatchRow, drafts: list[int], emitted: list[int], eos_token_id: int) -> None:
    """Take in what the row emitted: token_ids, cursor, draft_cursor, finished."""
    if drafts:  # of those that were fed, the kept ones; the last draft never was
        row.draft_cursor = len(row.token_ids) + min(len(emitted), len(drafts)) - 1
    row.token_ids += emitted
    row.cursor += len(emitted)
    row.finished = emitted[-1] == eos_token_id or row.remaining == 0
