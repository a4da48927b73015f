"""All machines by name: the presets, and this one where it has been measured."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from emssd.errors import ConfigError
from emssd.hardware import HARDWARE, Hardware, hardware_named
from emssd.measured_machine import CalibrationError, MeasuredMachine, calibration_folder, read_calibration

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
    """The presets by name, then this machine's measured rates if there are any."""
    measured = this_machine()
    return dict(HARDWARE) if measured is None else {**HARDWARE, THIS_MACHINE: measured.hardware}


def machine_named(name: str) -> Hardware:
    """A preset, or this machine.

    Raises:
        ConfigError: there is no machine of this name; or this one has not been measured.
    """
    if name != THIS_MACHINE:
        return hardware_named(name)
    measured = this_machine()
    if measured is None:
        raise ConfigError(f"This machine has not been measured: {HOW_TO_MEASURE}.")
    return measured.hardware
