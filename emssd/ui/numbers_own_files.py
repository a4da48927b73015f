"""Files that bring a model or a machine of a visitor's own to the page "Numbers"."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from emssd.errors import ConfigError
from emssd.measured_machine import CalibrationError, MeasuredMachine
from emssd.ui.numbers_own import MEASURED, Rates
from emssd.ui.token_text import visible

MAX_CALIBRATION_BYTES = 2**20
GIVE = "give a file that `emssd doctor --calibrate` kept."


def config_name(config: Mapping[str, Any], file: str = "") -> str:
    """What a model is called: as its configuration says, as its file, or by its family.

    Args:
        config: its configuration.
        file: name of the file; "" of pasted text.
    """
    said = config.get("_name_or_path")
    stem = PurePosixPath(file).stem
    if isinstance(said, str) and PurePosixPath(said).name:
        return PurePosixPath(said).name
    if stem and stem != "config":
        return stem
    family = config.get("model_type")
    return family if isinstance(family, str) and family else "own model"


def read_measured(content: bytes, name: str) -> tuple[str, Rates]:
    """A calibration as the name and the rates of a machine.

    Args:
        content: what `MeasuredMachine.to_dict` gave, as JSON in UTF-8.
        name: what messages call the file.

    Raises:
        ConfigError: it is none, is too large or damaged, or was made in a type that the page has no costs for.
    """
    if len(content) > MAX_CALIBRATION_BYTES:
        raise ConfigError(f"{name} has more than {MAX_CALIBRATION_BYTES // 2**20} MiB: {GIVE}")
    try:
        data = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise ConfigError(f"{name} is not JSON: {GIVE}") from None
    if not isinstance(data, dict) or "attention" not in data or "dense_ms" not in data:
        raise ConfigError(f"{name} is no calibration: {GIVE}")
    try:
        measured = MeasuredMachine.from_dict(data)
    except (CalibrationError, OverflowError) as error:
        raise ConfigError(f"{name} cannot be used ({visible(str(error)).rstrip('.')}): {GIVE}") from None
    rates = Rates(
        MEASURED,
        bandwidth=measured.bandwidth,
        flops=measured.flops,
        dtype=measured.dtype,
        memory=measured.memory_bytes,
        launch=measured.op_us,
        host=measured.host_ms,
        sequence=measured.sequence_us,
    )
    where = measured.environment
    return visible(f"{where.get('device_name')}, {where.get('threads')} threads"), rates
