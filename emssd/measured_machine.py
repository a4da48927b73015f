"""What was measured on this machine, kept as JSON, and the cost model that follows from it.

The measurement itself is in `calibration.py`; reading it back and computing with it needs no torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from emssd.cost_model import ENGINE_KERNEL, CostModel, expert_weights
from emssd.embedded import cache_root
from emssd.errors import ConfigError, EmssdError, TraceError, shown
from emssd.hardware import Hardware, dtype_bytes, kv_slot_bytes, require_cost
from emssd.model_shape import ModelShape
from emssd.trace import write_text_atomically

VERSION = 1
MAX_AGE_DAYS = 30
MUST_AGREE = ("model", "device", "device_name", "dtype", "threads", "omp_wait_policy", "torch", "emssd")
"""Entries of the environment without which a measurement says nothing about this process."""
WORDS = {"omp_wait_policy": "OMP_WAIT_POLICY", "device_name": "device name", "emssd": "version of this package"}


class CalibrationError(EmssdError):
    """There is no measurement of this machine that can be used; the message says why."""


@dataclass(frozen=True)
class AttentionCosts:
    """Microseconds of this package's own attention in all layers of the measured model together.

    Args:
        step_us: of every step: writing the new keys and values, and what surrounds the calls.
        call_us: of each call of the kernel, which neighbouring rows of equal span share in a padded cache.
        query_row_us: of each row that attends.
        slot_us: of each slot in a row's span.
        query_slot_us: of each pair of a query and a slot up to its own.
        error: mean relative error of these five costs on the kernels that they were fitted to.
    """

    step_us: float
    call_us: float
    query_row_us: float
    slot_us: float
    query_slot_us: float
    error: float

    def __post_init__(self) -> None:
        for each in fields(self):
            require_cost(each.name, getattr(self, each.name))


@dataclass(frozen=True)
class MeasuredMachine:
    """This machine, as it ran one model's kernels.

    Args:
        model: the model's sizes in a trace's words.
        environment: as `comparing.environment`.
        created: when, ISO 8601 in UTC.
        seconds: how long the measurement took.
        bandwidth: bytes per second of reading memory.
        flops: FLOP per second of a large matrix product in the model's type.
        op_us: microseconds to start one tiny operation.
        dense_ms: (rows, milliseconds) of a forward without attention, from 1 row up.
        attention: costs of the engine's attention.
        host_ms, sequence_us: the loop's own work in each step, and for each live row.
        memory_bytes: free memory.
    """

    model: dict[str, Any]
    environment: dict[str, Any]
    created: str
    seconds: float
    bandwidth: float
    flops: float
    op_us: float
    dense_ms: tuple[tuple[float, float], ...]
    attention: AttentionCosts
    host_ms: float
    sequence_us: float
    memory_bytes: float

    def __post_init__(self) -> None:
        for name in ("bandwidth", "flops", "memory_bytes"):
            require_cost(name, getattr(self, name), zero=False)
        for name in ("seconds", "op_us", "host_ms", "sequence_us"):
            require_cost(name, getattr(self, name))
        rows = [count for count, _ in self.dense_ms]
        if len(rows) < 2 or rows != sorted(set(rows)) or rows[0] != 1:
            raise ConfigError("dense_ms needs at least two points, by rising rows from 1.")
        for count, milliseconds in self.dense_ms:
            require_cost(f"dense_ms at {count:g} rows", milliseconds, zero=False)

    @property
    def shape(self) -> ModelShape:
        """Sizes of the model that was measured."""
        return ModelShape.from_trace(self.model)

    @property
    def dtype(self) -> str:
        """Type of the model that was measured."""
        return str(self.model["dtype"])

    @property
    def title(self) -> str:
        """Name for people."""
        environment = self.environment
        return f"this machine ({environment.get('device_name')}, {environment.get('threads')} threads)"

    @property
    def source(self) -> str:
        """Where the numbers are from."""
        return f"Measured here on {self.created} in {self.seconds:.0f} s with {self.environment.get('model')}."

    @property
    def hardware(self) -> Hardware:
        """The measured rates as a machine for rooflines; they are reached, so that no share is taken off."""
        return Hardware(
            title=self.title,
            bandwidth=self.bandwidth,
            peak_flops={self.dtype: self.flops},
            launch_us=self.op_us,
            host_ms=self.host_ms,
            memory_bytes=self.memory_bytes,
            source=self.source,
            sequence_us=self.sequence_us,
            bandwidth_share=1.0,
            compute_share=1.0,
            overlap=False,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data, JSON-ready."""
        data = {**vars(self), "attention": dict(vars(self.attention)), "dense_ms": [list(p) for p in self.dense_ms]}
        return {"version": VERSION, **data}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MeasuredMachine:
        """Read what `to_dict` gave.

        Raises:
            CalibrationError: an entry is missing, unknown or impossible.
        """
        try:
            if data["version"] != VERSION:
                raise CalibrationError(f"The calibration has version {shown(data['version'])}: calibrate again.")
            entries = {each.name: data[each.name] for each in fields(cls)}
            entries["attention"] = AttentionCosts(**entries["attention"])
            entries["dense_ms"] = tuple((float(rows), float(ms)) for rows, ms in entries["dense_ms"])
            measured = cls(**entries)
            datetime.fromisoformat(measured.created)
            dtype_bytes(measured.dtype)
            measured.environment.get("model"), measured.shape.weights_per_row
        except CalibrationError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
            raise CalibrationError(f"The calibration is damaged ({shown(str(error))}): calibrate again.") from error
        return measured


