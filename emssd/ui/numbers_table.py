"""All numbers that the page "Numbers" shows, one a line: for its tables and for CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

from emssd.config import METHOD_TITLES
from emssd.counters_csv import spreadsheet_text
from emssd.simulation_report import range_words
from emssd.ui.numbers_measured import BenchFile
from emssd.ui.numbers_model import (
    TAKEN_APART,
    Curves,
    attention_intensity,
    best_drafts,
    curves,
    dense_intensity,
    paper_points,
    step_parts,
)
from emssd.ui.numbers_own import is_own
from emssd.ui.numbers_settings import BATCHES, Settings, attainable, dtype_of
from emssd.ui.numbers_words import model_title

OWN_TITLES: dict[str, Callable[[Settings], str]] = {
    "model": lambda settings: model_title(settings.model),
    "hardware": lambda settings: settings.machine.title,
}
"""Setting -> the name of one's own."""


@dataclass(frozen=True)
class Line:
    """One number: what it is of, its unit, and where it comes from. Empty where a source has none."""

    quantity: str
    method: str
    batch: int | str
    kind: str
    unit: str
    model: float | str = ""
    paper: float | str = ""
    measured: float | str = ""


def lines_of(settings: Settings) -> list[Line]:
    """Every number that the charts show, under the settings that they follow from."""
    found, points = curves(settings), paper_points(settings)
    return [*_settings(settings), *_speed_ups(found, points), *_answers(settings, found), *_step(settings)]


def _settings(settings: Settings) -> Iterable[Line]:
    values = asdict(settings)
    values.update(values.pop("costs"))
    units = {"fixed": "ms", "row": "ms per row", "slot": "µs per slot", "hit": "%", "token": "%"}
    units |= {"length": "tokens", "mean": "tokens", "spread": "tokens", "batch": "rows"}
    for name, value in values.items():
        if name in OWN_TITLES and is_own(value):
            yield Line("setting", "", "", name, "", spreadsheet_text(OWN_TITLES[name](settings)))
            yield Line("setting", "", "", f"{name} in links", "", value)
        else:
            yield Line("setting", "", "", name, units.get(name, ""), value)


def _speed_ups(found: Curves, points: Mapping[str, Mapping[int, float]]) -> Iterable[Line]:
    for method, line in found.lines.items():
        for batch, value in line.items():
            paper = points.get(method, {}).get(batch, "")
            yield Line("speed-up over greedy", method, batch, "", "×", value, paper)


def _answers(settings: Settings, found: Curves) -> Iterable[Line]:
    for method, batch in found.falls.items():
        yield Line("first batch below greedy", method, "", "", "rows", "" if batch is None else batch)
        yield Line("batches below greedy", method, "", "", "rows", range_words(found.slower[method]))
    for method, (length, gain) in best_drafts(settings).items():
        yield Line("best draft length", method, settings.batch, "", "tokens", length)
        yield Line("speed-up at the best draft length", method, settings.batch, "", "×", gain)


def _step(settings: Settings) -> Iterable[Line]:
    batch = settings.batch
    for method in TAKEN_APART:
        parts = step_parts(settings, method)
        for kind, value in parts.slots.items():
            yield Line("KV slots read per step and layer", method, batch, kind, "slots", value)
        for kind, value in parts.rows.items():
            yield Line("rows fed per step", method, batch, kind, "rows", value)
        yield Line("attention per step", method, batch, "", "ms", parts.attention_ms)
        yield Line("step", method, batch, "", "ms", parts.step_ms)
        yield from _roof(settings, method, parts.fed)
        yield Line("attention intensity", method, batch, "", "FLOP/byte", attention_intensity(settings, method))
    yield from _roof(settings, "greedy", batch)


def _roof(settings: Settings, method: str, rows: float) -> Iterable[Line]:
    machine, intensity = settings.machine, dense_intensity(settings, rows)
    best = attainable(intensity, machine.flops(dtype_of(machine)), machine.bandwidth)
    yield Line("dense intensity", method, settings.batch, "", "FLOP/byte", intensity)
    yield Line("dense layers at best", method, settings.batch, "", "TFLOP/s", best / 1e12)


def _measured(results: BenchFile) -> Iterable[Line]:
    """Medians and quartiles, with the model of the very same runs."""
    for (prompts, drafter), lines in results.points.items():
        kind = f"{prompts}, {drafter}"
        for method, line in lines.items():
            for each in line:
                model = "" if math.isnan(each.modelled) else each.modelled
                named = f"measured speed-up over greedy on {results.where}"
                yield Line(named, method, each.batch, kind, "×", model, "", each.median)
                yield Line("its lower quartile", method, each.batch, kind, "×", "", "", each.low)
                yield Line("its upper quartile", method, each.batch, kind, "×", "", "", each.high)


def csv_of(settings: Settings, results: BenchFile | None = None) -> str:
    """The lines as CSV with a header, those of a benchmark on show among them."""
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(Line.__dataclass_fields__)
    lines = [*lines_of(settings), *(() if results is None else _measured(results))]
    writer.writerows(asdict(line).values() for line in lines)
    return out.getvalue()


def speed_up_table(found: Curves, points: Mapping[str, Mapping[int, float]]) -> tuple[list[str], list[list[str]]]:
    """(heads, rows of cells): speed-ups by batch size, the paper's in brackets."""
    heads = ["Batch", *(METHOD_TITLES[name] for name in TAKEN_APART)]

    def cell(name: str, batch: int) -> str:
        paper = points.get(name, {}).get(batch)
        return f"{found.lines[name][batch]:.2f}" + (f" (paper {paper:.2f})" if paper else "")

    return heads, [[str(batch), *(cell(name, batch) for name in TAKEN_APART)] for batch in BATCHES]


def step_table(settings: Settings) -> tuple[list[str], list[list[str]]]:
    """(heads, rows of cells): the mean step of every method at the settings' batch."""
    parts = {name: step_parts(settings, name) for name in TAKEN_APART}
    heads = ["A mean step", *(METHOD_TITLES[name] for name in parts)]
    rows = [
        [f"KV slots read per layer, {kind.replace('_', ' ')}", *(f"{part.slots[kind]:,.0f}" for part in parts.values())]
        for kind in parts["vanilla"].slots
    ]
    rows += [
        [f"Rows fed, {kind}", *(f"{part.rows[kind]:,.1f}" for part in parts.values())] for kind in parts["vanilla"].rows
    ]
    rows.append(["Attention, ms", *(f"{part.attention_ms:,.1f}" for part in parts.values())])
    rows.append(["Whole step, ms", *(f"{part.step_ms:,.1f}" for part in parts.values())])
    rows.append(["Steps of a run", *(f"{part.steps:,.1f}" for part in parts.values())])
    return heads, rows
