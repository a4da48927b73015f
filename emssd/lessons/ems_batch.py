"""What lesson 8 decodes: rows of a batch, a target model with a ragged cache, and two drafters. Plain Python.

The models have no weights. The next token is a function of all cells that a query reads, so a cell that is missing,
stale or in the wrong slot changes it. Now and then it is drawn from them; mostly it copies what followed the same token
before, so that looking it up pays. In a ragged cache a token's slot is its position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol

EOS_TOKEN = 2
FIRST_TOKEN = 10
NUM_TOKENS = 24
EMPTY = 0


@dataclass
class BatchRow:
    """One request of the batch.

    Attributes:
        index: the row's number, from 0.
        prompt_length: tokens of the prompt.
        max_new_tokens: tokens that the row may put out.
        token_ids: prompt and output so far; the last one is pending: committed, not yet in the target's cache.
        cursor: the slot that the row writes next in the target's cache; slots 0 .. cursor - 1 hold its tokens.
        draft_cursor: slots 0 .. draft_cursor - 1 of the draft model's cache hold the row's committed tokens.
        finished: the row has ended.
    """

    index: int
    prompt_length: int
    max_new_tokens: int
    token_ids: list[int]
    cursor: int
    draft_cursor: int
    finished: bool = False

    @property
    def output_token_ids(self) -> list[int]:
        """What the row has put out."""
        return self.token_ids[self.prompt_length :]

    @property
    def remaining(self) -> int:
        """Tokens that the row may still put out."""
        return self.max_new_tokens - len(self.output_token_ids)


@dataclass
class PackedModel:
    """A toy model with a ragged cache: every row has slots of its own, from 0.

    Args:
        num_rows: rows of the batch.
        seed: another seed is another model.
        error_rate: share of its choices that differ from those of the model with the same seed and no errors; some of
            these end the text.
        eos: whether it can end a text.
    """

    num_rows: int
    seed: int
    error_rate: float = 0.0
    eos: bool = True
    cache: list[dict[int, int]] = field(init=False)
    """[rows] slot -> token id."""
    forwards: list[list[tuple[int, int, int]]] = field(default_factory=list)
    """What each forward was fed: (row, slot, token id)."""

    def __post_init__(self) -> None:
        self.cache = [{} for _ in range(self.num_rows)]

    def forward(self, token_ids: Sequence[int], rows: Sequence[int], slots: Sequence[int]) -> list[int]:
        """Feed a packed sequence: each token is written to its row's slot, then reads slots 0 .. its own of that row.

        Args:
            token_ids: [N] tokens of all rows.
            rows: [N] the row of each.
            slots: [N] where each is written, and the last slot that it reads.

        Returns:
            [N] for each fed token, the model's choice of the token that follows it.

        Raises:
            ValueError: the three lengths differ, or a row or a slot does not exist.
        """
        if not len(token_ids) == len(rows) == len(slots):
            raise ValueError(f"{len(token_ids)} tokens came with {len(rows)} rows and {len(slots)} slots")
        for row, slot in zip(rows, slots, strict=True):
            if not 0 <= row < self.num_rows or slot < 0:
                raise ValueError(f"there is no slot {slot} of row {row}")
        self.forwards.append(list(zip(rows, slots, token_ids, strict=True)))
        for row, slot, token in self.forwards[-1]:
            self.cache[row][slot] = token
        return [self.choose(self.read(row, slot)) for row, slot, _ in self.forwards[-1]]

    def read(self, row: int, slot: int) -> list[int]:
        """[slot + 1] what a query at `slot` reads; `EMPTY` where nothing was ever written."""
        return [self.cache[row].get(place, EMPTY) for place in range(slot + 1)]

    def choose(self, cells: Sequence[int]) -> int:
        """The token after the last one of `cells`."""
        draw = _draw("choice", self.seed, cells)
        right = self._copied(cells) if draw % 4 else 0
        if not right:
            right = EOS_TOKEN if self.eos and draw % 24 == 0 else FIRST_TOKEN + draw // 24 % NUM_TOKENS
        error = _draw("error", self.seed, cells)
        if error % 1000 < 1000 * self.error_rate:
            if self.eos and right != EOS_TOKEN and error // 1000 % 4 == 0:
                return EOS_TOKEN
            return FIRST_TOKEN + (right - FIRST_TOKEN + 1) % NUM_TOKENS
        return right

    @staticmethod
    def _copied(cells: Sequence[int]) -> int:
        """What followed the last token where it stood before; 0 if it is new."""
        for place in range(len(cells) - 2, -1, -1):
            if cells[place] == cells[-1]:
                return cells[place + 1]
        return 0


def _draw(name: str, seed: int, cells: Sequence[int]) -> int:
    """A number that depends on everything that was read."""
    text = repr((name, seed, list(cells))).encode()
    return int.from_bytes(blake2b(text, digest_size=6).digest(), "big")


class BatchDrafter(Protocol):
    """Proposes drafts for some rows of a batch."""

    def propose(self, rows: Sequence[BatchRow], plans: Sequence[tuple[int, int, list[int]]]) -> dict[int, list[int]]:
        """Drafts by row number.

        Args:
            rows: the rows that draft.
            plans: [rows] of (limit, first_slot, feed): the most drafts, and what the draft model reads first: the
                tokens `feed`, written to the slots first_slot, first_slot + 1, ... of its cache.
        """
        ...


@dataclass
class LookupDrafter:
    """Copies what followed the row's last token where it stood before. It has no cache: `feed` is not used."""

    def propose(self, rows: Sequence[BatchRow], plans: Sequence[tuple[int, int, list[int]]]) -> dict[int, list[int]]:
        """Drafts by row number."""
        return {row.index: self.copy(row.token_ids)[: plan[0]] for row, plan in zip(rows, plans, strict=True)}

    @staticmethod
    def copy(token_ids: Sequence[int]) -> list[int]:
        """All that followed; empty where the last token is new."""
        for place in range(len(token_ids) - 2, -1, -1):
            if token_ids[place] == token_ids[-1]:
                return list(token_ids[place + 1 :])
        return []


@dataclass
class ModelDrafter:
    """Drafts one token at a time with a small model, which has a ragged cache of its own.

    Its first forward of a step feeds each row's `feed`; the next ones feed each row's newest draft into the slot after.
    The last draft is never fed.
    """

    model: PackedModel

    def propose(self, rows: Sequence[BatchRow], plans: Sequence[tuple[int, int, list[int]]]) -> dict[int, list[int]]:
        """Drafts by row number."""
        drafts: dict[int, list[int]] = {row.index: [] for row in rows}
        longest = max((limit for limit, _, _ in plans), default=0)
        for number in range(longest):
            feeds = {
                row.index: (first, list(feed))
                if number == 0
                else (first + len(feed) + number - 1, drafts[row.index][-1:])
                for row, (limit, first, feed) in zip(rows, plans, strict=True)
                if limit > number
            }
            for row_index, token in self._forward(feeds).items():
                drafts[row_index].append(token)
        return drafts

    def _forward(self, feeds: Mapping[int, tuple[int, list[int]]]) -> dict[int, int]:
        """One packed forward: row -> the choice after the last token that it fed."""
        token_ids, rows, slots = [], [], []
        for row, (first, tokens) in feeds.items():
            if not tokens:
                raise ValueError(f"row {row} drafts, but feeds the draft model nothing")
            for offset, token in enumerate(tokens):
                token_ids.append(token)
                rows.append(row)
                slots.append(first + offset)
        return dict(zip(rows, self.model.forward(token_ids, rows, slots), strict=True))  # a row's last choice stays
