"""Expected counts against simulation, against all outcomes of a small case, and where they are known exactly."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from emssd.acceptance import Acceptance, Trajectories, draw_rows
from emssd.config import METHODS
from emssd.cost_model import CostModel
from emssd.errors import ConfigError
from emssd.expectation import expected_runs, expected_steps
from emssd.expected_speeds import falls_below, runs_of, slower_ranges
from emssd.hardware import HARDWARE
from emssd.model_config import shape_from_config
from emssd.run_counts import RunCounts, count_batches, speed_up

BATCH_SIZES = (1, 2, 4, 8, 12, 16, 20, 24)
PAPERS = ("greedy", "vanilla", "packed-input", "ragged-cache", "ems-sd")
SPECULATIVE = PAPERS[1:]
COSTS = (
    CostModel("slots", step_ms=13.7, row_us=0.0, slot_us=0.248),
    CostModel("rows", step_ms=1.0, row_us=100.0, slot_us=0.05),
    CostModel("varlen", step_ms=7.2, row_us=42.7, slot_us=0.248, weights_ms=6.5, sequence_us=50.0, kernel="varlen"),
)
BEHAVIOURS = {
    "paper": Acceptance(),
    "equal prompts, uneven rows": Acceptance(hit_rate=0.5, token_rate=0.98, spread=1.0, prompt_law="equal"),
    "poor drafts": Acceptance(
        hit_rate=0.3, token_rate=0.6, spread=0.5, num_draft_tokens=4, output_tokens=60, prompt_law="normal"
    ),
    "always one draft": Acceptance(hit_rate=1.0, token_rate=0.5, spread=0.0, num_draft_tokens=1, output_tokens=40),
}


def total(run: RunCounts, costs: CostModel) -> float:
    return float(np.mean(run.seconds(costs)))


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_expectations_are_those_of_the_simulation(name):
    """Mean error of modelled seconds at most 1 %, worst at most 3 %, over 8 batch sizes x 5 methods x 3 costs."""
    acceptance = BEHAVIOURS[name]
    rows = draw_rows(acceptance, 9_600, seed=11)
    expected = expected_runs(acceptance, BATCH_SIZES, PAPERS)
    errors = []
    for size in BATCH_SIZES:
        batches = rows.batches(size)
        for method in PAPERS:
            counted = count_batches(batches, method)
            errors += [abs(total(expected[size][method], costs) / total(counted, costs) - 1) for costs in COSTS]
    assert len(errors) == 8 * 5 * 3
    assert np.mean(errors) <= 0.01
    assert max(errors) <= 0.03


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_every_kind_of_row_and_slot_is_that_of_the_simulation(name):
    acceptance = BEHAVIOURS[name]
    rows = draw_rows(acceptance, 9_600, seed=12)
    for size in (1, 4, 24):
        batches, expected = rows.batches(size), expected_steps(acceptance, size, SPECULATIVE)
        for method in SPECULATIVE:
            counted = count_batches(batches, method)
            runs = len(batches.prompt_lengths)
            for table, kinds in counted.counts_by_kind.items():
                whole = sum(kinds.values()) / runs
                for kind, value in kinds.items():
                    shown = expected[method].counts_by_kind[table][kind]
                    assert shown == pytest.approx(value / runs, rel=0.04, abs=0.003 * whole), (size, method, kind)
            assert expected[method].steps == pytest.approx(counted.steps.mean(), rel=0.01)
            assert expected[method].mean_acceptance_length == pytest.approx(counted.mean_acceptance_length, rel=0.01)


def all_outcomes(hit: float, token: float, drafts: int, decoded: int):
    """Every course of one row, as (chance, [(drafted, gained), ...])."""
    if decoded == 0:
        yield 1.0, []
        return
    most = min(drafts, decoded - 1)
    steps = [(1.0 - hit, 0, 1)] if most else [(1.0, 0, 1)]
    if most:
        steps += [(hit * token**gain * (1 - token), most, gain + 1) for gain in range(most)]
        steps.append((hit * token**most, most, most + 1))
    for chance, drafted, gained in steps:
        for rest, course in all_outcomes(hit, token, drafts, decoded - gained):
            yield chance * rest, [(drafted, gained), *course]


def exact_means(hit: float, token: float, drafts: int, decoded: int, rows: int, method: str):
    """Means over all outcomes of a batch of equal prompts of 3 tokens, weighted by their chances."""
    courses = list(all_outcomes(hit, token, drafts, decoded))
    batches = list(product(courses, repeat=rows))
    chances = np.array([np.prod([chance for chance, _ in batch]) for batch in batches])
    assert chances.sum() == pytest.approx(1)
    drafted, gained = np.zeros((2, len(batches), decoded, rows), dtype=np.int64)
    for place, batch in enumerate(batches):
        for row, (_, course) in enumerate(batch):
            for step, (count, gain) in enumerate(course):
                drafted[place, step, row], gained[place, step, row] = count, gain
    lengths = np.full((len(batches), rows), 3)
    return count_batches(Trajectories(lengths, drafted, gained, decoded), method), chances


@pytest.mark.parametrize("method", SPECULATIVE)
@pytest.mark.parametrize(("drafts", "decoded", "rows"), [(1, 4, 3), (2, 4, 2), (3, 5, 2), (5, 3, 3), (2, 6, 1)])
def test_a_small_case_is_exact_in_every_step(method, drafts, decoded, rows):
    """Against the sum over all outcomes. Slots of pads in a padded cache and the launches' weight are approximate."""
    hit, token = 0.6, 0.7
    counted, chances = exact_means(hit, token, drafts, decoded, rows, method)
    acceptance = Acceptance(
        hit, token, 0.0, prompt_mean=3, prompt_law="equal", num_draft_tokens=drafts, output_tokens=decoded + 1
    )
    run = expected_steps(acceptance, rows, [method])[method]
    steps = len(run.happens)

    def mean(values):
        return chances @ (counted.happens * values)[:, :steps]

    assert run.happens == pytest.approx(mean(1.0))
    assert run.happens * run.live == pytest.approx(mean(counted.live))
    for kind, values in run.input_rows.items():
        assert run.happens * values == pytest.approx(mean(counted.input_rows[kind])), kind
    for mode, kinds in run.kv_slots_scanned.items():
        for kind, values in kinds.items():
            approximate = method == "vanilla" and mode == "per_token" and kind == "pad_query"
            limit = {"rel": 0.25, "abs": 0.2} if approximate else {"rel": 1e-9, "abs": 1e-9}
            assert run.happens * values == pytest.approx(mean(counted.kv_slots_scanned[mode][kind]), **limit), kind
            assert (run.happens * values).sum() == pytest.approx(
                mean(counted.kv_slots_scanned[mode][kind]).sum(), rel=0.15 if approximate else 1e-9, abs=1e-9
            )
    slots = sum(run.kv_slots_scanned["per_token"].values())
    read = sum(counted.kv_slots_scanned["per_token"].values()) * counted.launches
    limit = {"vanilla": 0.1, "packed-input": 0.03}.get(method, 1e-9)
    assert run.happens * slots * run.launches == pytest.approx(mean(read), rel=limit)


