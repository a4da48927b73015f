"""The command `bench`: what it prints and writes, its exit codes, and one clear sentence for what goes wrong."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emssd import benching
from emssd.__main__ import main
from emssd.acceptance_replay import trace_lengths
from emssd.bench_model import Crossing, ModelComparison
from emssd.bench_state import FILE_NAME, read_state
from emssd.benchmark import Benchmark
from emssd.cost_model import CostModel
from emssd.oracle import Difference
from emssd.step_counts import StepCounts
from emssd.trace import GenerationTrace
from tests.commands import Result, Run, refused

PROMPTS = ("to be or not to be", "abcabcabc", "once upon a time", "what is what")
SMALL = ("--model", "random-llama", "--max-new-tokens", "5", "--repeats", "1", "--batch-sizes", "1,2")
DRAFTS = ("--ngram-size", "1", "--lookup", "context", "--num-draft-tokens", "3")
FEW = ("--methods", "ems-sd", "--no-transformers")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run `bench` in this process, on a file of prompts where none are given."""
    file = tmp_path / "mine.txt"
    file.write_text("\n".join(PROMPTS))

    def call(*args: str | Path) -> Result:
        given = () if {"--prompts", "--random-weights"} & set(map(str, args)) else ("--prompts", str(file))
        code = main(["bench", *given, *(str(arg) for arg in args)])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


def test_a_table_and_every_file(run: Run, tmp_path: Path) -> None:
    out, png = tmp_path / "new" / "out", tmp_path / "f.png"
    result = run(
        *SMALL, *DRAFTS, "--prompts", tmp_path / "mine.txt", "--prompts", "copy_poor", "--out", out, "--figure", png
    )
    assert result.code == 0, result
    for words in ("random-llama: 2 mine.txt prompts, 2 copy-poor prompts", "mine.txt, drafter prompt-lookup"):
        assert words in result.out
    data = json.loads((out / "results.json").read_text())
    points = {(p["prompts"], p["batch"], p["method"], p["drafter"]): p for p in data["points"]}
    assert len(points) == 2 * (8 + 6)
    assert points["copy-poor", 2, "ems-sd", "prompt-lookup"]["rows"] == 2
    assert points["mine.txt", 1, "transformers", "none"]["speed_up"]["median"] > 0
    assert all(point["differences"] == point["near_ties"] == [] for point in points.values())
    rows = list(csv.DictReader(io.StringIO((out / "results.csv").read_text())))
    assert [float(row["speed_up_median"]) for row in rows] == [p["speed_up"]["median"] for p in data["points"]]
    assert (out / "figure.svg").read_text().count("<svg") == 1
    assert png.read_bytes()[:4] == b"\x89PNG"
    assert (out / "results.md").read_text().count("| ems-sd |") == 2
    assert len(read_state(out / FILE_NAME).repeats("mine.txt", 2)) == 1


@pytest.mark.parametrize(("option", "begins"), [("--json", "{"), ("--csv", "prompts,batch"), ("--markdown", "random")])
def test_one_form_can_be_printed_alone(run: Run, option: str, begins: str) -> None:
    result = run(*SMALL, *DRAFTS, *FEW, option, "-")
    assert result.code == 0
    assert result.out.startswith(begins)
    assert "speed-up over greedy (padded" not in result.out
    if option == "--json":
        assert json.loads(result.out)["baseline"] == "greedy"


def test_batches_larger_than_the_prompts_say_so(run: Run) -> None:
    result = run(*SMALL[:-1], "8", *DRAFTS, *FEW)
    assert result.code == 0
    assert "Batch 8: 4 mine.txt prompts fill 8 rows, some of them more than once." in result.out
    assert "Batch 8: 4 of 8 mine.txt rows copy another row of their batch, and copies are never ragged." in result.out


def test_a_batch_of_copies_is_warned_of_and_recorded(run: Run, tmp_path: Path) -> None:
    base = (*SMALL, *DRAFTS, *FEW, "--out")
    result = run(*base[:-2], "--batch-sizes", "1,2,4", "--num-prompts", "1", "--out", tmp_path / "out")
    assert result.code == 0, result
    warnings = [line for line in result.err.splitlines() if "copy another row" in line]
    assert warnings == [
        "warning: mine.txt: 1 of 2 rows at batch 2, 3 of 4 rows at batch 4 copy another row of their batch, and copies "
        "are never ragged, which favours vanilla: give as many different prompts as the largest batch has rows."
    ]
    points = json.loads((tmp_path / "out" / "results.json").read_text())["points"]
    assert {(point["batch"], point["copied_rows"]) for point in points} == {(1, 0), (2, 1), (4, 3)}
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "results.csv").read_text())))
    assert [int(row["copied_rows"]) for row in rows] == [point["copied_rows"] for point in points]
    fine = run(*SMALL, *DRAFTS, *FEW)
    assert "copy another row" not in fine.err + fine.out


