"""What a run's forwards really did: rows of every dense layer and slots of every attention call, by hooks.

The account is arithmetic on plans. `Recorder` measures the same on the model: the shapes of the tensors that reach the
dense layers, the cache and the attention kernels. `Recorder.check` says where the two differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from emssd.accounting import StepAccount
from emssd.attention import StepAttention, active_step
from emssd.invariants import InvariantError
from emssd.language_model import count_weights, dense_modules
from emssd.layouts import StepPlan, prefill_chunks, prefill_plan
from emssd.model_runner import PREFILL_CHUNK, ModelRunner
from emssd.self_check import layer_windows
from emssd.trace import GenerationTrace
from emssd.work import row_scans, trace_plans


@dataclass
class AttentionSeen:
    """One layer's attention in one forward.

    Args:
        queries: query rows of all kernel calls.
        spans: slots looked at, each row's once.
        pairs: queries times the slots that their kernel call looks at.
        visible: those of the pairs that no mask hides.
        value_pairs: weights times values: as many as pairs.
        written_keys, written_values: slots written.
    """

    queries: int = 0
    spans: int = 0
    pairs: int = 0
    visible: int = 0
    value_pairs: int = 0
    written_keys: int = 0
    written_values: int = 0


@dataclass
class ForwardSeen:
    """One forward.

    Args:
        rows: by name of a dense layer (`language_model.dense_modules`), the rows that it was fed. Fused experts count
            pairs of a row and an expert.
        attention: by layer.
    """

    rows: dict[str, int] = field(default_factory=dict)
    attention: dict[int, AttentionSeen] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """All counts by name: "rows of NAME", "layer N: COUNT"."""
        rows = {f"rows of {name}": count for name, count in self.rows.items()}
        layers = sorted(self.attention.items())
        return rows | {f"layer {n}: {name}": count for n, seen in layers for name, count in vars(seen).items()}


@dataclass(frozen=True)
class CountDifference:
    """Where plan or account and hooks disagree. `step` is the trace's; None: the run as a whole."""

    step: int | None
    what: str
    expected: int | None
    got: int | None

    def __str__(self) -> str:
        where = "" if self.step is None else f"step {self.step}, "
        return f"{where}{self.what}: the plan says {self.expected}, the model saw {self.got}"


