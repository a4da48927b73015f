// The player's frame: control bar, pane heads with narration and counters, legend. Text goes in as text only.

const ICONS = {
  first: "M5 4v12M15 4l-7 6 7 6", back: "M13 4l-7 6 7 6", forward: "M7 4l7 6-7 6", last: "M15 4v12M5 4l7 6-7 6",
  play: "M7 4l9 6-9 6z", pause: "M7 4v12M13 4v12", replay: "M15.5 10a5.5 5.5 0 1 1-1.9-4.2M14 2.5v3.6h-3.6",
  code: "M7 5l-5 5 5 5M13 5l5 5-5 5", link: "M8 12l4-4M9 6l2-2a3.5 3.5 0 0 1 5 5l-2 2M11 14l-2 2a3.5 3.5 0 0 1-5-5l2-2",
  picture: "M3 4h14v12H3zM3 13l4-4 4 4 3-3 3 3M13.5 7.5h.01", keys: "M2 5h16v10H2zM5 8h.01M8 8h.01M11 8h.01M14 8h.01M6 12h8",
  check: "M5 10.5l3.5 3.5L15 7", cross: "M6 6l8 8M14 6l-8 8", down: "M6 8l4 4 4-4", pin: "M7 3h6M8 3v6l-2 3h8l-2-3V3M10 12v5",
  question: "M7.5 7.5a2.5 2.5 0 1 1 3.6 2.3c-.8.4-1.1 1-1.1 1.7M10 14.5h.01", star: "M10 3l2 4.6 5 .4-3.8 3.3 1.2 4.9-4.4-2.6-4.4 2.6 1.2-4.9L3 8l5-.4z",
  flag: "M5 17V4M5 4h9l-2.5 3L14 10H5",
};

const PANE_NAMES = ["pane-left", "pane-right", "pane-third", "pane-fourth"];
// Differences of larger counts are written in percent.
const PERCENT_FROM = 2000;

function make(tag, entries = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(entries)) {
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

function icon(name) {
  const space = "http://www.w3.org/2000/svg", svg = document.createElementNS(space, "svg"), path = document.createElementNS(space, "path");
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("class", "icon i-" + name);
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

function setIcon(button, name) {
  if (button.dataset.icon === name) return;
  button.dataset.icon = name;
  button.querySelector(".icon").replaceWith(icon(name));
}

// A button with a picture; `label` is its name for everybody who does not see it.
function iconButton(name, label, action, style = "tool") {
  return make("button", { type: "button", class: style, title: label, "aria-label": label, "data-icon": name, onclick: action }, icon(name));
}

function wordButton(name, text, action, style = "word") {
  return make("button", { type: "button", class: style, onclick: action }, icon(name), make("span", { text }));
}

// A button that opens a panel below it. The panel closes on Escape, on a press elsewhere and on a second press.
function menu(trigger, panel, label) {
  const box = make("div", { class: "menu" }, trigger, panel);
  panel.classList.add("panel");
  panel.hidden = true;
  panel.tabIndex = -1; // a press on a word in it leaves the focus inside
  panel.setAttribute("role", "group");
  panel.setAttribute("aria-label", label);
  const show = (open) => {
    panel.hidden = !open;
    trigger.setAttribute("aria-expanded", String(open));
  };
  show(false);
  trigger.addEventListener("click", () => show(panel.hidden));
  box.addEventListener("focusout", (event) => { if (event.relatedTarget && !box.contains(event.relatedTarget)) show(false); });
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || panel.hidden) return;
    show(false);
    trigger.focus();
    event.stopPropagation();
  });
  box.close = () => show(false);
  return box;
}

// The bar above everything: clock, equality, and what a reader can open.
class ControlBar {
  constructor(player) {
    this.player = player;
    this.same = { step: this.choice("step", "Same step"), time: this.choice("time", "") };
    this.clock = make("div", { class: "segments", role: "radiogroup", "aria-label": "Clock of both panes" }, this.same.step, this.same.time);
    this.note = make("p", { class: "bar-note", "data-testid": "note" });
    this.badge = make("button", { type: "button", class: "badge", "data-testid": "equality", onclick: () => player.jumpToDifference() });
    this.predict = wordButton("question", "Predict", () => player.togglePredict());
    this.code = wordButton("code", "Show the code", () => player.toggleCode());
    const copy = iconButton("link", "Copy a link to this view", () => player.copyLink(copy), "boxed");
    this.copy = copy;
    const picture = iconButton("picture", "Save picture (PNG)", () => savePicture(player), "boxed");
    this.node = make("div", { class: "bar-top" }, this.clock, this.note, this.badge, this.predict, this.code, copy, picture);
  }

