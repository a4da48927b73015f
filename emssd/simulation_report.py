"""The table of `simulate`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from emssd.acceptance import MAX_BATCH
from emssd.config import BASELINE
from emssd.expected_speeds import LONGEST_DRAFT, Ranges
from emssd.model_shape import ModelShape
from emssd.simulation import RunTotals, Simulation, batch_memory_note

LABEL, CELL = 42, 10
ROW_WORDS = {"useful": "useful", "pad": "padding of live rows", "finished": "finished rows"}
SLOT_WORDS = {
    "useful": "useful",
    "prompt_pad": "prompt padding",
    "hole": "holes",
    "pad_query": "by padding queries",
}
KERNEL_WORDS = {
    "per_token": "each query reads its row's slots, as often as the kernel is launched",
    "varlen": "each row's slots are read once",
}


def simulation_lines(simulation: Simulation) -> list[str]:
    """The whole table, at most 120 columns wide for up to seven batch sizes."""
    return [
        *_head(simulation),
        "",
        _line("", [f"batch {size}" for size in simulation.setting.batch_sizes]),
        *_speed_lines(simulation),
        *_count_lines(simulation),
        *_answers(simulation),
    ]


def _head(simulation: Simulation) -> list[str]:
    setting, numbers = simulation.setting, simulation.setting.acceptance
    _, hardware = setting.hardware
    prompts = (
        f"{numbers.prompt_mean:g} tokens each"
        if numbers.prompt_law == "equal"
        else f"{numbers.prompt_law}, {numbers.prompt_mean:g} ± {numbers.prompt_sd:g} tokens"
    )
    lines = [
        f"Simulated, not measured: {setting.model[0]} in {setting.dtype} on {hardware.title}; attention: "
        f"{setting.cost_model.kernel}.",
        f"Rows: K = {numbers.num_draft_tokens} drafts in {100 * numbers.hit_rate:g} % of steps, the next one right "
        f"with {100 * numbers.token_rate:g} %, spread {numbers.spread:g};",
        f"prompts {prompts}; {numbers.output_tokens} output tokens. {setting.batches} batches of each size, seed "
        f"{setting.seed}.",
    ]
    lines += [f"{words[0].upper()}{words[1:]}." for words in [window_words(setting.model[1])] if words]
    return lines + [f"Note: {words}" for words in _memory_notes(simulation)]


def window_words(shape: ModelShape) -> str:
    """What windows do to counts of slots; "" of a model without them."""
    windows = [window for window in shape.windows if window is not None]
    if not windows:
        return ""
    return (
        f"{len(windows)} of {shape.layers} layers see the last {windows[0]:,} tokens: slots are those of a mean layer"
    )


def _memory_notes(simulation: Simulation) -> Iterator[str]:
    """The machine's sentence for the weights, or one for each method whose largest batch does not fit."""
    setting, (_, shape), (_, hardware) = simulation.setting, simulation.setting.model, simulation.setting.hardware
    if note := hardware.memory_note(shape, setting.dtype):
        yield note
        return
    for method in (BASELINE, *setting.methods):
        if note := batch_memory_note(setting, method):
            yield note


def _speed_lines(simulation: Simulation) -> Iterator[str]:
    setting = simulation.setting
    yield f"Speed-up over {BASELINE} (decode time, prefill left out)"
    for method in setting.methods:
        factors = [simulation.speed_up(size, method) for size in setting.batch_sizes]
        yield _line(f"  {method}", [f"{factor:.2f}x" for factor in factors])
    yield "Tokens/s"
    for method in (BASELINE, *setting.methods):
        speeds = [simulation.runs[size][method].tokens_per_second for size in setting.batch_sizes]
        yield _line(f"  {method}", [three_digits(speed) for speed in speeds])
    drafting = [method for method in setting.methods if not method.startswith("greedy")]
    if drafting:
        lengths = [simulation.runs[size][drafting[0]].mean_acceptance_length for size in setting.batch_sizes]
        yield _line("Mean acceptance length, all methods", [f"{length:.2f}" for length in lengths])


def _count_lines(simulation: Simulation) -> Iterator[str]:
    yield "Rows fed in a step"
    yield from _kinds(simulation, "input_rows", ROW_WORDS, ".1f", 1.0)
    kernel = simulation.setting.cost_model.kernel
    yield f"KV slots read in a step and layer, in thousands ({KERNEL_WORDS[kernel]})"
    yield from _kinds(simulation, kernel, SLOT_WORDS, ",.2f", 1e-3)


def _kinds(simulation: Simulation, table: str, words: dict[str, str], form: str, unit: float) -> Iterator[str]:
    """A line for each method and kind; kinds that a method never has are left out."""
    for method in (BASELINE, *simulation.setting.methods):
        for kind, word in words.items():
            runs = [simulation.runs[size][method] for size in simulation.setting.batch_sizes]
            means = [unit * _mean(run, table, kind) for run in runs]
            if any(means):
                yield _line(f"  {method:<14} {word}", [format(mean, form) for mean in means])


def _mean(run: RunTotals, table: str, kind: str) -> float:
    """Mean of a count over the steps that exist; slots of the paper's kernel as often as they are read."""
    total = run.launched[kind] if table == "per_token" else run.kinds[table][kind]
    return total / run.steps if run.steps else 0.0


def _answers(simulation: Simulation) -> Iterator[str]:
    sizes = simulation.setting.batch_sizes
    if simulation.slower:
        yield f"Best number of drafts, 1..{LONGEST_DRAFT}, at the same rates (expected)"
    for method in simulation.slower:
        best = [simulation.best_drafts[size][method][0] for size in sizes]
        yield _line(f"  {method}", [f"{drafts}+" if drafts == LONGEST_DRAFT else str(drafts) for drafts in best])
    for method, ranges in simulation.slower.items():
        yield f"{method} {slower_words(ranges)}."


def slower_words(ranges: Ranges) -> str:
    """Where a method is expected to be slower than greedy, as the end of a sentence that begins with its name."""
    if not ranges:
        return f"is expected to stay above {BASELINE} up to batch {MAX_BATCH}"
    if ranges == ((1, MAX_BATCH),):
        return f"is expected to stay below {BASELINE} up to batch {MAX_BATCH}"
    if len(ranges) == 1 and ranges[0][1] == MAX_BATCH:
        return f"is expected to fall below {BASELINE} at batch {ranges[0][0]}"
    return f"is expected to be below {BASELINE} {range_words(ranges)}, and above it at all others up to {MAX_BATCH}"


def range_words(ranges: Ranges) -> str:
    """Ranges of batch sizes: "at batches 3 to 5 and from batch 9 on"."""
    parts = [
        f"from batch {first} on" if last == MAX_BATCH else f"at batch {first}" if first == last else
        f"at batches {first} to {last}"
        for first, last in ranges
    ]  # fmt: skip
    return " and ".join(parts)


def three_digits(value: float) -> str:
    """A number to three significant digits, or to whole ones where it has more."""
    decimals = 0 if value <= 0 else max(2 - math.floor(math.log10(value)), 0)
    return f"{value:,.{min(decimals, 6)}f}"


def _line(label: str, cells: Sequence[str]) -> str:
    return (f"{label:<{LABEL}}" + "".join(f"{cell:>{CELL}}" for cell in cells)).rstrip()
