"""A small pairwise cover: few cases, in which every allowed pair of values of two factors occurs together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from random import Random

Case = dict[str, object]
Pair = tuple[tuple[str, object], tuple[str, object]]


def pairs_of(factors: Mapping[str, Sequence[object]], allowed: Callable[[Case], bool]) -> set[Pair]:
    """Every pair of values that may occur in one case."""
    return {
        ((a, left), (b, right))
        for a, b in combinations(factors, 2)
        for left in factors[a]
        for right in factors[b]
        if allowed({a: left, b: right})
    }


def pairwise(
    factors: Mapping[str, Sequence[object]], allowed: Callable[[Case], bool] = lambda case: True, seed: int = 0
) -> list[Case]:
    """Cases that cover all allowed pairs, the same for the same arguments.

    Greedy: each case starts from an uncovered pair of the factor with most values, then every other factor takes the
    value that covers most new pairs.

    Args:
        factors: name -> its values.
        allowed: whether a case, whole or in part, makes sense. It must judge pairs of values only, and every allowed
            pair must be part of a whole allowed case.
    """
    draw = Random(seed)
    names = sorted(factors, key=lambda name: -len(factors[name]))
    order = {name: place for place, name in enumerate(factors)}
    missing = sorted(pairs_of(factors, allowed), key=repr)
    left = set(missing)
    cases: list[Case] = []
    for first in factors[names[0]]:
        while True:
            start = next((pair for pair in missing if pair in left and (names[0], first) in pair), None)
            if start is None:
                break
            cases.append(_fill(dict(start), names, factors, allowed, left, order, draw))
            left -= _pairs_in(cases[-1], factors)
    while left:
        start = next(pair for pair in missing if pair in left)
        cases.append(_fill(dict(start), names, factors, allowed, left, order, draw))
        left -= _pairs_in(cases[-1], factors)
    return [{name: case[name] for name in factors} for case in cases]


def _fill(
    case: Case,
    names: Sequence[str],
    factors: Mapping[str, Sequence[object]],
    allowed: Callable[[Case], bool],
    left: set[Pair],
    order: Mapping[str, int],
    draw: Random,
) -> Case:
    for name in names:
        if name in case:
            continue
        values = [value for value in factors[name] if allowed({**case, name: value})]
        draw.shuffle(values)
        gains = [sum(_pair(name, value, other, case[other], order) in left for other in case) for value in values]
        case[name] = values[gains.index(max(gains))]
    return case


def _pair(a: str, left: object, b: str, right: object, order: Mapping[str, int]) -> Pair:
    return ((a, left), (b, right)) if order[a] < order[b] else ((b, right), (a, left))


def _pairs_in(case: Case, factors: Mapping[str, Sequence[object]]) -> set[Pair]:
    return {((a, case[a]), (b, case[b])) for a, b in combinations(factors, 2)}
