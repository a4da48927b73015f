"""The page Numbers: what it computes, its address, its controls, its files, and how fast it answers."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import subprocess
import sys
from dataclasses import replace

import pytest

from emssd.__main__ import main
from emssd.acceptance import Acceptance
from emssd.cost_model import CostModel
from emssd.errors import ConfigError
from emssd.expectation import expected_runs
from emssd.expected_speeds import LONGEST_DRAFT, runs_of
from emssd.hardware import HARDWARE
from emssd.machines import machine_named
from emssd.model_presets import MODELS
from emssd.paper import shipped_fits
from emssd.run_counts import speed_up
from emssd.simulation_report import slower_words
from emssd.trace import GenerationTrace
from emssd.ui import numbers_charts
from emssd.ui.numbers_cells import simulated_set
from emssd.ui.numbers_link import link_of, read_link
from emssd.ui.numbers_measured import read_bench
from emssd.ui.numbers_measured_chart import measured
from emssd.ui.numbers_model import (
    CURVE,
    EVERY,
    MAIN,
    best_drafts,
    curves,
    factors_at,
    fit_errors,
    paper_points,
    step_parts,
)
from emssd.ui.numbers_settings import Costs, attainable, cost_range, default_settings, models_for
from emssd.ui.numbers_table import csv_of
from emssd.ui.numbers_words import (
    below,
    best_answer,
    falls_answer,
    fit_words,
    model_title,
    percent,
    points_words,
    varlen_answer,
)
from tests.app_pages import COMPARE, EXPLORE, ROOT, go, methods, open_app, run_count, texts, warnings

NUMBERS = "numbers"
FIT = default_settings()
PATHS = (
    *(("paper", "opt-6.7b"), ("a100-80gb", "opt-6.7b"), ("h200", "llama-3-70b"), ("l4", "qwen3-8b")),
    ("server-cpu-2-cores", "smollm2-135m"),
)


@pytest.mark.parametrize(("hardware", "model"), PATHS)
def test_joined_runs_give_each_runs_own_speed_up(hardware, model):
    settings = default_settings(hardware, model)
    factors = runs_of(settings.acceptance, CURVE, EVERY).speed_ups(settings.cost_model)
    runs = expected_runs(settings.acceptance, CURVE, EVERY)
    for (batch, method), factor in factors.items():
        alone = speed_up(runs[batch][method], runs[batch]["greedy"], settings.cost_model)
        assert factor == pytest.approx(alone, rel=1e-9), (batch, method)


def test_the_papers_setting_shows_the_papers_picture():
    found, points = curves(FIT), paper_points(FIT)
    assert found.falls["vanilla"] == 12
    assert {batch: round(value, 2) for batch, value in points["vanilla"].items()} == {
        1: 3.94, 2: 3.21, 4: 2.26, 8: 1.37, 12: 0.99, 16: 0.83, 20: 0.70, 24: 0.66
    }  # fmt: skip
    assert round(points["ems-sd"][24], 2) == 1.41
    errors = [abs(found.lines[name][batch] / value - 1) for name in points for batch, value in points[name].items()]
    assert sum(errors) / len(errors) < 0.05
    assert paper_points(default_settings("h200", "opt-6.7b")) == {}
    assert paper_points(default_settings("a100-80gb", "opt-6.7b")) == {}


def test_labels_exchange_the_two_ablation_rows_and_nothing_else():
    printed, swapped = (paper_points(replace(FIT, labels=labels)) for labels in ("printed", "swapped"))
    assert printed["ragged-cache"] == swapped["packed-input"]
    assert printed["packed-input"] == swapped["ragged-cache"]
    assert all(printed[name] == swapped[name] for name in MAIN)
    assert printed["ragged-cache"][8] == pytest.approx(687.11 / 468.89)


def test_the_first_batch_below_greedy_is_the_first():
    for hit in (40.0, 86.2, 97.0):
        settings = replace(FIT, hit=hit)
        first = curves(settings).falls["vanilla"]
        factors = runs_of(settings.acceptance, tuple(range(1, first + 1)), EVERY).speed_ups(settings.cost_model)
        assert [factors[batch, "vanilla"] < 1 for batch in range(1, first + 1)] == [False] * (first - 1) + [True]


@pytest.mark.parametrize("batch", [1, 8, 24])
@pytest.mark.parametrize("token", [40.0, 91.7, 99.5])
def test_the_best_draft_length_is_the_best_of_all(batch, token):
    settings = replace(FIT, batch=batch, token=token)
    best = best_drafts(settings)
    for name in MAIN:
        every = {length: factors_at(replace(settings, length=length))[name] for length in range(1, LONGEST_DRAFT + 1)}
        assert best[name][1] == pytest.approx(max(every.values()), rel=1e-9)
        assert every[best[name][0]] == pytest.approx(max(every.values()), rel=1e-9)


def test_with_varlen_attention_vanilla_stays_above_greedy():
    assert curves(replace(FIT, kernel="varlen")).slower == {"vanilla": (), "ems-sd": ()}
    page = open_app(NUMBERS, kernel="varlen")
    assert "vanilla no longer falls below greedy" in texts(page)
    assert "Slower than not speculating" not in page.get("plotly_chart")[0].proto.spec


def test_the_order_of_the_ablation_flips_with_the_prompts():
    spread, equal = factors_at(FIT), factors_at(replace(FIT, spread=0))
    assert spread["ragged-cache"] > spread["packed-input"]
    assert equal["ragged-cache"] < equal["packed-input"]


def test_a_mean_step_adds_up_to_the_run():
    for kernel in ("per_token", "varlen"):
        settings = replace(FIT, kernel=kernel)
        run = expected_runs(settings.acceptance, [24], EVERY)[24]["vanilla"]
        parts = step_parts(settings, "vanilla")
        assert parts.steps * parts.step_ms == pytest.approx(1e3 * run.seconds(settings.cost_model))
        assert parts.steps * parts.fed == pytest.approx(sum(run.counts_by_kind["input_rows"].values()))
        assert parts.attention_ms == pytest.approx(1e-3 * settings.costs.slot * sum(parts.slots.values()))


def test_untouched_sliders_leave_the_data_sheets_costs_and_moved_ones_change_one_term():
    settings = default_settings("h200", "llama-3-8b")
    base = CostModel.for_hardware(HARDWARE["h200"], MODELS["llama-3-8b"], "float16")
    assert settings.cost_model == base
    start = settings.costs
    moved = replace(settings, costs=replace(start, slot=2 * start.slot)).cost_model
    assert (moved.slot_us, moved.row_us, moved.step_ms) == (2 * start.slot, base.row_us, base.step_ms)
    moved = replace(settings, costs=replace(start, fixed=2 * start.fixed)).cost_model
    assert (moved.weights_ms, moved.launch_ms) == pytest.approx((2 * base.weights_ms, 2 * base.launch_ms))
    assert moved.slot_us == base.slot_us


def test_every_start_of_a_cost_slider_is_one_of_its_values():
    for hardware in HARDWARE:
        for model in MODELS:
            for value in vars(default_settings(hardware, model).costs).values():
                end, step = cost_range(value)
                assert 0 <= value <= end
                assert value / step == pytest.approx(round(value / step), abs=1e-6), (hardware, model, value)


def test_a_link_restores_every_setting():
    changed = replace(
        default_settings("h200", "qwen3-8b", "printed"),
        kernel="varlen", hit=61.5, token=70.0, length=3, mean=120, spread=0, batch=4,
        costs=Costs(fixed=5.0, row=0.01, slot=0.05),
    )  # fmt: skip
    link = link_of(changed)
    assert read_link(link) == (changed, [])
    assert len(link) == 13
    assert link_of(FIT) == {}
    assert read_link({}) == (FIT, [])
    for hardware in HARDWARE:
        settings = default_settings(hardware, "opt-13b")
        assert read_link(link_of(settings)) == (settings, [])


BAD = {
    "hardware": "tpu", "model": "<b>x</b>", "kernel": "flash", "labels": "", "fixed": "nan", "row": "1e99",
    "slot": "-1", "hit": "120", "token": "x", "length": "2.5", "mean": "0", "spread": "9" * 30, "batch": "5",
}  # fmt: skip


def test_each_bad_value_of_an_address_gets_one_sentence_and_nothing_else_is_lost():
    settings, notices = read_link({**BAD, "other": "x"})
    assert len(notices) == len(BAD)
    for name, notice in zip(sorted(BAD), sorted(notices, key=lambda notice: notice.split()[4]), strict=True):
        assert notice.split()[4] == name
        assert len(notice) < 140
    assert (settings.hit, settings.mean, settings.costs.slot, settings.costs.row) == (100, 1, 0, 0.1)
    assert replace(settings, hit=FIT.hit, mean=FIT.mean, costs=FIT.costs) == FIT
    page = open_app(NUMBERS, **{**BAD, "length": "5"})
    assert len(warnings(page)) == len(BAD) - 1
    assert page.slider(key="numbers_length").value == 5
    page.slider(key="numbers_length").set_value(6).run()
    assert not warnings(page)


def test_the_page_opens_with_charts_that_say_their_numbers():
    page = open_app(NUMBERS)
    assert not warnings(page)
    plots = page.get("plotly_chart")
    assert len(plots) == 5
    alts = [plot.proto.alt for plot in plots]
    assert "Vanilla 3.94 at 1" in alts[0]
    assert "Slower than not speculating: vanilla from batch 12" in alts[0]
    assert "prompt pads" in alts[1]
    assert "bound by reading" in alts[2]
    assert "finished rows" in alts[3]
    shown = texts(page)
    assert "From batch 12 on." in shown
    assert "orders the two middle rows the other way from its own caption. Shown here: our model." in shown
    assert "paper, Figure 1" in shown
    assert "thousand KV slots per step and layer, as often as they are read: two launches count twice" in shown
    assert "dense, EMS-SD: 130 rows" in alts[2]
    parts = step_parts(FIT, "ems-sd")
    assert f"Attention takes {parts.attention_ms:.3g} of EMS-SD’s {parts.step_ms:.3g} ms" in shown
    assert "900 ± 450 tokens" in shown
    assert [each.label for each in page.slider if each.key == "numbers_spread"] == ["Spread (sd) **450 tokens**"]
    assert "A100" not in shown.replace("an A100’s data sheet says, which is an assumption", "")


def test_the_papers_gpu_and_an_a100_are_two_machines():
    """A name gives one answer, on the page as on the command line."""
    for name, falls in (("paper", 12), ("a100-80gb", None)):
        settings = default_settings(name, "opt-6.7b")
        machine = machine_named(name)
        assert CostModel.for_hardware(machine, MODELS["opt-6.7b"], "float16") == settings.cost_model
        assert (settings.machine, settings.machine.title) == (machine, machine.title)
        found = curves(settings).falls["vanilla"]
        assert falls in (None, found)
        rows = replace(settings, hit=85.0, token=91.6)
        options = [f"--hit-rate={rows.hit / 100}", f"--token-rate={rows.token / 100}", f"--hardware={name}"]
        options += [f"--spread={rows.acceptance.spread}", "--batch-sizes=1", "--methods=vanilla,ems-sd", "--batches=1"]
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            assert main(["simulate", "--json=-", "--quiet", *options]) == 0
        assert json.loads(said.getvalue())["falls_below_greedy"] == curves(rows).falls
    assert default_settings().hardware == "paper"
    assert curves(default_settings("a100-80gb", "opt-6.7b")).falls != curves(FIT).falls


@pytest.mark.parametrize("labels", ["hidden", "swapped", "printed"])
def test_the_papers_gpu_brings_the_fit_of_the_labels_and_no_other_model(labels):
    fit = shipped_fits()["swapped" if labels == "hidden" else labels]
    settings = default_settings("paper", "opt-6.7b", labels)
    model = settings.cost_model
    assert replace(model, name=fit.cost_model.name) == fit.cost_model
    assert settings.machine.bandwidth == pytest.approx(1e6 * 2**19 / model.slot_us)
    assert models_for("paper") == ["opt-6.7b"]
    read, notices = read_link({"model": "llama-3-8b", "labels": labels})
    assert read == settings
    assert notices == [
        "The address asks for model “llama-3-8b”, but costs of the paper’s GPU are known for opt-6.7b only: name other "
        "hardware, too."
    ]


def test_coming_back_to_the_papers_gpu_from_another_model_brings_its_model():
    page = open_app(NUMBERS, hardware="h200", model="llama-3-8b")
    page.selectbox(key="numbers_hardware").set_value("paper").run()
    assert not page.exception
    assert page.selectbox(key="numbers_model").value == "opt-6.7b"
    assert page.selectbox(key="numbers_model").options == ["OPT-6.7B", "Own config…"]
    assert "hardware" not in page.query_params
    page.selectbox(key="numbers_hardware").set_value("l4").run()
    assert page.selectbox(key="numbers_model").value == "opt-6.7b"
    page.selectbox(key="numbers_model").set_value("qwen3-8b").run()
    assert (page.query_params["hardware"], page.query_params["model"]) == ("l4", "qwen3-8b")


@pytest.mark.parametrize("hardware", ["paper", "h200"])
def test_a_step_that_costs_nothing_is_not_offered(hardware):
    page = open_app(NUMBERS, hardware=hardware, fixed="0", row="0", slot="0", length="5")
    assert not page.exception
    assert len(warnings(page)) == 1
    assert warnings(page)[0].startswith("The address asks for fixed 0, outside 0.")
    assert page.slider(key="numbers_fixed").value == page.slider(key="numbers_fixed").min > 0
    assert [page.slider(key=f"numbers_{name}").value for name in ("row", "slot", "length")] == [0, 0, 5]
    assert "nan" not in texts(page)
    assert len(page.get("plotly_chart")) == 5


def test_errors_are_written_as_people_read_them():
    assert [percent(share) for share in (0.0364, 0.0996, 0.47, 3.2, 25.0)] == [
        "3.6 %", "10 %", "47 %", "320 %", "over 1000 %"
    ]  # fmt: skip
    assert fit_words({1: [0.1, 0.2], 2: [0.0]}) == (
        "our model, expected values: 10 % mean error at these 3 points, batch 1 fits worst (15 %)"
    )
    errors = fit_errors({name: curves(FIT).lines[name] for name in MAIN}, paper_points(FIT))
    assert sum(map(len, errors.values())) == 16


def test_the_longest_draft_that_is_tried_is_marked_as_on_the_command_line():
    settings = replace(FIT, batch=1, token=99.5)
    assert best_drafts(settings)["ems-sd"][0] == LONGEST_DRAFT
    assert best_answer(settings, best_drafts(settings)).startswith("K = 16+ at batch 1: EMS-SD")


def test_points_name_how_the_ablation_rows_are_assigned():
    said = {labels: points_words(replace(FIT, labels=labels)) for labels in ("hidden", "swapped", "printed")}
    assert said == {
        "hidden": "paper, Figure 1",
        "swapped": "paper, Figure 1 and Table 2 with its ablation rows swapped",
        "printed": "paper, Figure 1 and Table 2 with its ablation rows as printed",
    }
    assert "ablation rows swapped" in texts(open_app(NUMBERS, labels="swapped"))


def test_another_machine_brings_its_costs_and_takes_the_papers_points_away():
    page = open_app(NUMBERS)
    page.slider(key="numbers_slot").set_value(0.4).run()
    page.selectbox(key="numbers_hardware").set_value("h200").run()
    want = default_settings("h200", "opt-6.7b").costs
    assert (page.slider(key="numbers_fixed").value, page.slider(key="numbers_slot").value) == (want.fixed, want.slot)
    assert page.query_params["hardware"] == "h200"
    assert "slot" not in page.query_params
    assert "no points" in texts(page)
    assert "Paper:" not in page.get("plotly_chart")[0].proto.alt
    page.slider(key="numbers_hit").set_value(50.0).run()
    page.button(key="numbers_reset").click().run()
    assert page.slider(key="numbers_hit").value == FIT.hit
    assert page.selectbox(key="numbers_hardware").value == "h200"
    page.selectbox(key="numbers_hardware").set_value("paper").run()
    assert page.button_group(key="numbers_labels").value == "hidden"
    assert "% mean error at these 16 points, batch 1 fits worst" in texts(page)


def test_the_page_keeps_its_settings_while_others_are_visited():
    page = open_app(NUMBERS, hit="50")
    page.slider(key="numbers_spread").set_value(0).run()
    go(page, COMPARE)
    page.query_params.clear()
    go(page, NUMBERS)
    assert (page.slider(key="numbers_hit").value, page.slider(key="numbers_spread").value) == (50.0, 0)
    assert page.query_params["spread"] == "0"


def test_going_back_restores_what_the_address_says():
    page = open_app(NUMBERS)
    page.slider(key="numbers_length").set_value(3).run()
    page.query_params.clear()
    page.run()
    assert page.slider(key="numbers_length").value == 7


def test_the_csv_holds_what_the_charts_draw():
    settings = replace(FIT, labels="swapped", batch=8)
    lines = list(csv.DictReader(io.StringIO(csv_of(settings))))
    found, points = curves(settings), paper_points(settings)
    speed_ups = {
        (line["method"], int(line["batch"])): line for line in lines if line["quantity"] == "speed-up over greedy"
    }
    for name, line in found.lines.items():
        for batch, value in line.items():
            assert float(speed_ups[name, batch]["model"]) == value
            paper = points[name].get(batch)
            assert speed_ups[name, batch]["paper"] == ("" if paper is None else str(paper))
    slots = {(line["method"], line["kind"]): line["model"] for line in lines if line["quantity"].startswith("KV slots")}
    assert float(slots["vanilla", "hole"]) == step_parts(settings, "vanilla").slots["hole"] > 0
    assert {line["kind"] for line in lines if line["quantity"] == "setting"} >= {"hit", "slot", "batch", "hardware"}


def test_charts_draw_the_numbers_in_light_and_dark():
    found, points = curves(FIT), paper_points(FIT)
    lines = {name: found.lines[name] for name in MAIN}
    light, dark = (
        numbers_charts.speed_ups(lines, points, True, (1, 2, 24), below(found.slower, 24), mode)
        for mode in (False, True)
    )
    assert light.alt == dark.alt
    assert light.figure.to_json() != dark.figure.to_json()
    assert [list(each.y) for each in light.figure.data[:2]] == [list(line.values()) for line in lines.values()]
    looks = [(each.line.dash, each.marker.symbol) for each in light.figure.data]
    assert len(set(looks)) == len(looks)
    amounts = {name: step_parts(FIT, name).slots for name in ("vanilla", "ems-sd")}
    words = {kind: kind for kind in amounts["vanilla"]}
    bars = numbers_charts.kinds(amounts, words, dict.fromkeys(amounts, "end"), "slots").figure.data
    assert [bar.name for bar in bars] == list(words)
    assert [bar.x[0] for bar in bars] == list(amounts["vanilla"].values())
    patterns = [bar.marker.pattern.shape for bar in bars]
    assert len(set(patterns)) == len(patterns)
    settings = numbers_charts.config("x", "svg")
    assert (settings["toImageButtonOptions"]["format"], settings["showSendToCloud"]) == ("svg", False)


def test_the_roof_bends_at_the_ridge():
    assert attainable(1, 312e12, 2e12) == 2e12
    assert attainable(156, 312e12, 2e12) == attainable(1000, 312e12, 2e12) == 312e12


def test_answers_say_never_where_there_is_no_such_batch():
    assert falls_answer({"vanilla": (), "ems-sd": ()}) == "Never, up to batch 256. Nor does EMS-SD."
    said = falls_answer({"vanilla": ((9, 256),), "ems-sd": ()})
    assert said == "From batch 9 on. EMS-SD: never, up to batch 256."
    said = falls_answer({"vanilla": ((1, 256),), "ems-sd": ((40, 256),)})
    assert said == "From batch 1 on. EMS-SD: from batch 40 on."
    assert below({"vanilla": ((30, 256),), "ems-sd": ()}, 24) == ""


def test_a_method_that_recovers_is_said_to_on_the_page_as_on_the_command_line():
    ranges = {"vanilla": ((2, 4), (30, 256)), "ems-sd": ()}
    assert falls_answer(ranges) == f"Vanilla {slower_words(ranges['vanilla'])}. EMS-SD {slower_words(())}."
    assert below(ranges, 24) == "Slower than not speculating: vanilla at batches 2 to 4"
    assert below(ranges, 30) == "Slower than not speculating: vanilla at batches 2 to 4 and from batch 30"
    assert "still falls below greedy, at batches 2 to 4 and from batch 30 on." in varlen_answer(ranges)
    assert model_title("opt-6.7b") == "OPT-6.7B"


def test_the_modelled_steps_open_as_cells_in_the_player():
    page = open_app(NUMBERS)
    page.slider(key="numbers_length").set_value(4).run()
    page.button(key="numbers_cells").click().run()
    assert not page.exception
    go(page, EXPLORE)
    assert page.selectbox(key="set").value == "opened"
    assert methods(page) == ["vanilla", "ems-sd"]
    assert "Simulated, not decoded" in json.dumps([each.proto.json for each in page.get("bidi_component")])
    made = simulated_set(replace(FIT, length=4))
    read = {name: GenerationTrace.from_json(trace.to_json()) for name, trace in made.traces.items()}
    assert read["ems-sd"].config["num_draft_tokens"] == 4
    assert set(read) == set(EVERY)
    assert len({tuple(map(tuple, (row.output_token_ids for row in t.rows))) for t in read.values()}) == 1


def results(**changes) -> bytes:
    """A results file, with the fields that `bench --json` writes."""
    points = [
        {"prompts": "copy-rich", "batch": batch, "method": method, "drafter": "prompt-lookup", "speed_up_valid": True}
        | {"speed_up": {"median": value, "low": 0.9 * value, "high": 1.1 * value}}
        for method, line in {"vanilla": {1: 2.5, 4: 1.2, 8: 0.8}, "ems-sd": {8: 1.5, 1: 2.5, 4: 1.8}}.items()
        for batch, value in line.items()
    ]
    points.append({**points[0], "method": "transformers", "batch": 1})
    model = [{**point, "modelled_speed_up": 1.1 * point["speed_up"]["median"]} for point in points[:3]]
    environment = {"model": "SmolLM2 <b>", "dtype": "float32", "device": "cpu", "cpu": "a CPU"}
    data = {"emssd_bench_results": 1, "points": points, "environment": environment, "model": {"points": model}}
    return json.dumps({**data, **changes}).encode()


def test_measured_points_lie_over_the_lines_modelled_for_them():
    file = read_bench(results(), "mine.json")
    ((choice, lines),) = file.points.items()
    assert choice == ("copy-rich", "prompt-lookup")
    assert [each.batch for each in lines["ems-sd"]] == [1, 4, 8]
    assert file.mean_error(choice) == pytest.approx(0.1)
    table = list(csv.DictReader(io.StringIO(csv_of(FIT, file))))
    written = {(line["method"], line["batch"]): line for line in table if line["quantity"].startswith("measured")}
    assert {place: float(line["measured"]) for place, line in written.items()} == {
        (method, str(each.batch)): each.median for method, line in lines.items() for each in line
    }
    assert (written["vanilla", "4"]["model"], written["ems-sd", "4"]["model"]) == ("1.32", "")
    chart = measured(lines)
    drawn = {(each.name, each.mode): list(each.y) for each in chart.figure.data}
    assert drawn["Vanilla", "markers"] == [2.5, 1.2, 0.8]
    assert drawn[None, "lines"] == pytest.approx([2.75, 1.32, 0.88])
    assert "1.20 (model 1.32) at 4" in chart.alt
    page = open_app(NUMBERS)
    page.file_uploader(key="numbers_bench_file").set_value([("mine.json", results(), "application/json")]).run()
    assert not page.exception
    assert "modelled speed-ups off by 10 % on average" in texts(page)
    assert "SmolLM2 &lt;b&gt;" in texts(page)
    page.file_uploader(key="numbers_bench_file").set_value([("bad.json", b"{}", "application/json")]).run()
    assert warnings(page) == [
        "bad.json does not hold benchmark results (field emssd_bench_results: 1): give a file that `emssd bench "
        "--json` wrote."
    ]
    assert "modelled speed-ups off by 10 % on average" in texts(page)


POINT = {"prompts": "p", "batch": 1, "method": "vanilla", "drafter": "d", "speed_up_valid": True}


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff", b"[]", b"[" * 100_000, b"{}", results(emssd_bench_results=2), results(points=[]),
        results(points=None), results(points=[{}]), results(model=[1]),
        results(points=[{**POINT, "speed_up": {"median": float("nan"), "low": 1, "high": 1}}]),
        results(points=[{**POINT, "speed_up": {"median": 1, "low": -1, "high": 1}}]),
        results(points=[{**POINT, "batch": True, "speed_up": {"median": 1, "low": 1, "high": 1}}]),
    ],
)  # fmt: skip
def test_a_bad_results_file_gets_one_clear_sentence(content):
    with pytest.raises(ConfigError, match=r"^x.json .*(damaged|does not hold|holds no speed-up)") as caught:
        read_bench(content, "x.json")
    assert len(str(caught.value)) < 300


def test_the_shipped_results_can_be_read_and_are_those_of_the_readme():
    from emssd.ui.numbers_measured import RECORDED

    assert read_bench(RECORDED.read_bytes(), RECORDED.name).points
    tables = RECORDED.with_suffix(".md").read_text(encoding="utf-8").strip()
    assert tables in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_page_loads_no_torch():
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash
page = AppTest.from_file({str(ROOT / "app.py")!r}, default_timeout=60)
page._page_hash = calc_hash("numbers")
page.run()
assert not page.exception and len(page.get("plotly_chart")) == 5
print([name for name in ("torch", "transformers", "matplotlib") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip().splitlines()[-1:] == ["[]"], done.stderr[-2000:]


def test_a_damaged_fit_is_named(monkeypatch):
    from emssd.ui import numbers_settings

    def broken():
        raise ConfigError("fit.json is missing or damaged: restore it.")

    monkeypatch.setattr(numbers_settings, "shipped_fits", broken)
    monkeypatch.setattr(numbers_settings, "paper_machine", lambda labels: broken())
    page = open_app(NUMBERS)
    assert warnings(page) == ["fit.json is missing or damaged: restore it."]
    assert run_count(page) == 1
    assert Acceptance()
