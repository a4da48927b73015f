"""Measuring this machine with the loaded model's own layers, in under 20 seconds.

Nothing here runs a decoding method: forwards of the dense layers alone at several numbers of rows, the attention
function on invented caches, the loop with a target that answers at once, and three plain rates. What methods take
follows from these and from the counts of their steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from emssd.accounting import step_account
from emssd.attention import AttentionCall, StepAttention, ems_attention, running
from emssd.comparing import environment
from emssd.config import SpeculativeConfig
from emssd.decoding import GenerationRun
from emssd.hardware import require_cost
from emssd.kv_cache import KVStore
from emssd.language_model import LanguageModel
from emssd.layouts import RowPlan, StepPlan
from emssd.measured_machine import (
    AttentionCosts,
    CalibrationError,
    MeasuredMachine,
    check_calibration,
    load_calibration,
    machine_cost_model,
    save_calibration,
)
from emssd.memory import available_bytes
from emssd.model_runner import ModelRunner
from emssd.step_counts import StepCounts

__all__ = [
    "CalibrationError",
    "MeasuredMachine",
    "calibrate",
    "check_calibration",
    "load_calibration",
    "machine_cost_model",
    "save_calibration",
]

SECONDS = 18.0
DENSE_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
CACHES = ((1, 64), (1, 512), (4, 128), (4, 512), (12, 64), (12, 256))
"""(rows of the batch, slots of each row) of the invented caches."""
QUERIES = (1, 4, 8)
HOST_BATCHES = (1, 4, 16)
HOST_STEPS = 12
SHARES = {"rates": 0.05, "dense layers": 0.6, "attention": 0.27, "loop": 0.08}

Progress = Callable[[float, str], None]
"""Called with the part that is done, 0..1, and what is being measured."""


class _Stopped(Exception):
    pass


@dataclass
class _Stage:
    """One part of the measurement: its samples, its deadline, and who hears of it."""

    name: str
    began: float
    seconds: float
    clock: Callable[[], float]
    should_stop: Callable[[], bool]
    samples: dict[Hashable, list[float]] = field(default_factory=dict)

    def rounds(self, points: Sequence[Any]) -> Iterator[Any]:
        """Points again and again, in alternating order, until time is up; each of them at least once."""
        for number in count():
            for point in points if number % 2 == 0 else reversed(points):
                if self.should_stop():
                    raise _Stopped
                if number and self.over:
                    return
                yield point

    @property
    def over(self) -> bool:
        return self.clock() - self.began >= self.seconds

    def time(self, key: Hashable, work: Callable[[], object]) -> None:
        began = self.clock()
        work()
        self.samples.setdefault(key, []).append(self.clock() - began)

    def typical(self) -> dict[Hashable, float]:
        """Seconds by point: the lower quartile, since whatever else runs, and a first run, only ever adds time."""
        return {key: sorted(seconds)[len(seconds) // 4] for key, seconds in self.samples.items()}


def calibrate(
    lm: LanguageModel,
    seconds: float = SECONDS,
    progress: Progress = lambda done, what: None,
    should_stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
) -> MeasuredMachine | None:
    """Measure this machine with a model's own layers, type and threads.

    Args:
        lm: the loaded model.
        seconds: time to take. A machine too slow for it measures every point once.
        progress: hears what is being measured.
        should_stop: asked between measurements.
        clock: seconds that rise.

    Returns:
        The measurement, None if `should_stop` said so.

    Raises:
        ConfigError: `seconds` is not a number above 0.
    """
    require_cost("seconds", seconds, zero=False)
    began, done = clock(), 0.0

    def stage(name: str) -> _Stage:
        nonlocal done
        progress(done, name)
        done += SHARES[name]
        return _Stage(name, clock(), max(began + done * seconds - clock(), 0.0), clock, should_stop)

    try:
        with torch.inference_mode():
            rates = _rates(lm, stage("rates"))
            dense = _dense_curve(lm, stage("dense layers"))
            attention = _attention_costs(lm, stage("attention"))
        host_ms, sequence_us = _host_costs(lm, stage("loop"))
    except _Stopped:
        return None
    progress(1.0, "done")
    return MeasuredMachine(
        model=lm.description(),
        environment=environment(lm),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=clock() - began,
        dense_ms=dense,
        attention=attention,
        host_ms=host_ms,
        sequence_us=sequence_us,
        memory_bytes=float(available_bytes(lm.device) or 2**33),
        **rates,
    )


def _rates(lm: LanguageModel, stage: _Stage) -> dict[str, float]:
    """Bandwidth of reading, FLOP rate of a large product, and the start of one tiny operation."""
    wait = ModelRunner(lm.hooked).synchronize
    large = torch.ones(2**26, dtype=torch.float32, device=lm.device)  # 256 MiB, more than any cache
    square = torch.ones(1024, 1024, dtype=lm.dtype, device=lm.device)
    tiny = torch.ones(1, dtype=lm.dtype, device=lm.device)
    work: dict[str, Callable[[], object]] = {
        "bandwidth": lambda: large.sum(),
        "flops": lambda: square @ square,
        "op_us": lambda: [tiny.add_(1) for _ in range(1000)],
    }
    for name in stage.rounds(tuple(work)):
        stage.time(name, lambda name=name: (work[name](), wait()))  # type: ignore[misc]
    best = {name: max(min(stage.samples[name]), 1e-9) for name in work}
    return {
        "bandwidth": large.numel() * large.element_size() / best["bandwidth"],
        "flops": 2 * 1024**3 / best["flops"],
        "op_us": 1e6 * best["op_us"] / 1000,
    }


def _dense_curve(lm: LanguageModel, stage: _Stage) -> tuple[tuple[float, float], ...]:
    """(rows, milliseconds) of a forward whose rows all belong to finished requests: it has no attention.

    All of the model's weights are read in turn, so that no cache helps. The choice of the best token is part of it.
    The rows hold one token at one place, so that a mixture's router sends all of them to the experts of a single row.
    """
    runner = ModelRunner(lm.hooked)
    store = KVStore([1])

    def forward(fed: int) -> None:
        row = RowPlan(0, "finished", 0, (1,) * fed, ("pad",) * fed, (0,) * fed, ())
        runner.forward(StepPlan((row,)), store).argmax(dim=-1).tolist()

    for fed in stage.rounds(DENSE_ROWS):
        stage.time(fed, lambda fed=fed: forward(fed))  # type: ignore[misc]
    found = stage.typical()
    return tuple((float(fed), 1e3 * max(found[fed], 1e-9)) for fed in DENSE_ROWS)


def invented_plan(rows: int, queries: int, span: int, padded: bool) -> StepPlan:
    """A step in which every row feeds `queries` tokens and looks at `span` slots; in a padded cache some are dead."""
    plans = []
    first = span - queries
    for row in range(rows):
        dead = row % 4 if padded else 0  # slots before the first query that nobody sees
        positions = np.arange(span, dtype=np.int32) - dead
        positions[:dead] = -1
        kinds = ("pending", *["draft"] * (queries - 1))
        plans.append(
            RowPlan(
                row=row,
                kind="decode",
                cache_start=first,
                input_token_ids=(1,) * queries,
                input_kinds=kinds,
                position_ids=tuple(int(p) for p in positions[first:]),
                slots=tuple(range(first, span)),
                num_drafted=queries - 1,
                holes=dead,
                key_positions=positions if padded else None,
            )
        )
    return StepPlan(tuple(plans))


def _attention_costs(lm: LanguageModel, stage: _Stage) -> AttentionCosts:
    """The engine's attention in all layers, in both of its forms, fitted to calls, rows and slots."""
    inputs = _AttentionInputs(lm)
    plans = {
        (rows, queries, span, padded): invented_plan(rows, queries, span, padded)
        for rows, span in CACHES
        for queries in QUERIES
        for padded in (False, True)
    }
    for rows, span in stage.rounds(CACHES):
        store = inputs.filled_store(rows, span)
        for queries in QUERIES:
            for padded in (False, True):
                key = (rows, queries, span, padded)
                stage.time(key, lambda key=key, store=store: inputs.run(plans[key], store))  # type: ignore[misc]
    found = stage.typical()
    features, seconds = [], []
    for key, plan in plans.items():
        rows, _, _, padded = key
        counts = StepCounts.from_account(step_account(plan, 0, 0), rows)
        calls = 1 if padded else rows
        features.append([1.0, calls, counts.query_rows, counts.span_slots, counts.query_slots])
        seconds.append(found[key])
    costs, error = fit_costs(np.array(features), 1e6 * np.array(seconds))
    step, call, query_row, slot, query_slot = map(float, costs)
    return AttentionCosts(step, call, query_row, slot, query_slot, error)


