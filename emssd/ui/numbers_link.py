"""Addresses of the page "Numbers": every setting is a parameter. What an address says is not trusted."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from typing import Any

from emssd.errors import ConfigError
from emssd.expected_speeds import LONGEST_DRAFT
from emssd.machines import PAPER, machines
from emssd.model_presets import MODELS
from emssd.ui.link import quoted
from emssd.ui.numbers_own import is_own, own_machine, own_model
from emssd.ui.numbers_settings import (
    BATCHES,
    KERNELS,
    LABELS,
    LONGEST_PROMPT,
    WIDEST_SPREAD,
    Costs,
    Settings,
    cost_range,
    default_settings,
    least_cost,
    models_for,
)
from emssd.ui.token_text import visible

CHOICES: dict[str, Collection[str]] = {"model": MODELS, "kernel": KERNELS, "labels": LABELS}
OWN_READERS: dict[str, Callable[[str], object]] = {"model": own_model, "hardware": own_machine}
WHOLE = {"length": (1, LONGEST_DRAFT), "mean": (1, LONGEST_PROMPT), "spread": (0, WIDEST_SPREAD)}
LONGEST = 24


def link_of(settings: Settings) -> dict[str, str]:
    """The parameters that restore the page; what is as on opening is left out."""
    default = _flat(default_settings(settings.hardware, settings.model, settings.labels))
    default.update(_flat(default_settings(), "hardware", "model", "labels"))
    return {name: f"{value}" for name, value in _flat(settings).items() if value != default[name]}


def _flat(settings: Settings, *names: str) -> dict[str, Any]:
    """Settings by parameter; numbers as they are written."""
    values = asdict(settings)
    values.update(values.pop("costs"))
    flat = {name: f"{value:g}" if isinstance(value, float) else value for name, value in values.items()}
    return {name: flat[name] for name in names or flat}


def read_link(query: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """What an address asks for, as far as it exists.

    Args:
        query: parameters of the address, as `link_of` writes them. Others are ignored.

    Returns:
        The settings, and one sentence for each parameter whose value could not be used.
    """
    notices: list[str] = []
    start = default_settings()
    choices = {"hardware": machines(), **CHOICES}
    chosen = {name: _choice(query, name, known, getattr(start, name), notices) for name, known in choices.items()}
    if chosen["hardware"] == PAPER and chosen["model"] not in models_for(PAPER):
        chosen["model"] = _other_model(chosen["model"], notices)
    start = replace(default_settings(chosen["hardware"], chosen["model"], chosen["labels"]), kernel=chosen["kernel"])
    costs = {
        name: _number(query, name, least_cost(name, value), cost_range(value)[0], value, notices)
        for name, value in asdict(start.costs).items()
    }
    hit, token = (_number(query, name, 0, 100, getattr(start, name), notices) for name in ("hit", "token"))
    length, mean, spread = (
        int(_number(query, name, *ends, getattr(start, name), notices, True)) for name, ends in WHOLE.items()
    )
    batch = int(_choice(query, "batch", [str(size) for size in BATCHES], str(start.batch), notices))
    settings = replace(
        start, costs=Costs(**costs), hit=hit, token=token, length=length, mean=mean, spread=spread, batch=batch
    )
    return settings, notices


def _choice(query: Mapping[str, str], name: str, known: Collection[str], default: str, notices: list[str]) -> str:
    value = query.get(name)
    if value is None or value in known:
        return value or default
    if name in OWN_READERS and is_own(value):
        return _own(name, value, default, notices)
    notices.append(f"The address asks for {name} {quoted(value)}, which does not exist: {default} is shown.")
    return default


def _own(name: str, text: str, default: str, notices: list[str]) -> str:
    """A model or machine of one's own, which the address carries whole."""
    try:
        OWN_READERS[name](text)
    except ConfigError as error:
        reason = visible(str(error)).rstrip(".")
        notices.append(f"The address asks for {name} of one’s own that cannot be: {reason}. {default} is shown.")
        return default
    return text


def _other_model(model: str, notices: list[str]) -> str:
    """The paper's model, for another one on the paper's GPU."""
    (shown,) = models_for(PAPER)
    named = quoted(own_model(model).title if is_own(model) else model)
    notices.append(
        f"The address asks for model {named}, but costs of the paper’s GPU are known for {shown} only: name "
        "other hardware, too."
    )
    return shown


def _number(
    query: Mapping[str, str],
    name: str,
    low: float,
    high: float,
    default: float,
    notices: list[str],
    whole: bool = False,
) -> float:
    value = query.get(name)
    if value is None:
        return default
    number = _parsed(value, int if whole else float)
    if number is None:
        what = "whole number" if whole else "number"
        notices.append(f"The address asks for {name} {quoted(value)}, which is no {what}: {default:g} is shown.")
        return default
    if not low <= number <= high:
        nearer = min(max(number, low), high)
        notices.append(f"The address asks for {name} {number:g}, outside {low:g} to {high:g}: {nearer:g} is shown.")
        return nearer
    return number


def _parsed(value: str, kind: Callable[[str], float]) -> float | None:
    if len(value) > LONGEST or not value.isascii() or "_" in value:
        return None
    try:
        number = kind(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
