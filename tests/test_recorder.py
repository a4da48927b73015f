"""The recorder: plan, account and hooks agree exactly, planted faults are found, runs that share a model stay apart."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import replace
from random import Random

import pytest
from torch.overrides import _get_current_function_mode_stack
from torch.profiler import ProfilerActivity, profile

from emssd import attention, profiling
from emssd.config import SpeculativeConfig
from emssd.decoding import GenerationRun, generate, generate_steps
from emssd.drafting import PromptLookupDrafter, ScriptedDrafter
from emssd.invariants import InvariantError
from emssd.language_model import LanguageModel
from emssd.layouts import BatchLayout
from emssd.model_runner import ModelRunner
from emssd.profiling import phase
from emssd.recorder import Recorder
from tests.helpers import ALL_METHODS, METHODS5, greedy, language_model, prompt_ids, same, script, spoil

MODELS = (
    *("random-llama", "random-opt", "random-gpt2", "random-gemma2", "random-gemma3", "random-mistral"),
    *("random-mixtral", "random-gpt-oss", "random-deepseek-v3", "random-phi"),
)


def hooks_of(lm: LanguageModel) -> int:
    """Hooks on the model's modules."""
    return sum(
        len(module._forward_pre_hooks) + len(module._forward_hooks) + len(module._forward_hooks_always_called)
        for module in lm.hooked.modules()
    )


