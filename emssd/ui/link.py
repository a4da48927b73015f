"""Addresses of the Explore page: which set, which methods, which step, which cell. What they say is not trusted."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from emssd.cells import SUBSTEPS, num_slots
from emssd.config import METHOD_TITLES
from emssd.errors import TraceError
from emssd.trace import GenerationTrace
from emssd.ui.library import PresetInfo, TraceSet, default_pair
from emssd.ui.player_data import Start
from emssd.ui.token_text import visible

VERSION = 1
LONGEST = 24
DIGITS = 6
FIRST = "figure2"


@dataclass(frozen=True)
class Link:
    """What a page opens with; every part exists."""

    preset: str
    left: str
    right: str
    start: Start


def default_start(preset: str) -> Start:
    """The worked example opens before its first draft is judged, the others after their first step."""
    return Start(1, "draft" if preset == FIRST else "commit")


def read_link(
    query: Mapping[str, str], presets: Sequence[PresetInfo], load: Callable[[str], TraceSet]
) -> tuple[Link, list[str]]:
    """What an address asks for, as far as it exists.

    Args:
        query: parameters of the address: preset, left, right, step, sub, pin, v. Others are ignored.
        presets: the sets that there are, at least one.
        load: gives a set's traces.

    Returns:
        The link, and one sentence for each parameter whose value could not be used.

    Raises:
        TraceError: the set cannot be loaded.
    """
    notices: list[str] = []
    info = _preset(query, presets, notices)
    left, right = _pair(query, info.methods, notices)
    wanted = {"step", "sub", "pin"} & set(query)
    start = default_start(info.name)
    if wanted:
        traces = load(info.name).traces
        start = _start(query, start, [traces[left], traces[right]], notices)
    _version(query, notices)
    return Link(info.name, left, right, start), notices


@dataclass(frozen=True)
class StateLink:
    """Traces of one case, and what the page opens with."""

    identity: str
    traces: dict[str, GenerationTrace]
    left: str
    right: str
    start: Start


def read_state(
    query: Mapping[str, str], load: Callable[[str], dict[str, GenerationTrace]]
) -> tuple[StateLink, list[str]]:
    """What an address of a saved case asks for: state, left, right, step, sub, pin.

    Args:
        query: parameters of the address; "state" is among them.
        load: gives the case's traces by method name.

    Returns:
        The link, and one sentence for each parameter whose value could not be used.

    Raises:
        TraceError: there is no such case.
    """
    identity = query["state"]
    traces = load(identity)
    if not any(trace.steps for trace in traces.values()):
        raise TraceError(f"The state {quoted(identity)} has no steps, so there is nothing to show.")
    notices: list[str] = []
    left, right = _pair(query, tuple(traces), notices)
    start = _start(query, Start(1, "commit"), [traces[left], traces[right]], notices)
    return StateLink(identity, traces, left, right, start), notices


def quoted(value: str) -> str:
    return f"“{visible(value[:LONGEST])}{'…' if len(value) > LONGEST else ''}”"


def _preset(query: Mapping[str, str], presets: Sequence[PresetInfo], notices: list[str]) -> PresetInfo:
    default = next((info for info in presets if info.name == FIRST), presets[0])
    if "preset" not in query:
        return default
    found = next((info for info in presets if info.name == query["preset"]), None)
    if found is None:
        asked = quoted(query["preset"])
        notices.append(f"The address asks for preset {asked}, which does not exist: “{default.title}” is shown.")
    return found or default


def _pair(query: Mapping[str, str], methods: Sequence[str], notices: list[str]) -> tuple[str, str]:
    chosen = dict(zip(("left", "right"), default_pair(methods), strict=True))
    for side in ("left", "right"):
        value = query.get(side)
        if value is None:
            continue
        if value in methods:
            chosen[side] = value
        else:
            title = METHOD_TITLES[chosen[side]]
            notices.append(
                f"The address asks for {side} {quoted(value)}, which this set does not have: {title} is shown."
            )
    if chosen["left"] == chosen["right"] and len(methods) > 1:
        keep, other = ("left", "right") if "left" in query else ("right", "left")
        preferred = [name for name in (*reversed(default_pair(methods)), *methods) if name != chosen[keep]]
        chosen[other] = preferred[0]
        if query.get(other) == query.get(keep):
            notices.append(
                f"The address has {METHOD_TITLES[chosen[keep]]} on both sides: "
                f"{METHOD_TITLES[chosen[other]]} is shown on the {other}."
            )
    return chosen["left"], chosen["right"]


def _start(query: Mapping[str, str], default: Start, traces: Sequence[GenerationTrace], notices: list[str]) -> Start:
    step, from_query = _step(query, default.step, max(len(trace.steps) for trace in traces) - 1, notices)
    sub = "commit" if from_query or step == 0 else default.sub
    value = query.get("sub")
    if value in SUBSTEPS and (step > 0 or value == "commit"):
        sub = value
    elif value is not None:
        reason = "which prefill does not have" if value in SUBSTEPS else "which does not exist"
        notices.append(f"The address asks for sub {quoted(value)}, {reason}: {sub} is shown.")
    return Start(step, sub, _pin(query, traces, notices))


def _step(query: Mapping[str, str], default: int, last: int, notices: list[str]) -> tuple[int, bool]:
    value = query.get("step")
    default = min(default, last)
    if value is None:
        return default, False
    if not (value.isascii() and value.isdecimal() and len(value) <= DIGITS):
        notices.append(f"The address asks for step {quoted(value)}, which is no step number: step {default} is shown.")
        return default, False
    if int(value) > last:
        notices.append(f"The address asks for step {int(value)}, but the last one is {last}: it is shown.")
        return last, True
    return int(value), True


def _pin(query: Mapping[str, str], traces: Sequence[GenerationTrace], notices: list[str]) -> str | None:
    value = query.get("pin")
    if value is None:
        return None
    form = re.fullmatch(f"([0-9]{{1,{DIGITS}}})\\.([0-9]{{1,{DIGITS}}})", value)
    rows, slots = len(traces[0].rows), max(num_slots(trace) for trace in traces)
    if form is None or int(form[1]) >= rows or int(form[2]) >= slots:
        what = "which is not a row and a slot" if form is None else f"but there are {rows} rows of {slots} slots"
        notices.append(f"The address asks for pin {quoted(value)}, {what}: no cell is pinned.")
        return None
    return f"{int(form[1])}.{int(form[2])}"


def _version(query: Mapping[str, str], notices: list[str]) -> None:
    value = query.get("v")
    if value in (None, str(VERSION)):
        return
    if value.isascii() and value.isdecimal() and len(value) <= DIGITS and int(value) > VERSION:
        notices.append(
            f"The address was made by a newer version of this page (v {int(value)}, this one reads v {VERSION}): "
            "what it does not know is left out."
        )
    else:
        notices.append(f"The address has v {quoted(value)}, which is no version: it is read as v {VERSION}.")
