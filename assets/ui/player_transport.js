// The transport card: step buttons, the track with its marks, speed, breakpoints and the list of keys.

const SPEEDS = [0.25, 0.5, 1, 2, 4, 8];
const FEW_STEPS = 4;
const THUMB = 18, LINE_Y = 29, LABEL_Y = 47, TRACK_HEIGHT = 58;
const MOST_MARKS = 2, MARK_WIDTH = 16, MORE_WIDTH = 22, SUB_LABEL = 46, LEAST_GAP = 38, MOST_DOTS = 130;
const KEYS = [
  ["← →", "one step back, forward"], ["Shift ← →", "one sub-step"], ["Home, End", "first, last step"], ["Space", "play or pause"],
  ["B, Shift B", "next, previous event or breakpoint"], ["G", "go to a step by its number"], ["1, 2", "one pane, all panes"],
  ["I", "inspect cells: arrows move, Enter pins"], ["P", "predict before you see"], ["Esc", "unpin, close"], ["?", "this list"],
];

// Places on the track: {step, sub, at: 0..1, value: of the range input}.
function trackPlaces(player) {
  const { count, clock, timeline } = player, places = [{ step: 0, sub: "commit", at: 0, value: 0 }];
  const few = clock === "step" && count - 1 <= FEW_STEPS;
  for (let step = 1; step < count; step++) {
    if (few) SUBSTEPS.forEach((sub, n) => places.push({ step, sub, at: ((step - 1) * 6 + n + 1) / (6 * (count - 1)), value: n === 5 ? step : step - 1 + (n + 1) / 6 }));
    else places.push({ step, sub: "commit", at: clock === "time" ? timeline[step] / timeline[count - 1] : step / (count - 1), value: clock === "time" ? timeline[step] : step });
  }
  return { places, few };
}

class Transport {
  constructor(player) {
    this.player = player;
    const button = (name, label, action) => iconButton(name, label, action, "tool t-" + name);
    this.buttons = {
      first: button("first", "First step", () => player.go(0)),
      back: button("back", player.isLesson ? "Back one sub-step" : "Back one step", () => this.move(-1)),
      play: iconButton("play", "Play", () => player.toggle(), "play"),
      forward: button("forward", player.isLesson ? "Next sub-step" : "Next step", () => this.move(1)),
      last: button("last", "Last step", () => player.go(player.count - 1, "commit")),
    };
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.range = make("input", { type: "range", min: 0, step: "any", "aria-label": "Step", oninput: () => this.slide() });
    this.marks = make("div", { class: "marks" });
    const tick = (sub) => make("button", { type: "button", tabindex: "-1", text: sub, onclick: () => player.go(player.step, sub) });
    this.ticks = make("div", { class: "ticks", role: "group", "aria-label": "Sub-step" }, ...SUBSTEPS.map(tick));
    this.track = make("div", { class: "track" }, this.canvas, this.range, this.marks, this.ticks);
    this.buildMenus();
    const steps = make("div", { class: "steps" }, ...Object.values(this.buttons));
    const menus = make("div", { class: "t-menus" }, this.speed, this.breakpoints, this.both, this.keys);
    this.node = make("div", { class: "transport" }, steps, this.track, menus);
  }

  buildMenus() {
    const { player } = this;
    const speeds = SPEEDS.map((speed) => this.option("radio", "speed", `${speed}×`, () => player.setSpeed(speed)));
    const breaks = BREAKPOINTS.map(({ key, word }) => this.option("checkbox", key, word, (on) => player.setBreakpoint(key, on)));
    this.speeds = make("fieldset", { class: "choices" }, make("legend", { text: "Speed" }), ...speeds);
    this.subs = this.option("checkbox", "subs", "play every sub-step", (on) => player.setPlaySubs(on));
    this.speeds.append(this.subs);
    this.breaks = make("fieldset", { class: "choices" }, make("legend", { text: "Stop playing at" }), ...breaks);
    const trigger = (label) => make("button", { type: "button", class: "word", "aria-label": label }, make("span"), icon("down"));
    this.speed = menu(trigger("Speed"), make("div", {}, this.speeds), "Speed");
    this.breakpoints = menu(trigger("Breakpoints"), make("div", {}, this.breaks), "Breakpoints");
    this.both = menu(trigger("Speed and breakpoints"), make("div"), "Speed and breakpoints");
    this.both.classList.add("only-narrow");
    this.speed.classList.add("only-wide");
    this.breakpoints.classList.add("only-wide");
    const keysHere = KEYS.filter(([key]) => key !== "P" || !player.isLesson);
    const list = make("dl", {}, ...keysHere.flatMap(([key, what]) => [make("dt", {}, make("kbd", { text: key })), make("dd", { text: what })]));
    this.jump = make("input", { type: "number", min: 0, step: 1, "aria-label": "Go to step", onkeydown: (event) => this.jumpKey(event) });
    this.jumpBox = make("label", { class: "jump" }, make("span", { text: "Go to step" }), this.jump);
    this.keys = menu(iconButton("keys", "Keyboard help", () => {}), make("div", { class: "keys" }, make("b", { text: "Keys, while the player has the focus" }), list, this.jumpBox), "Keys");
    player.menus.push(this.speed, this.breakpoints, this.both, this.keys);
  }

