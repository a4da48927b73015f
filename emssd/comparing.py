"""All methods on the same prompts: run interleaved, every output held against plain decoding, totals and speed-ups."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch
import transformers

from emssd import __version__
from emssd.accounting import ATTENTION_MODES, INPUT_KINDS, SCAN_KINDS
from emssd.config import BASELINE, METHODS, SpeculativeConfig
from emssd.decoding import GenerationRun
from emssd.drafting import Drafter
from emssd.language_model import LanguageModel
from emssd.oracle import Difference, compare_outputs, plain_generate
from emssd.trace import PHASES, GenerationTrace

RAGGED_BASELINE = "greedy-ragged"
WARM_UP_TOKENS = 4

Progress = Callable[[str, int], None]
"""Called with what is being done and how many tokens it has just put out."""


def _silent(what: str, tokens: int) -> None:
    return None


@dataclass
class MethodResult:
    """One method's runs over all batches.

    Args:
        name: the method.
        runs: [repeats][batches] traces.
        rows: requests decoded.
        differences: rows whose output is not the expected one, near-ties among them.
    """

    name: str
    runs: list[list[GenerationTrace]] = field(default_factory=list)
    rows: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def traces(self) -> list[GenerationTrace]:
        """[batches] the first repeat's traces."""
        return self.runs[0] if self.runs else []

    @property
    def seconds(self) -> list[dict[str, float]]:
        """[repeats] decode seconds by phase, summed over the batches."""
        return [dict(total_of(traces)["seconds"]) for traces in self.runs]

    @property
    def near_ties(self) -> list[Difference]:
        """Rows that differ by rounding alone."""
        return [difference for difference in self.differences if difference.near_tie]

    @property
    def failures(self) -> list[Difference]:
        """Rows whose output is wrong."""
        return [difference for difference in self.differences if not difference.near_tie]

    @property
    def identical(self) -> int:
        """Rows that are token-identical to plain decoding."""
        return self.rows - len(self.differences)

    def summary(self) -> dict[str, Any]:
        """Totals as in `GenerationTrace.summary`, over all batches, with the median seconds of the repeats."""
        totals, seconds = total_of(self.traces), self.seconds
        if seconds:
            totals["seconds"] = {phase: median(each[phase] for each in seconds) for phase in PHASES}
        spent = totals["seconds"]["total"]
        totals["tokens_per_second"] = totals["decode_tokens"] / spent if spent > 0 else None
        return totals

    def outputs(self, row: int) -> list[list[int]]:
        """The different outputs that a row had in the repeats (one, unless something is wrong)."""
        found: list[list[int]] = []
        for traces in self.runs:
            output = [request.output_token_ids for trace in traces for request in trace.rows][row]
            if output not in found:
                found.append(output)
        return found


@dataclass
class Comparison:
    """What `compare_methods` measured. Speed-ups are paired: same prompts, same repeat, prefill excluded."""

    methods: dict[str, MethodResult]
    environment: dict[str, Any]
    prompts: list[list[int]]
    expected: list[list[int]]
    eos_token_ids: tuple[int, ...]

    def speed_up(self, method: str, baseline: str) -> float | None:
        """Median over the repeats of baseline decode seconds / method decode seconds; None without time."""
        pairs = zip(self.methods[baseline].seconds, self.methods[method].seconds, strict=True)
        ratios = [theirs["total"] / ours["total"] for theirs, ours in pairs if ours["total"] > 0]
        return median(ratios) if ratios else None

    @property
    def passed(self) -> bool:
        """Whether every output of every method is the expected one, near-ties allowed."""
        return not any(result.failures for result in self.methods.values())

    def to_dict(self, with_traces: bool = False) -> dict[str, Any]:
        """Plain data: {"baseline", "environment", "rows", "methods": {name: summary, speed-ups, "identical", ...}}."""
        methods = {}
        for name, result in self.methods.items():
            data = result.summary()
            data["speed_up"] = self.speed_up(name, BASELINE)
            data["speed_up_vs_greedy_ragged"] = self.speed_up(name, RAGGED_BASELINE)
            data["speed_up_valid"] = not result.failures
            data["attention"] = "+".join(sorted({trace.attention for trace in result.traces}))
            data["identical"], data["rows"] = result.identical, result.rows
            data["near_ties"] = [vars(difference) for difference in result.near_ties]
            data["differences"] = [vars(difference) for difference in result.failures]
            data["seconds_of_repeats"] = [each["total"] for each in result.seconds]
            if with_traces:
                data["traces"] = [trace.to_dict() for trace in result.traces]
            methods[name] = data
        rows = [
            {"prompt_token_ids": prompt, "output_token_ids": output}
            for prompt, output in zip(self.prompts, self.expected, strict=True)
        ]
        return {"baseline": BASELINE, "environment": self.environment, "rows": rows, "methods": methods}


