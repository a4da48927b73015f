"""Load a model, hook a weight-sharing copy of it, and refuse what our attention would serve wrongly.

Names: the embedded "smollm2-135m", the tiny "random-*" models, a folder in transformers' own format with safetensors
weights, or a hub id. No network is touched unless a hub id is asked for, and no code from a repository is ever run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from emssd.attention import hook_model
from emssd.embedded import EMBEDDED_NAME, embedded_folder
from emssd.errors import ConfigError, UnsupportedModelError, shown
from emssd.language_model import LanguageModel
from emssd.random_models import RANDOM_MODELS, random_model, random_tokenizer
from emssd.self_check import check_configuration
from emssd.self_check import self_check as run_self_check

__all__ = ["DTYPES", "LanguageModel", "ModelLoader", "load_model", "models_known"]

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
TOKENIZER_FILES = ("tokenizer", "vocab", "spiece", "sentencepiece", "tekken")
PICKLE_SUFFIXES = {".bin", ".pt", ".pth", ".ckpt"}


class ModelLoader:
    """`load_model(name)` and `load_model.from_pretrained_model(model)`."""

    def __call__(
        self,
        name_or_path: str | os.PathLike[str],
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        self_check: bool = True,
    ) -> LanguageModel:
        """Load by name, folder or hub id, and check it.

        Args:
            name_or_path: one of `models_known()`, a folder, or a hub id "owner/model".
            device: "auto" takes CUDA, then MPS, then the CPU.
            dtype: "auto" is float32, except for a folder or hub id on CUDA, which keeps the type it is stored in.
            self_check: False skips the five gates; a model that they would refuse may then give wrong text.

        Raises:
            ConfigError: unknown name, device or dtype, or a folder that cannot be read.
            UnsupportedModelError: pickle weights, or a gate refuses the model.
            EmssdError: the embedded model is not installed or its cache cannot be written.
        """
        if not isinstance(name_or_path, (str, os.PathLike)):
            raise ConfigError(f"A model is named by a text or a path, not by {shown(name_or_path)}.")
        place, number_format = _device(device), _dtype(dtype)
        name = os.fspath(name_or_path)
        model: PreTrainedModel
        path: Path | None = None
        if name in RANDOM_MODELS:
            model, tokenizer = random_model(name, dtype=number_format or torch.float32), random_tokenizer()
        elif name == EMBEDDED_NAME:
            path = embedded_folder()
            model, tokenizer = _from_folder(path, number_format or torch.float32), _folder_tokenizer(path)
        elif name and Path(name).expanduser().is_dir():
            path = Path(name).expanduser()
            model, tokenizer = _from_folder(path, number_format or _stored(place)), _folder_tokenizer(path)
        elif _looks_like_hub_id(name):
            model, tokenizer = _from_hub(name, number_format or _stored(place))
        else:
            raise ConfigError(f"There is no model or folder {name!r}; known names: {', '.join(models_known())}.")
        lm = self.from_pretrained_model(_move(model.eval(), place), tokenizer, self_check)
        lm.name, lm.path = name if path is None or name == EMBEDDED_NAME else path.name, path
        return lm

    def from_pretrained_model(
        self, hf_model: PreTrainedModel, tokenizer: Any = None, self_check: bool = True
    ) -> LanguageModel:
        """Wrap a transformers model that is already built; it is not changed.

        Raises:
            UnsupportedModelError: a gate of the self-check refuses it.
        """
        if not isinstance(hf_model, PreTrainedModel):
            raise ConfigError(f"expected a transformers model, got {type(hf_model).__name__}: use load_model(name).")
        if self_check:
            check_configuration(hf_model)
        hooked = cast(PreTrainedModel, hook_model(hf_model)).eval()
        report = run_self_check(hf_model, hooked) if self_check else None
        return LanguageModel(hf_model, hooked, tokenizer, name=_given_name(hf_model), report=report)


load_model = ModelLoader()


def models_known() -> list[str]:
    """Names that need no folder and no network."""
    return [EMBEDDED_NAME, *RANDOM_MODELS]


def _given_name(model: PreTrainedModel) -> str:
    stored = str(getattr(model.config, "_name_or_path", "") or "")
    return Path(stored).name or str(model.config.model_type)


def _device(device: str | torch.device) -> torch.device:
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.zeros(1, device=place).item()  # also refuses devices that hold no numbers
    except (RuntimeError, AssertionError, NotImplementedError, ValueError, TypeError) as error:
        reason = _first_line(error)[:120]
        raise ConfigError(f"The device {str(device)!r} cannot be used here ({reason}): try auto or cpu.") from error
    return place


def _dtype(dtype: str | torch.dtype) -> torch.dtype | None:
    """The number format asked for; None for "auto"."""
    if dtype == "auto":
        return None
    found = DTYPES.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise ConfigError(f"unknown dtype {str(dtype)!r}: use auto, {', '.join(DTYPES)}.")
    return found


def _stored(place: torch.device) -> torch.dtype | str:
    """ "auto" for a checkpoint: its own number format on CUDA; float32 elsewhere, where half precision is slow."""
    return "auto" if place.type == "cuda" else torch.float32


def _move(model: PreTrainedModel, place: torch.device) -> PreTrainedModel:
    try:
        return cast(PreTrainedModel, model.to(place))
    except (RuntimeError, TypeError) as error:
        reason = _first_line(error)
        raise ConfigError(f"The model does not fit on {place} ({reason}): try another device or dtype.") from error


def _from_folder(path: Path, dtype: torch.dtype | str) -> PreTrainedModel:
    """A model from a local folder, safetensors only, without the network."""
    if not (path / "config.json").is_file():
        raise ConfigError(f"The folder {path} has no config.json: give a folder that save_pretrained wrote.")
    names = {file.name for file in path.iterdir()}
    if not any(name.endswith(".safetensors") for name in names):
        if any(Path(name).suffix in PICKLE_SUFFIXES for name in names):
            raise UnsupportedModelError(
                f"The folder {path} has only pickle weights, which can run code when loaded: convert them to "
                "safetensors (load them where you trust them and call save_pretrained)."
            )
        raise ConfigError(f"The folder {path} has no weights in safetensors format.")
    return _pretrained(str(path), dtype, local_files_only=True)


def _from_hub(name: str, dtype: torch.dtype | str) -> tuple[PreTrainedModel, Any]:
    model = _pretrained(name, dtype, local_files_only=False)
    return model, _hub_tokenizer(name)


def _pretrained(source: str, dtype: torch.dtype | str, local_files_only: bool) -> PreTrainedModel:
    safe: dict[str, Any] = {"trust_remote_code": False, "local_files_only": local_files_only}
    try:
        config = AutoConfig.from_pretrained(source, **safe)
        return cast(
            PreTrainedModel,
            AutoModelForCausalLM.from_pretrained(source, config=config, dtype=dtype, use_safetensors=True, **safe),
        )
    except Exception as error:  # transformers, the hub client and safetensors each raise their own kinds
        reason = _first_line(error)
        if local_files_only:
            raise ConfigError(f"The model in {source} cannot be loaded: {reason}") from error
        raise ConfigError(
            f"The hub model {source!r} cannot be loaded ({reason}): check the name and the network, "
            f"or use one of {EMBEDDED_NAME} or random-llama."
        ) from error


def _folder_tokenizer(path: Path) -> Any:
    """The folder's tokenizer; None where it has no tokenizer files, for which transformers makes an empty one."""
    if not any(file.name.startswith(TOKENIZER_FILES) for file in path.iterdir()):
        return None
    try:
        return AutoTokenizer.from_pretrained(str(path), trust_remote_code=False, local_files_only=True)
    except Exception as error:  # each tokenizer library raises its own kinds
        raise ConfigError(f"The tokenizer in {path} cannot be loaded: {_first_line(error)}") from error


def _hub_tokenizer(name: str) -> Any:
    """The hub model's tokenizer; None where it has none, then prompts are token ids."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError):
        return None
    return tokenizer if len(tokenizer) > len(tokenizer.all_special_ids) else None


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _looks_like_hub_id(name: str) -> bool:
    """owner/model, and no path: it does not start like one."""
    parts = name.split("/")
    return len(parts) == 2 and all(parts) and parts[0] not in {".", "..", "~"}
