"""What moving a slider of the page "Numbers" costs on the server: `make bench-numbers`, on a quiet machine.

Each repeat moves a slider to where it has not been, so that nothing is kept from an earlier answer. Exit 1 where a
median is above its floor. The client's drawing is not part of it.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from emssd.acceptance import Acceptance
from emssd.expectation import expected_runs
from emssd.model_config import shape_from_config
from emssd.ui.numbers_charts import speed_ups
from emssd.ui.numbers_model import EVERY, MAIN, best_drafts, curves, paper_points, step_parts
from emssd.ui.numbers_own import model_text
from emssd.ui.numbers_settings import BATCHES, Settings, default_settings
from tests.test_windows import GPT_OSS

REPEATS = 21
FIT = default_settings()
WINDOWS = default_settings("h200", model_text("gpt-oss", shape_from_config(GPT_OSS)))
COUNTS_MS, SLIDER_MS = 10.0, 100.0


def counts(repeat: int) -> None:
    """Expected counts of 8 batch sizes x 5 methods."""
    expected_runs(Acceptance(hit_rate=0.5 + 0.01 * repeat, prompt_sd=400.0 + repeat), BATCHES, EVERY)


def redraw(settings: Settings) -> None:
    """What the page computes after a slider: curves, answers, the mean steps, the main chart."""
    found = curves(settings)
    for method in EVERY:
        step_parts(settings, method)
    best_drafts(settings)
    lines = {name: found.lines[name] for name in MAIN}
    speed_ups(lines, paper_points(settings), True, (1, max(BATCHES)), "")


SLIDERS: dict[str, Callable[[int], Settings]] = {
    "per slot read": lambda n: replace(FIT, costs=replace(FIT.costs, slot=0.2 + 0.005 * n)),
    "draft found": lambda n: replace(FIT, hit=60.0 + n),
    "each draft accepted": lambda n: replace(FIT, token=70.0 + n),
    "draft length": lambda n: replace(FIT, length=1 + n % 16, batch=(8, 16)[n // 16]),
    "mean length": lambda n: replace(FIT, mean=700 + n),
    "spread": lambda n: replace(FIT, spread=300 + n),
    "draft found, a model with windows": lambda n: replace(WINDOWS, hit=60.0 + n),
}


def measure(name: str, work: Callable[[int], object], floor: float) -> bool:
    """Time, print, and judge."""
    times = []
    for repeat in range(REPEATS):
        began = time.perf_counter()
        work(repeat)
        times.append(1e3 * (time.perf_counter() - began))
    low, median, high = statistics.quantiles(times, n=4)
    print(f"{name:<48}{median:6.1f} ms [{low:.1f} .. {high:.1f}], at most {floor:g}")
    return median <= floor


def main() -> int:
    """Measure everything."""
    kept = [measure("expected counts of 8 batch sizes x 5 methods", counts, COUNTS_MS)]
    for name, settings in SLIDERS.items():
        kept.append(measure(f"slider: {name}", lambda n, s=settings: redraw(s(n)), SLIDER_MS))  # type: ignore[misc]
    return int(not all(kept))


if __name__ == "__main__":
    sys.exit(main())