class Recorder:
    """Counts what the forwards of one run do; a context manager.

    The hooks sit on modules that other runs may share, also in other threads: a module's call counts only inside a
    forward of this runner. Nothing is left on the model afterwards, whatever happens inside.

        run = generate_steps(lm, prompts, config)
        with Recorder(run.runner) as recorder:
            list(run)
        recorder.check(run.trace)

    Args:
        runner: of the run, or of a draft model's session.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.forwards: list[ForwardSeen] = []
        """In the order in which they were started; one that raised an error is there as far as it came."""
        self._handles: list[RemovableHandle] = []
        self._watching = runner.watch
        self._watch: _KernelWatch | None = None

    def __enter__(self) -> Recorder:
        for name, module in dense_modules(self.runner.hooked).items():
            self._handles.append(module.register_forward_pre_hook(self._row_counter(name), with_kwargs=True))
        self._watching, self.runner.watch = self.runner.watch, self._forward
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.runner.watch = self._watching
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @contextmanager
    def _forward(self, step: StepAttention) -> Iterator[None]:
        self.forwards.append(ForwardSeen())
        with self._watching(step), _KernelWatch(step, self.forwards[-1]) as self._watch:
            try:
                yield
            finally:
                self._watch = None

    def _row_counter(self, name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def count(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            watch = self._watch
            if watch is None or active_step() is not watch.step:
                return
            rows = watch.seen.rows
            rows[name] = rows.get(name, 0) + _rows_fed(module, [*inputs, *named.values()])

        return count

    def differences(self, trace: GenerationTrace) -> Iterator[CountDifference]:
        """Where hooks differ from the plans that a trace's rows show, and from its accounts.

        Args:
            trace: of the run that was recorded from its start on.
        """
        expected = _Expected(self.runner.hooked)
        planned = list(_planned_forwards(trace))
        if len(planned) != len(self.forwards):
            yield CountDifference(None, "forwards", len(planned), len(self.forwards))
        by_step: dict[int, list[ForwardSeen]] = {}
        for (step, plan, head_rows), seen in zip(planned, self.forwards, strict=False):
            yield from _compare(step, expected.forward(plan, head_rows).counts(), seen.counts())
            by_step.setdefault(step, []).append(seen)
        plans = {step.index: plan for step, plan in trace_plans(trace)}
        for index, forwards in by_step.items():
            account = trace.steps[index].account
            yield from _compare(index, *expected.account(account, plans[index], forwards))

    def check(self, trace: GenerationTrace) -> None:
        """Assert that hooks, plans and accounts agree.

        Raises:
            InvariantError: names the first count that differs.
        """
        for difference in self.differences(trace):
            raise InvariantError(f"{difference}.")


def _compare(step: int, expected: dict[str, int], got: dict[str, int]) -> Iterator[CountDifference]:
    for name in dict.fromkeys([*expected, *got]):
        if expected.get(name) != got.get(name):
            yield CountDifference(step, name, expected.get(name), got.get(name))


def _rows_fed(module: nn.Module, inputs: list[Any]) -> int:
    """Rows of the first input, [..., width]; pairs of row and expert where experts are fused, [rows, chosen]."""
    fused = not hasattr(module, "weight")
    tensors = [each for each in inputs if isinstance(each, Tensor)]
    if not fused:
        return tensors[0].shape[:-1].numel()
    return next(each for each in tensors if not each.is_floating_point()).numel()


class _KernelWatch(TorchFunctionMode):
    """Sees every tensor function of a forward, and counts those that write to the run's cache or read from it."""

    def __init__(self, step: StepAttention, seen: ForwardSeen) -> None:
        super().__init__()
        self.step = step
        self.seen = seen
        self._key_pools: set[int] = set()
        self._value_pools: set[int] = set()
        self._expects_softmax = False

    @property
    def _layer(self) -> AttentionSeen:
        return self.seen.attention.setdefault(self.step.calls[-1].layer_idx, AttentionSeen())

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func is Tensor.index_copy_:
            self._write(args[0], args[2])
        elif func is F.scaled_dot_product_attention:
            self._scan(args[0], args[1], named.get("attn_mask"))
            self._weigh(args[0], args[2])
        elif func is Tensor.matmul and len(args) > 1:
            self._multiply(args[0], args[1])
        elif func is Tensor.softmax and self._expects_softmax:
            self._read_scores(args[0])
        return func(*args, **named)

    def _write(self, pool: Tensor, slots: Tensor) -> None:
        """The cache is written keys first, then values: what is written here is what may be read."""
        values = self._layer.written_keys > self._layer.written_values
        (self._value_pools if values else self._key_pools).add(_storage(pool))
        if values:
            self._layer.written_values += slots.numel()
        else:
            self._layer.written_keys += slots.numel()

    def _scan(self, query: Tensor, key: Tensor, mask: Tensor | None) -> None:
        """query [R, H, n, D] with key [R, G, L, D]; mask [R, 1, n, L] adds 0 where it lets a query see."""
        if _storage(key) not in self._key_pools:
            return
        rows, queries, slots = key.shape[0], query.shape[-2], key.shape[-2]
        self._add_pairs(rows, queries, slots)
        self._layer.visible += rows * queries * slots if mask is None else int((mask == 0).sum())

    def _add_pairs(self, rows: int, queries: int, slots: int) -> None:
        self._layer.queries += rows * queries
        self._layer.spans += rows * slots
        self._layer.pairs += rows * queries * slots

    def _weigh(self, weights: Tensor, value: Tensor) -> None:
        """weights [R, ..., n, .] with value [R, ..., L, Dv]."""
        if _storage(value) in self._value_pools:
            self._layer.value_pairs += value.shape[0] * weights.shape[-2] * value.shape[-2]

    def _multiply(self, left: Tensor, right: Tensor) -> None:
        """The reference path: queries [R, G, H/G, n, D] @ keys [R, G, 1, D, L], later weights @ values."""
        if _storage(right) in self._key_pools:
            self._add_pairs(right.shape[0], left.shape[-2], right.shape[-1])
            self._expects_softmax = True
        else:
            self._weigh(left, right)

    def _read_scores(self, scores: Tensor) -> None:
        """Masked scores [R, G, H/G, n, L], with one more column where there are sinks: what is finite is visible."""
        self._expects_softmax = False
        finite = int((scores[:, 0, 0] > float("-inf")).sum())
        sinks = scores.shape[0] * scores.shape[-2] if self.step.calls[-1].has_sinks else 0
        self._layer.visible += finite - sinks


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _planned_forwards(trace: GenerationTrace) -> Iterator[tuple[int, StepPlan, int]]:
    """(step, plan, rows of the LM head) of every forward that a trace stands for; prefill goes in chunks."""
    prompts = [row.prompt_token_ids for row in trace.rows]
    for step, plan in trace_plans(trace):
        if step.kind == "decode":
            yield step.index, plan, plan.num_fed
            continue
        for pieces in prefill_chunks(prompts, PREFILL_CHUNK):
            ends = sum(start + len(token_ids) == len(prompts[row]) for row, start, token_ids in pieces)
            yield step.index, prefill_plan(pieces), max(ends, 1)


