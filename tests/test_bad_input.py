"""Bad input through the Python API: one clear sentence with row, limit and value, the right class of error, before any
forward; nothing lost, and other rows unaffected. (The command line has the same list in its own tests.)"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import emssd
from emssd import (
    ConfigError,
    EmssdError,
    PromptError,
    SpeculativeConfig,
    TraceError,
    UnsupportedModelError,
    generate,
    generate_steps,
    load_model,
)
from emssd.drafting import DraftModelDrafter, PromptLookupDrafter, ScriptedDrafter
from emssd.memory import check_memory, kv_cache_bytes
from emssd.model_runner import ModelRunner
from emssd.oracle import plain_generate
from emssd.output_files import read_outputs
from emssd.prompts import read_prompts
from emssd.random_models import random_model
from emssd.request import encode_prompts
from tests.helpers import assert_lossless, batch, greedy, language_model, prompt_ids, same


@pytest.fixture
def no_forward(monkeypatch):
    """Fails the test if a model is run from here on; loading one runs its self-check, so that comes first."""
    language_model("random-llama")
    monkeypatch.setattr(ModelRunner, "forward", lambda *args, **named: pytest.fail("a forward ran"))


def sentence(error: BaseException, *words: str) -> str:
    """The message is one line that ends as a sentence and holds these words."""
    message = str(error)
    assert message
    assert "\n" not in message
    assert message[-1] == "."
    for word in words:
        assert word in message, message
    return message


def test_every_error_has_one_base():
    for error in (ConfigError, PromptError, TraceError, UnsupportedModelError):
        assert issubclass(error, EmssdError)
    assert not issubclass(EmssdError, ValueError)


# --- prompts ---

PROMPTS = [
    ([], ["no prompts", "at least one"]),
    ("a single text", ["list"]),
    (b"bytes", ["list"]),
    ([[]], ["Row 0", "empty"]),
    ([[5], [], [6], ()], ["Row 1", "Row 3", "empty"]),
    ([[5], [97]], ["Row 1", "97", "0..96"]),
    ([[5, -1]], ["Row 0", "-1", "place 1", "0..96"]),
    ([[10**30]], ["Row 0", "0..96"]),
    ([[10**5000]], ["Row 0", "0..96", "thousands of digits"]),
    ([[5.0]], ["Row 0", "whole numbers"]),
    ([["a"]], ["Row 0", "whole numbers"]),
    ([[True]], ["Row 0", "whole numbers"]),
    ([[5], None], ["Row 1", "text or a list"]),
    ([5, 6], ["Row 0", "Row 1", "text or a list"]),
    ([{5: 6}], ["Row 0", "text or a list"]),
    ([np.array([5, 6])], ["Row 0", "text or a list"]),
    (torch.tensor([[5, 6]]), ["Row 0", "text or a list"]),
    (["text without a tokenizer"], ["Row 0", "tokenizer"]),
    ([[5], prompt_ids(257), [6]], ["Row 1", "257", "256"]),
]


@pytest.mark.parametrize(("prompts", "words"), PROMPTS, ids=range(len(PROMPTS)))
def test_bad_prompts_are_refused_before_any_forward_naming_all_bad_rows(prompts, words, no_forward):
    lm = language_model("random-llama")
    with pytest.raises(PromptError) as caught:
        generate_steps(lm, prompts, SpeculativeConfig(max_new_tokens=4))
    sentence(caught.value, *words)


def test_a_text_that_is_no_text_is_refused_by_row(monkeypatch):
    lm = load_model("random-llama")
    monkeypatch.setattr(ModelRunner, "forward", lambda *args, **named: pytest.fail("a forward ran"))
    with pytest.raises(PromptError) as caught:
        generate(lm, ["good", "half \ud800 pair"])
    assert "Row 1" in sentence(caught.value, "surrogate")
    assert "Row 0" not in str(caught.value)
    with pytest.raises(PromptError) as caught:
        generate(lm, ["good"], chat=True)
    sentence(caught.value, "chat template")


def test_bad_rows_are_collected_and_the_others_decode_as_if_alone():
    """What the command line and the app do: report the bad rows, go on with the rest; nothing is lost or renumbered."""
    lm = language_model("random-opt")
    good = batch(lm, [4, 7], 6)
    prompts = [good[0], [], [99], good[1], prompt_ids(65)]
    encoded = encode_prompts(lm, prompts)
    assert set(encoded.problems) == {1, 2, 4}
    for row, words in {1: ["empty"], 2: ["99", "0..96"], 4: ["65", "64"]}.items():
        problem = encoded.problems[row]
        assert f"Row {row}" in problem
        assert all(word in problem for word in words)
        assert "\n" not in problem
    assert encoded.token_ids == [good[0], None, None, good[1], None]
    with pytest.raises(PromptError) as caught:
        encoded.require_all()
    sentence(caught.value, "Row 1", "Row 2", "Row 4")
    kept = [ids for ids in encoded.token_ids if ids is not None]
    assert_lossless(lm, kept, SpeculativeConfig(num_draft_tokens=3, max_new_tokens=6), same(lm))


def test_the_callers_prompts_are_not_changed():
    lm = language_model("random-llama")
    prompts = [[5, 6], (7, 8)]
    generate(lm, prompts, SpeculativeConfig(max_new_tokens=4))
    assert prompts == [[5, 6], (7, 8)]


@pytest.mark.parametrize("n", [10, 10**6])
def test_prompt_and_new_tokens_over_the_limit_stop_with_context(n):
    lm = language_model("random-opt")
    prompts = [*batch(lm, [60], 10), *batch(lm, [64], 1)]
    trace = generate(lm, prompts, SpeculativeConfig(num_draft_tokens=4, max_new_tokens=n), same(lm))
    assert [row.finish_reason for row in trace.rows] == ["context", "context"]
    assert [len(row.output_token_ids) for row in trace.rows] == [5, 1]
    assert [row.output_token_ids for row in trace.rows] == [greedy(lm, prompt, 10) for prompt in prompts]


# --- settings ---


@pytest.mark.parametrize("k", [-1, 1025, 10**30, 1.5, "seven", True, math.nan, math.inf, None, [3, -1], {3}])
def test_negative_or_absurd_draft_lengths(k):
    with pytest.raises(ConfigError) as caught:
        SpeculativeConfig(num_draft_tokens=k)
    sentence(caught.value, "num_draft_tokens")


@pytest.mark.parametrize("n", [-1, 10**9, 2.5, "all", None])
def test_negative_or_absurd_lengths_of_output(n):
    with pytest.raises(ConfigError) as caught:
        SpeculativeConfig(max_new_tokens=n)
    sentence(caught.value, "max_new_tokens", str(n))


def test_a_draft_length_for_another_number_of_rows(no_forward):
    lm = language_model("random-llama")
    with pytest.raises(ConfigError) as caught:
        generate(lm, [[5], [6], [7]], SpeculativeConfig(num_draft_tokens=(1, 2), max_new_tokens=4))
    sentence(caught.value, "2 entries", "3 rows")


def test_a_draft_length_function_with_a_bad_answer_names_row_and_step():
    lm = language_model("random-llama")
    config = SpeculativeConfig(num_draft_tokens=lambda row, step: -3 if (row, step) == (1, 2) else 1, max_new_tokens=8)
    run = generate_steps(lm, [[5], [6]], config, ScriptedDrafter([]))
    with pytest.raises(ConfigError) as caught:
        list(run)
    sentence(caught.value, "row 1", "step 2", "-3")
    assert len(run.trace.steps) == 2, "what was decoded before is kept"


def test_no_drafts_and_no_tokens_are_not_errors(monkeypatch):
    lm = language_model("random-llama")
    prompts = batch(lm, [4, 2], 6)
    assert_lossless(lm, prompts, SpeculativeConfig(num_draft_tokens=0, max_new_tokens=6))
    monkeypatch.setattr(ModelRunner, "forward", lambda *args, **named: pytest.fail("a forward ran"))
    trace = generate(lm, prompts, SpeculativeConfig(max_new_tokens=0))
    assert [row.output_token_ids for row in trace.rows] == [[], []]
    assert [row.finish_reason for row in trace.rows] == ["length", "length"]


@pytest.mark.parametrize("temperature", [0.7, 1, -1.0, math.nan, "0"])
def test_sampling_is_refused_until_it_exists(temperature):
    with pytest.raises(ConfigError) as caught:
        SpeculativeConfig(temperature=temperature)
    sentence(caught.value, "temperature")


def test_unknown_methods_and_names():
    with pytest.raises(ConfigError) as caught:
        SpeculativeConfig.for_method("medusa")
    sentence(caught.value, "'medusa'", "ems-sd", "vanilla")
    with pytest.raises(AttributeError, match="medusa"):
        emssd.medusa  # noqa: B018


def test_a_run_that_does_not_fit_into_memory_is_refused_with_both_sizes(monkeypatch, no_forward):
    lm = language_model("random-llama")
    needed = kv_cache_bytes(lm, [10, 10])
    assert needed == 20 * 2 * 2 * 2 * 8 * 4  # slots, keys and values, layers, heads, width, bytes
    monkeypatch.setattr("emssd.memory.available_bytes", lambda device: needed)
    check_memory(lm, [10, 10])
    with pytest.raises(ConfigError) as caught:
        generate(lm, [[5]] * 40, SpeculativeConfig(max_new_tokens=200))
    sentence(caught.value, "GiB", "fewer rows")
    monkeypatch.setattr("emssd.memory.available_bytes", lambda device: None)
    check_memory(lm, [10**15])


# --- drafters ---


@pytest.mark.parametrize("proposal", [[97], [5, -1], [10**30], [10**5000]])
def test_a_drafter_that_proposes_what_the_target_cannot_embed(proposal):
    lm = language_model("random-llama")
    run = generate_steps(
        lm,
        [[5], [6]],
        SpeculativeConfig(num_draft_tokens=3, max_new_tokens=8),
        ScriptedDrafter(lambda row, ids, step: proposal if row == 1 else []),
    )
    with pytest.raises(ConfigError) as caught:
        list(run)
    sentence(caught.value, "row 1", "0..96")
    assert len(run.trace.steps) == 1


def test_a_drafter_that_proposes_more_than_it_may_is_cut():
    lm = language_model("random-llama")
    prompts = batch(lm, [4], 8)
    drafter = ScriptedDrafter(lambda row, ids, step: greedy(lm, prompts[0], 20)[len(ids) - 4 :])
    trace = assert_lossless(lm, prompts, SpeculativeConfig(num_draft_tokens=2, max_new_tokens=8), drafter)
    assert max(row.num_drafted for row in trace.live_rows()) == 2


def test_a_draft_model_with_another_tokenizer_is_refused_before_any_draft():
    ours = load_model("random-llama")
    theirs = load_model("random-gpt2")
    tokenizer = theirs.tokenizer
    renamed = type(theirs)(theirs.model, theirs.hooked, _Renamed(tokenizer), "other-model")
    run = generate_steps(ours, ["ab"], SpeculativeConfig(max_new_tokens=4), DraftModelDrafter(renamed))
    with pytest.raises(ConfigError) as caught:
        list(run)
    sentence(caught.value, "other-model", "random-llama", "id 40", "'new'")


class _Renamed:
    """A tokenizer in which one id means something else."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def get_vocab(self):
        return {("new" if index == 40 else token): index for token, index in self.tokenizer.get_vocab().items()}


