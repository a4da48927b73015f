// The detail view, for up to 3 rows and 40 slots: text as chips, the fed tokens with their verdicts, every cache cell.

const SMALL = {
  left: 46, right: 22, chipPitch: 28, chip: 24, widest: 150,
  inputCell: 62, inputHeight: 26, inputTop: 16, packedTop: 36, packedHeight: 132, answer: 51,
  cell: 35.5, mostCell: 44, leastCell: 12, cellHeight: 34, mostHeight: 40, cacheTop: 36, cacheGap: 34,
};

// Sizes that both panes share, so that area means the same in both and nothing jumps from step to step.
function smallShape(player, width) {
  const runs = player.panes.map(({ run }) => run), rows = Math.max(...runs.map((run) => run.rows)), room = width - SMALL.left;
  const columns = Math.max(...player.panes.map(({ run, packed }) => (packed ? mostFed(run).total : mostFed(run).row)));
  const slots = Math.max(...runs.map((run) => run.slots)) + 1;
  const cell = Math.min(SMALL.mostCell, Math.max(SMALL.leastCell, (room - SMALL.right) / slots));
  const grown = Math.max(0, (cell - SMALL.cell) / (SMALL.mostCell - SMALL.cell));
  const cellHeight = Math.round(SMALL.cellHeight + grown * (SMALL.mostHeight - SMALL.cellHeight));
  const pitch = player.panes.some(({ packed, shared }) => !packed && !shared) ? 78 : 70;
  const padded = player.panes.some(({ packed }) => !packed) ? SMALL.inputTop + rows * pitch : 0;
  return {
    width, rows, slots, cell, cellHeight, inputPitch: pitch, cachePitch: cellHeight + SMALL.cacheGap,
    shown: Math.min(slots, Math.floor((room - SMALL.right + 0.01) / cell)),
    input: Math.min(SMALL.inputCell, (room - 6) / columns),
    textHeight: rows * SMALL.chipPitch, inputBottom: Math.max(padded, player.panes.some(({ packed }) => packed) ? SMALL.packedHeight : 0),
  };
}

function rowLabel({ font, theme, cursors, run, done }, ctx, row, y) {
  const ended = done >= 0 && run.at(done, row).finished;
  drawText(ctx, font(13, 400), `row ${row}`, 0, y, ended ? theme.chrome.faint : theme.chrome.text);
}

class SmallText extends Section {
  constructor() { super("text", "Text"); }

  paint(scene, shape) {
    const ctx = this.start(shape.width, shape.textHeight), touched = touchedPlaces(scene);
    this.say("committed tokens, newest step outlined");
    const wrong = firstDifference(scene.player, scene.pane);
    for (let row = 0; row < scene.run.rows; row++) {
      const top = row * SMALL.chipPitch + 2;
      rowLabel(scene, ctx, row, top + SMALL.chip / 2);
      for (const chip of this.chips(scene, ctx, row, shape.width - SMALL.left)) {
        ctx.globalAlpha = chip.n < 0 ? 1 : textStrength(scene, touched, row, chip.n);
        this.chip(scene, ctx, chip, top);
        ctx.globalAlpha = 1;
        if (chip.n >= 0) this.finish(scene, ctx, row, chip, top, wrong);
      }
    }
  }

  // The right part of a row's tokens that fits, with places: {n, text, origin, step, x, w}; n = -1 is the ellipsis.
  chips(scene, ctx, row, room) {
    const { font, player } = scene, all = rowTokens(scene.run, row), chips = [], word = font(13.5, 500), letter = font(9, 700);
    let used = 0;
    for (let n = textLength(scene.pane, row) - 1; n >= 0; n--) {
      const token = all[n], text = fitText(ctx, word, trimmed(player, token.word), SMALL.widest), prompt = token.origin === "prompt";
      const wide = textWidth(ctx, word, text), glyph = prompt ? "" : scene.theme.phases[token.origin].glyph;
      const w = prompt ? wide + 4 : wide + textWidth(ctx, letter, glyph) + 14, gap = chips.length ? this.gap(token, all[n + 1]) : 0;
      if (used + w + gap > room - (n ? 20 : 2)) { chips.push({ n: -1, text: "…", w: 12, gap: 6 }); used += 18; break; }
      chips.push({ n, text, glyph, ...token, w, gap });
      used += w + gap;
    }
    let x = SMALL.left + used + (chips.length ? 2 : 0);
    for (const chip of chips) { x -= chip.w + chip.gap; chip.x = x; }
    return chips;
  }

