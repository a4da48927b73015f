"""The player's pure functions in a browser: cells equal Python's, events, marks, the clock, and what cards say."""

from __future__ import annotations

import json

import pytest

from emssd.ui.library import load_preset
from emssd.ui.player_assets import read_asset
from emssd.ui.player_data import Pane, Start, player_data
from tests.player_samples import cell_samples

# The files that need no page.
PURE = ("player_cells.js", "player_clock.js", "player_describe.js", "player_focus.js", "player_panels.js")

pytestmark = pytest.mark.browser

# Arguments are given as text: playwright takes a second for some thousand numbers.
COMPARE = """text => {
  const samples = JSON.parse(text), wrong = [];
  let compared = 0;
  samples.forEach(({ data, cells }, number) => {
    const run = decodePane(data.panes[0]);
    const places = cells.flatMap((subs, step) => subs.map((rows, n) => [step, step ? SUBSTEPS[n] : "commit", rows]));
    for (const order of [places, places.slice().reverse()]) for (const [step, sub, rows] of order) {
      const grid = cellsAt(run, step, sub);
      rows.forEach((slots, row) => slots.forEach((expected, slot) => {
        const i = row * grid.slots + slot;
        const got = [grid.state[i], grid.word[i], grid.position[i], grid.step[i], grid.cause[i]];
        compared++;
        if (got.join() !== expected.join()) wrong.push({ number, step, sub, row, slot, got, expected });
      }));
      if (rows[0].length !== grid.slots || rows.length !== grid.rows) wrong.push({ number, step, sub });
    }
  });
  return { compared, wrong: wrong.slice(0, 5) };
}"""


@pytest.fixture(scope="module")
def page(browser):
    """An empty page that holds the player's functions."""
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.add_script_tag(content="\n".join(read_asset(name) for name in PURE))
    yield page
    page.close()
    assert not errors


def test_every_cell_is_what_python_says(page):
    samples = cell_samples(25, seed=11)
    found = page.evaluate(COMPARE, json.dumps(samples))
    assert found["wrong"] == []
    assert found["compared"] > 30_000


def evaluated(page, data: dict, body: str):
    """What a function body gives for player data, with `panes` as the player has them."""
    start = "panes = data.panes.map((p, index) => ({...p, index, run: decodePane(p), last: p.steps.length - 1}))"
    return page.evaluate(
        f"text => {{ const data = JSON.parse(text), {start};"
        f" for (const p of panes) p.events = eventsOf(p.run, p); {body} }}",
        json.dumps(data),
    )


def preset_data(name: str = "figure2", left: str = "vanilla", right: str = "ems-sd") -> dict:
    chosen = load_preset(name)
    panes = [Pane(chosen.traces[method], method, chosen.traces["greedy"]) for method in (left, right)]
    link = {"preset": name, "left": left, "right": right}
    return player_data(panes, chosen.titles, group=name, start=Start(1, "draft", None), link=link)


def test_what_each_query_loads_adds_up_to_the_account(page):
    body = """return panes.map(pane => {
      const sums = { useful: 0, dead: 0, pad: 0 };
      for (let step = 1; step <= pane.last; step++) for (const query of queriesAt(pane.run, step)) {
        const { visible, dead } = readsOf(pane.run, step, query), launches = launchesOf(pane.run, step);
        if (query.kind === "pad") sums.pad += launches * (visible.length + dead.length);
        else { sums.useful += launches * visible.length; sums.dead += launches * dead.length; }
      }
      const { slotsUseful, slotsDead, slotsPadQuery } = pane.counters, last = pane.last;
      return [sums, { useful: slotsUseful[last], dead: slotsDead[last], pad: slotsPadQuery[last] }];
    })"""
    golden = evaluated(page, preset_data(), body)
    assert golden[0] == [{"useful": 288, "dead": 72, "pad": 144}] * 2
    assert golden[1] == [{"useful": 288, "dead": 0, "pad": 0}] * 2
    for sums, counted in evaluated(page, preset_data("copy-rich", "packed-input", "ragged-cache"), body):
        assert sums == counted


def test_readers_are_the_reverse_of_reads(page):
    body = """let pairs = 0, wrong = 0;
    for (const { run, last } of panes) for (let step = 1; step <= last; step++)
    for (const query of queriesAt(run, step)) {
      const { visible, dead } = readsOf(run, step, query), seen = new Set(visible);
      const loaded = new Set([...visible, ...dead]);
      for (let slot = 0; slot < run.slots; slot++) {
        const reader = readersOf(run, step, query.row, slot).find(each => each.query.index === query.index);
        pairs++;
        if (!!reader !== loaded.has(slot) || (reader && reader.visible !== seen.has(slot))) wrong++;
      }
    }
    return [pairs, wrong]"""
    pairs, wrong = evaluated(page, preset_data(), body)
    assert pairs > 400
    assert wrong == 0


