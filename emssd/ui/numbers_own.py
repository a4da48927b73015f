"""Models and machines of a visitor's own on the page "Numbers": short, checked texts that an address can carry.

A text is `own~NUMBERS~NAME`. All that is computed follows from it, so that a link needs no file.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from emssd.errors import ConfigError, shown
from emssd.hardware import Hardware
from emssd.model_config import MOST_LAYERS
from emssd.model_shape import ModelShape
from emssd.ui.token_text import visible

OWN = "own~"
LONGEST_TEXT, LONGEST_NAME = 700, 40
FEWEST_POSITIONS = 128
"""Positions that outputs of the page need, with a prompt of one token."""
SIZES = tuple(each.name for each in fields(ModelShape) if each.name != "windows")
"""The numbers of a model's text, in this order, then the window and the layers that have it."""
LARGEST = {
    "parameters": 10**13,
    "layers": MOST_LAYERS,
    "experts": 10**5,
    "experts_per_token": 10**5,
    "tied_embeddings": 1,
    "bytes_per_value": 16,
    "measured_linear_weights": 10**13,
    "measured_head_weights": 10**12,
    "measured_expert_weights": 10**13,
}
"""Of each size; 10 ** 8 of the others."""
FROM_ZERO = {
    *("experts", "experts_per_token", "positions", "tied_embeddings", "latent_width"),
    *("measured_linear_weights", "measured_head_weights", "measured_expert_weights"),
}
RATE_TYPES = ("float16", "bfloat16", "float32")
RANGES = {
    "bandwidth": ("The memory bandwidth", 1e9, "GB/s", 0.1, 1e6),
    "flops": ("The FLOP rate", 1e12, "TFLOP/s", 0.001, 1e6),
    "memory": ("The memory", 1e9, "GB", 0.1, 1e6),
    "launch": ("A kernel start", 1, "µs", 0, 1e4),
    "host": ("The loop’s own work per step", 1, "ms", 0, 1e4),
    "sequence": ("The loop’s own work per row", 1, "µs", 0, 1e6),
}
"""Number -> (words, its unit in SI, unit in words, least, largest), both ends in that unit."""
MEASURED, ENTERED = "measured", "entered"
SOURCES = {
    MEASURED: "Rates from a calibration file.",
    ENTERED: "Rates as entered. Assumed: kernels reach 85 % of the bandwidth and 70 % of the FLOP rate.",
}


@dataclass(frozen=True)
class Rates:
    """A machine of one's own.

    Args:
        kind: `MEASURED` (the rates are reached) or `ENTERED` (peaks, of which kernels reach a share).
        bandwidth: bytes/s.
        flops: FLOP/s of products in `dtype`.
        dtype: one of `RATE_TYPES`.
        memory: bytes; 0: not known.
        launch: microseconds of a kernel start.
        host, sequence: milliseconds of the loop's own work in a step, and microseconds for each live row.

    Raises:
        ConfigError: a number is impossible; names it, its value and the range.
    """

    kind: str
    bandwidth: float
    flops: float
    dtype: str
    memory: float
    launch: float
    host: float
    sequence: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in SOURCES:
            raise ConfigError(f"A machine is {MEASURED} or {ENTERED}, not {shown(self.kind)}.")
        if self.dtype not in RATE_TYPES:
            raise ConfigError(f"The type must be one of {', '.join(RATE_TYPES)}, not {shown(self.dtype)}.")
        for name, (words, unit, unit_words, least, largest) in RANGES.items():
            value = getattr(self, name) / unit
            if not (least <= value <= largest or (name == "memory" and value == 0)):
                raise ConfigError(
                    f"{words} must be a number from {least:g} to {largest:,.0f} {unit_words}, not {value:g}."
                )

    def hardware(self, title: str) -> Hardware:
        """The machine as the cost model takes it."""
        measured = self.kind == MEASURED
        shares: dict[str, Any] = {"bandwidth_share": 1.0, "compute_share": 1.0} if measured else {}
        return Hardware(
            title,
            self.bandwidth,
            {self.dtype: self.flops},
            launch_us=self.launch,
            host_ms=self.host,
            memory_bytes=self.memory or None,
            source=SOURCES[self.kind],
            sequence_us=self.sequence,
            overlap=not measured,
            **shares,
        )


@dataclass(frozen=True)
class OwnModel:
    """What a model's text says."""

    title: str
    shape: ModelShape


def is_own(text: str) -> bool:
    """Whether it is the text of a model or machine of one's own, well formed or not."""
    return text.startswith(OWN)


