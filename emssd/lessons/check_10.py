"""Lesson 10: three numbers from a raw trace, against the trace's own summary."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from emssd.acceptance import Acceptance
from emssd.lessons.batches import random_batch, recorded
from emssd.lessons.checking import CALLED, Failure, Solution, short
from emssd.simulator import simulate
from emssd.trace import GenerationTrace

TITLE = "acceptance_rate, mean_emitted, waste"
SEEDS = 24
METHODS = ("vanilla", "ems-sd", "packed-input", "ragged-cache", "greedy")
RECORDED = (("figure2", "vanilla"), ("early-finisher", "vanilla"), ("slow-row", "ragged-cache"), ("no-copy", "greedy"))
KINDS = ("pad_rows", "finished_rows", "dead_slots")
CLOSE = 1e-9
OR = ", or "
"""Between reasons that a number leaves open."""


@dataclass(frozen=True)
class Case:
    """A trace to measure.

    Args:
        trace: whole, or the beginning of a run.
        source: where it comes from, in words.
        seed: that made it; None for a recorded one.
    """

    trace: GenerationTrace
    source: str
    seed: int | None = None

    @property
    def name(self) -> str:
        """The case in words: its source, and the step after which the run was stopped."""
        last = len(self.trace.decode_steps)
        return f"{self.source}, after {f'step {last}' if last else 'prefill'}"

    @property
    def raw(self) -> dict[str, Any]:
        """The trace as plain data without the steps' accounts: these would be the answer to `waste`."""
        data = self.trace.to_dict()
        for step in data["steps"]:
            del step["account"]
        return data

    def failure(self, what: str, **fields: Any) -> Failure:
        """What is wrong, with this case."""
        return Failure(f"{what} ({self.name}).", **{**self.where, **fields})

    @property
    def where(self) -> dict[str, Any]:
        """Fields of a failure."""
        traces = {self.trace.method: self.trace} if self.trace.decode_steps else None
        return {"seed": self.seed, "step": len(self.trace.decode_steps) or None, "traces": traces}

    def measured(self, solution: Solution, name: str) -> Any:
        """What the learner's function says of this trace."""
        return solution.call(name, self.raw, **{**self.where, CALLED: f"the trace of a {self.name}"})


def check(solution: Solution) -> str:
    """Run the three functions on recorded, invented, truncated and unfinished traces.

    Raises:
        Failure: the first number that is not right.
    """
    cases = list(all_cases())
    for case in cases:
        _check_identities(case)
        for measure in (_check_rate, _check_mean, _check_waste):
            try:
                measure(solution, case)
            except Failure as failure:
                raise _clearest(measure, solution, case, failure) from None
    unfinished, cut = sum(not case.trace.finished for case in cases), sum(map(_cut_short, cases))
    return (
        f"{len(cases)} traces of {len(METHODS)} methods, {unfinished} of them unfinished, {cut} with a step that an "
        "end of sequence cut short."
    )


def _clearest(measure: Callable[[Solution, Case], None], solution: Solution, case: Case, whole: Failure) -> Failure:
    """The failure after the fewest steps whose reason is no choice between several; else the one of the whole case."""
    for kept in range(2, len(case.trace.steps)):
        try:
            measure(solution, _beginning(case, kept))
        except Failure as failure:
            if OR not in (failure.why or ""):
                return failure
    return whole


def all_cases() -> Iterator[Case]:
    """Recorded runs, small random batches with ends of sequence, and larger simulated ones, whole and cut off."""
    for preset, method in RECORDED:
        yield Case(recorded(preset, method), f"recorded run, preset {preset}, {method}")
    for seed in range(SEEDS):
        draw = Random(f"lesson 10 {seed}")
        method = METHODS[seed % len(METHODS)]
        small = Case(random_batch(seed, draw.randint(3, 8), methods=(method,))[method], f"random batch, {method}", seed)
        yield small
        yield _beginning(small, draw.randint(1, len(small.trace.steps) - 1))
        yield _simulated(seed, draw, METHODS[(seed + 2) % len(METHODS)])


def _simulated(seed: int, draw: Random, method: str) -> Case:
    acceptance = Acceptance(
        hit_rate=draw.uniform(0.3, 0.95),
        token_rate=draw.uniform(0.4, 0.97),
        spread=1.0,
        prompt_mean=20,
        prompt_sd=12,
        prompt_max=60,
        num_draft_tokens=draw.randint(2, 8),
        output_tokens=draw.randint(8, 24),
    )
    trace = simulate(acceptance, draw.randint(2, 6), [method], seed)[method]
    return Case(trace, f"simulated batch, {method}", seed)