  option(type, name, text, action) {
    const input = make("input", { type, name: `${type}-${this.player.serial}-${type === "radio" ? name : text}`, onchange: () => action(input.checked) });
    input.dataset.option = type === "radio" ? text : name;
    return make("label", {}, input, make("span", { text }));
  }

  // Speed and breakpoints share one menu where there is little room.
  fit(narrow) {
    const home = narrow ? [this.both, this.both] : [this.speed, this.breakpoints];
    home[0].lastElementChild.append(this.speeds);
    home[1].lastElementChild.append(this.breaks);
  }

  openJump() {
    if (this.keys.lastElementChild.hidden) this.keys.firstElementChild.click();
    this.jump.value = "";
    this.jump.focus();
  }

  jumpKey(event) {
    if (event.key !== "Enter") return;
    const step = Number(this.jump.value);
    if (this.jump.value === "" || !Number.isInteger(step)) return;
    this.keys.close();
    this.player.root.focus({ preventScroll: true });
    this.player.go(step);
    event.stopPropagation();
  }

  // A lesson is read sub-step by sub-step.
  move(direction) {
    const { player } = this;
    if (player.isLesson) player.goSub(direction);
    else player.go(player.step + direction);
  }

  // A new run or another clock: places, marks and the range's end.
  load() {
    Object.assign(this, trackPlaces(this.player));
    this.range.max = this.places[this.places.length - 1].value;
    this.jump.max = this.player.count - 1;
    this.jumpBox.firstElementChild.textContent = `Go to step (0 to ${this.player.count - 1})`;
    this.drawn = drawnMarks(this.player.marks, !this.few);
    this.buildMarks();
  }

  // Marks of one place stand together; where places are too close for their marks, they share one group in their middle.
  buildMarks() {
    const width = this.width || 800, room = width - THUMB, groups = [];
    for (const place of this.places) {
      const marks = this.marksAt(place);
      if (marks.length) groups.push({ from: place.at, to: place.at, marks });
      while (groups.length > 1 && touching(...groups.slice(-2), room)) {
        const { to, marks: more } = groups.pop(), last = groups[groups.length - 1];
        Object.assign(last, { to, marks: last.marks.concat(more) });
      }
    }
    this.groups = groups;
    this.marks.replaceChildren(...groups.map((group) => this.markGroup(middle(group), group.marks)));
    this.markedWidth = width;
  }

  marksAt({ step, sub }) {
    return this.drawn[step].filter((mark) => !this.few || mark.sub === sub);
  }

  markGroup(at, marks) {
    const group = make("div", { class: "mark-group", style: `left: calc(${THUMB / 2}px + ${at} * (100% - ${THUMB}px))` });
    const [shown, rest] = splitMarks(marks);
    for (const mark of shown.reverse().sort((a, b) => a.step - b.step)) group.append(this.markButton(mark, this.markText(mark)));
    const words = rest.map((mark) => this.markText(mark)), names = { title: words.join("\n"), "aria-label": words.join("; ") };
    const more = { type: "button", tabindex: "-1", class: "mark more", text: "+" + rest.length, ...names, onclick: () => this.goMark(rest[0]) };
    if (rest.length) group.append(make("button", more));
    return group;
  }

  markText(mark) {
    const { clock, timeline } = this.player;
    return clock === "time" ? markText(mark).replace(/^Step \d+/, `At ${timeline[mark.step].toFixed(1)} ms`) : markText(mark);
  }

  markButton(mark, text) {
    const picture = { rejection: icon("cross"), kept: icon("star"), finished: icon("flag"), hole: make("i", { class: "box" }), differs: make("i", { class: "bang", text: "≠" }) }[mark.key];
    return make("button", { type: "button", tabindex: "-1", class: "mark m-" + mark.key, title: text, "aria-label": text, onclick: () => this.goMark(mark) }, picture);
  }

  goMark(mark) {
    this.player.go(mark.step, mark.sub);
  }

  // The range input moved: to the nearest place, without motion.
  slide() {
    const value = +this.range.value;
    let best = this.places[0];
    for (const place of this.places) if (Math.abs(place.value - value) < Math.abs(best.value - value)) best = place;
    this.player.scrub(best.step, best.sub, !this.few);
  }