  // Space between a token and the next one.
  gap(token, next) {
    if (next.origin === "prompt") return 8;
    if (token.origin === "prompt") return 5;
    return token.step === next.step ? 3 : 8;
  }

  chip(scene, ctx, { n, text, glyph, origin, step, x, w }, top) {
    const { font, theme } = scene, middle = top + SMALL.chip / 2;
    if (n < 0) return drawText(ctx, font(13.5, 400), text, x, middle, theme.chrome.faint);
    if (origin === "prompt") {
      drawText(ctx, font(13.5, 400), text, x + w / 2, middle, theme.chrome.muted, "center");
      ctx.fillStyle = theme.phases.prompt.line;
      ctx.globalAlpha *= 0.7;
      ctx.fillRect(x, top + SMALL.chip - 3.5, w, 2);
      return;
    }
    const fresh = step === scene.step && scene.stage === 5;
    drawBox(ctx, theme, origin, x, top, w, SMALL.chip, { lineWidth: fresh ? 1.8 : 1.2, lineAlpha: fresh ? 1 : 0.55 });
    cellWord(ctx, theme, origin, font(13.5, 500), text, x + 5, middle, theme.phases[origin].text, "left");
    cellWord(ctx, theme, origin, font(9, 700), glyph, x + w - 4.5, middle + 1.5, glyphColour(theme.phases[origin]), "right");
  }

  finish(scene, ctx, row, { n, x, w }, top, wrong) {
    const item = { kind: "text", row, n };
    this.place(item, x, top, w, SMALL.chip);
    if (sameItem(wrong, item)) {
      ctx.strokeStyle = scene.theme.chrome.differ;
      ctx.lineWidth = 2;
      roundRect(ctx, x - 1, top - 1, w + 2, SMALL.chip + 2, 5);
      ctx.stroke();
    }
    if (sameItem(scene.focus?.source, item)) drawOutline(ctx, scene.theme, x, top, w, SMALL.chip);
  }
}

class SmallInput extends Section {
  constructor() { super("input", "Input"); }

  paint(scene, shape) {
    const ctx = this.start(shape.width, shape.inputBottom), { pane, step, stage } = scene;
    this.say(this.summary(scene), stage >= 4 && step ? "target’s answer below each token" : "");
    if (step === 0) return this.prefill(scene, ctx);
    const placed = this.placed(scene, shape);
    if (pane.packed) this.strip(scene, ctx, shape, placed);
    else this.rectangle(scene, ctx, shape, placed);
    for (const each of placed) this.cell(scene, ctx, shape, each);
    if (stage >= 4) for (const each of placed) this.verdict(scene, ctx, shape, each);
    const source = scene.focus?.source, box = source?.kind === "query" && this.find(source);
    if (box) drawOutline(ctx, scene.theme, box.x, box.y, box.w, box.h);
  }

  summary({ run, pane, step, stage, queries }) {
    if (step === 0) return `prefill: ${several(run.prompts.reduce((sum, prompt) => sum + prompt.length, 0), "prompt token")}, no pads`;
    if (stage === 0) return "drafts proposed, not fed yet";
    const useful = queries.filter(({ kind }) => kind !== "pad").length, rows = `${several(queries.length, "row")}, ${useful} useful`;
    return pane.packed ? `one packed strip: ${rows}` : `${run.rows} × ${queries.length / run.rows} rectangle: ${rows}`;
  }

  prefill({ font, theme }, ctx) {
    drawText(ctx, font(12.5, 400), "Prefill reads every prompt without pads, in all methods, and emits each row’s first token.", SMALL.left, SMALL.inputTop + 13, theme.chrome.muted);
  }

