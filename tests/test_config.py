"""Settings: presets, names, and every bad value refused with one clear sentence."""

from __future__ import annotations

import math

import numpy as np
import pytest

from emssd.config import MAX_DRAFT_TOKENS, METHODS, SPECULATIVE_METHODS, SpeculativeConfig
from emssd.errors import ConfigError, EmssdError

BAD_VALUES = [
    ("cache_layout", "unpadded"),
    ("cache_layout", None),
    ("input_layout", "ragged"),
    ("input_layout", 3),
    ("attention", "flash"),
    ("num_draft_tokens", -1),
    ("num_draft_tokens", MAX_DRAFT_TOKENS + 1),
    ("num_draft_tokens", 10**30),
    ("num_draft_tokens", 2.0),
    ("num_draft_tokens", True),
    ("num_draft_tokens", "seven"),
    ("num_draft_tokens", None),
    ("num_draft_tokens", math.nan),
    ("max_new_tokens", -1),
    ("max_new_tokens", 10**9),
    ("max_new_tokens", 1.5),
    ("max_new_tokens", False),
    ("max_new_tokens", None),
    ("eos_token_ids", -2),
    ("eos_token_ids", "</s>"),
    ("eos_token_ids", 1.0),
    ("eos_token_ids", True),
    ("eos_token_ids", [3, "four"]),
    ("eos_token_ids", (3, -1)),
    ("eos_token_ids", 10**30),
    ("check_invariants", "yes"),
    ("check_invariants", None),
    ("check_invariants", 1),
    ("temperature", 1.0),
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", "0"),
    ("temperature", False),
    ("seed", -1),
    ("seed", 2**63),
    ("seed", 0.5),
    ("seed", True),
]


@pytest.mark.parametrize(("name", "value"), BAD_VALUES, ids=lambda item: str(item)[:24])
def test_a_bad_value_is_refused_in_one_sentence_that_names_setting_and_value(name, value):
    with pytest.raises(ConfigError) as caught:
        SpeculativeConfig(**{name: value})
    message = str(caught.value)
    assert isinstance(caught.value, EmssdError)
    assert "\n" not in message
    assert message.endswith(".")
    assert message.startswith(name)
    shown = value[-1] if isinstance(value, (list, tuple)) else value
    assert repr(shown) in message or str(shown) in message


@pytest.mark.parametrize("lengths", [[0, 3, -1], (1, 2, 2000), [1, None]])
def test_a_bad_draft_length_of_one_row_names_the_row(lengths):
    bad = next(row for row, count in enumerate(lengths) if not isinstance(count, int) or not 0 <= count <= 1024)
    with pytest.raises(ConfigError, match=f"row {bad}"):
        SpeculativeConfig(num_draft_tokens=lengths)


def test_the_limits_themselves_are_allowed():
    config = SpeculativeConfig(num_draft_tokens=MAX_DRAFT_TOKENS, max_new_tokens=0, seed=2**63 - 1, temperature=0)
    assert config.max_draft_tokens == MAX_DRAFT_TOKENS


def test_presets_are_the_two_by_two_of_layouts():
    assert SpeculativeConfig.greedy().method == "greedy"
    assert SpeculativeConfig.greedy("ragged").method == "greedy-ragged"
    assert SpeculativeConfig.vanilla().method == "vanilla"
    assert SpeculativeConfig.packed_input_only().method == "packed-input"
    assert SpeculativeConfig.ragged_cache_only().method == "ragged-cache"
    assert SpeculativeConfig.ems_sd().method == SpeculativeConfig().method == "ems-sd"
    layouts = {METHODS[name] for name in SPECULATIVE_METHODS}
    assert layouts == {(cache, inputs) for cache in ("padded", "ragged") for inputs in ("padded", "packed")}


@pytest.mark.parametrize("method", METHODS)
def test_a_method_name_leads_to_its_own_settings_and_back(method):
    config = SpeculativeConfig.for_method(method, num_draft_tokens=3, max_new_tokens=5)
    assert config.method == method
    assert (config.cache_layout, config.input_layout) == METHODS[method]
    assert config.max_draft_tokens == (0 if method.startswith("greedy") else 3)
    assert config.drafts == (not method.startswith("greedy"))


@pytest.mark.parametrize("method", ["EMS-SD", "emssd", "", "ems_sd", None])
def test_an_unknown_method_is_refused_with_the_choices(method):
    with pytest.raises(ConfigError, match="Unknown method") as caught:
        SpeculativeConfig.for_method(method)
    assert repr(method) in str(caught.value)
    assert all(name in str(caught.value) for name in METHODS)


