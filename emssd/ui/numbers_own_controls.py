"""Asking for a model's configuration and for a machine's rates on the page "Numbers", each in a popover of its own.

What a visitor has entered stays, whatever is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import streamlit as st

from emssd.errors import ConfigError
from emssd.machines import PAPER
from emssd.model_config import MAX_CONFIG_BYTES, read_config, shape_from_config
from emssd.ui.notices import warn
from emssd.ui.numbers_own import ENTERED, RATE_TYPES, Rates, is_own, machine_text, model_text
from emssd.ui.numbers_own_files import MAX_CALIBRATION_BYTES, config_name, read_measured
from emssd.ui.token_text import visible

if TYPE_CHECKING:
    from streamlit.elements.lib.mutable_popover_container import PopoverContainer

ASK = "ask"
"""The entry of a chooser that asks for one's own."""
KEPT = 6
"""Own models, and own machines, that a visit's choosers offer again."""
PASTED = "The pasted text"
EXAMPLE = '{"model_type": "llama", "hidden_size": 4096, ...}'
MODEL_NOTE = "Only sizes are read, nothing is loaded. The address carries them, so a link shows the same."
PAPER_NOTE = "The paper’s GPU is known for OPT-6.7B only: with another model, the hardware becomes the A100."
MACHINE_NOTE = (
    "From a data sheet, or a calibration that `emssd doctor --calibrate` kept. The address carries the rates."
)
ENTRIES = {
    "bandwidth": ("Memory bandwidth, GB/s", None),
    "flops": ("FLOP rate, TFLOP/s", None),
    "memory": ("Memory, GB, if known", None),
    "launch": ("Kernel start, µs", 5.0),
    "host": ("Loop’s own work, ms a step", 2.0),
}
"""Rate -> label, and what it begins with."""
UNITS = {"bandwidth": 1e9, "flops": 1e12, "memory": 1e9}
Take = Callable[[str, str], None]


def _key(name: str, part: str) -> str:
    return f"numbers_own_{name}_{part}"


def asks(name: str) -> None:
    """Open the popover of "model" or "hardware"; from a callback."""
    st.session_state[_key(name, "asked")] = True
    st.session_state[_key(name, "open")] = True


def known_own(name: str) -> list[str]:
    """Texts of one's own that a chooser offers: those of this visit, and the one that is chosen."""
    known: list[str] = st.session_state.setdefault(_key(name, "known"), [])
    chosen = st.session_state.get(f"numbers_{name}", "")
    if is_own(chosen) and chosen not in known:
        known.append(chosen)
        del known[:-KEPT]
    return list(known)


def own_model_popover(take: Take) -> None:
    """Ask for a configuration, once it was wanted.

    Args:
        take: told "model" and the text of what was given.
    """
    block = _popover("model", "Own config", ":material/upload_file:")
    if block is None:
        return
    with block:
        st.file_uploader(
            "A model’s config.json", type="json", key=_key("model", "file"), max_upload_size=MAX_CONFIG_BYTES // 2**20
        )
        st.text_area("or its text", key=_key("model", "text"), height=110, placeholder=EXAMPLE)
        _name("model")
        papers = st.session_state["numbers_hardware"] == PAPER
        st.caption(f"{MODEL_NOTE} {PAPER_NOTE}" if papers else MODEL_NOTE)
        _button("model", "Use this model", _model, take)


def own_machine_popover(take: Take) -> None:
    """Ask for a machine's rates, once they were wanted.

    Args:
        take: told "hardware" and the text of what was given.
    """
    block = _popover("hardware", "Own machine", ":material/memory:")
    if block is None:
        return
    with block:
        st.file_uploader(
            "A calibration (JSON)",
            type="json",
            key=_key("hardware", "file"),
            max_upload_size=MAX_CALIBRATION_BYTES // 2**20,
        )
        columns = st.columns(2, gap="small")
        for place, (name, (label, start)) in enumerate(ENTRIES.items()):
            columns[place % 2].number_input(label, value=start, key=_key("hardware", name), format="%g")
        columns[len(ENTRIES) % 2].selectbox("Type of these FLOP", RATE_TYPES, key=_key("hardware", "dtype"))
        _name("hardware")
        st.caption(MACHINE_NOTE)
        _button("hardware", "Use this machine", _rates, take)


def _popover(name: str, label: str, icon: str) -> PopoverContainer | None:
    """A popover that is drawn once it was asked for."""
    if not st.session_state.get(_key(name, "asked")):
        return None
    return st.popover(label, type="tertiary", icon=icon, key=_key(name, "open"), on_change="rerun")


def _name(name: str) -> None:
    st.text_input("Name in charts and files (may be left out)", key=_key(name, "name"), max_chars=40)


def _button(name: str, label: str, read: Callable[[], str], take: Take) -> None:
    def use() -> None:
        """Take what was given; where it cannot be, all of it stays."""
        state = st.session_state
        state[_key(name, "problems")] = []
        try:
            text = read()
        except ConfigError as error:
            state[_key(name, "problems")] = [str(error)]
            return
        state[_key(name, "open")] = False
        take(name, text)

    warn(st.session_state.get(_key(name, "problems"), ()))
    st.button(label, on_click=use, type="primary", key=_key(name, "use"))


def _model() -> str:
    """The text of the model that was given."""
    state = st.session_state
    file, pasted = state.get(_key("model", "file")), state.get(_key("model", "text"), "").strip()
    if (file is None) == (not pasted):
        raise ConfigError("Give a config.json or paste its text" + (", not both." if pasted else "."))
    content, where = (
        (pasted.encode(errors="replace"), PASTED) if file is None else (file.getvalue(), visible(file.name))
    )
    config = read_config(content, where)
    named = state.get(_key("model", "name"), "").strip() or config_name(config, "" if file is None else file.name)
    return model_text(named, shape_from_config(config))


def _rates() -> str:
    """The text of the machine that was given."""
    state = st.session_state
    file, named = state.get(_key("hardware", "file")), state.get(_key("hardware", "name"), "").strip()
    given = {name: state.get(_key("hardware", name)) for name in ENTRIES}
    if file is not None:
        if given["bandwidth"] is not None or given["flops"] is not None:
            raise ConfigError("Give a calibration or enter the rates, not both.")
        title, rates = read_measured(file.getvalue(), visible(file.name))
        return machine_text(named or title, rates)
    for name in ("bandwidth", "flops"):
        if given[name] is None:
            raise ConfigError(f"{ENTRIES[name][0].split(',')[0]} is missing: enter it, or give a calibration.")
    values = {name: float(value or 0) * UNITS.get(name, 1.0) for name, value in given.items()}
    rates = Rates(ENTERED, dtype=state[_key("hardware", "dtype")], **values)
    return machine_text(named or "Own machine", rates)
