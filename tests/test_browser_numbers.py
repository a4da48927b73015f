"""Numbers in a browser: the worked example's, sums over what is drawn, the table, the badge in every pair."""

from __future__ import annotations

from itertools import combinations

import pytest

from emssd.config import METHOD_TITLES, METHODS, SpeculativeConfig
from emssd.decoding import generate
from emssd.trace import GenerationTrace
from emssd.ui.library import load_preset
from emssd.ui.player_data import MODELLED
from emssd.ui.token_text import visible
from tests.browser import (
    choose,
    counters,
    exploring,
    focus,
    in_browser,
    open_table,
    panes_at,
    player,
    press,
    state,
    upload,
)
from tests.helpers import language_model, prompt_ids

pytestmark = in_browser


def test_counters_of_the_worked_example(browser, server):
    after = {  # step, sub-step: input rows, slots read, holes
        ("1", "draft"): {"left": (12, 204, 0), "right": (9, 132, 0)},
        ("1", "commit"): {"left": (12, 204, 3), "right": (9, 132, 0)},
        ("2", "draft"): {"left": (24, 504, 3), "right": (18, 288, 0)},
        ("2", "commit"): {"left": (24, 504, 7), "right": (18, 288, 0)},
    }
    names = ("input-rows", "kv-slots", "holes")
    with exploring(browser, server) as page:
        for (step, sub), panes in after.items():
            while state(page) != (step, sub):
                press(page, "Shift+ArrowRight")
            for side, expected in panes.items():
                shown = counters(page, side)
                assert tuple(shown[name] for name in names) == expected
        left, right = (counters(page, side) for side in ("left", "right"))
        assert round(left["modelled-time"], 2) == 27.52
        assert round(right["modelled-time"], 2) == 27.47
        assert (left["flops-wasted"] > 0, right["flops-wasted"]) == (True, 0)
        words = page.get_by_test_id("pane-left").inner_text().replace("\n", " ")
        for each in ("24 6 are pads", "504 216 dead", "7 in 20 slots", "+4, and 2 prompt pads", "27.5 ms", "3.49×"):
            assert each in words
        words = page.get_by_test_id("pane-right").inner_text().replace("\n", " ")
        for each in ("18 0 pads −6", "288 0 dead −216", "0 in 13 slots −7", "+0, no prompt pads", "27.5 ms", "3.49×"):
            assert each in words
        assert "vs greedy, modelled, always OPT-6.7B, paper’s GPU" in words
        page.get_by_role("button", name="why equal?").click()
        assert page.get_by_text("that dominates a small batch").is_visible()


SUMS = """(root, pane) => {
  const { player } = root, { run } = player.panes[pane], found = { "input-rows": 0, "kv-slots": 0, holes: 0 };
  const words = { no: 0 }, number = (text) => words[text.split(" ")[0]] ?? +text.split(" ")[0].replace(",", "");
  const seen = [];
  for (let step = 1; step <= player.panes[pane].last; step++) {
    player.go(step, "commit");
    const here = player.panes[pane], fed = new Set(here.view.sections.flatMap(({ boxes }) => boxes)
      .filter(({ item }) => item.kind === "query").map(({ item }) => item.row + "." + item.index));
    const rows = [...fed].map((key) => +key.split(".")[0]);
    const launches = Math.max(0, ...rows.map((row) => rows.filter((each) => each === row).length)) > 1 ? 2 : 1;
    found["input-rows"] += fed.size;
    found.holes = 0;
    for (let row = 0; row < run.rows; row++) for (let slot = 0; slot < run.slots; slot++) {
      const cell = player.describe(here, { kind: "cell", row, slot }), lines = Object.fromEntries(cell.lines);
      if (cell.phase === "hole") found.holes++;
      const readers = lines["Read by"] || lines["Loaded by"];
      if (readers) found["kv-slots"] += launches * number(readers);
    }
    seen.push({ ...found });
  }
  return seen;
}"""


@pytest.mark.parametrize(
    ("preset", "left", "right"),
    [
        ("figure2", "vanilla", "ems-sd"),
        ("figure2", "packed-input", "ragged-cache"),
        ("early-finisher", "vanilla", "ems-sd"),
    ],
)
def test_totals_are_sums_over_what_is_drawn(browser, server, preset, left, right):
    """Fed tokens are those that were drawn; slots and holes are what the cards of all cells say."""
    with exploring(browser, server, f"?preset={preset}&left={left}&right={right}") as page:
        for number, side in enumerate(("left", "right")):
            sums = player(page).evaluate(SUMS, number)
            press(page, "Home")
            assert len(sums) > 1
            for expected in sums:
                press(page, "ArrowRight", *["Shift+ArrowRight"] * (5 if state(page)[1] == "draft" else 0))
                shown = counters(page, side)
                assert {name: shown[name] for name in expected} == expected


