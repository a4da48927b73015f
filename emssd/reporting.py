"""Results as text for a terminal: the comparison table, summary lines, differences in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from emssd.comparing import RAGGED_BASELINE, Comparison
from emssd.config import BASELINE
from emssd.language_model import LanguageModel
from emssd.oracle import Difference

LABEL_WIDTH = 29
COLUMN_WIDTH = 15
MISSING = "-"
WRONG, TIED = "!", "~"

Cell = Callable[[str, dict[str, Any]], str]


def count(value: int) -> str:
    """A whole number with thousands apart."""
    return f"{value:,}"


def decimals(value: float | None, places: int, unit: str = "") -> str:
    """A number with fixed decimals and its unit; a dash for None."""
    return MISSING if value is None else f"{value:,.{places}f}{unit}"


def percent(part: float | None) -> str:
    """A share as per cent; a dash for None."""
    return MISSING if part is None else f"{100 * part:.1f} %"


def plural(number: int, noun: str) -> str:
    """E.g. "1 row", "3 rows"."""
    return f"{count(number)} {noun}" + ("" if number == 1 else "s")


def comparison_table(comparison: Comparison, description: str) -> str:
    """The table of `compare`, at most 120 columns wide, with what it was measured on above and below it.

    Args:
        comparison: what `compare_methods` returned.
        description: prompts, drafter and limits in words.
    """
    names = list(comparison.methods)
    summaries = {name: result.summary() for name, result in comparison.methods.items()}
    lines = [description, "", _line("", names)]
    for title, rows in _sections(comparison):
        lines += ["", title]
        lines += [_line(f"  {label}", [cell(name, summaries[name]) for name in names]) for label, cell in rows]
    return "\n".join([*lines, "", *_footer(comparison)])


def _line(label: str, cells: Sequence[str]) -> str:
    return (f"{label:<{LABEL_WIDTH}}" + "".join(f"{cell:>{COLUMN_WIDTH}}" for cell in cells)).rstrip()


def _sections(comparison: Comparison) -> Iterator[tuple[str, list[tuple[str, Cell]]]]:
    """Title, and label with cell text, of each block of the table."""

    def speed_up(baseline: str) -> Cell:
        def cell(name: str, summary: dict[str, Any]) -> str:
            return decimals(comparison.speed_up(name, baseline), 2, "x") + _mark(comparison, name, baseline)

        return cell

    def of(*path: str) -> Cell:
        def cell(name: str, summary: dict[str, Any]) -> str:
            value: Any = summary
            for key in path:
                value = value[key]
            return decimals(value, 3) if path[0] == "seconds" else count(value)

        return cell

    yield (
        "Speed (prefill excluded)",
        [
            ("tokens/s", lambda name, summary: decimals(summary["tokens_per_second"], 1)),
            (f"speed-up vs {BASELINE}", speed_up(BASELINE)),
            (f"speed-up vs {RAGGED_BASELINE}", speed_up(RAGGED_BASELINE)),
        ],
    )
    yield (
        "Acceptance",
        [
            ("decode steps", of("steps")),
            ("mean acceptance length", lambda name, summary: decimals(summary["mean_acceptance_length"], 2)),
            ("acceptance rate", lambda name, summary: percent(summary["acceptance_rate"])),
        ],
    )
    yield (
        "Input rows fed to the dense layers",
        [
            ("useful", of("input_rows", "useful")),
            ("padding of live rows", of("input_rows", "pad")),
            ("finished rows", of("input_rows", "finished")),
        ],
    )
    yield (
        "KV slots scanned, per layer (mode per-token: each query scans its row's slots up to its own)",
        [
            (label, of("kv_slots_scanned", "per_token", kind))
            for label, kind in (
                ("useful", "useful"),
                ("prompt padding", "prompt_pad"),
                ("holes", "hole"),
                ("by padding queries", "pad_query"),
            )
        ],
    )
    yield "KV cache, slots", [("holes at the end", of("holes")), ("slots advanced", of("slots_advanced"))]
    yield (
        "Seconds per phase",
        [(phase, of("seconds", phase)) for phase in ("draft", "target", "verify", "commit", "total")],
    )
    yield (
        "Outputs against transformers' generate, each prompt alone",
        [
            (
                "identical",
                lambda name, summary: f"{comparison.methods[name].identical}/{comparison.methods[name].rows}",
            ),
            ("near-ties (rounding)", lambda name, summary: count(len(comparison.methods[name].near_ties))),
            ("different", lambda name, summary: count(len(comparison.methods[name].failures))),
        ],
    )


def _mark(comparison: Comparison, *names: str) -> str:
    """A sign behind a speed-up between runs that did not put out the same."""
    results = [comparison.methods[name] for name in names]
    if any(result.failures for result in results):
        return f" {WRONG}"
    return f" {TIED}" if any(result.near_ties for result in results) else ""


def _footer(comparison: Comparison) -> list[str]:
    place = comparison.environment
    repeats = len(next(iter(comparison.methods.values())).runs)
    machine = f"{place['device']}, {place['dtype']}, {plural(place['threads'], 'thread')}"
    lines = [
        f"Speed-up vs {BASELINE} (padded cache) and vs {RAGGED_BASELINE} (no prompt padding), in decode seconds: "
        "same prompts,",
        f"prefill excluded, this machine: {machine}; "
        + ("one run each." if repeats == 1 else f"medians of {repeats} interleaved runs."),
    ]
    kernels = {"+".join(sorted({trace.attention for trace in result.traces})) for result in comparison.methods.values()}
    lines.append(f"Attention: {', '.join(sorted(kernels))}. Total seconds include recording the trace.")
    if not comparison.passed:
        lines.append(f"{WRONG} Outputs differ from plain decoding: this speed-up does not count.")
    if any(result.near_ties for result in comparison.methods.values()):
        lines.append(
            f"{TIED} Outputs differ from plain decoding by rounding ties alone: other texts, so read it with care."
        )
    return lines


def difference_line(lm: LanguageModel, difference: Difference, method: str = "", expected: str = "expected") -> str:
    """One sentence: row, position, both tokens as id and text, and the gap."""
    kind = "near-tie" if difference.near_tie else "DIFFERENT"
    start = f"{kind}: " + (f"{method}, " if method else "")
    gap = "" if difference.gap is None else f", logit gap {difference.gap:.2e}"
    return (
        f"{start}row {difference.row}, position {difference.position}: {expected} "
        f"{token_words(lm, difference.expected)}, got {token_words(lm, difference.got)}{gap}"
    )


def token_words(lm: LanguageModel, token: int | None) -> str:
    """A token as id and text; "the end" for None."""
    if token is None:
        return "the end of the output"
    return str(token) if lm.tokenizer is None else f"{token} {lm.token_text(token)!r}"


def verdict(comparison: Comparison) -> str:
    """What the outputs say, in one sentence."""
    results = comparison.methods.values()
    checked = sum(result.rows for result in results)
    same, ties = sum(result.identical for result in results), sum(len(result.near_ties) for result in results)
    wrong = sum(len(result.failures) for result in results)
    tail = (f", {plural(ties, 'near-tie')}" if ties else "") + (f", {wrong} different" if wrong else "")
    return f"{same} of {checked} outputs are token-identical to plain decoding{tail}."


def summary_line(summary: dict[str, Any], rows: int) -> str:
    """What a run did, in one line."""
    parts = [plural(summary["tokens"], "token") + f" in {plural(rows, 'row')}", plural(summary["steps"], "decode step")]
    if summary["mean_acceptance_length"] is not None:
        parts.append(f"mean acceptance length {summary['mean_acceptance_length']:.2f}")
    if summary["acceptance_rate"] is not None:
        parts.append(f"acceptance rate {percent(summary['acceptance_rate'])}")
    if summary["tokens_per_second"] is not None:
        parts.append(f"{summary['tokens_per_second']:.1f} tokens/s (prefill excluded)")
    return " · ".join(parts)
