"""Traces: exact round trip, and a corpus of damaged ones that must be refused quickly, by the field that is wrong."""

from __future__ import annotations

import copy
import json
import math
import os
import stat
import threading
import tracemalloc
from functools import cache
from pathlib import Path

import pytest

from emssd import SpeculativeConfig, generate, generate_steps, load_model
from emssd.drafting import PromptLookupDrafter
from emssd.errors import TraceError
from emssd.random_models import random_model, random_tokenizer
from emssd.result_files import check_target
from emssd.trace import GenerationTrace, write_text_atomically
from tests.helpers import ALL_METHODS, batch, greedy, language_model, same, script


@cache
def recorded(method: str = "vanilla") -> str:
    """A trace with holes, prompt pads, input pads, an end inside a block and finished rows, as JSON text."""
    lm = language_model("random-llama")
    prompts = batch(lm, [5, 3, 2], 14)
    outputs = [greedy(lm, prompt, 14) for prompt in prompts]
    eos = next(token for token in outputs[2][3:9] if token not in outputs[0][:9] + outputs[1][:9])
    config = SpeculativeConfig.for_method(method, max_new_tokens=9, eos_token_ids=eos)
    if not method.startswith("greedy"):
        config = config.with_settings(num_draft_tokens=(3, 2, 3))
    return generate(lm, prompts, config, script(outputs, [[2, 1, 3], [0, 0, 2], [3, 3, 3]], 97, 3)).to_json()


def data(method: str = "vanilla") -> dict:
    return json.loads(recorded(method))


def refused(damaged: object, *words: str) -> str:
    """Reading fails with one line that holds these words; returns it."""
    text = damaged if isinstance(damaged, str) else json.dumps(damaged)
    with pytest.raises(TraceError) as caught:
        GenerationTrace.from_json(text)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    for word in words:
        assert word in message, message
    return message


# --- round trip ---


@pytest.mark.parametrize("method", ALL_METHODS)
def test_round_trip_is_exact(method):
    text = recorded(method)
    trace = GenerationTrace.from_json(text)
    assert trace.to_json() == text
    assert GenerationTrace.from_json(trace.to_json()) == trace
    assert trace.method == method
    assert trace.finished


def test_a_trace_with_texts_and_lookup_sources_round_trips():
    lm = load_model("random-llama")
    drafter = PromptLookupDrafter(1, "context")
    trace = generate(lm, ["abcabcabc é", 'x\n"'], SpeculativeConfig(num_draft_tokens=2, max_new_tokens=12), drafter)
    assert GenerationTrace.from_json(trace.to_json()) == trace
    assert GenerationTrace.from_json(trace.to_json()).to_json() == trace.to_json()
    assert any(row.draft_source is not None for row in trace.live_rows())
    assert trace.tokens
    shown = {token for step in trace.steps for row in step.rows for token in row.input_token_ids}
    assert {int(token) for token in trace.tokens} >= shown


def test_a_draft_models_forwards_round_trip():
    lm = language_model("random-llama")
    trace = generate(
        lm, batch(lm, [5, 3], 9), SpeculativeConfig.vanilla(num_draft_tokens=2, max_new_tokens=9), same(lm)
    )
    again = GenerationTrace.from_json(trace.to_json())
    assert again == trace
    assert again.steps[1].draft_forwards == trace.steps[1].draft_forwards != []


def test_reading_from_a_path_a_path_object_and_a_text(tmp_path):
    trace = GenerationTrace.from_json(recorded())
    path = tmp_path / "run.json"
    text = trace.to_json(path)
    assert path.read_text(encoding="utf-8") == text
    for source in (path, str(path), text, "\n  " + text):
        assert GenerationTrace.from_json(source) == trace
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    trace = GenerationTrace.from_json(recorded())
    path = tmp_path / "run.json"
    path.write_text("old", encoding="utf-8")
    monkeypatch.setattr("emssd.trace.os.replace", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(TraceError, match="No space left"):
        trace.to_json(path)
    assert path.read_text(encoding="utf-8") == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]
    with pytest.raises(TraceError, match="Cannot write"):
        trace.to_json(tmp_path / "none" / "run.json")


