"""The controls of the page "Numbers": hardware, kernel, costs, drafts, prompts. Their state is a `Settings`."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import asdict, replace

import streamlit as st

from emssd.expected_speeds import LONGEST_DRAFT
from emssd.machines import PAPER, THIS_MACHINE, machines
from emssd.ui.numbers_own import is_own
from emssd.ui.numbers_own_controls import ASK, asks, known_own, own_machine_popover, own_model_popover
from emssd.ui.numbers_settings import (
    BATCHES,
    FREE_ROW,
    KERNELS,
    LABELS,
    LONGEST_PROMPT,
    WIDEST_SPREAD,
    Costs,
    Settings,
    cost_range,
    default_settings,
    dtype_of,
    least_cost,
    machine_of,
    models_for,
    shape_of,
    start_costs,
)
from emssd.ui.numbers_words import figures, model_title, room_words, sizes

PREFIX = "numbers_"
KERNEL_NOTES = {
    "per_token": "KV re-read per token, two launches",
    "varlen": "KV read once per row, one launch",
}
SPREAD_NOTE = "Equal prompts: input padding dominates. Spread prompts: prompt padding does."
DRAFTS_NOTE = "Found: by a row in a step. Accepted: of drafts behind accepted ones."
FITTED_NOTE = "Fitted to the paper’s table; no GPU is named there."
ONE_MODEL_NOTE = "Other models: choose other hardware."
OWN_CONFIG, OWN_MACHINE = "Own config…", "Own machine…"
FIRST_OTHER = "a100-80gb"
"""The machine that takes the place of the paper's GPU where a model of one's own is given."""
DATA_SHEET_NOTE = "From the data sheet; kernel starts and the loop’s own work are assumed."
MEASURED_NOTE = "From rates measured here with large products; real layers are slower."
OWN_NOTE = "From the machine’s rates; nothing was measured with this model."
COST_LABELS = {
    "fixed": ("Weights and launch", "ms"),
    "row": ("Per row fed", "ms"),
    "slot": ("Per slot read", "µs"),
}


def _key(name: str) -> str:
    return PREFIX + name


def put(settings: Settings) -> None:
    """Set all controls; before they are drawn, or from a callback."""
    values = asdict(settings)
    costs = values.pop("costs")
    for name, value in {**values, **costs}.items():
        st.session_state[_key(name)] = value


def get() -> Settings:
    """What the controls say; one that is not drawn keeps what it said."""
    state = st.session_state
    if _key("labels") not in state:
        state[_key("labels")] = state["numbers"].labels
    values = {name: st.session_state[_key(name)] for name in Settings.__dataclass_fields__ if name != "costs"}
    costs = {name: float(st.session_state[_key(name)]) for name in Costs.__dataclass_fields__}
    return Settings(**values, costs=Costs(**costs))


def _derive() -> None:
    """Another machine or model brings its own costs; drafts and prompts stay. Asking for one's own changes nothing."""
    state = st.session_state
    for name in ("hardware", "model"):
        if state[_key(name)] == ASK:
            asks(name)
            state[_key(name)] = getattr(state["numbers"], name)
            return
    now = get()
    known = models_for(now.hardware)
    kept = now.model in known or (now.hardware != PAPER and is_own(now.model))
    now = replace(now, model=now.model if kept else known[0])
    st.session_state[_key("model")] = now.model
    for name, value in asdict(start_costs(now.hardware, now.model, now.labels)).items():
        st.session_state[_key(name)] = value


def _reset() -> None:
    kept = get()
    start = default_settings(kept.hardware, kept.model, kept.labels)
    put(replace(start, kernel=kept.kernel, batch=kept.batch))


def controls(save: Callable[[Settings], None]) -> Settings:
    """Draw the controls.

    Args:
        save: draws the button beside "Reset to fit".
    """
    _heading("Hardware")
    hardware, model = _machine()
    _segments("Kernel", "kernel", KERNELS)
    _note(KERNEL_NOTES[st.session_state[_key("kernel")]])
    _heading("Step cost")
    _costs(hardware, model)
    _heading("Drafts")
    _slider("hit", "Draft found", 0.0, 100.0, 0.1, "%")
    _slider("token", "Each draft accepted", 0.0, 100.0, 0.1, "%")
    _slider("length", "Draft length", 1, LONGEST_DRAFT, 1, "tokens")
    _note(DRAFTS_NOTE)
    _heading("Prompts")
    _slider("mean", "Mean length", 1, LONGEST_PROMPT, 1, "tokens")
    _slider("spread", "Spread (sd)", 0, WIDEST_SPREAD, 1, "tokens")
    _note(SPREAD_NOTE)
    if words := room_words(get()):
        _note(words)
    if hardware == PAPER:
        _heading("Paper’s ablation rows")
        _segments("Paper’s ablation rows", "labels", LABELS)
    with st.container(horizontal=True, key="numbers_buttons"):
        words = "Reset to fit" if hardware == PAPER else "Reset"
        st.button(words, on_click=_reset, key="numbers_reset")
        settings = get()
        save(settings)
    return settings