def calibration_folder() -> Path:
    """Where measurements are kept, in the user's cache folder; it need not exist."""
    return cache_root() / "calibrations"


def calibration_path(environment: Mapping[str, Any]) -> Path:
    """Where the measurement of a model in an environment is kept."""
    parts = [environment.get(name) for name in ("model", "dtype", "device", "threads")]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(map(str, parts))).strip(".-")[-120:]
    return calibration_folder() / f"{name}.json"


def save_calibration(measured: MeasuredMachine) -> Path:
    """Keep a measurement for later processes; it takes the place of an older one.

    Raises:
        CalibrationError: the cache folder cannot be written.
    """
    path = calibration_path(measured.environment)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(path, json.dumps(measured.to_dict(), indent=1, allow_nan=False))
    except (OSError, TraceError) as error:
        raise CalibrationError(f"The calibration cannot be kept ({error}): set EMSSD_CACHE to a folder.") from error
    return path


def load_calibration(environment: Mapping[str, Any], max_age_days: float = MAX_AGE_DAYS) -> MeasuredMachine:
    """The kept measurement for an environment (`comparing.environment`).

    Raises:
        CalibrationError: there is none, it is damaged or too old, or it was made with another model, type, number
            of threads, wait policy, device or version.
    """
    path = calibration_path(environment)
    if not path.exists():
        raise CalibrationError(f"{environment.get('model')} has not been calibrated on this machine.")
    measured = read_calibration(path)
    check_calibration(measured, environment, max_age_days)
    return measured


def read_calibration(path: Path) -> MeasuredMachine:
    """A kept measurement, whatever it was made with.

    Raises:
        CalibrationError: the file cannot be read or is damaged.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CalibrationError(f"The calibration {path} cannot be read: calibrate again.") from error
    return MeasuredMachine.from_dict(data if isinstance(data, dict) else {})


def check_calibration(
    measured: MeasuredMachine, environment: Mapping[str, Any], max_age_days: float = MAX_AGE_DAYS
) -> None:
    """Refuse a measurement that says nothing about this process.

    Raises:
        CalibrationError: names what is different.
    """
    for name in MUST_AGREE:
        theirs, ours = measured.environment.get(name), environment.get(name)
        if theirs != ours:
            raise CalibrationError(
                f"The calibration was made with {WORDS.get(name, name)} {shown(theirs)}, this process has "
                f"{shown(ours)}: calibrate again."
            )
    created = datetime.fromisoformat(measured.created)
    age = datetime.now(UTC) - (created if created.tzinfo else created.replace(tzinfo=UTC))
    if age > timedelta(days=max_age_days):
        raise CalibrationError(f"The calibration is {age.days} days old, more than {max_age_days:g}: calibrate again.")


def machine_cost_model(
    measured: MeasuredMachine, shape: ModelShape | None = None, dtype: str | None = None
) -> CostModel:
    """Costs of a model's steps on this machine, with this package's own attention.

    A forward of one row splits into reading the weights, at the measured bandwidth, and the rest: starting kernels.
    More rows add what they were measured to add. For another model than the measured one each cost is scaled with what
    it depends on: weights, layers, heads, bytes of a slot.

    Args:
        measured: what `calibration.calibrate` gave.
        shape: None means the measured model.
        dtype: None means the measured type.

    Raises:
        ConfigError: the type is not the measured one.
    """
    if dtype is not None and dtype != measured.dtype:
        raise ConfigError(f"This machine was measured in {measured.dtype}, not in {shown(dtype)}: calibrate in it.")
    own, dtype = measured.shape, measured.dtype
    shape = own if shape is None else shape
    layers = shape.layers / own.layers
    rows = shape.weights_per_row / own.weights_per_row
    slot_bytes = kv_slot_bytes(shape, dtype) / kv_slot_bytes(own, dtype)
    queries = layers * _query_width(shape) / _query_width(own)
    one_row = measured.dense_ms[0][1]
    own_weights = min(_weights_ms(own, measured), one_row)
    chosen, every = expert_weights(shape)
    experts = 1e3 * every * dtype_bytes(dtype) / measured.bandwidth
    weights = _weights_ms(shape, measured) - 1e3 * chosen * dtype_bytes(dtype) / measured.bandwidth
    if shape == own and not shape.experts:
        weights = own_weights
    attention = measured.attention
    return CostModel(
        name=f"{shape.parameters / 1e9:.3g} B parameters in {dtype} on {measured.title}",
        step_ms=measured.host_ms,
        row_us=0.0,
        slot_us=attention.slot_us * slot_bytes,
        weights_ms=weights,
        sequence_us=measured.sequence_us,
        kernel=ENGINE_KERNEL,
        query_slot_us=attention.query_slot_us * queries,
        query_row_us=attention.query_row_us * layers,
        launch_ms=(one_row - own_weights + 1e-3 * attention.step_us) * layers,
        attention_launch_us=attention.call_us * layers,
        experts_ms=experts,
        experts=shape.experts,
        experts_per_token=shape.experts_per_token,
        dense_ms=tuple((count, max(ms - one_row, 0.0) * rows) for count, ms in measured.dense_ms),
        overlap=False,
        source=measured.source,
    )


def _weights_ms(shape: ModelShape, measured: MeasuredMachine) -> float:
    return 1e3 * shape.weights_per_row * dtype_bytes(measured.dtype) / measured.bandwidth


def _query_width(shape: ModelShape) -> int:
    return shape.heads * (shape.head_dim + shape.value_head_dim)
