"""What `bench` measures and keeps: order of runs, paired speed-ups, resuming, the cost model beside it. No timing."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from emssd import benchmark as benchmark_module
from emssd.bench_figure import draw_figure
from emssd.bench_inputs import named_prompts
from emssd.bench_model import LARGEST_MEAN_ERROR, Crossing, ModelComparison, ModelPoint, compare_with_model
from emssd.bench_plan import GREEDY, BenchPlan, Entry, PromptSet, repeats_at
from emssd.bench_reporting import (
    bench_markdown,
    bench_table,
    crossing_lines,
    difference_lines,
    figure_caption,
    model_table,
)
from emssd.bench_results import BenchResults, Spread
from emssd.bench_state import FILE_NAME, BenchState, read_state
from emssd.benchmark import Benchmark, bench_environment, cpu_name
from emssd.config import METHODS
from emssd.cost_model import CostModel
from emssd.decoding import GenerationRun, generate
from emssd.drafting import Drafter, PromptLookupDrafter
from emssd.errors import ConfigError
from emssd.memory import kv_cache_bytes
from emssd.prompts import default_prompts
from tests.helpers import batch, language_model

PLAN = BenchPlan((1, 2), repeats=2, max_new_tokens=6, num_draft_tokens=3, ngram_size=1, lookup="context")


def lookup(name: str, prompts: PromptSet, rows: Any, expected: Any) -> Drafter:
    return PromptLookupDrafter(1, "context")


def benchmark(plan: BenchPlan = PLAN, folder: Path | None = None, resume: bool = False) -> Benchmark:
    lm = language_model("random-llama")
    sets = [PromptSet("some", batch(lm, [3, 9, 5], 6))]
    state = BenchState.open(folder, plan.to_dict(sets), bench_environment(lm), resume, lambda text: None)
    return Benchmark(lm, plan, sets, lookup, state)


@pytest.fixture(scope="module")
def measured() -> Benchmark:
    made = benchmark()
    made.check()
    made.run()
    return made


# --- the plan ------------------------------------------------------------------------------------------------------


def test_a_prompt_set_fills_its_last_batch_with_the_first_prompts() -> None:
    prompts = PromptSet("some", [[5], [6], [7]])
    assert prompts.batches(1) == [[0], [1], [2]]
    assert prompts.batches(2) == [[0, 1], [2, 0]]
    assert prompts.batches(8) == [[0, 1, 2, 0, 1, 2, 0, 1]]
    assert [prompts.repeated(size) for size in (1, 2, 3, 8)] == [0, 1, 0, 5]
    assert [prompts.copied(size) for size in (1, 2, 3, 8)] == [0, 0, 0, 5]
    assert [PromptSet("same", [[5], [5], [7]]).copied(size) for size in (1, 2, 3)] == [0, 1, 1]
    assert PromptSet("other", [[5], [6], [7]]).digest == prompts.digest != PromptSet("some", [[5], [6]]).digest


def test_what_is_measured_in_turn() -> None:
    plan = BenchPlan((4, 1, 4), methods=("ems-sd", "vanilla"), drafters=("replay", "prompt-lookup"), replay="x")
    assert plan.batch_sizes == (1, 4)
    ours = [
        GREEDY,
        *(Entry(method, drafter) for drafter in ("prompt-lookup", "replay") for method in ("vanilla", "ems-sd")),
    ]
    assert plan.entries(4) == ours
    assert plan.entries(1) == [*ours, Entry("transformers"), Entry("transformers-lookup", "prompt-lookup")]
    assert replace(plan, transformers=False).entries(1) == ours
    assert [entry.method for entry in BenchPlan((2,)).entries(2)] == list(METHODS)
    assert BenchPlan((2,), methods=("greedy",), drafters=(), num_draft_tokens=0).entries(2) == [GREEDY]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_sizes": (0,)}, "batch size must be a whole number from 1"),
        ({"batch_sizes": ()}, "no batch sizes"),
        ({"batch_sizes": (5000,)}, "from 1 to 1024"),
        ({"methods": ("fast",)}, "method 'fast' is not known: choose from greedy"),
        ({"drafters": ("oracle",)}, "drafter 'oracle' is not known"),
        ({"drafters": ()}, "vanilla needs a drafter"),
        ({"drafters": ("draft-model",)}, "needs --draft-model"),
        ({"drafters": ("replay",)}, "needs --replay"),
        ({"replay": "x"}, "--replay goes with the drafter replay"),
        ({"max_new_tokens": 1}, "at least 2"),
        ({"max_new_tokens": -5}, "max_new_tokens"),
        ({"num_draft_tokens": 0}, "--num-draft-tokens of at least 1"),
        ({"repeats": 0}, "repeats must be a whole number from 1"),
    ],
)
def test_impossible_plans_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BenchPlan(**{"batch_sizes": (1,), **settings})


def test_the_shipped_sets() -> None:
    rich, poor = named_prompts("copy-rich"), named_prompts("copy-poor")
    copying = {entry.prompt: entry.copying for name in ("default", "copy_rich") for entry in default_prompts(name)}
    assert len(set(rich)) == len(rich) >= 16
    assert len(set(poor)) == len(poor) >= 16
    assert {copying[prompt] for prompt in rich} == {"rich"}
    assert [copying[prompt] for prompt in poor] == sorted((copying[prompt] for prompt in poor), key="none some".find)
    assert rich[:8] == [entry.prompt for entry in default_prompts("copy_rich")]


# --- measuring -----------------------------------------------------------------------------------------------------


def test_every_repeat_has_every_entry_over_all_prompts(measured: Benchmark) -> None:
    for size, rows in ((1, 3), (2, 4)):
        records = measured.state.repeats("some", size)
        assert [record["repeat"] for record in records] == [0, 1]
        for record in records:
            found = [Entry(result["method"], result["drafter"]) for result in record["results"]]
            assert found == PLAN.entries(size)
            for result in record["results"]:
                assert result["rows"] == rows
                assert result["decode_tokens"] == rows * 5
                assert result["differences"] == []
                assert result["seconds"]["total"] > 0
            assert record["prefill_seconds"] > 0
    assert measured.state.expected("some") is not None


def test_counts_are_those_of_the_runs(measured: Benchmark) -> None:
    prompts = measured.sets[0]
    results = BenchResults.of(measured.state)
    for entry in PLAN.entries(2):
        summaries = []
        for rows in prompts.batches(2):
            config = PLAN.config(entry)
            trace = generate(measured.lm, [prompts.prompts[row] for row in rows], config, lookup("", prompts, rows, []))
            summaries.append(trace.summary())
        point = results.point("some", 2, entry)
        assert point is not None
        for name in ("steps", "drafted", "accepted", "holes", "decode_tokens"):
            assert point.details[name] == sum(summary[name] for summary in summaries), (entry, name)
        assert len(point.details["counts"]) == point.details["steps"]
        fed = sum(sum(summary["input_rows"].values()) for summary in summaries)
        assert sum(counts[0] for counts in point.details["counts"]) == fed


def test_runs_are_interleaved_and_every_other_repeat_goes_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[tuple[str, int, int]] = []
    run = Benchmark._run

    def spy(self: Benchmark, batch: Any, entry: Entry, limit: int) -> Any:
        order.append((entry.method, batch.rows[0], limit))
        return run(self, batch, entry, limit)

    monkeypatch.setattr(Benchmark, "_run", spy)
    plan = BenchPlan((2,), methods=("vanilla", "ems-sd"), repeats=3, max_new_tokens=6, num_draft_tokens=2)
    made = benchmark(plan)
    made.run()
    forth, back = ["greedy", "vanilla", "ems-sd"], ["ems-sd", "vanilla", "greedy"]
    assert [method for method, _, _ in order] == forth + 2 * forth + 2 * back + 2 * forth
    assert [limit for _, _, limit in order] == [4] * 3 + [6] * 18
    assert [row for _, row, _ in order[3:9]] == [0, 0, 0, 2, 2, 2]


def test_prompts_are_fed_once_for_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[int] = []
    feed = benchmark_module.prefill_batch
    monkeypatch.setattr(
        benchmark_module, "prefill_batch", lambda lm, prompts: (fed.append(len(prompts)), feed(lm, prompts))[1]
    )
    made = benchmark(replace(PLAN, repeats=3, methods=("ems-sd",), transformers=False))
    made.run()
    assert fed == [1, *[1] * 3, 2, *[2] * 2]  # a warm-up, then each batch, for either size


def test_prompts_kept_for_all_batches_of_a_size_are_part_of_the_memory_check(monkeypatch: pytest.MonkeyPatch) -> None:
    made = benchmark()
    monkeypatch.setattr(made.lm.hooked, "forward", lambda *args, **kwargs: pytest.fail("something ran"))
    batches = [[made.sets[0].prompts[row] for row in rows] for rows in made.sets[0].batches(2)]
    runs = [
        GenerationRun(made.lm, rows, made.plan.config(Entry(method)))
        for rows in batches
        for method in made.plan.methods
    ]
    kept = 3 + 9 + 5 + 3  # prompts of both batches; the second is filled up with the first prompt
    needed = kv_cache_bytes(made.lm, [max(sum(run.capacities) for run in runs) + kept])
    monkeypatch.setattr("emssd.memory.available_bytes", lambda device: needed)
    made.check()
    monkeypatch.setattr("emssd.memory.available_bytes", lambda device: needed - 1)
    with pytest.raises(ConfigError, match=r"The KV cache of this run and of the prompts kept beside it needs .*: use"):
        made.check()


def test_a_wrong_output_is_found_and_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Benchmark._run

    def spoil(self: Benchmark, batch: Any, entry: Entry, limit: int) -> Any:
        outcome = run(self, batch, entry, limit)
        if entry.method == "ems-sd" and limit == PLAN.max_new_tokens:
            outcome.outputs[0][2] = (outcome.outputs[0][2] + 1) % 97
        return outcome

    monkeypatch.setattr(Benchmark, "_run", spoil)
    made = benchmark(replace(PLAN, batch_sizes=(2,)))
    made.run()
    results = BenchResults.of(made.state)
    assert not results.passed
    point = results.point("some", 2, Entry("ems-sd", "prompt-lookup"))
    assert point is not None
    assert [each["row"] for each in point.failures] == [0, 2]
    assert not point.counts
    assert not point.to_dict()["speed_up_valid"]
    assert any("!" in line for line in bench_table(results, "x").splitlines() if "ems-sd" in line)
    assert [line[:9] for line in difference_lines(results)] == ["DIFFERENT"] * 2
    assert "does not count" in bench_table(results, "x")


def test_a_speed_up_over_a_wrong_greedy_does_not_count() -> None:
    state = invented()
    wrong = {"row": 1, "position": 2, "expected": 5, "got": 6, "gap": 0.5, "near_tie": False}
    for tie in (True, False):
        state.repeats("copy-rich", 2)[1]["results"][0]["differences"] = [{**wrong, "near_tie": tie}]
        results = BenchResults.of(state)
        point = results.point("copy-rich", 2, Entry("ems-sd", "prompt-lookup"))
        assert point is not None
        assert point.counts == tie
        assert results.passed == tie


def test_the_environment_names_the_processor(measured: Benchmark) -> None:
    place = measured.state.header["environment"]
    assert place["cpu"] == cpu_name() != ""
    assert len(place["load_average"]) == 3
    assert place["model"] == "random-llama"
    assert place["threads"] >= 1


# --- resuming ------------------------------------------------------------------------------------------------------


class Stop(Exception):
    pass


@contextmanager
def stopped(made: Benchmark) -> Iterator[Benchmark]:
    """A benchmark whose process lets go of its file at the end."""
    with closing(made.state):
        yield made


def stop_after(monkeypatch: pytest.MonkeyPatch, runs: int) -> None:
    """Let `runs` runs at full length through, then raise."""
    run, left = Benchmark._run, [runs]

    def counted(self: Benchmark, batch: Any, entry: Entry, limit: int) -> Any:
        if limit == self.plan.max_new_tokens:
            if not left[0]:
                raise Stop
            left[0] -= 1
        return run(self, batch, entry, limit)

    monkeypatch.setattr(Benchmark, "_run", counted)


def test_an_interrupted_benchmark_loses_the_running_repeat_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(PLAN, batch_sizes=(2,), repeats=3)
    each = 2 * len(plan.entries(2))
    with monkeypatch.context() as patch:
        stop_after(patch, each + 5)
        with stopped(benchmark(plan, tmp_path)) as made, pytest.raises(Stop):
            made.run()
    kept = read_state(tmp_path / FILE_NAME)
    assert [record["repeat"] for record in kept.repeats("some", 2)] == [0]
    first = kept.repeats("some", 2)[0]

    with monkeypatch.context() as patch:
        stop_after(patch, 2 * each)  # no more than the two repeats that are missing
        patch.setattr(benchmark_module, "plain_generate", None)  # the expected outputs are known
        with stopped(benchmark(plan, tmp_path, resume=True)) as made:
            made.run()
    on_disk = read_state(tmp_path / FILE_NAME)
    assert [record["repeat"] for record in on_disk.repeats("some", 2)] == [0, 1, 2]
    assert on_disk.repeats("some", 2)[0] == first
    assert on_disk.records == json.loads(json.dumps(made.state.records))
    assert BenchResults.of(on_disk).to_dict() == BenchResults.of(made.state).to_dict()

    with monkeypatch.context() as patch:
        stop_after(patch, 0)
        with stopped(benchmark(plan, tmp_path, resume=True)) as made:
            made.run()  # nothing is left to measure


def test_a_line_that_was_cut_is_dropped(tmp_path: Path) -> None:
    plan = replace(PLAN, batch_sizes=(2,), methods=("greedy",), repeats=1)
    with stopped(benchmark(plan, tmp_path)) as made:
        made.run()
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with stopped(benchmark(plan, tmp_path, resume=True)) as resumed:
        assert resumed.state.repeats("some", 2) == []
        resumed.run()
    assert len(read_state(path).repeats("some", 2)) == 1
    assert path.read_bytes().count(b"\n") == whole.count(b"\n")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_new_tokens": 7}, "max_new_tokens 6, and now it is 7"),
        ({"batch_sizes": (2, 4)}, "batch_sizes 2, and now it is 2,4"),
        ({"lookup": "prompt"}, "lookup context, and now it is prompt"),
    ],
)
def test_changed_settings_are_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    plan = replace(PLAN, batch_sizes=(2,))
    benchmark(plan, tmp_path).state.close()
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(ConfigError, match=words):
        benchmark(replace(plan, **change), tmp_path, resume=True)
    with pytest.raises(ConfigError, match="add --resume"):
        benchmark(plan, tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_other_prompts_and_another_environment_are_refused(tmp_path: Path) -> None:
    with stopped(benchmark(PLAN, tmp_path)) as made:
        pass
    settings, place = made.state.header["settings"], made.state.header["environment"]

    def resume(settings: dict[str, Any], place: dict[str, Any]) -> BenchState:
        with closing(BenchState.open(tmp_path, settings, place, True, lambda text: None)) as state:
            return state

    assert resume(settings, {**place, "load_average": [9.0] * 3, "date": "later"}).records == []
    with pytest.raises(ConfigError, match="are of other prompts"):
        resume(PLAN.to_dict([PromptSet("some", [[5]])]), place)
    with pytest.raises(ConfigError, match="threads"):
        resume(settings, {**place, "threads": 99})


def test_only_one_benchmark_at_a_time_writes_to_a_folder(tmp_path: Path) -> None:
    with stopped(benchmark(PLAN, tmp_path)) as made:
        before = (tmp_path / FILE_NAME).read_bytes()
        for resume in (True, False):
            with pytest.raises(ConfigError, match=r"Another bench is writing to .*: wait until it has ended") as caught:
                benchmark(PLAN, tmp_path, resume=resume)
            assert "\n" not in str(caught.value)
        assert (tmp_path / FILE_NAME).read_bytes() == before
        assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
        made.state.add({"kind": "calibration", "measured": {}})
    with stopped(benchmark(PLAN, tmp_path, resume=True)) as after:
        assert after.state.calibration == {}


def test_a_full_disk_is_named_and_what_was_kept_before_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / FILE_NAME
    with stopped(benchmark(PLAN, tmp_path)) as made, monkeypatch.context() as patch:
        before = path.read_bytes()
        patch.setattr("emssd.bench_state.os.fsync", lambda file: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.raises(ConfigError, match=rf"Cannot write {path}: No space left\."):
            made.state.add({"kind": "calibration", "measured": {}})
        assert path.read_bytes() == before
        assert made.state.calibration is None
        path.unlink()
        with pytest.raises(ConfigError, match=rf"Cannot write {path}: No space left\."):
            benchmark(PLAN, tmp_path)
    benchmark(PLAN, tmp_path).state.close()  # nothing was begun


GOOD = {"emssd_bench": 1, "settings": {}, "environment": {}}
RESULT = {
    **{"method": "greedy", "drafter": "none", "rows": 1, "decode_tokens": 5, "steps": 5},
    **{"seconds": {"total": 1.0}, "differences": []},
}


def damaged() -> Iterator[tuple[bytes, str]]:
    def lines(*records: Any) -> bytes:
        return b"".join(json.dumps(record).encode() + b"\n" for record in records)

    def repeat(**change: Any) -> bytes:
        record = {"kind": "repeat", "prompts": "p", "batch": 1, "prefill_seconds": 0.1, "results": [RESULT]}
        return lines(GOOD, {**record, **change})

    yield b"", "line 1"
    yield b"\x00\xff\n", "line 1, is damaged"
    yield lines([]), "line 1"
    yield lines({**GOOD, "emssd_bench": 2}), "line 1"
    yield lines(GOOD, {"kind": "else"}), "line 2, is damaged"
    yield lines(GOOD) + b"{broken\n" + lines(GOOD), "line 2, is damaged"
    yield lines(GOOD) + b'{"kind": NaN}\n', "line 2"
    yield lines(GOOD) + b"[" * 100_000 + b"\n", "line 2"
    yield lines(GOOD, {"kind": "expected", "prompts": "p", "outputs": [["x"]]}), "token ids"
    yield lines(GOOD, {"kind": "calibration"}), "measured"
    yield repeat(batch="1"), "numbers"
    yield repeat(copied_rows="many"), "copied_rows"
    yield repeat(results=[]), "results"
    yield repeat(results=[{**RESULT, "seconds": {}}]), "seconds.total"
    yield repeat(results=[{**RESULT, "seconds": {"total": "1"}}]), "seconds.total"
    yield repeat(results=[{**RESULT, "steps": -1}]), "whole numbers"
    yield repeat(results=[{**RESULT, "differences": [1]}]), "differences"
    yield repeat(results=[{**RESULT, "counts": [[1, 2]]}]), "counts"
    yield repeat(results=[{**RESULT, "method": 5}]), "method"


@pytest.mark.parametrize(("data", "words"), list(damaged()))
def test_a_damaged_file_is_refused_in_one_sentence(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=words) as caught:
        read_state(path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == data


# --- results -------------------------------------------------------------------------------------------------------

SECONDS = {  # (batch, method) -> decode seconds of three repeats
    (1, "greedy"): [4.0, 5.0, 6.0],
    (1, "vanilla"): [2.0, 2.0, 2.0],
    (1, "ems-sd"): [2.0, 2.0, 2.0],
    (2, "greedy"): [3.0, 3.0, 3.0],
    (2, "vanilla"): [2.5, 2.0, 3.5],
    (2, "ems-sd"): [1.0, 2.0, 1.5],
    (4, "greedy"): [2.0, 2.0, 2.0],
    (4, "vanilla"): [2.5, 2.2, 2.1],
    (4, "ems-sd"): [1.0, 1.0, 1.0],
}


def invented(prompts: tuple[str, ...] = ("copy-rich",)) -> BenchState:
    """Measurements with known seconds; each step feeds 10 rows of which greedy needs 20 steps, the others 8."""
    sets = [PromptSet(name, [[5], [6], [7], [8]]) for name in prompts]
    plan = BenchPlan((1, 2, 4), methods=("vanilla", "ems-sd"), repeats=3, max_new_tokens=6, transformers=False)
    place = bench_environment(language_model("random-llama"))
    state = BenchState({"settings": plan.to_dict(sets), "environment": place})
    for name in prompts:
        for size in (1, 2, 4):
            for repeat in range(3):
                results = []
                for entry in plan.entries(size):
                    steps = 20 if entry == GREEDY else 8
                    results.append(
                        {
                            **{"method": entry.method, "drafter": entry.drafter, "rows": 4, "decode_tokens": 20},
                            **{"steps": steps, "differences": [], "attention": "sdpa"},
                            "seconds": {"total": SECONDS[size, entry.method][repeat]},
                            "counts": [[10.0, 0.0, 0.0, 1, size, 10, size]] * steps,
                        }
                    )
                record = {"kind": "repeat", "prompts": name, "batch": size, "repeat": repeat}
                state.add({**record, "prefill_seconds": 0.5, "results": results})
    return state


def test_short_runs_are_timed_more_often() -> None:
    assert [repeats_at(5, size) for size in (1, 2, 3, 4, 6, 8, 1024)] == [5, 5, 5, 10, 15, 15, 15]
    made = benchmark(replace(PLAN, batch_sizes=(1, 4), repeats=1, methods=("ems-sd",), transformers=False))
    made.run()
    counts = [len(made.state.repeats("some", size)) for size in (1, 4)]
    assert counts == [1, 2]
    text = bench_table(BenchResults.of(made.state), "")
    assert "Medians of 1 to 2 interleaved repeats," in text


def test_speed_ups_are_paired_and_spread_by_quartiles() -> None:
    results = BenchResults.of(invented())
    vanilla, ems = Entry("vanilla", "prompt-lookup"), Entry("ems-sd", "prompt-lookup")
    point = results.point("copy-rich", 1, vanilla)
    assert point is not None
    assert point.speed_up == Spread(2.5, 2.25, 2.75)
    assert point.tokens_per_second == Spread(10.0, 10.0, 10.0)
    assert point.speed_up_vs_ragged is None
    other = results.point("copy-rich", 2, ems)
    assert other is not None
    assert other.speed_up == Spread(2.0, 1.75, 2.5)
    assert other.speed_up_vs_vanilla is not None
    assert list(other.speed_up_vs_vanilla.to_dict().values()) == pytest.approx([7 / 3, 5 / 3, 29 / 12])
    assert other.step_seconds == 1.5 / 8
    assert other.prefill_seconds == 0.5
    assert results.first_below_greedy("copy-rich", "prompt-lookup") == 4
    assert results.first_below_greedy("copy-rich", "prompt-lookup", "ems-sd") is None
    assert crossing_lines(results) == ["copy-rich, prompt-lookup: vanilla is slower than greedy first at batch 4."]
    assert results.to_dict()["below_greedy"][0]["batch"] == 4


def test_the_table_shows_every_point_and_what_it_was_measured_on() -> None:
    text = bench_table(BenchResults.of(invented(("copy-rich", "copy-poor"))), "description")
    lines = text.splitlines()
    assert lines[0] == "description"
    assert text.count("speed-up over greedy (padded cache)") == 2
    vanilla = next(line.split() for line in lines if line.strip().startswith("vanilla"))
    assert vanilla == ["vanilla", "2.50", "[2.25..2.75]", "1.20", "[1.03..1.35]", "0.91", "[0.85..0.93]"]
    assert cpu_name() in text
    assert "Medians of 3 interleaved repeats (more are planned)" in text
    assert "more than once" not in text  # four prompts fill every batch
    assert max(map(len, lines)) <= 120


def test_markdown_and_csv_hold_the_same_numbers() -> None:
    results = BenchResults.of(invented())
    assert "| vanilla | 2.50 [2.25..2.75] | " in bench_markdown(results, "x")
    rows = list(csv.DictReader(io.StringIO(results.to_csv())))
    assert len(rows) == 9
    row = next(row for row in rows if row["method"] == "ems-sd" and row["batch"] == "2")
    assert [row[f"speed_up_{part}"] for part in ("median", "low", "high")] == ["2.0", "1.75", "2.5"]
    assert row["speed_up_vs_greedy_ragged_median"] == ""
    json.dumps(results.to_dict(), allow_nan=False)


def test_the_figure_draws_medians_and_quartiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    drawn: list[tuple[list[float], list[list[float]], str]] = []
    errorbar = Axes.errorbar

    def spy(self: Axes, x: Any, y: Any, yerr: Any, **options: Any) -> Any:
        drawn.append((list(y), yerr, options["label"]))
        return errorbar(self, x, y, yerr=yerr, **options)

    monkeypatch.setattr(Axes, "errorbar", spy)
    results = BenchResults.of(invented(("copy-rich", "copy-poor")))
    for name in ("a.svg", "b.svg", "c.png", "d.pdf"):
        draw_figure(results, tmp_path / name, figure_caption(results))
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "d.pdf").read_bytes()[:4] == b"%PDF"
    assert len(drawn) == 4 * 2 * 2
    medians, (below, above), label = drawn[1]
    assert label == "EMS-SD"
    assert medians == [2.5, 2.0, 2.0]
    assert below == [0.25, 0.25, 0.0]
    assert above == [0.25, 0.5, 0.0]
    with pytest.raises(ConfigError, match="Cannot write"):
        draw_figure(results, tmp_path / "missing" / "a.svg", "")


def test_the_figure_says_what_it_was_measured_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    results = BenchResults.of(invented())
    place = results.environment
    caption = figure_caption(results)
    assert caption == (
        f"random-llama, float32; {cpu_name()}, {place['threads']} thread{'s' * (place['threads'] != 1)}; "
        "drafter prompt-lookup, K = 7; up to 6 new tokens; medians and quartiles of 3 repeats (more are planned)"
    )
    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *args, **more: (figures.append(self), save(self, *args, **more))
    )
    with rc_context({"svg.fonttype": "none"}):
        draw_figure(results, tmp_path / "a.svg", "what_$1$ it was " * 9)
    assert "what_$1$ it was what" in (tmp_path / "a.svg").read_text()
    (figure,) = figures
    (panel,), (legend,), title = figure.axes, figure.legends, figure.texts[0]
    boxes = [each.get_tightbbox() for each in (panel, legend, title)]
    assert all(box is not None and box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    gpu = replace(results, environment={**place, "device": "cuda:0", "device_name": "a card"})
    assert "; a card; " in figure_caption(gpu)


# --- beside the cost model -----------------------------------------------------------------------------------------


def test_modelled_speed_ups_come_from_the_counts_of_the_same_runs() -> None:
    results = BenchResults.of(invented())
    model = CostModel("a machine", step_ms=10, row_us=0, slot_us=0, sequence_us=1000)
    comparison = compare_with_model(results, model)
    assert len(comparison.points) == 9
    for point in comparison.points:
        assert point.modelled == pytest.approx(1 if point.entry == GREEDY else 20 / 8)
        assert point.modelled_step_seconds == pytest.approx(0.010 + 0.001 * point.batch)
    measured = [2.5, 2.5, 1.2, 2.0, 1 / 1.1, 2.0]
    errors = [abs(2.5 / value - 1) for value in measured]
    assert comparison.mean_error == pytest.approx(sum(errors) / 6)
    assert comparison.is_near == (comparison.mean_error <= LARGEST_MEAN_ERROR)
    assert not comparison.is_near
    assert not comparison.passed
    assert comparison.crossings == [Crossing("copy-rich", "prompt-lookup", 4, None, (1, 2, 4))]
    assert comparison.crossings[0].agrees  # "never" is one size beyond the largest
    text = model_table(comparison)
    assert "MORE THAN the 15 % allowed" in text
    assert "never as modelled: within one tested batch size" in text


def test_a_right_model_passes() -> None:
    state = invented()
    for record in state.records:
        for result in record["results"]:
            result["seconds"]["total"] = 0.01 * result["steps"] * (1 + 0.1 * record["repeat"])
    comparison = compare_with_model(BenchResults.of(state), CostModel("a machine", 10, 0, 0))
    assert comparison.mean_error == pytest.approx(0)
    assert comparison.passed


@pytest.mark.parametrize(
    ("measured", "modelled", "agrees"),
    [(4, 4, True), (2, 4, True), (1, 4, False), (None, None, True), (8, None, True), (4, None, False)],
)
def test_crossings_agree_within_one_tested_size(measured: int | None, modelled: int | None, agrees: bool) -> None:
    assert Crossing("p", "d", measured, modelled, (1, 2, 4, 8)).agrees == agrees


def test_a_small_mean_error_does_not_pass_where_the_crossings_disagree() -> None:
    right = ModelComparison("a machine", [], [Crossing("p", "d", 2, 4, (1, 2, 4))])
    point = ModelPoint("p", 2, Entry("vanilla", "d"), 1.0, 1.1, 1.0, 1.0)
    for crossings, passed in (([], True), (right.crossings, True), ([Crossing("p", "d", 1, 4, (1, 2, 4))], False)):
        comparison = replace(right, points=[point], crossings=crossings)
        assert comparison.is_near
        assert comparison.passed == comparison.to_dict()["passed"] == passed
        assert ("The cost model DOES NOT AGREE" in model_table(comparison)) != passed
        assert "10.0 %, within the 15 % allowed" in model_table(comparison)
    assert not replace(right, points=[]).passed


def test_real_runs_can_be_modelled(measured: Benchmark) -> None:
    comparison = compare_with_model(BenchResults.of(measured.state), CostModel("a machine", 1.0, 10.0, 1.0))
    ours = [entry for size in (1, 2) for entry in PLAN.entries(size) if entry.is_ours]
    assert [point.entry for point in comparison.points] == ours
    assert all(point.modelled > 0 for point in comparison.points)
