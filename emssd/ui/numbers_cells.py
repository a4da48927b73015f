"""The modelled steps as cells: a small simulated batch that opens in the player."""

from __future__ import annotations

import streamlit as st

from emssd.acceptance import Acceptance
from emssd.config import METHOD_TITLES
from emssd.errors import ConfigError
from emssd.simulator import simulate
from emssd.ui.frame import explore_page
from emssd.ui.library import TraceSet
from emssd.ui.notices import warn
from emssd.ui.numbers_model import EVERY
from emssd.ui.numbers_own import is_own
from emssd.ui.numbers_settings import Settings
from emssd.ui.numbers_words import model_title

ROWS, PROMPT, OUTPUT = 4, 14, 32
"""Of the simulated batch: at most so many rows; tokens of a mean prompt and of each output, so that cells are seen."""
SEED = 1


def small(settings: Settings) -> tuple[Acceptance, int]:
    """The settings' rows with short prompts and outputs, and how many of them; the spread keeps its share."""
    mean = min(PROMPT, settings.mean)
    spread = settings.spread * mean / settings.mean
    acceptance = settings.acceptance.with_settings(
        prompt_mean=float(mean), prompt_sd=spread, prompt_min=2, prompt_max=4 * PROMPT, output_tokens=OUTPUT
    )
    return acceptance, min(settings.batch, ROWS)


def simulated_set(settings: Settings) -> TraceSet:
    """A simulated batch of every method.

    Raises:
        ConfigError: the model is too small for it.
    """
    acceptance, rows = small(settings)
    name = model_title(settings.model) if is_own(settings.model) else settings.model
    traces = simulate(acceptance, rows, EVERY, SEED, settings.shape, name)
    note = (
        f"Simulated, not decoded: {rows} invented rows with the drafts and prompts set on the page Numbers. "
        f"Prompts are shortened to {acceptance.prompt_mean:.0f} tokens on average and outputs to {OUTPUT}, so that "
        f"cells can be seen. Texts are random words; the layouts are the real ones of {', '.join(_titles())}."
    )
    titles = tuple(f"row {row}" for row in range(rows))
    title = f"Simulated: {model_title(settings.model)}, {settings.hit:g} % found, K = {settings.length}"
    return TraceSet("opened", title, note, traces, titles, "")


def _titles() -> list[str]:
    return [METHOD_TITLES[name] for name in EVERY]


def cells_button(settings: Settings) -> None:
    """Simulate a small batch and go to the player."""
    words = "A small simulated batch with these drafts and prompts opens in the player."
    if not st.button("See it as cells", icon=":material/grid_on:", type="tertiary", key="numbers_cells", help=words):
        return
    from emssd.ui.explore import open_set

    try:
        open_set(simulated_set(settings))
    except ConfigError as error:
        warn([str(error)])
        return
    st.switch_page(explore_page())