def _beginning(case: Case, kept: int) -> Case:
    """The run as it was when it was stopped: prefill and `kept` - 1 decode steps."""
    trace = case.trace
    steps, requests = trace.steps[:kept], []
    for number, request in enumerate(trace.rows):
        output = [token for step in steps for token in step.rows[number].emitted_token_ids]
        reason = request.finish_reason if steps[-1].rows[number].finished else None
        requests.append(replace(request, output_token_ids=output, output_text=None, finish_reason=reason))
    return Case(replace(trace, steps=steps, rows=requests), case.source, case.seed)


def _cut_short(case: Case) -> bool:
    """Whether some step emitted no token of the target's own."""
    return any(row.num_emitted == row.num_accepted for row in case.trace.live_rows())


def _check_identities(case: Case) -> None:
    """What must hold of any trace, whoever measures it."""
    for number, request in enumerate(case.trace.rows):
        emitted = sum(step.rows[number].num_emitted for step in case.trace.steps)
        assert emitted == len(request.output_token_ids)
    assert all(row.num_accepted <= row.num_drafted for row in case.trace.live_rows())


def _check_rate(solution: Solution, case: Case) -> None:
    summary = case.trace.summary()
    got = case.measured(solution, "acceptance_rate")
    right = summary["acceptance_rate"]
    if right is None or got is None:
        if got is not right:
            raise case.failure(
                "acceptance_rate is wrong where nothing was drafted" if right is None else "acceptance_rate is None",
                expected=right,
                got=got,
                why="No drafts, no rate: None. 0 would say that drafts were tried and all rejected."
                if right is None
                else f"{summary['drafted']} drafts were judged.",
            )
        return
    _check_number("acceptance_rate", got, right, case)
    if got > 1 + CLOSE:
        raise case.failure(
            "acceptance_rate is larger than 1",
            expected=right,
            got=got,
            why="The target's own token (bonus, recovered or plain) was never drafted: it is not accepted either.",
        )
    if not _close(got, right):
        raise case.failure(
            "acceptance_rate is not accepted / drafted", expected=right, got=got, why=_why_rate(case.trace, got)
        )


def _why_rate(trace: GenerationTrace, got: float) -> str:
    """Names what was computed instead, where that can be told from the number."""
    live, summary = list(trace.live_rows()), trace.summary()
    drafting, most = [row for row in live if row.num_drafted], trace.config["num_draft_tokens"]
    accepted, drafted, emitted = (summary[name] for name in ("accepted", "drafted", "decode_tokens"))
    fractions = {
        "emitted / drafted: the target's own token was never drafted": (emitted, drafted),
        "(emitted - 1) / drafted: a step that ends inside the drafts emits no token of the target's own": (
            emitted - len(live),
            drafted,
        ),
        "accepted / emitted: the target's own tokens were never drafted": (accepted, emitted),
        "accepted / (K x row-steps): a row may draft fewer than K": (accepted, most * len(live)),
        "accepted / live row-steps: what was kept, by steps and not by drafts": (accepted, len(live)),
    }
    found = _named(fractions, got)
    if _close(got, _mean([row.num_accepted / row.num_drafted for row in drafting])):
        found.append("the mean of each step's rate, where one draft weighs as much as seven: sum first, divide once")
    right = accepted / drafted
    found += _rounded(right, got)
    asked = f"Asked for are {accepted} drafts kept / {drafted} judged, in live rows of decode steps."
    return f"That is {OR.join(found)}. {asked}" if found else asked


def _check_mean(solution: Solution, case: Case) -> None:
    got = case.measured(solution, "mean_emitted")
    right = case.trace.summary()["mean_acceptance_length"]
    live = sum(1 for _ in case.trace.live_rows())
    if right is None or got is None:
        if got is not right:
            raise case.failure(
                "mean_emitted is wrong where no row was decoded" if right is None else "mean_emitted is None",
                expected=right,
                got=got,
                why="This run stopped after prefill: there is no decode step to take a mean of."
                if right is None
                else f"{live} row-steps were decoded.",
            )
        return
    _check_number("mean_emitted", got, right, case)
    if not _close(got, right):
        raise case.failure(
            "mean_emitted is not the mean over live rows of decode steps",
            expected=right,
            got=got,
            why=_why_mean(case.trace, got),
        )