  choice(clock, text) {
    return make("button", { type: "button", role: "radio", text, onclick: () => this.player.setClock(clock) });
  }

  load(data) {
    this.same.time.textContent = "Same " + data.time.label.toLowerCase();
    this.same.time.title = data.time.help || "";
    this.clock.hidden = data.panes.length < 2;
    this.note.textContent = this.note.title = data.note || "";
    this.code.hidden = !data.panes.some((pane) => Object.keys(pane.code || {}).length);
    this.copy.hidden = !data.link;
  }

  paint() {
    const { player } = this;
    for (const [name, button] of Object.entries(this.same)) button.setAttribute("aria-checked", String(name === player.clock));
    this.predict.setAttribute("aria-pressed", String(player.predicting));
    this.code.setAttribute("aria-pressed", String(player.showsCode));
    this.paintBadge();
  }

  paintBadge() {
    const wrong = this.player.panes.find((pane) => pane.differs);
    const counts = this.player.panes.filter((pane) => !pane.isBaseline).map(agreement).filter(Boolean);
    this.badge.hidden = !wrong && !counts.length;
    if (this.badge.hidden) return;
    const most = counts.reduce((best, each) => (each.emitted > best.emitted ? each : best), counts[0] || { agree: 0, emitted: 0 });
    const quiet = this.player.panes.some((pane) => pane.covered?.size);
    const text = quiet ? "Output identical to greedy so far" : wrong
      ? `Output differs from greedy: first at row ${wrong.differs.row}, new token ${wrong.differs.token}`
      : `Output identical to greedy, ${NUMBER.format(most.agree)} of ${several(most.emitted, "token")}`;
    this.badge.className = "badge " + (wrong ? "differ" : "agree");
    this.badge.disabled = !wrong;
    this.badge.title = wrong ? "Go to the step in which it differs" : "New tokens of all rows so far, the first one from prefill included";
    this.badge.replaceChildren(icon(wrong ? "cross" : "check"), make("span", { text }));
  }
}

// Title line, narration and counters of one pane; the view's drawing comes below.
class PaneShell {
  constructor(player, pane) {
    this.player = player;
    this.pane = pane;
    const title = make("h3", { text: pane.title });
    this.speed = make("span", { class: "speed" });
    this.story = make("p", { class: "story" });
    this.counters = COUNTERS.map((counter) => this.counter(counter));
    const head = make("div", { class: "head" }, methodMarker(pane.method), title, make("span", { class: "layout", text: pane.layout }), this.speed);
    const counters = make("div", { class: "counters" }, ...this.counters.map((counter) => counter.box));
    this.node = make("section", { class: "pane", "data-testid": PANE_NAMES[pane.index], "data-method": pane.method, "aria-label": pane.title }, head, this.story, counters);
  }

  counter({ key, label, short }) {
    const { time } = this.player.data, isTime = key === "modelled-time";
    const words = (style) => make("span", { class: style });
    const part = { key, value: make("b"), note: words("c-note"), chip: words("chip"), added: words("c-added") };
    Object.assign(part, { useful: make("i"), wasted: make("i", { class: PARTS_OF[key].pattern || "" }) });
    part.why = make("button", { type: "button", class: "textlink", text: "why equal?", onclick: () => this.player.explainEqualTime() });
    const name = isTime ? (time.kind === "measured" ? "measured-time" : key) : key;
    part.box = make("div", { class: "counter", "data-counter": name, title: counterHelp(key, this.player.data, this.pane) },
      make("span", { class: "c-label", text: isTime ? time.label : (this.player.isBatch && short) || label }), make("div", { class: "c-value" }, part.value, part.note, part.chip),
      make("div", { class: "c-bar" }, part.useful, part.wasted), make("div", { class: "c-below" }, part.added, ...(isTime ? [part.why] : [])));
    return part;
  }