def own_name(wanted: str, default: str) -> str:
    """A name for people: on one line, visible, short; `default` where nothing is left."""
    return visible(" ".join(wanted.split()))[:LONGEST_NAME].strip() or default


def model_text(title: str, shape: ModelShape) -> str:
    """The text of a model.

    Raises:
        ConfigError: a size is impossible or too large for the page.
    """
    window = next((each for each in shape.windows if each is not None), 0)
    layers = sum(1 << place for place, each in enumerate(shape.windows) if each is not None)
    numbers = [str(int(getattr(shape, name))) for name in SIZES]
    text = f"{OWN}{'.'.join([*numbers, str(window), f'{layers:x}'])}~{own_name(title, 'own model')}"
    own_model(text)
    return text


@lru_cache(maxsize=64)
def own_model(text: str) -> OwnModel:
    """Read the text of a model.

    Raises:
        ConfigError: it is none, or a size is impossible; the message names the size.
    """
    packed, name = _parts(text)
    numbers = packed.split(".")
    if len(numbers) != len(SIZES) + 2 or not all(re.fullmatch(r"[0-9]{1,15}", each) for each in numbers[:-1]):
        raise ConfigError(f"A model’s text has {len(SIZES) + 1} whole numbers and its layers with a window.")
    sizes: dict[str, Any] = {size: _size(size, int(number)) for size, number in zip(SIZES, numbers, strict=False)}
    windows = _windows(int(numbers[-2]), numbers[-1], sizes["layers"])
    shape = ModelShape(**{**sizes, "tied_embeddings": bool(sizes["tied_embeddings"])}, windows=windows)
    _check_together(shape)
    return OwnModel(own_name(name, "own model"), shape)


def _parts(text: str) -> tuple[str, str]:
    if len(text) > LONGEST_TEXT or not is_own(text) or text.count("~") < 2:
        raise ConfigError(f"It must be {OWN}NUMBERS~NAME, at most {LONGEST_TEXT} characters.")
    _, packed, name = text.split("~", 2)
    return packed, name


def _size(name: str, value: int) -> int:
    least, largest = 0 if name in FROM_ZERO else 1, LARGEST.get(name, 10**8)
    if not least <= value <= largest:
        raise ConfigError(f"{name} must be a whole number from {least} to {largest}, not {value}.")
    return value


def _windows(window: int, layers: str, count: int) -> tuple[int | None, ...]:
    if not re.fullmatch(r"[0-9a-f]{1,250}", layers) or int(layers, 16) >> count or (int(layers, 16) and not window):
        raise ConfigError(f"The layers with a window must be some of the {count} layers.")
    marks = int(layers, 16)
    return tuple(window if marks >> place & 1 else None for place in range(count)) if marks else ()


def _check_together(shape: ModelShape) -> None:
    if shape.heads % shape.kv_heads:
        raise ConfigError(f"heads {shape.heads} is not a multiple of kv_heads {shape.kv_heads}.")
    if shape.experts_per_token > shape.experts or (shape.experts and not shape.experts_per_token):
        raise ConfigError(
            f"experts_per_token must be some of the {shape.experts} experts, not {shape.experts_per_token}."
        )
    if 0 < shape.positions < FEWEST_POSITIONS:
        raise ConfigError(
            f"The model has {shape.positions} positions, too few for outputs of {FEWEST_POSITIONS} tokens: give "
            "another model."
        )


def machine_text(title: str, rates: Rates) -> str:
    """The text of a machine."""
    numbers = "_".join(f"{getattr(rates, name):.6g}".replace("+", "") for name in RANGES)
    return f"{OWN}{rates.kind}_{rates.dtype}_{numbers}~{own_name(title, 'own machine')}"


@lru_cache(maxsize=64)
def own_machine(text: str) -> Hardware:
    """Read the text of a machine.

    Raises:
        ConfigError: it is none, or a rate is impossible; the message names the rate.
    """
    packed, name = _parts(text)
    kind, dtype, *numbers = packed.split("_") if "_" in packed else ("", "")
    if len(numbers) != len(RANGES):
        raise ConfigError(f"A machine’s text has {len(RANGES)} numbers.")
    values = {each: _rate(each, number) for each, number in zip(RANGES, numbers, strict=True)}
    return Rates(kind, dtype=dtype, **values).hardware(own_name(name, "own machine"))


def _rate(name: str, text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,15})?(e-?[0-9]{1,2})?", text) or not math.isfinite(float(text)):
        raise ConfigError(f"{RANGES[name][0]} must be a number, not {shown(text)}.")
    return float(text)