def table_lines(page) -> list[list[str]]:
    return page.locator(".step-table tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.children].map(cell => cell.textContent))"
    )


@pytest.mark.parametrize("preset", ["figure2", "copy-rich"])
def test_the_table_says_what_the_traces_say(browser, server, preset):
    shown = load_preset(preset)
    with exploring(browser, server, f"?preset={preset}&step=1&sub=commit") as page:
        open_table(page)
        focus(page)
        for step in range(1, int(player(page).get_attribute("data-steps"))):
            assert state(page) == (str(step), "commit")
            lines = table_lines(page)
            expected = [
                line_of(shown.traces[name], shown.titles, step, row)
                for name in ("vanilla", "ems-sd")
                for row in range(len(shown.titles))
            ]
            assert [line[:-1] for line in lines] == [line[:-1] for line in expected]
            for (*_, text), (*_, whole) in zip(lines, expected, strict=True):
                assert text == whole or (text[0] == "…" and len(text) > 80 and whole.endswith(text[1:]))
            press(page, "ArrowRight")


def line_of(trace: GenerationTrace, titles: tuple[str, ...], step: int, row: int) -> list[str]:
    """A row after a step, from the trace alone."""
    entry = trace.steps[min(step, len(trace.steps) - 1)].rows[row]
    rows = [each.rows[row] for each in trace.steps[: step + 1]]
    fed = [
        trace.tokens[str(token)] if kind != "pad" else "pad"
        for token, kind in zip(entry.input_token_ids, entry.input_kinds, strict=True)
    ]
    drafts = [trace.tokens[str(token)] for token in entry.input_token_ids[1 : 1 + entry.num_drafted]]
    own = "none"
    if entry.num_emitted > entry.num_accepted:
        own = f"{visible(trace.tokens[str(entry.emitted_token_ids[-1])])} ({entry.next_kind})"
    prompt = trace.rows[row].prompt_token_ids
    text = [*prompt, *[token for each in rows for token in each.emitted_token_ids]]
    return [
        METHOD_TITLES[trace.method],
        f"{row}: {titles[row]}",
        " ".join(map(visible, fed)) or ("finished, nothing" if entry.kind == "finished" else "none"),
        " ".join(map(visible, drafts)) or "none",
        f"{entry.num_accepted} of {entry.num_drafted}",
        own,
        str(entry.num_emitted),
        str(entry.next_slot),
        str(sum(len(each.holes_added) for each in rows)),
        str(entry.cache_len),
        "".join(visible(trace.tokens[str(token)]) for token in text),
    ]


def test_every_pair_of_methods_has_the_same_output(browser, server):
    names = [name for name in METHODS if name in load_preset("figure2").traces]
    assert len(list(combinations(names, 2))) == 10
    with exploring(browser, server, "?left=greedy&right=vanilla") as page:
        shown = ["greedy", "vanilla"]
        for pair in combinations(names, 2):
            for label, side, name in (("Right method", 1, pair[1]), ("Left method", 0, pair[0])):
                if shown[side] != name:
                    choose(page, label, f"{METHOD_TITLES[name]}$")
                    shown[side] = name
            for side, name in zip(("left", "right"), pair, strict=True):
                page.locator(f'[data-testid="pane-{side}"][data-method="{name}"]').wait_for()
            focus(page)
            press(page, "End")
            badge = page.get_by_test_id("equality")
            assert "agree" in badge.get_attribute("class").split()
            traces = [load_preset("figure2").traces[name] for name in pair if name != "greedy"]
            tokens = max(sum(len(row.output_token_ids) for row in trace.rows) for trace in traces)
            assert badge.inner_text() == f"Output identical to greedy, {tokens} of {tokens} tokens"
            assert badge.is_disabled()  # there is no difference to go to


def test_a_pane_that_changes_keeps_the_place(browser, server):
    with exploring(browser, server, "?step=2&sub=verify&pin=1.4") as page:
        card = page.locator(".card:visible").inner_text()
        choose(page, "Right method", METHOD_TITLES["packed-input"])
        page.locator('[data-testid="pane-right"][data-method="packed-input"]').wait_for()
        assert state(page) == ("2", "verify")
        assert page.locator(".card:visible").inner_text() == card
        page.wait_for_url("**right=packed-input**")