class _AttentionInputs:
    """What one forward hands to the attention function, without the forward."""

    def __init__(self, lm: LanguageModel) -> None:
        self.lm = lm
        self.runner = ModelRunner(lm.hooked)
        row = RowPlan(0, "decode", 0, (1,), ("pending",), (0,), (0,))
        self.runner.forward(StepPlan((row,)), KVStore([1]))
        self.calls: list[AttentionCall] = self.runner.last_calls
        self.shape = lm.description()

    def _random(self, heads: str, tokens: int, width: str) -> Tensor:
        size = (1, tokens, self.shape[heads], self.shape[width])
        return torch.randn(size, dtype=torch.float32).to(self.lm.device, self.lm.dtype).transpose(1, 2)

    def filled_store(self, rows: int, span: int) -> KVStore:
        """A cache of `rows` rows in which every slot has been written."""
        store = KVStore([span] * rows)
        slots = torch.arange(rows * span, device=self.lm.device)
        key, value = (
            self._random("kv_heads", rows * span, w)[0].transpose(0, 1) for w in ("head_dim", "value_head_dim")
        )
        for call in self.calls:
            store.write(call.layer_idx, slots, key, value)
        return store

    def run(self, plan: StepPlan, store: KVStore) -> None:
        """Attention of all layers."""
        tokens = plan.num_fed
        query = self._random("heads", tokens, "head_dim")
        key, value = self._random("kv_heads", tokens, "head_dim"), self._random("kv_heads", tokens, "value_head_dim")
        sinks = torch.zeros(self.shape["heads"], dtype=self.lm.dtype, device=self.lm.device)
        with running(StepAttention(plan, store, self.runner.backend)):
            for call in self.calls:
                ems_attention(
                    SimpleNamespace(layer_idx=call.layer_idx),  # type: ignore[arg-type]
                    query,
                    key,
                    value,
                    sliding_window=call.sliding_window,
                    softcap=call.softcap,
                    s_aux=sinks if call.has_sinks else None,
                )
        self.runner.synchronize()


