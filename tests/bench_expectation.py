"""How long the expected counts of 8 batch sizes x 5 methods take when every slider has moved.

    python tests/bench_expectation.py

Each repeat asks for rows that were not asked for before, so that nothing is kept from an earlier answer. Exit 1 where
the median is above 10 ms. Run it on a quiet machine: other work on the same cores counts, too.
"""

from __future__ import annotations

import statistics
import sys
import time

from emssd.acceptance import Acceptance
from emssd.expectation import expected_runs

BATCH_SIZES = (1, 2, 4, 8, 12, 16, 20, 24)
METHODS = ("greedy", "vanilla", "packed-input", "ragged-cache", "ems-sd")
REPEATS, FLOOR_MS = 41, 10.0


def main() -> int:
    """Measure, print, and judge."""
    times = []
    for repeat in range(REPEATS):
        acceptance = Acceptance(hit_rate=0.5 + 0.01 * repeat, token_rate=0.916, prompt_sd=400.0 + repeat)
        began = time.perf_counter()
        expected_runs(acceptance, BATCH_SIZES, METHODS)
        times.append(1e3 * (time.perf_counter() - began))
    low, median, high = statistics.quantiles(times, n=4)
    print(
        f"expected counts of 8 batch sizes x 5 methods: {median:.1f} ms [{low:.1f} .. {high:.1f}], at most {FLOOR_MS:g}"
    )
    return int(median > FLOOR_MS)


if __name__ == "__main__":
    sys.exit(main())
