"""The card of measured points: results of `emssd bench`, recorded ones or a visitor's own, over the modelled lines."""

from __future__ import annotations

import html

import streamlit as st

from emssd.errors import ConfigError
from emssd.ui.notices import warn
from emssd.ui.numbers_card import head, plot
from emssd.ui.numbers_measured import MAX_BYTES, RECORDED, BenchFile, read_bench

COMMAND = "python -m emssd bench --compare-model --json results.json"


@st.cache_resource(max_entries=1, show_spinner=False)
def _recorded(changed: float) -> BenchFile:
    """The results that come with the project; read again where the file's time of change is another one."""
    return read_bench(RECORDED.read_bytes(), RECORDED.name)


def measured_card(dark: bool) -> None:
    """Draw the card."""
    from emssd.ui.numbers_measured_chart import measured

    results = shown_results()
    if problem := _recorded_problem():
        warn([problem])
    note = "points and quartiles measured, lines modelled for the very same runs"
    head("Measured over modelled", note if results else "results of a benchmark on your own machine")
    if results is not None:
        choice = _choice(results)
        plot(measured(results.points[choice], dark), "measured")
        st.html(f'<p class="note" data-testid="measured">{html.escape(_words(results, choice))}</p>')
    else:
        st.html(f'<p class="note">Measure with <code>{COMMAND}</code> and open its file here.</p>')
    with st.popover("Open results", type="tertiary", icon=":material/folder_open:", key="numbers_open_bench"):
        st.file_uploader(
            "Results of a benchmark (JSON)",
            type="json",
            key="numbers_bench_file",
            max_upload_size=MAX_BYTES // 2**20,
            on_change=_open,
        )
    warn(st.session_state.get("numbers_bench_problems", ()))


def _open() -> None:
    """Take over an uploaded file; where it is bad the results on show stay."""
    state = st.session_state
    file, state["numbers_bench_problems"] = state.get("numbers_bench_file"), []
    if file is None:
        return
    try:
        state["numbers_bench"] = read_bench(file.getvalue(), file.name)
    except ConfigError as error:
        state["numbers_bench_problems"] = [str(error)]


def shown_results() -> BenchFile | None:
    """The visitor's results, or the recorded ones; None without any."""
    own: BenchFile | None = st.session_state.get("numbers_bench")
    if own is not None or not RECORDED.exists() or _recorded_problem():
        return own
    return _recorded(RECORDED.stat().st_mtime)


def _recorded_problem() -> str:
    """Why the recorded results cannot be read, in a sentence."""
    try:
        if RECORDED.exists():
            _recorded(RECORDED.stat().st_mtime)
    except (ConfigError, OSError) as error:
        return str(error)
    return ""


def _choice(results: BenchFile) -> tuple[str, str]:
    """Prompt set and drafter."""
    choices = list(results.points)
    if st.session_state.get("numbers_bench_choice") not in choices:
        st.session_state["numbers_bench_choice"] = choices[0]
    if len(choices) == 1:
        return choices[0]
    chosen: tuple[str, str] = st.selectbox(
        "Prompts and drafter",
        choices,
        format_func=", ".join,
        key="numbers_bench_choice",
        label_visibility="collapsed",
    )
    return chosen


def _words(results: BenchFile, choice: tuple[str, str]) -> str:
    error = results.mean_error(choice)
    model = "no model in this file" if error is None else f"modelled speed-ups off by {100 * error:.2g} % on average"
    return f"{', '.join(choice)}: {model}. Measured on {results.where}; not comparable with the paper’s GPU numbers."