def fit_costs(
    features: npt.NDArray[np.float64], times: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], float]:
    """Costs of at least 0 that give the least squares of relative errors, and the mean relative error.

    Args:
        features: [points, costs] counts.
        times: [points], above 0.
    """
    scaled = features / times[:, None]
    kept = list(range(features.shape[1]))
    costs = np.zeros(features.shape[1])
    while kept:
        found = np.linalg.lstsq(scaled[:, kept], np.ones(len(times)), rcond=None)[0]
        if found.min() >= 0:
            costs[kept] = found
            break
        del kept[int(found.argmin())]
    return costs, float(np.abs(scaled @ costs - 1).mean())


class _InstantTarget:
    """Stands where the model runner stands and answers at once with a fixed token, so that only the loop takes time."""

    def __init__(self, lm: LanguageModel) -> None:
        ended = set(lm.eos_token_ids)
        self.answer = next(token for token in range(len(ended) + 1) if token not in ended)
        self.logits = torch.nn.functional.one_hot(torch.tensor([self.answer]), self.answer + 2).to(torch.float32)
        self.kernels = {"none"}
        self.backend = "none"

    def forward(self, plan: StepPlan, store: KVStore, keep: Sequence[int] | None = None) -> Tensor:
        return self.logits.expand(plan.num_fed if keep is None else len(keep), -1)

    def prefill(self, prompts: Sequence[Sequence[int]], *_: object) -> Tensor:
        return self.logits.expand(len(prompts), -1)

    def synchronize(self) -> None:
        return None


def _host_costs(lm: LanguageModel, stage: _Stage) -> tuple[float, float]:
    """Milliseconds of the loop's own work in each step, microseconds for each live row: the loop without a model."""
    target = _InstantTarget(lm)
    most = lm.context_length or 256
    length = max(min(160, most - HOST_STEPS - 1), 4)
    others = list(range(target.answer + 1, min(lm.vocab_size, 40))) or [0]
    text = [target.answer, target.answer, *others] * length
    configs = [SpeculativeConfig.greedy(), SpeculativeConfig()]
    points = [(rows, number) for rows in HOST_BATCHES for number in range(len(configs))]
    for rows, number in stage.rounds(points):
        config = configs[number].with_settings(max_new_tokens=HOST_STEPS, eos_token_ids=())
        run = GenerationRun(lm, [text[row : row + length] for row in range(rows)], config)
        run.runner = run.builder.runner = target  # type: ignore[assignment]
        next(run)
        while True:
            before = stage.clock()
            if next(run, None) is None:
                break
            stage.samples.setdefault((rows, number), []).append(stage.clock() - before)
    found = stage.typical()
    features = np.array([[1.0, rows] for rows, _ in points])
    (step, row), _ = fit_costs(features, 1e6 * np.array([max(found[point], 1e-9) for point in points]))
    return 1e-3 * float(step), float(row)