def _why_mean(trace: GenerationTrace, got: float) -> str:
    """Names what was computed instead, where that can be told from the number."""
    live, steps, summary = list(trace.live_rows()), trace.decode_steps, trace.summary()
    rows, tokens, total = len(trace.rows), summary["decode_tokens"], summary["tokens"]
    drafting = [row for row in live if row.num_drafted]
    fractions = {
        "accepted / live row-steps: the target's own token is gained, too": (summary["accepted"], len(live)),
        "(accepted + 1) / live row-steps: a step that ends inside the drafts adds no token of the target's own": (
            summary["accepted"] + len(live),
            len(live),
        ),
        "(drafted + 1) / live row-steps: rejected drafts are no gain": (summary["drafted"] + len(live), len(live)),
        "emitted / steps of the batch: that is what all rows gain together": (tokens, len(steps)),
        "emitted / row-steps with finished rows in: they are not decoded": (tokens, rows * len(steps)),
        "prefill counted as a step: its token is no decode step's": (total, rows + len(live)),
        "prefill's tokens among those of decode steps": (total, len(live)),
        "prefill and finished rows counted": (total, rows * (1 + len(steps))),
        "the steps with drafts alone: a live row without drafts counts, too": (
            sum(row.num_emitted for row in drafting),
            len(drafting),
        ),
    }
    said = _named(fractions, got)
    means = {
        "the mean of the steps' means: sum first, divide once": [
            _mean([row.num_emitted for row in step.rows if row.kind == "decode"]) for step in steps
        ],
        "the mean of the rows' means: sum first, divide once": [
            _mean([row.num_emitted for row in each if row.kind == "decode"])
            for each in zip(*(step.rows for step in steps), strict=True)
        ],
    }
    said += [name for name, values in means.items() if _close(got, _mean(values))]
    right = tokens / len(live)
    said += _rounded(right, got)
    asked = f"Asked for are {tokens} tokens / {len(live)} live row-steps of decode steps."
    return f"That is {OR.join(said)}. {asked}" if said else f"{asked} Prefill's tokens and finished rows are out."


def _named(fractions: Mapping[str, tuple[int, int]], got: float) -> list[str]:
    """The names of the fractions that a number is, with numerator and denominator; one name for each fraction."""
    names: dict[tuple[int, int], str] = {}
    for name, fraction in fractions.items():
        if fraction[1] and _close(got, fraction[0] / fraction[1]):
            names.setdefault(fraction, name)
    return [f"{name} ({top} / {below})" for (top, below), name in names.items()]


def _rounded(right: float, got: float) -> list[str]:
    """Says so if a number was rounded, or lost its decimals."""
    near = [math.floor(right), *(round(right, digits) for digits in range(6))]
    return [f"{right:.6g} rounded: return the quotient as / gives it"] if got in near else []


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _check_waste(solution: Solution, case: Case) -> None:
    got = case.measured(solution, "waste")
    if not isinstance(got, dict) or set(got) != set(KINDS):
        what = f"waste must return a dict with exactly {', '.join(KINDS)}"
        raise case.failure(what, expected=true_waste(case.trace), got=got)
    for kind, right in true_waste(case.trace).items():
        value = got[kind]
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or value != right:
            sub = "attend" if kind == "dead_slots" else "pack"
            raise case.failure(
                f"waste's {kind} is wrong", expected=right, got=value, sub=sub, why=_why_waste(kind, case.trace)
            )


def true_waste(trace: GenerationTrace) -> dict[str, int]:
    """The three counts from the accounts of the trace."""
    summary = trace.summary()
    scanned = summary["kv_slots_scanned"]["per_token"]
    return {
        "pad_rows": summary["input_rows"]["pad"],
        "finished_rows": summary["input_rows"]["finished"],
        "dead_slots": scanned["prompt_pad"] + scanned["hole"],
    }


def _why_waste(kind: str, trace: GenerationTrace) -> str:
    if kind == "pad_rows":
        return "Count the pads of rows of kind decode; what is fed for finished rows is another kind of waste."
    if kind == "finished_rows":
        return "Count everything that rows of kind finished were fed; a packed input feeds them nothing."
    scanned = trace.summary()["kv_slots_scanned"]["per_token"]
    return (
        f"Pending and draft tokens read {scanned['hole']} holes and {scanned['prompt_pad']} slots of prompt padding "
        "here. A hole is read again by every later query of its row; its queries of one step all see the same number "
        "of dead slots."
    )


def _check_number(name: str, value: object, right: float, case: Case) -> None:
    good = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    if not good:
        raise case.failure(f"{name} must return a number or None, not {short(value, 80)}", expected=right, got=value)


def _close(got: float, right: float) -> bool:
    return math.isclose(got, right, rel_tol=CLOSE, abs_tol=CLOSE)