  // Where each fed token stands: packed one after the other, padded in its row's line.
  placed({ queries, pane, stage }, shape) {
    const all = queries.map((query, n) => ({
      query, place: pane.packed ? n : query.index,
      x: SMALL.left + (pane.packed ? n : query.index) * shape.input,
      y: pane.packed ? SMALL.packedTop : SMALL.inputTop + query.row * shape.inputPitch,
    }));
    return stage === 0 ? all.filter(({ query }) => query.kind !== "pad") : all;
  }

  cell(scene, ctx, shape, { query, x, y }) {
    const item = { kind: "query", row: query.row, index: query.index }, inset = shape.input < 30 ? 0.5 : 2, w = shape.input - 2 * inset;
    ctx.globalAlpha = strength(scene, item);
    if (query.kind === "pad") this.pad(scene, ctx, x + inset, y, w);
    else drawTokenCell(ctx, scene.player, query.kind, trimmed(scene.player, query.word), x + inset, y, w, SMALL.inputHeight - 1);
    ctx.globalAlpha = 1;
    this.place(item, x + inset, y, w, SMALL.inputHeight - 1);
  }

  pad({ font, theme }, ctx, x, y, w) {
    drawBox(ctx, theme, "pad", x, y, w, SMALL.inputHeight - 1, { radius: 4 });
    if (w >= 10) cellWord(ctx, theme, "pad", font(11, 400), theme.phases.pad.glyph, x + w / 2, y + 13, theme.chrome.faint);
  }

  slotNumber(scene, ctx, shape, { query, x }, y) {
    const every = tickStep(24, (24 * shape.input) / 18);
    if (query.slot < 0 || scene.stage === 0 || query.slot % every || isCursorCovered(scene.pane, query.row)) return;
    drawText(ctx, scene.font(11, 400), String(query.slot), x + shape.input / 2, y, scene.theme.chrome.faint, "center");
  }

  rectangle(scene, ctx, shape, placed) {
    const { font, theme, pane, run, stage } = scene;
    if (stage > 0) drawText(ctx, font(11, 400), "slot", 0, 7.5, theme.chrome.faint);
    for (let row = 0; row < run.rows; row++) rowLabel(scene, ctx, row, SMALL.inputTop + row * shape.inputPitch + 13);
    const numbered = pane.shared ? placed.filter(({ place }, n) => placed.findIndex((other) => other.place === place && other.query.slot >= 0) === n) : placed;
    for (const each of numbered) this.slotNumber(scene, ctx, shape, each, pane.shared ? 7.5 : each.y - 7.5);
  }

  strip(scene, ctx, shape, placed) {
    const { font, theme: { chrome }, run, step, stage } = scene;
    if (stage > 0) drawText(ctx, font(11, 400), "slot", 0, SMALL.packedTop - 9, chrome.faint);
    if (stage > 0) drawText(ctx, font(11, 400), "cu_seq", 0, SMALL.packedTop + 88, chrome.faint);
    if (stage > 0) this.indices(scene, ctx, shape, placed);
    let start = 0;
    if (stage > 0) this.boundary(scene, ctx, shape, 0, false);
    for (let row = 0; row < run.rows; row++) {
      const entry = run.at(step, row), count = entry.kind === "decode" ? entry.fed.length : 0;
      if (!count) continue;
      const x0 = SMALL.left + start * shape.input + 3, x1 = SMALL.left + (start + count) * shape.input - 3;
      const words = `row ${row}: 1${entry.drafted ? ` + ${several(entry.drafted, "draft")}` : ", no drafts"}`;
      drawBracket(ctx, { x0, x1, y: 12, down: 1, colour: chrome.faint, ink: chrome.text, font: font(12.5, 400), labels: [words, words.replace(/ drafts?$/, ""), `row ${row}`, String(row)] });
      start += count;
      if (stage > 0) this.boundary(scene, ctx, shape, start, start < placed.length);
    }
    for (const each of placed) this.slotNumber(scene, ctx, shape, each, SMALL.packedTop - 8.5);
  }

