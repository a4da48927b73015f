"""Models and machines of one's own on the page Numbers: read, refused, carried by links, named in charts and files."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from emssd.__main__ import main
from emssd.acceptance import Acceptance
from emssd.cost_model import CostModel
from emssd.errors import ConfigError
from emssd.measured_machine import AttentionCosts, MeasuredMachine
from emssd.model_config import read_config, shape_from_config
from emssd.model_presets import MODELS, PRESET_CONFIGS
from emssd.paper import shipped_fits
from emssd.simulation_report import slower_words
from emssd.trace import GenerationTrace
from emssd.ui.numbers_cells import simulated_set
from emssd.ui.numbers_link import link_of, read_link
from emssd.ui.numbers_model import curves
from emssd.ui.numbers_own import (
    ENTERED,
    FEWEST_POSITIONS,
    LONGEST_NAME,
    MEASURED,
    Rates,
    machine_text,
    model_text,
    own_machine,
    own_model,
    own_name,
)
from emssd.ui.numbers_own_files import config_name, read_measured
from emssd.ui.numbers_settings import default_settings
from emssd.ui.numbers_table import csv_of
from emssd.ui.numbers_words import falls_answer, room_words, sizes
from tests.app_pages import open_app, texts, warnings

NUMBERS = "numbers"
MIXTRAL = {
    **{"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8},
    **{"num_experts_per_tok": 2, "tie_word_embeddings": False},
}
GEMMA = {
    **{"model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26},
    **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256000},
    **{"max_position_embeddings": 8192, "sliding_window": 4096, "torch_dtype": "bfloat16"},
}
DEEPSEEK = {
    **{"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61},
    **{"num_attention_heads": 128, "vocab_size": 129280, "n_routed_experts": 256, "num_experts_per_tok": 8},
    **{"moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 3, "kv_lora_rank": 512},
    **{"qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "q_lora_rank": 1536},
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
CONFIGS = {**PRESET_CONFIGS, "mixtral": MIXTRAL, "gemma-2": GEMMA, "deepseek": DEEPSEEK, "gpt2": GPT2}
BOX = Rates(ENTERED, bandwidth=9e11, flops=1e14, dtype="bfloat16", memory=24e9, launch=5.0, host=2.0)


def measured(**changes) -> bytes:
    """A calibration's file."""
    model = {"name": "m", "parameters": 10**8, "layers": 12, "heads": 12, "kv_heads": 12, "head_dim": 64}
    fields = {
        "model": {**model, "hidden": 768, "vocab": 50000, "dtype": "float32"},
        "environment": {"device_name": "x86_64", "threads": 2, "model": "m"},
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": 18.0,
        **{"bandwidth": 21.5e9, "flops": 201e9, "op_us": 2.0, "host_ms": 0.5, "sequence_us": 20.0},
        "dense_ms": ((1.0, 40.0), (8.0, 60.0)),
        "attention": AttentionCosts(1000.0, 500.0, 10.0, 0.5, 0.25, 0.05),
        "memory_bytes": 2e10,
    }
    return json.dumps({**MeasuredMachine(**fields).to_dict(), **changes}).encode()


def ask(page, name: str):
    page.selectbox(key=f"numbers_{name}").set_value("ask").run()
    assert not page.exception
    return page


def use(page, name: str):
    page.button(key=f"numbers_own_{name}_use").click().run()
    assert not page.exception
    return page


# --- texts and links -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_a_models_text_holds_all_its_sizes(name):
    shape = shape_from_config(CONFIGS[name])
    text = model_text(name, shape)
    assert (own_model(text).shape, own_model(text).title) == (shape, name)
    assert len(text) < 250
    settings = default_settings("h200", text)
    assert read_link(link_of(settings)) == (settings, [])
    if name in MODELS:
        assert replace(settings, model=name) == default_settings("h200", name)
        assert settings.cost_model == default_settings("h200", name).cost_model