def random_run(number: int) -> tuple[GenerationRun, bool]:
    """The n-th of a series of runs: every model, method and kernel in turn, ragged prompts, drafts partly right.

    Returns:
        The run, and whether to stop it before its end.
    """
    draw = Random(number)
    lm = language_model(MODELS[number % len(MODELS)])
    method = ALL_METHODS[(number + number // len(MODELS)) % len(ALL_METHODS)]
    prompts = [prompt_ids(draw.choice((1, 2, 4, 7, 13)), draw.randint(0, 1)) for _ in range(draw.randint(1, 5))]
    outputs = [greedy(lm, prompt, 14) for prompt in prompts]
    most = draw.randint(1, 4)

    def propose(row: int, committed: list[int], step: int) -> list[int]:
        done = len(committed) - len(prompts[row])
        draft = outputs[row][done : done + Random(f"{number} {row} {step}").randint(0, most)]
        return [spoil(token, 97) if draw.random() < 0.3 else token for token in draft]

    wanted = {} if method.startswith("greedy") else {"num_draft_tokens": most}
    config = SpeculativeConfig.for_method(
        method,
        max_new_tokens=draw.randint(1, 10),
        eos_token_ids=tuple(draw.sample(outputs[0] + outputs[-1], draw.randint(0, 3))),
        attention=draw.choice(["auto", "reference"]),
        check_invariants=number % 40 == 7,  # its own forwards on the same modules must not count
        **wanted,
    )
    drafter = ScriptedDrafter(propose) if number % 3 else PromptLookupDrafter(1, "context")
    return generate_steps(lm, prompts, config, drafter if wanted else None), draw.random() < 0.1


@pytest.mark.parametrize("part", range(10))
def test_hooks_equal_plan_and_account_in_every_step_of_random_runs(part):
    """200 runs: rows of every dense layer; slots written, looked at and seen by every attention call; prefill too."""
    kinds = dict.fromkeys(("prefill", "decode", "finished", "pad", "drafts"), 0)
    for number in range(20 * part, 20 * part + 20):
        run, stop = random_run(number)
        with Recorder(run.runner) as recorder:
            for step in run:
                for row in step.rows:
                    kinds[row.kind] += 1
                    kinds["pad"] += "pad" in row.input_kinds and row.kind == "decode"
                    kinds["drafts"] += row.num_drafted
                if stop and step.index == 2:
                    run.close()
        assert list(recorder.differences(run.trace)) == [], f"run {number}"
        assert len(recorder.forwards) == len(run.trace.steps)
    assert all(kinds.values()), kinds


def test_what_is_recorded_of_the_worked_example():
    """Two steps by hand: 12 and 12 rows of dense layers, 132 and 180 pairs of query and slot, of which some are seen.

    Visible in step 1: row A 6+7+8+9+10+11 = 51, row B 4+5+6 and three pads that see what its last token sees, 6 each.
    In step 2: A 10+11+12 and three pads at 12, B 5+6+7+8+9+10.
    """
    lm = language_model("random-llama")
    prompts = [prompt_ids(5), prompt_ids(3, 1)]
    outputs = [greedy(lm, prompt, 20) for prompt in prompts]
    drafts = [[5, 2, 0], [2, 5, 0]]
    config = SpeculativeConfig.vanilla(num_draft_tokens=lambda row, step: drafts[row][min(step, 3) - 1],
                                       max_new_tokens=9)  # fmt: skip
    run = generate_steps(lm, prompts, config, script(outputs, [[3, 1], [0, 5]], 97, 5))
    with Recorder(run.runner) as recorder:
        next(run), next(run), next(run)
    prefill, first, second = recorder.forwards
    layers = {name for name in prefill.rows if name != "lm_head"}
    assert len(layers) == 2 * 7
    assert {prefill.rows[name] for name in layers} == {5 + 3}
    assert prefill.rows["lm_head"] == 2
    assert set(first.rows.values()) == set(second.rows.values()) == {12}
    for layer in (0, 1):
        seen = [vars(forward.attention[layer]) for forward in recorder.forwards]
        queries, spans, pairs, visible, written = zip(
            *((s["queries"], s["spans"], s["pairs"], s["visible"], s["written_keys"]) for s in seen), strict=True
        )
        assert queries == (8, 12, 12)
        assert spans == (5 + 3, 11 + 11, 15 + 15)
        assert pairs == (25 + 9, 12 * 11, 12 * 15)
        assert visible == (15 + 6, 51 + 15 + 3 * 6, 33 + 3 * 12 + 45)
        assert written == (8, 12, 12)
        assert all(s["written_values"] == s["written_keys"] and s["value_pairs"] == s["pairs"] for s in seen)
    recorder.check(run.trace)


def recorded(lm: LanguageModel, method: str, **settings) -> tuple[Recorder, GenerationRun]:
    run = generate_steps(lm, [prompt_ids(9), prompt_ids(3, 1), prompt_ids(6, 2)],
                         SpeculativeConfig.for_method(method, max_new_tokens=8, **settings))  # fmt: skip
    with Recorder(run.runner) as recorder:
        list(run)
    return recorder, run


def first_difference(recorder: Recorder, run: GenerationRun) -> str:
    with pytest.raises(InvariantError) as caught:
        recorder.check(run.trace)
    assert str(caught.value) == f"{next(recorder.differences(run.trace))}."
    return str(caught.value)


@pytest.mark.parametrize("method", METHODS5)
def test_an_account_that_is_one_off_is_found(method):
    recorder, run = recorded(language_model("random-llama"), method)
    assert list(recorder.differences(run.trace)) == []
    right = run.trace.steps[2].account
    scanned = right.kv_slots_scanned
    for wrong, words in (
        (replace(right, input_rows=right.input_rows | {"useful": right.input_rows["useful"] + 1}), "input rows"),
        (replace(right, kv_slots_scanned=scanned | {"per_token": scanned["per_token"] | {"useful": 1}}), "per token"),
        (replace(right, kv_slots_scanned=scanned | {"varlen": scanned["varlen"] | {"hole": 99}}), "spans"),
    ):
        run.trace.steps[2].account = wrong
        found = first_difference(recorder, run)
        assert found.startswith("step 2, account: ")
        assert words in found
    run.trace.steps[2].account = right
    recorder.check(run.trace)


def test_a_pad_that_the_trace_does_not_show_is_found(monkeypatch):
    """The engine feeds one more row than the record says."""
    recorder, run = recorded(language_model("random-gpt2"), "vanilla")
    row = run.trace.steps[1].rows[1]
    for name in ("input_token_ids", "input_kinds", "position_ids"):
        getattr(row, name).append("pad" if name == "input_kinds" else 1)
    assert "step 1, rows of transformer.h.0.attn.c_attn: the plan says" in first_difference(recorder, run)


def test_attention_that_looks_at_more_slots_than_planned_is_found(monkeypatch):
    monkeypatch.setattr(attention, "first_slot", lambda group, window: 0)
    recorder, run = recorded(language_model("random-mistral"), "ems-sd")
    assert "layer 0: spans: the plan says" in first_difference(recorder, run)


def test_attention_that_sees_what_it_must_not_is_found(monkeypatch):
    """Same shapes, another mask: nothing but the count of visible slots can tell."""
    right = attention.visible_slots

    def all_slots(group, window):
        visible = right(group, window)
        visible[:, :, 0] = True
        visible[:, 0, :] = True
        return visible

    for kernel in ("auto", "reference"):
        monkeypatch.setattr(attention, "visible_slots", all_slots)
        recorder, run = recorded(language_model("random-llama"), "vanilla", attention=kernel)
        monkeypatch.undo()
        assert "layer 0: visible: the plan says" in first_difference(recorder, run)


def test_finished_rows_that_are_fed_although_packed_are_found(monkeypatch):
    """The recorder looks at the model, not at the plan that the engine ran."""
    recorder, run = recorded(language_model("random-llama"), "packed-input")
    plan = BatchLayout._plan_finished
    monkeypatch.setattr(BatchLayout, "_plan_finished", lambda self, row, width: plan(self, row, max(width, 2)))
    early = run.config.with_settings(eos_token_ids=tuple(run.trace.rows[0].output_token_ids[2:3]))
    again = generate_steps(run.lm, [row.prompt_token_ids for row in run.trace.rows], early)
    with Recorder(again.runner) as other:
        list(again)
    for step in again.trace.steps:  # the record says nothing of it
        for row in step.rows:
            if row.kind == "finished":
                row.input_token_ids, row.input_kinds, row.position_ids = [], [], []
    assert ", rows of model.layers.0.self_attn.q_proj: the plan says" in first_difference(other, again)
    recorder.check(run.trace)


def test_a_layer_that_runs_twice_is_found(monkeypatch):
    lm = language_model("random-qwen3")
    network = lm.hooked.model.layers[1].mlp
    forward = network.forward

    def twice(rows):
        network.up_proj(rows)
        return forward(rows)

    monkeypatch.setattr(network, "forward", twice)
    recorder, run = recorded(lm, "ems-sd")
    assert "step 0, rows of model.layers.1.mlp.up_proj: the plan says 18, the model saw 36" in (
        first_difference(recorder, run)
    )


def test_missing_forwards_are_found():
    recorder, run = recorded(language_model("random-llama"), "greedy")
    recorder.forwards.pop()
    assert first_difference(recorder, run) == "forwards: the plan says 8, the model saw 7."


# --- whose forward it is


def two_runs(lm: LanguageModel) -> list[GenerationRun]:
    settings = {"max_new_tokens": 9, "eos_token_ids": ()}
    return [
        generate_steps(lm, [prompt_ids(9), prompt_ids(4, 1)], SpeculativeConfig.vanilla(**settings)),
        generate_steps(lm, [prompt_ids(7, 2)] * 3, SpeculativeConfig.ems_sd(**settings), same(lm)),
    ]


@pytest.mark.parametrize("name", ["random-llama", "random-mixtral", "random-gpt2"])
def test_interleaved_runs_on_a_shared_model_count_apart(name):
    """Step by step in turn, one of them with the same model as its drafter: its draft forwards are not the run's."""
    lm = language_model(name)
    runs = two_runs(lm)
    with Recorder(runs[0].runner) as first, Recorder(runs[1].runner) as second:
        going = [True, True]
        while any(going):
            going = [next(run, None) is not None for run in runs]
    for recorder, run in zip((first, second), runs, strict=True):
        assert len(recorder.forwards) == len(run.trace.steps)
        recorder.check(run.trace)
    assert sum(len(step.draft_forwards) for step in runs[1].trace.steps) > 5
    assert list(first.differences(runs[1].trace))
    assert hooks_of(lm) == 0


def test_runs_in_threads_on_a_shared_model_count_apart():
    lm = language_model("random-llama")
    start, failures = threading.Barrier(6), []

    def work(number: int) -> None:
        try:
            start.wait(30)
            for run in two_runs(lm):
                with Recorder(run.runner) as recorder:
                    list(run)
                recorder.check(run.trace)
        except BaseException as error:
            failures.append((number, error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    assert hooks_of(lm) == 0


def test_a_draft_models_own_forwards_can_be_recorded():
    lm = language_model("random-llama")
    run = generate_steps(lm, [prompt_ids(5), prompt_ids(3, 1)], SpeculativeConfig.ems_sd(max_new_tokens=8), same(lm))
    next(run)
    session = run._steps.gi_frame.f_locals["session"]
    with Recorder(session.runner) as recorder:
        step = next(run)
    assert [forward.rows["lm_head"] for forward in recorder.forwards] == [2] * len(step.draft_forwards)
    fed = [sum(forward["tokens_per_row"]) for forward in step.draft_forwards]
    assert [forward.rows["model.layers.0.mlp.up_proj"] for forward in recorder.forwards] == fed


def test_two_recorders_of_one_run_count_the_same():
    run = two_runs(language_model("random-llama"))[0]
    with Recorder(run.runner) as outer:
        next(run)
        with Recorder(run.runner) as inner:
            next(run)
        list(run)
    outer.check(run.trace)
    assert inner.forwards == outer.forwards[1:2]


# --- nothing is left behind


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_hooks_go_away_whatever_happens(error):
    lm = language_model("random-llama")
    run = two_runs(lm)[0]
    layer = lm.hooked.model.layers[1].mlp.down_proj
    with pytest.raises(error), Recorder(run.runner) as recorder:  # noqa: PT012
        assert hooks_of(lm) == 15
        next(run)
        handle = layer.register_forward_pre_hook(lambda module, inputs: (_ for _ in ()).throw(error("stop")))
        try:
            next(run)
        finally:
            handle.remove()
    assert hooks_of(lm) == 0
    assert _get_current_function_mode_stack() == []
    assert attention.active_step() is None
    assert len(recorder.forwards) == 2
    list(two_runs(lm)[0])
    assert len(recorder.forwards) == 2


def test_outputs_are_the_same_with_and_without_a_recorder():
    for name in ("random-llama", "random-mixtral", "random-gemma2"):
        recorder, run = recorded(language_model(name), "vanilla")
        plain = generate(run.lm, [row.prompt_token_ids for row in run.trace.rows], run.config)
        assert plain == run.trace
        assert len(recorder.forwards) == len(plain.steps)


def test_nothing_is_hooked_or_watched_where_nobody_records(monkeypatch):
    """The forward of a run without a recorder meets no hook, no function mode and an empty context."""
    lm = language_model("random-llama")
    seen = []
    forward = ModelRunner.forward

    def watched(self, *arguments):
        seen.append((hooks_of(lm), len(_get_current_function_mode_stack()), self.watch))
        return forward(self, *arguments)

    monkeypatch.setattr(ModelRunner, "forward", watched)
    generate(lm, [prompt_ids(4)], SpeculativeConfig.ems_sd(max_new_tokens=4))
    assert set(seen) == {(0, 0, nullcontext)}


# --- phases in torch.profiler


def phases_of(run: GenerationRun) -> tuple[dict[str, int], list]:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        list(run)
    return {event.key: event.count for event in profiler.key_averages() if event.key.startswith("emssd.")}, (
        profiler.events()
    )


@pytest.mark.parametrize("method", METHODS5)
def test_the_profiler_shows_the_phases_by_name(method):
    lm = language_model("random-llama")
    run = generate_steps(lm, [prompt_ids(9), prompt_ids(3, 1)], SpeculativeConfig.for_method(method, max_new_tokens=6))
    counts, events = phases_of(run)
    steps = len(run.trace.decode_steps)
    assert counts == {
        "emssd.draft": steps + 1,  # the drafter starts in prefill
        "emssd.plan": steps,
        "emssd.target": steps + 1,
        "emssd.verify": steps,
        "emssd.commit": steps,
    }
    targets = [event for event in events if event.name == "emssd.target"]
    products = [event for event in events if event.name == "aten::mm"]
    inside = [any(t.time_range.start <= p.time_range.start <= p.time_range.end <= t.time_range.end for t in targets)
              for p in products]  # fmt: skip
    assert len(products) == (steps + 1) * (2 * 7 + 1)
    assert all(inside)


def test_phases_come_in_the_order_of_the_loop():
    lm = language_model("random-llama")
    run = generate_steps(lm, [prompt_ids(9)], SpeculativeConfig.ems_sd(max_new_tokens=4))
    _, events = phases_of(run)
    named = sorted((e.time_range.start, e.name) for e in events if e.name.startswith("emssd."))
    order = [name.removeprefix("emssd.") for _, name in named]
    assert order == ["target", "draft"] + ["draft", "plan", "target", "verify", "commit"] * len(run.trace.decode_steps)


def test_phases_cost_nothing_while_no_profiler_is_on(monkeypatch):
    def refuse(name):
        raise AssertionError(name)

    monkeypatch.setattr(profiling, "record_function", refuse)
    assert phase("draft") is phase("commit")
    generate(language_model("random-llama"), [prompt_ids(3)], SpeculativeConfig.ems_sd(max_new_tokens=3))