  // The flat index of every fed token, as far as there is room.
  indices({ font, theme: { chrome } }, ctx, shape, placed) {
    const every = tickStep(24, (24 * shape.input) / 18);
    drawText(ctx, font(11, 400), "index", 0, SMALL.packedTop + 70, chrome.faint);
    for (const { place, x } of placed) if (place % every === 0) drawText(ctx, font(11, 400), String(place), x + shape.input / 2, SMALL.packedTop + 70, chrome.faint, "center");
  }

  // A row's first place in the strip: an ink rule between rows, a triangle, and the value of cu_seqlens.
  boundary(scene, ctx, shape, value, rule) {
    const { theme: { chrome }, font } = scene, x = SMALL.left + value * shape.input, y = SMALL.packedTop + 74;
    ctx.strokeStyle = chrome.ink;
    ctx.lineWidth = 1.3;
    if (rule) drawLine(ctx, crisp(x), SMALL.packedTop - 12, crisp(x), y);
    drawTriangle(ctx, x, y, chrome.ink);
    drawText(ctx, font(12.5, 650), String(value), x, y + 14, chrome.ink, "center");
  }

  verdict(scene, ctx, shape, { query, x, y }) {
    const entry = scene.run.at(scene.step, query.row), { accepted, drafted, emitted } = entry, { index } = query, own = ownAnswer(entry);
    if (coverOf(scene.pane, query.row)) return this.remark(scene, ctx, shape, x, y, "?");
    const confirmed = confirmedOf(scene.pane, entry), cut = isCutAnswer(scene.pane, entry, index);
    const wrong = index < accepted && entry.answers[index] !== entry.fed[index + 1]; // kept by a faulty run
    ctx.globalAlpha = strength(scene, { kind: "query", row: query.row, index });
    if (query.kind === "pad") this.remark(scene, ctx, shape, x, y, "wasted");
    else if (cut) this.struck(scene, ctx, shape, x, y, query.answer);
    else if (index > accepted || (index === accepted && !own)) this.remark(scene, ctx, shape, x, y, "unused");
    else if (index < emitted - 1 || !own) this.answer(scene, ctx, shape, x, y, query.answer, wrong);
    if (index < confirmed) this.judge(scene, ctx, shape, x, y, wrong ? "wrong" : "check");
    else if (cut && index < drafted) this.judge(scene, ctx, shape, x, y, "cross");
    if (index === accepted && own) {
      if (accepted < drafted) this.judge(scene, ctx, shape, x, y, "cross");
      this.ownChip(scene, ctx, shape, x, y, own, query.answer);
    }
    ctx.globalAlpha = 1;
  }

  remark({ font, theme }, ctx, shape, x, y, text) {
    if (textWidth(ctx, font(12, 400), text) > shape.input - 2) return;
    drawText(ctx, font(12, 400), text, x + shape.input / 2, y + SMALL.answer, theme.chrome.muted, "center");
  }

  answer({ font, theme, player }, ctx, shape, x, y, word, wrong) {
    if (shape.input < 20) return;
    const face = [13, 12, 11].map((px) => font(px, 500)).find((each) => textWidth(ctx, each, trimmed(player, word)) <= shape.input - 5) || font(11, 500);
    drawText(ctx, face, fitText(ctx, face, trimmed(player, word), shape.input - 5), x + shape.input / 2, y + SMALL.answer, wrong ? theme.chrome.differ : theme.chrome.text, "center");
  }

  // An answer that was gained and thrown away.
  struck(scene, ctx, shape, x, y, word) {
    const half = Math.min(shape.input - 5, textWidth(ctx, scene.font(13, 500), trimmed(scene.player, word))) / 2, middle = x + shape.input / 2;
    this.answer(scene, ctx, shape, x, y, word, false);
    ctx.strokeStyle = scene.theme.chrome.text;
    ctx.lineWidth = 1.4;
    drawLine(ctx, middle - half - 2, crisp(y + SMALL.answer), middle + half + 2, crisp(y + SMALL.answer));
  }

