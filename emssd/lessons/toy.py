"""A language model without weights: its next token is a hash of the cells that its query reads.

A real model with a fault in its cache often puts out the right text by luck. This one does not: a token at a wrong
position, a missed, doubled or stale cell changes the hash, and with it the next token. It needs no torch, and counts
the rows it computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from emssd.lessons.answers import whole


@dataclass(frozen=True)
class ToyCell:
    """What a cell of the cache holds. A real cell holds a key and a value: vectors made of the same two things."""

    token_id: int
    position: int


class ToyCache:
    """The KV cache of one row. Queries may read `cells[:length]`; what lies behind is stale, and nobody looks at it.

    Attributes:
        cells: what was written, by slot.
        length: visible cells, and so the slot that is written next.
    """

    def __init__(self) -> None:
        self.cells: list[ToyCell] = []
        self.length = 0

    def __repr__(self) -> str:
        return f"ToyCache of {self.length} cells"

    def write(self, cell: ToyCell) -> None:
        """Put a cell into slot `length`, over a stale one if there is one, and make it visible."""
        self.cells[self.length : self.length + 1] = [cell]
        self.length += 1

    def visible(self) -> list[ToyCell]:
        """The cells that a query may read, by slot."""
        return self.cells[: self.length]

    def __deepcopy__(self, memo: dict[int, Any]) -> ToyCache:
        return self  # a check looks at the very cache that was handed over


class ToyModel:
    """A deterministic model.

    Args:
        vocab_size: token ids are 0 .. vocab_size - 1.
        seed: another seed is another model.

    Attributes:
        forwards: what every forward was fed, as (token, position) pairs.
        cells_read: for every forward, how many cells the first of its queries read, its own included.
    """

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self.vocab_size = vocab_size
        self.seed = seed
        self.forwards: list[list[ToyCell]] = []
        self.cells_read: list[int] = []

    def __repr__(self) -> str:
        return f"ToyModel({self.vocab_size}, seed={self.seed})"

    @property
    def rows_computed(self) -> int:
        """Tokens that went through the model, over all forwards."""
        return sum(len(fed) for fed in self.forwards)

    def new_cache(self) -> ToyCache:
        """An empty cache for one row."""
        return ToyCache()

    def forward(self, token_ids: Sequence[int], position_ids: Sequence[int], cache: ToyCache) -> list[int]:
        """Feed tokens, one after another: each is written to the cache, then its query reads all cells there, its own
        included. So the query of token i reads the older cells and those of tokens 0 .. i of this call.

        Args:
            token_ids: [n] tokens, at least one.
            position_ids: [n] their positions in the text, from 0.
            cache: the row's cache; grows by n cells.

        Returns:
            [n] for each fed token, the model's choice of the token that follows it.

        Raises:
            ValueError: nothing is fed, the lengths differ, or a token is outside the vocabulary.
            TypeError: a token or a position is not a whole number.
        """
        self._check(token_ids, position_ids)
        fed = [ToyCell(token, position) for token, position in zip(token_ids, position_ids, strict=True)]
        self.forwards.append(fed)
        self.cells_read.append(cache.length + 1)
        choices = []
        for cell in fed:
            cache.write(cell)
            choices.append(self.choose(cache.visible(), cell))
        return choices

    def choose(self, visible: Sequence[ToyCell], query: ToyCell) -> int:
        """The next token of a query that reads `visible`. As in attention, the order of the cells does not matter."""
        pairs = sorted((cell.position, cell.token_id) for cell in visible)
        text = repr((self.seed, query.position, query.token_id, pairs)).encode()
        return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") % self.vocab_size

    def _check(self, token_ids: Sequence[int], position_ids: Sequence[int]) -> None:
        if len(token_ids) != len(position_ids):
            raise ValueError(f"{len(token_ids)} tokens were fed with {len(position_ids)} positions.")
        if not token_ids:
            raise ValueError("A forward needs at least one token.")
        for token, position in zip(token_ids, position_ids, strict=True):
            if isinstance(token, list):
                raise TypeError(f"Token {token} is a list: forward returns a list, one choice for each fed token.")
            if whole(token) is None or whole(position) is None:
                raise TypeError(f"Token {token!r} at position {position!r}: both must be whole numbers.")
            if not 0 <= token < self.vocab_size:
                raise ValueError(f"Token {token!r} is outside the vocabulary 0..{self.vocab_size - 1}.")

    def __deepcopy__(self, memo: dict[int, Any]) -> ToyModel:
        return self  # a check counts the rows of the very model that was handed over


def plain_greedy(model: ToyModel, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """Greedy output without a cache: every token is chosen from the whole text before it. Counts no rows."""
    text = list(prompt)
    for _ in range(max_new_tokens):
        cells = [ToyCell(token, position) for position, token in enumerate(text)]
        text.append(model.choose(cells, cells[-1]))
    return text[len(prompt) :]
