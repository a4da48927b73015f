"""Models of the app: weights are loaded once and shared by all sessions, read-only.

Torch is imported at the first use, so that the page opens without it.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

from emssd.errors import ConfigError
from emssd.ui.notices import unformatted
from emssd.ui.token_text import visible

if TYPE_CHECKING:
    from emssd.loading import LanguageModel

EMBEDDED = "smollm2-135m"
TINY = "random-llama"
FOLDER = "folder"
MODEL_WORDS = {
    EMBEDDED: "SmolLM2-135M, embedded",
    TINY: "random-llama, tiny, no download",
    FOLDER: "A local folder …",
}
TINY_CHARACTERS = 96
"""The tiny model reads one token per character and has room for 256."""


def is_tiny(name: str) -> bool:
    """Whether a model is one of the random ones."""
    return name.startswith("random-")


def fit_to_model(name: str, texts: list[str]) -> list[str]:
    """Shipped prompts as the model gets them: their end only, where it is a tiny one."""
    return [text[-TINY_CHARACTERS:] for text in texts] if is_tiny(name) else texts


@st.cache_resource(max_entries=3, show_spinner=False)
def _weights(name: str) -> LanguageModel:
    from emssd.loading import load_model

    lm = load_model(name)
    # Streamlit collects all garbage after every script run. With torch loaded that takes a quarter of a second, which
    # every poll of the page would take from decoding. What is loaded now stays for good, so it need not be looked at.
    gc.collect()
    gc.freeze()
    return lm


def loaded_model(name: str) -> LanguageModel:
    """The model, from memory or loaded now while a status line says what is done. Nothing is downloaded.

    Raises:
        EmssdError: it is neither a known name nor a local folder, it cannot be loaded, or our attention would serve
            it wrongly.
    """
    if name != EMBEDDED and not is_tiny(name) and not _is_folder(name):
        raise ConfigError(
            f"There is no folder {visible(name)!r} on this computer: give the path of a folder with a model in it, "
            f"or choose {EMBEDDED} or {TINY}."
        )
    first = " The first time on this computer its weights are converted: about 30 s, afterwards about 3 s."
    shown, more = unformatted(visible(name)), first if name == EMBEDDED else ""
    place = st.empty()
    with place.status(f"Loading {shown}: weights, then a self-check of the attention hook.{more}"):
        lm = _weights(name)
    place.empty()
    return lm


def _is_folder(name: str) -> bool:
    try:
        return Path(name).expanduser().is_dir()
    except (OSError, ValueError, RuntimeError):  # too long, a null character, no home folder
        return False
