"""Acceptance replay: the lengths asked for are the lengths accepted, by real verification, on any weights."""

from __future__ import annotations

from random import Random

import pytest

from emssd.acceptance import Acceptance, draw_rows
from emssd.acceptance_replay import AcceptanceReplayDrafter, check_lengths, invented_lengths, trace_lengths
from emssd.config import SPECULATIVE_METHODS, SpeculativeConfig
from emssd.decoding import GenerationRun, generate
from emssd.drafting import PromptLookupDrafter
from emssd.errors import ConfigError
from emssd.trace import GenerationTrace
from tests.helpers import assert_lossless, batch, greedy, language_model

K, NEW = 4, 24


def random_lengths(rows: int, steps: int, salt: int) -> list[list[tuple[int, int]]]:
    draw = Random(salt)
    lengths = []
    for _ in range(rows):
        drafts = [draw.randint(0, K) for _ in range(steps)]
        lengths.append([(drafted, draw.randint(0, drafted)) for drafted in drafts])
    return lengths


def capped(lengths: list[tuple[int, int]], new_tokens: int, most: int = K) -> list[tuple[int, int]]:
    """What a row does with these lengths: cut by the tokens that are left, no drafts once they are used up."""
    found, left, step = [], new_tokens - 1, 0
    while left:
        drafted, accepted = lengths[step] if step < len(lengths) else (0, 0)
        drafted = min(drafted, most, left - 1)
        accepted = min(accepted, drafted)
        found.append((drafted, accepted))
        left -= accepted + 1
        step += 1
    return found


@pytest.mark.parametrize("method", SPECULATIVE_METHODS)
@pytest.mark.parametrize("name", ["random-llama", "random-opt", "random-gpt2"])
def test_every_step_accepts_what_was_asked_and_the_output_is_greedy(name: str, method: str) -> None:
    lm = language_model(name)
    prompts = batch(lm, [5, 2, 9, 1], NEW)
    lengths = random_lengths(4, 6, salt=len(name) + len(method))
    config = SpeculativeConfig.for_method(method, num_draft_tokens=K, max_new_tokens=NEW)
    trace = assert_lossless(lm, prompts, config, AcceptanceReplayDrafter(lengths))
    assert trace_lengths(trace) == [capped(row, NEW) for row in lengths]
    assert trace.drafter == {"name": "replay", "rows": 4, "steps": 6, "repeat": False}


