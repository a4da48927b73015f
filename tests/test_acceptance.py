"""Invented acceptance: its settings, its laws and its draws."""

from __future__ import annotations

import math

import numpy as np
import pytest

from emssd.acceptance import MAX_BATCH, Acceptance, draw_rows
from emssd.errors import ConfigError

BAD = [
    ("hit_rate", -0.1, "0 to 1"),
    ("hit_rate", 1.5, "0 to 1"),
    ("hit_rate", "often", "0 to 1"),
    ("hit_rate", True, "0 to 1"),
    ("token_rate", math.nan, "0 to 1"),
    ("token_rate", 1.0001, "0 to 1"),
    ("spread", -1.0, "0 to 5"),
    ("spread", math.inf, "0 to 5"),
    ("prompt_mean", 0.0, "1 to"),
    ("prompt_sd", -1.0, "0 to"),
    ("prompt_law", "uniform", "lognormal, normal, equal"),
    ("num_draft_tokens", -1, "0 to 64"),
    ("num_draft_tokens", 65, "0 to 64"),
    ("num_draft_tokens", 2.5, "0 to 64"),
    ("output_tokens", 0, "1 to 1024"),
    ("prompt_min", 0, "1 to"),
    ("prompt_max", 0, "1 to"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), BAD)
def test_a_bad_setting_is_named_with_its_value_and_range(name, value, allowed):
    with pytest.raises(ConfigError, match=name) as caught:
        Acceptance(**{name: value})
    assert allowed in str(caught.value)
    assert repr(value) in str(caught.value)


def test_the_longest_prompt_is_not_below_the_shortest():
    with pytest.raises(ConfigError, match="prompt_max must be a whole number from 50"):
        Acceptance(prompt_min=50, prompt_max=49)


def test_the_spread_moves_the_logits():
    acceptance = Acceptance(hit_rate=0.6, token_rate=0.9, spread=0.5)
    hit, token = acceptance.rates(np.array([0.0, 2.0]))
    assert hit[0] == pytest.approx(0.6)
    assert token[0] == pytest.approx(0.9)
    assert math.log(hit[1] / (1 - hit[1])) == pytest.approx(math.log(0.6 / 0.4) + 1)
    assert math.log(token[1] / (1 - token[1])) == pytest.approx(math.log(0.9 / 0.1) + 1)
    never, always = Acceptance(hit_rate=0, token_rate=1, spread=3.0).rates(np.array([-2.0, 2.0]))
    assert never.tolist() == [0, 0]
    assert always.tolist() == [1, 1]


@pytest.mark.parametrize("law", ["lognormal", "normal"])
def test_prompt_lengths_have_the_mean_and_deviation_asked_for(law):
    acceptance = Acceptance(prompt_law=law, prompt_mean=900, prompt_sd=200, prompt_max=10_000)
    lengths = acceptance.prompt_lengths(np.random.default_rng(0).standard_normal(200_000))
    assert lengths.mean() == pytest.approx(900, abs=2)
    assert lengths.std() == pytest.approx(200, abs=2)
    assert lengths.dtype == np.int64


def test_prompt_lengths_are_cut_and_equal_ones_are_equal():
    numbers = np.linspace(-4, 4, 50)
    cut = Acceptance(prompt_mean=100, prompt_sd=100, prompt_min=40, prompt_max=160).prompt_lengths(numbers)
    assert cut.min() == 40
    assert cut.max() == 160
    assert set(Acceptance(prompt_mean=77.4, prompt_law="equal").prompt_lengths(numbers).tolist()) == {77}


@pytest.mark.parametrize("batch_size", [1, 2, 8, 24])
def test_the_mean_of_the_longest_prompt(batch_size):
    acceptance = Acceptance()
    drawn = acceptance.prompt_lengths(np.random.default_rng(1).standard_normal((100_000, batch_size))).max(1)
    assert acceptance.mean_longest_prompt(batch_size) == pytest.approx(drawn.mean(), rel=0.004)


