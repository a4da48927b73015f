// The layer over a pane: lines from a query to the cells that it loads, and the short motion after a change of place.
// The canvases below never move, so a state looks the same however it was reached.

const LINKS = { most: 40, stepMs: 180, subMs: 240, holeDelay: 60, mostMarks: 240 };

// cubic-bezier(.2, 0, 0, 1): eased share of a share of time.
function eased(share) {
  let low = 0, high = 1;
  const curve = (t, a, b) => 3 * (1 - t) * (1 - t) * t * a + 3 * (1 - t) * t * t * b + t * t * t;
  for (let n = 0; n < 20; n++) {
    const middle = (low + high) / 2;
    if (curve(middle, 0.2, 0) < share) low = middle;
    else high = middle;
  }
  return curve(low, 0, 1);
}

class Links {
  constructor() {
    this.shown = new WeakMap();
    this.running = new Map();
    this.frame = 0;
  }

  paint(player, pane, view, focus) {
    const before = this.shown.get(pane), place = placeOf(pane), lit = focus || attendFocus(pane);
    const changed = before && before.key !== place.key;
    this.shown.set(pane, place);
    if (!before || changed) this.running.delete(pane);
    if (changed && player.moves) this.start(player, pane, view, motionOf(player, pane, before, place));
    const motion = this.running.get(pane);
    if (motion) motion.focus = lit;
    this.draw(player, pane, view, lit, motion, performance.now());
  }

  start(player, pane, view, motion) {
    this.running.set(pane, { player, view, from: performance.now(), ...motion });
    if (!this.frame) this.frame = requestAnimationFrame((now) => this.step(now));
  }

  step(now) {
    this.frame = 0;
    for (const [pane, motion] of this.running) {
      const over = now - motion.from > motion.ms + LINKS.holeDelay || !pane.node.isConnected;
      if (over) this.running.delete(pane);
      this.draw(motion.player, pane, motion.view, motion.focus, over ? null : motion, now);
    }
    if (this.running.size) this.frame = requestAnimationFrame((next) => this.step(next));
  }

  draw(player, pane, view, focus, motion, now) {
    const { clientWidth: width, clientHeight: height } = pane.node;
    if (!width || (!focus && !motion && this.empty(pane, width, height))) return;
    const ctx = context(pane.overlay, width, height);
    pane.overlay.blank = !focus && !motion;
    if (focus) drawLinks(ctx, player.theme, view, focus);
    if (motion) drawMotion(ctx, player.theme, view, motion, now - motion.from);
  }

  // Whether the layer is already clear and as large as the pane.
  empty({ overlay }, width, height) {
    const ratio = window.devicePixelRatio || 1;
    return overlay.blank && overlay.width === Math.round(width * ratio) && overlay.height === Math.round(height * ratio);
  }
}

// ---- lines

function drawLinks(ctx, theme, view, focus) {
  const fan = focus.source.kind === "query" ? fanOfQuery(view, focus) : fanOfCell(view, focus);
  if (fan.length > LINKS.most) return tint(ctx, theme, fan);
  for (const { from, to, how } of fan.filter(({ how }) => how === "dead")) drawLink(ctx, theme, from, to, how);
  for (const { from, to, how } of fan.filter(({ how }) => how === "visible")) drawLink(ctx, theme, from, to, how);
  for (const { from, to, how } of fan.filter(({ how }) => how === "stale")) drawLink(ctx, theme, from, to, how);
}

function fanOfQuery(view, { source, cells }) {
  const from = view.box(source), fan = [];
  if (!from) return fan;
  for (const [key, how] of cells) {
    const [row, slot] = key.split(".").map(Number), to = view.box({ kind: "cell", row, slot });
    if (to) fan.push({ from, to, how });
  }
  return fan;
}

// From every query that loads the focused cell.
function fanOfCell(view, { queries, cells }) {
  const fan = [];
  for (const [key, how] of cells) {
    const [row, slot] = key.split(".").map(Number), to = view.box({ kind: "cell", row, slot });
    if (!to) continue;
    for (const query of queries) {
      const [of, index] = query.split(".").map(Number), from = view.box({ kind: "query", row: of, index });
      if (from) fan.push({ from, to, how, fromQuery: true });
    }
  }
  return fan;
}

// Too many for lines: what is loaded for nothing gets a tint; the rest stands out because all else is dimmed.
function tint(ctx, theme, fan) {
  ctx.globalAlpha = 0.28;
  ctx.fillStyle = theme.chrome.waste;
  for (const { from, to, how, fromQuery } of fan) {
    const box = fromQuery ? from : to;
    if (how === "dead" && box.w >= 6) ctx.fillRect(box.x, box.y, box.w, box.h);
  }
  ctx.globalAlpha = 1;
}

