"""One attention function for every layout, registered with transformers.

transformers calls it once per layer with the packed sequence. It writes the new keys and values to the planned slots
and lets every row attend to its own slots. It masks by itself (no mask function is registered, so transformers builds
none), and takes the plan from a context variable, because some models drop unknown keyword arguments on the way.

Letters: T packed tokens, R rows of a group, n tokens per row, L slots looked at, H heads, G key-value heads, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from emssd.errors import UnsupportedModelError
from emssd.kv_cache import KVStore
from emssd.layouts import RowPlan, StepPlan

ATTENTION_NAME = "emssd"
# Handed over by transformers, without a meaning for us: we mask and place tokens by the plan.
IGNORED_ARGUMENTS = frozenset(
    {"is_causal", "position_ids", "cache_position", "use_cache", "output_attentions", "output_router_logits"}
)


@dataclass(frozen=True)
class AttentionCall:
    """What one layer asked for in one forward."""

    layer_idx: int
    sliding_window: int | None
    softcap: float | None
    has_sinks: bool


@dataclass(frozen=True)
class QueryGroup:
    """Neighbouring rows that feed equally many tokens and look at equally long spans: one call of the kernel."""

    first_token: int
    rows: tuple[RowPlan, ...]
    flat_start: int
    """Pool index of the first row's slot 0."""
    stride: int
    """Pool slots from one row to the next."""

    @property
    def num_tokens(self) -> int:
        """n: tokens each row feeds."""
        return self.rows[0].num_fed

    @property
    def span(self) -> int:
        """L before a window cuts it: slots 0..span-1 of each row."""
        return self.rows[0].span


