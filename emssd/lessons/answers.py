"""What a learner's function returned, as plain Python: lists, tuples, ranges and arrays of any kind of whole number."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

SEQUENCES = (list, tuple, range, np.ndarray)


def whole(value: object) -> int | None:
    """A whole number, also one of numpy's or a one-element tensor's; None for anything else, truth values included."""
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except Exception:  # a learner's type may raise anything
        return None


def text(value: object) -> str | None:
    """A text; None for anything else."""
    return str(value) if isinstance(value, str) else None


def how_many(answer: object) -> str:
    """How many things a function returned: a tuple is several, anything else is one."""
    return f"{len(answer)} things" if isinstance(answer, tuple) else f"one thing of type {type(answer).__name__}"


def list_of(item: Callable[[object], Any], value: object) -> list[Any] | None:
    """A list of what `item` reads; None where `value` is no list, or an item of it is not such."""
    if not isinstance(value, SEQUENCES):
        return None
    items = [item(each) for each in value]
    return None if any(each is None for each in items) else items


def whole_list(value: object) -> list[int] | None:
    """A list of whole numbers, or None."""
    return list_of(whole, value)


def whole_lists(value: object) -> list[list[int]] | None:
    """A list of lists of whole numbers, or None."""
    return list_of(whole_list, value)