  here() {
    const { step, shownSub } = this.player;
    return this.places.find((place) => place.step === step && (!this.few || place.sub === shownSub)) || this.places[0];
  }

  paint() {
    const { player } = this, place = this.here(), last = player.count - 1, atEnd = player.step === last && player.shownSub === "commit";
    this.range.value = place.value;
    this.range.setAttribute("aria-valuetext", this.valueText());
    const ends = { first: player.step === 0, back: player.step === 0, forward: player.isLesson ? atEnd : player.step === last, last: atEnd };
    for (const [name, off] of Object.entries(ends)) {
      const button = this.buttons[name], label = button.getAttribute("aria-label");
      button.disabled = off;
      button.title = off ? `${label}: this is the ${name === "first" || name === "back" ? "first" : "last"} one` : label;
    }
    this.paintPlay(last);
    this.paintTrack(place);
    this.paintTicks(place);
  }

  valueText() {
    const { step, shownSub, clock, timeline, count } = this.player;
    if (step === 0) return "Prefill";
    return clock === "time" ? `${(timeline[step]).toFixed(2)} ms` : `Step ${step} of ${count - 1}, ${shownSub}`;
  }

  paintPlay(last) {
    const { player } = this, atEnd = player.atEnd(), name = player.playing ? "pause" : atEnd ? "replay" : "play";
    setIcon(this.buttons.play, name);
    const label = { play: "Play", pause: "Pause", replay: "Play again" }[name];
    this.buttons.play.setAttribute("aria-label", label);
    this.buttons.play.title = label + " (Space)";
    this.buttons.play.disabled = last === 0;
  }

  paintMenus() {
    const { player } = this, count = player.ticked.size, speed = player.speed + "×";
    const words = several(count, "breakpoint");
    this.speed.firstElementChild.firstElementChild.textContent = speed;
    this.breakpoints.firstElementChild.firstElementChild.textContent = capital(words);
    this.breakpoints.classList.toggle("on", count > 0);
    this.both.firstElementChild.firstElementChild.textContent = count ? `${speed} · ${words}` : speed;
    for (const input of [...this.speeds.querySelectorAll("input"), ...this.breaks.querySelectorAll("input")]) {
      const name = input.dataset.option;
      input.checked = input.type === "radio" ? name === speed : name === "subs" ? player.playSubs : player.ticked.has(name);
    }
    if (this.places && this.track.clientWidth !== this.width) this.paintTrack(this.here()); // a longer name takes room
  }

  x(at) {
    return THUMB / 2 + at * (this.width - THUMB);
  }

  paintTrack(place) {
    this.width = this.track.clientWidth;
    if (!this.width) return;
    if (this.markedWidth !== this.width) this.buildMarks();
    const ctx = context(this.canvas, this.width, TRACK_HEIGHT), { chrome } = this.player.theme;
    ctx.lineCap = "round";
    ctx.lineWidth = 4;
    this.line(ctx, 0, 1, chrome.control);
    this.line(ctx, 0, place.at, chrome.brand);
    if (this.places.length <= MOST_DOTS) for (const each of this.places) this.dot(ctx, each, each.at <= place.at);
    this.labels(ctx, place);
  }

  line(ctx, from, to, colour) {
    ctx.strokeStyle = colour;
    ctx.beginPath();
    ctx.moveTo(this.x(from), LINE_Y);
    ctx.lineTo(this.x(to), LINE_Y);
    ctx.stroke();
  }

  dot(ctx, place, done) {
    const { chrome } = this.player.theme, big = !this.few || place.sub === "commit";
    ctx.beginPath();
    ctx.arc(this.x(place.at), LINE_Y, big && this.places.length < 60 ? 4 : 3, 0, 7);
    ctx.fillStyle = done ? chrome.brand : chrome.panel;
    ctx.strokeStyle = done ? chrome.brand : chrome.faint;
    ctx.lineWidth = 1.3;
    ctx.fill();
    ctx.stroke();
  }

  text(ctx, text, at, y, bold, align = "center") {
    const { theme, font } = this.player;
    ctx.font = font(12, bold ? 650 : 400);
    ctx.fillStyle = bold ? theme.chrome.ink : theme.chrome.muted;
    ctx.textBaseline = "middle";
    const half = ctx.measureText(text).width / 2, x = align === "left" ? this.x(at) + half : this.x(at);
    ctx.textAlign = "center";
    ctx.fillText(text, Math.min(Math.max(x, half), this.width - half), y);
  }

