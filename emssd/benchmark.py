"""Measuring: warm-up, then repeats of everything in turn, every output held against plain decoding.

All entries of a batch run one after another, in the opposite order in every other repeat, so that a slow drift of the
machine favours none. A batch's prompts are fed once; every run starts from copies of their keys and values.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime
from itertools import product
from typing import Any

from emssd.bench_plan import TRANSFORMERS_LOOKUP, BenchPlan, Entry, PromptSet, repeats_at
from emssd.bench_state import BenchState, Record
from emssd.comparing import WARM_UP_TOKENS, Progress, environment, total_of
from emssd.decoding import GenerationRun
from emssd.drafting import Drafter
from emssd.language_model import LanguageModel
from emssd.memory import check_memory
from emssd.model_shape import ModelShape, WindowShares
from emssd.oracle import Difference, compare_outputs, plain_generate
from emssd.prefilled import PrefilledBatch, PrefilledRun, prefill_batch
from emssd.step_counts import trace_counts
from emssd.trace import PHASES, GenerationTrace
from emssd.transformers_baseline import timed_generate

DrafterMaker = Callable[[str, PromptSet, Sequence[int], Sequence[Sequence[int]]], Drafter | None]
"""(drafter, prompt set, numbers of the batch's prompts, their expected outputs) -> the drafter of a batch."""

DETAILS = (
    *("drafted", "accepted", "mean_acceptance_length", "acceptance_rate", "attention_launches", "holes"),
    *("input_rows", "kv_slots_scanned"),
)
"""Entries of a run's summary that are kept with its first repeat."""


def bench_environment(lm: LanguageModel) -> dict[str, Any]:
    """Where a benchmark is made: as in `compare`, with the processor's name, the load average and the date."""
    load = list(os.getloadavg()) if hasattr(os, "getloadavg") else None
    return {
        **environment(lm),
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
        "load_average": load,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def engine_windows(trace: GenerationTrace) -> WindowShares:
    """Windows that this package's own attention cuts off: of a ragged cache; in a padded one it masks and reads all."""
    padded = trace.config.get("cache_layout") == "padded"
    return () if padded else ModelShape.from_trace(trace.model).window_shares


def cpu_name() -> str:
    """The processor's name as the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names and names[0] else platform.processor() or platform.machine()


@dataclass
class Benchmark:
    """One benchmark on one model.

    Args:
        lm: the model.
        plan: what is measured.
        sets: prompts; their names differ.
        make_drafter: makes the drafter of a batch.
        state: takes what is measured, and knows what was measured before.
        progress: told what happens.
    """

    lm: LanguageModel
    plan: BenchPlan
    sets: Sequence[PromptSet]
    make_drafter: DrafterMaker
    state: BenchState
    progress: Progress = lambda what, tokens: None
    _judged: dict[tuple[str, int, tuple[int, ...]], Difference | None] = field(default_factory=dict)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end an output."""
        return () if self.plan.ignore_eos else self.lm.eos_token_ids

    def check(self) -> None:
        """Refuse what does not fit the model or the memory, before anything runs.

        While one batch of a size is decoded, the keys and values of the prompts of all its batches are kept.

        Raises:
            ConfigError: says what does not fit.
        """
        for prompts in self.sets:
            for size in self.plan.batch_sizes:
                lengths = [[len(prompts.prompts[row]) for row in rows] for rows in prompts.batches(size)]
                kept = sum(map(sum, lengths))
                largest = {lengths.index(max(lengths, key=of)) for of in (sum, max)}
                for place, method in product(sorted(largest), self.plan.methods):
                    rows = [prompts.prompts[row] for row in prompts.batches(size)[place]]
                    run = GenerationRun(self.lm, rows, self.plan.config(Entry(method)))
                    check_memory(self.lm, run.capacities, kept)

    def run(self) -> None:
        """Measure what is missing.

        Raises:
            KeyboardInterrupt: finished repeats have been kept.
        """
        for prompts in self.sets:
            expected = self._expected(prompts)
            for size in self.plan.batch_sizes:
                done = len(self.state.repeats(prompts.name, size))
                if done < repeats_at(self.plan.repeats, size):
                    self._measure(prompts, size, expected, done)

    def _expected(self, prompts: PromptSet) -> list[list[int]]:
        """[prompts] outputs of plain decoding of each prompt alone, by transformers."""
        known = self.state.expected(prompts.name)
        if known is None:
            known = []
            for prompt in prompts.prompts:
                known.append(plain_generate(self.lm, prompt, self.plan.max_new_tokens, self.eos_token_ids))
                self.progress("plain generate", self.plan.max_new_tokens)
            self.state.add({"kind": "expected", "prompts": prompts.name, "outputs": known})
        return known

    def _measure(self, prompts: PromptSet, size: int, expected: list[list[int]], done: int) -> None:
        batches = [_Batch(rows, prompts, expected) for rows in prompts.batches(size)]
        prefill_batch(self.lm, batches[0].prompts)  # warm-up
        for batch in batches:
            batch.prefilled = prefill_batch(self.lm, batch.prompts)
            for drafter in self.plan.drafters:
                batch.drafters[drafter] = self.make_drafter(drafter, prompts, batch.rows, batch.expected)
        entries = self.plan.entries(size)
        for entry in entries:
            self._run(batches[0], entry, WARM_UP_TOKENS)
        seconds = sum(batch.prefilled.seconds for batch in batches if batch.prefilled is not None)
        for repeat in range(done, repeats_at(self.plan.repeats, size)):
            results = {entry: _Totals(entry) for entry in entries}
            for batch in batches:
                for entry in entries if repeat % 2 == 0 else reversed(entries):
                    outcome = self._run(batch, entry, self.plan.max_new_tokens)
                    results[entry].add(outcome, self._differences(batch, outcome))
                    self.progress(f"{prompts.name}, batch {size}", len(batch.rows) * self.plan.max_new_tokens)
            self.state.add(
                {
                    "kind": "repeat",
                    "prompts": prompts.name,
                    "batch": size,
                    "repeat": repeat,
                    "prefill_seconds": seconds,
                    "copied_rows": prompts.copied(size),
                    "results": [totals.to_dict(with_details=repeat == 0) for totals in results.values()],
                }
            )

    def _run(self, batch: _Batch, entry: Entry, max_new_tokens: int) -> _Outcome:
        limit = min(max_new_tokens, self.plan.max_new_tokens)
        if not entry.is_ours:
            return self._run_transformers(batch, entry, limit)
        assert batch.prefilled is not None
        config = self.plan.config(entry).with_settings(max_new_tokens=limit)
        run = PrefilledRun(batch.prefilled, config, batch.drafters.get(entry.drafter))
        for _ in run:
            pass
        summary = run.trace.summary()
        outputs = [row.output_token_ids for row in run.trace.rows]
        return _Outcome(outputs, summary["seconds"], summary["decode_tokens"], summary["steps"], run.trace)

    def _run_transformers(self, batch: _Batch, entry: Entry, limit: int) -> _Outcome:
        lookup = self.plan.num_draft_tokens if entry.method == TRANSFORMERS_LOOKUP else None
        timed = timed_generate(
            self.lm, batch.prompts[0], limit, self.eos_token_ids, lookup, ngram_size=self.plan.ngram_size
        )
        return _Outcome([timed.token_ids], {"total": timed.seconds}, timed.decode_tokens, timed.steps)

    def _differences(self, batch: _Batch, outcome: _Outcome) -> list[Difference]:
        """Rows whose output is not the expected one, by the prompt's number in its set."""
        found = []
        for row, prompt, wanted, got in zip(batch.rows, batch.prompts, batch.expected, outcome.outputs, strict=True):
            if got == wanted:
                continue
            key = (batch.name, row, tuple(got))
            if key not in self._judged:
                self._judged[key] = compare_outputs(
                    self.lm,
                    prompt,
                    wanted,
                    got,
                    row=row,
                    max_new_tokens=self.plan.max_new_tokens,
                    eos_token_ids=self.eos_token_ids,
                )
            difference = self._judged[key]
            found += [difference] if difference is not None else []
        return found


class _Batch:
    """Prompts decoded together, and what their runs share."""

    def __init__(self, rows: list[int], prompts: PromptSet, expected: list[list[int]]) -> None:
        self.rows, self.name = rows, prompts.name
        self.prompts = [prompts.prompts[row] for row in rows]
        self.expected = [expected[row] for row in rows]
        self.prefilled: PrefilledBatch | None = None
        self.drafters: dict[str, Drafter | None] = {}


@dataclass
class _Outcome:
    """One run of one entry on one batch; the trace is None where it is not ours."""

    outputs: list[list[int]]
    seconds: dict[str, float]
    decode_tokens: int
    steps: int
    trace: GenerationTrace | None = None


@dataclass
class _Totals:
    """One repeat of one entry, over its batches."""

    entry: Entry
    outcomes: list[_Outcome] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)

    def add(self, outcome: _Outcome, differences: list[Difference]) -> None:
        self.outcomes.append(outcome)
        self.differences += differences

    def to_dict(self, with_details: bool) -> Record:
        phases = [phase for phase in PHASES if phase in self.outcomes[0].seconds]
        data: Record = {
            "method": self.entry.method,
            "drafter": self.entry.drafter,
            "rows": sum(len(outcome.outputs) for outcome in self.outcomes),
            "seconds": {phase: sum(each.seconds[phase] for each in self.outcomes) for phase in phases},
            "decode_tokens": sum(each.decode_tokens for each in self.outcomes),
            "steps": sum(each.steps for each in self.outcomes),
            "differences": [vars(difference) for difference in self.differences],
        }
        traces = [outcome.trace for outcome in self.outcomes if outcome.trace is not None]
        if with_details and traces:
            totals = total_of(traces)
            data.update({name: totals[name] for name in DETAILS})
            data["attention"] = "+".join(sorted({trace.attention for trace in traces}))
            data["counts"] = [
                list(astuple(step)) for trace in traces for step in trace_counts(trace, engine_windows(trace))
            ]
        return data