def test_draft_models_and_replays(run: Run, tmp_path: Path) -> None:
    trace_file = tmp_path / "run.json"
    settings = ["--model", "random-llama", "--max-new-tokens", "9", "--num-draft-tokens", "3"]
    prompts = ["--prompt", PROMPTS[0], "--prompt", PROMPTS[1]]
    assert main(["record", str(trace_file), *settings, *prompts, "--draft-model", "random-llama", "--quiet"]) == 0
    recorded = trace_lengths(GenerationTrace.from_json(trace_file))
    result = run(
        *settings,
        *("--repeats", "1", "--batch-sizes", "2", "--methods", "vanilla,ems-sd", "--json", "-"),
        *("--drafters", "prompt-lookup,draft-model,replay", "--draft-model", "random-llama", "--replay", trace_file),
    )
    assert result.code == 0, result
    points = {(p["method"], p["drafter"]): p for p in json.loads(result.out)["points"]}
    assert len(points) == 1 + 2 * 3
    assert points["vanilla", "draft-model"]["acceptance_rate"] == 1
    assert points["ems-sd", "replay"]["accepted"] == sum(a for row in recorded for _, a in row) > 0
    assert points["ems-sd", "replay"]["drafted"] == sum(d for row in recorded for d, _ in row)
    assert points["vanilla", "replay"]["steps"] == points["vanilla", "draft-model"]["steps"]
    assert points["vanilla", "replay"]["kv_slots_scanned"] == points["vanilla", "draft-model"]["kv_slots_scanned"]


def test_lengths_from_a_list(run: Run, tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.json"
    lengths.write_text("[[[3, 1], [2, 2]], [[1, 0]]]")
    result = run(*SMALL[:-1], "2", *DRAFTS, *FEW, "--drafters", "replay", "--replay", lengths, "--json", "-")
    assert result.code == 0
    point = next(p for p in json.loads(result.out)["points"] if p["method"] == "ems-sd")
    # row 0: (3, 1), then (1, 1) as two tokens are left; row 1: (1, 0) three times, then one token without drafts
    assert (point["drafted"], point["accepted"], point["steps"]) == (3 + 1 + 3, 1 + 1, 4)


def test_random_weights_decode_invented_prompts(run: Run, tmp_path: Path) -> None:
    from emssd.random_models import random_model

    random_model("random-opt").config.save_pretrained(tmp_path)
    replay = "hit_rate=0.8,token_rate=0.7,prompt_mean=9,prompt_sd=4"
    result = run(
        *("--random-weights", tmp_path / "config.json", "--batch-sizes", "1,3", "--repeats", "1", "--json", "-"),
        *("--max-new-tokens", "8", "--methods", "vanilla,ems-sd", "--drafters", "replay", "--replay", replay),
    )
    assert result.code == 0, result
    data = json.loads(result.out)
    assert data["environment"]["model"] == "random weights of config.json"
    assert data["settings"]["prompts"]["invented"]["count"] == 3
    points = {(p["batch"], p["method"]): p for p in data["points"]}
    assert points[3, "ems-sd"]["accepted"] == points[1, "ems-sd"]["accepted"] > 0  # the same rows at every batch size
    assert points[3, "ems-sd"]["holes"] == 0 < points[3, "vanilla"]["holes"]


# --- going on after an interruption --------------------------------------------------------------------------------


def test_control_c_keeps_what_is_finished_and_says_how_to_go_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (*SMALL, *DRAFTS, *FEW, "--out", tmp_path / "out")
    measure = Benchmark._measure

    def interrupted(self: Benchmark, prompts: Any, size: int, *rest: Any) -> None:
        if size == 2:
            raise KeyboardInterrupt
        measure(self, prompts, size, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Benchmark, "_measure", interrupted)
        result = run(*arguments)
    assert result.code == 130
    assert result.out == ""
    assert f"1 finished repeat is kept in {tmp_path / 'out'}: the same command with --resume goes on." in result.err

    refused(run(*arguments), "has measurements already", "--resume")
    refused(run(*arguments, "--resume", "--seed", "3"), "seed 0, and now it is 3")
    again = run(*arguments, "--resume")
    assert again.code == 0
    assert "Going on after 1 finished repeat" in again.err
    assert "batch size" in again.out


def test_control_c_without_a_folder_says_that_nothing_was_kept(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Benchmark) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Benchmark, "run", interrupted)
    result = run(*SMALL, *FEW)
    assert result.code == 130
    assert "Nothing was kept: with --out DIR" in result.err