  ownChip(scene, ctx, shape, x, y, own, word) {
    const inset = shape.input < 30 ? 0.5 : 2;
    drawTokenCell(ctx, scene.player, own, trimmed(scene.player, word), x + inset, y + SMALL.answer - 10.5, shape.input - 2 * inset, 21);
    if (own === "bonus") drawVerdict(ctx, scene.theme, "star", x + shape.input / 2, y + 33.5, Math.min(7, shape.input * 0.2));
  }

  // From the answer to the NEXT draft: the mark stands on the boundary between the two tokens.
  judge({ theme }, ctx, shape, x, y, kind) {
    const middle = x + shape.input / 2, scale = shape.input / SMALL.inputCell;
    ctx.strokeStyle = kind === "wrong" ? theme.chrome.differ : theme.phases[kind === "check" ? "accepted" : "rejected"].line;
    ctx.lineWidth = 1.2;
    const before = ctx.globalAlpha;
    ctx.globalAlpha = before * 0.75;
    drawLine(ctx, middle + 14 * scale, y + 42, middle + shape.input - 13 * scale, y + SMALL.inputHeight + 0.5);
    ctx.globalAlpha = before;
    drawVerdict(ctx, theme, kind, x + shape.input, y + 33.5, Math.min(7, shape.input * 0.2));
  }
}

class SmallCache extends Section {
  constructor() { super("cache", "KV cache"); }

  paint(scene, shape) {
    this.shape = shape;
    const ctx = this.start(shape.width, SMALL.cacheTop + shape.rows * shape.cachePitch - 12);
    this.say(scene.pane.shared ? "one shared write cursor" : "one write cursor per row");
    this.first = this.firstShown(scene, shape);
    this.axis(scene, ctx, shape);
    for (let row = 0; row < scene.run.rows; row++) {
      const top = this.top(shape, row);
      rowLabel(scene, ctx, row, top + shape.cellHeight / 2 + 1);
      for (let slot = this.first; slot < this.first + shape.shown; slot++) this.cell(scene, ctx, shape, row, slot, top);
      this.brackets(scene, ctx, shape, row, top + shape.cellHeight + 7);
    }
    this.cursors(scene, ctx, shape);
    this.outline(scene, ctx);
  }

  top(shape, row) { return SMALL.cacheTop + row * shape.cachePitch; }

  x(shape, slot) { return SMALL.left + (slot - this.first) * shape.cell; }

  // First slot on screen: 0 where all fit, else so that the cursors of both panes are in sight.
  firstShown({ player }, shape) {
    if (shape.shown >= shape.slots) return 0;
    const furthest = Math.max(...player.panes.map(({ run, at }) => {
      const step = Math.max(0, committedStep(at));
      return Math.max(...Array.from({ length: run.rows }, (_, row) => run.at(step, row).next));
    }));
    return Math.min(shape.slots - shape.shown, Math.max(0, furthest - Math.ceil(shape.shown * 0.7)));
  }

  axis({ font, theme }, ctx, shape) {
    drawText(ctx, font(11, 400), "slot", 0, 11, theme.chrome.faint);
    const every = tickStep(shape.shown, (shape.shown * shape.cell) / 19);
    for (let slot = this.first; slot < this.first + shape.shown; slot++)
      if (slot % every === 0) drawText(ctx, font(11, 400), String(slot), this.x(shape, slot) + shape.cell / 2, 11, theme.chrome.faint, "center");
  }

  cell(scene, ctx, shape, row, slot, top) {
    const { grid, player, run } = scene, inside = slot < run.slots, index = row * run.slots + slot, item = { kind: "cell", row, slot };
    const name = !inside ? "free" : isCutOff(scene.pane, grid, row, slot) ? "cut" : STATES[grid.state[index]], inset = shape.cell < 22 ? 0.5 : 1, x = this.x(shape, slot) + inset, w = shape.cell - 2 * inset;
    if (inside && isCoveredSlot(scene.pane, row, slot)) {
      drawCover(ctx, player, x, top, w, shape.cellHeight);
      return this.place(item, x, top, w, shape.cellHeight);
    }
    ctx.globalAlpha = name === "free" ? 1 : strength(scene, item);
    drawTokenCell(ctx, player, name, inside ? trimmed(player, grid.word[index]) : "", x, top, w, shape.cellHeight, 0.63);
    ctx.globalAlpha = 1;
    if (inside) this.place(item, x, top, w, shape.cellHeight);
  }

