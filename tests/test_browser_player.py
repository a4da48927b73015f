"""The player in a browser: one state for both panes, the same picture on every way to it, keys, play, pointing."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from tests.browser import (
    PICTURE,
    SECONDS,
    SUBSTEPS,
    cell,
    choose,
    count_messages,
    exploring,
    focus,
    hover,
    in_browser,
    message_count,
    panes_at,
    pass_time,
    picture,
    place_of,
    player,
    press,
    query,
    run_count,
    state,
    steps_seen,
    visitor,
    wait_for_player,
    wait_until,
    watch_steps,
)

pytestmark = in_browser

# Goes to each (step, sub-step, whether by steps first) by keys, in this order; gives the pictures of the wanted ones.
WALK = (
    """(root, [places, wanted]) => {
  const picture = """
    + PICTURE
    + """;
  const subs = ["draft", "pack", "write", "attend", "verify", "commit"];
  const key = (name, shiftKey = false) => {
    root.dispatchEvent(new KeyboardEvent("keydown", { key: name, shiftKey, bubbles: true, composed: true }));
  };
  const number = (step, sub) => (+step ? 6 * (step - 1) + subs.indexOf(sub) + 1 : 0);
  const seen = {};
  for (const [step, sub, byStep] of places) {
    while (byStep && +root.dataset.step && step && +root.dataset.step !== step) {
      key(+root.dataset.step < step ? "ArrowRight" : "ArrowLeft");
    }
    let rest = number(step, sub) - number(root.dataset.step, root.dataset.substep);
    for (; rest > 0; rest--) key("ArrowRight", true);
    for (; rest < 0; rest++) key("ArrowLeft", true);
    if (wanted.includes(step + " " + sub)) seen[step + " " + sub] = picture(root);
  }
  return seen;
}"""
)


def all_places(steps: int) -> list[tuple[int, str]]:
    return [(0, "commit"), *((step, sub) for step in range(1, steps) for sub in SUBSTEPS)]


def wait_in_player(page, condition: str) -> None:
    """Until a condition on `player` comes true."""
    script = """(root, milliseconds) => new Promise((done, failed) => {
      const until = performance.now() + milliseconds, { player } = root;
      const look = () => {
        if (CONDITION) done();
        else if (performance.now() > until) failed(new Error("CONDITION did not come true"));
        else requestAnimationFrame(look);
      };
      look();
    })"""
    player(page).evaluate(script.replace("CONDITION", condition), 1000 * SECONDS)


def set_speed(page, speed: str) -> None:
    page.get_by_role("button", name="Speed", exact=True).click()
    page.get_by_role("radio", name=speed, exact=True).check()
    page.keyboard.press("Escape")
    focus(page)


def test_a_hundred_jumps_ask_the_server_for_nothing(browser, server):
    with exploring(browser, server, "?preset=copy-rich") as page:
        runs = run_count(page)
        count_messages(page)
        jumps = """root => {
          const steps = +root.dataset.steps, panes = [...root.querySelectorAll(".pane")], wrong = [];
          const range = root.querySelector("input[type=range]");
          for (let n = 0; n < 100; n++) {
            const step = (n * 7 + 3) % steps;
            range.value = step;
            range.dispatchEvent(new Event("input", { bubbles: true }));
            const shown = [root, ...panes].map((each) => each.dataset.step);
            if (shown.some((each) => +each !== step)) wrong.push([step, shown]);
          }
          return wrong;
        }"""
        assert player(page).evaluate(jumps) == []
        words = set()
        for step in (0, 5, 11):
            page.get_by_role("slider", name="Step").fill(str(step))
            assert panes_at(page) == [str(step)] * 2
            words.add(page.get_by_test_id("pane-left").inner_text())
        assert len(words) == 3  # narration and counters went along
        page.wait_for_url("**step=11**")
        assert message_count(page) == 0
        choose(page, "Time", "^Measured")
        page.get_by_test_id("pane-left").locator('[data-counter="measured-time"]').wait_for()
        assert run_count(page) == runs + 1  # the one for the choice


def name(place: tuple) -> str:
    return f"{place[0]} {place[1]}"


@pytest.mark.parametrize(("preset", "looks"), [("figure2", 13), ("copy-rich", 12)])
def test_a_state_looks_the_same_however_it_was_reached(browser, server, preset, looks):
    with exploring(browser, server, f"?preset={preset}") as page:
        places = all_places(int(player(page).get_attribute("data-steps")))
        looked_at = Random(3).sample(places, looks)
        wanted = [name(place) for place in looked_at]
        forward = player(page).evaluate(WALK, [places, wanted])
        assert sorted(forward) == sorted(wanted)
        assert len({str(each) for each in forward.values()}) > 0.7 * looks  # where nothing moves, two may look the same
        shuffled = [(*place, number % 2) for number, place in enumerate(looked_at)]
        assert player(page).evaluate(WALK, [shuffled, wanted]) == forward
    for step, sub in looked_at[:2]:
        link = f"{server.url}/?preset={preset}&left=vanilla&right=ems-sd&step={step}&sub={sub}&v=1"
        with visitor(browser, link) as again:
            wait_for_player(again)
            assert picture(again) == forward[f"{step} {sub}"]


def test_the_end_of_a_motion_is_the_state_itself(browser, server):
    with exploring(browser, server, reduced_motion="no-preference") as page:
        press(page, "Home")
        moved = {}
        for place in all_places(3)[1:]:
            press(page, "Shift+ArrowRight")
            wait_in_player(page, "!player.links.running.size && !player.links.frame")
            moved[name(place)] = picture(page)
        page.emulate_media(reduced_motion="reduce")
        assert player(page).evaluate(WALK, [all_places(3)[:0:-1], list(moved)]) == moved


def test_keys(browser, server):
    with exploring(browser, server, "?preset=copy-rich") as page:
        last = int(player(page).get_attribute("data-steps")) - 1
        walk = [
            ("Home", "0", "commit"),
            ("ArrowLeft", "0", "commit"),
            ("ArrowRight", "1", "commit"),
            ("ArrowRight", "2", "commit"),
            ("Shift+ArrowLeft", "2", "verify"),
            ("Shift+ArrowLeft", "2", "attend"),
            ("ArrowRight", "3", "attend"),
            ("ArrowLeft", "2", "attend"),
            ("Shift+ArrowRight", "2", "verify"),
            ("End", str(last), "commit"),
            ("ArrowRight", str(last), "commit"),
            ("Home", "0", "commit"),
            ("Shift+ArrowLeft", "0", "commit"),
            ("Shift+ArrowRight", "1", "draft"),
        ]
        for key, *expected in walk:
            press(page, key)
            assert state(page) == tuple(expected), key
            assert panes_at(page) == [expected[0]] * 2
        for key in "rcRCxz":
            press(page, key)
        assert state(page) == ("1", "draft")
        press(page, "1")
        assert [page.get_by_test_id(f"pane-{side}").is_visible() for side in ("left", "right")] == [True, False]
        press(page, "1")
        assert [page.get_by_test_id(f"pane-{side}").is_visible() for side in ("left", "right")] == [False, True]
        press(page, "2")
        assert [page.get_by_test_id(f"pane-{side}").is_visible() for side in ("left", "right")] == [True, True]
        press(page, "?")
        keys = page.get_by_role("group", name="Keys")
        assert keys.is_visible()
        assert "sub-step" in keys.inner_text()
        press(page, "Escape")
        assert keys.is_hidden()
        focus(page)
        press(page, "g", *"12", "Enter")
        assert state(page)[0] == "12"


def test_typing_in_a_field_moves_nothing(browser, server):
    with exploring(browser, server, "?preset=copy-rich&step=4&sub=commit") as page:
        press(page, "g")
        page.keyboard.type("b i p 12")
        press(page, "ArrowLeft", "Home", "End", " ")
        assert state(page) == ("4", "commit")
        assert page.get_by_role("button", name="Play").is_visible()  # a space did not start it


def test_other_combinations_are_left_to_the_browser(browser, server):
    script = """root => {
      const keys = ["ArrowLeft", "ArrowRight", "Home", "End", " ", "Escape", ..."b12gip?cr"], used = [];
      for (const held of ["ctrlKey", "metaKey", "altKey"]) for (const key of keys) {
        const settings = { key, [held]: true, bubbles: true, cancelable: true, composed: true };
        if (!root.dispatchEvent(new KeyboardEvent("keydown", settings))) used.push([held, key]);
      }
      return used;
    }"""
    with exploring(browser, server) as page:
        before = picture(page)
        assert player(page).evaluate(script) == []
        assert state(page) == ("1", "draft")
        assert picture(page) == before


def test_play_never_stacks_and_stops_at_the_last_step(browser, server):
    with exploring(browser, server, "?preset=copy-rich&step=0") as page:
        watch_steps(page)
        set_speed(page, "0.25×")
        press(page, *[" "] * 21)
        for speed in ("0.5×", "0.25×", "8×", "0.25×", "8×"):  # each starts the clock anew
            set_speed(page, speed)
        wait_in_player(page, "!player.playing")
        seen = steps_seen(page)
        last = int(player(page).get_attribute("data-steps")) - 1
        assert [int(step) for _, step, _ in seen] == list(range(1, last + 1))
        gaps = [later - earlier for (earlier, *_), (later, *_) in itertools.pairwise(seen)]
        assert min(gaps) > 0.6 * 900 / 8, gaps
        assert state(page) == (str(last), "commit")
        assert page.get_by_role("button", name="Play again").is_visible()
        set_speed(page, "2×")
        press(page, " ")  # from the end it starts over
        wait_in_player(page, "player.step === 1")
        press(page, " ")
        watch_steps(page)
        pass_time(page, 600)  # a tick takes 450 ms
        assert steps_seen(page) == []
        assert int(state(page)[0]) < last


# Every delay that is asked for from now on, in milliseconds.
DELAYS = """() => {
  const real = window.setTimeout;
  window.delays = [];
  window.setTimeout = (work, wait, ...more) => { window.delays.push(wait); return real(work, wait, ...more); };
}"""


def test_speeds(browser, server):
    """A step takes 900 ms at 1×; what a loaded machine makes of it is not measured here."""
    with exploring(browser, server, "?preset=no-copy&step=0") as page:
        page.evaluate(DELAYS)
        for speed, wait in (("2×", 450), ("4×", 225), ("8×", 112.5)):
            press(page, "Home")
            set_speed(page, speed)
            page.evaluate("window.delays.length = 0")
            press(page, " ")
            page.wait_for_function("wait => window.delays.filter((each) => each === wait).length >= 3", arg=wait)
            press(page, " ")
            others = {900 / factor for factor in (0.25, 0.5, 1, 2, 4, 8)} - {wait}
            assert not others & set(page.evaluate("window.delays"))


# Hides the tab as soon as play has come to a step, and gives the place.
HIDE = """root => new Promise((done) => {
  const look = () => {
    if (root.dataset.step === "0") return requestAnimationFrame(look);
    Object.defineProperty(document, "hidden", { get: () => true, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
    done(root.dataset.step);
  };
  look();
})"""


def test_play_pauses_when_the_tab_is_hidden(browser, server):
    with exploring(browser, server, "?preset=copy-rich&step=0") as page:
        set_speed(page, "4×")
        press(page, " ")
        step = player(page).evaluate(HIDE)
        assert page.get_by_role("button", name="Play", exact=True).is_visible()
        pass_time(page, 700)  # a tick takes 225 ms
        assert state(page)[0] == step


def test_reduced_motion_draws_no_motion_and_still_plays(browser, server):
    """The page's clock goes on by 16 ms a frame, however long a frame takes."""
    frames = """(root, wait) => new Promise((done) => {
      const { requestAnimationFrame } = window, overlays = [...root.querySelectorAll(".overlay")], seen = new Set();
      let now = performance.now();
      const until = now + wait;
      performance.now = () => now;
      window.requestAnimationFrame = (work) => requestAnimationFrame(() => work(now));
      const look = () => {
        seen.add(overlays.map((canvas) => canvas.toDataURL()).join());
        now += 16;
        if (now < until) return requestAnimationFrame(look);
        delete performance.now;
        Object.assign(window, { requestAnimationFrame });
        done(seen.size);
      };
      const settings = { key: "ArrowRight", shiftKey: true, bubbles: true, composed: true };
      root.dispatchEvent(new KeyboardEvent("keydown", settings));
      look();
    })"""
    looks = {}
    for motion in ("reduce", "no-preference"):
        with exploring(browser, server, "?step=1&sub=verify", reduced_motion=motion) as page:
            looks[motion] = player(page).evaluate(frames, 400)
            if motion == "reduce":
                press(page, "Home")
                watch_steps(page)
                press(page, " ")
                wait_until(lambda: steps_seen(page))
                assert steps_seen(page)[0][1:] == ("1", "draft")
    assert looks["reduce"] == 1
    assert looks["no-preference"] > 2


def test_events_and_breakpoints(browser, server):
    with exploring(browser, server) as page:
        press(page, "Home")
        seen = []
        for _ in range(6):
            press(page, "b")
            seen.append(state(page))
        assert seen == [("1", "verify"), ("1", "commit"), ("2", "verify"), ("2", "commit")] + [("2", "commit")] * 2
        assert page.get_by_text("No event after this place.").is_visible()
        press(page, "Shift+B")
        assert state(page) == ("2", "verify")
        page.get_by_role("button", name="Breakpoints", exact=True).click()
        page.get_by_role("checkbox", name="every new hole").check()
        press(page, "Escape")
        focus(page)
        press(page, "Home", "b")
        assert state(page) == ("1", "commit")
        press(page, "b")
        assert state(page) == ("2", "commit")
        set_speed(page, "8×")
        press(page, "Home", " ")
        wait_in_player(page, "!player.playing")
        assert state(page) == ("1", "commit")  # play stopped there
        assert page.get_by_role("button", name="Play", exact=True).is_visible()
        press(page, " ")
        wait_in_player(page, "!player.playing")
        assert state(page) == ("2", "commit")


def test_marks_on_the_track_jump_to_their_events(browser, server):
    with exploring(browser, server) as page:
        page.get_by_role("button", name="Step 2: 4 new holes in row 0").click()
        assert state(page) == ("2", "commit")
        page.get_by_role("button", name="Step 1: draft rejected in rows 0, 1").click()
        assert state(page) == ("1", "verify")


def card(page) -> str:
    return page.locator(".card:visible").inner_text()


def test_a_pinned_card_tells_the_cell_and_goes_with_the_state(browser, server):
    with exploring(browser, server, "?step=2&sub=commit") as page:
        hover(page, 0, cell(1, 6))
        tip = page.get_by_role("tooltip").inner_text()
        hole = ["Hole", "row 1, slot 6", "rejected “planet”", "Hole since", "step 1, commit", "6 queries, weight 0"]
        hole += ["Wasted", "540 KiB this step"]
        for words in hole:
            assert words in tip
        page.mouse.click(*place_of(page, 0, **cell(1, 6)))
        page.mouse.move(5, 5)
        for words in (*hole, "45.0 KiB × 2 launches", "Written\nstep 1, write"):
            assert words in card(page)
        assert "Hole, row 1, slot 6. Holds: rejected “planet”." in page.get_by_test_id("live").text_content()
        assert page.locator(".card:visible").count() == 1
        press(page, "ArrowLeft", "Shift+ArrowLeft")  # step 1, verify: it is no hole yet
        assert "Rejected" in card(page)
        assert "Read by\n5 queries, 3 pads among them" in card(page)
        press(page, "Home")
        assert "Free" in card(page)
        press(page, "Escape")
        assert page.locator(".card:visible").count() == 0
        assert state(page) == ("0", "commit")
        page.mouse.click(*place_of(page, 1, **cell(0, 2)))
        assert "Holds\n“rose” (id " in card(page)
        page.mouse.click(*place_of(page, 1, **cell(0, 2)))  # a second press unpins
        assert page.locator(".card:visible").count() == 0


def test_cards_of_the_worked_example(browser, server):
    cards = [  # pane, item, words at step 2, verify
        (0, cell(1, 3), ["Prompt pad", "Holds\nnothing", "Written\nnever", "6 queries, weight 0"]),
        (
            0,
            cell(0, 0),
            ["Prompt", "Holds\n“The”", "Position\n0", "Written\nprefill", "Read by\n6 queries, 3 pads among"],
        ),
        (0, query(0, 3), ["Input pad", "Position\n11, the row’s last again", "wasted: nobody looks at it"]),
        (0, query(0, 2), ["Draft", "Why rejected\n“over” best, “across” −0.65, “on” −2.09"]),
        (0, query(1, 0), ["Next token", "Position\n4", "5 tokens of its row, loads 5 dead slots"]),
        (
            1,
            query(1, 0),
            ["Next token", "Position\n4", "Reads\n5 tokens of its row", "Target says\n“body” best, “object” −3.19"],
        ),
        (1, query(1, 5), ["Draft", "accepted: the target says the same"]),
        (1, cell(1, 9), ["Accepted", "row 1, slot 9", "Position\n9", "Written\nstep 2, write", "Read by\n1 query"]),
    ]
    with exploring(browser, server, "?step=2&sub=verify") as page:
        for pane, item, words in cards:
            page.mouse.click(*place_of(page, pane, **item))
            shown = card(page)
            for each in words:
                assert each in shown, (item, each, shown)
            page.mouse.move(5, 5)
            press(page, "Escape")


def test_a_looked_up_draft_says_where_it_was_copied_from(browser, server):
    with exploring(browser, server, "?preset=copy-rich&step=1&sub=verify") as page:
        page.mouse.click(*place_of(page, 0, **query(0, 1)))
        found = player(page).evaluate(
            """root => {
              const pane = root.player.panes[0], { source, fed } = pane.run.at(1, 0), prompt = pane.run.prompts[0];
              const words = root.player.data.words;
              return [source, words[prompt[source]].trim(), words[fed[1]].trim(), words[prompt[source + 0]].trim()];
            }"""
        )
        source, copied, draft, _ = found
        assert copied == draft
        assert f"Copied from\nposition {source} “{copied}”" in card(page)


def focus_of(page) -> list:
    script = """root => root.player.panes.map(({ focus }) => focus && [
      [...focus.queries].sort(), [...focus.cells].filter(([, how]) => how === "visible").map(([key]) => key).sort(),
      [...focus.cells].filter(([, how]) => how === "dead").map(([key]) => key).sort()])"""
    return player(page).evaluate(script)


def test_what_is_pointed_at_lights_up_in_both_panes(browser, server):
    with exploring(browser, server, "?step=2&sub=commit") as page:
        page.mouse.move(5, 5)
        plain = picture(page)
        hover(page, 0, query(1, 0))
        assert focus_of(page) == [
            [["1.0"], ["1.0", "1.1", "1.2", "1.5", "1.9"], ["1.3", "1.4", "1.6", "1.7", "1.8"]],
            [["1.0"], ["1.0", "1.1", "1.2", "1.3", "1.4"], []],
        ]
        assert changed_panes(plain, picture(page)) == [True, True]
        hover(page, 1, cell(1, 0))
        every = [f"1.{index}" for index in range(6)]
        assert focus_of(page) == [[every, ["1.0"], []]] * 2
        hover(page, 0, cell(1, 6))  # a hole has no twin
        assert focus_of(page)[0] == [every, [], ["1.6"]]
        assert focus_of(page)[1] is None
        page.mouse.move(5, 5)
        wait_until(lambda: focus_of(page) == [None, None])
        assert picture(page) == plain


def changed_panes(before: list[dict], after: list[dict]) -> list[bool]:
    """Which panes' canvases differ."""
    return [one["canvases"] != two["canvases"] for one, two in zip(before, after, strict=True)]


def test_cells_can_be_inspected_by_keys(browser, server):
    with exploring(browser, server, "?step=2&sub=commit") as page:
        press(page, "i", "ArrowDown", "Home")
        live = page.get_by_test_id("live")
        assert live.text_content().startswith("Vanilla, Prompt, row 1, slot 0. Holds: “The”")
        press(page, *["ArrowRight"] * 6)
        assert live.text_content().startswith("Vanilla, Hole, row 1, slot 6.")
        assert state(page) == ("2", "commit")
        press(page, "Enter")
        assert "Hole" in card(page)
        press(page, "i")
        assert live.text_content().startswith("EMS-SD, ")
        press(page, "Escape", "Escape")
        assert page.locator(".card:visible").count() == 0


def test_predicting_is_scored_and_never_blocks(browser, server):
    with exploring(browser, server, "?step=1&sub=draft") as page:
        press(page, "p")
        box = page.get_by_role("region", name="Predict before you see")
        assert state(page) == ("1", "attend")
        question = player(page).evaluate(
            "root => [root.player.predict.question.answer, root.player.predict.question.text]"
        )
        assert question[1] in box.inner_text()
        box.get_by_role("spinbutton").fill(str(question[0] + 1))
        press(page, "Enter")
        assert f"✗ Not {question[0] + 1}." in box.inner_text()
        assert "0 of 1 right" in box.inner_text()
        press(page, "ArrowRight")
        assert state(page)[0] == "2"
        answer = player(page).evaluate("root => root.player.predict.question.answer")
        page.keyboard.type(str(answer))  # a digit goes to the field
        press(page, "Enter")
        assert "✓ Right." in box.inner_text()
        assert "1 of 2 right" in box.inner_text()
        press(page, "Home", "ArrowRight", "Escape")
        assert box.is_hidden()


def test_the_code_of_a_substep_is_shown(browser, server):
    with exploring(browser, server, "?step=1&sub=pack") as page:
        page.get_by_role("button", name="Show the code").click()
        code = page.get_by_role("region", name="Code of this sub-step")
        assert "emssd/layouts.py:" in code.inner_text()
        assert code.locator(".active").count() >= 2
        first = code.inner_text()
        focus(page)
        press(page, "Shift+ArrowRight", "Shift+ArrowRight", "Shift+ArrowRight")
        assert code.inner_text() != first
