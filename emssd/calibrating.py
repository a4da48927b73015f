"""The calibration as commands run it."""

from __future__ import annotations

from emssd.calibration import calibrate
from emssd.language_model import LanguageModel
from emssd.measured_machine import MeasuredMachine
from emssd.streaming import progress_bar


def calibrate_with_bar(lm: LanguageModel, quiet: bool) -> MeasuredMachine:
    """Measure this machine, with a progress bar on stderr."""
    bar = progress_bar(100, quiet, unit="%")

    def progress(done: float, what: str) -> None:
        bar.set_description(f"measuring: {what}", refresh=False)
        bar.update(round(100 * done) - bar.n)

    try:
        measured = calibrate(lm, progress=progress)
    finally:
        bar.close()
    assert measured is not None  # nobody stopped it
    return measured
