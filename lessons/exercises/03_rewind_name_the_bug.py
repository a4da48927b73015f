"""Lesson 3: roll a cache back, and find bugs from their evidence.

rewind(cache, n) forgets the last n cells. With a cache of 6 cells, rewind(cache, 2) leaves 4 that queries read; the two
others stay in memory, unread, and the next write goes over the first of them.

name_the_bug(run) looks at a run in which one thing is wrong and says which:

    "stale cells read"       queries read rejected cells, too
    "slot as position"       tokens are given their slot as their position
    "wrong token accepted"   a row emits a token that the target did not choose in that place
    "bonus missing"          all drafts are right, and the target's own token after them is not emitted

The first three make the output of every run here wrong, the fourth never does: it comes late.

See a run: from emssd.lessons.faulty_runs import describe, faulty_runs; print(describe(faulty_runs(0)[0][1]))
"""

from __future__ import annotations

from emssd.lessons.faulty_runs import Evidence
from emssd.lessons.toy import ToyCache


def rewind(cache: ToyCache, n: int) -> None:
    """Forget the last `n` cells that queries can read: rollback after rejected drafts. Changes `cache`.

    `cache.cells` is the list of all cells ever written, by slot. `cache.length` is how many of them queries read, from
    slot 0 on, and the slot that the next write goes to.

    Args:
        cache: the cache of one row.
        n: 0 .. cache.length, both allowed: 0 changes nothing, cache.length forgets all.

    Returns:
        Nothing.

    Raises:
        ValueError: n is negative or larger than cache.length; the cache is then unchanged.
    """
    raise NotImplementedError


def name_the_bug(run: Evidence) -> str:
    """Which of the four bugs a run has.

    Slots are no evidence by themselves: in some right runs they equal the positions, in others they do not.

    Args:
        run: what went in and came out:
            run.prompt, run.output, run.right_output: token ids; output[0] comes from prefill and is right.
            run.steps: decode steps, each with these lists:
                input_token_ids [n]: the pending token, then n - 1 drafts
                position_ids [n], slots [n]: the position each was given, the slot each was written to
                cells_read [n]: how many cells each query read, its own included
                target_token_ids [n]: the model's choice after each
                emitted_token_ids: what the row gained

    Returns:
        One of the four names above.
    """
    raise NotImplementedError