def test_a_machines_text_holds_its_rates():
    for rates in (BOX, replace(BOX, kind=MEASURED, memory=0.0, bandwidth=1.234567e9, launch=0.25, sequence=12.5)):
        machine = own_machine(machine_text("My box", rates))
        assert (machine.title, machine.launch_us, machine.host_ms) == ("My box", rates.launch, rates.host)
        assert machine.bandwidth == pytest.approx(rates.bandwidth, rel=1e-5)
        assert machine.peak_flops == {"bfloat16": 1e14}
        assert machine.memory_bytes == (rates.memory or None)
        assert (machine.bandwidth_share == 1.0) is (rates.kind == MEASURED) is (not machine.overlap)
        settings = default_settings(machine_text("My box", rates), "llama-3-8b")
        assert read_link(link_of(settings)) == (settings, [])


BAD_TEXTS = {
    "model": [
        "own~", "own~1.2.3~x", "own~~", "own~" + "9" * 800 + "~x",
        *(model_text("x", MODELS["opt-6.7b"]).replace(old, new, 1) for old, new in (
            (".32.32.32.", ".0.32.32."), (".32.32.32.", ".9999.32.32."), (".32.32.32.", ".32.32.5."),
            (".50272.", ".-1."), (".50272.", ".x."), (".2048.", ".64."), (".0.0~", ".0.f~"),
            (".0.0~", ".16.fffffffff~"), (".50272.", ".."),
        )),
    ],
    "hardware": [
        "own~", "own~entered_float16_1~x",
        *(machine_text("x", BOX).replace(old, new, 1) for old, new in (
            ("9e11", "0"), ("9e11", "nan"), ("9e11", "1e99"), ("9e11", "-1"), ("1e14", "0"), ("bfloat16", "int8"),
            ("entered", "guessed"), ("_5_", "_1e9_"), ("_5_", "_1_5_"),
        )),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, every in BAD_TEXTS.items() for text in every])
def test_a_link_with_bad_numbers_gets_one_sentence_and_the_default(name, text):
    settings, notices = read_link({"hardware": "h200", "length": "5", name: text})
    (notice,) = notices
    assert notice.startswith(f"The address asks for {name} of one’s own that cannot be: ")
    assert notice.endswith(" is shown.")
    assert len(notice) < 260
    start = default_settings() if name == "hardware" else default_settings("h200")
    assert replace(settings, length=start.length) == start
    assert settings.length == 5


def test_random_texts_are_read_or_refused_and_nothing_else():
    draw = random.Random(7)
    seeds = [model_text("x", MODELS["opt-6.7b"]), machine_text("x", BOX), model_text("g", shape_from_config(GEMMA))]
    for _ in range(600):
        text = list(draw.choice(seeds))
        for _ in range(draw.randint(1, 4)):
            text[draw.randrange(4, len(text))] = draw.choice("0123456789.~_ef-xé\u202e")
        for name in ("model", "hardware"):
            settings, notices = read_link({"hardware": "h200", name: "".join(text)})
            assert len(notices) <= 1
            assert all(value >= 0 for value in vars(settings.costs).values())


def test_an_own_model_does_not_go_with_the_papers_gpu():
    settings, notices = read_link({"model": model_text("Mine", MODELS["opt-13b"])})
    assert settings == default_settings()
    assert notices == [
        "The address asks for model “Mine”, but costs of the paper’s GPU are known for opt-6.7b only: name other "
        "hardware, too."
    ]


# --- files ---------------------------------------------------------------------------------------------------------


def test_names_come_from_configuration_file_or_family():
    assert config_name({"_name_or_path": "org/Some-7B", "model_type": "llama"}, "other.json") == "Some-7B"
    assert config_name({"_name_or_path": ""}, "other.json") == "other"
    assert config_name({"model_type": "llama"}, "config.json") == "llama"
    assert config_name({"model_type": 5}) == "own model"
    assert own_name("  a\nb\u202e ", "x") == "a b⟨202E⟩"
    assert len(own_name("x" * 500, "y")) == LONGEST_NAME
    assert own_name(" ", "y") == "y"


