"""Sentences of the page "Numbers": answers with the numbers that the model computes."""

from __future__ import annotations

from collections.abc import Mapping

from emssd.acceptance import MAX_BATCH
from emssd.config import METHOD_TITLES
from emssd.hardware import HARDWARE, Hardware
from emssd.ui.numbers_settings import Settings, dtype_of

TABLE_NOTE = "The paper’s Table 2 orders the two middle rows the other way from its own caption. Shown here: our model."
UPPER = {"opt": "OPT", "llama": "Llama", "qwen3": "Qwen3", "smollm2": "SmolLM2"}


def model_title(name: str) -> str:
    """ "opt-6.7b" as people write it: "OPT-6.7B"."""
    family, _, size = name.partition("-")
    return f"{UPPER.get(family, family)}-{size.upper()}"


def figures(machine: Hardware) -> str:
    """Peak rates of a machine: "312 TFLOP/s, 2.04 TB/s"."""
    return f"{machine.flops(dtype_of(machine)) / 1e12:.3g} TFLOP/s, {bandwidth(machine)}"


def bandwidth(machine: Hardware) -> str:
    """Bytes per second in a unit that fits."""
    return (
        f"{machine.bandwidth / 1e12:.3g} TB/s" if machine.bandwidth >= 1e12 else f"{machine.bandwidth / 1e9:.3g} GB/s"
    )


def below(falls: Mapping[str, int | None], shown: int) -> str:
    """The sentence in the area where not speculating is faster; "" where no method gets there up to batch `shown`."""
    said = [
        f"{_lower(name)} from batch {batch}" for name, batch in falls.items() if batch is not None and batch <= shown
    ]
    return f"Slower than not speculating: {', '.join(reversed(said))}" if said else ""


def _lower(name: str) -> str:
    return METHOD_TITLES[name] if name == "ems-sd" else METHOD_TITLES[name].lower()


def falls_answer(settings: Settings, falls: Mapping[str, int | None]) -> str:
    """At which batch each method falls below greedy."""
    vanilla, ems = falls["vanilla"], falls["ems-sd"]
    if vanilla is None and ems is None:
        return f"Never, up to batch {MAX_BATCH}. Nor does EMS-SD."
    said = "Never, up to batch {MAX_BATCH}." if vanilla is None else f"From batch {vanilla} on."
    return f"{said} EMS-SD: {f'from batch {ems} on' if ems is not None else f'never, up to batch {MAX_BATCH}'}."


def best_answer(settings: Settings, best: Mapping[str, tuple[int, float]]) -> str:
    """The best draft length of each method at the settings' batch."""
    (length, gain), (other, other_gain) = best["ems-sd"], best["vanilla"]
    slower = "" if other_gain >= 1 else ", so not speculating is faster"
    return (
        f"K = {length} at batch {settings.batch}: EMS-SD {gain:.2f}×. Vanilla K = {other}: {other_gain:.2f}×{slower}."
    )


def varlen_answer(falls: Mapping[str, int | None]) -> str:
    """What changes when a row's keys and values are read once."""
    if falls["vanilla"] is None:
        return "With varlen attention vanilla no longer falls below greedy: padding costs rows, not whole re-reads."
    return f"With varlen attention vanilla still falls below greedy, from batch {falls['vanilla']} on."


def machine_title(settings: Settings) -> str:
    """The machine's short name."""
    return HARDWARE[settings.hardware].title