def test_the_same_method_twice_is_refused_beside_the_choice(browser, server):
    with exploring(browser, server) as page:
        choose(page, "Right method", f"{METHOD_TITLES['vanilla']}$")
        page.get_by_text(
            "Both sides are Vanilla: choose two different methods. Vanilla vs EMS-SD stays on show."
        ).wait_for()
        assert page.get_by_test_id("pane-right").get_attribute("data-method") == "ems-sd"


def test_modelled_time_is_a_clock_of_its_own(browser, server):
    with exploring(browser, server, "?preset=copy-rich&left=greedy&right=ems-sd&step=3&sub=commit") as page:
        page.get_by_role("radio", name="Same modelled time").click()
        seen = player(page).evaluate(
            """root => {
              const seen = [];
              for (let place = 0; place < +root.dataset.steps; place++) {
                root.player.go(place);
                const ends = ({ at: { step }, counters: { ms } }) => [step, ms[step], ms[step + 1] ?? 1e9];
                seen.push(root.player.panes.map(ends));
              }
              return seen;
            }"""
        )
        assert len(seen) > 40
        for (_, left, left_next), (_, right, right_next) in seen:
            now = max(left, right)
            assert min(left_next, right_next) > now  # no step that has ended is held back
        assert seen[-1][0][0] == len(load_preset("copy-rich").traces["greedy"].steps) - 1
        assert any(left[0] != right[0] for left, right in seen)
        page.get_by_role("radio", name="Same step").click()
        press(page, "Home", "ArrowRight")
        assert panes_at(page) == ["1", "1"]


def test_measured_time_names_its_device_and_is_not_compared_with_the_paper(browser, server):
    with exploring(browser, server, "?preset=copy-rich&step=2") as page:
        assert page.get_by_test_id("pane-right").locator('[data-counter="modelled-time"]').count() == 1
        choose(page, "Time", "^Measured")
        page.get_by_test_id("pane-right").locator('[data-counter="measured-time"]').wait_for()
        where = load_preset("copy-rich").where
        words = page.get_by_test_id("pane-right").inner_text()
        assert f"measured on {where}" in words
        assert MODELLED.where not in words
        title = page.get_by_test_id("pane-right").locator('[data-counter="measured-time"]').get_attribute("title")
        assert "Not comparable with the paper’s GPU numbers." in title
        assert page.locator('[data-counter="modelled-time"]').count() == 0


@pytest.fixture(scope="module")
def differing() -> dict[str, str]:
    """Three consistent traces of the same prompts; EMS-SD's are of another model, so that its output is another."""
    prompts = [prompt_ids(7, 0), prompt_ids(9, 1)]
    lms = {"greedy": language_model("random-llama"), "vanilla": language_model("random-llama")}
    lms["ems-sd"] = language_model("random-llama", seed=4711)
    config = {"num_draft_tokens": 3, "max_new_tokens": 12, "eos_token_ids": ()}
    traces = {
        name: generate(
            lm,
            prompts,
            SpeculativeConfig.for_method(name, **config | ({"num_draft_tokens": 0} if name == "greedy" else {})),
        )
        for name, lm in lms.items()
    }
    return {name: trace.to_json() for name, trace in traces.items()}


def first_difference(baseline: GenerationTrace, trace: GenerationTrace) -> tuple[int, int, int]:
    """(step, row, token from 1) of the first emitted token that is not the baseline's."""
    counts = [0] * len(trace.rows)
    for step in trace.steps:
        wrong = []
        for row in step.rows:
            for token in row.emitted_token_ids:
                if token != baseline.rows[row.row].output_token_ids[counts[row.row]]:
                    wrong.append((counts[row.row] + 1, row.row))
                counts[row.row] += 1
        if wrong:
            return step.index, min(wrong)[1], min(wrong)[0]
    raise AssertionError("the outputs are the same")


def test_the_badge_turns_when_an_output_differs_and_leads_there(browser, server, differing):
    traces = {name: GenerationTrace.from_json(text) for name, text in differing.items()}
    step, row, token = first_difference(traces["greedy"], traces["ems-sd"])
    with exploring(browser, server) as page:
        upload(page, **differing)
        badge = page.get_by_test_id("equality")
        badge.get_by_text("Output differs from greedy").wait_for()
        assert badge.inner_text() == f"Output differs from greedy: first at row {row}, new token {token}"
        assert "differ" in badge.get_attribute("class").split()
        assert "output differs" in page.get_by_test_id("pane-right").inner_text()
        focus(page)
        press(page, "End")
        badge.click()
        assert state(page) == (str(step), "commit")
        choose(page, "Right method", "Greedy")
        page.get_by_text("Output identical to greedy").wait_for()
