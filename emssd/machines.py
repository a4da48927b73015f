"""All machines by name: the paper's, the presets, and this one where it has been measured."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from emssd.errors import ConfigError, shown
from emssd.hardware import HARDWARE, Hardware
from emssd.measured_machine import CalibrationError, MeasuredMachine, calibration_folder, read_calibration
from emssd.paper import paper_machine

PAPER = "paper"
THIS_MACHINE = "this-machine"
HOW_TO_MEASURE = "`emssd doctor --calibrate` measures it in about 20 s"


def this_machine() -> MeasuredMachine | None:
    """The newest measurement that is kept here and can be read, whichever model and type it was made with."""
    files = [(path, path.stat().st_mtime_ns) for path in calibration_folder().glob("*.json")]
    for path, changed in sorted(files, key=lambda each: -each[1]):
        measured = _read(path, changed)
        if measured is not None:
            return measured
    return None


@lru_cache(maxsize=8)
def _read(path: Path, changed: int) -> MeasuredMachine | None:
    """A file as it was at time `changed`; None where it is damaged."""
    try:
        return read_calibration(path)
    except CalibrationError:
        return None


def machines() -> dict[str, Hardware]:
    """The paper's GPU and the presets by name, then this machine's measured rates if there are any.

    Raises:
        ConfigError: the fit to the paper's numbers cannot be read.
    """
    measured = this_machine()
    found = {PAPER: paper_machine(), **HARDWARE}
    return found if measured is None else {**found, THIS_MACHINE: measured.hardware}


def machine_named(name: str) -> Hardware:
    """The paper's GPU, a preset, or this machine.

    Raises:
        ConfigError: there is no machine of this name; or this one has not been measured; or the fit to the paper's
            numbers cannot be read.
    """
    if name == PAPER:
        return paper_machine()
    if name in HARDWARE:
        return HARDWARE[name]
    if name != THIS_MACHINE:
        known = ", ".join([*HARDWARE, PAPER, THIS_MACHINE])
        raise ConfigError(f"The hardware {shown(name)} is not known: choose one of {known}.")
    measured = this_machine()
    if measured is None:
        raise ConfigError(f"This machine has not been measured: {HOW_TO_MEASURE}.")
    return measured.hardware
