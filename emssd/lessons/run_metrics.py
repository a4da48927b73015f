"""Lesson 10's experiment: a run's numbers under either definition, and the identities that hold of any trace."""

from __future__ import annotations

from dataclasses import dataclass

from emssd.trace import GenerationTrace

Fraction = tuple[int, int]
"""Numerator and denominator; where the denominator is 0 there is no number."""


@dataclass(frozen=True)
class RunMetrics:
    """Counts of a run's decode steps; prefill enters `tokens` and `outputs` alone.

    Args:
        steps: decode steps; row_steps: pairs of a live row and a step.
        emitted, accepted, drafted: tokens of live rows.
        pads: pads fed for live rows; finished: rows of input fed for finished rows.
        holes, prompt_pads: dead slots by kind, read by pending and draft tokens, each query for itself.
        whole: row-steps that emit a token of the target's own behind the accepted drafts.
        cut: row-steps that an end of sequence inside the drafts left without one.
        outputs: [rows] (sum of emitted tokens, length of the output).
        unfinished: rows that have not ended.
    """

    steps: int
    row_steps: int
    emitted: int
    accepted: int
    drafted: int
    pads: int
    finished: int
    holes: int
    prompt_pads: int
    whole: int
    cut: int
    outputs: tuple[tuple[int, int], ...]
    unfinished: int

    def gain(self, own: bool) -> Fraction:
        """Tokens that a live row gains in a step: with the target's own token the mean acceptance length."""
        return (self.emitted if own else self.accepted), self.row_steps

    def share(self, own: bool) -> Fraction:
        """By drafted tokens: without the target's own token the acceptance rate, with it a number that can exceed 1."""
        return (self.emitted if own else self.accepted), self.drafted

    @property
    def per_step(self) -> Fraction:
        """Tokens that the whole batch gains in a step."""
        return self.emitted, self.steps

    @property
    def equal_rows(self) -> int:
        """Rows whose emitted tokens, prefill's among them, add up to their output."""
        return sum(emitted == length for emitted, length in self.outputs)


def measure(trace: GenerationTrace) -> RunMetrics:
    """The metrics of a whole run or the beginning of one, from `GenerationTrace.summary` and its live rows."""
    summary, live = trace.summary(), list(trace.live_rows())
    read = summary["kv_slots_scanned"]["per_token"]
    return RunMetrics(
        steps=summary["steps"],
        row_steps=len(live),
        emitted=summary["decode_tokens"],
        accepted=summary["accepted"],
        drafted=summary["drafted"],
        pads=summary["input_rows"]["pad"],
        finished=summary["input_rows"]["finished"],
        holes=read["hole"],
        prompt_pads=read["prompt_pad"],
        whole=sum(row.num_emitted == row.num_accepted + 1 for row in live),
        cut=sum(row.num_emitted == row.num_accepted for row in live),
        outputs=tuple(
            (sum(step.rows[number].num_emitted for step in trace.steps), len(request.output_token_ids))
            for number, request in enumerate(trace.rows)
        ),
        unfinished=sum(request.finish_reason is None for request in trace.rows),
    )


def quotient(fraction: Fraction) -> float | None:
    """The number, None where there is nothing to divide by."""
    return fraction[0] / fraction[1] if fraction[1] else None