def test_a_link_stays_one_and_its_target_is_written(tmp_path):
    target, link, dangling = tmp_path / "real" / "run.json", tmp_path / "link.json", tmp_path / "dangling.json"
    target.parent.mkdir()
    target.write_text("old", encoding="utf-8")
    link.symlink_to(target)
    dangling.symlink_to(Path("real") / "new.json")
    for each in (link, dangling):
        write_text_atomically(each, "new")
        assert each.is_symlink()
    assert target.read_text() == (target.parent / "new.json").read_text() == "new"
    assert sorted(file.name for file in target.parent.iterdir()) == ["new.json", "run.json"]
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    with pytest.raises(TraceError, match=r"Cannot write .*circle: "):
        write_text_atomically(circle, "new")


@pytest.fixture
def pipe(tmp_path):
    """A named pipe and a function that returns what was written to it."""
    path, heard = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: heard.append(path.read_text()), daemon=True)
    reader.start()

    def read() -> str:
        reader.join(10)
        return heard[0]

    return path, read


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_what_is_no_regular_file_is_written_through(pipe, tmp_path):
    path, read = pipe
    link = tmp_path / "link"
    link.symlink_to(path)
    check_target(str(link))
    write_text_atomically(link, "text")
    assert read() == "text"
    assert stat.S_ISFIFO(path.lstat().st_mode)
    assert link.is_symlink()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link", "pipe"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_device_without_space_is_one_sentence(tmp_path, monkeypatch):
    path = tmp_path / "full"
    os.mkfifo(path)
    monkeypatch.setattr("emssd.trace.os.open", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(TraceError, match=r"Cannot write .*full: No space left\."):
        write_text_atomically(path, "text")
    assert stat.S_ISFIFO(path.lstat().st_mode)


def test_half_a_surrogate_pair_survives_a_file(tmp_path):
    damaged = data()
    damaged["rows"][0]["prompt_text"] = "half \ud800"
    trace = GenerationTrace.from_json(json.dumps(damaged))
    trace.to_json(tmp_path / "run.json")
    assert GenerationTrace.from_json(tmp_path / "run.json").rows[0].prompt_text == "half \ud800"


def test_equality_leaves_out_created_and_seconds_and_nothing_else():
    trace, other = GenerationTrace.from_json(recorded()), data()
    other["created"] = "another day"
    for step in other["steps"]:
        step["seconds"] = {name: value + 1 for name, value in step["seconds"].items()}
    assert GenerationTrace.from_json(json.dumps(other)) == trace
    for change in (
        lambda d: d.update(attention="another"),
        lambda d: d.update(emssd_version="9.9"),
        lambda d: d["model"].update(name="another"),
        lambda d: d["config"].update(seed=4),
        lambda d: d["rows"][0].update(prompt_text="another"),
        lambda d: d["steps"][1].update(note="unknown field"),
    ):
        other = data()
        change(other)
        assert GenerationTrace.from_json(json.dumps(other)) != trace
    assert trace != "text"
    with pytest.raises(TypeError):
        hash(trace)


def test_every_beginning_of_a_run_is_a_valid_trace():
    """The trace of a run in progress, and of one that was stopped, reads back; its rows are unfinished."""
    lm = language_model("random-llama")
    run = generate_steps(lm, batch(lm, [5, 3], 8), SpeculativeConfig.vanilla(num_draft_tokens=2, max_new_tokens=8))
    assert GenerationTrace.from_json(run.trace.to_json()) == run.trace
    assert run.trace.steps == []
    for number, step in enumerate(run):
        assert step is run.trace.steps[number]
        again = GenerationTrace.from_json(run.trace.to_json())
        assert again == run.trace
        assert len(again.steps) == number + 1
        if number == 2:
            run.close()
    assert not run.trace.finished
    assert [row.finish_reason for row in run.trace.rows] == [None, None]
    assert len(run.trace.steps) == 3
    assert next(run, None) is None


def test_an_empty_run_round_trips():
    lm = language_model("random-llama")
    trace = generate(lm, [[5], [6]], SpeculativeConfig(max_new_tokens=0))
    again = GenerationTrace.from_json(trace.to_json())
    assert again == trace
    assert again.steps == []
    summary = again.summary()
    assert (summary["tokens"], summary["steps"], summary["mean_acceptance_length"]) == (0, 0, None)
    assert summary["tokens_per_second"] is None


def test_a_function_as_draft_length_is_recorded_as_such_and_reads_back():
    lm = language_model("random-llama")
    config = SpeculativeConfig.vanilla(num_draft_tokens=lambda row, step: step % 3, max_new_tokens=9)
    trace = generate(lm, batch(lm, [5, 3], 9), config, same(lm))
    assert trace.config["num_draft_tokens"] == "callable"
    assert GenerationTrace.from_json(trace.to_json()) == trace


def test_summary_is_the_sum_over_decode_steps():
    trace = GenerationTrace.from_json(recorded())
    summary = trace.summary()
    live = [row for step in trace.steps[1:] for row in step.rows if row.kind == "decode"]
    assert summary["tokens"] == sum(len(row.output_token_ids) for row in trace.rows)
    assert summary["decode_tokens"] == summary["tokens"] - 3
    assert summary["mean_acceptance_length"] == sum(row.num_emitted for row in live) / len(live)
    assert summary["acceptance_rate"] == sum(r.num_accepted for r in live) / sum(r.num_drafted for r in live)
    assert sum(summary["input_rows"].values()) == sum(len(r.input_token_ids) for s in trace.steps[1:] for r in s.rows)
    assert summary["input_rows"]["useful"] == sum(1 + row.num_drafted for row in live)
    assert summary["holes"] == sum(len(row.holes_added) for row in live) > 0
    assert summary["seconds"]["total"] == pytest.approx(sum(step.seconds["total"] for step in trace.steps[1:]))
    assert summary["tokens_per_second"] == summary["decode_tokens"] / summary["seconds"]["total"]
    ends = zip(trace.steps[0].rows, trace.steps[-1].rows, strict=True)
    assert summary["slots_advanced"] == sum(last.next_slot - first.next_slot for first, last in ends)


# --- unknown fields and other schemas ---


def test_unknown_fields_are_kept_everywhere():
    extended = data()
    for place in (
        extended,
        extended["config"],
        extended["drafter"],
        extended["model"],
        extended["rows"][1],
        extended["steps"][1],
        extended["steps"][1]["rows"][0],
        extended["steps"][1]["account"],
    ):
        place["from_the_future"] = {"a": [1, None, "b"]}
    extended["steps"][1]["draft_forwards"] = [{"tokens_per_row": [1, 1, 1], "from_the_future": 2}]
    extended["steps"][1]["seconds"]["another_phase"] = 0.5
    again = GenerationTrace.from_json(json.dumps(extended)).to_dict()
    assert again == extended


def test_optional_logit_gaps():
    extended = data()
    extended["steps"][1]["rows"][0]["logit_gaps"] = [0.5, 1, 2.25, 0]
    trace = GenerationTrace.from_json(json.dumps(extended))
    assert trace.steps[1].rows[0].logit_gaps == [0.5, 1, 2.25, 0]
    assert trace.to_dict() == extended
    for bad in ([-1.0], ["a"], 3, [None]):
        extended["steps"][1]["rows"][0]["logit_gaps"] = bad
        refused(extended, "steps[1].rows[0].logit_gaps")


def test_a_newer_schema_is_refused_with_both_numbers():
    newer = data()
    newer["schema"] = 2
    refused(newer, "schema 2", "up to 1", "update")
    newer["schema"] = 0
    refused(newer, "schema")


# --- damage: fields ---

TOP = [
    "schema",
    "emssd_version",
    "created",
    "config",
    "method",
    "drafter",
    "attention",
    "model",
    "tokens",
    "rows",
    "steps",
]
CONFIG = ["cache_layout", "input_layout", "num_draft_tokens", "max_new_tokens"]
MODEL = [
    "name",
    "architecture",
    "parameters",
    "layers",
    "heads",
    "kv_heads",
    "head_dim",
    "hidden",
    "vocab",
    "dtype",
    "device",
]
ROW = [
    "row",
    "kind",
    "cache_start",
    "next_slot",
    "slots",
    "input_token_ids",
    "input_kinds",
    "position_ids",
    "target_token_ids",
    "num_drafted",
    "num_accepted",
    "num_emitted",
    "emitted_token_ids",
    "next_kind",
    "cache_len",
    "holes_added",
    "finished",
    "draft_source",
]
REQUEST = ["prompt_token_ids", "prompt_text", "output_token_ids", "output_text", "finish_reason"]
ACCOUNT = ["input_rows", "kv_slots_scanned", "kv_slots_allocated", "holes_total", "attention_launches"]
FIELDS = [
    *[(name,) for name in TOP],
    *[("config", name) for name in CONFIG],
    *[("model", name) for name in MODEL],
    ("drafter", "name"),
    *[
        ("rows", 1, name)
        for name in ("prompt_token_ids", "prompt_text", "output_token_ids", "output_text", "finish_reason")
    ],
    *[("steps", 1, name) for name in ("index", "kind", "rows", "draft_forwards", "account", "seconds")],
    *[("steps", 1, "seconds", name) for name in ("draft", "target", "verify", "commit", "total")],
    *[
        ("steps", 1, "account", name)
        for name in ("input_rows", "kv_slots_scanned", "kv_slots_allocated", "holes_total")
    ],
    ("steps", 1, "account", "attention_launches"),
    ("steps", 1, "account", "input_rows", "pad"),
    ("steps", 1, "account", "kv_slots_scanned", "varlen"),
    ("steps", 1, "account", "kv_slots_scanned", "per_token", "hole"),
    *[("steps", 2, "rows", 1, name) for name in ROW],
]
WRONG = [None, "wrong", -1, 1.5, True, [], {}, [[1]], ["x"], {"a": 1}, 10**30, [-1], [1.5]]
# wrong values that are right for a field
FITTING = {
    "emssd_version": ["wrong"],
    "created": ["wrong"],
    "attention": ["wrong"],
    "tokens": [{}],
    "prompt_text": [None, "wrong"],
    "output_text": [None, "wrong"],
    "draft_source": [None],
    "draft_forwards": [[]],
    "dtype": ["wrong"],
    "device": ["wrong"],
    "name": ["wrong"],
    "architecture": ["wrong"],
}


def at(path: tuple, inside: dict):
    for key in path:
        inside = inside[key]
    return inside


def named(path: tuple) -> str:
    """How a message names a field: steps[2].rows[1].slots."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else str(key)
    return text


def named_by(message: str, path: tuple) -> bool:
    """The field itself, or the account's part that it is in, or for whole rows the place where they are missing."""
    return any(named(path[:length]) in message for length in range(len(path), max(len(path) - 3, 0), -1))


@pytest.mark.parametrize("path", FIELDS, ids=named)
def test_each_missing_field_is_named(path):
    damaged = data()
    del at(path[:-1], damaged)[path[-1]]
    assert named_by(refused(damaged), path)


@pytest.mark.parametrize("path", FIELDS, ids=named)
def test_each_field_of_a_wrong_type_is_named(path):
    """A text for a number, a number for a list, true for 1, and so on: never an exception of another kind."""
    for value in WRONG:
        damaged = data()
        old = at(path, damaged)
        sizes = path[-1] in ("parameters", "layers", "heads", "kv_heads", "head_dim", "hidden", "vocab")
        right = [*FITTING.get(path[-1], []), *([10**30] if sizes else [1.5, 10**30] if "seconds" in path else [])]
        if any(type(value) is type(good) and value == good for good in [old, *right]):
            continue
        at(path[:-1], damaged)[path[-1]] = value
        message = refused(damaged)
        top = path[-1] in ("rows", "steps", "config", "model", "drafter", "kind", "method", *CONFIG)
        assert named_by(message, path) or top, f"{value!r}: {message}"


# --- damage: contradictions ---


def change_of(path: tuple, value):
    return pytest.param(path, value, id=f"{named(path)}={value}")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        change_of(("method",), "ems-sd"),
        change_of(("method",), "greedy"),
        change_of(("config", "cache_layout"), "ragged"),
        change_of(("config", "input_layout"), "packed"),
        change_of(("config", "num_draft_tokens"), 2),
        change_of(("config", "num_draft_tokens"), [3, 3]),
        change_of(("config", "num_draft_tokens"), [3, 3, 0]),
        change_of(("config", "max_new_tokens"), 8),
        change_of(("config", "eos_token_ids"), []),
        change_of(("model", "vocab"), 3),
        change_of(("model", "context_length"), 4),
        change_of(("rows", 0, "finish_reason"), "eos"),
        change_of(("rows", 0, "finish_reason"), "context"),
        change_of(("rows", 2, "finish_reason"), "length"),
        change_of(("rows", 0, "finish_reason"), None),
        change_of(("rows", 1, "output_token_ids"), []),
        change_of(("rows", 1, "prompt_token_ids"), []),
        change_of(("rows", 1, "prompt_token_ids"), [5]),
        change_of(("steps", 2, "index"), 1),
        change_of(("steps", 2, "kind"), "prefill"),
        change_of(("steps", 0, "kind"), "decode"),
        change_of(("steps", 2, "rows", 1, "row"), 0),
        change_of(("steps", 2, "rows", 1, "kind"), "finished"),
        change_of(("steps", 2, "rows", 1, "kind"), "prefill"),
        change_of(("steps", 2, "rows", 1, "num_accepted"), 2),
        change_of(("steps", 2, "rows", 1, "num_drafted"), 1),
        change_of(("steps", 2, "rows", 1, "num_drafted"), 1000),
        change_of(("steps", 2, "rows", 1, "num_emitted"), 2),
        change_of(("steps", 2, "rows", 1, "next_kind"), "bonus"),
        change_of(("steps", 2, "rows", 1, "next_kind"), None),
        change_of(("steps", 2, "rows", 1, "cache_len"), 3),
        change_of(("steps", 2, "rows", 1, "next_slot"), 8),
        change_of(("steps", 2, "rows", 1, "cache_start"), 7),
        change_of(("steps", 2, "rows", 1, "holes_added"), []),
        change_of(("steps", 2, "rows", 1, "finished"), True),
        change_of(("steps", 2, "rows", 1, "draft_source"), 400),
        change_of(("steps", 0, "rows", 1, "draft_source"), 0),
        change_of(("steps", 0, "rows", 1, "num_accepted"), 1),
        change_of(("steps", 0, "rows", 1, "next_kind"), "bonus"),
        change_of(("steps", 2, "account", "holes_total"), 0),
        change_of(("steps", 2, "account", "kv_slots_allocated"), 10),
        change_of(("steps", 2, "account", "attention_launches"), 1),
        change_of(("steps", 2, "account", "input_rows", "pad"), 0),
        change_of(("steps", 2, "account", "kv_slots_scanned", "varlen", "hole"), 99),
        change_of(("tokens",), {"x": "y"}),
        change_of(("tokens",), {"5": 5}),
    ],
)
def test_a_field_that_contradicts_the_others_is_refused(path, value):
    """The layout, the verdict and the account are computed again from the rows; nothing is believed."""
    damaged = data()
    assert at(path, damaged) != value
    at(path[:-1], damaged)[path[-1]] = value
    refused(damaged)