# --- models ---


@pytest.mark.parametrize("name", ["random-bert", "no/such/folder", "", "smollm3-135m", "/"])
def test_an_unknown_model_or_folder(name):
    with pytest.raises(EmssdError) as caught:
        load_model(name)
    assert "\n" not in str(caught.value)
    assert repr(name) in str(caught.value) or name in str(caught.value)


def test_weights_in_pickle_format_are_refused_unopened(tmp_path):
    lm = language_model("random-llama")
    lm.model.config.save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04this would run code")
    with pytest.raises(UnsupportedModelError) as caught:
        load_model(tmp_path)
    sentence(caught.value, "pickle", "safetensors", str(tmp_path))


def test_a_damaged_weight_file_is_one_sentence(tmp_path):
    lm = language_model("random-llama")
    lm.model.save_pretrained(tmp_path)
    (weights,) = tmp_path.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:200])
    with pytest.raises(EmssdError) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


# --- files ---


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none.txt", None, ["does not exist"]),
        ("latin.txt", "caf\xe9".encode("latin-1"), ["UTF-8", "offset 3"]),
        ("bad.jsonl", b'{"prompt": "a"}\nplain text\n', ["line 2", "JSON"]),
        ("list.jsonl", b'["a"]\n', ["line 1", "object"]),
        ("other.jsonl", b'{"text": "a"}\n', ["line 1", "prompt", "turns"]),
        ("number.jsonl", b'{"prompt": 5}\n', ["line 1", "string"]),
        ("huge.jsonl", b'{"prompt": ' + b"9" * 5000 + b"}\n", ["line 1"]),
        ("deep.jsonl", b"[" * 100_000 + b"\n", ["line 1", "deep"]),
        ("empty.txt", b"\n \n", ["no prompts"]),
    ],
)
def test_prompt_files_that_cannot_be_read(tmp_path, name, content, words):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PromptError) as caught:
        read_prompts(path)
    sentence(caught.value, str(path), *words)


