"""Machines that a step can be modelled on: peak rates from their makers' data sheets, and what fits into their memory.

The peaks are published. What share of them real kernels reach, and what a kernel start and one pass of the serving loop
cost, is not: those are assumptions, the same for all accelerators, and every one of them can be changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from emssd.errors import ConfigError, shown
from emssd.model_shape import ModelShape

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1}

ASSUMED = (
    "Assumed, not published: kernels reach 85 % of the bandwidth and 70 % of the FLOP rate, and the costs of a kernel "
    "start and of the host's work per step."
)


def dtype_bytes(dtype: str) -> int:
    """Bytes of one number.

    Raises:
        ConfigError: the type is not one of `DTYPE_BYTES`.
    """
    if dtype not in DTYPE_BYTES:
        raise ConfigError(f"The type {shown(dtype)} is not known: choose one of {', '.join(DTYPE_BYTES)}.")
    return DTYPE_BYTES[dtype]


def require_cost(name: str, value: object, zero: bool = True) -> float:
    """`value` if it is a finite number of at least 0 (above 0 where zero makes no sense).

    Raises:
        ConfigError: it is not; the message names it.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0 or (value == 0 and not zero):  # type: ignore[operator,arg-type]
        least = "at least 0" if zero else "above 0"
        raise ConfigError(f"{name} must be a number {least}, not {shown(value)}.")
    return float(value)  # type: ignore[arg-type]


@dataclass(frozen=True)
class FittedCosts:
    """Costs of one model's step that were fitted to published speeds, where a machine's rates are not known.

    Args:
        model, shape, dtype: the only model and type that they hold for.
        step_ms, weights_ms, row_us, slot_us: as in `cost_model.CostModel`.
    """

    model: str
    shape: ModelShape
    dtype: str
    step_ms: float
    weights_ms: float
    row_us: float
    slot_us: float


@dataclass(frozen=True)
class Hardware:
    """One accelerator or CPU.

    Args:
        title: name for people.
        bandwidth: peak bytes per second of its memory.
        peak_flops: by type, peak FLOP per second of matrix products without sparsity.
        launch_us: microseconds to start one kernel.
        host_ms: milliseconds of the loop's own work in every step that no kernel hides.
        memory_bytes: size of its memory; None where it is not known.
        source: where the peaks are from.
        sequence_us: microseconds of the loop's own work for each live row.
        bandwidth_share, compute_share: part of the peaks that kernels reach, above 0 and at most 1.
        overlap: reading weights and multiplying by them happen at the same time, so that the longer one counts; else
            their times add up.
        fitted: costs that take the place of those that follow from the rates, for one model only.

    Raises:
        ConfigError: a rate or size is zero, negative or not a number, a share is outside 0..1, or no type is given.
    """

    title: str
    bandwidth: float
    peak_flops: Mapping[str, float]
    launch_us: float
    host_ms: float
    memory_bytes: float | None
    source: str
    sequence_us: float = 0.0
    bandwidth_share: float = 0.85
    compute_share: float = 0.7
    overlap: bool = True
    fitted: FittedCosts | None = None

    def __post_init__(self) -> None:
        known = () if self.memory_bytes is None else ("memory_bytes",)
        for name in ("bandwidth", *known, "bandwidth_share", "compute_share"):
            require_cost(f"{name} of {self.title}", getattr(self, name), zero=False)
        for name in ("launch_us", "host_ms", "sequence_us"):
            require_cost(f"{name} of {self.title}", getattr(self, name))
        for name in ("bandwidth_share", "compute_share"):
            if getattr(self, name) > 1:
                raise ConfigError(f"{name} of {self.title} must be at most 1, not {shown(getattr(self, name))}.")
        if not self.peak_flops:
            raise ConfigError(f"{self.title} needs the FLOP rate of at least one type, such as float16.")
        for dtype, rate in self.peak_flops.items():
            dtype_bytes(dtype)
            require_cost(f"The {dtype} FLOP rate of {self.title}", rate, zero=False)

    def flops(self, dtype: str) -> float:
        """Peak FLOP per second of a type.

        Raises:
            ConfigError: this machine has no rate for it.
        """
        if dtype not in self.peak_flops:
            known = ", ".join(self.peak_flops)
            raise ConfigError(f"{self.title} has no FLOP rate for {shown(dtype)}: choose one of {known}.")
        return self.peak_flops[dtype]

    def ridge(self, dtype: str) -> float:
        """FLOP per byte where this machine's roof bends: below it a kernel waits for memory."""
        return self.flops(dtype) * self.compute_share / (self.bandwidth * self.bandwidth_share)

    def fits(self, shape: ModelShape, dtype: str, slots: float = 0) -> bool:
        """Whether the weights and a cache of `slots` slots go into the memory, as far as that is known."""
        return self.memory_bytes is None or memory_needed(shape, dtype, slots) <= self.memory_bytes

    def memory_note(self, shape: ModelShape, dtype: str, slots: float = 0) -> str | None:
        """One sentence where the model and its cache do not fit; None where they do."""
        needed = memory_needed(shape, dtype, slots)
        if self.memory_bytes is None or needed <= self.memory_bytes:
            return None
        cache = f" and a cache of {slots:,.0f} slots" if slots else ""
        return (
            f"The weights{cache} need {needed / 1e9:,.1f} GB in {dtype}, but {self.title} has "
            f"{self.memory_bytes / 1e9:,.1f} GB: choose a smaller model, batch or type, or more memory."
        )


