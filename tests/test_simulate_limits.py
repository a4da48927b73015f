"""`python -m emssd simulate`: bounded memory, positions, memory of the machine, types, and words that stay true."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from emssd import simulation
from emssd.__main__ import main
from emssd.acceptance import Acceptance, draw_rows
from emssd.config import SpeculativeConfig
from emssd.layouts import make_layout
from emssd.simulation_report import slower_words, three_digits
from emssd.trace import GenerationTrace

QUICK = ("simulate", "--batch-sizes", "1,3", "--batches", "4", "--max-new-tokens", "24", "--prompt-mean", "40")
MIXTRAL = {
    **{"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8},
    **{"num_experts_per_tok": 2, "max_position_embeddings": 32768, "tie_word_embeddings": False},
}


@pytest.fixture
def run(capsys):
    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def refused(result: tuple[int, str, str], words: str) -> None:
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert words in err


def test_memory_does_not_grow_with_batches():
    """2.6 million rows of 128 tokens would take 5 GB at once, and more to count; 1.5 GB of addresses are enough."""
    code = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, (1_500_000_000, 1_500_000_000))
import emssd.simulation as simulation
pieces = simulation._pieces
def first(setting):
    for number, piece in enumerate(pieces(setting)):
        if number == 3:
            return
        yield piece
simulation._pieces = first
from emssd.__main__ import main
raise SystemExit(main({["simulate", "--batch-sizes", "256", "--batches", "10000", "--quiet"]!r}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False,
        env={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "batch 256" in done.stdout


def test_pieces_are_other_rows_and_add_up_to_all_batches(run, monkeypatch):
    calls = []
    arguments = ("--batches", "50", "--json", "-", "--methods", "vanilla")
    whole = json.loads(run(*QUICK, *arguments)[1])["runs"]
    monkeypatch.setattr(simulation, "PIECE", 23 * 12)

    def counted(piece, method, windows):
        calls.append(piece.prompt_lengths)
        return count(piece, method, windows)

    count = simulation.count_batches
    monkeypatch.setattr(simulation, "count_batches", counted)
    parts = json.loads(run(*QUICK, *arguments)[1])["runs"]
    assert [entry["input_rows"]["useful"] for entry in parts if entry["method"] == "greedy"] == [23, 3 * 23]
    for one, other in zip(whole, parts, strict=True):
        assert other["speedup"] == pytest.approx(one["speedup"], rel=0.1)
        assert other["mean_acceptance_length"] == pytest.approx(one["mean_acceptance_length"], rel=0.1)
    assert max(lengths.size for lengths in calls) <= 12
    assert sum(lengths.size for lengths in calls) == 2 * (50 + 3 * 50)
    different = {(lengths.shape, lengths.tobytes()) for lengths in calls}
    assert len(different) == len(calls) // 2  # greedy and vanilla share each piece
    assert run(*QUICK, *arguments)[1] == run(*QUICK, *arguments)[1]


def test_parts_of_a_seed_are_drawn_apart():
    numbers = [draw_rows(Acceptance(), 50, 7, part=part).prompt_lengths for part in (0, 1, 2)]
    assert np.array_equal(numbers[0], draw_rows(Acceptance(), 50, 7).prompt_lengths)
    assert not np.array_equal(numbers[0], numbers[1])
    assert not np.array_equal(numbers[1], numbers[2])


def test_ctrl_c_between_pieces_leaves_with_130(run, monkeypatch):
    monkeypatch.setattr(simulation, "PIECE", 1)
    count, calls = simulation.count_batches, []

    def third(piece, method, windows):
        calls.append(method)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return count(piece, method, windows)

    monkeypatch.setattr(simulation, "count_batches", third)
    assert run(*QUICK)[:2] == (130, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--prompt-law", "equal", "--prompt-mean", "3000", "--prompt-max", "4000"),
         "Prompts of up to 3000 tokens and 128 output tokens do not fit the 2048 positions of opt-6.7b: "
         "set --prompt-mean to at most 1921"),
        (("--prompt-max", "1922"), "set --prompt-max to at most 1921"),
        (("--prompt-sd", "0", "--prompt-mean", "1950", "--prompt-max", "1950"), "set --prompt-mean to at most 1921"),
        (("--max-new-tokens", "200"), "set --prompt-max to at most 1849"),
    ],
)  # fmt: skip
def test_prompts_beyond_the_models_positions_are_refused_before_anything_is_drawn(run, monkeypatch, arguments, words):
    monkeypatch.setattr(simulation, "draw_rows", lambda *_: pytest.fail("rows were drawn"))
    refused(run("simulate", *arguments), words)


def test_more_output_than_positions_and_a_small_model_of_ones_own(run, tmp_path):
    path = tmp_path / "gpt2.json"
    gpt2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 1024, "vocab_size": 500}
    path.write_text(json.dumps(gpt2))
    refused(run("simulate", "--model-shape", str(path)), "the 1024 positions of gpt2: set --prompt-max to at most 897")
    assert run(*QUICK, "--model-shape", str(path), "--prompt-max", "1001")[0] == 0  # 1001 + 23 are fed, one is not
    path.write_text(json.dumps({**gpt2, "n_positions": 16}))
    refused(run(*QUICK, "--model-shape", str(path)), "the 16 positions of gpt2: lower --max-new-tokens")


def test_a_batch_that_does_not_fit_is_noted_for_the_methods_that_need_it(run):
    """At 24 rows the shared column of a padded cache is too long for an L4; rows of their own fit."""
    arguments = ("simulate", "--hardware", "l4", "--model-shape", "llama-3-8b", "--batches", "2")
    notes = [line for line in run(*arguments, "--batch-sizes", "24")[1].splitlines() if line.startswith("Note")]
    assert notes == [
        f"Note: {method}'s batch of 24 does not fit: weights and its cache of 68 thousand slots need 25 GB of 24 GB."
        for method in ("vanilla", "packed-input")
    ]
    assert "Note" not in run(*arguments, "--batch-sizes", "4")[1]


@pytest.mark.parametrize("method", ["greedy", "vanilla", "packed-input", "ragged-cache", "ems-sd"])
def test_slots_set_aside_are_about_those_of_the_layouts(method):
    acceptance = Acceptance(prompt_law="equal", prompt_mean=100, output_tokens=50)
    drafts = 0 if method == "greedy" else 7
    config = SpeculativeConfig.for_method(method, num_draft_tokens=drafts, max_new_tokens=50)
    slots = sum(make_layout(config, with_masks=False).capacities([100] * 16, [50] * 16, drafts))
    found = acceptance.with_settings(num_draft_tokens=drafts).cache_slots(16, config.cache_layout == "padded")
    assert found == pytest.approx(slots, rel=0.05)


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float8", "float8_e4m3fn"])
def test_the_type_of_weights_and_cache(run, tmp_path, name):
    full = "float8_e4m3fn" if name == "float8" else name
    arguments = (*QUICK, "--hardware", "h100-sxm", "--model-shape", "llama-3-8b", "--dtype", name)
    code, out, _ = run(*arguments, "--record", str(tmp_path))
    assert code == 0
    assert f"llama-3-8b in {full} on NVIDIA H100" in out
    assert json.loads(run(*arguments, "--json", "-")[1])["dtype"] == full
    assert GenerationTrace.from_json(tmp_path / "batch-3-ems-sd.json").model["dtype"] == full


def test_fewer_bytes_are_read_faster(run):
    arguments = (*QUICK, "--hardware", "h100-sxm", "--methods", "vanilla", "--json", "-", "--dtype")
    speeds = [json.loads(run(*arguments, name)[1])["runs"][0]["tokens_per_second"] for name in ("float16", "float8")]
    assert 1.3 < speeds[1] / speeds[0] < 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--dtype", "float8"), "NVIDIA A100 80 GB (SXM) has no FLOP rate for 'float8_e4m3fn'"),
        (("--dtype", "int4"), "The type 'int4' is not known"),
        (("--paper", "--dtype", "float16"), "--dtype does not go with --paper"),
        (("--prompt-law", "equal", "--prompt-sd", "100"), "--prompt-sd does not go with --prompt-law equal"),
        (("--labels", "foo"), "labels must be one of swapped, printed, not 'foo'"),
        (("--paper", "--labels", "foo"), "labels must be one of swapped, printed, not 'foo'"),
    ],
)
def test_settings_that_would_be_ignored_or_cannot_be_met_are_refused(run, arguments, words):
    refused(run("simulate", *arguments), words)


def test_where_a_mixture_is_below_greedy_at_small_batches_and_recovers(run, tmp_path):
    """At one row drafts touch further experts; with more rows greedy reads them anyway."""
    path = tmp_path / "mixtral.json"
    path.write_text(json.dumps(MIXTRAL))
    arguments = ("simulate", "--model-shape", str(path), "--hardware", "h200", "--hit-rate", ".6", "--token-rate")
    arguments = (*arguments, ".6", "--batch-sizes", "1,4,8,16", "--methods", "vanilla")
    out = run(*arguments)[1]
    assert "fall below greedy at batch" not in out
    line = out.splitlines()[-1]
    assert line.startswith("vanilla is expected to be below greedy at batch")
    data = json.loads(run(*arguments, "--json", "-")[1])
    (first, last), (start, end) = data["slower_than_greedy"]["vanilla"]
    assert (first, end) == (1, 256)
    assert last < 4
    assert start > 16
    assert f"from batch {start} on, and above it at all others up to 256." in line
    assert data["falls_below_greedy"]["vanilla"] == 1


def test_words_for_every_kind_of_ranges():
    assert slower_words(()) == "is expected to stay above greedy up to batch 256"
    assert slower_words(((1, 256),)) == "is expected to stay below greedy up to batch 256"
    assert slower_words(((9, 256),)) == "is expected to fall below greedy at batch 9"
    assert "below greedy at batch 1, and above it at all" in slower_words(((1, 1),))
    assert "at batches 3 to 5 and from batch 9 on, and" in slower_words(((3, 5), (9, 256)))


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (0.01234, "0.0123"), (2.414, "2.41"), (10, "10.0"), (85.61, "85.6"), (340.2, "340"), (1054, "1,054")],
)
def test_speeds_have_three_digits(value, shown):
    assert three_digits(value) == shown


def test_slow_machines_show_speeds_that_agree_with_the_speed_ups(run):
    out = run(*QUICK, "--hardware", "server-cpu-2-cores", "--methods", "ems-sd")[1].splitlines()
    speeds = out[out.index("Tokens/s") + 1 :][:2]
    greedy, ems = (float(line.split()[1]) for line in speeds)
    factor = float(out[out.index("Tokens/s") - 1].split()[1].rstrip("x"))
    assert ems / greedy == pytest.approx(factor, rel=0.01)
