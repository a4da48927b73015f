"""One sentence for a committed step, made from the trace: which row, which counts, and why.

A narration is a list of pieces (text, important): the player shows important pieces bold and nothing as markup.
"""

from __future__ import annotations

from collections.abc import Iterable

from emssd.trace import GenerationTrace, RowTrace, StepTrace
from emssd.ui.token_text import visible

Pieces = list[tuple[str, bool]]
FEW_ROWS = 3


def plural(number: int, noun: str) -> str:
    """ "1 hole", "2 holes", "no holes"."""
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def narrate(trace: GenerationTrace, step: StepTrace) -> Pieces:
    """What the commit of this step did to the cache."""
    shared = trace.config.get("cache_layout") == "padded"
    if step.kind == "prefill":
        return _prefill(trace, step, shared)
    live = [row for row in step.rows if row.kind == "decode"]
    if not live:
        return [("Every row is finished.", False)]
    if not any(row.num_drafted for row in live) and all(row.num_emitted == 1 for row in live):
        return _plain(step, live, shared)
    pieces = _shared_commit(trace, step, live) if shared else _own_commit(trace, step, live)
    return pieces + _finished(step)


def _prefill(trace: GenerationTrace, step: StepTrace, shared: bool) -> Pieces:
    tokens = sum(len(row.input_token_ids) for row in step.rows)
    text = [(f"Prefill: {plural(len(step.rows), 'prompt')}, ", False), (plural(tokens, "token"), True)]
    pads = sum(row.next_slot - len(row.slots) for row in step.rows)
    if not shared:
        return [*text, (", no padding. Each row’s cursor starts at the end of its own prompt.", False)]
    return [
        *text,
        (f". The shared cursor starts after the longest prompt, at slot {step.rows[0].next_slot}: ", False),
        (plural(pads, "prompt pad"), True),
        (".", False),
    ]


def _plain(step: StepTrace, live: list[RowTrace], shared: bool) -> Pieces:
    moves = "The shared cursor moves by 1" if shared else "Each cursor moves by 1"
    rows = "Row " + str(live[0].row) + " gains" if len(live) == 1 else f"Each of {len(live)} live rows gains"
    return [(f"{rows} one token of the target’s own; nothing was drafted. {moves}: ", False), ("no holes", True),
            (".", False), *_finished(step)]  # fmt: skip


def _token(trace: GenerationTrace, token_id: int) -> str:
    return visible(trace.tokens.get(str(token_id), f"id {token_id}")).strip() or "space"


def _keeps(trace: GenerationTrace, row: RowTrace) -> Pieces:
    """ "Row 1 keeps 2 of 5 drafts and the target's own “x”"."""
    if not row.num_drafted:
        own = _token(trace, row.emitted_token_ids[-1])
        return [(f"Row {row.row} has no draft and takes the target’s own “{own}”", False)]
    count = f"{row.num_accepted} of {row.num_drafted}"
    drafts = " draft" if row.num_drafted == 1 else " drafts"
    kept: Pieces = [(f"Row {row.row} keeps ", False), (count, True), (drafts, False)]
    if row.next_kind is None:
        return [*kept, (" and ends", False)]
    extra = "a bonus" if row.next_kind == "bonus" else "the target’s own"
    return [*kept, (f" and {extra} “{_token(trace, row.emitted_token_ids[-1])}”", False)]


def _shared_commit(trace: GenerationTrace, step: StepTrace, live: list[RowTrace]) -> Pieces:
    largest = max(row.num_emitted for row in live)
    behind = [row for row in live if row.holes_added]
    holes = sum(len(row.holes_added) for row in live)
    if len(live) <= FEW_ROWS:
        pieces = _joined(_keeps(trace, row) for row in live)
        pieces.append((f". The shared cursor moves by the largest gain, {largest}", False))
        if not behind:
            return [*pieces, (": ", False), ("no holes", True), (".", False)]
        left = [f"row {row.row} leaves {plural(len(row.holes_added), 'hole')}" for row in behind]
        return [*pieces, (", so ", False), (" and ".join(left), True), (".", False)]
    start: Pieces = [("Every row moves by the largest gain, ", False), (str(largest), True)]
    if not behind:
        return [*start, (": ", False), ("no holes", True), (" in this step.", False)]
    if len(behind) == 1:
        return [*start, (f": only row {behind[0].row} leaves ", False), (plural(holes, "hole"), True), (".", False)]
    worst = max(behind, key=lambda row: len(row.holes_added))
    return [*start, (f": {len(behind)} live rows leave ", False), (plural(holes, "hole"), True),
            (f", {len(worst.holes_added)} of them in row {worst.row}.", False)]  # fmt: skip


def _own_commit(trace: GenerationTrace, step: StepTrace, live: list[RowTrace]) -> Pieces:
    gained = sum(row.num_emitted for row in live)
    if len(live) <= FEW_ROWS:
        pieces = _joined(_keeps(trace, row) for row in live)
        moves = " and ".join(f"{row.cache_start} → {row.next_slot}" for row in live)
        which = "Its cursor moves by its own gain, " if len(live) == 1 else "Each cursor moves by its own gain, "
        return [*pieces, (f". {which}", False), (moves, True), (": no holes.", False)]
    best = max(live, key=lambda row: row.num_emitted)
    return [(f"{gained} tokens from ", False), (plural(step.account.input_rows["useful"], "useful input row"), True),
            (f", most in row {best.row} (+{best.num_emitted}). Each cursor moves by its own gain: ", False),
            ("no holes", True), (".", False)]  # fmt: skip


def _finished(step: StepTrace) -> Pieces:
    fed = [row for row in step.rows if row.kind == "finished" and row.input_token_ids]
    if not fed:
        return []
    who = f"Row {fed[0].row} is finished" if len(fed) == 1 else f"{len(fed)} rows are finished"
    rows = sum(len(row.input_token_ids) for row in fed)
    return [(f" {who} but still fed ", False), (plural(rows, "input row"), True), (".", False)]


def _joined(parts: Iterable[Pieces]) -> Pieces:
    pieces: Pieces = []
    for part in parts:
        if pieces:
            first, bold = part[0]
            pieces.append(("; ", False))
            part = [(first[:1].lower() + first[1:], bold), *part[1:]]
        pieces.extend(part)
    return pieces


def plain_text(pieces: Pieces) -> str:
    """The sentence without its weights."""
    return "".join(text for text, _ in pieces)