  labels(ctx, place) {
    if (this.few) return this.subLabels(ctx, place);
    const { player } = this, last = player.count - 1, every = labelStep(last, (this.width - THUMB) / 46);
    const name = (each) => (player.clock === "time" ? player.timeline[each.step].toFixed(1) : String(each.step));
    const current = place.step === 0 ? "prefill" : player.clock === "time" ? `${name(place)} ms` : player.shownSub === "commit" ? name(place) : `${name(place)} ${player.shownSub}`;
    this.text(ctx, current, place.at, LABEL_Y, true);
    let right = -1;
    for (const each of this.places) {
      const wanted = each.step === 0 || each.step === last || (player.clock === "time" ? true : each.step === 1 || each.step % every === 0);
      const x = this.x(each.at);
      if (!wanted || Math.abs(x - this.x(place.at)) < 46 || x < right || (each.step !== last && this.x(1) - x < 40)) continue;
      this.text(ctx, each.step === 0 ? "prefill" : name(each), each.at, LABEL_Y, false);
      right = x + 40;
    }
  }

  // Names of the sub-steps below their places: the current one first, none on another one.
  subLabels(ctx, place) {
    const gap = (this.width - THUMB) / Math.max(1, this.places.length - 1), { chrome } = this.player.theme;
    const hidden = new Set();
    for (const each of this.places) {
      if (each.sub === "draft") {
        const from = each.at - 0.35 / this.places.length, bold = each.step === place.step;
        const name = [`Step ${each.step}`, String(each.step)].find((text) => !this.isMarked(ctx, text, from, bold));
        if (name) this.text(ctx, name, from, 10, bold, "left");
        else hidden.add(each.step);
        const x = Math.round(this.x(each.at - 0.5 / (this.places.length - 1))) + 0.5;
        ctx.fillStyle = chrome.control;
        ctx.fillRect(x - 0.5, 4, 1, 18);
      }
    }
    const taken = [], last = this.places[this.places.length - 1];
    for (const each of [place, this.places[0], last, ...this.places]) {
      const apart = this.player.isLesson || each === place || Math.abs(this.x(each.at) - this.x(place.at)) >= SUB_LABEL + 4;
      if (!apart || !(gap >= (this.player.isLesson ? LEAST_GAP : SUB_LABEL - 2) || each === place || each.step === 0)) continue;
      const sub = hidden.has(each.step) && each === place ? `${each.step} ${each.sub}` : each.sub, word = each.step ? sub : "prefill", [from, to] = this.extent(ctx, word, each.at, each === place);
      if (taken.some(([start, end]) => from < end + 3 && to > start - 3)) continue;
      taken.push([from, to]);
      this.text(ctx, word, each.at, LABEL_Y, each === place);
    }
  }

  // Whether marks stand where a label would that begins at a place.
  isMarked(ctx, text, at, bold) {
    const from = this.x(at), to = from + textWidth(ctx, this.player.font(12, bold ? 650 : 400), text);
    return this.groups.some((group) => {
      const x = this.x(middle(group)), half = groupWidth(group.marks) / 2 - 4; // a mark does not fill its place
      return from < x + half && to > x - half;
    });
  }

  // From where to where a label reaches that is drawn in the middle of its place.
  extent(ctx, text, at, bold) {
    const half = textWidth(ctx, this.player.font(12, bold ? 650 : 400), text) / 2, x = Math.min(Math.max(this.x(at), half), this.width - half);
    return [x - half, x + half];
  }

  paintTicks(place) {
    this.ticks.hidden = this.few || this.player.step === 0 || this.player.clock === "time";
    if (this.ticks.hidden) return;
    this.ticks.style.left = `clamp(0px, calc(${THUMB / 2}px + ${place.at} * (100% - ${THUMB}px) - 147px), calc(100% - 294px))`;
    for (const tick of this.ticks.children) tick.setAttribute("aria-pressed", String(tick.textContent === this.player.shownSub));
  }
}

// The marks that are drawn of a group, the most important ones, and the others, which only count.
function splitMarks(marks) {
  const sorted = marks.slice().sort((a, b) => MARK_ORDER.indexOf(a.key) - MARK_ORDER.indexOf(b.key));
  return [sorted.slice(0, MOST_MARKS), sorted.slice(MOST_MARKS)];
}

function middle({ from, to }) {
  return (from + to) / 2;
}

// Whether two neighbouring groups of marks would lie on each other on a track of `room` pixels.
function touching(one, next, room) {
  return (middle(next) - middle(one)) * room < (groupWidth(one.marks) + groupWidth(next.marks)) / 2;
}

function groupWidth(marks) {
  return MARK_WIDTH * Math.min(marks.length, MOST_MARKS) + (marks.length > MOST_MARKS ? MORE_WIDTH : 0);
}

// Round distance between step numbers so that at most `most` are written.
function labelStep(last, most) {
  return [1, 2, 5, 10, 20, 50, 100, 200, 500].find((step) => last / step <= most) || 1000;
}