@pytest.mark.parametrize("name", ["slots", "position_ids", "input_token_ids", "input_kinds", "emitted_token_ids"])
@pytest.mark.parametrize("how", ["one more", "one less", "first changed"])
def test_a_list_that_contradicts_the_others_is_refused_by_name(name, how):
    damaged = data()
    row = damaged["steps"][2]["rows"][1]
    old = row[name]
    if how == "one more":
        row[name] = [*old, old[-1]]
    elif how == "one less":
        row[name] = old[:-1]
    else:
        row[name] = ["draft" if name == "input_kinds" else old[0] + 1, *old[1:]]
    refused(damaged, f"steps[2].rows[1].{name}")


def test_a_finished_row_that_emits_is_refused():
    damaged = data()
    last = damaged["steps"][-1]["rows"][2]
    assert last["kind"] == "finished"
    last["emitted_token_ids"] = [5]
    damaged["rows"][2]["output_token_ids"].append(5)
    refused(damaged, "rows[2].emitted_token_ids")


def test_a_finished_row_that_is_decoded_again_is_refused():
    damaged = data()
    damaged["steps"].append(copy.deepcopy(damaged["steps"][-1]))
    damaged["steps"][-1]["index"] += 1
    refused(damaged, "steps[")


def test_a_missing_row_or_step_is_refused():
    damaged = data()
    del damaged["steps"][2]["rows"][1]
    refused(damaged, "steps[2].rows")
    damaged = data()
    del damaged["steps"][2]
    refused(damaged, "steps[2].index")
    damaged = data()
    del damaged["rows"][0]
    refused(damaged, "rows")