def test_known_outputs_save_the_plain_run(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = language_model("random-llama")
    prompts = batch(lm, [3, 7], NEW)
    lengths = random_lengths(2, 30, salt=1)
    outputs = [greedy(lm, prompt, NEW) for prompt in prompts]
    config = SpeculativeConfig.ems_sd(num_draft_tokens=K, max_new_tokens=NEW)
    unknown = assert_lossless(lm, prompts, config, AcceptanceReplayDrafter(lengths))
    monkeypatch.setattr("emssd.acceptance_replay.GenerationRun", None)
    known = assert_lossless(lm, prompts, config, AcceptanceReplayDrafter(lengths, outputs))
    assert known == unknown


def test_lengths_repeat_where_asked_to() -> None:
    lm = language_model("random-llama")
    prompts = batch(lm, [3, 7], NEW)
    config = SpeculativeConfig.ems_sd(num_draft_tokens=K, max_new_tokens=NEW)
    short = [[(4, 2), (1, 0)], [(3, 3)]]
    trace = assert_lossless(lm, prompts, config, AcceptanceReplayDrafter(short, repeat=True))
    assert trace_lengths(trace) == [capped(row * NEW, NEW) for row in short]


def test_recorded_lengths_are_replayed_on_the_same_and_on_other_weights() -> None:
    lm, other = language_model("random-llama"), language_model("random-gpt2")
    prompts = batch(lm, "mixed-8", NEW)
    config = SpeculativeConfig.vanilla(num_draft_tokens=K, max_new_tokens=NEW, eos_token_ids=())
    recorded = generate(lm, prompts, config, PromptLookupDrafter(1, "context"))
    assert recorded.summary()["drafted"] > recorded.summary()["accepted"] > 0
    again = generate(lm, prompts, config, AcceptanceReplayDrafter.from_trace(recorded, same_weights=True))
    assert trace_lengths(again) == trace_lengths(recorded)
    assert again.summary()["holes"] == recorded.summary()["holes"]
    elsewhere = assert_lossless(
        other, batch(other, "mixed-8", NEW), config, AcceptanceReplayDrafter.from_trace(recorded)
    )
    assert trace_lengths(elsewhere) == trace_lengths(recorded)
    assert [step.account.input_rows for step in elsewhere.decode_steps] == [
        step.account.input_rows for step in recorded.decode_steps
    ]


def test_invented_lengths_are_those_of_the_simulated_rows() -> None:
    lm = language_model("random-llama")
    acceptance = Acceptance(0.7, 0.8, num_draft_tokens=K, output_tokens=NEW)
    rows = draw_rows(acceptance, 3, seed=5)
    assert [sum(accepted + 1 for _, accepted in row) for row in invented_lengths(acceptance, 3, 5)] == [NEW - 1] * 3
    config = SpeculativeConfig.ems_sd(num_draft_tokens=K, max_new_tokens=NEW)
    drafter = AcceptanceReplayDrafter.from_acceptance(acceptance, 3, seed=5)
    trace = assert_lossless(lm, batch(lm, [4, 4, 9], NEW), config, drafter)
    assert len(trace.decode_steps) == len(rows.gained)
    for step, gained, drafted in zip(trace.decode_steps, rows.gained, rows.drafted, strict=True):
        assert [row.num_emitted for row in step.rows] == list(gained)
        assert [row.num_drafted for row in step.rows] == list(drafted)


def test_an_end_of_sequence_ends_the_row_as_always() -> None:
    lm = language_model("random-llama")
    prompts = batch(lm, [5, 3], NEW)
    eos = greedy(lm, prompts[0], NEW)[6]
    config = SpeculativeConfig.ragged_cache_only(num_draft_tokens=K, max_new_tokens=NEW)
    drafter = AcceptanceReplayDrafter([[(4, 4)] * NEW, [(4, 1)] * NEW])
    trace = assert_lossless(lm, prompts, config, drafter, eos=[eos])
    assert trace.rows[0].finish_reason == "eos"


def test_a_row_that_left_its_continuation_is_decoded_once_more(caplog: pytest.LogCaptureFixture) -> None:
    """Outputs of a model with other rounding: the wrong part is found out and the asked lengths still hold."""
    lm = language_model("random-llama")
    prompts = batch(lm, [5, 3], NEW)
    outputs = [greedy(lm, prompt, NEW) for prompt in prompts]
    outputs[1][4] = (outputs[1][4] + 1) % lm.vocab_size
    lengths = [[(3, 2)] * NEW, [(3, 1)] * NEW]
    config = SpeculativeConfig.ems_sd(num_draft_tokens=K, max_new_tokens=NEW)
    with caplog.at_level("INFO", logger="emssd"):
        trace = assert_lossless(lm, prompts, config, AcceptanceReplayDrafter(lengths, outputs))
    assert caplog.text.count("row 1 left its known continuation") == 1
    assert "row 0" not in caplog.text
    assert trace_lengths(trace)[0] == capped(lengths[0], NEW)
    assert trace_lengths(trace)[1][3:] == capped(lengths[1], NEW)[3:]


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ([], "a list per row"),
        ("abc", "a list per row"),
        ([5], "row 0"),
        ([[(1, 1)], [(2, 3)]], "row 1, step 1"),
        ([[(1, 1), (2, -1)]], "row 0, step 2"),
        ([[(1, True)]], "row 0, step 1"),
        ([[(1, 1, 1)]], "row 0, step 1"),
        ([[(1.5, 1)]], "row 0, step 1"),
    ],
)
def test_bad_lengths_are_refused(lengths: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_lengths(lengths)


def test_too_few_rows_are_refused() -> None:
    lm = language_model("random-llama")
    with pytest.raises(ConfigError, match="lengths for 1 rows, but the run has 2"):
        for _ in GenerationRun(lm, [[5], [6]], SpeculativeConfig.ems_sd(), AcceptanceReplayDrafter([[(1, 1)]])):
            pass
    with pytest.raises(ConfigError, match="one output per row"):
        AcceptanceReplayDrafter([[(1, 1)], [(1, 0)]], [[5]])


def test_a_trace_of_a_replay_can_be_read() -> None:
    lm = language_model("random-llama")
    trace = generate(lm, [[5, 6]], SpeculativeConfig.ems_sd(max_new_tokens=9), AcceptanceReplayDrafter([[(3, 2)]]))
    assert GenerationTrace.from_json(trace.to_json()) == trace
