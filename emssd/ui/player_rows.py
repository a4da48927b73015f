"""One row in one step as a flat list of numbers, and the table of words that the numbers point into."""

from __future__ import annotations

from emssd.trace import GenerationTrace, RowTrace
from emssd.ui.token_text import visible

KINDS = {"prefill": 0, "decode": 1, "finished": 2}
NEXT_KINDS = {None: 0, "plain": 1, "recovered": 2, "bonus": 3}


class Words:
    """The table of visible token texts; one entry per token id and text."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.ids: list[int] = []
        self._places: dict[tuple[int, str | None], int] = {}

    def of(self, trace: GenerationTrace, token_id: int) -> int:
        """Index of a token's visible text."""
        text = trace.tokens.get(str(token_id))
        key = (token_id, text)
        if key not in self._places:
            self._places[key] = len(self.texts)
            self.texts.append(visible(f"id {token_id}" if text is None else text))
            self.ids.append(token_id)
        return self._places[key]


def encode_row(trace: GenerationTrace, row: RowTrace, words: Words) -> list[int]:
    """One row in one step, 14 numbers and three lists of known lengths.

    [kind, first slot written, slots written, first position (-1: nothing fed), drafted, accepted, emitted, next slot,
    cache_len, finished, pads fed, next kind, draft source (-1: none), holes added h, h slots,
    words fed (1 + drafted, of a decode row only), words of the target's answers (1 + drafted, 1 of prefill)].
    """
    fed = row.input_token_ids[: 1 + row.num_drafted] if row.kind == "decode" else []
    return [
        KINDS[row.kind],
        row.cache_start,
        len(row.slots),
        row.position_ids[0] if row.position_ids else -1,
        row.num_drafted,
        row.num_accepted,
        row.num_emitted,
        row.next_slot,
        row.cache_len,
        int(row.finished),
        row.input_kinds.count("pad"),
        NEXT_KINDS[row.next_kind],
        -1 if row.draft_source is None else row.draft_source,
        len(row.holes_added),
        *row.holes_added,
        *(words.of(trace, token) for token in fed),
        *(words.of(trace, token) for token in row.target_token_ids),
    ]


def encode_tops(trace: GenerationTrace, rows: int, words: Words) -> dict[str, list[list[list[float]]]]:
    """Where recorded, by "step.row": [judged positions][k] of [word, how far its logit lies below the best one's]."""
    tops = {}
    for step in trace.steps:
        for row in step.rows[:rows]:
            if row.top_token_ids and row.top_logit_gaps:
                tops[f"{step.index}.{row.row}"] = [
                    [[words.of(trace, token), gap] for token, gap in zip(best, gaps, strict=True)]
                    for best, gaps in zip(row.top_token_ids, row.top_logit_gaps, strict=True)
                ]
    return tops