def test_events_and_marks_of_the_worked_example(page):
    marks = evaluated(
        page, preset_data(), "return allMarks(panes, 3).map(step => step.map(m => [m.key, m.sub, m.rows, m.count]))"
    )
    assert marks[0] == []
    assert marks[1] == [["hole", "commit", [1], 3], ["rejection", "verify", [0, 1], 2]]
    assert sorted(marks[2]) == [
        ["hole", "commit", [0], 4],
        ["kept", "verify", [1], 1],
        ["rejection", "verify", [0], 1],
    ]
    body = """const marks = allMarks(panes, 3), first = new Set(["first-hole"]);
    const stops = marks.flat().filter(mark => isBreakpoint(mark, first, marks)).map(mark => mark.step);
    return [stops, nextMark(marks, 1, "verify", 1, () => true), nextMark(marks, 1, "verify", -1, () => true)]"""
    stops, after, before = evaluated(page, preset_data(), body)
    assert stops == [1]
    assert (after["step"], after["sub"], before) == (1, "commit", None)


def test_a_long_run_marks_only_the_first_rejection_and_hole(page):
    body = "return drawnMarks(allMarks(panes, data.panes[0].steps.length), true).flat().map(mark => mark.key)"
    keys = evaluated(page, preset_data("copy-rich"), body)
    every = evaluated(page, preset_data("copy-rich"), body.replace("true", "false"))
    assert (keys.count("rejection"), keys.count("hole")) == (1, 1)
    assert every.count("hole") > 1
    assert keys.count("kept") == every.count("kept") > 1
    assert keys.count("finished") == every.count("finished") >= 1


def test_one_time_for_both_panes(page):
    body = """const timeline = timelineOf(panes);
    return timeline.map((time, at) => [time, ...panes.map(pane => paneAt(pane, "time", timeline, at, "draft"))])"""
    data = preset_data("copy-rich", "greedy", "ems-sd")
    ends = [pane["counters"]["ms"] for pane in data["panes"]]
    places = evaluated(page, data, body)
    assert [place[0] for place in places] == sorted(set(ends[0]) | set(ends[1]))
    for time, *shown in places:
        for at, steps in zip(shown, ends, strict=True):
            assert at == {"step": max(n for n, end in enumerate(steps) if end <= time + 1e-9), "sub": "commit"}


def test_holes_and_tokens_count_from_commit_on_and_work_from_the_first_sub_step(page):
    body = """const pane = panes[0];
    return SUBSTEPS.map(sub => { pane.at = { step: 2, sub };
      const holes = counterAt(pane, "holes");
      return [counterAt(pane, "input-rows").value, holes.value, holes.total, agreement(pane)]; })"""
    found = evaluated(page, preset_data(), body)
    assert found[:5] == [[24, 3, 8, {"agree": 7, "emitted": 7}]] * 5
    assert found[5] == [24, 7, 20, {"agree": 15, "emitted": 15}]


def test_a_card_says_where_a_hole_came_from(page):
    body = """const pane = panes[0]; pane.at = { step: 2, sub: "attend" };
    return describeCell({ data, panes }, pane, 1, 7)"""
    told = evaluated(page, preset_data(), body)
    lines = dict(told["lines"])
    assert (told["title"], told["place"], told["phase"]) == ("Hole", "row 1, slot 7", "hole")
    assert lines["Holds"].startswith("rejected “")
    assert (lines["Position"], lines["Written"], lines["Hole since"]) == ("none", "step 1, write", "step 1, commit")
    assert lines["Loaded by"] == "6 queries, weight 0"
    assert "2 launches" in told["foot"]
    assert len(told["lines"]) <= 7
    assert all(f"{label}: {value}" in told["text"] for label, value in told["lines"])


def test_a_rejected_draft_s_card_says_how_far_the_target_s_tokens_are_and_whether_it_is_among_them(page):
    body = """const pane = panes[1]; pane.at = { step: 3, sub: "verify" };
    const query = queriesAt(pane.run, 3).find(each => each.row === 6 && each.index === 1);
    return describeQuery({ data, panes }, pane, query)"""
    told = dict(evaluated(page, preset_data("copy-rich"), body)["lines"])
    step = load_preset("copy-rich").traces["ems-sd"].steps[3].rows[6]
    gaps = [f"−{gap:.2f}" for gap in step.top_logit_gaps[0][1:]]
    assert all(gap in told["Why rejected"] for gap in gaps)
    assert "(logits)" in told["Why rejected"]
    assert step.input_token_ids[1] not in step.top_token_ids[0]
    assert told["Why rejected"].endswith("is not among these")


def test_questions_have_the_trace_s_answer(page):
    body = """const player = { data, panes };
    const asked = panes[0].steps.map((_, step) => questionOf(player, step)).filter(Boolean);
    return asked.map(({ pane, kind, row, step, answer, text }) => [pane.index, kind, row, step, answer, text])"""
    data = preset_data("copy-rich")
    asked = evaluated(page, data, body)
    assert {kind for _, kind, *_ in asked} == {"accepted", "next", "holes"}
    for side, kind, number, step, answer, text in asked:
        rows = data["panes"][side]["steps"][step]
        right = {"accepted": rows[number][5], "next": rows[number][7], "holes": sum(row[13] for row in rows)}
        assert answer == right[kind]
        assert text.endswith("?")