def _take(name: str, text: str) -> None:
    """Choose a model or machine of one's own; the paper's GPU gives way to one that has costs for every model."""
    st.session_state[_key(name)] = text
    if name == "model" and st.session_state[_key("hardware")] == PAPER:
        st.session_state[_key("hardware")] = FIRST_OTHER
    _derive()


def _machine() -> tuple[str, str]:
    def title(name: str) -> str:
        return OWN_MACHINE if name == ASK else machine_of(name, "hidden").title

    def model_words(name: str) -> str:
        return OWN_CONFIG if name == ASK else model_title(name)

    named = [*machines(), *known_own("hardware"), ASK]
    hardware = st.selectbox(
        "Hardware", named, 0, title, _key("hardware"), on_change=_derive, label_visibility="collapsed"
    )
    own_machine_popover(_take)
    models = [*models_for(hardware), *(known_own("model") if hardware != PAPER else ()), ASK]
    model = st.selectbox(
        "Model", models, 0, model_words, _key("model"), on_change=_derive, label_visibility="collapsed"
    )
    own_model_popover(_take)
    if hardware == PAPER:
        _note(ONE_MODEL_NOTE)
    machine = machine_of(hardware, get().labels)
    _note(f"{figures(machine)}, {model_title(model)} {dtype_of(machine)}")
    if is_own(model):
        _note(sizes(shape_of(model)))
    _note(machine.source, "source")
    return hardware, model


def _costs(hardware: str, model: str) -> None:
    starts = asdict(start_costs(hardware, model, get().labels))
    for name, (label, unit) in COST_LABELS.items():
        end, step = cost_range(starts[name], FREE_ROW)
        st.session_state[_key(name)] = min(float(st.session_state[_key(name)]), end)
        _slider(name, label, least_cost(name, starts[name]), end, step, unit)
    if hardware == PAPER:
        _note(FITTED_NOTE)
    else:
        measured = MEASURED_NOTE if hardware == THIS_MACHINE else DATA_SHEET_NOTE
        _note(OWN_NOTE if is_own(hardware) else measured)


def _slider(name: str, label: str, low: float, high: float, step: float, unit: str) -> None:
    """A slider whose value stands behind its label, where it is read without a search for the thumb."""
    value = st.session_state[_key(name)]
    text = f"{value:.3g}" if isinstance(value, float) else f"{value}"
    shown = "%.3g" if isinstance(value, float) else "%d"
    behind = f" {unit}" if unit else ""
    st.slider(
        f"{label} **{text}{behind}**",
        low,
        high,
        step=step,
        format=f"{shown}{behind.replace('%', '%%')}",
        key=_key(name),
    )


def _segments(label: str, name: str, words: dict[str, str]) -> None:
    st.segmented_control(
        label,
        list(words),
        format_func=words.__getitem__,
        required=True,
        key=_key(name),
        label_visibility="collapsed",
        width="stretch",
    )


def batch_control() -> None:
    """Which batch is taken apart; drawn among the charts."""
    st.segmented_control(
        "Batch", BATCHES, required=True, key=_key("batch"), label_visibility="collapsed", width="content"
    )


def picture_control() -> None:
    """The kind of file that the charts' cameras save."""
    st.segmented_control(
        "Pictures saved as",
        ("png", "svg"),
        format_func=lambda name: f"Pictures as {name.upper()}" if name == "png" else name.upper(),
        default="png",
        required=True,
        key=_key("picture"),
        persist_state="session",
        label_visibility="collapsed",
    )


def _heading(words: str) -> None:
    st.html(f'<h3 class="n-head">{words}</h3>')


def _note(words: str, more: str = "") -> None:
    st.html(f'<p class="n-note {more}">{html.escape(words)}</p>')