# --- damage: text and files ---


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Not JSON"),
        ("{}", "schema is missing"),
        ('{"schema": 1, "schema": 1}', "missing"),
        ('{"schema": NaN}', "NaN"),
        ('{"schema": -Infinity}', "-Infinity"),
        ('{"schema": 1e999}', "1e999"),
        ('{"schema": ' + "9" * 5000 + "}", "too large"),
        ('{"schema": ' + "9" * 400 + "}", "schema"),
        ('{"schema": "1"}', "schema"),
        ('{"a": ' * 100_000, "too deeply"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "too deeply"),
        ('{"schema": 1} trailing', "Not JSON"),
        ('{"schema": 1, "a": "\x01"}', "Not JSON"),
        ("[]", "must be an object"),
        ("", "is empty"),
        ("no-such-file.json", "no-such-file.json"),
        ("nul\0byte", "Cannot read"),
        ("x" * 10_000, "Cannot read"),
    ],
    ids=range(18),
)
def test_text_that_is_no_trace(text, words):
    assert words in refused(text)


SIZES = ("layers", "head_dim", "parameters", "vocab", "context_length", "intermediate", "experts")
OVER = [
    *[(("model", name), number) for name in SIZES for number in (2**200, 10**400)],
    *[(("steps", 1, "seconds", name), number) for name in ("draft", "total") for number in (2**200, 10**400, 1e300)],
    *[(("steps", 1, "rows", 0, "logit_gaps"), [number]) for number in (2**200, 10**400, 1e300)],
    *[(("steps", 1, "rows", 0, "top_logit_gaps"), [[0.0, number]]) for number in (2**200, 10**400, 1e300)],
]