def test_without_drafts_a_layout_is_greedy():
    assert SpeculativeConfig.vanilla(num_draft_tokens=0).method == "greedy"
    assert SpeculativeConfig.ems_sd(num_draft_tokens=(0, 0)).method == "greedy-ragged"
    assert SpeculativeConfig.ems_sd(num_draft_tokens=(0, 1)).method == "ems-sd"
    assert SpeculativeConfig.ems_sd(num_draft_tokens=lambda row, step: 0).method == "ems-sd"


def test_draft_length_by_number_by_row_and_by_function():
    assert SpeculativeConfig(num_draft_tokens=4).draft_length(9, 9) == 4
    by_row = SpeculativeConfig(num_draft_tokens=[1, 0, 5])
    assert [by_row.draft_length(row, 3) for row in range(3)] == [1, 0, 5]
    assert by_row.max_draft_tokens == 5
    by_function = SpeculativeConfig(num_draft_tokens=lambda row, step: 10 * row + step)
    assert by_function.draft_length(2, 3) == 23
    assert by_function.max_draft_tokens is None


@pytest.mark.parametrize("answer", [-1, 2000, 1.5, None, True, "3"])
def test_a_function_with_a_bad_answer_is_refused_with_row_and_step(answer):
    config = SpeculativeConfig(num_draft_tokens=lambda row, step: answer)
    with pytest.raises(ConfigError, match=r"num_draft_tokens of row 2 in step 7"):
        config.draft_length(2, 7)


@pytest.mark.parametrize("rows", [1, 3])
def test_one_draft_length_per_row_must_fit_the_batch(rows):
    with pytest.raises(ConfigError, match=rf"2 entries for {rows} rows"):
        SpeculativeConfig(num_draft_tokens=(1, 2)).check_batch(rows)
    SpeculativeConfig(num_draft_tokens=(1, 2)).check_batch(2)
    SpeculativeConfig(num_draft_tokens=3).check_batch(rows)


@pytest.mark.parametrize(
    ("given", "kept"),
    [(None, None), ((), ()), ([], ()), (5, (5,)), (0, (0,)), ([7, 5, 7], (7, 5)), ({4}, (4,)), (frozenset({4}), (4,))],
)
def test_end_of_sequence_ids_none_one_or_several(given, kept):
    assert SpeculativeConfig(eos_token_ids=given).eos_token_ids == kept


def test_settings_are_frozen_hashable_and_replaceable():
    config = SpeculativeConfig(num_draft_tokens=[1, 2])
    with pytest.raises(AttributeError):
        config.seed = 3
    changed = config.with_settings(max_new_tokens=3)
    assert (config.max_new_tokens, changed.max_new_tokens, changed.num_draft_tokens) == (64, 3, (1, 2))
    assert hash(config) == hash(SpeculativeConfig(num_draft_tokens=(1, 2)))
    with pytest.raises(ConfigError):
        config.with_settings(max_new_tokens=-3)


def test_plain_data_of_the_settings():
    data = SpeculativeConfig(num_draft_tokens=(1, 2), eos_token_ids=9, temperature=0).to_dict()
    assert data["num_draft_tokens"] == [1, 2]
    assert data["eos_token_ids"] == [9]
    assert data["temperature"] == 0.0
    assert SpeculativeConfig(num_draft_tokens=lambda row, step: 1).to_dict()["num_draft_tokens"] == "callable"
    assert SpeculativeConfig().to_dict()["eos_token_ids"] is None


HUGE = 10**5000


@pytest.mark.parametrize(
    "settings",
    [
        {"num_draft_tokens": HUGE},
        {"max_new_tokens": -HUGE},
        {"seed": HUGE},
        {"eos_token_ids": (1, HUGE)},
        {"temperature": HUGE},
        {"cache_layout": "very long " * 1000},
        {"cache_layout": np.zeros((40, 40))},
        {"eos_token_ids": np.zeros((40, 40))},
        {"num_draft_tokens": np.zeros((40, 40))},
    ],
    ids=range(9),
)
def test_a_value_that_cannot_be_shown_is_still_one_short_sentence(settings):
    with pytest.raises(ConfigError) as caught:
        SpeculativeConfig(**settings)
    message = str(caught.value)
    assert message.startswith(next(iter(settings)))
    assert "\n" not in message
    assert len(message) < 250
