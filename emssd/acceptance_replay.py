"""Replay of accepted lengths: drafts made so that the target accepts as many of them as recorded or invented.

Speed depends on how many drafts are fed and accepted, hardly on what the tokens say. With the target's own greedy
continuation known, a draft of its next n tokens and one wrong token is accepted for exactly n, by ordinary
verification: the output stays plain greedy output. So weights that do not matter, also random ones, can be measured.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from emssd.acceptance import Acceptance, draw_rows
from emssd.config import SpeculativeConfig
from emssd.decoding import GenerationRun
from emssd.drafting import Batch, DrafterSession, DraftRow
from emssd.errors import ConfigError, shown
from emssd.language_model import LanguageModel
from emssd.trace import GenerationTrace

log = logging.getLogger("emssd")

Lengths = Sequence[Sequence[tuple[int, int]]]
"""[rows][decode steps] of (drafts fed, drafts accepted)."""


@dataclass(frozen=True)
class AcceptanceReplayDrafter:
    """Drafts that are accepted to given lengths.

    Of a step that asks for (d, a), min(d, limit) drafts are fed and min(a, d, limit) accepted, where the limit is the
    run's own cap (its draft length, tokens still to come, the context). An end of sequence in the continuation ends
    the row as always. The true continuation is decoded once, without drafts, when a run starts and `outputs` is None.
    Where a run leaves the continuation by a rounding tie, the row is decoded plainly once more from there, inside
    that step's draft time, and the package's log says so.

    Args:
        lengths: [rows][decode steps] of (drafts, accepted), at least as many rows as the run has.
        outputs: [rows] the target's greedy output of each row, as long as the run's; None decodes it.
        repeat: begin again where a row's lengths are used up; else it gets no more drafts.

    Raises:
        ConfigError: lengths are not such pairs, or rows are missing.
    """

    lengths: Lengths
    outputs: Sequence[Sequence[int]] | None = field(default=None, repr=False)
    repeat: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", check_lengths(self.lengths))
        if self.outputs is not None and len(self.outputs) < len(self.lengths):
            raise ConfigError(
                f"The acceptance replay has lengths for {len(self.lengths)} rows and outputs for {len(self.outputs)}: "
                "give one output per row."
            )

    @classmethod
    def from_trace(cls, trace: GenerationTrace, same_weights: bool = False) -> AcceptanceReplayDrafter:
        """The lengths of a recorded run. `same_weights` takes its outputs as the continuation, too."""
        outputs = [row.output_token_ids for row in trace.rows] if same_weights else None
        return cls(trace_lengths(trace), outputs)

    @classmethod
    def from_acceptance(cls, acceptance: Acceptance, num_rows: int, seed: int = 0) -> AcceptanceReplayDrafter:
        """Invented lengths: those that `simulator` gives rows 0..num_rows - 1 under the same seed.

        Run it with `max_new_tokens` = `acceptance.output_tokens`, for which they are made.
        """
        return cls(invented_lengths(acceptance, num_rows, seed))

    def start(self, lm: LanguageModel, rows: Sequence[DraftRow], batch: Batch) -> DrafterSession:
        """Learn the continuations.

        Raises:
            ConfigError: the run has more rows than there are lengths, or an output does not fit its row.
        """
        if len(rows) > len(self.lengths):
            raise ConfigError(
                f"The acceptance replay has lengths for {len(self.lengths)} rows, but the run has {len(rows)}."
            )
        return _ReplaySession(self, lm, rows, batch)

    def describe(self) -> dict[str, Any]:
        """Name, and how many rows and steps there are lengths for."""
        steps = max(map(len, self.lengths), default=0)
        return {"name": "replay", "rows": len(self.lengths), "steps": steps, "repeat": self.repeat}


class _ReplaySession(DrafterSession):
    def __init__(
        self, drafter: AcceptanceReplayDrafter, lm: LanguageModel, rows: Sequence[DraftRow], batch: Batch
    ) -> None:
        super().__init__()
        self.drafter, self.lm, self.batch, self.step = drafter, lm, batch, 0
        texts = {row.index: list(row.token_ids) for row in rows}
        self.prompt_lengths = {row.index: row.place.prompt_length for row in rows}
        if drafter.outputs is None:
            prompts = [texts[row][: self.prompt_lengths[row]] for row in sorted(texts)]
            self.outputs = dict(zip(sorted(texts), self._decode(prompts, batch.config.max_new_tokens), strict=True))
        else:
            self.outputs = {row: list(drafter.outputs[row]) for row in texts}

    def _decode(self, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
        """[prompts] greedy outputs, without drafts."""
        config = self.batch.config
        plain = SpeculativeConfig.greedy(
            "ragged",
            max_new_tokens=max_new_tokens,
            eos_token_ids=config.eos_token_ids,
            attention=config.attention,
        )
        run = GenerationRun(self.lm, prompts, plain)
        run.should_stop = self.batch.should_stop
        for _ in run:
            pass
        return [row.output_token_ids for row in run.trace.rows]

    def propose(self, rows: Sequence[DraftRow], limits: Sequence[int]) -> list[list[int]]:
        self.step += 1
        return [self._draft(row, limit) for row, limit in zip(rows, limits, strict=True)]

    def _draft(self, row: DraftRow, limit: int) -> list[int]:
        drafted, accepted = self._lengths(row.index)
        drafted = min(drafted, limit)
        accepted = min(accepted, drafted)
        if drafted <= 0:
            return []
        coming = self._coming(row)
        drafts = (coming + [0] * drafted)[:drafted]  # past an end of sequence it does not matter what is fed
        if accepted < min(drafted, len(coming)):
            drafts[accepted] = (drafts[accepted] + 1) % self.lm.vocab_size
        return drafts

    def _lengths(self, row: int) -> tuple[int, int]:
        steps = self.drafter.lengths[row]
        place = self.step - 1
        if self.drafter.repeat and steps:
            place %= len(steps)
        return steps[place] if place < len(steps) else (0, 0)

    def _coming(self, row: DraftRow) -> list[int]:
        """What the target will say next, as far as its output goes."""
        start = self.prompt_lengths[row.index]
        done = row.token_ids[start:]
        known = self.outputs[row.index]
        if known[: len(done)] != done:
            log.info("Acceptance replay: row %d left its known continuation and is decoded once more.", row.index)
            left = self.batch.config.max_new_tokens - len(done)
            known = self.outputs[row.index] = [*done, *self._decode([row.token_ids], left)[0]]
        return known[len(done) :]


def check_lengths(lengths: Any) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Lengths as tuples.

    Raises:
        ConfigError: they are no lists of pairs of whole numbers with 0 <= accepted <= drafts; says where.
    """
    if not isinstance(lengths, (list, tuple)) or not lengths:
        raise ConfigError(f"Accepted lengths must be a list per row of (drafts, accepted) pairs, not {shown(lengths)}.")
    return tuple(_check_row(row, steps) for row, steps in enumerate(lengths))