  // Under the cells that the prompt and each committed step took.
  brackets(scene, ctx, shape, row, y) {
    const { font, theme: { chrome }, run, pane } = scene;
    for (let step = 0; step <= toldStep(pane, row); step++) {
      const entry = run.at(step, row), from = Math.max(step ? entry.start : 0, this.first), to = Math.min(entry.next, this.first + shape.shown);
      if (entry.kind === "finished" || to <= from) continue;
      const labels = step ? [`step ${step}`, String(step)] : ["prompt"];
      drawBracket(ctx, { x0: this.x(shape, from) + 2, x1: this.x(shape, to) - 2, y, down: -1, colour: chrome.control, ink: chrome.muted, font: font(11, 400), labels });
    }
  }

  cursors(scene, ctx, shape) {
    const { run, pane, cursors, theme, font, stage, step, done } = scene, flag = font(12, 650);
    const moved = stage === 5 && step > 0;
    for (let row = 0; row < run.rows; row++) {
      if (isCursorCovered(pane, row)) continue;
      const top = this.top(shape, row), before = moved ? run.at(step - 1, row).next : cursors[row];
      if (before !== cursors[row]) this.ghost(scene, ctx, shape, row, before, top);
      if (pane.shared) continue;
      this.drawCursor(scene, ctx, this.x(shape, cursors[row]), top - 3, top + shape.cellHeight + 4.5);
      drawFlag(ctx, theme, String(cursors[row]), this.x(shape, cursors[row]), top - 18.5, flag, { quiet: run.at(done, row).finished });
    }
    if (!pane.shared || !run.rows || isCursorCovered(pane, 0)) return;
    const x = this.x(shape, cursors[0]);
    this.drawCursor(scene, ctx, x, SMALL.cacheTop - 4, this.top(shape, run.rows - 1) + shape.cellHeight + 4.5);
    drawFlag(ctx, theme, String(cursors[0]), x, SMALL.cacheTop - 19, flag);
  }

  drawCursor({ theme }, ctx, x, y0, y1) {
    ctx.fillStyle = theme.chrome.ink;
    ctx.fillRect(toPixel(x - 1.1), y0, 2.2, y1 - y0);
  }

  cursorLine(row, slot) {
    const { shape } = this;
    if (slot < this.first || slot > this.first + shape.shown) return null;
    return { x: this.x(shape, slot), y: this.top(shape, row) - 3, h: shape.cellHeight + 7.5 };
  }

  // Where the cursor stood before the commit.
  ghost({ theme: { chrome }, pane, cursors, font }, ctx, shape, row, before, top) {
    const x = this.x(shape, before);
    if (before < this.first) return;
    ctx.strokeStyle = chrome.ink;
    ctx.lineWidth = 1.3;
    ctx.setLineDash([2, 2]);
    drawLine(ctx, x, top - 4, x, top + shape.cellHeight + 4);
    ctx.setLineDash([]);
    const flag = textWidth(ctx, font(12, 650), String(cursors[row])) / 2 + 5;
    if (!pane.shared) drawArrow(ctx, x + 3, this.x(shape, cursors[row]) - flag - 3, top - 10.5, chrome.muted);
  }

  outline({ focus, theme }, ctx) {
    const box = focus?.source?.kind === "cell" && this.find(focus.source);
    if (box) drawOutline(ctx, theme, box.x, box.y, box.w, box.h);
  }
}

class SmallView extends PaneView {
  constructor(player, pane) {
    super(player, pane, ...(player.isLesson && pane.index && player.sharesText ? [] : [new SmallText()]), new SmallInput(), new SmallCache());
  }

  paint(focus) {
    const width = this.node.clientWidth;
    if (!width) return;
    const shape = smallShape(this.player, width), scene = sceneOf(this.player, this.pane, focus || attendFocus(this.pane), width);
    for (const section of this.sections) section.paint(scene, shape);
  }
}