def test_sigterm_keeps_what_is_finished_and_frees_the_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = [*SMALL, *DRAFTS, *FEW, "--prompts", "copy-poor", "--num-prompts", "1", "--out", str(out)]
    settings[settings.index("--repeats") + 1] = "1000"
    command = [sys.executable, "-m", "emssd", "bench", *settings]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not (out / FILE_NAME).exists() or b'"repeat"' not in (out / FILE_NAME).read_bytes():
            assert process.poll() is None, process.stderr
            time.sleep(0.05)
        second = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False)
        process.send_signal(signal.SIGTERM)
        printed, said = process.communicate(timeout=60)
    refused(Result(second.returncode, second.stdout, second.stderr), "Another bench is writing to")
    assert (process.returncode, printed) == (143, "")
    kept = sum(record["kind"] == "repeat" for record in read_state(out / FILE_NAME).records)
    assert f"kept in {out}: the same command with --resume goes on." in said
    assert f"{kept} finished repeat" in said
    assert said.endswith("emssd: terminated: stopped before the end.\n")


def test_sigterm_is_left_as_it_was(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(Benchmark, "run", lambda self: os.kill(os.getpid(), signal.SIGTERM))
    result = run(*SMALL, *FEW)
    assert (result.code, result.out) == (143, "")
    assert "Nothing was kept" in result.err
    assert signal.getsignal(signal.SIGTERM) is before


def test_resuming_nothing_is_a_beginning(run: Run, tmp_path: Path) -> None:
    result = run(*SMALL, *DRAFTS, *FEW, "--out", tmp_path / "out", "--resume")
    assert result.code == 0
    assert "this is the beginning" in result.err


def test_progress_reaches_its_end_also_after_a_resume(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars: list[list[int]] = []
    make = benching.progress_bar

    def spy(total: int, *args: Any, done: int = 0) -> Any:
        bar = make(total, *args, done=done)
        bars.append([total, done, 0])
        counts = bars[-1]
        monkeypatch.setattr(bar, "update", lambda tokens: counts.__setitem__(2, counts[2] + tokens))
        return bar

    monkeypatch.setattr(benching, "progress_bar", spy)
    arguments = (*SMALL, *DRAFTS, *FEW, "--out", tmp_path / "out")
    assert run(*arguments).code == 0
    assert run(*arguments, "--resume").code == 0
    total = (2 + 2 * 2 + 2 * 2) * 5  # expected outputs, then two methods on two prompts at each of two batch sizes
    assert bars == [[total, 0, total], [total, total, 0]]


# --- checks that fail ----------------------------------------------------------------------------------------------


def test_a_wrong_output_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Difference(1, 2, 5, 6, 0.5, False)
    monkeypatch.setattr(Benchmark, "_differences", lambda self, batch, outcome: [wrong])
    result = run(*SMALL, *FEW)
    assert result.code == 1
    assert "DIFFERENT: mine.txt, batch 1, greedy, prompt 1, position 2: plain 5, got 6" in result.out
    tied = Difference(1, 2, 5, 6, 1e-6, True)
    monkeypatch.setattr(Benchmark, "_differences", lambda self, batch, outcome: [tied])
    result = run(*SMALL, *FEW)
    assert result.code == 0
    assert "near-tie: mine.txt" in result.out


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.5, 1)])
def test_a_cost_model_that_is_too_far_off_fails(
    run: Run, monkeypatch: pytest.MonkeyPatch, factor: float, code: int
) -> None:
    """The measured times are those of the cost model, but that greedy takes `factor` times as long."""
    model, add = CostModel("a machine", 1.0, 10.0, 1.0), benching.BenchState.add

    def timed(self: benching.BenchState, record: dict[str, Any]) -> None:
        for result in record.get("results", ()):
            seconds = sum(float(model.time(StepCounts(*step)).total) for step in result["counts"])
            result["seconds"] = {"total": seconds * (factor if result["method"] == "greedy" else 1)}
        add(self, record)

    monkeypatch.setattr(benching.BenchState, "add", timed)
    monkeypatch.setattr(benching, "_calibrate", lambda benchmark, args: None)
    monkeypatch.setattr(benching, "_cost_model", lambda state: model)
    result = run(*SMALL, *DRAFTS, "--no-transformers", "--compare-model")
    assert result.code == code, result
    error = "33.3 %, MORE THAN" if code else "0.0 %, within"
    assert f"Mean absolute error of the modelled speed-ups: {error} the 15 % allowed." in result.out
    assert "vanilla falls below greedy" in result.out


