"""Runs in threads: fair turns between visitors, stopping at any moment, nothing left behind, and what polls cost."""

from __future__ import annotations

import copy
import re
import threading
import time
import weakref
from itertools import pairwise
from random import Random

import pytest

from emssd import GenerationTrace
from emssd.decoding import GenerationRun
from emssd.kv_cache import KVStore
from emssd.model_runner import ModelRunner
from emssd.ui import live_run, live_view
from emssd.ui.comparison import Clock, clock, compare_outputs, latest_speed_up, speed_ups
from emssd.ui.live_part import state_words
from emssd.ui.live_run import LiveRequest, LiveRun
from emssd.ui.player_data import Pane, player_data
from emssd.ui.progress import TAIL_TOKENS, MethodProgress, RowText, RunningEquality, RunProgress
from emssd.ui.turns import TURNS, TurnQueue
from tests.app_pages import join_live_runs
from tests.helpers import language_model, prompt_ids

HOSTILE = ['<script>alert("x")</script>', "\u202eevil", "a\nb\tc", "\x1b[31m", "\u2066", "\ue000", "y" * 500, "&amp;"]
FIRST = LiveRequest((tuple(prompt_ids(9)), tuple(prompt_ids(4))), ("a", "b"), ("vanilla", "ems-sd"), 3, 40)
TAGS = ("div", "i", "b", "span", "p", "bdi", "br", "u", "table", "tr", "td", "th")
SECOND = LiveRequest(
    tuple(tuple(prompt_ids(length)) for length in (12, 7, 3)), ("c", "d", "e"), ("ems-sd", "ragged-cache"), 5, 30
)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    join_live_runs()
    assert TURNS.members == 0


@pytest.fixture
def lm():
    return language_model("random-llama")


def run_to_end(lm, request: LiveRequest) -> LiveRun:
    run = LiveRun(lm, request).start()
    run.join(30)
    assert run.state == "finished"
    return run


def wait_until(condition, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.002)


def test_two_runs_at_once_share_the_machine_step_by_step(lm, monkeypatch):
    solo = {request: run_to_end(lm, request).traces for request in (FIRST, SECOND)}
    intervals: list[tuple[float, float, LiveRun]] = []
    original = LiveRun._next

    def recorded(self, run):
        began = time.perf_counter()
        time.sleep(0.002)
        step = original(self, run)
        intervals.append((began, time.perf_counter(), self))
        return step

    monkeypatch.setattr(LiveRun, "_next", recorded)
    runs = [LiveRun(lm, FIRST), LiveRun(lm, SECOND)]
    for run in runs:
        run.start()
    for run in runs:
        run.join(60)
    for run, request in zip(runs, (FIRST, SECOND), strict=True):
        assert run.state == "finished"
        assert run.shared
        assert run.traces == solo[request]
    intervals.sort(key=lambda each: each[0])
    assert all(before[1] <= after[0] for before, after in pairwise(intervals))
    owners = [owner for _, _, owner in intervals]
    together = owners[owners.index(runs[1]) : len(owners) - owners[::-1].index(runs[0])]
    changes = sum(one is not two for one, two in pairwise(together))
    assert len(together) > 40
    assert changes > 0.8 * len(together)  # turns alternate while both are there


def test_greedy_as_one_of_the_two_is_not_a_third_method(lm):
    for methods, words in ((("greedy", "ems-sd"), "Both methods"), (("vanilla", "ems-sd"), "Greedy and both methods")):
        run = run_to_end(lm, LiveRequest((tuple(prompt_ids(4)),), ("a",), methods, 3, 4))
        view = RunProgress(run.traces)
        view.advance(dict(run.steps))
        assert state_words(run, view) == ("Finished", f"1 row. {words} took turns, one step each.")


def test_a_run_alone_is_not_called_shared(lm):
    run = run_to_end(lm, FIRST)
    assert not run.shared
    assert not run.sharing


def test_turns_are_given_in_the_order_of_asking():
    queue, order, begun = TurnQueue(), [], threading.Event()

    def work(name):
        with queue.turn(lambda: False) as given:
            order.append((name, given))

    def hold():
        with queue.turn(lambda: False):
            begun.set()
            time.sleep(0.2)

    holder = threading.Thread(target=hold)
    holder.start()
    begun.wait()
    threads = []
    for name in range(5):
        threads.append(threading.Thread(target=work, args=(name,)))
        threads[-1].start()
        wait_until(lambda count=name + 2: len(queue._queue) == count)
    for thread in (holder, *threads):
        thread.join()
    assert order == [(name, True) for name in range(5)]


