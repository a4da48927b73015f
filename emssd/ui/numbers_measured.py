"""Results of `emssd bench --json`: read and checked, as points with what the cost model said of the same runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emssd.errors import ConfigError
from emssd.ui.method_style import METHOD_STYLES
from emssd.ui.token_text import visible

RECORDED = Path(__file__).resolve().parents[2] / "assets" / "figures" / "bench.json"
"""Results that come with the project."""
MAX_BYTES = 20 * 2**20
FIELD = "emssd_bench_results"
SCHEMA = 1


@dataclass(frozen=True)
class Measured:
    """Speed-up over greedy of one method at one batch size: median and quartiles, and the model's; NaN without one."""

    batch: int
    median: float
    low: float
    high: float
    modelled: float


@dataclass(frozen=True)
class BenchFile:
    """Points of a results file.

    Args:
        points: (prompt set, drafter) -> method -> points by rising batch size.
        where: model and machine in words.
    """

    points: dict[tuple[str, str], dict[str, list[Measured]]]
    where: str

    def mean_error(self, choice: tuple[str, str]) -> float | None:
        """Mean absolute relative error of the modelled speed-ups; None without a model."""
        pairs = [(each.modelled, each.median) for line in self.points[choice].values() for each in line]
        errors = [abs(modelled / measured - 1) for modelled, measured in pairs if math.isfinite(modelled)]
        return sum(errors) / len(errors) if errors else None


def read_bench(content: bytes, name: str) -> BenchFile:
    """Read a results file.

    Raises:
        ConfigError: it is none, is too large or damaged, or holds no speed-up of a method of this project.
    """
    wanted = "give a file that `emssd bench --json` wrote."
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{visible(name)} has more than {MAX_BYTES // 2**20} MiB: {wanted}")
    try:
        data = json.loads(content.decode("utf-8-sig"))
        if not isinstance(data, dict) or data.get(FIELD) != SCHEMA:
            raise ConfigError(f"{visible(name)} does not hold benchmark results (field {FIELD}: {SCHEMA}): {wanted}")
        points = _points(data)
        where = _where(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = visible(f"{type(error).__name__}: {error}")[:120]
        raise ConfigError(f"{visible(name)} is damaged ({reason}): {wanted}") from None
    if not points:
        raise ConfigError(f"{visible(name)} holds no speed-up over greedy: measure greedy and another method.")
    return BenchFile(points, where)


def _points(data: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, list[Measured]]]:
    modelled = {
        _place(point): _number(point["modelled_speed_up"]) for point in (data.get("model") or {}).get("points", ())
    }
    found: dict[tuple[str, str], dict[str, list[Measured]]] = {}
    for point in data["points"]:
        prompts, drafter, method, batch = place = _place(point)
        speed = point["speed_up"]
        if method not in METHOD_STYLES or method.startswith("greedy") or not speed or not point["speed_up_valid"]:
            continue
        median, low, high = (_number(speed[part]) for part in ("median", "low", "high"))
        line = found.setdefault((prompts, drafter), {}).setdefault(method, [])
        line.append(Measured(batch, median, low, high, modelled.get(place, math.nan)))
    for lines in found.values():
        for line in lines.values():
            line.sort(key=lambda each: each.batch)
    return found


def _place(point: Mapping[str, Any]) -> tuple[str, str, str, int]:
    batch = point["batch"]
    if not isinstance(batch, int) or isinstance(batch, bool) or not 1 <= batch <= 10**6:
        raise ValueError(f"batch {batch!r}")
    return visible(str(point["prompts"])), visible(str(point["drafter"])), str(point["method"]), batch


def _number(value: object) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    if not good:
        raise ValueError(f"speed-up {value!r}")
    return float(value)  # type: ignore[arg-type]


def _where(data: Mapping[str, Any]) -> str:
    environment = data.get("environment") or {}
    words = [environment.get(name) for name in ("model", "dtype", "device", "cpu")]
    return ", ".join(visible(str(word))[:60] for word in words if word) or "a machine that the file does not name"
