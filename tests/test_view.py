"""`emssd view`: every file is checked first, the page is complete, and the app starts and ends without a trace."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from emssd import viewing
from emssd.__main__ import main
from emssd.chrome_trace import chrome_trace
from emssd.trace import GenerationTrace
from emssd.ui.library import VIEW_VARIABLE
from tests.recorded import RECORDED, recorded, scripted_run

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def files(tmp_path):
    """The worked example by method."""
    paths = {}
    for method in ("greedy", "vanilla", "packed-input", "ems-sd"):
        paths[method] = tmp_path / f"{method}.json"
        scripted_run(method).to_json(paths[method])
    return paths


@pytest.fixture
def view(capsys, monkeypatch):
    """Run the command in this process; starting the app would fail the test."""
    monkeypatch.setattr(viewing, "serve", lambda *args: pytest.fail("the app was started"))

    def call(*args: object) -> tuple[int, str, str]:
        code = main(["view", *map(str, args)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def refused(result: tuple[int, str, str], *words: str) -> None:
    code, out, err = result
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("emssd: error: ")
    assert err.rstrip().endswith((".", "--help"))
    for word in words:
        assert word in err


def damaged(path: Path, old: str, new: str) -> Path:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"schema":1', '"schema":99', ("schema 99", "update emssd")),
        ('"num_accepted":3', '"num_accepted":4', ("steps[1].rows[0].", "num_accepted")),
        ('"method":"ems-sd"', '"method":"vanilla"', ("method",)),
        ('"created":', '"createt":', ("created is missing",)),
        ('"holes_total":0', '"holes_total":7', ("holes_total",)),
        ('"finished":false', '"finished":"no"', ("steps[0].rows[0].finished",)),
        ('{"schema"', '"schema"', ("Not JSON",)),
    ],
)
def test_a_damaged_file_is_refused_by_file_and_field(view, files, old, new, words):
    refused(view(files["greedy"], damaged(files["ems-sd"], old, new)), "ems-sd.json: ", *words)


def test_files_that_cannot_be_shown(view, files, tmp_path):
    refused(view(tmp_path / "nothing.json"), "nothing.json", "No such file")
    refused(view(tmp_path), "Is a directory")
    refused(view(), "FILE")
    (tmp_path / "empty.json").write_text("")
    refused(view(tmp_path / "empty.json"), "empty.json")
    twice = tmp_path / "again.json"
    twice.write_bytes(files["ems-sd"].read_bytes())
    refused(view(files["ems-sd"], twice), "again.json is a second trace of the method ems-sd")
    other = tmp_path / "other.json"
    next(recorded(path) for path in RECORDED if recorded(path).method == "vanilla").to_json(other)
    refused(view(files["ems-sd"], other), "other.json has other prompts than")
    trace = json.loads(files["ems-sd"].read_text())
    trace["model"]["device"] = "cuda:0"
    other.write_text(json.dumps(trace))
    refused(view(files["greedy"], other), "other.json has another device than")
    trace["steps"] = []
    for row in trace["rows"]:
        row.update(output_token_ids=[], finish_reason=None)
    files["ems-sd"].write_text(json.dumps(trace))
    refused(view(files["ems-sd"]), "ems-sd.json has no steps")


@pytest.mark.parametrize("port", ["0", "-1", "65536", "x", "8501.5"])
def test_a_port_is_a_port(view, files, port):
    refused(view(files["ems-sd"], "--port", port), "--port")


def page_of(text: str) -> dict:
    assert text.startswith("<!doctype html>")
    assert text.endswith("</html>\n")
    return json.loads(re.search(r'<script type="application/json" id="emssd-data">(.*?)</script>', text)[1])


def test_html_writes_a_page_instead_of_starting_the_app(view, files, tmp_path):
    out = tmp_path / "page.html"
    assert view(files["vanilla"], files["ems-sd"], "--html", out) == (0, "", "")
    data = page_of(out.read_text(encoding="utf-8"))
    assert [pane["method"] for pane in data["panes"]] == ["vanilla", "ems-sd"]
    assert not any(pane["speed"] for pane in data["panes"])
    code, text, err = view(files["ems-sd"], "--html", "-")
    assert (code, err) == (0, "")
    assert [pane["method"] for pane in page_of(text)["panes"]] == ["ems-sd"]


def test_greedy_is_the_baseline_of_two_others(view, files):
    _, text, _ = view(files["ems-sd"], files["greedy"], files["vanilla"], "--html", "-")
    panes = page_of(text)["panes"]
    assert [pane["method"] for pane in panes] == ["ems-sd", "vanilla"]
    assert all(pane["speed"] for pane in panes)
    _, text, _ = view(files["greedy"], files["vanilla"], "--html", "-")
    assert [pane["isBaseline"] for pane in page_of(text)["panes"]] == [True, False]
    refused(view(*files.values(), "--html", "-"), "two methods", "vanilla, packed-input, ems-sd")


def test_a_page_that_cannot_be_written(view, files, tmp_path):
    refused(view(files["ems-sd"], "--html", tmp_path / "no" / "page.html"), "Cannot write")


def test_a_timeline_is_written_in_place_of_the_app(view, files, tmp_path):
    out = tmp_path / "timeline.json"
    traces = {name: GenerationTrace.from_json(files[name]) for name in ("vanilla", "ems-sd")}
    assert view(files["vanilla"], files["ems-sd"], "--chrome-trace", out) == (0, "", "")
    assert out.read_text(encoding="utf-8") == chrome_trace(traces)
    code, text, err = view(*files.values(), "--chrome-trace", "-")  # any number of methods
    assert (code, err) == (0, "")
    assert len(json.loads(text)["otherData"]) == len(files)
    page = tmp_path / "page.html"
    assert view(files["ems-sd"], "--html", page, "--chrome-trace", out) == (0, "", "")
    assert "player" in page.read_text(encoding="utf-8")
    refused(view(files["ems-sd"], "--chrome-trace", tmp_path / "no" / "out.json"), "Cannot write")
    refused(view(files["ems-sd"], "--html", "-", "--chrome-trace", "-"), "Only one of --html and --chrome-trace")


def test_what_the_app_needs_is_checked_before_it_starts(files, capsys, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **named: pytest.fail("the app was started"))

    def call(*args: object) -> tuple[int, str, str]:
        code = main(["view", str(files["ems-sd"]), "--no-browser", *map(str, args)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused(call("--port", port), f"Port {port}", "Name another one")
    with monkeypatch.context() as patch:
        patch.setattr(viewing, "APP", files["ems-sd"].parent / "app.py")
        refused(call(), "app.py is not there")
    with monkeypatch.context() as patch:
        patch.setattr(viewing.importlib.util, "find_spec", lambda name: None)
        refused(call(), "streamlit is not installed")
    strange = files["ems-sd"].parent / f"a{os.pathsep}b.json"
    strange.write_bytes(files["ems-sd"].read_bytes())
    code = main(["view", str(strange)])
    refused((code, *capsys.readouterr()), "rename it")


def start(*args: object) -> subprocess.Popen:
    command = [sys.executable, "-m", "emssd", "view", "--no-browser", *map(str, args)]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_hear_ctrl_c
    )


def _hear_ctrl_c() -> None:
    """A job in the background is started deaf to it, and so would be what the tests start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def end(process: subprocess.Popen) -> None:
    """However the test went: the command first, so that it stops its server."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def health(port: int) -> int | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=2) as answer:
            return answer.status
    except OSError:
        return None


def children(process: subprocess.Popen) -> list[int]:
    """Process ids of the server that the command started, where /proc tells."""
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(pid) for pid in listed.read_text().split()] if listed.exists() else []


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "terminated"])
def test_the_app_starts_with_the_files_and_ends_quietly(files, ending):
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    process = start(files["vanilla"], files["ems-sd"], "--port", port)
    try:
        said = process.stdout.readline()
        assert f"http://127.0.0.1:{port}" in said, process.stderr.read() if process.poll() is not None else said
        assert "vanilla.json, ems-sd.json" in said
        assert health(port) == 200
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
            assert b"<html" in answer.read()
        servers = children(process)
        for server in servers:
            environment = Path(f"/proc/{server}/environ").read_bytes().split(b"\0")
            names = os.pathsep.join(str(files[name].resolve()) for name in ("vanilla", "ems-sd"))
            assert f"{VIEW_VARIABLE}={names}".encode() in environment
        process.send_signal(ending)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (0, "", "")
        assert health(port) is None
        assert not [server for server in servers if Path(f"/proc/{server}").exists()]
    finally:
        end(process)


@pytest.mark.browser
def test_the_page_opens_with_the_files(browser, files):
    process = start(files["greedy"], files["vanilla"], files["ems-sd"])
    try:
        address = process.stdout.readline().split()[0]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(address)
        page.locator('[data-testid="player"][data-ready="1"]').wait_for(timeout=60_000)
        panes = [page.get_by_test_id(name).get_attribute("data-method") for name in ("pane-left", "pane-right")]
        assert panes == ["vanilla", "ems-sd"]
        assert "greedy.json, vanilla.json, ems-sd.json" in page.get_by_test_id("player").inner_text()
        page.close()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == ("", "")
    finally:
        end(process)


def test_the_first_free_port_is_taken(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(viewing, "FIRST_PORT", port)
        assert port < viewing._free_port(None) < port + viewing.PORTS_TRIED


def test_a_file_name_may_start_like_anything(view, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("{strange}.json").write_bytes(files["ems-sd"].read_bytes())
    code, text, _ = view("{strange}.json", "--html", "-")
    assert code == 0
    assert page_of(text)["panes"][0]["method"] == "ems-sd"


def test_view_needs_no_torch(files, tmp_path):
    code = (
        "import sys; from emssd.__main__ import main\n"
        f"assert main(['view', {str(files['ems-sd'])!r}, '--html', {str(tmp_path / 'page.html')!r}]) == 0\n"
        "print([name for name in ('torch', 'streamlit', 'plotly', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr
