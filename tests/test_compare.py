"""The page Compare: its numbers against the traces' own totals, its charts, and what it does without a baseline."""

from __future__ import annotations

import csv
import io

import pytest

from emssd.accounting import kv_bytes_per_slot
from emssd.ui import charts
from emssd.ui.compare_numbers import (
    held_mib,
    input_rows,
    kept_rates,
    measured_speed_up,
    modelled_speed_up,
    phase_seconds,
    slots_read,
    table,
    table_csv,
)
from emssd.ui.library import load_preset, preset_index
from emssd.ui.method_style import METHOD_STYLES
from tests.app_pages import COMPARE, EXPLORE, ROOT, go, open_app, texts, warnings

CHARTS = ("waste_input", "waste_slots", "acceptance", "gain", "memory", "modelled_time", "measured_time")


@pytest.fixture(scope="module", params=["figure2", "copy-rich"])
def traces(request):
    return load_preset(request.param).traces


def draw(name: str, traces, dark: bool = False) -> charts.Chart:
    make = getattr(charts, name)
    return make(traces, "a CPU", dark=dark) if name.endswith("time") else make(traces, dark=dark)


def test_the_worked_examples_numbers():
    traces = load_preset("figure2").traces
    assert input_rows(traces["vanilla"]) == {"useful": 18, "pad": 6, "finished": 0}
    assert input_rows(traces["ems-sd"]) == {"useful": 18, "pad": 0, "finished": 0}
    assert slots_read(traces["vanilla"]) == {"useful": 288, "prompt_pad": 36, "hole": 36, "pad_query": 144}
    assert slots_read(traces["ems-sd"]) == {"useful": 288, "prompt_pad": 0, "hole": 0, "pad_query": 0}
    assert kept_rates(traces["ems-sd"]) == [3 / 7, 6 / 7]
    for name in ("vanilla", "ems-sd"):
        assert modelled_speed_up(traces["greedy"], traces[name]) == pytest.approx(3.49, abs=0.005)


def test_numbers_are_the_traces_totals(traces):
    for name, trace in traces.items():
        summary = trace.summary()
        assert input_rows(trace) == summary["input_rows"]
        assert sum(phase_seconds(trace).values()) == pytest.approx(summary["seconds"]["total"])
        assert phase_seconds(trace)["target"] == pytest.approx(summary["seconds"]["target"])
        advanced = (held_mib(trace)[-1] - held_mib(trace)[0]) * 2**20 / kv_bytes_per_slot(trace.model)
        assert round(advanced) == summary["slots_advanced"], name


def test_the_measured_speed_up_of_whole_runs_is_the_ratio_of_decode_times():
    traces = load_preset("copy-rich").traces
    seconds = {name: trace.summary()["seconds"]["total"] for name, trace in traces.items()}
    assert measured_speed_up(traces["greedy"], traces["vanilla"]) == pytest.approx(
        seconds["greedy"] / seconds["vanilla"]
    )
    assert measured_speed_up(None, traces["vanilla"]) is None


def test_the_table_holds_every_method_and_survives_csv(traces):
    lines = table(traces)
    assert [line["Method"] for line in lines] == [
        "Greedy",
        "Vanilla",
        "Packed input only",
        "Ragged cache only",
        "EMS-SD",
    ]
    assert all(list(line) == list(lines[0]) for line in lines)
    again = list(csv.DictReader(io.StringIO(table_csv(traces))))
    assert len(again) == len(lines)
    for read, line in zip(again, lines, strict=True):
        assert read == {name: "" if value is None else str(value) for name, value in line.items()}
    assert lines[0]["Drafts kept %"] is None
    assert lines[0]["Modelled speed-up vs greedy"] == 1.0


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", CHARTS)
def test_charts_draw_the_numbers_and_say_them(name, dark, traces):
    chart = draw(name, traces, dark)
    figure = chart.figure
    assert len(chart.alt) > 30
    assert "EMS-SD" in chart.alt
    assert figure.data
    if name.startswith("waste"):
        amounts = {
            method: (input_rows if name == "waste_input" else slots_read)(trace) for method, trace in traces.items()
        }
        drawn = [[value or 0 for value in bar.x] for bar in figure.data]
        assert drawn == [[amounts[method][kind] for method in traces] for kind in next(iter(amounts.values()))]
        patterns = [bar.marker.pattern.shape for bar in figure.data]
        assert patterns[0] is None
        assert len(set(patterns)) == len(patterns)


@pytest.mark.parametrize("name", CHARTS)
def test_light_and_dark_differ_in_colour_alone(name, traces):
    light, dark = (draw(name, traces, mode) for mode in (False, True))
    assert light.alt == dark.alt
    assert light.figure.to_json() != dark.figure.to_json()
    for one, other in zip(light.figure.data, dark.figure.data, strict=True):
        assert list(one.x) == list(other.x)
        assert list(one.y) == list(other.y)


def test_methods_differ_in_more_than_colour():
    looks = [(style.dash, style.symbol, style.mark) for style in METHOD_STYLES.values()]
    assert len(set(looks)) == len(looks)
    assert len({style.mark for style in METHOD_STYLES.values()}) == len(looks)


def test_lines_that_lie_on_each_other_share_one_name():
    chart = charts.acceptance(load_preset("copy-rich").traces)
    assert [line.name for line in chart.figure.data] == ["Vanilla, Packed input only, Ragged cache only and EMS-SD"]


def test_charts_cannot_be_sent_anywhere():
    assert charts.CONFIG["showSendToCloud"] is False


def test_the_page_shows_badges_charts_and_the_same_numbers():
    page = open_app(COMPARE)
    assert not warnings(page)
    for info in preset_index():
        page.selectbox(key="compare_set").set_value(info.name).run()
        assert not page.exception
        shown = texts(page)
        assert shown.count('data-testid="equality"') == 4
        assert 'class="badge differ"' not in shown
        plots = page.get("plotly_chart")
        assert len(plots) == 6
        assert all(plot.proto.alt for plot in plots)
        assert len(page.dataframe) == 1
        frame = page.dataframe[0].value
        assert list(frame.columns)[1:] == ["Greedy", "Vanilla", "Packed input only", "Ragged cache only", "EMS-SD"]


def test_the_page_follows_what_was_looked_at_last_and_keeps_what_is_chosen_here():
    page = open_app(EXPLORE, preset="slow-row")
    assert go(page, COMPARE).selectbox(key="compare_set").value == "slow-row"
    page.selectbox(key="compare_set").set_value("no-copy").run()
    go(page, EXPLORE)
    assert page.selectbox(key="set").value == "slow-row"
    assert go(page, COMPARE).selectbox(key="compare_set").value == "no-copy"
    go(page, EXPLORE).selectbox(key="set").set_value("early-finisher").run()
    assert go(page, COMPARE).selectbox(key="compare_set").value == "early-finisher"


def test_measured_and_modelled_time_are_never_shown_together():
    page = open_app(COMPARE)
    alts = " ".join(plot.proto.alt for plot in page.get("plotly_chart"))
    assert "Modelled decode time, OPT-6.7B, paper’s GPU" in alts
    assert "Measured decode time" not in alts
    page.segmented_control(key="compare_time").set_value("measured").run()
    alts = " ".join(plot.proto.alt for plot in page.get("plotly_chart"))
    assert "Measured decode time" in alts
    assert "Modelled decode time" not in alts
    assert "Not comparable with the paper’s GPU numbers" in texts(page)


def test_an_opened_set_without_greedy_is_compared_as_far_as_it_goes():
    page = open_app()
    files = [
        (f"{name}.json", (ROOT / f"assets/traces/figure2/{name}.json").read_bytes(), "application/json")
        for name in ("vanilla", "ems-sd")
    ]
    page.file_uploader(key="files").set_value(files).run()
    go(page, COMPARE)
    assert page.selectbox(key="compare_set").value == "opened"
    assert "Without a greedy trace" in page.info[0].value
    assert len(page.get("plotly_chart")) == 6
    assert "speed-up" not in " ".join(plot.proto.alt for plot in page.get("plotly_chart"))