def _check_row(row: int, steps: Any) -> tuple[tuple[int, int], ...]:
    if not isinstance(steps, (list, tuple)):
        raise ConfigError(f"Accepted lengths, row {row}: must be a list of (drafts, accepted) pairs.")
    for step, pair in enumerate(steps, start=1):
        good = isinstance(pair, (list, tuple)) and len(pair) == 2
        good = good and all(isinstance(each, int) and not isinstance(each, bool) for each in pair)
        if not good or not 0 <= pair[1] <= pair[0]:
            raise ConfigError(
                f"Accepted lengths, row {row}, step {step}: must be (drafts, accepted), whole numbers with "
                f"0 <= accepted <= drafts, not {shown(pair)}."
            )
    return tuple((pair[0], pair[1]) for pair in steps)


def trace_lengths(trace: GenerationTrace) -> list[list[tuple[int, int]]]:
    """[rows][decode steps in which the row was live] of (drafts, accepted) of a recorded run."""
    lengths: list[list[tuple[int, int]]] = [[] for _ in trace.rows]
    for row in trace.live_rows():
        lengths[row.row].append((row.num_drafted, row.num_accepted))
    return lengths


def invented_lengths(acceptance: Acceptance, num_rows: int, seed: int = 0) -> list[list[tuple[int, int]]]:
    """[rows][decode steps in which the row is live] of (drafts, accepted) of invented rows."""
    rows = draw_rows(acceptance, num_rows, seed)
    return [
        [(int(drafted), int(gained) - 1) for drafted, gained in zip(row_drafted, row_gained, strict=True) if gained]
        for row_drafted, row_gained in zip(rows.drafted.T, rows.gained.T, strict=True)
    ]