@pytest.mark.parametrize(("path", "value"), OVER)
def test_numbers_from_which_nothing_finite_follows_are_refused_by_name(path, value):
    damaged = data()
    at(path[:-1], damaged)[path[-1]] = value
    assert named(path) in refused(damaged)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("place", ['"total":', '"prompt_text":', '"seed":'])
def test_not_a_number_is_refused_wherever_it_stands(number, place):
    refused(recorded().replace(place, f'{place}{number},"rest":', 1))


def test_a_deeply_nested_unknown_field_is_refused():
    damaged = data()
    nested: object = 1
    for _ in range(20):
        nested = [nested]
    damaged["unknown"] = nested
    refused(damaged, "too deeply")


def test_files_that_cannot_be_read(tmp_path):
    binary, folder = tmp_path / "binary.json", tmp_path / "folder"
    binary.write_bytes(b'{"schema": 1, "created": "\xff\xfe"}')
    folder.mkdir()
    with pytest.raises(TraceError, match=r"not UTF-8 text \(byte 26\)"):
        GenerationTrace.from_json(binary)
    with pytest.raises(TraceError, match="Cannot read"):
        GenerationTrace.from_json(folder)
    with pytest.raises(TraceError, match="No such file"):
        GenerationTrace.from_json(tmp_path / "none.json")
    pickled = tmp_path / "pickle.json"
    pickled.write_bytes(b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00")
    with pytest.raises(TraceError):
        GenerationTrace.from_json(pickled)


def test_a_file_over_the_limit_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr("emssd.trace_reading.MAX_BYTES", 2**20)
    big = tmp_path / "big.json"
    with big.open("wb") as file:
        file.truncate(2**21)
    with pytest.raises(TraceError, match=r"larger than 1 MiB"):
        GenerationTrace.from_json(big)
    refused("{" + " " * 2**21, "larger than 1 MiB")


def test_a_small_file_cannot_ask_for_much_memory():
    """A long prompt beside many short rows, one row with many drafts, huge counts: refused before lists are built that
    the file does not hold. Rows and lengths are chosen so that believing the file would need gigabytes."""
    lm = language_model("random-llama")
    one = json.loads(generate(lm, [[5]], SpeculativeConfig.vanilla(num_draft_tokens=0, max_new_tokens=2)).to_json())
    many = 1500
    damaged = copy.deepcopy(one)
    damaged["config"].update(num_draft_tokens=1024, max_new_tokens=10**6)
    damaged["method"] = "vanilla"
    damaged["rows"] = damaged["rows"] * many
    for step in damaged["steps"]:
        step["rows"] = [{**step["rows"][0], "row": row} for row in range(many)]
    damaged["rows"][0] = {**damaged["rows"][0], "prompt_token_ids": [1] * 100_000}
    first = damaged["steps"][0]["rows"]
    long = {"slots": list(range(100_000)), "position_ids": list(range(100_000)), "cache_len": 100_000}
    first[0].update(long, input_token_ids=[1] * 100_000, input_kinds=["prompt"] * 100_000)
    for row in (row for step in damaged["steps"] for row in step["rows"]):
        row["finished"] = False
        row["next_slot"] = 100_000
    fat = damaged["steps"][1]["rows"][0]
    pending = fat["input_token_ids"][0]
    fat.update(
        num_drafted=1024,
        num_accepted=1024,
        num_emitted=1025,
        input_token_ids=[pending, *[1] * 1024],
        target_token_ids=[1] * 1025,
        emitted_token_ids=[1] * 1025,
        next_kind="bonus",
    )
    text = json.dumps(damaged)
    tracemalloc.start()
    try:
        refused(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * len(text)


def test_the_trace_of_another_tokenizers_text_needs_no_tokenizer():
    """Texts are data: a trace reads back without any model."""
    lm = load_model.from_pretrained_model(random_model("random-opt"), random_tokenizer())
    text = generate(lm, ["hello"], SpeculativeConfig(max_new_tokens=4)).to_json()
    trace = GenerationTrace.from_json(text)
    assert trace.rows[0].prompt_text == "hello"
    assert isinstance(trace.rows[0].output_text, str)


def test_reading_is_linear_in_the_steps():
    """No part of reading builds a list of cache length for every step: four times the steps need about four times
    the memory, not sixteen."""
    lm = language_model("random-llama")
    peaks = []
    for n in (40, 160):
        text = generate(lm, [[5], [6]], SpeculativeConfig.vanilla(num_draft_tokens=0, max_new_tokens=n)).to_json()
        tracemalloc.start()
        try:
            GenerationTrace.from_json(text)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 8 * peaks[0]


def test_numbers_that_json_cannot_hold_are_never_written():
    trace = GenerationTrace.from_json(recorded())
    trace.steps[1].seconds["total"] = math.nan
    with pytest.raises(ValueError, match="JSON"):
        trace.to_json()


def test_a_byte_order_mark_does_not_matter(tmp_path):
    """Windows editors put one before the text."""
    text = recorded()
    (tmp_path / "marked.json").write_bytes(b"\xef\xbb\xbf" + text.encode("utf-8"))
    assert GenerationTrace.from_json("\ufeff" + text) == GenerationTrace.from_json(tmp_path / "marked.json")


@pytest.mark.parametrize("source", [None, b"{}", 5])
def test_what_is_neither_text_nor_path_is_refused(source):
    with pytest.raises(TraceError, match="JSON text or a path"):
        GenerationTrace.from_json(source)
