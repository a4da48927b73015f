"""Models of published sizes with random weights: the sizes are right, and bad configurations are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

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


def test_weights_that_do_not_fit_are_refused_before_any_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model("random-llama")
    model.config.save_pretrained(tmp_path)
    needed = sum(weight.numel() for weight in model.parameters()) * 4
    free = [needed]
    monkeypatch.setattr("emssd.random_weights.available_bytes", lambda device: free[0])
    assert load_random_weights(str(tmp_path), "cpu").dtype == torch.float32
    made = AutoModelForCausalLM.from_config

    def on_meta(*args: Any, **settings: Any) -> Any:
        assert torch.get_default_device().type == "meta"
        return made(*args, **settings)

    monkeypatch.setattr(AutoModelForCausalLM, "from_config", on_meta)
    free[0] = needed - 1
    with pytest.raises(ConfigError, match=r"need 0\.0 GiB in float32, but cpu .* smaller model or --dtype bfloat16\.$"):
        load_random_weights(str(tmp_path), "cpu")
    free[0] = needed // 2 - 1
    for dtype in ("float32", "bfloat16"):
        with pytest.raises(ConfigError, match=rf"in {dtype}, but cpu has 0\.0 GiB free: take a smaller model\.$"):
            load_random_weights(str(tmp_path), "cpu", dtype)
    free[0] = 20 * 2**30
    with pytest.raises(
        ConfigError, match=r"weights of opt-6\.7b need 24\.8 GiB in float32, but cpu has 20\.0 GiB free"
    ):
        load_random_weights("opt-6.7b", "cpu", "float32")