@pytest.mark.parametrize(("hit", "token"), [(0.0, 0.5), (1.0, 1.0), (1.0, 0.0)])
@pytest.mark.parametrize("method", tuple(METHODS))
def test_a_case_without_chance_is_exact(hit, token, method):
    acceptance = Acceptance(hit, token, 0.0, prompt_mean=50, prompt_law="equal", num_draft_tokens=3, output_tokens=30)
    counted = count_batches(draw_rows(acceptance, 6, 0).batches(6), method)
    run = expected_steps(acceptance, 6, [method])[method]
    assert len(run.happens) == counted.happens.shape[1]
    assert run.tokens == counted.tokens[0]
    for mine, theirs in ((run.input_rows, counted.input_rows), *zip_modes(run, counted)):
        for kind, values in mine.items():
            assert values == pytest.approx(theirs[kind][0]), kind
    assert run.launches == pytest.approx(counted.launches[0])


def zip_modes(run: RunCounts, counted: RunCounts):
    return [(kinds, counted.kv_slots_scanned[mode]) for mode, kinds in run.kv_slots_scanned.items()]


def test_one_row_has_no_waste_and_all_methods_are_one():
    runs = expected_steps(Acceptance(), 1, SPECULATIVE)
    costs = COSTS[0]
    for method in SPECULATIVE:
        counts = runs[method].counts_by_kind
        assert counts["input_rows"]["pad"] == pytest.approx(0, abs=1e-6)
        for mode in ("per_token", "varlen"):
            for kind in ("prompt_pad", "hole", "pad_query"):
                assert counts[mode][kind] == pytest.approx(0, abs=1e-6), (method, kind)
        assert total(runs[method], costs) == pytest.approx(total(runs["ems-sd"], costs), rel=1e-4)


