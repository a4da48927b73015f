"""`python -m emssd simulate`: tables, JSON, traces, exit codes, bad input."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from emssd import paper_report, simulation
from emssd.__main__ import main
from emssd.config import SPECULATIVE_METHODS
from emssd.trace import GenerationTrace

QUICK = ("simulate", "--batch-sizes", "1,3", "--batches", "4", "--max-new-tokens", "24", "--prompt-mean", "40")


@pytest.fixture
def run(capsys):
    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def test_paper_as_json(run):
    code, out, err = run("simulate", "--paper", "--json", "-")
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert data["labels"] == "swapped"
    assert len(data["points"]) == 31
    assert {"batch", "method", "quantity", "published", "model"} <= set(data["points"][0])
    assert {point["method"] for point in data["points"]} == {"greedy", *SPECULATIVE_METHODS}
    assert {point["batch"] for point in data["points"] if point["flagged"]} == {1}
    for quantity in ("tps", "speedup"):
        points = [point for point in data["points"] if point["quantity"] == quantity]
        assert sum(abs(point["model"] / point["published"] - 1) for point in points) / len(points) <= 0.04
    for name, (low, high) in data["bounds"].items():
        assert low <= data["parameters"][name] <= high
    varlen = {(point["batch"], point["method"]): point["model"] for point in data["varlen"]}
    assert len({round(value, 9) for (batch, _), value in varlen.items() if batch == 1}) == 1  # no padding in one row
    assert "left out" in data["varlen_counts"]
    assert min(value for (_, method), value in varlen.items() if method == "vanilla") > 1
    assert run("simulate", "--paper", "--json", "-")[1] == out
    other = json.loads(run("simulate", "--paper", "--json", "-", "--seed", "7")[1])
    assert other["points"] != data["points"]


@pytest.mark.parametrize("labels", ["swapped", "printed"])
def test_paper_as_text(run, labels, tmp_path):
    code, out, err = run("simulate", "--paper", "--labels", labels, "--json", str(tmp_path / "paper.json"))
    assert (code, err) == (0, "")
    assert json.loads((tmp_path / "paper.json").read_text())["labels"] == labels
    for number in ("79.44", "1321.45", "batch 1*", "0.99", "1.46", "EMS-SD", "never falls below greedy", "Bounds"):
        assert number in out
    assert "are left out here" in out
    assert max(map(len, out.splitlines())) <= 175
    ragged, other = ("948.71", "687.11") if labels == "swapped" else ("687.11", "948.71")
    lines = out.splitlines()
    assert ragged in next(line for line in lines if "Ragged cache only" in line)
    assert other in next(line for line in lines if "Packed input only" in line)


@pytest.mark.parametrize(("labels", "words"), [("swapped", "NOT reproduced"), ("printed", "WORSE")])
def test_paper_exits_1_if_it_gets_worse(run, monkeypatch, labels, words):
    monkeypatch.setattr(paper_report, "LIMIT", 0.01)
    monkeypatch.setattr(paper_report, "SLACK", -0.01)
    code, out, _ = run("simulate", "--paper", "--labels", labels)
    assert code == 1
    assert words in out


def test_the_table(run):
    code, out, err = run(*QUICK)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("Simulated, not measured: opt-6.7b in float16 on NVIDIA A100 80 GB")
    for words in (
        "Speed-up over greedy",
        "Tokens/s",
        "Mean acceptance length",
        "Rows fed in a step",
        "KV slots read",
        "Best number of drafts",
        "vanilla is expected to",
    ):
        assert words in out
    assert any(line.split()[:3] == ["vanilla", "finished", "rows"] for line in lines)
    assert not any(line.split()[:2] == ["ems-sd", "finished"] for line in lines)
    assert max(map(len, lines)) <= 120
    assert run(*QUICK)[1] == out


def test_json_of_the_table(run):
    code, out, _ = run(*QUICK, "--json", "-", "--methods", "greedy,ems-sd", "--kernel", "varlen")
    assert code == 0
    data = json.loads(out)
    assert [(entry["batch"], entry["method"]) for entry in data["runs"]] == [
        (1, "greedy"),
        (1, "ems-sd"),
        (3, "greedy"),
        (3, "ems-sd"),
    ]
    assert data["kernel"] == "varlen"
    assert data["acceptance"]["output_tokens"] == 24
    greedy, ems = data["runs"][2:]
    assert greedy["speedup"] == 1
    assert greedy["input_rows"] == {"useful": 69, "pad": 0, "finished": 0}
    assert greedy["steps"] == 23
    assert ems["tokens_per_second"] == pytest.approx(ems["speedup"] * greedy["tokens_per_second"])
    assert ems["varlen"]["hole"] == ems["per_token"]["prompt_pad"] == 0
    assert list(data["falls_below_greedy"]) == ["ems-sd"]
    assert set(data["best_num_draft_tokens"]) == {"1", "3"}


def test_answers_are_those_of_trying_every_size_and_length(run):
    data = json.loads(run(*QUICK, "--json", "-", "--methods", "vanilla", "--prompt-mean", "900")[1])
    falls = data["falls_below_greedy"]["vanilla"]
    assert falls is not None
    sizes = f"{falls - 1},{falls}"
    around = json.loads(
        run("simulate", "--batch-sizes", sizes, "--batches", "200", "--max-new-tokens", "24", "--json", "-")[1]
    )
    before, at = (entry["speedup"] for entry in around["runs"] if entry["method"] == "vanilla")
    assert before > 0.97
    assert at < 1.03
    assert at < before
    best = data["best_num_draft_tokens"]["3"]["vanilla"]
    tried = [
        json.loads(
            run(
                *("simulate", "--batch-sizes", "3", "--batches", "400", "--max-new-tokens", "24", "--json", "-"),
                *("--methods", "vanilla", "--num-draft-tokens", str(drafts)),
            )[1]
        )["runs"][1]["speedup"]
        for drafts in range(1, 13)
    ]
    assert tried[best - 1] >= 0.99 * max(tried)


def test_recorded_traces_open_in_view(run, tmp_path):
    code, _, err = run(*QUICK, "--record", str(tmp_path / "new" / "traces"))
    assert code == 0
    assert "10 traces written to" in err
    files = sorted((tmp_path / "new" / "traces").iterdir())
    assert [file.name for file in files][:2] == ["batch-1-ems-sd.json", "batch-1-greedy.json"]
    traces = [GenerationTrace.from_json(file) for file in files if file.name.startswith("batch-3")]
    assert {trace.method for trace in traces} == {"greedy", *SPECULATIVE_METHODS}
    pair = [str(file) for file in files if file.name in ("batch-3-vanilla.json", "batch-3-ems-sd.json")]
    assert run("view", *pair, "--html", str(tmp_path / "page.html"))[0] == 0
    assert "player" in (tmp_path / "page.html").read_text(encoding="utf-8")
    quiet = run(*QUICK, "--quiet", "--record", str(tmp_path / "quiet"))
    assert quiet[2] == ""


def test_a_page_of_another_model_and_machine_says_that_its_time_is_the_fixed_models(run, tmp_path):
    machine = ("--hardware", "h100-sxm", "--model-shape", "llama-3-8b", "--record", str(tmp_path))
    assert run(*QUICK, *machine)[0] == 0
    assert run("view", str(tmp_path / "batch-3-ems-sd.json"), "--html", str(tmp_path / "page.html"))[0] == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "llama-3-8b · Modelled time: always OPT-6.7B, paper’s GPU · emssd" in page
    assert "A100" not in page


def test_the_papers_gpu_has_costs_for_one_model_only(run):
    code, out, _ = run(*QUICK, "--hardware", "paper")
    assert code == 0
    assert out.startswith("Simulated, not measured: opt-6.7b in float16 on the paper’s GPU (fitted)")
    assert "Note:" not in out  # its memory is not known
    code, out, err = run(*QUICK, "--hardware", "paper", "--model-shape", "llama-3-8b")
    assert (code, out) == (2, "")
    assert "the paper’s GPU (fitted) are known for OPT-6.7B in float16 only: choose that model, or another" in err
    assert err.count("\n") == 1


def test_a_config_json_gives_the_model(run, tmp_path):
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 128, "vocab_size": 500}))
    code, out, _ = run(*QUICK, "--model-shape", str(tmp_path / "config.json"), "--hardware", "server-cpu-2-cores")
    assert code == 0
    assert "config in bfloat16" in out


def test_a_model_that_does_not_fit_is_noted(run):
    code, out, _ = run(*QUICK, "--model-shape", "opt-66b")
    assert code == 0
    assert "Note: The weights" in out
    assert "need" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hit-rate", "1.5"], "hit_rate must be a number from 0 to 1, not 1.5"),
        (["--token-rate", "nan"], "token_rate must be a number from 0 to 1, not nan"),
        (["--hit-rate", "x"], "invalid float value"),
        (["--batch-sizes", "0"], "batch_sizes must be a whole number from 1 to 256, not 0"),
        (["--batch-sizes", "1,b"], "not 'b'"),
        (["--batch-sizes", ","], "for example 1,4,16"),
        (["--batch-sizes", "9" * 30], "batch_sizes must be a whole number"),
        (["--batches", "0"], "batches must be a whole number from 1 to 10000, not 0"),
        (["--methods", "ems-sd,fast"], "Unknown method 'fast'"),
        (["--hardware", "h1000"], "'h1000' is not known: choose one of a100-80gb"),
        (["--model-shape", "gpt-9"], "'gpt-9' is neither a file nor known"),
        (["--kernel", "flash"], "kernel must be one of per_token, varlen"),
        (["--seed", "-1"], "seed must be a whole number from 0"),
        (["--labels", "printed"], "--labels goes with --paper only"),
        (["--paper", "--labels", "both"], "labels must be one of swapped, printed"),
        (["--paper", "--hit-rate", "0.5"], "--hit-rate does not go with --paper"),
        (["--paper", "--max-new-tokens", "5"], "--max-new-tokens does not go with --paper"),
        (["--paper", "--seed", "-1"], "seed must be a whole number from 0"),
        (["--json", "/nowhere/x.json"], "Cannot write /nowhere/x.json"),
        (["--max-new-tokens", "0"], "error: --max-new-tokens must be a whole number from 1 to 1024, not 0"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run, arguments, message):
    code, out, err = run("simulate", *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err


def test_a_config_that_is_no_json_and_a_folder_that_is_a_file(run, tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{")
    code, out, err = run("simulate", "--model-shape", str(path))
    assert (code, out) == (2, "")
    assert "is not JSON" in err
    code, out, err = run(*QUICK, "--record", str(path))
    assert (code, out) == (2, "")
    assert "Name a folder" in err


def test_ctrl_c_leaves_with_130(run, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "count_batches", interrupted)
    code, out, err = run(*QUICK)
    assert (code, out) == (130, "")
    assert err.count("\n") == 1


def test_nothing_heavy_is_loaded():
    code = f"""
import sys
from emssd.__main__ import main
assert main({list(QUICK)!r}) == 0
print([name for name in ("torch", "transformers", "streamlit", "plotly", "matplotlib") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert done.stderr == ""  # no bar where stderr is no terminal