@dataclass
class StepAttention:
    """One forward's plan for attention, with index tensors and masks that all layers share.

    Args:
        plan: rows and slots of this forward.
        store: where keys and values live.
        backend: "sdpa" or "reference"; layers with softcap or sinks always take the reference path.
    """

    plan: StepPlan
    store: KVStore
    backend: str = "sdpa"
    calls: list[AttentionCall] = field(default_factory=list)
    kernels: set[str] = field(default_factory=set)
    """Which kernels ran: "sdpa-batched", "sdpa-rows", "reference"."""
    groups: list[QueryGroup] = field(init=False)
    _writes: dict[torch.device, tuple[Tensor | None, Tensor]] = field(init=False, default_factory=dict)
    _masks: dict[tuple[Any, ...], Tensor | None] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.groups = _group_rows(self.plan, self.store)

    def writes(self, device: torch.device) -> tuple[Tensor | None, Tensor]:
        """Packed indices of the tokens that are written (None: all) and their flat slots, both [written]."""
        if device not in self._writes:
            tokens: list[int] = []
            slots: list[int] = []
            first = 0
            for row in self.plan.rows:
                tokens.extend(range(first, first + len(row.slots)))
                slots.extend(self.store.offsets[row.row] + slot for slot in row.slots)
                first += row.num_fed
            index = None if len(tokens) == first else torch.tensor(tokens, dtype=torch.long, device=device)
            self._writes[device] = (index, torch.tensor(slots, dtype=torch.long, device=device))
        return self._writes[device]

    def mask(self, index: int, window: int | None, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """Additive mask [R, 1, n, L] of group `index`: 0 where visible, -inf elsewhere; None where all is visible."""
        key = (index, window, dtype, device)
        if key not in self._masks:
            visible = visible_slots(self.groups[index], window)  # (R, n, L)
            if visible.all():
                self._masks[key] = None
            else:
                additive = np.where(visible, np.float32(0), np.float32("-inf"))
                self._masks[key] = torch.from_numpy(additive).to(device=device, dtype=dtype).unsqueeze(1)
        return self._masks[key]


def first_slot(group: QueryGroup, window: int | None) -> int:
    """First slot that any query of the group can see. Only rows whose slots equal positions can be cut short."""
    if window is None or any(row.key_positions is not None for row in group.rows):
        return 0
    return max(min(row.position_ids[0] for row in group.rows) - window + 1, 0)


def visible_slots(group: QueryGroup, window: int | None) -> npt.NDArray[np.bool_]:
    """Which slot each query sees, [R, n, L]: filled, not later than the query, inside its own sliding window.

    A window of S tokens shows positions p - S + 1 .. p to the query at position p, the query itself included.
    """
    first = first_slot(group, window)
    contiguous = np.arange(first, group.span, dtype=np.int32)
    keys = np.stack([contiguous if r.key_positions is None else r.key_positions[first:] for r in group.rows])
    queries = np.array([row.position_ids for row in group.rows], dtype=np.int32)  # (R, n)
    key, query = keys[:, None, :], queries[:, :, None]
    visible = (key >= 0) & (key <= query)
    if window is not None:
        visible &= key > query - window
    return visible


def _group_rows(plan: StepPlan, store: KVStore) -> list[QueryGroup]:
    groups: list[QueryGroup] = []
    token = 0
    for row in plan.rows:
        if row.kind != "finished" and row.num_fed:
            start, stride = store.offsets[row.row], store.capacities[row.row]
            last = groups[-1] if groups else None
            if last is not None and _joins(last, row, token, start, stride):
                groups[-1] = QueryGroup(last.first_token, (*last.rows, row), last.flat_start, stride)
            else:
                groups.append(QueryGroup(token, (row,), start, stride))
        token += row.num_fed
    return groups


def _joins(group: QueryGroup, row: RowPlan, token: int, start: int, stride: int) -> bool:
    return (
        row.key_positions is not None
        and group.rows[0].key_positions is not None
        and (row.num_fed, row.span, stride) == (group.num_tokens, group.span, group.stride)
        and token == group.first_token + len(group.rows) * group.num_tokens
        and start == group.flat_start + len(group.rows) * stride
    )


_ACTIVE: ContextVar[StepAttention | None] = ContextVar("emssd_step_attention", default=None)


@contextmanager
def running(step: StepAttention) -> Iterator[StepAttention]:
    """Hand the plan of one forward to the attention function for the length of the block."""
    token = _ACTIVE.set(step)
    try:
        yield step
    finally:
        _ACTIVE.reset(token)


def active_step() -> StepAttention | None:
    """The plan of the forward that this thread is inside; None outside of planned forwards."""
    return _ACTIVE.get()


def ems_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of a packed batch; transformers calls it once per layer.

    Args:
        module: the attention layer; only `layer_idx` is read.
        query: [1, H, T, D]; key: [1, G, T, D]; value: [1, G, T, Dv], positions already applied.
        attention_mask: ignored; the plan decides what is visible.
        scaling: factor on the scores, None means D ** -0.5.
        sliding_window: tokens a query sees, itself included; softcap: bound of the scores (Gemma 2).
        s_aux: [H] attention sinks, logits that take weight but carry no value (GPT-OSS).

    Returns:
        Output [1, T, H, Dv] and None. Tokens of finished rows get zeros.

    Raises:
        UnsupportedModelError: the layer passes an argument that this function does not know.
        RuntimeError: called outside a planned forward.
    """
    step = _ACTIVE.get()
    if step is None:
        raise RuntimeError("The emssd attention runs only inside a planned forward: use emssd.generate.")
    refuse_unknown_arguments(module, kwargs)
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    step.calls.append(AttentionCall(layer, sliding_window, softcap, s_aux is not None))
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling

    index, flat_slots = step.writes(key.device)
    new_keys, new_values = key[0].transpose(0, 1), value[0].transpose(0, 1)  # (T, G, D)
    if index is not None:
        new_keys, new_values = new_keys[index], new_values[index]
    keys, values = step.store.write(layer, flat_slots, new_keys, new_values)

    output = query.new_zeros(1, query.shape[1], query.shape[2], value.shape[-1])  # (1, H, T, Dv)
    heads_first = tuple(pool.transpose(0, 1).unsqueeze(0) for pool in (keys, values))  # (1, G, slots, D)
    simple = step.backend == "sdpa" and softcap is None and s_aux is None
    for number, group in enumerate(step.groups):
        first = first_slot(group, sliding_window)
        q = _group_tokens(query, group)  # (R, H, n, D)
        k, v = (_span(pool, group, first) for pool in heads_first)  # (R, G, L, D)
        mask = step.mask(number, sliding_window, query.dtype, query.device)
        if simple:
            step.kernels.add("sdpa-batched" if len(group.rows) > 1 else "sdpa-rows")
            grouped = k.shape[1] != q.shape[1]
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling, enable_gqa=grouped)
        else:
            step.kernels.add("reference")
            out = reference_attention(q, k, v, mask, scaling, softcap, s_aux)
        _group_tokens(output, group).copy_(out)
    return output.transpose(1, 2), None


def _group_tokens(packed: Tensor, group: QueryGroup) -> Tensor:
    """A view of the group's tokens in packed [1, H, T, D]: [R, H, n, D]."""
    rows, width = len(group.rows), group.num_tokens
    tokens = packed.narrow(2, group.first_token, rows * width)
    return tokens if rows == 1 else tokens[0].unflatten(1, (rows, width)).transpose(0, 1)


def _span(pool: Tensor, group: QueryGroup, first: int) -> Tensor:
    """A view of the group's slots in a pool [1, G, slots, D]: [R, G, L, D]."""
    rows = len(group.rows)
    if rows == 1:
        start = group.flat_start
        return pool.narrow(2, start + first, group.span - first)
    block = pool[0].narrow(1, group.flat_start, rows * group.stride)
    return block.unflatten(1, (rows, group.stride))[:, :, first : group.span].transpose(0, 1)


def reference_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention as plain matrix products: query [R, H, n, D], key and value [R, G, L, D] -> [R, H, n, Dv].

    Scores are softened by `softcap * tanh(score / softcap)`; sinks [H] join the softmax as one more column that is
    then dropped. The softmax runs in float32, or in the query's type where that is wider.
    """
    groups = query.shape[1] // key.shape[1]
    q = query.unflatten(1, (key.shape[1], groups))  # (R, G, H/G, n, D)
    scores = q @ key.unsqueeze(2).transpose(-1, -2) * scaling  # (R, G, H/G, n, L)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores + mask.unsqueeze(2)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if sinks is not None:
        column = sinks.to(scores.dtype).view(1, key.shape[1], groups, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = scores.softmax(dim=-1)[..., : key.shape[2]].to(query.dtype)
    return (weights @ value.unsqueeze(2)).flatten(1, 2)


def refuse_unknown_arguments(module: nn.Module, arguments: dict[str, Any]) -> None:
    """Raise UnsupportedModelError if a layer passes an argument that could change attention unseen."""
    for name, value in arguments.items():
        if value is not None and name not in IGNORED_ARGUMENTS:
            raise UnsupportedModelError(
                f"{type(module).__name__} passes the argument {name!r} to attention, which is not served: "
                "use another model."
            )


def share_weights(model: nn.Module) -> nn.Module:
    """A copy with its own modules and configuration whose parameters and buffers are the given model's own tensors."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def hook_model(model: nn.Module) -> nn.Module:
    """A weight-sharing copy of a transformers model that runs our attention.

    Raises:
        UnsupportedModelError: transformers cannot replace this model's attention.
    """
    hooked = share_weights(model)
    name = type(model).__name__
    try:
        hooked.set_attn_implementation(ATTENTION_NAME)  # type: ignore[operator]
    except (ValueError, KeyError, NotImplementedError) as error:
        raise UnsupportedModelError(f"{name} is not supported: its attention cannot be replaced ({error}).") from error
    taken = getattr(hooked.config, "_attn_implementation", None)
    if taken != ATTENTION_NAME:
        raise UnsupportedModelError(
            f"{name} is not supported: its attention cannot be replaced (gate 2, hook: it stayed {taken!r})."
        )
    return hooked


AttentionInterface.register(ATTENTION_NAME, ems_attention)