def test_ems_sd_wastes_nothing_and_the_halves_waste_what_they_leave():
    runs = {name: run.counts_by_kind for name, run in expected_steps(Acceptance(), 8, SPECULATIVE).items()}
    for name, counts in runs.items():
        cache, inputs = METHODS[name]
        wasted_rows = counts["input_rows"]["pad"] + counts["input_rows"]["finished"]
        dead = counts["varlen"]["hole"] + counts["varlen"]["prompt_pad"]
        assert (wasted_rows > 1) == (inputs == "padded"), name
        assert (dead > 1) == (cache == "padded"), name
        assert counts["input_rows"]["useful"] == pytest.approx(runs["ems-sd"]["input_rows"]["useful"])


def test_nothing_is_decoded_where_prefill_gives_the_only_token():
    runs = expected_steps(Acceptance(output_tokens=1), 4, PAPERS)
    for run in runs.values():
        assert len(run.happens) == 0
        assert run.tokens == 0
        assert run.tokens_per_second(COSTS[0]) == 0
        assert run.mean_acceptance_length == 0
    assert speed_up(runs["vanilla"], runs["greedy"], COSTS[0]) == 1.0


def test_sizes_and_methods_come_back_in_order_and_repeat_nothing():
    runs = expected_runs(Acceptance(output_tokens=20), [4, 2, 4], ["ems-sd", "greedy"])
    assert list(runs) == [4, 2]
    assert list(runs[4]) == ["ems-sd", "greedy"]
    alone = expected_steps(Acceptance(output_tokens=20), 2, ["ems-sd"])["ems-sd"]
    assert runs[2]["ems-sd"].launches == pytest.approx(alone.launches)
    assert (runs[2]["ems-sd"].batch_size, runs[2]["ems-sd"].tokens) == (2, 38)


@pytest.mark.parametrize("size", [0, 257, 2.0, True])
def test_a_bad_batch_size_is_named(size):
    with pytest.raises(ConfigError, match="batch_size must be a whole number from 1 to 256"):
        expected_steps(Acceptance(), size, ["vanilla"])


def test_an_unknown_method_is_named():
    with pytest.raises(ConfigError, match="Unknown method 'fast'"):
        expected_steps(Acceptance(), 2, ["fast"])


MIXTRAL = {
    **{"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8},
    **{"num_experts_per_tok": 2, "tie_word_embeddings": False},
}
SHARED_EXPERTS = CostModel.for_hardware(HARDWARE["h200"], shape_from_config(MIXTRAL), "float16")
RANGES = {
    "falls and stays": (COSTS[0], Acceptance(), 1),
    "never": (COSTS[2], Acceptance(hit_rate=0.99, token_rate=0.99, output_tokens=40), 0),
    "always": (COSTS[1], Acceptance(hit_rate=1.0, token_rate=0.0, output_tokens=40), 1),
    "recovers": (SHARED_EXPERTS, Acceptance(hit_rate=0.6, token_rate=0.6), 2),
}


@pytest.mark.parametrize("name", RANGES)
def test_where_vanilla_is_slower_is_what_trying_sizes_says(name):
    costs, acceptance, number = RANGES[name]
    found = slower_ranges(acceptance, costs, "vanilla")
    assert len(found) == number
    inside = {batch for first, last in found for batch in range(first, last + 1)}
    edges = {batch + step for ends in found for batch in ends for step in (-1, 0, 1)}
    sizes = tuple(sorted((edges | {1, 2, 5, 40, 256}) & set(range(1, 257))))
    speeds = runs_of(acceptance, sizes, ("greedy", "vanilla")).speed_ups(costs)
    assert {batch for batch in sizes if speeds[batch, "vanilla"] < 1} == inside & set(sizes)
    assert falls_below(acceptance, costs, "vanilla") == (found[0][0] if found else None)
    known = {batch: speeds[batch, "vanilla"] for batch in sizes}
    assert slower_ranges(acceptance, costs, "vanilla", known) == found