def test_a_calibration_is_read_as_a_machine():
    title, rates = read_measured(measured(), "mine.json")
    assert title == "x86_64, 2 threads"
    machine = own_machine(machine_text(title, rates))
    want = MeasuredMachine.from_dict(json.loads(measured())).hardware
    for each in ("opt-125m", "qwen3-0.6b"):
        model = CostModel.for_hardware(machine, MODELS[each], "float32")
        assert replace(model, name="") == replace(CostModel.for_hardware(want, MODELS[each], "float32"), name="")


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff", b"[" * 100_000, b"[]", b"{}", json.dumps(MIXTRAL).encode(), measured(version=2),
        measured(bandwidth=0), measured(bandwidth=-1), measured(flops=float("nan")), measured(memory_bytes=None),
        measured(bandwidth=10**400), measured(bandwidth=1.0), measured(attention={}), measured(dense_ms=[[1, 1]]),
        measured(model={}), b" " * (2**20 + 1),
    ],
)  # fmt: skip
def test_a_bad_calibration_gets_one_sentence(content):
    with pytest.raises(ConfigError) as caught:
        read_measured(content, "x.json")
    said = str(caught.value)
    assert said.startswith("x.json ") or "must be a number from" in said
    assert len(said) < 260
    assert "\n" not in said


def test_configurations_of_any_content_are_read_or_refused():
    draw, values = random.Random(3), [None, True, -1, 0, 10**9, 10**30, 1.5, "x", [], [{}], {}, float("nan")]
    names = sorted({name for config in CONFIGS.values() for name in config} | {"layer_types", "architectures"})
    for _ in range(1500):
        config = dict(draw.choice(list(CONFIGS.values())))
        for name in draw.sample(names, draw.randint(1, 3)):
            config[name] = draw.choice(values)
        with contextlib.suppress(ConfigError):
            shape = shape_from_config(config)
            assert own_model(model_text("x", shape)).shape == shape


BAD_CONFIGS = {
    "no JSON": "{",
    "a list": "[1]",
    "nothing": "{}",
    "no layers": json.dumps({**MIXTRAL, "num_hidden_layers": 0}),
    "layers without end": json.dumps({**MIXTRAL, "num_hidden_layers": 10**9}),
    "heads": json.dumps({**MIXTRAL, "num_key_value_heads": 5}),
    "an encoder": json.dumps({**MIXTRAL, "is_encoder_decoder": True}),
    "layers without attention": json.dumps({**MIXTRAL, "layer_types": ["mamba"] * 32}),
    "an unread family": json.dumps({**MIXTRAL, "model_type": "bert"}),
}


@pytest.mark.parametrize("what", BAD_CONFIGS)
def test_a_configuration_is_refused_in_the_command_lines_words(what, tmp_path):
    with pytest.raises(ConfigError) as caught:
        shape_from_config(read_config(BAD_CONFIGS[what].encode(), "FILE"))
    file, said = tmp_path / "config.json", io.StringIO()
    file.write_text(BAD_CONFIGS[what])
    with contextlib.redirect_stderr(said):
        assert main(["simulate", f"--model-shape={file}"]) == 2
    assert str(caught.value) in said.getvalue().replace(str(file), "FILE")


def test_a_model_with_few_positions_has_its_prompts_cut():
    assert {fit.acceptance.output_tokens for fit in shipped_fits().values()} == {FEWEST_POSITIONS}
    settings = default_settings("h200", model_text("gpt2", shape_from_config(GPT2)))
    assert settings.acceptance.prompt_max == settings.prompt_room == 1024 - 127
    assert room_words(settings) == "Cut at 897 tokens: the model has 1,024 positions."
    assert default_settings("h200", "llama-3-8b").prompt_room is None
    least = model_text("x", shape_from_config({**GPT2, "n_positions": FEWEST_POSITIONS}))
    assert curves(default_settings("h200", least)).lines["ems-sd"][24] > 0
    with pytest.raises(ConfigError, match="127 positions, too few for outputs of 128 tokens"):
        model_text("x", shape_from_config({**GPT2, "n_positions": 127}))


