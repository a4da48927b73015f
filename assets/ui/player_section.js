// One part of a pane: heading, canvas, and where on it each item was drawn. And what a painter knows of one state.

class Section {
  constructor(name, title) {
    const make = (tag, className, ...children) => {
      const element = document.createElement(tag);
      element.className = className;
      element.append(...children);
      return element;
    };
    this.name = name;
    this.title = title;
    this.note = make("span", "part-note");
    this.right = make("span", "part-right");
    this.canvas = make("canvas", "part-canvas");
    this.canvas.setAttribute("aria-hidden", "true");
    this.canvas.dataset.part = name;
    this.node = make("div", "part part-" + name, make("div", "part-head", make("b", "part-title", title), this.note, this.right), this.canvas);
    this.boxes = [];
  }

  start(width, height) {
    this.boxes.length = 0;
    return context(this.canvas, width, height);
  }

  say(note, right = "") {
    if (this.note.textContent !== note) this.note.textContent = note;
    if (this.right.textContent !== right) this.right.textContent = right;
  }

  place(item, x, y, w, h) {
    this.boxes.push({ item, x, y, w, h });
  }

  hit(x, y) {
    return this.boxes.find((box) => x >= box.x && x < box.x + box.w && y >= box.y && y < box.y + box.h)?.item || null;
  }

  find(item) {
    return this.boxes.find((box) => sameItem(box.item, item)) || null;
  }
}

// An item is a cell {row, slot}, a fed token {row, index} or a token of the text {row, n}.
function sameItem(one, other) {
  return !!one && !!other && one.kind === other.kind && one.row === other.row && one.slot === other.slot && one.index === other.index && one.n === other.n;
}

// What the small and the batch view have in common: sections, hit testing, boxes.
class PaneView {
  constructor(player, pane, ...sections) {
    this.player = player;
    this.pane = pane;
    this.sections = sections;
    this.node = document.createElement("div");
    this.node.className = "view";
    this.node.append(...sections.map((section) => section.node));
    this.canvases = sections.map(({ canvas, title }) => ({ canvas, name: title }));
  }

  hit(canvas, x, y) {
    return this.sections.find((section) => section.canvas === canvas)?.hit(x, y) || null;
  }

  // CSS pixels relative to the pane's node, where it is drawn last; null when the item is not drawn.
  box(item) {
    for (const section of this.sections.slice().reverse()) {
      const found = section.node.hidden ? null : section.find(item);
      if (!found) continue;
      return { w: found.w, h: found.h, ...this.toPane(section, found) };
    }
    return null;
  }

  // Where a row's cursor line stands before a slot, relative to the pane's node: {x, y, h}; null when not on screen.
  cursorLine(row, slot) {
    const section = this.sections.find((each) => each.cursorLine && !each.node.hidden), found = section?.cursorLine(row, slot);
    return found ? { ...found, ...this.toPane(section, found) } : null;
  }

  toPane({ canvas }, { x, y }) {
    const at = canvas.getBoundingClientRect(), { node } = this.pane, pane = node.getBoundingClientRect();
    return { x: at.left - pane.left - node.clientLeft + x, y: at.top - pane.top - node.clientTop + y };
  }
}

// One state of one pane, as all painters need it. `stage` is the number of the sub-step, `done` the last committed step.
function sceneOf(player, pane, focus, width) {
  const { run, at: { step, sub } } = pane, { theme, font } = player;
  const stage = SUBSTEPS.indexOf(sub), done = committedStep(pane.at), grid = cellsAt(run, step, sub);
  const cursors = Array.from({ length: run.rows }, (_, row) => (done < 0 ? 0 : run.at(done, row).next));
  return { player, pane, theme, font, run, step, sub, stage, done, grid, cursors, focus, width, queries: queriesAt(run, step) };
}

// The query that the narration of "attend" speaks of, the same in every layout: the one that a lesson asks for as
// [row, index]; else the first draft, or the pending token, of the first row with the fewest cached tokens.
function narratedQuery(run, step, [told, index] = [-1, 1]) {
  const live = Array.from({ length: run.rows }, (_, row) => ({ row, entry: run.at(step, row) })).filter(({ entry }) => entry.kind === "decode");
  if (!live.length) return null;
  const asked = live.find(({ row }) => row === told), least = live.reduce((best, each) => (each.entry.first < best.entry.first ? each : best));
  const { row, entry } = asked || least, place = Math.min(entry.drafted, asked ? index : 1);
  return queriesAt(run, step).find((query) => query.row === row && query.index === place) || null;
}

