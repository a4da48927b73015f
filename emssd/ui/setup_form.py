"""The controls of a run: prompts, method pair, lengths, drafter and model. A refused run loses nothing typed here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import streamlit as st

from emssd.config import METHOD_TITLES, SPECULATIVE_METHODS
from emssd.errors import PromptError
from emssd.prompts import PromptEntry, default_prompts, parse_prompts
from emssd.ui.library import prompt_title
from emssd.ui.method_style import method_words
from emssd.ui.models import EMBEDDED, FOLDER, MODEL_WORDS, TINY, TINY_CHARACTERS, is_tiny
from emssd.ui.narration import plural
from emssd.ui.notices import unformatted, warn
from emssd.ui.token_text import visible

METHOD_CHOICES = ("greedy", *SPECULATIVE_METHODS)
SOURCES = {
    "prompt": "lookup in the prompt",
    "context": "lookup in prompt and context",
    "draft-model": "a draft model …",
    "none": "none, plain decoding",
}
DEFAULT_PROMPTS = ("harbour-bridge", "server-settings", "capitals", "tide-pool")
"""Three rows that copy richly and one that hardly does: the batch becomes ragged at once."""
KIND_WORDS = {"answer-from-document": "answer", "free-writing": "writing", "edit-code": "code"}
DEFAULT_NEW_TOKENS = 48
KEEP: dict[str, Any] = {"persist_state": "session"}
MAX_ROWS = 16
MAX_DRAFTS = 16
MAX_NEW_TOKENS = 256
MAX_CHARACTERS = 40_000
MAX_PROMPT_FILE_MB = 1
TOP_TOKENS = 4
"""Of the target, kept for each judged position where the visitor wants to see why drafts are rejected."""


@dataclass(frozen=True)
class Setup:
    """What the controls say: `own` are typed prompts, `filed` are those of uploaded files."""

    shipped: tuple[PromptEntry, ...]
    own: tuple[str, ...]
    left: str
    right: str
    num_draft_tokens: int
    max_new_tokens: int
    source: str
    model: str
    draft_model: str = ""
    filed: tuple[str, ...] = ()
    num_top_tokens: int = 0

    @property
    def rows(self) -> int:
        """Rows of the batch."""
        return len(self.shipped) + len(self.own) + len(self.filed)

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
        if self.source == "draft-model" and not self.draft_model:
            return f"Give the draft model: a local folder, {EMBEDDED} or {TINY}."
        return None

    def headline(self) -> str:
        """One line for the folded controls."""
        drafts = "no drafts" if self.source == "none" else plural(self.num_draft_tokens, "draft")
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
        shipped, own, filed = _prompt_controls()
    first, second, third = settings.columns(3, gap="small")
    left = first.selectbox("Left method", METHOD_CHOICES, 1, _method_words, key="left", **KEEP)
    right = second.selectbox("Right method", METHOD_CHOICES, 4, _method_words, key="right", **KEEP)
    with third:
        source, draft_model = _drafter_controls()
    first, second, third = settings.columns(3, gap="small")
    length = "Draft tokens per row and step. 0 is plain decoding."
    drafts = first.number_input(
        "Draft length", 0, MAX_DRAFTS, 7, key="drafts", help=length, disabled=source == "none", **KEEP
    )
    tokens = second.number_input("New tokens per row", 1, MAX_NEW_TOKENS, DEFAULT_NEW_TOKENS, key="tokens", **KEEP)
    with third:
        model = _model_control()
    why = settings.toggle(
        "Record why drafts are rejected",
        key="why_rejected",
        help=f"Keeps the target’s {TOP_TOKENS} best tokens at every judged position, for the cards of the player. It "
        "takes a few percent of a step, and more where more is judged: leave it off to compare speeds.",
        **KEEP,
    )
    return Setup(
        shipped=tuple(shipped),
        own=own,
        left=left,
        right=right,
        num_draft_tokens=int(drafts),
        max_new_tokens=int(tokens),
        source=source,
        model=model,
        draft_model=draft_model,
        filed=filed,
        num_top_tokens=TOP_TOKENS if why else 0,
    )


def _method_words(name: str) -> str:
    return method_words(name, METHOD_TITLES[name])


def _prompt_controls() -> tuple[list[PromptEntry], tuple[str, ...], tuple[str, ...]]:
    try:
        entries = {entry.id: entry for entry in shipped_prompts()}
    except PromptError as error:
        warn([str(error)])
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
    return [entries[name] for name in chosen if name in entries], own_prompts(text or ""), _file_control()


def _file_control() -> tuple[str, ...]:
    """Prompts of uploaded files. They stay until they are taken away, also when other pages were looked at."""
    state = st.session_state
    filed: tuple[str, ...] = state.get("filed_prompts", ())
    with st.container(horizontal=True, vertical_alignment="center", key="prompt_files_row"):
        with st.popover("From a file", icon=":material/folder_open:"):
            st.file_uploader(
                "A .txt file with one prompt a line, or a .jsonl file with “prompt” or “turns” in each line",
                type=["txt", "jsonl"],
                accept_multiple_files=True,
                key="prompt_files",
                max_upload_size=MAX_PROMPT_FILE_MB,
                on_change=_read_prompt_files,
            )
        if filed:
            st.button(
                f"Take away {plural(len(filed), 'prompt')} of {unformatted(state['filed_names'])}",
                icon=":material/close:",
                type="tertiary",
                on_click=_drop_prompt_files,
                key="drop_files",
            )
    warn(state.get("file_problems", ()))
    return filed


def _read_prompt_files() -> None:
    """The prompts of the newly uploaded files take the place of the former ones, unless none of them is good."""
    state = st.session_state
    files = state.get("prompt_files") or []
    prompts: list[str] = []
    names: list[str] = []
    problems: list[str] = []
    for file in files:
        good, bad = parse_prompts(file.getvalue(), file.name)
        prompts += good
        names += [file.name] if good else []
        problems += [visible(problem) for problem in bad]
    state["file_problems"] = problems
    if prompts:
        state["filed_prompts"] = tuple(prompts)
        state["filed_names"] = visible(", ".join(names))


def _drop_prompt_files() -> None:
    st.session_state.update(filed_prompts=(), filed_names="", file_problems=[])


def default_ids(known: Iterable[str]) -> list[str]:
    """Prompts of a first run: `DEFAULT_PROMPTS`, or the first ones where a set has others."""
    ids = list(known)
    wanted = [name for name in DEFAULT_PROMPTS if name in ids]
    return wanted if len(wanted) == len(DEFAULT_PROMPTS) else ids[: len(DEFAULT_PROMPTS)]


def _drafter_controls() -> tuple[str, str]:
    lookup = (
        "Prompt lookup copies what followed the last two tokens where they occurred before. A draft model is a smaller "
        "model with the same tokenizer."
    )
    source: str = st.selectbox("Drafter", list(SOURCES), 0, SOURCES.__getitem__, key="source", help=lookup, **KEEP)
    if source != "draft-model":
        return source, ""
    name = st.text_input("Draft model", key="draft_model", placeholder=f"{EMBEDDED}, {TINY} or /path/to/model", **KEEP)
    return source, (name or "").strip()


def _model_control() -> str:
    choice: str = st.selectbox("Model", list(MODEL_WORDS), 0, MODEL_WORDS.__getitem__, key="model", **KEEP)
    if choice == FOLDER:
        folder = st.text_input("Folder with safetensors weights", key="folder", placeholder="/path/to/model", **KEEP)
        return (folder or "").strip()
    if is_tiny(choice):
        st.caption(f"Random weights, random text. It reads the last {TINY_CHARACTERS} characters of a shipped prompt.")
    return choice


def row_titles(setup: Setup) -> list[str]:
    """Short names of the rows: shipped prompts, typed ones, those of files."""
    texts = [*setup.own, *setup.filed]
    own = [prompt_title(text, len(setup.shipped) + number) for number, text in enumerate(texts)]
    return [entry.title for entry in setup.shipped] + own