# --- the page ------------------------------------------------------------------------------------------------------


def test_a_pasted_configuration_is_refused_or_shown_and_its_link_restores_it():
    page = ask(open_app(NUMBERS), "model")
    assert page.selectbox(key="numbers_model").value == "opt-6.7b"
    assert warnings(use(page, "model")) == ["Give a config.json or paste its text."]
    page.text_input(key="numbers_own_model_name").set_value("Mine <b>")
    page.text_area(key="numbers_own_model_text").set_value(json.dumps({**MIXTRAL, "num_key_value_heads": 5})).run()
    assert warnings(use(page, "model")) == ["num_attention_heads 32 is not a multiple of num_key_value_heads 5."]
    assert '"num_key_value_heads": 5' in page.text_area(key="numbers_own_model_text").value
    assert page.text_input(key="numbers_own_model_name").value == "Mine <b>"
    assert not page.query_params
    page.text_area(key="numbers_own_model_text").set_value(json.dumps(MIXTRAL)).run()
    assert not warnings(use(page, "model"))
    shown = texts(page)
    assert "Mine &lt;b&gt; with prompt lookup on NVIDIA A100 80 GB (SXM)" in shown
    assert sizes(shape_from_config(MIXTRAL)) in shown
    plots = page.get("plotly_chart")
    assert [" Of Mine <b> on NVIDIA A100 80 GB (SXM)." in plot.proto.alt for plot in plots] == [True] * 4 + [False]
    assert "Mine &lt;b&gt; on NVIDIA A100" in json.loads(plots[0].proto.spec)["layout"]["title"]["text"]
    assert '"filename": "numbers-slots-Mine-b-on-NVIDIA-A100-80-GB-SXM"' in plots[1].proto.config
    link = {name: values[0] if isinstance(values, list) else values for name, values in page.query_params.items()}
    other = open_app(NUMBERS, **link)
    assert not warnings(other)
    assert [plot.proto.spec for plot in other.get("plotly_chart")] == [plot.proto.spec for plot in plots]
    other.selectbox(key="numbers_hardware").set_value("l4").run()
    assert "Mine &lt;b&gt; with prompt lookup on NVIDIA L4" in texts(other)
    other.selectbox(key="numbers_hardware").set_value("paper").run()
    assert other.selectbox(key="numbers_model").value == "opt-6.7b"


def test_an_uploaded_configuration_and_a_pasted_one_are_one_too_many():
    page = ask(open_app(NUMBERS, hardware="h200"), "model")
    file = ("gemma-2-2b.json", json.dumps(GEMMA).encode(), "application/json")
    page.file_uploader(key="numbers_own_model_file").set_value([file])
    page.text_area(key="numbers_own_model_text").set_value("{}").run()
    assert warnings(use(page, "model")) == ["Give a config.json or paste its text, not both."]
    page.text_area(key="numbers_own_model_text").set_value("").run()
    assert not warnings(use(page, "model"))
    assert "gemma-2-2b with prompt lookup on NVIDIA H200 (SXM)" in texts(page)
    assert "window 4,096 in 13 layers" in texts(page)


