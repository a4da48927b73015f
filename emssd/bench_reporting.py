"""The results of `bench` as text: tables for a terminal and for a README, and what they say in sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from emssd.bench_model import LARGEST_MEAN_ERROR, Crossing, ModelComparison
from emssd.bench_plan import GREEDY, TRANSFORMERS, TRANSFORMERS_LOOKUP, Entry, PromptSet, repeats_at
from emssd.bench_results import BenchResults, Point, Spread
from emssd.comparing import RAGGED_BASELINE
from emssd.config import BASELINE
from emssd.reporting import MISSING, TIED, WRONG, decimals, plural

LABEL_WIDTH = 24
TITLES = {TRANSFORMERS: "transformers", TRANSFORMERS_LOOKUP: "transformers lookup"}

Cell = Callable[[Point], str]


def bench_table(results: BenchResults, description: str) -> str:
    """The tables of `bench`: one block per prompt set, drafter and quantity, a column per batch size.

    Args:
        results: what was measured.
        description: model and settings in words.
    """
    lines: list[str | tuple[str, list[str]]] = [description]
    for prompts, drafter in _blocks(results):
        lines += ["", f"{prompts}, drafter {drafter}", ("  batch size", [str(size) for size in results.batch_sizes])]
        for title, entries, cell in _sections(results, prompts, drafter):
            lines += ["", f"  {title}"]
            lines += [(f"    {_title(entry)}", _cells(results, prompts, entry, cell)) for entry in entries]
    width = 2 + max((len(cell) for line in lines if not isinstance(line, str) for cell in line[1]), default=0)
    drawn = [line if isinstance(line, str) else _line(*line, width) for line in lines]
    return "\n".join([*drawn, "", *_footer(results)])


def _blocks(results: BenchResults) -> Iterator[tuple[str, str]]:
    for prompts in results.prompt_sets:
        for drafter in results.drafters:
            yield prompts, drafter


def _sections(results: BenchResults, prompts: str, drafter: str) -> Iterator[tuple[str, list[Entry], Cell]]:
    """Title, rows and cell text of each quantity."""
    entries = results.entries(prompts, drafter)
    ragged = Entry(RAGGED_BASELINE) in entries
    speculative = [entry for entry in entries if entry.is_ours and entry.drafter != "none"]
    yield f"speed-up over {BASELINE} (padded cache)", entries, lambda point: _spread(point.speed_up, 2) + _mark(point)
    if ragged:
        yield (
            f"speed-up over {RAGGED_BASELINE} (no prompt padding)",
            entries,
            lambda point: _spread(point.speed_up_vs_ragged, 2) + _mark(point),
        )
    over_vanilla = [entry for entry in speculative if entry.method != "vanilla"]
    if over_vanilla and Entry("vanilla", drafter) in entries:
        yield "speed-up over vanilla", over_vanilla, lambda point: _spread(point.speed_up_vs_vanilla, 2) + _mark(point)
    yield "tokens/s", entries, lambda point: _spread(point.tokens_per_second, 1)
    if speculative:
        yield (
            "tokens a step of a row, acceptance rate",
            speculative[:1],
            lambda point: f"{decimals(point.details.get('mean_acceptance_length'), 2)}, {_rate(point)}",
        )
    yield "prefill of all prompts once, seconds", [GREEDY], lambda point: decimals(point.prefill_seconds, 2)
    yield "rows identical to plain decoding", entries, _identical


def _title(entry: Entry) -> str:
    return TITLES.get(entry.method, entry.method)


def _line(label: str, cells: Sequence[str], width: int) -> str:
    return (f"{label:<{LABEL_WIDTH}}" + "".join(f"{cell:>{width}}" for cell in cells)).rstrip()


def _cells(results: BenchResults, prompts: str, entry: Entry, cell: Cell) -> list[str]:
    found = [results.point(prompts, batch, entry) for batch in results.batch_sizes]
    return [MISSING if point is None else cell(point) for point in found]


def _spread(spread: Spread | None, places: int) -> str:
    if spread is None:
        return MISSING
    if spread.low == spread.high:
        return f"{spread.median:.{places}f}"
    return f"{spread.median:.{places}f} [{spread.low:.{places}f}..{spread.high:.{places}f}]"


def _mark(point: Point) -> str:
    if not point.counts:
        return f" {WRONG}"
    return f" {TIED}" if point.near_ties else ""


def _rate(point: Point) -> str:
    rate = point.details.get("acceptance_rate")
    return MISSING if rate is None else f"{100 * rate:.0f} %"


def _identical(point: Point) -> str:
    rows = point.details["rows"]
    different = {difference["row"] for difference in point.details["differences"]}
    tail = f", {plural(len(point.near_ties), 'tie')}" if point.near_ties else ""
    return f"{rows - len(different)}/{rows}{tail}"


def _footer(results: BenchResults) -> list[str]:
    place = results.environment
    load = place.get("load_average")
    lines = [
        f"Medians of {_repeats(results, 'interleaved repeat')}, with [lower..upper quartile] where they differ;",
        "speed-ups are paired by repeat, same prompts, prefill excluded. tokens/s counts decode tokens; total seconds",
        "include recording.",
        f"{place['cpu']}, {place['device']}, {place['dtype']}, {plural(place['threads'], 'thread')},",
        f"torch {place['torch']}, transformers {place['transformers']}"
        + (f", load average {load[0]:.1f} at the start." if load else "."),
    ]
    lines += repeated_prompts(results)
    if any(entry.method in TITLES for point in results.points for entry in [point.entry]):
        lines.append(
            "transformers: generate of that package, one row at a time; lookup: its own prompt lookup, as many drafts."
        )
    if not results.passed:
        lines.append(f"{WRONG} Outputs differ from plain decoding: this speed-up does not count.")
    if any(point.near_ties for point in results.points):
        lines.append(f"{TIED} Some outputs differ from plain decoding by rounding ties alone: read it with care.")
    return lines


def repeated_prompts(results: BenchResults) -> list[str]:
    """Sentences for each batch size that decodes a prompt more than once, or twice in one batch."""
    found = []
    for prompts, about in results.settings["prompts"].items():
        count = about["count"]
        for size in results.batch_sizes:
            rows = -(-count // size) * size
            if rows != count:
                found.append(
                    f"Batch {size}: {plural(count, f'{prompts} prompt')} fill {rows} rows, some of them more than once."
                )
            point = results.point(prompts, size, GREEDY)
            if point is not None and point.copied_rows:
                found.append(
                    f"Batch {size}: {point.copied_rows} of {rows} {prompts} rows copy another row of their batch, and "
                    "copies are never ragged."
                )
    return found


def copies_warning(prompts: PromptSet, batch_sizes: Sequence[int]) -> str | None:
    """A sentence where batches of a prompt set have a prompt twice; None where none has."""
    found = [
        f"{prompts.copied(size)} of {sum(map(len, prompts.batches(size)))} rows at batch {size}"
        for size in batch_sizes
        if prompts.copied(size)
    ]
    if not found:
        return None
    return (
        f"{prompts.name}: {', '.join(found)} copy another row of their batch, and copies are never ragged, which "
        "favours vanilla: give as many different prompts as the largest batch has rows."
    )


def _repeats(results: BenchResults, noun: str) -> str:
    """How often the points were timed: short runs are timed more often than long ones."""
    counts = {len(point.repeats) for point in results.points} or {0}
    planned = results.settings["repeats"]
    few = any(len(point.repeats) < repeats_at(planned, point.batch) for point in results.points)
    words = plural(max(counts), noun) if len(counts) == 1 else f"{min(counts)} to {max(counts)} {noun}s"
    return words + " (more are planned)" * few


def figure_caption(results: BenchResults) -> str:
    """What a figure was measured on, in one line."""
    place, settings = results.environment, results.settings
    on_cpu = not str(place["device"]).startswith("cuda")
    machine = f"{place['cpu']}, {plural(place['threads'], 'thread')}" if on_cpu else place["device_name"]
    drafter = f"drafter {', '.join(results.drafters)}, K = {settings['num_draft_tokens']}"
    return (
        f"{place['model']}, {place['dtype']}; {machine}; {drafter}; up to {settings['max_new_tokens']} new tokens; "
        f"medians and quartiles of {_repeats(results, 'repeat')}"
    )


def crossing_lines(results: BenchResults) -> list[str]:
    """Where vanilla falls below greedy, one sentence per prompt set and drafter."""
    found = []
    for prompts, drafter in _blocks(results):
        if Entry("vanilla", drafter) in results.entries(prompts, drafter):
            batch = results.first_below_greedy(prompts, drafter)
            words = "at no tested batch size" if batch is None else f"first at batch {batch}"
            found.append(f"{prompts}, {drafter}: vanilla is slower than greedy {words}.")
    return found


def difference_lines(results: BenchResults) -> list[str]:
    """One line for every row whose output is not that of plain decoding."""
    found = []
    for point in results.points:
        for each in point.differences:
            kind = "near-tie" if each["near_tie"] else "DIFFERENT"
            gap = "" if each["gap"] is None else f", logit gap {each['gap']:.2e}"
            found.append(
                f"{kind}: {point.prompts}, batch {point.batch}, {_title(point.entry)}, prompt {each['row']}, "
                f"position {each['position']}: plain {each['expected']}, got {each['got']}{gap}"
            )
    return found


def model_table(comparison: ModelComparison) -> str:
    """Measured beside modelled, a line per point, and the mean error."""
    lines = [
        f"Cost model: {comparison.name}",
        f"{'prompts':<16}{'batch':>6}  {'method':<16}{'drafter':<15}"
        f"{'speed-up':>9}{'modelled':>10}{'error':>9}{'ms a step':>12}{'modelled':>10}",
    ]
    for point in comparison.points:
        error = "" if point.entry == GREEDY else f"{100 * point.error:+.1f} %"
        lines.append(
            f"{point.prompts:<16}{point.batch:>6}  {point.entry.method:<16}{point.entry.drafter:<15}"
            f"{point.measured:>9.2f}{point.modelled:>10.2f}{error:>9}"
            f"{1e3 * point.measured_step_seconds:>12.1f}{1e3 * point.modelled_step_seconds:>10.1f}"
        )
    return "\n".join([*lines, *model_lines(comparison)])


def model_lines(comparison: ModelComparison) -> list[str]:
    """What the comparison says, in sentences."""
    error = comparison.mean_error
    if error is None:
        return ["There is no point to hold against the cost model."]
    verdict = "within" if comparison.is_near else "MORE THAN"
    lines = [
        f"Mean absolute error of the modelled speed-ups: {100 * error:.1f} %, {verdict} the "
        f"{100 * LARGEST_MEAN_ERROR:.0f} % allowed. Times of a step are shown, not judged."
    ]
    lines += [_crossing_line(crossing) for crossing in comparison.crossings]
    return [*lines, f"The cost model {'agrees' if comparison.passed else 'DOES NOT AGREE'} with what was measured."]


def _crossing_line(crossing: Crossing) -> str:
    measured, modelled = (
        "never" if batch is None else f"at batch {batch}" for batch in (crossing.measured, crossing.modelled)
    )
    verdict = "within one tested batch size" if crossing.agrees else "NOT within one tested batch size"
    return (
        f"{crossing.prompts}, {crossing.drafter}: vanilla falls below greedy {measured} as measured, {modelled} "
        f"as modelled: {verdict} of each other."
    )


def bench_markdown(results: BenchResults, description: str) -> str:
    """The speed-ups as Markdown tables, for a README."""
    lines = [description]
    for prompts, drafter in _blocks(results):
        lines += ["", f"**{prompts}**, drafter {drafter}: speed-up over greedy, median [quartiles]", ""]
        lines.append("| method | " + " | ".join(f"batch {size}" for size in results.batch_sizes) + " |")
        lines.append("| --- |" + " ---: |" * len(results.batch_sizes))
        for entry in results.entries(prompts, drafter):
            cells = _cells(results, prompts, entry, lambda point: _spread(point.speed_up, 2) + _mark(point))
            lines.append(f"| {_title(entry)} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", " ".join(_footer(results)), ""])
