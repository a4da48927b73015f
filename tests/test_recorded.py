"""The recorded traces: there are some, each is valid, and each comes back from its JSON as it was."""

from __future__ import annotations

import pytest

from emssd.trace import GenerationTrace
from tests.recorded import HOSTILE, RECORDED, TRACES, hostile_trace, recorded


def test_there_are_recorded_traces():
    assert len(RECORDED) >= 3


@pytest.mark.parametrize("path", RECORDED)
def test_a_recorded_trace_comes_back_from_its_json(path):
    trace = recorded(path)
    text = trace.to_json()
    again = GenerationTrace.from_json(text)
    assert again == trace
    assert again.to_json() == text  # times too, which equality leaves out
    assert text == (TRACES / path).read_text(encoding="utf-8").strip()


def test_hostile_texts_come_back_from_a_file_as_they_were(tmp_path):
    trace = hostile_trace()
    trace.to_json(tmp_path / "hostile.json")
    again = GenerationTrace.from_json(tmp_path / "hostile.json")
    assert again == trace
    assert set(again.tokens.values()) == set(trace.tokens.values()) <= set(HOSTILE)
    assert [row.prompt_text for row in again.rows] == HOSTILE[: len(again.rows)]