@pytest.mark.parametrize(
    "line", [b"[" * 100_000, b'{"prompt_token_ids": ' + b"9" * 5000 + b"}", b"{", b"[]", b'{"a": 1}']
)
def test_files_of_outputs_that_cannot_be_read(tmp_path, line):
    path = tmp_path / "outputs.jsonl"
    path.write_bytes(b'{"prompt_token_ids": [1], "output_token_ids": []}\n' + line + b"\n")
    with pytest.raises(PromptError) as caught:
        read_outputs(str(path))
    sentence(caught.value, str(path), "line 2")


LM_WORDS = "must come from load_model"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda lm: generate(lm.model, [[1]]), LM_WORDS),
        (lambda lm: generate(lm, [[1]], {}), "must be a SpeculativeConfig"),
        (lambda lm: generate(lm, [[1]], drafter="prompt-lookup"), "must be a drafter object"),
        (lambda lm: generate(lm, [[1]], drafter=PromptLookupDrafter), "must be a drafter object"),
        (lambda lm: generate(lm, [[1]], drafter=ScriptedDrafter(lambda *_: None)), "must propose a list of token ids"),
        (lambda lm: generate(lm, [[1]], drafter=ScriptedDrafter(lambda *_: [1.7])), "must propose a list of token ids"),
        (lambda lm: generate(lm, [[1]], drafter=ScriptedDrafter(lambda *_: "ab")), "must propose a list of token ids"),
        (lambda lm: ScriptedDrafter(None), "a list per row or a function"),
        (lambda lm: DraftModelDrafter("random-llama"), LM_WORDS),
        (lambda lm: load_model(None), "named by a text or a path"),
        (lambda lm: load_model("random-llama", device="meta"), "cannot be used here"),
        (lambda lm: load_model("random-llama", device=None), "cannot be used here"),
    ],
    ids=range(12),
)
def test_a_wrong_kind_of_argument_is_one_sentence(call, words):
    with pytest.raises(ConfigError) as caught:
        call(language_model("random-llama"))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_without_a_head_and_one_without_a_kernel_are_refused_for_what_they_are():
    llama = language_model("random-llama").model
    with pytest.raises(UnsupportedModelError, match="no language-model head"):
        load_model.from_pretrained_model(llama.model)
    with pytest.raises(UnsupportedModelError, match="does not run in float64 here"):
        load_model("random-mixtral", dtype="float64")


def test_a_model_in_training_mode_is_checked_in_evaluation_mode_and_left_as_it_is():
    """Dropout in the user's model must not make the oracle wrong."""
    model = random_model("random-gpt2")
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    model.train()
    lm = load_model.from_pretrained_model(model)
    config = SpeculativeConfig.ems_sd(max_new_tokens=12, check_invariants=True)
    trace = generate(lm, [[5, 6, 7]], config)
    assert plain_generate(lm, [5, 6, 7], 12) == trace.rows[0].output_token_ids
    assert model.training


def test_a_draft_length_function_is_asked_once_per_row_and_step():
    asked = []

    def length(row, step):
        asked.append((row, step))
        return 2

    trace = generate(
        language_model("random-llama"), [[5, 6, 7]], SpeculativeConfig(num_draft_tokens=length, max_new_tokens=5)
    )
    assert asked == [(0, step.index) for step in trace.decode_steps]


def test_greedy_takes_no_draft_length_from_settings_shared_by_all_presets():
    assert SpeculativeConfig.greedy(num_draft_tokens=3).method == "greedy"
