"""EMS-SD: batched speculative decoding without padding (arXiv 2405.07542), as a clear reference with a full trace.

Names are loaded when first used, so that reading a trace needs neither torch nor a model library.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "EmssdError": "errors",
    "UnsupportedModelError": "errors",
    "PromptError": "errors",
    "ConfigError": "errors",
    "TraceError": "errors",
    "SpeculativeConfig": "config",
    "METHODS": "config",
    "GenerationTrace": "trace",
    "StepTrace": "trace",
    "load_model": "loading",
    "LanguageModel": "loading",
    "PromptLookupDrafter": "drafting",
    "DraftModelDrafter": "drafting",
    "ScriptedDrafter": "drafting",
    "generate": "decoding",
    "generate_steps": "decoding",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'emssd' has no attribute {name!r}")
    return getattr(import_module(f"emssd.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