// A curve from a query's foot to a cell's head: ink and a round end for what is seen, dashed and hollow for weight 0,
// heavy and in the colour of differences for what is seen by mistake.
function drawLink(ctx, theme, from, to, how) {
  const x0 = from.x + from.w / 2, y0 = from.y + from.h + 2, x1 = to.x + to.w / 2, y1 = to.y - 1.5, bend = (y1 - y0) * 0.55;
  const dead = how === "dead", stale = how === "stale", small = to.w < 20, radius = (small ? 1.8 : 2.4) + (stale ? 1 : 0);
  ctx.strokeStyle = ctx.fillStyle = stale ? theme.chrome.differ : dead ? theme.chrome.waste : theme.chrome.ink;
  ctx.lineWidth = stale ? 2 : dead ? 1.1 : 1.3;
  ctx.setLineDash(dead ? [3, 2.5] : []);
  ctx.globalAlpha = dead ? 0.9 : 0.75;
  ctx.beginPath();
  ctx.moveTo(x0, y0);
  ctx.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1 - radius);
  ctx.stroke();
  ctx.setLineDash([]);
  ctx.globalAlpha = 1;
  ctx.beginPath();
  ctx.arc(x1, y1, radius, 0, 2 * Math.PI);
  if (!dead) return ctx.fill();
  ctx.fillStyle = theme.chrome.panel;
  ctx.fill();
  ctx.stroke();
}

// ---- motion

// What a pane shows, as far as motion needs it.
function placeOf(pane) {
  const { run, at } = pane, done = Math.max(0, committedStep(at));
  const rows = Array.from({ length: run.rows }, (_, row) => row);
  return {
    key: `${at.step} ${at.sub}`, step: at.step, stage: SUBSTEPS.indexOf(at.sub), grid: cellsAt(run, at.step, at.sub),
    lengths: rows.map((row) => textLength(pane, row)), cursors: rows.map((row) => run.at(done, row).next),
  };
}

// What changes between two places: {ms, items, cursors}. Items are outlined for a moment, cursors slide.
function motionOf(player, pane, before, now) {
  const items = [], { run } = pane;
  for (let index = 0; index < now.grid.state.length && items.length < LINKS.mostMarks; index++) {
    if (now.grid.state[index] === before.grid.state[index] && now.grid.step[index] === before.grid.step[index]) continue;
    const row = Math.floor(index / run.slots);
    if (coverOf(pane, row)) continue;
    items.push({ item: { kind: "cell", row, slot: index - row * run.slots }, late: now.grid.state[index] === STATE.hole });
  }
  now.lengths.forEach((length, row) => {
    for (let n = before.lengths[row]; n < length && n < before.lengths[row] + 16; n++) items.push({ item: { kind: "text", row, n } });
  });
  if (now.stage <= 1 && now.step > 0) {
    for (const { row, index, kind } of queriesAt(run, now.step)) if ((kind === "pad") === (now.stage === 1)) items.push({ item: { kind: "query", row, index } });
  }
  const cursors = now.cursors.map((to, row) => ({ row, from: before.cursors[row], to })).filter(({ row, from, to }) => from !== to && !isCursorCovered(pane, row));
  return { ms: before.step === now.step ? LINKS.subMs : LINKS.stepMs, items: items.slice(0, LINKS.mostMarks), cursors };
}

function drawMotion(ctx, theme, view, { ms, items, cursors }, time) {
  ctx.strokeStyle = theme.chrome.ink;
  for (const { item, late } of items) {
    const share = Math.min(1, Math.max(0, (time - (late ? LINKS.holeDelay : 0)) / ms)), box = share < 1 && view.box(item);
    if (!box) continue;
    const grown = 0.96 + 0.04 * eased(share), w = box.w * grown, h = box.h * grown;
    ctx.globalAlpha = 0.7 * (1 - eased(share));
    ctx.lineWidth = 1.6;
    roundRect(ctx, box.x + (box.w - w) / 2, box.y + (box.h - h) / 2, w, h, 4);
    ctx.stroke();
  }
  ctx.globalAlpha = 1;
  const share = eased(Math.min(1, Math.max(0, time / ms)));
  for (const { row, from, to } of share < 1 ? cursors : []) {
    const start = view.cursorLine(row, from), end = view.cursorLine(row, to);
    if (!start || !end) continue;
    ctx.fillStyle = theme.chrome.ink;
    ctx.fillRect(start.x + (end.x - start.x) * share - 1.1, end.y, 2.2, end.h);
  }
}