// While nothing else is pointed at, "attend" lights up the query that is told of; null at other sub-steps.
function attendFocus(pane) {
  const { run, at: { step, sub } } = pane, query = sub === "attend" && step > 0 ? narratedQuery(run, step, pane.told) : null;
  if (!query || coverOf(pane, query.row)) return null;
  const { visible, dead, stale } = readsOf(run, step, query), cells = new Map();
  for (const slot of visible) cells.set(`${query.row}.${slot}`, "visible");
  for (const slot of dead) cells.set(`${query.row}.${slot}`, "dead");
  for (const slot of stale) cells.set(`${query.row}.${slot}`, "stale");
  return { queries: new Set([`${query.row}.${query.index}`]), cells, source: { kind: "query", row: query.row, index: query.index } };
}

// Whether all panes put out the same tokens in every step, so that one text serves them all.
function shareText([first, ...others]) {
  const same = (run) => run.emitted.every((counts, step) => counts.every((count, row) => count === first.run.emitted[step][row]));
  return !first.differs && others.every(({ run, differs }) => !differs && run.steps === first.run.steps && same(run));
}

// How strong an item is drawn: what the focus does not touch steps back.
function strength({ focus }, item) {
  if (!focus) return 1;
  const key = `${item.row}.${item.kind === "cell" ? item.slot : item.index}`;
  const touched = item.kind === "cell" ? focus.cells.has(key) : item.kind === "query" ? focus.queries.has(key) : false;
  return touched || sameItem(focus.source, item) ? 1 : DIMMED;
}

// [rows] sets of places in the text that the focused cells hold: which tokens of the text the focus touches. null: no focus.
function touchedPlaces({ focus, grid, run }) {
  if (!focus) return null;
  const touched = Array.from({ length: grid.rows }, () => new Set());
  for (const [key, how] of focus.cells) {
    const [row, slot] = key.split(".").map(Number), place = textPlace(run, grid, row, slot);
    if (how === "visible" && place >= 0) touched[row].add(place);
  }
  return touched;
}

function textStrength({ focus }, touched, row, n) {
  return !focus || touched[row].has(n) || sameItem(focus.source, { kind: "text", row, n }) ? 1 : DIMMED;
}

// All tokens of each row with origin and step, prompt first; built once per run, `textLength` says how many are committed.
function rowTokens(run, row) {
  const known = (run.texts ||= []);
  if (known[row]) return known[row];
  const tokens = run.prompts[row].map((word) => ({ word, origin: "prompt", step: -1 }));
  for (let step = 0; step < run.steps; step++) {
    const entry = run.at(step, row);
    entry.emittedWords.forEach((word, n) => tokens.push({ word, origin: originOf(entry, n), step }));
  }
  return (known[row] = tokens);
}

function textLength(pane, row) {
  const told = toldStep(pane, row);
  return pane.run.prompts[row].length + (told < 0 ? 0 : pane.run.emitted[told][row]);
}

// The first token that is not the baseline's, as item of a text; null where all agree so far.
function firstDifference(player, pane) {
  const differs = player.panes.map((each) => each.differs).find(Boolean);
  if (!differs || differs.row >= pane.run.rows) return null;
  return { kind: "text", row: differs.row, n: pane.run.prompts[differs.row].length + differs.token - 1 };
}

// A token's text without the space before it; a token of spaces alone stays visible.
function trimmed(player, word) {
  return word < 0 ? "" : player.data.words[word].trim() || "␣";
}

// Most tokens that a row, and that all rows together, are fed in one step of a run: {row, total}.
function mostFed(run) {
  if (run.fed) return run.fed;
  run.fed = { row: 1, total: 1 };
  for (let step = 1; step < run.steps; step++) {
    let total = 0;
    for (let row = 0; row < run.rows; row++) {
      const entry = run.at(step, row), fed = (entry.kind === "decode" ? entry.fed.length : 0) + entry.pads;
      run.fed.row = Math.max(run.fed.row, fed);
      total += fed;
    }
    run.fed.total = Math.max(run.fed.total, total);
  }
  return run.fed;
}

// Which token the row emits itself at the end of its verification: plain, recovered or bonus; null when a draft ended it.
function ownAnswer(entry) {
  if (entry.emitted <= entry.accepted) return null;
  return entry.drafted === 0 ? "plain" : entry.accepted === entry.drafted ? "bonus" : "recovered";
}
