"""Models of published sizes with random weights: speed does not ask what the weights say."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from emssd.errors import ConfigError, shown
from emssd.language_model import LanguageModel
from emssd.loading import DTYPES, load_model
from emssd.memory import available_bytes
from emssd.model_presets import PRESET_CONFIGS


def load_random_weights(source: str, device: str = "auto", dtype: str = "auto", seed: int = 0) -> LanguageModel:
    """A model of a configuration's sizes, drawn at random on its device, without a tokenizer.

    Args:
        source: a name of `model_presets.PRESET_CONFIGS`, a config.json, or a folder that has one.
        device: "auto" takes CUDA where there is one, else the CPU.
        dtype: "auto" is the configuration's own type on CUDA, float32 elsewhere.
        seed: of the weights.

    Raises:
        ConfigError: the configuration is unknown or cannot be built, or the device has too little memory.
    """
    config = _config(source)
    place = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    number_format = _dtype(config, place, dtype)
    try:
        _check_memory(source, config, place, number_format)
        torch.manual_seed(seed)
        with torch.device(place):
            model = AutoModelForCausalLM.from_config(config, dtype=number_format)
    except (RuntimeError, ValueError, TypeError, AssertionError, ImportError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"A model in the shape of {source} cannot be made on {place}: {reason}") from error
    lm = load_model.from_pretrained_model(cast(PreTrainedModel, model).eval())
    lm.name = f"random weights of {Path(source).name if source not in PRESET_CONFIGS else source}"
    return lm


def _check_memory(source: str, config: PretrainedConfig, place: str, dtype: torch.dtype) -> None:
    """Refuse weights that would not fit, before any is made."""
    available = available_bytes(torch.device(place))
    with torch.device("meta"):
        shapes = AutoModelForCausalLM.from_config(config, dtype=dtype)
    needed = sum(weight.numel() * weight.element_size() for weight in shapes.parameters())
    if available is not None and needed > available:
        halved = needed * 2 // dtype.itemsize <= available
        raise ConfigError(
            f"The weights of {source} need {needed / 2**30:.1f} GiB in {str(dtype).removeprefix('torch.')}, but "
            f"{place} has {available / 2**30:.1f} GiB free: take a smaller model{' or --dtype bfloat16' * halved}."
        )


def _config(source: str) -> PretrainedConfig:
    if source in PRESET_CONFIGS:
        entries: dict[str, Any] = dict(PRESET_CONFIGS[source])
        stored = entries.pop("torch_dtype", None)
        config = AutoConfig.for_model(entries.pop("model_type"), **entries)
        config.dtype = DTYPES.get(str(stored), torch.float32)
        return config
    path = Path(source)
    if not path.exists():
        raise ConfigError(
            f"There is no configuration {shown(source)}: give a config.json, a folder with one, or one of "
            f"{', '.join(PRESET_CONFIGS)}."
        )
    try:
        return AutoConfig.from_pretrained(str(path), trust_remote_code=False, local_files_only=True)
    except Exception as error:  # transformers raises many kinds
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"The configuration {source} cannot be read ({reason}): give a model's config.json."
        ) from error


def _dtype(config: PretrainedConfig, place: str, dtype: str) -> torch.dtype:
    if dtype != "auto":
        return DTYPES[dtype]
    stored = config.dtype if isinstance(config.dtype, torch.dtype) else DTYPES.get(str(config.dtype), torch.float32)
    return stored if place.startswith("cuda") else torch.float32
