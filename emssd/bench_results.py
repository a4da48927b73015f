"""What was measured, as numbers for tables, figures and files: medians with quartiles, speed-ups paired by repeat."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from emssd.bench_plan import GREEDY, Entry
from emssd.bench_state import BenchState, Record
from emssd.comparing import RAGGED_BASELINE
from emssd.config import BASELINE

SCHEMA = 1


@dataclass(frozen=True)
class Spread:
    """Median, and the lower and upper quartile."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Of the values of all repeats; None without any."""
        if len(values) < 2:
            return cls(values[0], values[0], values[0]) if values else None
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high)

    def to_dict(self) -> dict[str, float]:
        """Plain data."""
        return {"median": self.median, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Point:
    """One entry at one batch size on one prompt set.

    Args:
        prompts: name of the prompt set.
        batch: rows decoded together.
        entry: method and drafter.
        repeats: [repeats] records of this entry, in order.
        greedy, ragged: the same of greedy decoding on the padded and on the ragged cache; [] where not measured.
        vanilla: the same of vanilla with this drafter.
        prefill_seconds: of all prompts once.
        copied_rows: rows whose prompt is also that of an earlier row of their batch: the two are never ragged.
    """

    prompts: str
    batch: int
    entry: Entry
    repeats: list[Record]
    greedy: list[Record]
    ragged: list[Record]
    vanilla: list[Record]
    prefill_seconds: float
    copied_rows: int = 0

    @property
    def details(self) -> Record:
        """The first repeat, which has counts as well."""
        return self.repeats[0]

    @property
    def differences(self) -> list[Record]:
        """Rows whose output is not that of plain decoding, each once, wrong ones first."""
        found: dict[int, Record] = {}
        for record in self.repeats:
            for difference in record["differences"]:
                if difference["row"] not in found or not difference["near_tie"]:
                    found[difference["row"]] = difference
        return sorted(found.values(), key=lambda each: (each["near_tie"], each["row"]))

    @property
    def near_ties(self) -> list[Record]:
        """Rows that differ by rounding alone."""
        return [each for each in self.differences if each["near_tie"]]

    @property
    def failures(self) -> list[Record]:
        """Rows whose output is wrong."""
        return [each for each in self.differences if not each["near_tie"]]

    @property
    def counts(self) -> bool:
        """Whether its speed-up over greedy does: neither of the two has a wrong output."""
        wrong = (each for record in self.greedy for each in record["differences"] if not each["near_tie"])
        return not self.failures and next(wrong, None) is None

    @property
    def tokens_per_second(self) -> Spread | None:
        """Decode tokens per decode second."""
        return Spread.of([speed for speed in map(_speed, self.repeats) if speed])

    @property
    def seconds(self) -> Spread | None:
        """Decode seconds of all prompts."""
        return Spread.of([float(record["seconds"]["total"]) for record in self.repeats])

    @property
    def step_seconds(self) -> float | None:
        """Median seconds of a decode step."""
        seconds, steps = self.seconds, self.details["steps"]
        return seconds.median / steps if seconds is not None and steps else None

    @property
    def speed_up(self) -> Spread | None:
        """Over greedy decoding on the padded cache in the same repeat."""
        return _ratio(self.repeats, self.greedy)

    @property
    def speed_up_vs_ragged(self) -> Spread | None:
        """Over greedy decoding on the ragged cache in the same repeat."""
        return _ratio(self.repeats, self.ragged)

    @property
    def speed_up_vs_vanilla(self) -> Spread | None:
        """Over vanilla with the same drafter in the same repeat."""
        return _ratio(self.repeats, self.vanilla)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        details = self.details
        spreads = {
            "tokens_per_second": self.tokens_per_second,
            "seconds": self.seconds,
            "speed_up": self.speed_up,
            "speed_up_vs_greedy_ragged": self.speed_up_vs_ragged,
            "speed_up_vs_vanilla": self.speed_up_vs_vanilla,
        }
        kept = (
            *("rows", "decode_tokens", "steps", "drafted", "accepted", "mean_acceptance_length", "acceptance_rate"),
            *("holes", "input_rows", "kv_slots_scanned", "attention_launches", "attention"),
        )
        return {
            "prompts": self.prompts,
            "batch": self.batch,
            "method": self.entry.method,
            "drafter": self.entry.drafter,
            **{name: spread.to_dict() if spread else None for name, spread in spreads.items()},
            "speed_up_valid": self.counts,
            "milliseconds_per_step": None if self.step_seconds is None else 1e3 * self.step_seconds,
            "prefill_seconds": self.prefill_seconds,
            "copied_rows": self.copied_rows,
            **{name: details[name] for name in kept if name in details},
            "near_ties": self.near_ties,
            "differences": self.failures,
            "seconds_of_repeats": [record["seconds"]["total"] for record in self.repeats],
        }


@dataclass(frozen=True)
class BenchResults:
    """All points of a benchmark that have been measured.

    Args:
        settings, environment: as the measurements were kept with.
        points: by prompt set, batch size and entry, in the order of measuring.
        model: what `bench_model.compare_with_model` found, as plain data; None where it was not asked for.
    """

    settings: dict[str, Any]
    environment: dict[str, Any]
    points: list[Point]
    model: dict[str, Any] | None = field(default=None)

    @classmethod
    def of(cls, state: BenchState) -> BenchResults:
        """The results of what was measured so far."""
        settings, points = state.header["settings"], []
        for prompts in settings["prompts"]:
            for batch in settings["batch_sizes"]:
                points += _points(prompts, batch, state.repeats(prompts, batch))
        return cls(settings, state.header["environment"], points)

    @property
    def prompt_sets(self) -> list[str]:
        """Names of the prompt sets that have points."""
        return list(dict.fromkeys(point.prompts for point in self.points))

    @property
    def batch_sizes(self) -> list[int]:
        """Batch sizes that have points."""
        return sorted({point.batch for point in self.points})

    @property
    def drafters(self) -> list[str]:
        """Drafters that have points of speculative methods; "none" where there are none."""
        found = list(dict.fromkeys(point.entry.drafter for point in self.points if point.entry.drafter != "none"))
        return found or ["none"]

    @property
    def passed(self) -> bool:
        """Whether every output is the expected one, near-ties allowed."""
        return not any(point.failures for point in self.points)

    def entries(self, prompts: str, drafter: str) -> list[Entry]:
        """What was measured on a prompt set with a drafter, plain decoding among it."""
        wanted = ("none", drafter)
        found = [p.entry for p in self.points if p.prompts == prompts and p.entry.drafter in wanted]
        return list(dict.fromkeys(found))

    def point(self, prompts: str, batch: int, entry: Entry) -> Point | None:
        """One point, if it was measured."""
        for point in self.points:
            if (point.prompts, point.batch, point.entry) == (prompts, batch, entry):
                return point
        return None

    def first_below_greedy(self, prompts: str, drafter: str, method: str = "vanilla") -> int | None:
        """The smallest batch size at which a method is slower than greedy; None if it never is."""
        for batch in self.batch_sizes:
            point = self.point(prompts, batch, Entry(method, drafter))
            if point is not None and point.speed_up is not None and point.speed_up.median < 1:
                return batch
        return None

    def to_dict(self) -> dict[str, Any]:
        """Plain data: settings, environment, points, where vanilla falls below greedy, and the model's part."""
        below = [
            {
                "prompts": prompts,
                "drafter": drafter,
                "method": "vanilla",
                "batch": self.first_below_greedy(prompts, drafter),
            }
            for prompts in self.prompt_sets
            for drafter in self.drafters
            if Entry("vanilla", drafter) in self.entries(prompts, drafter)
        ]
        return {
            "emssd_bench_results": SCHEMA,
            "baseline": BASELINE,
            "settings": self.settings,
            "environment": self.environment,
            "points": [point.to_dict() for point in self.points],
            "below_greedy": below,
            "model": self.model,
        }

    def to_csv(self) -> str:
        """One line per point."""
        file = io.StringIO()
        write = csv.writer(file, lineterminator="\n")
        spreads = ("tokens_per_second", "seconds", "speed_up", "speed_up_vs_greedy_ragged", "speed_up_vs_vanilla")
        plain = (
            *("rows", "copied_rows", "decode_tokens", "steps", "mean_acceptance_length", "prefill_seconds"),
            "milliseconds_per_step",
        )
        names = ("prompts", "batch", "method", "drafter")
        parts = ("median", "low", "high")
        write.writerow(
            [*names, *(f"{name}_{part}" for name in spreads for part in parts), *plain, "near_ties", "differences"]
        )
        for point in self.points:
            data = point.to_dict()
            row = [data[name] for name in names]
            row += [None if data[name] is None else data[name][part] for name in spreads for part in parts]
            row += [data.get(name) for name in plain]
            write.writerow([*row, len(data["near_ties"]), len(data["differences"])])
        return file.getvalue()


def _points(prompts: str, batch: int, repeats: Sequence[Record]) -> list[Point]:
    found: dict[Entry, list[Record]] = {}
    for record in repeats:
        for result in record["results"]:
            found.setdefault(Entry(result["method"], result["drafter"]), []).append(result)
    prefill = statistics.median(record["prefill_seconds"] for record in repeats) if repeats else 0.0
    copied = max((record.get("copied_rows", 0) for record in repeats), default=0)
    return [
        Point(
            prompts,
            batch,
            entry,
            records,
            greedy=found.get(GREEDY, []),
            ragged=found.get(Entry(RAGGED_BASELINE), []),
            vanilla=found.get(Entry("vanilla", entry.drafter), []),
            prefill_seconds=prefill,
            copied_rows=copied,
        )
        for entry, records in found.items()
    ]


def _speed(record: Record) -> float | None:
    spent = float(record["seconds"]["total"])
    return record["decode_tokens"] / spent if spent > 0 and record["decode_tokens"] else None


def _ratio(ours: Sequence[Record], theirs: Sequence[Record]) -> Spread | None:
    pairs = zip(map(_speed, ours), map(_speed, theirs), strict=False)
    return Spread.of([mine / base for mine, base in pairs if mine and base])
