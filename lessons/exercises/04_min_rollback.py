"""Lesson 4: cut a batch back to its slowest row.

After verification every live row (one that has not ended) has gained its accepted drafts and one token of the target's
own. The simplest way to keep a batch in step is to let no row gain more than the slowest: with m the smallest gain,
every row keeps the first m tokens it gained, and the rest is lost, although the target has confirmed it.

Example: row 0 accepted drafts 11, 12, 13 and the target added 14; row 1 accepted none and the target said 21.

    >>> min_rollback([[11, 12, 13], []], [14, 21], [False, False])
    ([[11], [21]], 3)
"""

from __future__ import annotations


def min_rollback(
    accepted: list[list[int]], next_tokens: list[int | None], finished: list[bool]
) -> tuple[list[list[int]], int]:
    """What the rows of a batch keep of one step, and how many tokens that throws away.

    At least one row is live. The lists are copies: change them if you like.

    Args:
        accepted: [rows] ids of the drafts that the target accepted, in order; a row may have accepted none.
        next_tokens: [rows] the target's own token after them; None for a finished row.
        finished: [rows] True where the row had ended before this step. Such a row gained nothing.

    Returns:
        A pair (kept, lost).
        kept: [rows] the token ids that each row keeps; [] for a finished row.
        lost: tokens gained but not kept, over all rows.
    """
    raise NotImplementedError
