"""`view`: traces from files in the app, or as a page of their own. All files are checked before anything starts."""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from emssd.chrome_trace import chrome_trace
from emssd.config import BASELINE
from emssd.errors import ConfigError, TraceError
from emssd.result_files import STDOUT, check_target, write_text
from emssd.trace import GenerationTrace, write_text_atomically

APP = Path(__file__).resolve().parents[1] / "app.py"
HOST = "127.0.0.1"
FIRST_PORT, PORTS_TRIED = 8501, 20
SECONDS_TO_START = 120.0
SECONDS_TO_STOP = 10.0


def view_command(args: argparse.Namespace) -> int:
    """Open traces in the browser until Ctrl-C, or write `args.html` and `args.chrome_trace` instead; 0 in all cases.

    Raises:
        TraceError: a file is not a valid trace, or the files do not belong together.
        ConfigError: the app cannot be started.
    """
    targets = [target for target in (args.html, args.chrome_trace) if target is not None]
    if targets.count(STDOUT) > 1:
        raise ConfigError('Only one of --html and --chrome-trace can be "-": name a file for the other.')
    for target in targets:
        check_target(target)
    traces = read_traces([Path(name) for name in args.files])
    if args.html is not None:
        write_page(traces, args.html)
    if args.chrome_trace is not None:
        write_text(args.chrome_trace, chrome_trace(traces))
    if targets:
        return 0
    with suppress_interrupt():
        serve(list(map(Path, args.files)), args.port, not args.no_browser)
    return 0


def read_traces(paths: Sequence[Path]) -> dict[str, GenerationTrace]:
    """Traces of the same prompts, model and limits by method, in the order of the files.

    Raises:
        TraceError: names the file, and the field where one is wrong.
    """
    from emssd.ui.comparison import other_run

    traces: dict[str, GenerationTrace] = {}
    first: GenerationTrace | None = None
    for path in paths:
        try:
            trace = GenerationTrace.from_json(path)
        except TraceError as error:
            raise TraceError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
        if not trace.steps:
            raise TraceError(f"{path} has no steps, so there is nothing to show.")
        if trace.method in traces:
            raise TraceError(f"{path} is a second trace of the method {trace.method}: give one file of each method.")
        first = first or trace
        if what := other_run(first, trace):
            raise TraceError(
                f"{path} has {what} than {paths[0]}: only runs of the same prompts on the same model are compared."
            )
        traces[trace.method] = trace
    return traces


# --- a page of its own ---------------------------------------------------------------------------------------------


def write_page(traces: dict[str, GenerationTrace], target: str) -> None:
    """Write the stand-alone page to a file, or to stdout where `target` is "-".

    Raises:
        ConfigError: more methods than the page can show.
        TraceError: a run is too large to play, or the file cannot be written.
    """
    from emssd.ui.html_export import method_title, row_titles, standalone_from_traces

    panes = page_panes(list(traces))
    title = " and ".join(method_title(name) for name in panes)
    page = standalone_from_traces(traces, panes, row_titles(traces[panes[0]]), title)
    if target != "-":
        write_text_atomically(Path(target), page)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(page.encode("utf-8"))  # whatever the terminal's encoding is
    sys.stdout.buffer.flush()


def page_panes(methods: Sequence[str]) -> list[str]:
    """The methods to show side by side: all of up to two, else those that greedy is the baseline of.

    Raises:
        ConfigError: more than two are left.
    """
    shown = list(methods) if len(methods) <= 2 else [name for name in methods if name != BASELINE]
    if len(shown) > 2:
        raise ConfigError(
            f"--html shows two methods side by side, and {', '.join(shown)} are {len(shown)}: "
            f"give two of them (and {BASELINE} as their baseline, if you like)."
        )
    return shown


# --- the app -------------------------------------------------------------------------------------------------------


def serve(paths: Sequence[Path], port: int | None, browser: bool) -> None:
    """Run the app with these files until it is interrupted; nothing is left running.

    Args:
        paths: checked trace files.
        port: where it listens on this machine; None takes the first free one from `FIRST_PORT`.
        browser: whether to open a browser.

    Raises:
        ConfigError: there is no app, no streamlit, no free port, or the app ends by itself.
    """
    _check_app()
    port = _free_port(port)
    command = [sys.executable, "-m", "streamlit", "run", str(APP), "--logger.level=warning"]
    command += [f"--server.port={port}", f"--server.address={HOST}", *([] if browser else ["--server.headless=true"])]
    process = subprocess.Popen(command, cwd=APP.parent, env=_environment(paths), stdout=subprocess.DEVNULL)
    try:
        _wait_until_it_answers(process, port)
        print(f"http://{HOST}:{port} shows {', '.join(path.name for path in paths)}. Ctrl-C ends it.", flush=True)
        process.wait()
        raise ConfigError(f"The app ended by itself (exit code {process.returncode}); its messages are above.")
    finally:
        _stop(process)


@contextmanager
def suppress_interrupt() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the block quietly."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_app() -> None:
    if not APP.is_file():
        raise ConfigError(
            f"The app runs from a checkout, and {APP} is not there: use --html OUT, or clone the project."
        )
    if importlib.util.find_spec("streamlit") is None:
        raise ConfigError("streamlit is not installed: run `make setup`, or `pip install -e .` in the checkout.")


def _environment(paths: Sequence[Path]) -> dict[str, str]:
    from emssd.ui.library import VIEW_VARIABLE

    names = [str(path.resolve()) for path in paths]
    for name in names:
        if os.pathsep in name:
            raise ConfigError(f"{name} has {os.pathsep!r} in its name, which separates files: rename it.")
    return {**os.environ, VIEW_VARIABLE: os.pathsep.join(names)}


def _free_port(wanted: int | None) -> int:
    candidates = range(FIRST_PORT, FIRST_PORT + PORTS_TRIED) if wanted is None else (wanted,)
    for port in candidates:
        with socket.socket() as place:
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                place.bind((HOST, port))
            except OSError:
                continue
            return port
    if wanted is None:
        raise ConfigError(f"Ports {candidates[0]} to {candidates[-1]} are all in use: name a free one with --port.")
    raise ConfigError(f"Port {wanted} cannot be used: it is taken or not allowed. Name another one with --port.")


def _wait_until_it_answers(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < until:
        if process.poll() is not None:
            raise ConfigError(f"The app did not start (exit code {process.returncode}); its messages are above.")
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/_stcore/health", timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise ConfigError(f"The app did not answer on port {port} within {SECONDS_TO_START:.0f} seconds.")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
