"""The controls of a run: prompts, method pair, lengths, drafter and model. A refused run loses nothing typed here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import streamlit as st

from emssd.config import METHOD_TITLES, SPECULATIVE_METHODS
from emssd.errors import PromptError
from emssd.prompts import PromptEntry, default_prompts
from emssd.ui.models import FOLDER, MODEL_WORDS, TINY_CHARACTERS, is_tiny
from emssd.ui.narration import plural
from emssd.ui.shown import prompt_title

METHOD_CHOICES = ("greedy", *SPECULATIVE_METHODS)
SOURCES = {"prompt": "lookup in the prompt", "context": "lookup in prompt and context"}
DEFAULT_PROMPTS = ("harbour-bridge", "server-settings", "capitals", "tide-pool")
"""Three rows that copy richly and one that hardly does: the batch becomes ragged at once."""
KIND_WORDS = {"answer-from-document": "answer", "free-writing": "writing", "edit-code": "code"}
DEFAULT_NEW_TOKENS = 48
KEEP: dict[str, Any] = {"persist_state": "session"}
MAX_ROWS = 16
MAX_DRAFTS = 16
MAX_NEW_TOKENS = 256
MAX_CHARACTERS = 40_000


@dataclass(frozen=True)
class Setup:
    """What the controls say."""

    shipped: tuple[PromptEntry, ...]
    own: tuple[str, ...]
    left: str
    right: str
    num_draft_tokens: int
    max_new_tokens: int
    source: str
    model: str

    @property
    def rows(self) -> int:
        """Rows of the batch."""
        return len(self.shipped) + len(self.own)

    def problem(self) -> str | None:
        """Why this cannot run, in one sentence; None if it can."""
        if self.left == self.right:
            return f"Both sides are {METHOD_TITLES[self.left]}: choose two different methods."
        if not self.rows:
            return "There is no prompt: choose a shipped one or write your own."
        if self.rows > MAX_ROWS:
            return f"{self.rows} prompts are chosen, and the page runs at most {MAX_ROWS} rows: take some away."
        if not self.model:
            return "Give the folder of the local model."
        return None

    def headline(self) -> str:
        """One line for the folded controls."""
        drafts = plural(self.num_draft_tokens, "draft")
        pair = f"{METHOD_TITLES[self.left]} vs {METHOD_TITLES[self.right]}"
        return f"{plural(self.rows, 'prompt')} · {pair} · {drafts} · {plural(self.max_new_tokens, 'new token')}"


@st.cache_data
def shipped_prompts() -> list[PromptEntry]:
    """The prompts that come with the project."""
    return default_prompts()


def own_prompts(text: str) -> tuple[str, ...]:
    """Blocks of text separated by blank lines, one prompt each."""
    blocks = re.split(r"\n(?:[ \t]*\n)+", text.replace("\r\n", "\n"))
    return tuple(block.strip("\n") for block in blocks if block.strip())


def setup_form() -> Setup:
    """Draw the controls and return what they say."""
    prompts, settings = st.columns([1, 1], gap="medium")
    with prompts:
        shipped, own = _prompt_controls()
    titles = METHOD_TITLES.__getitem__
    first, second, third = settings.columns(3, gap="small")
    left = first.selectbox("Left method", METHOD_CHOICES, 1, titles, key="left", **KEEP)
    right = second.selectbox("Right method", METHOD_CHOICES, 4, titles, key="right", **KEEP)
    lookup = "Prompt lookup copies what followed the last two tokens where they occurred before."
    source = third.selectbox("Drafter", list(SOURCES), 0, SOURCES.__getitem__, key="source", help=lookup, **KEEP)
    first, second, third = settings.columns(3, gap="small")
    length = "Draft tokens per row and step. 0 is plain decoding."
    drafts = first.number_input("Draft length", 0, MAX_DRAFTS, 7, key="drafts", help=length, **KEEP)
    tokens = second.number_input("New tokens per row", 1, MAX_NEW_TOKENS, DEFAULT_NEW_TOKENS, key="tokens", **KEEP)
    with third:
        model = _model_control()
    return Setup(
        shipped=tuple(shipped),
        own=own,
        left=left,
        right=right,
        num_draft_tokens=int(drafts),
        max_new_tokens=int(tokens),
        source=source,
        model=model,
    )


def _prompt_controls() -> tuple[list[PromptEntry], tuple[str, ...]]:
    try:
        entries = {entry.id: entry for entry in shipped_prompts()}
    except PromptError as error:
        st.warning(str(error))
        entries = {}

    def words(name: str) -> str:
        entry = entries[name]
        return f"{entry.title} · {KIND_WORDS.get(entry.kind, entry.kind)} · {entry.copying}"

    chosen = st.multiselect(
        "Shipped prompts",
        list(entries),
        default_ids(entries),
        words,
        key="shipped",
        placeholder="Choose shipped prompts",
        help="Title, kind, and how much of the answer can be copied from the prompt (rich, some, none): that is where "
        "prompt lookup takes its drafts from.",
        wrap=True,
        **KEEP,
    )
    text = st.text_area(
        "Your own prompts, with a blank line between two of them",
        key="own",
        height=88,
        placeholder="The river rises in the north, crosses the plain and",
        max_chars=MAX_CHARACTERS,
        **KEEP,
    )
    return [entries[name] for name in chosen if name in entries], own_prompts(text or "")


def default_ids(known: Iterable[str]) -> list[str]:
    """Prompts of a first run: `DEFAULT_PROMPTS`, or the first ones where a set has others."""
    ids = list(known)
    wanted = [name for name in DEFAULT_PROMPTS if name in ids]
    return wanted if len(wanted) == len(DEFAULT_PROMPTS) else ids[: len(DEFAULT_PROMPTS)]


def _model_control() -> str:
    choice: str = st.selectbox("Model", list(MODEL_WORDS), 0, MODEL_WORDS.__getitem__, key="model", **KEEP)
    if choice == FOLDER:
        folder = st.text_input("Folder with safetensors weights", key="folder", placeholder="/path/to/model", **KEEP)
        return (folder or "").strip()
    if is_tiny(choice):
        st.caption(f"Random weights, random text. It reads the last {TINY_CHARACTERS} characters of a shipped prompt.")
    return choice


def row_titles(setup: Setup) -> list[str]:
    """Short names of the rows."""
    own = [prompt_title(text, len(setup.shipped) + number) for number, text in enumerate(setup.own)]
    return [entry.title for entry in setup.shipped] + own
