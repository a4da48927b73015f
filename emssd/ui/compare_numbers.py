"""Totals and series of a set's methods, as plain numbers: what the charts draw and the table lists."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

from emssd.accounting import INPUT_KINDS, SCAN_KINDS, kv_bytes_per_slot
from emssd.config import METHOD_TITLES
from emssd.cost_model import PAPER_FIT, CostModel
from emssd.trace import PHASES, GenerationTrace
from emssd.ui.comparison import clock, speed_ups
from emssd.ui.player_data import modelled

MIB = 2**20
INPUT_WORDS = {"useful": "useful", "pad": "pads of live rows", "finished": "finished rows"}
SCAN_WORDS = {
    "useful": "useful",
    "prompt_pad": "prompt pads",
    "hole": "holes",
    "pad_query": "by queries of pads",
}
Number = int | float | None


def input_rows(trace: GenerationTrace) -> dict[str, int]:
    """Rows fed to the dense layers in all decode steps, by kind."""
    return {kind: sum(step.account.input_rows[kind] for step in trace.decode_steps) for kind in INPUT_KINDS}


def slots_read(trace: GenerationTrace) -> dict[str, int]:
    """KV slots that the per-token kernel reads in one layer in all decode steps, its launches counted, by kind."""
    return {
        kind: sum(
            step.account.kv_slots_scanned["per_token"][kind] * step.account.attention_launches
            for step in trace.decode_steps
        )
        for kind in SCAN_KINDS
    }


def kept_rates(trace: GenerationTrace) -> list[float | None]:
    """[decode steps] accepted / drafted over all rows; None where nothing was drafted."""
    rates: list[float | None] = []
    for step in trace.decode_steps:
        drafted = sum(row.num_drafted for row in step.rows)
        rates.append(sum(row.num_accepted for row in step.rows) / drafted if drafted else None)
    return rates


def gains(trace: GenerationTrace) -> list[float | None]:
    """[decode steps] tokens emitted per live row."""
    values: list[float | None] = []
    for step in trace.decode_steps:
        live = [row.num_emitted for row in step.rows if row.kind == "decode"]
        values.append(sum(live) / len(live) if live else None)
    return values


def held_mib(trace: GenerationTrace) -> list[float]:
    """[steps, prefill first] MiB of keys and values in all layers, in the slots before the rows' write cursors."""
    per_slot = kv_bytes_per_slot(trace.model)
    return [sum(row.next_slot for row in step.rows) * per_slot / MIB for step in trace.steps]


def allocated_mib(trace: GenerationTrace) -> float:
    """MiB of keys and values in all layers that the run had room for."""
    slots = trace.steps[-1].account.kv_slots_allocated if trace.steps else 0
    return slots * kv_bytes_per_slot(trace.model) / MIB


def phase_seconds(trace: GenerationTrace) -> dict[str, float]:
    """Measured decode seconds by phase; "other" is what the total holds beside them (recording the trace)."""
    spent = {phase: sum(step.seconds.get(phase, 0.0) for step in trace.decode_steps) for phase in PHASES}
    total = spent.pop("total")
    return {**spent, "other": max(total - sum(spent.values()), 0.0)}


def modelled_seconds(trace: GenerationTrace, model: CostModel = PAPER_FIT) -> float:
    """Decode seconds by a cost model."""
    return sum(model.step_seconds(step.account) for step in trace.decode_steps)


def modelled_speed_up(
    baseline: GenerationTrace | None, trace: GenerationTrace, model: CostModel = PAPER_FIT
) -> float | None:
    """Baseline time / method time for the tokens that the method emitted; None where that is not known."""
    if baseline is None or not trace.decode_steps:
        return None
    seconds = modelled(model).step_seconds
    return speed_ups(clock(baseline.steps, seconds), clock(trace.steps, seconds))[-1]


def measured_speed_up(baseline: GenerationTrace | None, trace: GenerationTrace) -> float | None:
    """The same by the clock."""
    if baseline is None or not trace.decode_steps:
        return None
    return speed_ups(clock(baseline.steps), clock(trace.steps))[-1]


def table(traces: Mapping[str, GenerationTrace]) -> list[dict[str, str | Number]]:
    """One line per method with the numbers of all charts. Seconds are decode time; prefill is in none but "tokens"."""
    baseline = traces.get("greedy")
    lines: list[dict[str, str | Number]] = []
    for name, trace in traces.items():
        summary = trace.summary()
        rows, slots, seconds = input_rows(trace), slots_read(trace), phase_seconds(trace)
        rate, gain = summary["acceptance_rate"], summary["mean_acceptance_length"]
        lines.append(
            {
                "Method": METHOD_TITLES.get(name, name),
                "Tokens": summary["tokens"],
                "Decode steps": summary["steps"],
                "Tokens per row and step": None if gain is None else round(gain, 3),
                "Drafts": summary["drafted"],
                "Drafts kept %": None if rate is None else round(100 * rate, 2),
                **{f"Input rows, {INPUT_WORDS[kind]}": count for kind, count in rows.items()},
                **{f"KV slots read, {SCAN_WORDS[kind]}": count for kind, count in slots.items()},
                "Holes at the end": summary["holes"],
                "KV held at the end MiB": round(held_mib(trace)[-1], 3) if trace.steps else None,
                "KV allocated MiB": round(allocated_mib(trace), 3),
                **{f"Measured {phase} s": round(value, 4) for phase, value in seconds.items()},
                "Measured total s": round(sum(seconds.values()), 4),
                "Measured speed-up vs greedy": _rounded(measured_speed_up(baseline, trace)),
                "Modelled ms": round(1000 * modelled_seconds(trace), 3),
                "Modelled speed-up vs greedy": _rounded(modelled_speed_up(baseline, trace)),
            }
        )
    return lines


def _rounded(factor: float | None) -> float | None:
    return None if factor is None else round(factor, 3)


def table_csv(traces: Mapping[str, GenerationTrace]) -> str:
    """The table as CSV with a header; an empty cell where a number does not exist."""
    lines = table(traces)
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(lines[0])
    writer.writerows([["" if value is None else value for value in line.values()] for line in lines])
    return out.getvalue()
