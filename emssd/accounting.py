"""Rows, slots and launches of a step, useful and wasted, counted from its plan.

Two kinds of padding, never one number. *Input padding*: a row is fed tokens it does not need (costs dense rows and
queries, this step only). *KV padding*: holes, masked slots that every later step scans again. Beside them *prompt
padding* (dead slots between a short prompt and the shared write column) and *finished rows* that are still fed.
Counts are for one full-attention layer. FLOPs and bytes are not stored anywhere: they follow from the counts and the
model's shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from emssd.layouts import RowPlan, StepPlan
from emssd.model_shape import ModelShape

SCAN_KINDS = ("useful", "prompt_pad", "hole", "pad_query")
INPUT_KINDS = ("useful", "pad", "finished")
ATTENTION_MODES = ("per_token", "varlen")


@dataclass(frozen=True)
class StepAccount:
    """What one step cost.

    Args:
        input_rows: rows of the dense layers, the LM head among them: "useful", "pad" (of live rows), "finished" (fed
            for finished rows).
        kv_slots_scanned: by attention mode, slots by kind. "per_token" is the paper's kernel: each query scans its
            row's slots up to its own. "varlen" scans each row's span once. A slot scanned by a pad's query counts as
            "pad_query" whatever it holds.
        kv_slots_allocated: slots of the whole batch's cache.
        holes_total: holes so far in all rows, prompt padding left out.
        attention_launches: launches of the paper's kernel per layer: two where any row feeds more than one token.
    """

    input_rows: dict[str, int]
    kv_slots_scanned: dict[str, dict[str, int]]
    kv_slots_allocated: int
    holes_total: int
    attention_launches: int
    extra: dict[str, Any] = field(default_factory=dict)
    """Unknown fields of a trace that was read."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as stored in a trace."""
        return {
            "input_rows": dict(self.input_rows),
            "kv_slots_scanned": {mode: dict(kinds) for mode, kinds in self.kv_slots_scanned.items()},
            "kv_slots_allocated": self.kv_slots_allocated,
            "holes_total": self.holes_total,
            "attention_launches": self.attention_launches,
            **self.extra,
        }


def step_account(plan: StepPlan, allocated: int, holes_total: int) -> StepAccount:
    """Count a plan.

    Args:
        plan: the step; finished rows write and scan nothing.
        allocated: slots of the batch's cache.
        holes_total: holes in all rows once the step is committed.
    """
    inputs = dict.fromkeys(INPUT_KINDS, 0)
    per_token = dict.fromkeys(SCAN_KINDS, 0)
    varlen = dict.fromkeys(SCAN_KINDS, 0)
    for row in plan.rows:
        if row.kind == "finished":
            inputs["finished"] += row.num_fed
            continue
        inputs["useful"] += row.num_real
        inputs["pad"] += row.num_fed - row.num_real
        _add(per_token, scanned_per_token(row))
        _add(varlen, scanned_varlen(row))
    decodes = any(row.kind == "decode" for row in plan.rows)
    several = decodes and any(row.num_fed > 1 for row in plan.live)
    scanned = {"per_token": per_token, "varlen": varlen}
    return StepAccount(inputs, scanned, allocated, holes_total, 2 if several else 1)


def scanned_per_token(row: RowPlan) -> dict[str, int]:
    """Slots by kind (`SCAN_KINDS`) where query j of a live row scans slots 0 .. cache_start + j."""
    real, pads = row.num_real, row.num_fed - row.num_real
    all_real = _scan_of_run(row.cache_start, real)
    dead = {"prompt_pad": real * row.prompt_pads, "hole": real * row.holes}
    pad_query = _scan_of_run(row.cache_start + real, pads)
    return {"useful": all_real - sum(dead.values()), **dead, "pad_query": pad_query}


def scanned_varlen(row: RowPlan) -> dict[str, int]:
    """Slots by kind where a live row's span is scanned once; what pads write is there for the pads' queries alone."""
    live = row.cache_start + row.num_real
    dead = {"prompt_pad": row.prompt_pads, "hole": row.holes}
    return {"useful": live - sum(dead.values()), **dead, "pad_query": row.num_fed - row.num_real}


def _scan_of_run(first_slot: int, queries: int) -> int:
    """Slots scanned by `queries` queries at neighbouring slots: sum of first_slot + j + 1."""
    return queries * first_slot + queries * (queries + 1) // 2


def _add(totals: dict[str, int], counts: dict[str, int]) -> None:
    for kind, count in counts.items():
        totals[kind] += count


def linear_flops_per_row(model: Mapping[str, Any]) -> int:
    """FLOPs of the linear layers and the LM head for one fed row, two per multiply-accumulate.

    Exact where the trace holds the weights that were counted on the model's modules, else from its sizes:
    2 * (layers * (hidden * (heads + kv_heads) * (head_dim + value_head_dim)
    + matrices * networks * hidden * intermediate + hidden * experts) + hidden * vocab), where `matrices` is 3 for a
    gated feed-forward network and else 2, `networks` is the number of experts a token uses (1 in a dense model), and
    `hidden * experts` is a mixture's router.
    That is exact for Llama-, OPT- and GPT-2-like shapes and for mixtures of equal layers; shared experts, dense layers
    of a mixture and latent projections then count as plain ones, as far as the model has that many parameters. Norms,
    biases, activations and the embedding lookup are left out.

    Args:
        model: `trace.model`.
    """
    return 2 * ModelShape.from_trace(model).weights_per_row


def attention_flops_per_slot(model: Mapping[str, Any]) -> int:
    """FLOPs of one query for one slot that it scans, in all layers: 2 * layers * heads * (head_dim + value_head_dim).

    One score and one weighted value per head; softmax is left out. `work.step_work` knows that layers with a sliding
    window scan fewer slots.
    """
    shape = ModelShape.from_trace(model)
    return 2 * shape.layers * shape.heads * (shape.head_dim + shape.value_head_dim)


def kv_bytes_per_slot(model: Mapping[str, Any]) -> int:
    """Bytes of keys and values of one slot in all layers: layers * kv_heads * (head_dim + value_head_dim) * size.

    Of a compressed cache (`latent_width` in the trace's model): layers * latent_width * size. The size of a
    number is read from `dtype`; a type whose name has no number of bits counts as 4 bytes.
    """
    shape = ModelShape.from_trace(model)
    return shape.layers * shape.slot_values * shape.bytes_per_value
