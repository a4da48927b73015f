"""What a run will need in memory, before it starts."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from emssd.errors import ConfigError
from emssd.loading import LanguageModel


def kv_cache_bytes(lm: LanguageModel, capacities: Sequence[int]) -> int:
    """Bytes of keys and values for all rows' slots, from the model's shape."""
    shape = lm.description()
    per_slot = 2 * int(shape["layers"]) * int(shape["kv_heads"]) * int(shape["head_dim"])
    return sum(capacities) * per_slot * lm.dtype.itemsize


def available_bytes(device: torch.device) -> int | None:
    """Free memory of a device in bytes; None where it is not known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pages = os.sysconf("SC_AVPHYS_PAGES") if "SC_AVPHYS_PAGES" in os.sysconf_names else None
        return None if pages is None else pages * os.sysconf("SC_PAGE_SIZE")


def check_memory(lm: LanguageModel, capacities: Sequence[int], kept: int = 0) -> None:
    """Refuse a run whose KV cache alone would not fit.

    Args:
        lm: the model.
        capacities: [rows] slots of the run's cache.
        kept: slots of prompts that were fed before and are kept beside the run.

    Raises:
        ConfigError: says what is needed, what there is, and what to lower.
    """
    needed, available = kv_cache_bytes(lm, [*capacities, kept]), available_bytes(lm.device)
    if available is not None and needed > available:
        what = "this run and of the prompts kept beside it" if kept else "this run"
        fewer = "fewer prompts, " if kept else ""
        raise ConfigError(
            f"The KV cache of {what} needs {needed / 2**30:.1f} GiB, but {lm.device} has {available / 2**30:.1f} GiB "
            f"free: use {fewer}fewer rows, fewer new tokens or fewer draft tokens."
        )