  paint() {
    this.story.replaceChildren(...this.player.storyOf(this.pane).map(([text, bold]) => make(bold ? "b" : "span", { text })));
    this.paintSpeed();
    for (const part of this.counters) this.paintCounter(part);
  }

  // Of the tokens that are committed: what a step gains is not told before.
  paintSpeed() {
    const { pane } = this, step = committedStep(pane.at), factor = pane.speed[step];
    this.speed.classList.toggle("invalid", !!pane.differs);
    const words = (text) => this.speed.replaceChildren(make("span", { text }));
    if (pane.isBaseline) return words("the baseline of the speed-ups");
    if (!pane.speed.length || step < 1) return words("");
    if (factor === null || factor === undefined) return words("greedy has not come this far");
    const baseline = step < pane.last ? pane.baseline.replace(", ", ", so far, ") : pane.baseline;
    this.speed.replaceChildren(make("b", { text: factor.toFixed(2) + "×" }), make("span", { text: pane.differs ? "output differs" : baseline, title: pane.baseline }));
  }

  paintCounter(part) {
    const { pane, player } = this, now = counterAt(pane, part.key), unit = unitOf(player, part.key);
    const scale = counterScale(player.panes, part.key);
    part.box.dataset.value = now.value;
    part.value.textContent = unit.show(now.value);
    part.note.textContent = counterNote(part.key, now, pane, unit);
    part.useful.style.width = (100 * now.useful) / scale + "%";
    part.wasted.style.width = (100 * now.wasted) / scale + "%";
    this.paintChip(part, pane.index ? counterAt(player.panes[0], part.key) : null, now, unit);
    part.added.textContent = addedNote(part.key, now, pane, unit, { batch: player.isBatch, why: !part.why.hidden });
  }

  paintChip(part, other, now, unit) {
    const text = other ? unit.difference(other.value, now.value) : "";
    const less = other && now.value < other.value;
    part.chip.textContent = text;
    part.chip.hidden = !text;
    part.chip.className = "chip " + (less ? "agree" : "differ");
    part.why.hidden = part.key !== "modelled-time" || !other || !now.value || !!text || this.player.data.time.kind !== "modelled";
  }
}

// How numbers of one counter are written, the same way in both panes: {show, added, difference, name}.
function unitOf(player, key) {
  const most = counterScale(player.panes, key);
  if (key === "flops-wasted") return scaledUnit(most, [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]]);
  if (key === "modelled-time") return scaledUnit(most / 1000, most < 10_000 ? [[1e-3, "ms"]] : [[1, "s"]]);
  return countUnit(most);
}

// "+3", "−3", "+0".
function signed(number, write) {
  const text = write(Math.abs(number));
  return (number < 0 && /[1-9]/.test(text) ? "−" : "+") + text;
}

function scaledUnit(most, units) {
  const [size, name] = units.find(([each]) => most >= each) || units[units.length - 1];
  const digits = most / size >= 100 && name !== "ms" && name !== "s" ? 0 : most / size >= 1000 ? 0 : 1;
  const round = (value) => value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const show = (value) => {
    const scaled = (name === "ms" || name === "s" ? value / 1000 : value) / size;
    return scaled === 0 ? "0" : round(scaled);
  };
  const shown = (value) => Number(show(value).replaceAll(",", ""));
  const difference = (from, to) => (show(from) === show(to) ? "" : signed(shown(to) - shown(from), round));
  return { show, name, added: (value) => signed(value, show), difference };
}

function countUnit(most) {
  const show = (value) => {
    if (most >= 1e6 && value >= 1e6) return (value / 1e6).toFixed(2) + "M";
    if (most >= 1e5 && value >= 1e3) return (value / 1e3).toLocaleString("en-US", { maximumFractionDigits: value >= 1e5 ? 0 : 1 }) + "k";
    return NUMBER.format(value);
  };
  const percent = (from, to) => `${to < from ? "−" : "+"}${Math.round((100 * Math.abs(to - from)) / Math.max(from, 1))} %`;
  const difference = (from, to) => (from === to ? "" : most >= PERCENT_FROM ? percent(from, to) : signed(to - from, show));
  return { show, name: "", added: (value) => signed(value, show), difference };
}