def test_a_cost_model_whose_crossing_is_elsewhere_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    far = ModelComparison("a machine", [], [Crossing("p", "d", 1, None, (1, 2))])
    near = replace(far, crossings=[Crossing("p", "d", 2, None, (1, 2))])
    monkeypatch.setattr(ModelComparison, "mean_error", 0.0)
    monkeypatch.setattr(Benchmark, "run", lambda self: None)
    monkeypatch.setattr(benching, "_calibrate", lambda benchmark, args: None)
    monkeypatch.setattr(benching, "_cost_model", lambda state: None)
    for comparison, code in ((far, 1), (near, 0)):
        monkeypatch.setattr(benching, "compare_with_model", lambda results, model, found=comparison: found)
        result = run(*SMALL, *DRAFTS, "--no-transformers", "--compare-model")
        assert result.code == code
        assert ("NOT within one tested batch size of each other" in result.out) == bool(code)


# --- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--batch-sizes", "0,2"], "batch size must be a whole number from 1"),
        (["--batch-sizes", "one"], "whole numbers with commas"),
        (["--batch-sizes", ","], "There are no batch sizes"),
        (["--methods", "greedy,fast"], "method 'fast' is not known: choose from greedy, greedy-ragged, vanilla"),
        (["--drafters", "oracle"], "drafter 'oracle' is not known: choose from prompt-lookup"),
        (["--drafters", ""], "needs a drafter"),
        (["--drafters", "draft-model"], "needs --draft-model NAME"),
        (["--drafters", "replay"], "needs --replay SOURCE"),
        (["--replay", "paper"], "goes with the drafter replay"),
        (["--draft-model", "random-llama"], "goes with the drafter draft-model"),
        (["--repeats", "0"], "must be a whole number from 1"),
        (["--max-new-tokens", "1"], "at least 2"),
        (["--num-draft-tokens", "0"], "at least 1"),
        (["--ngram-size", "0"], "ngram_size"),
        (["--num-prompts", "0"], "--num-prompts must be a whole number from 1"),
        (["--num-prompts", "9"], "--num-prompts is 9, but mine.txt has 4"),
        (["--prompts", "nowhere.txt"], "nowhere.txt does not exist"),
        (["--prompts", "default", "--prompts", "default"], "given twice"),
        (["--prompts", "invented"], "need lengths to follow"),
        (["--json", "/nowhere/x.json"], "Cannot write /nowhere/x.json"),
        (["--figure", "x.gif"], "must end in .svg, .png, .pdf"),
        (["--json", "-", "--csv", "-"], "Only one of"),
        (["--resume"], "name it with --out DIR"),
        (["--compare-model", "--methods", "greedy"], "needs a method beside greedy"),
        (["--random-weights", "opt-125m"], "need lengths to follow"),
        (["--random-weights", "nowhere", "--drafters", "replay", "--replay", "paper"], "'nowhere'"),
        (["--random-weights", "opt-125m", "--prompts", "default"], "no tokenizer"),
        (
            [
                "--random-weights",
                "opt-125m",
                "--draft-model",
                "x",
                "--drafters",
                "draft-model,replay",
                "--replay",
                "paper",
            ],
            "no tokenizer",
        ),
        (["--drafters", "replay", "--replay", "nowhere.json"], "Cannot read the accepted lengths nowhere.json"),
        (
            ["--drafters", "replay", "--replay", "paper", "--max-new-tokens", "2000"],
            "--max-new-tokens with invented lengths must be a whole number from 1 to 1024, not 2000",
        ),
        (["--drafters", "replay", "--replay", "rate=1"], "'rate' is not known"),
        (["--drafters", "replay", "--replay", "hit_rate=often"], "must be a number"),
        (["--drafters", "replay", "--replay", "hit_rate=1.5"], "hit_rate must be a number from 0 to 1"),
        (["--model", "nothing-like-it"], "no model or folder"),
    ],
)
def test_bad_input_is_one_sentence(run: Run, arguments: list[str], words: str) -> None:
    base = ("--model", "random-llama", "--max-new-tokens", "5")
    refused(run(*base, *arguments), words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "schema"),
        ("{]", "Not JSON"),
        ("[[[1, 2]]]", "row 0, step 1"),
        ("[", "neither a trace nor"),
        ("[[[9, 1]]]", "steps of 9 drafts, but --num-draft-tokens is 7"),
        ("[]", "a list per row"),
    ],
)
def test_bad_lengths_are_refused(run: Run, tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "lengths.json"
    file.write_text(content)
    refused(run(*SMALL, "--drafters", "replay", "--replay", file), words, *[str(file)] * content.startswith("{"))


def test_folders_and_files_that_cannot_be_used(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(run(*SMALL, "--out", tmp_path / "file"), "cannot be made")
    refused(run(*SMALL, "--out", tmp_path / "file" / "under"), "cannot be made")
    out = tmp_path / "out"
    out.mkdir()
    (out / FILE_NAME).write_text('{"emssd_bench": 1, "settings": {}, "environment": {}}\nnonsense\n')
    refused(run(*SMALL, "--out", out, "--resume"), FILE_NAME, "line 2, is damaged")
    assert "nonsense" in (out / FILE_NAME).read_text()


def test_figures_need_matplotlib(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for where in (("--figure", tmp_path / "f.svg"), ("--out", tmp_path / "out")):
        refused(run(*SMALL, *where), "matplotlib, which is not installed", "make setup")


def test_help_has_an_example_and_loads_no_torch(run: Run) -> None:
    result = run("--help", "--prompts", "x")
    assert result.code == 0
    assert "python -m emssd bench --batch-sizes" in result.out
    code = "import sys; from emssd.__main__ import main; main(['bench', '--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize(("load", "warned"), [([0.4, 9.0, 9.0], False), ([3.0, 0.0, 0.0], True), (None, False)])
def test_a_busy_machine_is_named(run: Run, monkeypatch: pytest.MonkeyPatch, load: Any, warned: bool) -> None:
    environment = benching.bench_environment
    monkeypatch.setattr(benching, "bench_environment", lambda lm: {**environment(lm), "load_average": load, "cpus": 2})
    monkeypatch.setattr(Benchmark, "run", lambda self: None)
    assert ("load average is 3.0 on 2 processors" in run(*SMALL, *FEW, "--json", "-").err) == warned


def test_prompts_that_do_not_fit_are_left_out(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "long.txt"
    file.write_text("\n".join(["x" * 400, *PROMPTS]))
    result = run(*SMALL, *DRAFTS, *FEW, "--prompts", file, "--json", "-")
    assert result.code == 0
    assert "warning: long.txt: prompts left out: 1 of 5, for example: Row 0: the prompt has" in result.err
    assert json.loads(result.out)["settings"]["prompts"]["long.txt"]["count"] == 2
    file.write_text("x" * 400)
    refused(run(*SMALL, "--prompts", file), "long.txt has 0 of 1 prompts that random-llama can decode", "Row 0")


def test_prompts_that_are_left_out_are_one_sentence_and_only_those_that_were_needed(run: Run, tmp_path: Path) -> None:
    file, long = tmp_path / "long.txt", "x" * 400
    file.write_text("\n".join([long, PROMPTS[0], long, long, PROMPTS[1], long, long]))
    result = run(*SMALL, *DRAFTS, *FEW, "--prompts", file)
    assert result.code == 0
    assert result.err.count("Row ") == 1
    assert "warning: long.txt: prompts left out: 3 of 7, for example: Row 0: " in result.err
    file.write_text("\n".join([PROMPTS[0], PROMPTS[1], long]))
    assert "left out" not in run(*SMALL, *DRAFTS, *FEW, "--prompts", file).err
    result = run(*SMALL, *DRAFTS, *FEW, "--prompts", file, "--num-prompts", "3")
    refused(result, "long.txt has 2 of 3 prompts", "3 at least must be; for example: Row 2: the prompt has")
    assert "left out" not in result.err