def test_rows_end_with_exactly_their_tokens():
    acceptance = Acceptance(hit_rate=0.6, token_rate=0.8, spread=0.5, num_draft_tokens=5, output_tokens=23)
    rows = draw_rows(acceptance, 300, seed=4)
    assert (rows.gained.sum(0) == 22).all()
    left = 22 - (np.cumsum(rows.gained, 0) - rows.gained)
    live = rows.gained > 0
    assert (live == (left > 0)).all()
    hits = rows.drafted > 0
    assert (rows.drafted[hits] == np.minimum(5, left - 1)[hits]).all()
    assert (rows.gained[live] <= rows.drafted[live] + 1).all()
    assert not rows.drafted[~live].any()


def test_uncapped_rows_differ_in_their_last_step_alone():
    acceptance = Acceptance(hit_rate=0.9, token_rate=0.95, output_tokens=30)
    capped, free = draw_rows(acceptance, 200, 9), draw_rows(acceptance, 200, 9, capped=False)
    assert free.gained.shape == capped.gained.shape
    same = free.gained == capped.gained
    last = np.cumsum(capped.gained, 0) == 29
    assert same[~last].all()
    assert (free.gained >= capped.gained).all()
    assert (free.gained.sum(0) > 29).mean() > 0.3
    assert free.gained.sum(0).max() <= 29 + acceptance.num_draft_tokens


def test_rates_are_met():
    acceptance = Acceptance(hit_rate=0.7, token_rate=0.8, spread=0, num_draft_tokens=3, output_tokens=200)
    rows = draw_rows(acceptance, 2000, seed=1)
    early = slice(0, 40)  # no row is near its end there
    hits = rows.drafted[early] == 3
    assert hits.mean() == pytest.approx(0.7, abs=0.005)
    accepted = rows.gained[early][hits] - 1
    for count in (1, 2, 3):
        assert (accepted >= count).mean() == pytest.approx(0.8**count, abs=0.006)


def test_extreme_rates():
    never = draw_rows(Acceptance(hit_rate=0, output_tokens=9), 5, 0)
    assert never.gained.tolist() == [[1] * 5] * 8
    wrong = draw_rows(Acceptance(hit_rate=1, token_rate=0, output_tokens=9), 5, 0)
    assert wrong.gained.tolist() == [[1] * 5] * 8
    right = draw_rows(Acceptance(hit_rate=1, token_rate=1, num_draft_tokens=3, output_tokens=10), 5, 0)
    assert right.gained.tolist() == [[4] * 5, [4] * 5, [1] * 5]
    assert draw_rows(Acceptance(output_tokens=1), 5, 0).gained.shape == (0, 5)
    assert (draw_rows(Acceptance(num_draft_tokens=0, output_tokens=4), 5, 0).gained == 1).all()


def test_the_same_seed_gives_the_same_rows_and_a_higher_rate_only_adds_hits():
    first, second = (draw_rows(Acceptance(), 50, seed=7) for _ in range(2))
    assert (first.gained == second.gained).all()
    assert (first.prompt_lengths == second.prompt_lengths).all()
    assert (draw_rows(Acceptance(), 50, seed=8).prompt_lengths != first.prompt_lengths).any()
    low, high = (draw_rows(Acceptance(hit_rate=rate, spread=0), 50, seed=7) for rate in (0.3, 0.6))
    assert (low.drafted[0] <= high.drafted[0]).all()
    assert low.drafted[0].sum() < high.drafted[0].sum()


def test_batches_are_consecutive_rows():
    rows = draw_rows(Acceptance(output_tokens=12), 11, seed=3)
    batches = rows.batches(4)
    assert batches.prompt_lengths.tolist() == rows.prompt_lengths[:8].reshape(2, 4).tolist()
    assert (batches.gained[1, :, 2] == rows.gained[:, 6]).all()
    assert (batches.drafted[0, :, 3] == rows.drafted[:, 3]).all()
    few = rows.first(4)
    assert (few.batches(4).gained[0] == batches.gained[0]).all()


def test_a_seed_must_be_a_whole_number_from_0():
    with pytest.raises(ConfigError, match="seed must be a whole number from 0"):
        draw_rows(Acceptance(), 3, seed=-1)


def test_settings_as_plain_data_give_the_same_settings():
    acceptance = Acceptance(hit_rate=0.25, prompt_law="equal")
    assert Acceptance(**acceptance.to_dict()) == acceptance
    assert acceptance.with_settings(spread=1.0).spread == 1.0
    assert MAX_BATCH >= 24