function counterNote(key, now, pane, unit) {
  if (key === "holes") return `in ${several(now.total, "slot")}`.replace("in no", "in 0");
  if (key === "flops-wasted") return `of ${unit.show(now.total)} ${unit.name}`.trim();
  if (key === "modelled-time") return unit.name;
  if (key === "kv-slots" && !now.wasted) return "0 dead";
  if (key === "kv-slots") return now.total < 10_000 ? `${unit.show(now.wasted)} dead` : `${Math.round((100 * now.wasted) / now.total)} % dead`;
  const finished = pane.counters.rowsFinished[pane.at.step];
  if (finished) return `${NUMBER.format(now.wasted)} wasted`;
  return now.wasted === 1 ? "1 is a pad" : now.wasted ? `${NUMBER.format(now.wasted)} are pads` : "0 pads";
}

function addedNote(key, now, pane, unit, short) {
  const named = (key === "flops-wasted" || key === "modelled-time") && now.added && !short.batch;
  const added = unit.added(now.added) + (named ? ` ${unit.name}` : "");
  if (short.batch || short.why) return added;
  if (key !== "holes") return `${added} this step`;
  const pads = pane.counters.promptPads[pane.at.step];
  return `${added}, ${pads ? "and " : ""}${several(pads, "prompt pad")}`;
}

function counterHelp(key, data, pane) {
  const kernel = "Paper’s per-token kernel: each query loads its row’s slots up to its own, twice per step when any row feeds more than one token (two launches).";
  return {
    "input-rows": "Rows of the dense layers in decode steps. Dotted: pads, and rows fed for finished requests.",
    "kv-slots": `${kernel} Dead: masked slots, and everything that pads load.`,
    holes: "Masked slots that every later step loads again, of the slots that cursors have moved over since the prompt. Prompt pads are counted apart.",
    "flops-wasted": "Work of pads and of finished rows, and attention over dead slots. Rejected drafts are not counted: they had to be tried.",
    "modelled-time": `${data.time.label}: ${data.time.where}. ${data.time.help || ""}`,
  }[key];
}

// Swatch, letter and word of the phases that occur in these traces.
class Legend {
  constructor(player) {
    this.player = player;
    this.node = make("div", { class: "legend" });
  }

  paint() {
    const { player } = this, covers = player.covers, key = `${player.theme.dark} ${player.data.id} ${covers}`;
    if (this.painted === key) return;
    this.painted = key;
    const items = player.phases.map((name) => make("span", {}, swatch(player, name), make("span", { text: player.theme.phases[name].word })));
    const cursor = make("span", {}, make("i", { class: "cursor" }), make("span", { text: "next write" }));
    this.node.replaceChildren(...items, cursor, ...(covers ? [make("span", {}, coverSwatch(player), make("span", { text: "hidden until you answer" }))] : []));
  }
}

function swatch(player, name) {
  const canvas = make("canvas", { "aria-hidden": "true" });
  drawCell(context(canvas, 18, 18), player.theme, name, 1, 1, 16, 16, player.font(9, 700));
  return canvas;
}

function coverSwatch(player) {
  const canvas = make("canvas", { "aria-hidden": "true" });
  drawCover(context(canvas, 18, 18), player, 1, 1, 16, 16);
  return canvas;
}

// Phases that occur in any pane at any sub-step, in the palette's order.
function phasesOf(panes, palette) {
  const used = new Set();
  for (const pane of panes) {
    const { run } = pane;
    for (let step = 0; step < run.steps; step++) {
      for (let row = 0; row < run.rows; row++) addPhases(used, run.at(step, row), run.prompts[row].length, confirmedOf(pane, run.at(step, row)));
    }
  }
  return Object.keys(palette.phases).filter((name) => used.has(name));
}

function addPhases(used, entry, promptLength, confirmed) {
  if (promptLength) used.add("prompt");
  if (entry.nextKind) used.add(entry.nextKind);
  if (entry.kind === "decode") used.add("pending");
  if (entry.drafted) used.add("draft");
  if (entry.accepted) used.add("accepted");
  if (entry.accepted < confirmed) used.add("cut");
  if (confirmed < entry.drafted) used.add("rejected");
  if (entry.holes.length) used.add("hole");
  if (entry.pads || (entry.kind === "prefill" && entry.next > entry.written) || (entry.kind === "finished" && entry.next > entry.start)) used.add("pad");
}
