// What a step looks like: sentence, counters, verdicts, texts, input strip, all slots, and the slots around the cursors.

const COUNTERS = [
  { key: "input-rows", label: "Input rows fed", help: "Rows of the dense layers, decode steps only. Dotted: pads, and rows fed for finished requests." },
  { key: "kv-slots", label: "KV slots scanned", help: "Per-token kernel of the paper: each query scans its row's slots up to its own. Hatched: dead slots, and slots scanned by pads." },
  { key: "holes", label: "Holes so far", help: "Masked slots that every later step scans again. Prompt padding is not counted here." },
  { key: "decode-time", label: "Decode time", help: "Measured time of this method's own decode steps, prefill left out." },
];
const ORIGINS = ["prompt", "plain", "accepted", "recovered", "bonus"];
const TAIL = 34;

function several(count, word) {
  return `${NUMBER.format(count)} ${word}${count === 1 ? "" : "s"}`;
}

function shorten(ctx, text, width) {
  if (ctx.measureText(text).width <= width) return text;
  let end = text.length;
  while (end && ctx.measureText(text.slice(0, end) + "…").width > width) end--;
  return text.slice(0, end) + "…";
}

Object.assign(Player.prototype, {
  paint() {
    if (!this.root.isConnected || !this.board.clientWidth) return;
    const style = getComputedStyle(this.root);
    this.theme = makeTheme(this.data.palette, getComputedStyle(this.probe || this.root).colorScheme.includes("dark") || isDark(style));
    this.font = (px, weight = 400) => `${weight} ${px}px ${style.fontFamily}`;
    for (const pane of this.panes) this.paintPane(pane);
    this.paintLegend();
    this.root.dataset.step = this.step;
    this.root.dataset.substep = "commit";
    this.root.dataset.ready = "1";
  },

  paintPane(pane) {
    const step = Math.min(this.step, pane.last), parts = pane.parts;
    parts.story.replaceChildren(...this.story(pane).map(([text, bold]) => make(bold ? "b" : "span", { text })));
    this.paintSpeed(pane, step);
    this.paintCounters(pane, step);
    const width = pane.node.querySelector(".cache").clientWidth;
    this.paintVerdicts(pane, step);
    for (const row of this.data.rows.keys()) this.paintTail(pane, step, row);
    for (const tail of parts.texts) tail.scrollLeft = tail.scrollWidth;
    this.paintStrip(pane, step, width);
    this.paintMap(pane, step, width);
    this.paintNear(pane, step, width);
    pane.node.dataset.step = step;
  },

  paintSpeed(pane, step) {
    const factor = pane.speed[step], node = pane.parts.speed;
    if (!pane.speed.length || step === 0) return node.replaceChildren(make("span", { class: "muted", text: pane.speed.length ? "" : "no baseline" }));
    const sofar = step < pane.last ? ", so far" : "";
    if (pane.isBaseline) return node.replaceChildren(make("span", { class: "muted", text: "the baseline of the speed-ups" }));
    if (factor === null) return node.replaceChildren(make("span", { class: "muted", text: "greedy has not come this far" }));
    node.title = pane.baseline;
    node.classList.toggle("invalid", !!pane.differs);
    node.replaceChildren(make("b", { text: factor.toFixed(2) + "×" }), make("span", { class: "muted", text: pane.differs ? " output differs" : " vs greedy, measured" + sofar }));
  },

  paintCounters(pane, step) {
    const at = (name, where = pane) => where.counters[name][Math.min(step, where.last)];
    const most = (names) => Math.max(...this.panes.map((each) => names.reduce((sum, name) => sum + each.counters[name][each.last], 0)), 1e-9);
    const rows = ["input_useful", "input_pad", "input_finished"], slots = ["slots_useful", "slots_dead", "slots_pad_query"];
    const show = (key, value, note, shares, top, unit = "") => {
      const part = pane.parts[key];
      part.box.dataset.value = value;
      part.value.textContent = (key === "decode-time" ? (value / 1000).toFixed(2) : NUMBER.format(value)) + unit;
      part.note.textContent = note;
      part.bar.querySelectorAll("i").forEach((bar, index) => { bar.style.width = (100 * (shares[index] || 0)) / top + "%"; });
    };
    const total = (names) => names.reduce((sum, name) => sum + at(name), 0);
    const wasted = at("input_finished") ? several(at("input_pad"), "pad") + ", " + NUMBER.format(at("input_finished")) + " finished" : several(at("input_pad"), "pad");
    show("input-rows", total(rows), wasted, [at(rows[0]), at(rows[1]) + at(rows[2])], most(rows));
    const dead = at("slots_dead") + at("slots_pad_query");
    show("kv-slots", total(slots), total(slots) ? `${Math.round((100 * dead) / total(slots))} % dead` : "none dead", [at("slots_useful"), 0, dead], most(slots));
    show("holes", at("holes"), "", [0, 0, at("holes")], most(["holes"]));
    const tokens = pane.verdicts.slice(1, step + 1).flat().reduce((sum, row) => sum + row[3], 0);
    show("decode-time", at("ms"), several(tokens, "token"), [at("ms")], most(["ms"]), " s");
  },

  fedMost() {
    return Math.max(1, ...this.panes.flatMap((pane) => pane.verdicts.slice(1).flat().map((row) => (row[0] ? 1 + row[1] : 0) + row[4])));
  },

  paintVerdicts(pane, step) {
    const size = this.fedMost() > 10 ? 12 : 15, rows = pane.verdicts[step];
    const ctx = context(pane.parts.verdicts, this.fedMost() * size + 8, rows.length * LINE);
    for (const [row, [live, drafted, accepted, , pads]] of rows.entries()) {
      if (step === 0) continue;
      const names = live ? ["pending", ...Array(accepted).fill("accepted"), ...Array(drafted - accepted).fill("rejected")] : [];
      names.push(...Array(pads).fill("pad"));
      names.forEach((name, index) => drawCell(ctx, this.theme, name, index * size, row * LINE + 2, size - 1, 14, this.font(9, 700)));
      if (!names.length) this.say(ctx, "fed nothing", 0, row * LINE + 9, this.theme.chrome.faint, 11);
    }
  },

  say(ctx, text, x, y, colour, px = 12, align = "left", weight = 400) {
    ctx.font = this.font(px, weight);
    ctx.fillStyle = colour;
    ctx.textAlign = align;
    ctx.textBaseline = "middle";
    ctx.fillText(text, x, y);
  },

  paintTail(pane, step, row) {
    const flat = pane.texts[row], spans = [];
    for (let i = flat.length - 3; i >= 0 && spans.length < TAIL; i -= 3)
      if (flat[i + 2] <= step) spans.unshift(make("bdi", { class: `o-${ORIGINS[flat[i + 1]]}${flat[i + 2] === step ? " new" : ""}`, text: this.data.words[flat[i]] }));
    pane.parts.texts[row].replaceChildren(...spans);
    const [live, , , emitted, pads, , finished] = pane.verdicts[step][row];
    const gain = live ? `+${emitted}${finished ? " ends" : ""}` : pads ? "finished, still fed" : "finished";
    pane.parts.gains[row].textContent = step || finished ? gain : "+1";
    pane.parts.gains[row].classList.toggle("muted", !live);
  },

  paintStrip(pane, step, width) {
    const canvas = pane.parts.strip, note = pane.parts.stripNote;
    const size = (rows) => rows.reduce((sum, row) => sum + (row[0] ? 1 + row[1] : 0) + row[4], 0);
    const most = Math.max(1, ...this.panes.flatMap((each) => each.verdicts.slice(1).map(size)));
    const unit = Math.min(13, (width - LABEL) / most), ctx = context(canvas, width, 16), rows = pane.verdicts[step];
    const fed = step ? size(rows) : 0;
    this.say(ctx, pane.packed ? "packed strip" : `${rows.length} × ${step ? fed / rows.length : 0} block`, 0, 8, this.theme.chrome.muted);
    if (!step) { note.textContent = "Prefill feeds every prompt without padding, in all methods."; return; }
    let x = LABEL;
    for (const [live, drafted, , , pads] of rows) {
      const draw = (name, count) => {
        if (count) { drawRun(ctx, this.theme, name, x, 2, count * unit, 12); x += count * unit; }
      };
      ctx.fillStyle = this.theme.chrome.ink;
      if (live || pads) ctx.fillRect(x - 0.75, 0, 1.5, 16);
      if (live) draw("pending", 1);
      draw("draft", drafted);
      draw("pad", pads);
    }
    ctx.fillStyle = this.theme.chrome.ink;
    ctx.fillRect(x - 0.75, 0, 1.5, 16);
    const pads = rows.reduce((sum, row) => sum + (row[0] ? row[4] : 0), 0), finished = rows.reduce((sum, row) => sum + (row[0] ? 0 : row[4]), 0);
    const why = [pads && several(pads, "input pad"), finished && `${finished} for finished rows`].filter(Boolean).join(", ");
    note.textContent = why ? `${pads + finished} of ${several(fed, "input row")} carry no token: ${why}.` : `${several(fed, "input row")}, no pads.`;
  },

  paintMap(pane, step, width) {
    const grid = this.cells(pane), names = this.data.states, rows = this.data.rows, slots = this.data.slots;
    const right = pane.shared ? 16 : 40, unit = (width - LABEL - right) / (slots + 1), x = (slot) => LABEL + slot * unit;
    const ctx = context(pane.parts.map, width, 18 + rows.length * MAP_LINE), { chrome } = this.theme;
    const every = tickStep(slots, Math.floor((width - LABEL) / 60));
    this.say(ctx, "slot", 0, 8, chrome.faint, 11);
    const cursor = pane.verdicts[step][0][5];
    for (let slot = 0; slot <= slots; slot += every)
      if (!pane.shared || Math.abs(x(slot) - x(cursor)) > 26) this.say(ctx, String(slot), x(slot), 8, chrome.faint, 11, "center");
    for (const [row, cells] of grid.entries()) {
      const y = 18 + row * MAP_LINE;
      ctx.font = this.font(11.5);
      this.say(ctx, shorten(ctx, rows[row], LABEL - 8), 0, y + 5, chrome.muted, 11.5);
      ctx.fillStyle = chrome.sunk;
      ctx.fillRect(LABEL, y, x(slots) - LABEL, 10);
      for (let slot = 0; slot < slots; ) {
        let end = slot + 1;
        while (end < slots && cells[end][0] === cells[slot][0]) end++;
        drawRun(ctx, this.theme, names[cells[slot][0]], x(slot), y, (end - slot) * unit, 10);
        slot = end;
      }
      if (!pane.shared) this.paintOwnCursor(ctx, pane.verdicts[step][row], x, y);
    }
    if (!pane.shared) return;
    ctx.fillStyle = chrome.ink;
    ctx.fillRect(x(cursor) - 1.1, 15, 2.2, rows.length * MAP_LINE + 3);
    drawFlag(ctx, this.theme, String(cursor), x(cursor), 0, this.font(11, 650));
  },

  paintOwnCursor(ctx, verdict, x, y) {
    const { chrome } = this.theme, finished = verdict[6];
    ctx.fillStyle = finished ? chrome.faint : chrome.ink;
    ctx.fillRect(x(verdict[5]) - 1.1, y - 1, 2.2, 12);
    this.say(ctx, (finished ? "end " : "") + verdict[5], x(verdict[5]) + 6, y + 5, finished ? chrome.faint : chrome.text, 11);
  },

  window(width) {
    const fits = Math.floor((width - LABEL - 48) / CELL);
    const before = Math.max(8, Math.min(56, fits - AFTER));
    return { before, count: before + AFTER };
  },

  paintNear(pane, step, width) {
    const grid = this.cells(pane), { before, count } = this.window(width), rows = this.data.rows, { chrome } = this.theme;
    const ctx = context(pane.parts.near, width, rows.length * 16 + 2);
    for (const [row, cells] of grid.entries()) {
      const cursor = pane.verdicts[step][row][5], y = row * 16;
      ctx.font = this.font(11.5);
      this.say(ctx, shorten(ctx, rows[row], LABEL - 8), 0, y + 8, chrome.muted, 11.5);
      for (let n = 0; n < count; n++) {
        const slot = cursor - before + n;
        if (slot < 0 || slot >= this.data.slots) continue;
        drawCell(ctx, this.theme, this.data.states[cells[slot][0]], LABEL + n * CELL, y + 1, CELL - GAP, 14, this.font(9, 700));
      }
      ctx.fillStyle = pane.verdicts[step][row][6] ? chrome.faint : chrome.ink;
      ctx.fillRect(LABEL + before * CELL - 1.7, y, 2.2, 16);
      const flagged = LABEL + count * CELL + 24;
      if (pane.verdicts[step][row][6]) this.say(ctx, "end " + cursor, flagged, y + 8, chrome.faint, 11, "center");
      else drawFlag(ctx, this.theme, String(cursor), flagged, y + 0.5, this.font(11, 650));
    }
  },

  cellNear(pane, px, py) {
    const width = pane.parts.near.clientWidth, { before, count } = this.window(width);
    const row = Math.floor(py / 16), n = Math.floor((px - LABEL) / CELL);
    if (n < 0 || n >= count || !this.data.rows[row]) return null;
    return { row, slot: pane.verdicts[Math.min(this.step, pane.last)][row][5] - before + n };
  },

  cellInMap(pane, px, py) {
    const width = pane.parts.map.clientWidth, unit = (width - LABEL - (pane.shared ? 16 : 40)) / (this.data.slots + 1);
    return { row: Math.floor((py - 18) / MAP_LINE), slot: Math.floor((px - LABEL) / unit) };
  },

  hover(canvas, pane, locate) {
    canvas.addEventListener("pointerleave", () => { this.tip.style.display = "none"; });
    canvas.addEventListener("pointermove", (event) => {
      const found = locate(event.offsetX, event.offsetY), cell = found && this.cells(pane)[found.row]?.[found.slot];
      this.tip.style.display = cell ? "block" : "none";
      if (!cell) return;
      const [state, word, position, written] = cell, name = this.data.states[state];
      const lines = [`${this.data.rows[found.row]}, slot ${found.slot}: ${this.theme.phases[name].word}`];
      if (word >= 0) lines.push(`holds “${this.data.words[word]}”` + (position ? `, position ${position - 1}` : ""));
      if (written >= 0) lines.push(`as of step ${written}`);
      this.tip.textContent = lines.join("\n");
      const box = this.root.getBoundingClientRect();
      this.tip.style.left = Math.min(event.clientX - box.left + 14, box.width - 230) + "px";
      this.tip.style.top = event.clientY - box.top + 16 + "px";
    });
  },

  paintLegend() {
    const dark = String(this.theme.dark) + this.data.id;
    if (this.legend.dataset.drawn === dark) return;
    this.legend.dataset.drawn = dark;
    const used = new Set(["pending"]);
    for (const pane of this.panes) for (const flat of pane.changes) for (let i = 2; i < flat.length; i += 5) used.add(this.data.states[flat[i]]);
    for (const pane of this.panes) for (const row of pane.verdicts.slice(1).flat()) if (row[4]) used.add("pad");
    const items = Object.keys(this.theme.phases).filter((name) => used.has(name) && name !== "free").map((name) => {
      const canvas = make("canvas");
      drawCell(context(canvas, 18, 16), this.theme, name, 1, 1, 16, 14, this.font(9, 700));
      return make("span", {}, canvas, make("span", { text: this.theme.phases[name].word }));
    });
    this.legend.replaceChildren(...items, make("span", {}, make("i", { class: "cursor" }), make("span", { text: "next write" })));
  },
});

function isDark(style) {
  const [red, green, blue] = (style.getPropertyValue("--st-background-color").trim().match(/\w\w/g) || ["ff", "ff", "ff"]).map((part) => parseInt(part, 16));
  return 0.3 * red + 0.59 * green + 0.11 * blue < 128;
}

export default function (component) {
  const { data, parentElement } = component;
  const root = parentElement.querySelector(".player");
  if (root.player) root.player.load(data);
  else root.player = new Player(root, data);
  return () => root.isConnected || root.player.pause();
}
