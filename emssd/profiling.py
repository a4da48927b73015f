"""The loop's phases under their names in `torch.profiler`: "emssd.draft", "emssd.plan", "emssd.target" and so on."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.profiler import record_function

_NOTHING: AbstractContextManager[object] = nullcontext()


def phase(name: str) -> AbstractContextManager[object]:
    """A range "emssd.NAME" while a profiler is on, else nothing at all.

    Args:
        name: "draft", "plan", "target", "verify" or "commit".
    """
    return record_function(f"emssd.{name}") if torch.autograd._profiler_enabled() else _NOTHING