class _Expected:
    """What forwards of a model must show."""

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config()
        self.windows = layer_windows(config)
        head = model.get_output_embeddings()
        chosen = int(getattr(config, "num_experts_per_tok", None) or 1) if count_weights(model)["experts"] else 1
        dense = dense_modules(model).items()
        self.head = [name for name, module in dense if module is head]
        self.each_row = {name: 1 if hasattr(module, "weight") else chosen for name, module in dense}

    def forward(self, plan: StepPlan, head_rows: int) -> ForwardSeen:
        """One forward over a plan."""
        rows = {name: each * plan.num_fed for name, each in self.each_row.items()}
        rows |= dict.fromkeys(self.head, head_rows)
        return ForwardSeen(rows, {layer: _attention(plan, window) for layer, window in enumerate(self.windows)})

    def account(
        self, account: StepAccount, plan: StepPlan, forwards: list[ForwardSeen]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """A step's account beside the same counts by hooks, of layers without a window.

        Attention sees what is useful; a pad's query sees the row's real tokens. Prefill in several chunks looks at the
        same slots again, so that there only what is visible is compared.
        """
        rows, scanned = account.input_rows, account.kv_slots_scanned
        pads = _visible(plan, None) - _visible(plan, None, pads=False)
        expected = {"account: input rows": sum(rows.values())}
        inner = [name for name in self.each_row if name not in self.head and self.each_row[name] == 1]
        got = {"account: input rows": sum(forward.rows.get(inner[0], 0) for forward in forwards)}
        for layer, window in enumerate(self.windows):
            if window is not None:
                continue
            seen = [forward.attention.get(layer, AttentionSeen()) for forward in forwards]
            name = f"account: layer {layer}: "
            expected[name + "query rows"] = rows["useful"] + rows["pad"]
            got[name + "query rows"] = sum(each.queries for each in seen)
            expected[name + "useful slots per token"] = scanned["per_token"]["useful"]
            got[name + "useful slots per token"] = sum(each.visible for each in seen) - pads
            if len(forwards) == 1:
                expected[name + "slots of spans"] = sum(scanned["varlen"].values())
                got[name + "slots of spans"] = seen[0].spans
        return expected, got


def _attention(plan: StepPlan, window: int | None) -> AttentionSeen:
    """What a layer with this window must show for a plan."""
    live = [row for row in plan.live if row.num_fed]
    pairs = [sum(row_scans(row, window)["rectangular"].values()) for row in live]
    written = sum(len(row.slots) for row in plan.rows)
    return AttentionSeen(
        queries=sum(row.num_fed for row in live),
        spans=sum(count // row.num_fed for count, row in zip(pairs, live, strict=True)),
        pairs=sum(pairs),
        visible=_visible(plan, window),
        value_pairs=sum(pairs),
        written_keys=written,
        written_values=written,
    )


def _visible(plan: StepPlan, window: int | None, pads: bool = True) -> int:
    """Slots that queries see: a query at position p sees p + 1 tokens, or its window. A pad has its last token's."""
    seen = [
        position + 1 if window is None else min(position + 1, window)
        for row in plan.live
        for position in row.position_ids[: row.num_fed if pads else row.num_real]
    ]
    return sum(seen)
