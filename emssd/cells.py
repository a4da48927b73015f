"""The state of every KV-cache cell at every step, computed from a trace alone.

The player, the tests and the lessons all ask here, so a picture cannot disagree with the engine.
A cached token's state is its origin: a recovered token stays "recovered" when its keys are written one step later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from emssd.trace import GenerationTrace, RowTrace, StepTrace

SUBSTEPS = ("draft", "pack", "write", "attend", "verify", "commit")
STATES = (
    "prompt",
    "plain",
    "accepted",
    "recovered",
    "bonus",
    "pending",
    "draft",
    "rejected",
    "hole",
    "pad",
    "free",
)
VISIBLE_STATES = frozenset({"prompt", "plain", "accepted", "recovered", "bonus"})


@dataclass(frozen=True)
class Cell:
    """One slot of one row.

    Args:
        state: one of `STATES`. "pending" is a committed token outside the cache's length (an accepted end of
            sequence, or the last draft that a cut to the minimum leaves); "draft" is written but not judged yet;
            "rejected" is stale beyond the cursor, after a cut even where it was confirmed; "hole" is masked for ever;
            "pad" says its cause.
        token_id: what was last written there, None if nothing.
        position: the token's position in its row, None where nobody may look.
        step: step that wrote it (0 is prefill), None if nothing was written.
        cause: of a pad: "prompt", "input" or "finished".
    """

    state: str = "free"
    token_id: int | None = None
    position: int | None = None
    step: int | None = None
    cause: str | None = None

    @property
    def visible(self) -> bool:
        """Whether later queries of the row may read it."""
        return self.state in VISIBLE_STATES


FREE = Cell()
Grid = list[list[Cell]]


def num_slots(trace: GenerationTrace) -> int:
    """Slots per row that any step of the trace writes or moves its cursor past."""
    rows = [row for step in trace.steps for row in step.rows]
    return max((max([row.next_slot, *(slot + 1 for slot in row.slots)]) for row in rows), default=0)


def iter_cells(trace: GenerationTrace) -> Iterator[Grid]:
    """The grid [rows][slots] after the commit of each step, prefill first. Each grid is the caller's to keep."""
    for grid, _ in _replay(trace, len(trace.steps) - 1, "commit"):
        yield [list(row) for row in grid]


def cells_at(trace: GenerationTrace, step: int, substep: str = "commit") -> Grid:
    """The grid [rows][slots] at a sub-step: "draft" and "pack" still show the step before, "write" and "attend" the
    unjudged drafts, "verify" their verdicts, "commit" the moved cursors and new holes.

    Raises:
        IndexError: the trace has no such step.
        ValueError: no such sub-step.
    """
    if not 0 <= step < len(trace.steps):
        raise IndexError(f"The trace has steps 0 to {len(trace.steps) - 1}, not {step}.")
    if substep not in SUBSTEPS:
        raise ValueError(f"A sub-step is one of {', '.join(SUBSTEPS)}, not {substep!r}.")
    grid: Grid = []
    for grid, _ in _replay(trace, step, substep):  # noqa: B007
        pass
    return grid


def _replay(trace: GenerationTrace, last: int, substep: str) -> Iterator[tuple[Grid, int]]:
    """Apply steps 0..last to one grid; the last one only up to `substep`."""
    width = num_slots(trace)
    grid: Grid = [[FREE] * width for _ in trace.rows]
    origins = ["plain"] * len(trace.rows)
    for step in trace.steps[: last + 1]:
        until = SUBSTEPS.index(substep if step.index == last else "commit")
        for row in step.rows:
            cells = grid[row.row]
            if until >= SUBSTEPS.index("write"):
                _write(cells, step, row, origins[row.row])
            if until >= SUBSTEPS.index("verify"):
                _verify(cells, row)
            if until >= SUBSTEPS.index("commit"):
                _commit(cells, row)
                if row.num_emitted:
                    origins[row.row] = row.next_kind or "accepted"
        yield grid, step.index


def _write(cells: list[Cell], step: StepTrace, row: RowTrace, origin: str) -> None:
    states = {"prompt": "prompt", "pending": origin, "draft": "draft", "pad": "pad"}
    for place, slot in enumerate(row.slots):
        kind = row.input_kinds[place]
        pad = kind == "pad"
        position = None if pad else row.position_ids[place]
        cells[slot] = Cell(states[kind], row.input_token_ids[place], position, step.index, "input" if pad else None)


def _verify(cells: list[Cell], row: RowTrace) -> None:
    for number in range(row.num_drafted):
        slot = row.slots[1 + number]
        verdict = "accepted" if number < row.num_accepted else "rejected"
        cells[slot] = replace(cells[slot], state=verdict)


def _commit(cells: list[Cell], row: RowTrace) -> None:
    for slot in row.holes_added:
        cells[slot] = replace(cells[slot], state="hole", position=None, cause=None)
    if row.kind == "prefill":
        for slot in range(len(row.slots), row.next_slot):
            cells[slot] = Cell("pad", cause="prompt")
        return
    end = row.cache_start + row.num_emitted
    ended_by_draft = row.num_emitted == row.num_accepted > 0  # by an end of sequence or a cut
    if ended_by_draft:
        cells[end] = replace(cells[end], state="pending")
        end += 1
    if row.finished:
        for slot in range(end, row.next_slot):
            cells[slot] = replace(cells[slot], state="pad", position=None, cause="finished")
