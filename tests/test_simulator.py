"""Simulated batches are ordinary traces, and the fast counts are those of the layouts."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from emssd.acceptance import Acceptance, draw_rows
from emssd.accounting import ATTENTION_MODES, INPUT_KINDS, SCAN_KINDS, kv_bytes_per_slot, step_account
from emssd.cells import iter_cells
from emssd.chrome_trace import chrome_trace
from emssd.config import METHODS, SpeculativeConfig
from emssd.cost_model import PAPER_FIT
from emssd.counters_csv import counters_csv, totals_csv
from emssd.errors import ConfigError
from emssd.layouts import make_layout
from emssd.model_config import shape_from_config
from emssd.model_presets import MODELS
from emssd.model_shape import ModelShape
from emssd.run_counts import count_batches, speed_up
from emssd.simulator import simulate
from emssd.step_counts import StepCounts
from emssd.trace import GenerationTrace
from emssd.viewing import read_traces, write_page

ALL = tuple(METHODS)
SMALL = Acceptance(hit_rate=0.6, token_rate=0.7, spread=0.5, prompt_mean=15, prompt_sd=10, output_tokens=20)


def random_case(seed: int) -> tuple[Acceptance, int]:
    draw = Random(seed)
    acceptance = Acceptance(
        hit_rate=draw.choice([0.0, 0.3, 0.8, 1.0]),
        token_rate=draw.choice([0.0, 0.5, 0.9, 1.0]),
        spread=draw.choice([0.0, 1.0]),
        prompt_mean=draw.randint(1, 30),
        prompt_sd=draw.randint(0, 20),
        prompt_law=draw.choice(["lognormal", "normal", "equal"]),
        num_draft_tokens=draw.randint(0, 9),
        output_tokens=draw.choice([1, 2, 3, draw.randint(4, 40)]),
    )
    return acceptance, draw.randint(1, 7)


@pytest.mark.parametrize("seed", range(25))
def test_traces_are_valid_and_fast_counts_are_those_of_their_accounts(seed):
    acceptance, batch_size = random_case(seed)
    traces = simulate(acceptance, batch_size, ALL, seed)
    batches = draw_rows(acceptance, batch_size, seed).batches(batch_size)
    outputs = [row.output_token_ids for row in traces["greedy"].rows]
    for method, trace in traces.items():
        assert GenerationTrace.from_json(trace.to_json()) == trace
        assert [row.output_token_ids for row in trace.rows] == outputs
        assert all(len(row.output_token_ids) == acceptance.output_tokens for row in trace.rows)
        assert_counts(count_batches(batches, method), [trace.decode_steps])


def assert_counts(counts, runs) -> None:
    """`counts` [batches, steps] against the accounts of steps, exactly."""
    for batch, steps in enumerate(runs):
        assert counts.happens[batch].tolist() == [1.0] * len(steps) + [0.0] * (counts.happens.shape[1] - len(steps))
        for index, step in enumerate(steps):
            account = step.account if hasattr(step, "account") else step
            for kind in INPUT_KINDS:
                assert counts.input_rows[kind][batch, index] == account.input_rows[kind]
            for mode in ATTENTION_MODES:
                for kind in SCAN_KINDS:
                    scanned = counts.kv_slots_scanned[mode][kind][batch, index]
                    assert scanned == account.kv_slots_scanned[mode][kind], (mode, kind)
            assert counts.launches[batch, index] == account.attention_launches


@pytest.mark.parametrize("method", ["vanilla", "packed-input", "ragged-cache", "ems-sd"])
def test_fast_counts_of_several_uncapped_batches_are_those_of_the_plans(method):
    """As in the authors' code, where a row's last step may gain more than was left."""
    batches = draw_rows(SMALL.with_settings(token_rate=0.95), 12, 5, capped=False).batches(4)
    counts = count_batches(batches, method)
    runs = []
    for number, lengths in enumerate(batches.prompt_lengths):
        layout = make_layout(SpeculativeConfig.for_method(method), with_masks=False)
        rows, accounts = layout.start(lengths.tolist()), []
        gained, drafted = batches.gained[number], batches.drafted[number]
        for step in range(len(gained)):
            if all(row.finished for row in rows):
                break
            plan = layout.plan(rows, [0] * 4, [[1] * count for count in drafted[step]])
            ended = [not later.any() for later in gained[step + 1 :].T]
            layout.commit(rows, plan, gained[step].tolist(), ended)
            accounts.append(step_account(plan, 0, 0))
        runs.append(accounts)
    assert_counts(counts, runs)
    assert counts.tokens.tolist() == batches.gained.sum((1, 2)).tolist()
    assert counts.tokens.sum() > 12 * 19  # some rows overshot


def test_greedy_never_overshoots():
    batches = draw_rows(SMALL.with_settings(token_rate=0.95), 12, 5, capped=False).batches(4)
    assert count_batches(batches, "greedy").tokens.tolist() == [4 * 19] * 3


@pytest.mark.parametrize("method", ALL)
def test_every_view_takes_a_simulated_trace(method):
    trace = simulate(SMALL, 3, [method], 1)[method]
    assert len(list(iter_cells(trace))) == len(trace.steps)
    traces = {method: trace}
    assert counters_csv(traces).count("\n") == 1 + 3 * len(trace.steps)
    assert totals_csv(traces).count("\n") >= 2
    assert "emssd_version" in chrome_trace(traces)


def test_the_player_opens_simulated_traces(tmp_path):
    names = []
    for method, trace in simulate(SMALL, 3, ["vanilla", "ems-sd"], 1).items():
        names.append(tmp_path / f"{method}.json")
        trace.to_json(names[-1])
    write_page(read_traces(names), str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert 'data-testid="player"' in page
    assert '"vanilla"' in page
    assert '"ems-sd"' in page


def test_a_trace_keeps_a_compressed_cache_and_counted_weights():
    config = {"model_type": "deepseek_v2", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    config |= {"kv_lora_rank": 12, "q_lora_rank": None, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 10}
    config |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1}
    shape = shape_from_config({**config, "first_k_dense_replace": 1, "vocab_size": 97, "dtype": "bfloat16"})
    model = simulate(SMALL, 1, ["ems-sd"], 0, shape, "tiny", "bfloat16")["ems-sd"].model
    assert model["dtype"] == "bfloat16"
    assert ModelShape.from_trace(model) == shape
    assert kv_bytes_per_slot(model) == 3 * (12 + 4) * 2


def test_a_simulated_trace_says_so_and_measures_nothing():
    trace = simulate(SMALL, 2, ["ems-sd"], 0, MODELS["qwen3-8b"], "qwen3-8b")["ems-sd"]
    assert trace.attention == "simulated"
    assert trace.model["device"] == trace.model["architecture"] == "simulated"
    assert trace.model["name"] == "qwen3-8b"
    assert trace.model["kv_heads"] == 8
    assert trace.drafter == {"name": "invented", **SMALL.to_dict()}
    assert trace.summary()["seconds"]["total"] == 0
    assert trace.summary()["tokens_per_second"] is None
    assert simulate(SMALL, 2, ["greedy"], 0)["greedy"].drafter == {"name": "none"}


def test_all_methods_share_drafts_and_verdicts():
    traces = simulate(SMALL, 4, ["vanilla", "packed-input", "ragged-cache", "ems-sd"], 2)
    seen = {
        method: [
            [(row.draft_token_ids, row.target_token_ids, row.num_emitted) for row in step.rows] for step in trace.steps
        ]
        for method, trace in traces.items()
    }
    assert all(steps == seen["ems-sd"] for steps in seen.values())
    rejected = [row for row in traces["ems-sd"].live_rows() if row.num_accepted < row.num_drafted]
    assert rejected
    assert all(row.draft_token_ids[row.num_accepted] != row.emitted_token_ids[-1] for row in rejected)


def test_the_same_seed_gives_the_same_traces():
    first, second, other = (simulate(SMALL, 3, ["vanilla"], seed)["vanilla"] for seed in (5, 5, 6))
    assert first == second
    assert first != other


def test_counts_as_a_cost_model_reads_them():
    acceptance = SMALL.with_settings(prompt_mean=200)
    trace = simulate(acceptance, 5, ["vanilla"], 3)["vanilla"]
    counts = count_batches(draw_rows(acceptance, 5, 3).batches(5), "vanilla")
    mine = counts.step_counts()
    for index, step in enumerate(trace.decode_steps):
        theirs = StepCounts.from_step(step)
        for name in ("rows", "query_slots", "span_slots", "launches", "live", "query_rows"):
            assert getattr(mine, name)[0, index] == getattr(theirs, name), name
    assert counts.seconds(PAPER_FIT)[0] == pytest.approx(PAPER_FIT.trace_seconds(trace))
    summary = trace.summary()
    assert counts.counts_by_kind["input_rows"] == summary["input_rows"]
    assert counts.counts_by_kind["per_token"] == summary["kv_slots_scanned"]["per_token"]
    assert counts.mean_acceptance_length == pytest.approx(summary["mean_acceptance_length"])
    assert counts.steps.tolist() == [summary["steps"]]
    speed = summary["decode_tokens"] / PAPER_FIT.trace_seconds(trace)
    assert counts.tokens_per_second(PAPER_FIT) == pytest.approx(speed)
    assert speed_up(counts, counts, PAPER_FIT) == 1.0


def test_windows_and_experts_of_the_shape_are_told():
    config = {"model_type": "mixtral", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 99, "num_local_experts": 8}
    shape = shape_from_config({**config, "num_experts_per_tok": 2, "sliding_window": 16, "dtype": "bfloat16"})
    model = simulate(SMALL, 1, ["ems-sd"], 0, shape, "small")["ems-sd"].model
    assert (model["experts"], model["experts_per_token"], model["sliding_window"]) == (8, 2, 16)
    assert model["layer_types"] == ["sliding_attention"] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number from 1 to 256, not 0"),
        ({"batch_size": 257}, "batch_size must be a whole number from 1 to 256, not 257"),
        ({"methods": ["fast"]}, "Unknown method 'fast'"),
        ({"model_name": "opt-7b"}, "'opt-7b' is not known"),
        ({"seed": -3}, "seed must be a whole number from 0"),
        ({"acceptance": Acceptance(prompt_mean=2000, prompt_max=2040)}, "do not fit the model's 2048 positions"),
    ],
)
def test_bad_input_is_one_clear_sentence(change, message):
    arguments = {"acceptance": SMALL, "batch_size": 2, "methods": ["ems-sd"], "seed": 0, **change}
    with pytest.raises(ConfigError, match=message):
        simulate(**arguments)


def test_a_tiny_vocabulary_is_refused():
    config = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 11}
    with pytest.raises(ConfigError, match="vocabulary of 12 tokens or more, not 11"):
        simulate(SMALL, 1, ["ems-sd"], 0, shape_from_config(config), "tiny")


def test_a_small_vocabulary_is_kept_to():
    config = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 12}
    trace = simulate(SMALL, 3, ["ems-sd"], 0, shape_from_config(config), "tiny")["ems-sd"]
    assert GenerationTrace.from_json(trace.to_json()) == trace
    ids = {token for row in trace.live_rows() for token in (*row.draft_token_ids, *row.target_token_ids)}
    assert ids == {10, 11}


def test_unknown_methods_are_refused_when_counting():
    batches = draw_rows(SMALL, 2, 0).batches(2)
    with pytest.raises(ConfigError, match="Unknown method 'fast'"):
        count_batches(batches, "fast")
    assert np.isfinite(count_batches(batches, "ems-sd").seconds(PAPER_FIT)).all()
