"""The oracle is plain decoding whatever the model's own generation settings say, and it tells ties from errors."""

from __future__ import annotations

import copy

import pytest
import torch

from emssd.config import SpeculativeConfig
from emssd.decoding import generate
from emssd.language_model import LanguageModel
from emssd.loading import load_model
from emssd.oracle import compare_outputs, plain_generate, teacher_forced_gaps
from emssd.random_models import random_model
from tests.helpers import recompute

PROMPT = [11, 25, 3, 68, 40, 7]


def tiny(name: str) -> LanguageModel:
    return load_model.from_pretrained_model(random_model(name))


@pytest.fixture(scope="module")
def llama() -> LanguageModel:
    return tiny("random-llama")


def test_plain_generate_is_a_full_recompute(llama: LanguageModel) -> None:
    assert plain_generate(llama, PROMPT, 20) == recompute(llama, PROMPT, 20)


def test_the_models_own_generation_settings_are_left_out() -> None:
    lm = tiny("random-llama")
    wanted = recompute(lm, PROMPT, 20)
    settings = lm.model.generation_config
    settings.repetition_penalty = 5.0
    settings.no_repeat_ngram_size = 1
    settings.suppress_tokens = wanted[:3]
    settings.do_sample = True
    settings.temperature = 3.0
    settings.num_beams = 4
    settings.eos_token_id = wanted[2]
    before = copy.deepcopy(settings.to_dict())
    assert plain_generate(lm, PROMPT, 20) == wanted
    assert lm.model.generation_config is settings
    assert settings.to_dict() == before


@pytest.mark.parametrize("place", [0, 4])
def test_plain_generate_stops_at_any_of_the_end_tokens(llama: LanguageModel, place: int) -> None:
    output = recompute(llama, PROMPT, 10)
    end = output[place]
    first = output.index(end)
    unused = next(token for token in range(97) if token not in output)
    assert plain_generate(llama, PROMPT, 10, (unused, end)) == output[: first + 1]


@pytest.mark.parametrize(("length", "limit"), [(60, 5), (63, 2), (64, 1)])
def test_plain_generate_feeds_no_more_than_the_context(length: int, limit: int) -> None:
    lm = tiny("random-gpt2")
    prompt = [(7 * place) % 97 for place in range(length)]
    output = plain_generate(lm, prompt, 50)
    assert len(output) == limit
    ours = generate(lm, [prompt], SpeculativeConfig(max_new_tokens=50)).rows[0]
    assert ours.output_token_ids == output
    assert ours.finish_reason == "context"


def test_no_tokens_wanted_is_no_forward(llama: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama.model, "forward", None)
    assert plain_generate(llama, PROMPT, 0) == []
    assert teacher_forced_gaps(llama, PROMPT, []) == []


def test_teacher_forced_gaps_are_zero_on_greedy_output(llama: LanguageModel) -> None:
    output = plain_generate(llama, PROMPT, 12)
    assert max(teacher_forced_gaps(llama, PROMPT, output)) < 1e-4
    output[5] = (output[5] + 1) % 97
    gaps = teacher_forced_gaps(llama, PROMPT, output)
    assert max(gaps[:5]) < 1e-4
    assert gaps[5] > 1e-3


def test_equal_outputs_have_no_difference(llama: LanguageModel) -> None:
    output = plain_generate(llama, PROMPT, 12)
    assert compare_outputs(llama, PROMPT, output, list(output)) is None
    assert compare_outputs(llama, PROMPT, [], []) is None


@pytest.mark.parametrize("place", [0, 6, 11])
def test_a_wrong_token_is_named(llama: LanguageModel, place: int) -> None:
    expected = plain_generate(llama, PROMPT, 12)
    got = list(expected)
    got[place] = (got[place] + 1) % 97
    found = compare_outputs(llama, PROMPT, expected, got, row=3, max_new_tokens=12)
    assert found is not None
    assert (found.row, found.position, found.expected, found.got) == (3, place, expected[place], got[place])
    assert not found.near_tie
    assert found.gap is not None
    assert found.gap > 1e-3


@pytest.mark.parametrize(("theirs", "ours"), [(12, 9), (9, 12), (0, 4), (4, 0)])
def test_an_output_that_ends_early_is_a_difference(llama: LanguageModel, theirs: int, ours: int) -> None:
    output = plain_generate(llama, PROMPT, 12)
    found = compare_outputs(llama, PROMPT, output[:theirs], output[:ours])
    assert found is not None
    end = min(theirs, ours)
    assert found.position == end
    assert found.expected == (output[end] if theirs > ours else None)
    assert found.got == (output[end] if ours > theirs else None)
    assert not found.near_tie


class Tied:
    """A model with a token that is as good as another: wherever `first` is best, `second` is within 1e-4."""

    def __init__(self) -> None:
        model = random_model("random-llama")
        plain = load_model.from_pretrained_model(copy.deepcopy(model))
        self.first = plain_generate(plain, PROMPT, 8)[4]
        self.second = (self.first + 1) % 97
        with torch.no_grad():
            head = model.get_output_embeddings().weight
            head[self.second] = head[self.first] * (1 - 1e-6)
        self.lm = load_model.from_pretrained_model(model)
        self.expected = plain_generate(self.lm, PROMPT, 12)
        tied = (self.first, self.second)
        self.place = next(place for place, token in enumerate(self.expected) if token in tied)
        other = self.second if self.expected[self.place] == self.first else self.first
        begun = [*self.expected[: self.place], other]
        self.got = begun + plain_generate(self.lm, PROMPT + begun, 12 - len(begun))


@pytest.fixture(scope="module")
def tied() -> Tied:
    return Tied()


def test_a_near_tie_is_told_apart(tied: Tied) -> None:
    found = compare_outputs(tied.lm, PROMPT, tied.expected, tied.got, max_new_tokens=12)
    assert found is not None
    assert found.near_tie
    assert found.position == tied.place
    assert found.gap is not None
    assert found.gap < 1e-3


def test_a_wrong_token_after_a_near_tie_is_an_error(tied: Tied) -> None:
    got = list(tied.got)
    got[-1] = next(t for t in range(97) if t not in (got[-1], tied.first, tied.second))
    found = compare_outputs(tied.lm, PROMPT, tied.expected, got, max_new_tokens=12)
    assert found is not None
    assert not found.near_tie


def test_after_a_near_tie_ours_must_still_end_where_it_should(tied: Tied) -> None:
    short = compare_outputs(tied.lm, PROMPT, tied.expected, tied.got[:-1], max_new_tokens=12)
    assert short is not None
    assert not short.near_tie
    past_end = compare_outputs(tied.lm, PROMPT, tied.expected, tied.got, eos_token_ids=(tied.got[tied.place],))
    assert past_end is not None
    assert not past_end.near_tie


def test_a_tied_position_does_not_excuse_a_third_token(tied: Tied) -> None:
    got = list(tied.got)
    got[tied.place] = next(t for t in range(97) if t not in (tied.first, tied.second))
    found = compare_outputs(tied.lm, PROMPT, tied.expected, got)
    assert found is not None
    assert not found.near_tie
