"""A command's outcome, and what the tests of all commands ask of a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Result(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Result]


def refused(result: Result, *words: str) -> None:
    """Exit code 2, nothing on stdout, and the last line on stderr is one sentence with these words."""
    assert result.code == 2, result
    assert result.out == ""
    assert "Traceback" not in result.err
    last = result.err.rstrip("\n").split("\n")[-1]
    assert last.startswith("emssd: error: "), result.err
    for word in words:
        assert word in last, last
