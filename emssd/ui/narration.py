"""One sentence or two for every sub-step of a trace: which row, which counts, and why.

A narration is a list of pieces (text, important): the player shows important pieces bold and nothing as markup.
Up to three rows are named one by one; of more rows the extreme one is named and the rest are counted.
Every number follows from the trace. "Input rows" are rows of the dense layers, "rows" are requests of the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from emssd.trace import GenerationTrace, RowTrace, StepTrace, verdict
from emssd.ui.token_text import visible

Pieces = list[tuple[str, bool]]
FEW_ROWS = 3
LONGEST_TOKEN = 16


def narrations(trace: GenerationTrace) -> list[list[Pieces]]:
    """[steps][sub-steps] what happens, in the order of `cells.SUBSTEPS`; prefill has one entry."""
    told: list[list[Pieces]] = []
    stale: list[set[int]] = [set() for _ in trace.rows]  # slots that hold rejected drafts
    for step in trace.steps:
        if step.kind == "prefill":
            told.append([_prefill(trace, step)])
            continue
        over = [len(slots & set(row.slots)) for slots, row in zip(stale, step.rows, strict=True)]
        teller = _Step(trace, step, over)
        told.append([teller.draft(), teller.pack(), teller.write(), teller.attend(), teller.verify(), teller.commit()])
        for slots, row in zip(stale, step.rows, strict=True):
            slots -= set(row.slots)
            slots |= set(_rejected(row))
    return told


def attended(trace: GenerationTrace, row: int, place: int) -> list[Pieces | None]:
    """[steps] what "attend" says of one query instead of the one it would choose.

    Args:
        row: whose query; place: which of the tokens that the row feeds, from 0, or its last one.

    Returns:
        Nothing for prefill and for steps in which the row has finished.
    """
    return [
        None if step.kind == "prefill" or step.rows[row].kind != "decode" else _Step(trace, step, ()).attend(row, place)
        for step in trace.steps
    ]


def plain_text(pieces: Pieces) -> str:
    """The sentence without its weights."""
    return "".join(text for text, _ in pieces)


def plural(number: int, noun: str) -> str:
    """ "1 hole", "2 holes", "no holes"."""
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def _say(*parts: str | Pieces) -> Pieces:
    """Plain texts and pieces one after another."""
    pieces: Pieces = []
    for part in parts:
        pieces += [(part, False)] if isinstance(part, str) else part
    return pieces


def _bold(value: int | str) -> Pieces:
    return [(str(value), True)]


def _count(number: int, noun: str) -> Pieces:
    return _bold(plural(number, noun))


def _joined(parts: Iterable[Pieces], separator: str = "; ", last: str | None = None) -> Pieces:
    """Clauses one after another; all but the first begin small."""
    clauses = list(parts)
    pieces = clauses[0]
    for number, clause in enumerate(clauses[1:], 2):
        first, bold = clause[0]
        between = last if last is not None and number == len(clauses) else separator
        pieces = _say(pieces, between, [(first[:1].lower() + first[1:], bold), *clause[1:]])
    return pieces


def _listed(items: Sequence[object]) -> str:
    """ "1, 2 and 3"."""
    words = [str(item) for item in items]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _rejected(row: RowTrace) -> list[int]:
    """Slots of the drafts that were not kept."""
    return row.slots[1 + row.num_accepted : 1 + row.num_drafted]


def _kept(row: RowTrace) -> Pieces:
    """ "Row 0 keeps 1 of 2 drafts"."""
    count = _bold(f"{row.num_accepted} of {row.num_drafted}")
    return _say(f"Row {row.row} keeps ", count, " draft" if row.num_drafted == 1 else " drafts")


def _prefill(trace: GenerationTrace, step: StepTrace) -> Pieces:
    tokens = sum(len(row.input_token_ids) for row in step.rows)
    text = _say(f"Prefill: {plural(len(step.rows), 'prompt')}, ", _count(tokens, "token"))
    if trace.config.get("cache_layout") != "padded":
        return _say(text, ", no padding. Each row’s cursor starts at the end of its own prompt.")
    pads = sum(row.next_slot - len(row.slots) for row in step.rows)
    start = f". The shared cursor starts after the longest prompt, at slot {step.rows[0].next_slot}: "
    return _say(text, start, _count(pads, "prompt pad"), ".")


@dataclass
class _Step:
    """One decode step. `over`: rejected cells that each row writes over."""

    trace: GenerationTrace
    step: StepTrace
    over: Sequence[int]

    def __post_init__(self) -> None:
        self.shared = self.trace.config.get("cache_layout") == "padded"
        self.packed = self.trace.config.get("input_layout") == "packed"
        self.live = [row for row in self.step.rows if row.kind == "decode"]
        self.finished = [row for row in self.step.rows if row.kind == "finished"]
        self.drafting = [row for row in self.live if row.num_drafted]
        self.few = len(self.live) <= FEW_ROWS

    def token(self, token_id: int) -> str:
        """A token in quotation marks."""
        text = visible(self.trace.tokens.get(str(token_id), f"id {token_id}")).strip() or "space"
        return f"“{text if len(text) <= LONGEST_TOKEN else text[: LONGEST_TOKEN - 1] + '…'}”"

    def last(self, row: RowTrace) -> str:
        """The last token that a row emits: the target's own, or an accepted end of sequence."""
        return self.token(row.emitted_token_ids[-1])

    def draft(self) -> Pieces:
        """Who drafts how many tokens."""
        if not self.drafting:
            if len(self.live) == 1:
                return _say(f"Row {self.live[0].row} drafts ", _bold("nothing"), " and feeds one token.")
            return _say("The live rows draft ", _bold("nothing"), " and feed one token each.")
        if self.few:
            return _say(_joined(self._drafts_of(row) for row in self.live), ".")
        best = max(self.drafting, key=lambda row: row.num_drafted)
        if all(row.num_drafted == best.num_drafted for row in self.live):
            return _say(f"Each of {len(self.live)} rows drafts ", _count(best.num_drafted, "token"), ".")
        others = [row.num_drafted for row in self.drafting if row is not best]
        pieces = _say(self._drafts_of(best), "" if best.num_drafted in others else ", the most")
        if len(others) == 1:
            pieces = _say(pieces, "; 1 other row drafts ", _bold(others[0]))
        elif others:
            pieces = _say(pieces, f"; {len(others)} other rows draft ", _bold(sum(others)), " together")
        without = len(self.live) - len(self.drafting)
        tail = f"; {without} draft{'s' if without == 1 else ''} none." if without else "."
        return _say(pieces, tail)

    def _drafts_of(self, row: RowTrace) -> Pieces:
        if not row.num_drafted:
            return _say(f"Row {row.row} drafts none")
        return _say(f"Row {row.row} drafts ", _count(row.num_drafted, "token"))

    def pack(self) -> Pieces:
        """How many rows the dense layers get."""
        counts = self.step.account.input_rows
        total = _count(sum(counts.values()), "input row")
        if self.packed:
            return _say(total, f" from {plural(len(self.live), 'row')} of the batch, ", _bold("no pads"), ".")
        width, batch = len(self.live[0].input_token_ids), len(self.step.rows)
        pads = _say(_bold(counts["pad"]), " of them ", "a pad" if counts["pad"] == 1 else "pads")
        pads = pads if counts["pad"] else _bold("no pads")
        filled = f"Every row is filled up to {width}: {batch} × {width} = "
        fed = filled if width > 1 else "Every row feeds one token: "
        return _say(fed, total, ", ", pads, ".", self._still_fed())

    def _still_fed(self) -> Pieces:
        """Finished rows that cost dense rows."""
        wasted = self.step.account.input_rows["finished"]
        if not wasted:
            return []
        many = len(self.finished) > 1
        who = f" {len(self.finished)} rows are finished" if many else f" Row {self.finished[0].row} is finished"
        return _say(f"{who} but still fed ", _count(wasted, "input row"), ".")

    def write(self) -> Pieces:
        """Where the new keys and values go."""
        if not self.shared:
            return self._own_writes()
        tokens = sum(1 + row.num_drafted for row in self.live)
        pads = sum(row.input_kinds.count("pad") for row in self.live)
        who = f"Row {self.live[0].row} writes" if len(self.live) == 1 else "All rows write"
        if self.finished and len(self.live) > 1:
            who = "All live rows write"
        written = _say(_count(tokens, "token"), " and " if pads else "", _count(pads, "pad") if pads else "")
        return _say(f"{who} from slot ", _bold(self.live[0].cache_start), ": ", written, ".")

    def _own_writes(self) -> Pieces:
        if self.few:
            return _say(_joined(self._writes_of(row) for row in self.live), ".")
        low = min(self.live, key=lambda row: row.cache_start)
        high = max(self.live, key=lambda row: row.cache_start)
        span = _say(_bold(low.cache_start), f" in row {low.row} to slot ", _bold(high.cache_start))
        pieces = _say("Each row writes from its own cursor, slot ", span, f" in row {high.row}")
        over = sum(self.over)
        return _say(pieces, ", over ", _count(over, "rejected cell"), " in all.") if over else _say(pieces, ".")

    def _writes_of(self, row: RowTrace) -> Pieces:
        pieces = _say(f"Row {row.row} writes from slot ", _bold(row.cache_start))
        over = self.over[row.row]
        return _say(pieces, ", over ", _count(over, "rejected cell")) if over else pieces

    def attend(self, told: int | None = None, place: int = 1) -> Pieces:
        """What one query reads. The query depends on tokens alone, so that both panes speak of the same one.

        It is the first draft, or else the pending token, of the first row with the fewest cached tokens: on a shared
        write column no other row has more dead slots. A lesson may ask for a row's own query by its place.
        """
        row = min(self.live, key=lambda row: row.position_ids[0]) if told is None else self.step.rows[told]
        place = min(row.num_drafted, place)
        dead = _dead(row)
        position = row.position_ids[place]
        query = f"Query {self.token(row.input_token_ids[place])} of row {row.row} (position {position}) reads its "
        pieces = _say(query, _bold(position + 1), " own tokens" if position else " own token")
        if not dead:
            where = f", in slots 0 to {position}. " if position else ", in slot 0. "
            return _say(pieces, where, _bold("Nothing else"), " is loaded.")
        return _say(pieces, ". It also loads ", _count(dead, "dead slot"), self._causes(row, dead))

    def _causes(self, row: RowTrace, dead: int) -> str:
        start = self.trace.steps[0].rows[row.row]
        pads = start.next_slot - len(start.slots)
        if dead == 1:
            return f", a {'prompt pad' if pads else 'hole'}, and gives it weight 0."
        kinds = [plural(pads, "prompt pad"), plural(dead - pads, "hole")]
        if pads in (0, dead):
            kinds = [f"{'both' if dead == 2 else 'all'} {'prompt pads' if pads else 'holes'}"]
        return f", {_listed(kinds)}, and gives them weight 0."

    def verify(self) -> Pieces:
        """What the target says to the drafts."""
        if self.few:
            first, *others = (self._verdict_of(row) for row in self.live)
            return _say(first, *(_say(" ", verdict) for verdict in others))
        if not self.drafting:
            return _say("The target adds ", _bold("one token"), f" to each of {len(self.live)} rows.")
        accepted = sum(row.num_accepted for row in self.live)
        drafted = sum(row.num_drafted for row in self.live)
        if not accepted:
            return _say("The target keeps ", _bold("none"), f" of {plural(drafted, 'draft')}.")
        best = max(self.drafting, key=lambda row: row.num_accepted)
        alone = sum(row.num_accepted == best.num_accepted for row in self.drafting) == 1
        together = f"{', the most' if alone else ''}; all rows together keep "
        pieces = _say(_kept(best), together, _bold(f"{accepted} of {drafted}"), ".")
        losers = sum(not row.num_accepted for row in self.drafting)
        return _say(pieces, f" {plural(losers, 'row')} keep{'s' if losers == 1 else ''} none.") if losers else pieces

    def _lost(self, row: RowTrace) -> int:
        """Tokens that the row gained and must give up."""
        return verdict(row, self.trace.config.get("eos_token_ids") or ())[1] - row.num_emitted if self.trace.cut else 0

    def _verdict_of(self, row: RowTrace) -> Pieces:
        if not row.num_drafted:
            return _say(f"Row {row.row} has no draft; the target says {self.last(row)}.")
        if self._lost(row):
            right = _say(
                f"Row {row.row} has ", _bold(f"{verdict(row)[0]} of {plural(row.num_drafted, 'draft')}"), " right"
            )
            return _say(right, ", but is cut to ", _count(row.num_emitted, "token"), ".")
        if row.next_kind == "bonus":
            kept = _say("all ", _bold(row.num_drafted)) if row.num_drafted > 1 else _say("its ", _bold("1 draft"))
            return _say(f"Row {row.row} keeps ", kept, f"; the target adds {self.last(row)}.")
        if row.next_kind is None:
            return _say(_kept(row), f" and ends with {self.last(row)}.")
        return _say(_kept(row), f"; the target says {self.last(row)} instead.")

    def commit(self) -> Pieces:
        """How the cursors move, what stays behind, and who ends."""
        if not self.drafting:
            pieces = self._plain_commit()
        else:
            pieces = self._shared_commit() if self.shared else self._own_commit()
        ended = [row.row for row in self.live if row.finished]
        if not ended:
            return pieces
        if len(ended) > FEW_ROWS:
            return _say(pieces, f" {len(ended)} rows end.")
        return _say(pieces, f" Row {ended[0]} ends." if len(ended) == 1 else f" Rows {_listed(ended)} end.")

    def _plain_commit(self) -> Pieces:
        moves = "Each cursor moves by 1: " if len(self.live) > 1 else "Its cursor moves by 1: "
        moves = "The shared cursor moves by 1: " if self.shared else moves
        rows = f"Row {self.live[0].row} gains" if len(self.live) == 1 else f"Each of {len(self.live)} live rows gains"
        return _say(f"{rows} one token of the target’s own; nothing was drafted. {moves}", _bold("no holes"), ".")

    def _shared_commit(self) -> Pieces:
        largest = max(row.num_emitted for row in self.live)
        behind = [row for row in self.live if row.holes_added]
        if self.trace.cut:
            return self._cut_commit(largest)
        if self.few:
            keeps = _joined(self._keeps(row) for row in self.live)
            pieces = _say(keeps, f". The shared cursor moves by the largest gain, {largest}")
            if not behind:
                return _say(pieces, ": ", _bold("no holes"), ".")
            left = [_say(f"row {row.row} leaves ", _count(len(row.holes_added), "hole")) for row in behind]
            return _say(pieces, ", so ", _joined(left, " and "), ".")
        start = _say("Every row moves by the largest gain, ", _bold(largest), ": ")
        if not behind:
            return _say(start, _bold("no holes"), " in this step.")
        holes = _count(sum(len(row.holes_added) for row in behind), "hole")
        if len(behind) == 1:
            return _say(start, f"only row {behind[0].row} leaves ", holes, ".")
        worst = max(behind, key=lambda row: len(row.holes_added))
        most = f", {len(worst.holes_added)} of them in row {worst.row}."
        return _say(start, f"{len(behind)} live rows leave ", holes, most)

    def _cut_commit(self, gain: int) -> Pieces:
        keeps = _joined(self._keeps(row) for row in self.live) if self.few else _say(f"{len(self.live)} rows are cut")
        lost = sum(self._lost(row) for row in self.live)
        what = "nothing" if not lost else plural(lost, "confirmed token")
        moves = f". The shared cursor moves by the smallest gain, {gain}: "
        return _say(keeps, moves, _bold(what), f" {'are' if lost > 1 else 'is'} thrown away.")

    def _keeps(self, row: RowTrace) -> Pieces:
        if not row.num_drafted:
            return _say(f"Row {row.row} takes the target’s own {self.last(row)}")
        if self._lost(row):
            return _say(
                f"Row {row.row} keeps ", _bold(f"{row.num_emitted} of {row.num_emitted + self._lost(row)} tokens")
            )
        if row.next_kind is None or len(self.live) == FEW_ROWS:
            return _kept(row)
        extra = "the bonus" if row.next_kind == "bonus" else "the target’s own"
        return _say(_kept(row), f" and {extra} {self.last(row)}")

    def _own_commit(self) -> Pieces:
        if not self.few:
            tokens = plural(sum(row.num_emitted for row in self.live), "token")
            fed = _count(self.step.account.input_rows["useful"], "useful input row")
            best = max(self.live, key=lambda row: row.num_emitted)
            most = f", most in row {best.row} (+{best.num_emitted}). Each cursor moves by its own gain: "
            return _say(f"{tokens} from ", fed, most, _bold("no holes"), ".")
        first, *others = self.live
        gains = _say(f"Row {first.row} gains ", _count(first.num_emitted, "token"))
        gains = _say(gains, *(_say(f", row {row.row} gains ", _bold(row.num_emitted)) for row in others))
        moves = _joined((_bold(f"{row.cache_start} → {row.next_slot}") for row in self.live), ", ", " and ")
        which = "Its cursor moves" if len(self.live) == 1 else "Each cursor moves"
        return _say(gains, f". {which} by its own gain, ", moves, ": no holes.", self._left_over())

    def _left_over(self) -> str:
        """What becomes of rejected drafts in a ragged cache."""
        rows = [row for row in self.live if _rejected(row) and not row.finished]
        if not rows or len(self.live) == FEW_ROWS:
            return ""
        if len(rows) > 1:
            counts = _listed([f"{len(_rejected(row))} in row {row.row}" for row in rows])
            return f" Rejected drafts stay beyond the cursors until they are written over: {counts}."
        slots, whose = _rejected(rows[0]), f" Row {rows[0].row}’s"
        if len(slots) > 1:
            drafts = f"{whose} {len(slots)} rejected drafts stay in slots {slots[0]} to {slots[-1]}"
            return f"{drafts} until they are written over."
        text = self.token(rows[0].draft_token_ids[-1])
        return f"{whose} rejected {text} stays in slot {slots[0]} until the next step writes over it."


def _dead(row: RowTrace) -> int:
    """Slots before the row's first new one that hold no visible token."""
    return row.cache_start - row.position_ids[0]