def test_impossible_rates_are_named_and_what_was_entered_stays():
    page = ask(open_app(NUMBERS), "hardware")
    assert warnings(use(page, "hardware")) == ["Memory bandwidth is missing: enter it, or give a calibration."]
    for name, value in {"bandwidth": 0.0, "flops": 100.0, "memory": 24.0, "host": -1.0}.items():
        page.number_input(key=f"numbers_own_hardware_{name}").set_value(value)
    page.text_input(key="numbers_own_hardware_name").set_value("My box").run()
    assert warnings(use(page, "hardware")) == [
        "The memory bandwidth must be a number from 0.1 to 1,000,000 GB/s, not 0."
    ]
    page.number_input(key="numbers_own_hardware_bandwidth").set_value(900.0).run()
    assert warnings(use(page, "hardware")) == [
        "The loop’s own work per step must be a number from 0 to 10,000 ms, not -1."
    ]
    assert page.number_input(key="numbers_own_hardware_memory").value == 24.0
    page.number_input(key="numbers_own_hardware_host").set_value(2.0).run()
    assert not warnings(use(page, "hardware"))
    assert page.query_params["hardware"] == machine_text("My box", replace(BOX, dtype="float16"))
    assert "OPT-6.7B with prompt lookup on My box" in texts(page)
    assert "100 TFLOP/s, 900 GB/s, OPT-6.7B float16" in texts(page)
    assert "My box" in page.selectbox(key="numbers_hardware").options


def test_a_calibration_can_be_given():
    page = ask(open_app(NUMBERS), "hardware")
    page.file_uploader(key="numbers_own_hardware_file").set_value([("x.json", b"{}", "application/json")]).run()
    assert warnings(use(page, "hardware")) == [
        "x.json is no calibration: give a file that `emssd doctor --calibrate` kept."
    ]
    page.file_uploader(key="numbers_own_hardware_file").set_value([("c.json", measured(), "application/json")]).run()
    assert not warnings(use(page, "hardware"))
    assert "on x86_64, 2 threads" in texts(page)
    assert "Rates from a calibration file." in texts(page)


def test_own_names_are_in_the_csv_and_no_formula():
    text = model_text("=1+1", shape_from_config(MIXTRAL))
    settings = default_settings(machine_text("My box", BOX), text)
    lines = [line for line in csv.DictReader(io.StringIO(csv_of(settings))) if line["quantity"] == "setting"]
    found = {line["kind"]: line["model"] for line in lines}
    assert (found["model"], found["hardware"]) == ("'=1+1", "My box")
    assert (found["model in links"], found["hardware in links"]) == (settings.model, settings.hardware)


def test_an_own_model_opens_as_cells():
    settings = default_settings("h200", model_text("Mine", shape_from_config(GEMMA)))
    made = simulated_set(settings)
    trace = GenerationTrace.from_json(made.traces["vanilla"].to_json())
    assert (trace.model["name"], trace.model["sliding_window"]) == ("Mine", 4096)
    assert "Simulated: Mine" in made.title


def test_where_a_method_recovers_page_and_command_line_say_the_same(tmp_path):
    file, text = tmp_path / "mixtral.json", model_text("mixtral", shape_from_config(MIXTRAL))
    file.write_text(json.dumps(MIXTRAL))
    settings = replace(default_settings("h200", text), hit=60.0, token=60.0)
    ranges = curves(settings).slower
    assert len(ranges["vanilla"]) == 2
    options = {name: value for name, value in vars(settings.acceptance).items() if value != getattr(Acceptance(), name)}
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(
            ["simulate", f"--model-shape={file}", "--hardware=h200", "--batch-sizes=1", "--methods=vanilla,ems-sd"]
            + ["--batches=1", "--quiet", *arguments]
        ) == 0  # fmt: skip
    for method, title in (("vanilla", "Vanilla"), ("ems-sd", "EMS-SD")):
        assert f"{method} {slower_words(ranges[method])}." in said.getvalue()
        assert f"{title} {slower_words(ranges[method])}." in falls_answer(ranges)
    page = open_app(NUMBERS, **link_of(settings))
    assert falls_answer(ranges) in texts(page)
    assert "vanilla at batch" in page.get("plotly_chart")[0].proto.alt