def total_of(traces: Sequence[GenerationTrace]) -> dict[str, Any]:
    """One summary for several batches: counts and seconds add up, rates are taken over all of them."""
    parts = [trace.summary() for trace in traces]
    live = sum(1 for trace in traces for _ in trace.live_rows())

    def add(name: str) -> int:
        return sum(int(part[name]) for part in parts)

    counts = (
        "tokens",
        "decode_tokens",
        "steps",
        "drafted",
        "accepted",
        "kv_slots_allocated",
        "slots_advanced",
        "holes",
    )
    totals: dict[str, Any] = {name: add(name) for name in (*counts, "attention_launches")}
    totals["mean_acceptance_length"] = totals["decode_tokens"] / live if live else None
    totals["acceptance_rate"] = totals["accepted"] / totals["drafted"] if totals["drafted"] else None
    totals["input_rows"] = {kind: sum(part["input_rows"][kind] for part in parts) for kind in INPUT_KINDS}
    totals["kv_slots_scanned"] = {
        mode: {kind: sum(part["kv_slots_scanned"][mode][kind] for part in parts) for kind in SCAN_KINDS}
        for mode in ATTENTION_MODES
    }
    totals["seconds"] = {phase: sum(part["seconds"][phase] for part in parts) for phase in PHASES}
    spent = totals["seconds"]["total"]
    totals["tokens_per_second"] = totals["decode_tokens"] / spent if spent > 0 else None
    return totals


def compare_methods(
    lm: LanguageModel,
    batches: Sequence[list[list[int]]],
    settings: dict[str, Any],
    drafter: Drafter | None,
    *,
    methods: Sequence[str] = tuple(METHODS),
    repeats: int = 1,
    rows: Sequence[int] | None = None,
    progress: Progress = _silent,
) -> Comparison:
    """Decode the same prompts with every method and hold each row against plain decoding of that row alone.

    One short warm-up comes first. In each repeat and batch all methods run one after another; every other repeat
    takes them in the opposite order, so that a slow drift of the machine does not favour one.

    Args:
        lm: the model.
        batches: [batches][rows] prompt token ids, checked.
        settings: fields of `SpeculativeConfig` but for the layouts.
        drafter: of the speculative methods; None is prompt lookup where K > 0.
        methods: names from `METHODS`.
        repeats: timed runs of each method.
        rows: the number by which each prompt is reported; None counts from 0.
        progress: told what happens.

    Raises:
        ConfigError: the settings do not fit, or the cache would not fit into memory.
    """
    configs = {name: SpeculativeConfig.for_method(name, **settings) for name in methods}
    results = {name: MethodResult(name) for name in methods}
    for batch in batches:
        for config in configs.values():
            GenerationRun(lm, batch, config, drafter)  # refuses what does not fit before anything runs
    for name in ("vanilla", "ems-sd"):
        _warm_up(lm, batches[0], configs.get(name), drafter)
    for repeat in range(repeats):
        for result in results.values():
            result.runs.append([])
        for batch in batches:
            for name in methods if repeat % 2 == 0 else reversed(methods):
                trace = run_batch(lm, batch, configs[name], drafter, partial(progress, name))
                results[name].runs[-1].append(trace)
    comparison = Comparison(results, environment(lm), [ids for batch in batches for ids in batch], [], ())
    _verify(lm, comparison, configs[methods[0]], rows or range(len(comparison.prompts)), progress)
    return comparison


def _warm_up(
    lm: LanguageModel, batch: list[list[int]], config: SpeculativeConfig | None, drafter: Drafter | None
) -> None:
    if config is not None:
        short = config.with_settings(max_new_tokens=min(WARM_UP_TOKENS, config.max_new_tokens))
        run_batch(lm, batch, short, drafter)


def run_batch(
    lm: LanguageModel,
    prompts: list[list[int]],
    config: SpeculativeConfig,
    drafter: Drafter | None,
    on_tokens: Callable[[int], None] = lambda tokens: None,
) -> GenerationTrace:
    """Decode one batch to its end; `on_tokens` hears after every step how many tokens it emitted."""
    run = GenerationRun(lm, prompts, config, drafter)
    for step in run:
        on_tokens(sum(row.num_emitted for row in step.rows))
    return run.trace


def _verify(
    lm: LanguageModel, comparison: Comparison, config: SpeculativeConfig, rows: Sequence[int], progress: Progress
) -> None:
    """Fill in the expected outputs, and every method's differences from them."""
    run = GenerationRun(lm, comparison.prompts[:1], config, None)
    comparison.eos_token_ids = run.eos_token_ids
    compare = partial(compare_outputs, lm, max_new_tokens=config.max_new_tokens, eos_token_ids=run.eos_token_ids)
    for index, (row, prompt) in enumerate(zip(rows, comparison.prompts, strict=True)):
        expected = plain_generate(lm, prompt, config.max_new_tokens, run.eos_token_ids)
        comparison.expected.append(expected)
        progress("plain generate", len(expected))
        for result in comparison.methods.values():
            found = [compare(prompt, expected, got, row=row) for got in result.outputs(index)]
            differences = [difference for difference in found if difference is not None]
            result.rows += 1
            result.differences.extend(sorted(differences, key=lambda difference: difference.near_tie)[:1])


def environment(lm: LanguageModel) -> dict[str, Any]:
    """Where a measurement was made: model, device, dtype, versions, threads."""
    return {
        "model": lm.name,
        "device": str(lm.device),
        "device_name": torch.cuda.get_device_name(lm.device) if lm.device.type == "cuda" else platform.machine(),
        "dtype": str(lm.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "emssd": __version__,
    }
