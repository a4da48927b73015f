"""Lesson 2: judge a draft.

One forward over the pending token and K drafts gives K + 1 choices of the target. Count how many drafts are kept and
list what the row gains in this step:

    verify_greedy([7, 4, 9], [7, 4, 2, 5])                      ->  (2, [7, 4, 2])      2 is the recovered token
    verify_greedy([7, 4, 9], [7, 4, 9, 5])                      ->  (3, [7, 4, 9, 5])   5 is the bonus token
    verify_greedy([7, 4, 9], [7, 4, 9, 5], eos_token_ids=(4,))  ->  (2, [7, 4])         an accepted 4 ends the row
"""

from __future__ import annotations

from collections.abc import Sequence


def verify_greedy(
    draft: Sequence[int], target: Sequence[int], eos_token_ids: Sequence[int] = ()
) -> tuple[int, list[int]]:
    """Keep the leading drafts that the target would have chosen itself, then add the target's own next token.

    Args:
        draft: [K] drafted token ids; K may be 0.
        target: [K + 1] the target's choice after the pending token and after each draft: `target[i]` is what should
            stand in the place of `draft[i]`.
        eos_token_ids: ids that end a row. Once a draft with such an id is accepted nothing follows it, no bonus either.

    Returns:
        num_accepted: drafts that are kept, 0..K.
        emitted_token_ids: a list of the kept drafts and, unless the row has just ended, the target's next token.
    """
    raise NotImplementedError