def kv_slot_bytes(shape: ModelShape, dtype: str) -> int:
    """Bytes of keys and values of one slot in all layers together."""
    return shape.layers * shape.slot_values * dtype_bytes(dtype)


def memory_needed(shape: ModelShape, dtype: str, slots: float = 0) -> float:
    """Bytes of all parameters and of a cache of `slots` slots; activations are left out.

    Args:
        shape: the model.
        dtype: type of weights and cache.
        slots: cache slots of all rows together.
    """
    return shape.parameters * dtype_bytes(dtype) + require_cost("slots", slots) * kv_slot_bytes(shape, dtype)


HARDWARE = {
    "a100-80gb": Hardware(
        "NVIDIA A100 80 GB (SXM)",
        2.039e12,
        {"float16": 312e12, "bfloat16": 312e12, "float32": 19.5e12},
        launch_us=5.0,
        host_ms=2.0,
        memory_bytes=80e9,
        source="NVIDIA A100 Tensor Core GPU data sheet, 80 GB SXM: 2,039 GB/s, 312 TFLOP/s without sparsity.",
    ),
    "h100-sxm": Hardware(
        "NVIDIA H100 (SXM)",
        3.35e12,
        {"float16": 989.4e12, "bfloat16": 989.4e12, "float32": 66.9e12, "float8_e4m3fn": 1978.9e12},
        launch_us=5.0,
        host_ms=2.0,
        memory_bytes=80e9,
        source="NVIDIA H100 Tensor Core GPU data sheet and architecture paper, SXM5: 3.35 TB/s, 989.4 TFLOP/s without "
        "sparsity.",
    ),
    "h200": Hardware(
        "NVIDIA H200 (SXM)",
        4.8e12,
        {"float16": 989.4e12, "bfloat16": 989.4e12, "float32": 66.9e12, "float8_e4m3fn": 1978.9e12},
        launch_us=5.0,
        host_ms=2.0,
        memory_bytes=141e9,
        source="NVIDIA H200 Tensor Core GPU data sheet, SXM: 4.8 TB/s, 141 GB; FLOP rates are those of the H100 SXM.",
    ),
    "l4": Hardware(
        "NVIDIA L4",
        300e9,
        {"float16": 121e12, "bfloat16": 121e12, "float32": 30.3e12, "float8_e4m3fn": 242.5e12},
        launch_us=5.0,
        host_ms=2.0,
        memory_bytes=24e9,
        source="NVIDIA L4 Tensor Core GPU data sheet: 300 GB/s, 24 GB; half of the rates it gives with sparsity.",
    ),
    "rtx-4090": Hardware(
        "NVIDIA GeForce RTX 4090",
        1.008e12,
        {"float16": 165.2e12, "bfloat16": 165.2e12, "float32": 82.6e12, "float8_e4m3fn": 330.3e12},
        launch_us=5.0,
        host_ms=2.0,
        memory_bytes=24e9,
        source="NVIDIA Ada GPU architecture paper, GeForce RTX 4090: 1,008 GB/s, 165.2 TFLOP/s with float32 sums, "
        "without sparsity.",
    ),
    "apple-m3-max": Hardware(
        "Apple M3 Max (40-core GPU)",
        400e9,
        {"float16": 14.1e12, "bfloat16": 14.1e12, "float32": 14.1e12},
        launch_us=10.0,
        host_ms=3.0,
        memory_bytes=128e9,
        source="Apple MacBook Pro technical specifications: 400 GB/s, up to 128 GB. Apple publishes no FLOP rate: 40 "
        "cores x 128 lanes x 2 FLOP x about 1.38 GHz is an estimate.",
    ),
    "server-cpu-2-cores": Hardware(
        "Server CPU, 2 cores with AVX-512 and AMX",
        40e9,
        {"float32": 0.35e12, "bfloat16": 11e12},
        launch_us=3.0,
        host_ms=1.0,
        memory_bytes=16e9,
        source="Intel optimization reference manual, 4th generation Xeon: 64 float32 and 2,048 bfloat16 FLOP per core "
        "and cycle, at an assumed 2.7 GHz. 20 GB/s per core and 16 GB are assumptions for a rented machine.",
        overlap=False,
    ),
}
"""Presets by name. See `ASSUMED` for what no data sheet says."""


def hardware_named(name: str) -> Hardware:
    """A preset.

    Raises:
        ConfigError: there is none of that name; the message lists all.
    """
    if name not in HARDWARE:
        raise ConfigError(f"The hardware {shown(name)} is not known: choose one of {', '.join(HARDWARE)}.")
    return HARDWARE[name]