def test_who_no_longer_wants_a_turn_leaves_the_queue():
    queue = TurnQueue()
    with queue.turn(lambda: False), queue.turn(lambda: True) as given:
        assert not given
    with queue.turn(lambda: True) as given:
        assert given  # nobody was before
    assert not queue._queue


def test_who_breaks_while_waiting_or_in_a_turn_leaves_the_queue():
    queue = TurnQueue()
    with queue.turn(lambda: False), pytest.raises(ZeroDivisionError), queue.turn(lambda: 1 // 0):
        pass
    with pytest.raises(ZeroDivisionError), queue.turn(lambda: False):
        1 // 0  # noqa: B018
    assert not queue._queue
    with queue.turn(lambda: False) as given:
        assert given


def test_cancelling_between_two_steps_lets_at_most_one_more_happen(lm):
    request = LiveRequest((tuple(prompt_ids(9)), tuple(prompt_ids(4))), ("a", "b"), ("vanilla", "ems-sd"), 3, 200)
    for _ in range(5):
        run = LiveRun(lm, request).start()
        wait_until(lambda run=run: sum(run.steps.values()) >= 7)
        run.cancel()
        then = sum(run.steps.values())
        run.join(10)
        assert run.state == "cancelled"
        assert sum(run.steps.values()) <= then + 1
        assert {name: len(trace.steps) for name, trace in run.traces.items()} == run.steps
        for trace in run.traces.values():
            assert GenerationTrace.from_json(trace.to_json()) == trace


@pytest.fixture
def slow_chunks(monkeypatch):
    """The prompts are read in many small chunks, each of which takes a moment."""
    calls = []
    forward, prefill = ModelRunner.forward, ModelRunner.prefill

    def slowly(self, plan, store, keep=None):
        calls.append(time.monotonic())
        time.sleep(0.05)
        return forward(self, plan, store, keep)

    monkeypatch.setattr(ModelRunner, "forward", slowly)
    monkeypatch.setattr(
        ModelRunner, "prefill", lambda self, prompts, store, stop: prefill(self, prompts, store, stop, 4)
    )
    return calls


LONG = LiveRequest((tuple(prompt_ids(90)),) * 2, ("a", "b"), ("vanilla",), 3, 20)


def test_cancelling_while_the_prompts_are_read_stops_within_one_chunk(lm, slow_chunks):
    run = LiveRun(lm, LONG).start()
    wait_until(lambda: len(slow_chunks) >= 3)
    run.cancel()
    then = len(slow_chunks)
    run.join(5)
    assert run.state == "cancelled"
    assert len(slow_chunks) <= then + 1
    assert set(run.steps.values()) == {0}
    assert all(GenerationTrace.from_json(trace.to_json()) == trace for trace in run.traces.values())


def test_a_tab_that_closes_while_the_prompts_are_read_stops_the_work(lm, slow_chunks, monkeypatch):
    monkeypatch.setattr(live_run, "GONE_SECONDS", 0.1)
    there = [True]
    run = LiveRun(lm, LONG, connected=lambda: there[0]).start()
    wait_until(lambda: len(slow_chunks) >= 3)
    there[0] = False
    run.join(5)
    assert run.state == "abandoned"
    assert len(slow_chunks) < 20


def test_a_hidden_tab_that_is_still_connected_may_poll_rarely(lm):
    run = LiveRun(lm, FIRST, heartbeat=0.0, connected=lambda: True).start()
    run.join(30)
    assert run.state == "finished"


def test_without_a_connection_to_ask_a_run_stops_after_the_heartbeat(lm):
    run = LiveRun(lm, LiveRequest(FIRST.prompts, FIRST.titles, FIRST.methods, 3, 200), heartbeat=0.1).start()
    run.join(10)
    assert run.state == "abandoned"


def test_a_short_loss_of_the_connection_does_not_stop_a_run(lm):
    answers = iter([True, False, True, False])
    run = LiveRun(lm, FIRST, connected=lambda: next(answers, True)).start()
    run.join(30)
    assert run.state == "finished"


def test_twenty_visits_leave_no_thread_and_no_cache(lm, monkeypatch):
    stores: list[weakref.ref] = []
    original = KVStore.__init__

    def noted(self, *args, **settings):
        original(self, *args, **settings)
        stores.append(weakref.ref(self))

    monkeypatch.setattr(KVStore, "__init__", noted)
    request = LiveRequest(FIRST.prompts, FIRST.titles, FIRST.methods, 3, 200)
    runs = []
    for _ in range(20):
        run = LiveRun(lm, request).start()
        wait_until(lambda run=run: all(run.steps.values()))
        run.leave()
        run.join(10)
        assert run.state == "abandoned"
        runs.append(run)  # the page keeps what was decoded, and with it nothing else
    assert len(stores) >= 60
    assert not [store for store in stores if store() is not None]
    assert not [thread for thread in threading.enumerate() if thread.name == "emssd-live-run"]


def test_a_run_that_breaks_says_so_and_keeps_what_it_has(lm, monkeypatch):
    original = LiveRun._next

    def breaks(self, run):
        if sum(self.steps.values()) > 6:
            raise RuntimeError("the device is gone\nand more")
        return original(self, run)

    monkeypatch.setattr(LiveRun, "_next", breaks)
    run = LiveRun(lm, LiveRequest((tuple(prompt_ids(9)),), ("a",), ("vanilla",), 3, 50))
    run.start().join(10)
    assert (run.state, run.error) == ("failed", "The run stopped: RuntimeError the device is gone")
    assert sum(run.steps.values()) == 7


def test_a_run_that_cannot_be_closed_ends_all_the_same(lm, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda caught: None)
    run = LiveRun(lm, LiveRequest((tuple(prompt_ids(9)),), ("a",), ("vanilla",), 3, 5))
    monkeypatch.setattr(GenerationRun, "close", lambda self: 1 // 0)
    run.start().join(10)
    assert run.done
    assert TURNS.members == 0


def test_a_draft_model_drafts(lm):
    request = LiveRequest(FIRST.prompts, FIRST.titles, ("vanilla", "ems-sd"), 3, 12, "draft-model")
    run = LiveRun(lm, request, draft_lm=lm).start()
    run.join(30)
    assert run.state == "finished"
    assert run.traces["ems-sd"].drafter["name"] == "draft-model"
    assert run.traces["ems-sd"].summary()["acceptance_rate"] > 0.9  # it is the model itself
    outputs = [[row.output_token_ids for row in trace.rows] for trace in run.traces.values()]
    assert outputs[0] == outputs[1] == outputs[2]


def test_no_drafter_is_plain_decoding(lm):
    run = run_to_end(lm, LiveRequest(FIRST.prompts, FIRST.titles, FIRST.methods, 3, 12, "none"))
    assert all(len(trace.steps) == 12 for trace in run.traces.values())


def test_equality_kept_up_says_what_a_whole_comparison_says():
    draw = Random(4)
    for _ in range(300):
        rows = draw.randint(1, 3)
        left = [[draw.randint(0, 1) for _ in range(draw.randint(0, 6))] for _ in range(rows)]
        right = [
            [*row] if draw.random() < 0.5 else [draw.randint(0, 1) for _ in range(draw.randint(0, 6))] for row in left
        ]
        running = RunningEquality(rows)
        ends = [(0, 0)] * rows
        while True:
            ends = [
                (min(one + draw.randint(0, 2), len(a)), min(two + draw.randint(0, 2), len(b)))
                for (one, two), a, b in zip(ends, left, right, strict=True)
            ]
            base = [row[:end] for row, (end, _) in zip(left, ends, strict=True)]
            other = [row[:end] for row, (_, end) in zip(right, ends, strict=True)]
            complete = base == left and other == right
            assert running.update(base, other, complete) == compare_outputs(base, other, complete)
            if complete:
                break


@pytest.fixture(scope="module")
def decoded():
    """A run in which drafts are kept and rejected."""
    request = LiveRequest(FIRST.prompts, FIRST.titles, FIRST.methods, 3, 40, "draft-model")
    run = LiveRun(language_model("random-llama"), request, draft_lm=language_model("random-llama", noise=0.1)).start()
    run.join(30)
    assert run.state == "finished"
    assert 0.2 < run.traces["ems-sd"].summary()["acceptance_rate"] < 0.95
    return run


def slots_read_in_the_player(name: str, trace: GenerationTrace) -> int:
    """The last value of the player's counter of the same name."""
    counters = player_data([Pane(trace, name)], ["a row"] * len(trace.rows))["panes"][0]["counters"]
    return sum(counters[part][-1] for part in ("slotsUseful", "slotsDead", "slotsPadQuery"))


def test_what_is_kept_up_equals_what_is_counted_at_the_end(decoded):
    for name, trace in decoded.traces.items():
        stepwise, at_once = MethodProgress(trace), MethodProgress(trace)
        for count in range(len(trace.steps) + 1):
            stepwise.advance(count)
        at_once.advance(len(trace.steps))
        summary = trace.summary()
        for method in (stepwise, at_once):
            assert method.done
            assert method.outputs == [row.output_token_ids for row in trace.rows]
            assert (method.emitted, method.decode_steps) == (summary["tokens"], summary["steps"])
            assert (method.drafted, method.accepted) == (summary["drafted"], summary["accepted"])
            assert method.input_rows == sum(summary["input_rows"].values())
            assert method.slots_read == slots_read_in_the_player(name, trace)
            assert method.holes == summary["holes"]
            assert method.clock == clock(trace.steps)
        assert [row.html for row in stepwise.rows] == [row.html for row in at_once.rows], name


def test_a_poll_looks_at_new_steps_alone(decoded, monkeypatch):
    seen = []
    original = RowText.add
    monkeypatch.setattr(RowText, "add", lambda self, row, tokens: (seen.append(row.row), original(self, row, tokens)))
    view = RunProgress(decoded.traces)
    for count in range(1, 60):
        view.advance({name: min(count, len(trace.steps)) for name, trace in decoded.traces.items()})
        view.equalities()
    assert len(seen) == sum(len(step.rows) for trace in decoded.traces.values() for step in trace.steps)


def test_the_latest_speed_up_is_the_last_of_all(decoded):
    baseline = clock(decoded.traces["greedy"].steps)
    for name in ("vanilla", "ems-sd"):
        own = clock(decoded.traces[name].steps)
        known = [factor for factor in speed_ups(baseline, own) if factor is not None]
        assert latest_speed_up(baseline, own) == known[-1]
    assert latest_speed_up(Clock([0, 2], [0, 1.0]), Clock([0, 3], [0, 1.0])) is None


def test_a_time_too_short_to_divide_by_gives_no_speed_up():
    baseline, own = Clock([0, 2], [0, 1.0]), Clock([0, 1, 2], [0, 0.0, 5e-324])
    assert speed_ups(baseline, own) == [None, None, None]
    assert latest_speed_up(baseline, own) is None


def test_a_difference_greys_the_speed_up(decoded):
    clocks = {name: clock(trace.steps) for name, trace in decoded.traces.items()}
    html = live_view.speed_card(clocks, {"vanilla"}, decoded.hardware, True)
    assert html.count("output differs") == 1
    assert re.search(r'class="s-line invalid" data-testid="speed-vanilla"', html)
    assert "greedy on the padded cache, same prompts, decode only, prefill excluded, this CPU" in html


@pytest.mark.parametrize("text", HOSTILE)
def test_token_text_is_shown_and_never_obeyed(text, decoded):
    trace = copy.deepcopy(decoded.traces["ems-sd"])
    trace.tokens = dict.fromkeys(trace.tokens, text)
    method = MethodProgress(trace)
    method.advance(len(trace.steps))
    methods = {"ems-sd": method}
    html = live_view.heads(methods) + live_view.text_row(methods, 0, text, True)
    html += live_view.prompt_cards([text], [text], [3], {"Model": text}) + live_view.status_line("failed", text, text)
    html += live_view.acceptance_card(methods) + live_view.work_card(methods) + live_view.progress(0.5, text, text)
    assert not re.search("<script|[\u202a-\u202e\u2066-\u2069\x1b]", html)
    tags = set(re.findall("<(/?[a-z]+)", html))
    assert tags <= {f"{end}{tag}" for end in ("", "/") for tag in TAGS}


def test_a_long_text_keeps_its_end(decoded):
    row = RowText()
    step = next(step for step in decoded.traces["ems-sd"].steps if step.rows[0].num_emitted > 1).rows[0]
    while row.emitted <= TAIL_TOKENS + 50:
        row.add(step, {})
    assert row.html.startswith('<span class="cut">…</span><bdi')
    assert row.html.count("id ") <= TAIL_TOKENS


def test_a_generation_run_asks_whether_to_stop_before_every_step(lm):
    run = GenerationRun(lm, [prompt_ids(5)], FIRST.config("ems-sd"))
    next(run)
    run.should_stop = lambda: True
    assert next(run, None) is None
    assert len(run.trace.steps) == 1
