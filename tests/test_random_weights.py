"""Models of published sizes with random weights: the sizes are right, and bad configurations are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from emssd.errors import ConfigError
from emssd.model_presets import MODELS, PRESET_CONFIGS, shape_from_config
from emssd.random_models import random_model
from emssd.random_weights import _config, load_random_weights


@pytest.mark.parametrize("name", PRESET_CONFIGS)
def test_presets_become_configurations_of_the_same_sizes(name: str) -> None:
    config = _config(name).to_dict()
    shape, wanted = shape_from_config(config), MODELS[name]
    for size in ("layers", "heads", "kv_heads", "head_dim", "hidden", "vocab", "parameters", "feed_forward"):
        assert getattr(shape, size) == getattr(wanted, size), size


def test_a_configuration_file_becomes_a_checked_model(tmp_path: Path) -> None:
    random_model("random-llama").config.save_pretrained(tmp_path)
    first, again, other = (load_random_weights(str(tmp_path), "cpu", seed=seed) for seed in (1, 1, 2))
    assert first.report is not None
    assert first.dtype == torch.float32
    assert first.tokenizer is None
    weights = [lm.model.get_input_embeddings().weight for lm in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert load_random_weights(str(tmp_path / "config.json"), "cpu", "float64").dtype == torch.float64


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model_type": "nothing"}', '{"model_type": "t5"}'])
def test_bad_configurations_are_refused_in_one_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_random_weights(str(tmp_path), "cpu")
    assert "\n" not in str(caught.value)


def test_unknown_names_and_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no configuration 'opt-1t'.*opt-6\.7b"):
        load_random_weights("opt-1t")
    random_model("random-llama").config.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="cannot be made on cuda:77"):
        load_random_weights(str(tmp_path), "cuda:77")
