// The batch view, for everything larger: verdicts and text by row, the input to scale, all slots, slots around the cursors.

const BATCH = {
  label: 112, number: 22, narrow: 340, labelGap: 8, leastTitle: 30, line: 19, verdict: 15, verdictHeight: 15, textGap: 15, leastText: 170, strip: 9, stripHeight: 14, below: 46,
  mapLine: 12, mapBar: 10, mapTop: 15, near: 13.5, nearLine: 15, after: 8, flag: 32, leastSlots: 12, mostSlots: 64, mostCell: 44, mostHeight: 40, endRoom: 52,
};

// Sizes that all panes share. A narrow pane has room for the rows' numbers, not for their titles.
function batchShape(player, width) {
  const label = width < BATCH.narrow ? BATCH.number : BATCH.label;
  const runs = player.panes.map(({ run }) => run), room = width - label;
  const fed = Math.max(...runs.map((run) => mostFed(run).row)), total = Math.max(...runs.map((run) => mostFed(run).total));
  const verdict = Math.max(4, Math.min(BATCH.verdict, Math.floor((room - BATCH.leastText) / fed)));
  const near = room - BATCH.flag - 6, count = Math.min(BATCH.mostSlots, Math.max(BATCH.leastSlots, Math.floor(near / BATCH.near + 0.01)));
  const pitch = Math.min(BATCH.mostCell, near / count), nearHeight = pitch < 22 ? BATCH.nearLine - 1 : Math.min(BATCH.mostHeight, Math.round(pitch * 0.9));
  return {
    width, label, verdict, textLeft: label + fed * verdict + BATCH.textGap, strip: Math.min(BATCH.strip, room / total),
    slots: Math.max(...runs.map((run) => run.slots)), count, before: count - BATCH.after, pitch, nearHeight, nearLine: nearHeight + 1,
  };
}

// A row's number, by which everything else calls it, and its title.
function batchLabel({ font, theme, player, run, step }, ctx, row, y, px, width) {
  const face = font(px, 400), finished = run.at(step, row).kind === "finished", title = player.data.rows[row] ?? "";
  const left = textWidth(ctx, face, String(run.rows - 1)) + 6;
  drawText(ctx, face, String(row), left - 6, y, theme.chrome.faint, "right");
  const room = width - BATCH.labelGap - left;
  if (room > BATCH.leastTitle) drawText(ctx, face, fitText(ctx, face, title, room), left, y, finished ? theme.chrome.faint : theme.chrome.text);
}

// Titles that were cut off are told in full where the pointer rests on them.
function tellTitles(player, section) {
  section.canvas.addEventListener("pointermove", (event) => {
    const row = section.rowAt(event.offsetY), name = event.offsetX < section.label - BATCH.labelGap && player.data.rows[row];
    const title = name ? `row ${row}: ${name}` : "";
    if (section.canvas.title !== title) section.canvas.title = title;
  });
}

class BatchInput extends Section {
  constructor(player) {
    super("rows", "Input and text");
    tellTitles(player, this);
  }

  rowAt(y) { return Math.floor(y / BATCH.line); }

  paint(scene, shape) {
    const { run, stage, step } = scene, ctx = this.start(shape.width, run.rows * BATCH.line + BATCH.below);
    this.label = shape.label;
    this.say(stage >= 4 && step ? "verdict per token, newest text in ink" : "fed tokens, newest text in ink", stage === 5 ? "gain this step" : "");
    const touched = touchedPlaces(scene), wrong = firstDifference(scene.player, scene.pane);
    for (let row = 0; row < run.rows; row++) {
      const y = row * BATCH.line + BATCH.line / 2;
      batchLabel(scene, ctx, row, y, 13, this.label);
      this.fed(scene, ctx, shape, row, y);
      const right = this.gain(scene, ctx, shape, row, y);
      this.tail(scene, ctx, row, y, shape.textLeft, right, touched, wrong);
    }
    this.strip(scene, ctx, shape, run.rows * BATCH.line + 12.5);
    const source = scene.focus?.source, box = source && this.find(source);
    if (box) drawOutline(ctx, scene.theme, box.x, box.y, box.w, box.h);
  }

  fed(scene, ctx, shape, row, y) {
    const { font, theme, queries, stage, step, run } = scene, size = shape.verdict, top = y - BATCH.verdictHeight / 2;
    const mine = queries.filter((query) => query.row === row && (stage > 0 || query.kind !== "pad"));
    const stamp = cellStamp(ctx, theme, size - 1.2, BATCH.verdictHeight, font(9, 700));
    for (const query of mine) {
      const item = { kind: "query", row, index: query.index }, x = this.label + query.index * size;
      ctx.globalAlpha = strength(scene, item);
      stamp(coverOf(scene.pane, row) ? query.kind : this.phase(query, stage), x, top);
      ctx.globalAlpha = 1;
      this.place(item, x, top, size - 1.2, BATCH.verdictHeight);
    }
    if (mine.length) return;
    const kind = run.at(step, row).kind, room = shape.textLeft - this.label - 6;
    const text = kind === "prefill" ? several(run.prompts[row].length, "prompt token") : stage === 0 && kind === "finished" ? "finished" : "finished, fed nothing";
    drawText(ctx, font(12, 400), fitText(ctx, font(12, 400), text, room), this.label, y, theme.chrome.faint);
  }

  // Letter of a fed token: its verdict once the target has answered.
  phase({ kind, verdict }, stage) {
    if (kind !== "draft" || stage < 4) return kind;
    return verdict === "accepted" ? "accepted" : "rejected";
  }

  // What the row gained, known at commit; returns where the text must end.
  gain({ run, pane, step, stage, font, theme }, ctx, shape, row, y) {
    const entry = run.at(step, row), live = entry.kind !== "finished";
    const covered = coverOf(pane, row), text = covered ? "?" : !live ? (entry.pads ? "finished, still fed" : "finished") : stage < 5 ? "" : `+${entry.emitted}${entry.finished ? ", ends" : ""}`;
    const face = live ? font(13, 650) : font(12, 400);
    drawText(ctx, face, text, shape.width, y, live ? theme.chrome.ink : theme.chrome.muted, "right");
    return shape.width - Math.max(34, textWidth(ctx, face, text) + 12);
  }

  // The right part of the row's text that fits, with underlines that tell each token's origin.
  tail(scene, ctx, row, y, left, right, touched, wrong) {
    const { player, pane, font, step, stage, theme } = scene, tokens = rowTokens(scene.run, row), shown = [];
    const dots = textWidth(ctx, font(13, 400), "…") + 1;
    let used = 0, n = textLength(pane, row) - 1;
    for (; n >= 0; n--) {
      const { word, origin, step: since } = tokens[n], fresh = since === step && stage === 5, face = font(13, fresh ? 500 : 400);
      const text = fitText(ctx, face, player.data.words[word], 220), w = textWidth(ctx, face, text);
      if (used + w > right - left - (n ? dots : 0)) break;
      used += w;
      shown.push({ n, text, w, origin, fresh, face });
    }
    if (n >= 0) drawText(ctx, font(13, 400), "…", left, y, theme.chrome.muted);
    const first = shown[shown.length - 1], bare = first ? first.text.trimStart() : "";
    if (bare) Object.assign(first, { text: bare, w: textWidth(ctx, first.face, bare) });
    let x = left + (n >= 0 ? dots : 0);
    for (const token of shown.reverse()) {
      token.x = x;
      token.strength = textStrength(scene, touched, row, token.n);
      token.wrong = sameItem(wrong, { kind: "text", row, n: token.n });
      this.place({ kind: "text", row, n: token.n }, x, y - 8, token.w, 17);
      x += token.w;
    }
    this.words(scene, ctx, shown, y);
    for (const token of shown) this.underline(scene, ctx, token, y);
    ctx.globalAlpha = 1;
  }

  // Words that look the same are drawn together.
  words({ theme }, ctx, tokens, y) {
    for (let start = 0; start < tokens.length; ) {
      const { face, strength: alpha, wrong, fresh, x } = tokens[start];
      let end = start, text = "";
      while (end < tokens.length && tokens[end].face === face && tokens[end].strength === alpha && tokens[end].wrong === wrong) text += tokens[end++].text;
      ctx.globalAlpha = alpha;
      drawText(ctx, face, text, x, y, wrong ? theme.chrome.differ : fresh ? theme.chrome.ink : theme.chrome.muted);
      start = end;
    }
  }

  underline({ theme, font }, ctx, { text, x, w, origin, fresh, wrong, strength: alpha }, y) {
    const space = text.length - text.trimStart().length, indent = space ? textWidth(ctx, font(13, 400), text.slice(0, space)) : 0;
    const long = w - indent - 0.8;
    ctx.globalAlpha = alpha * (fresh ? 1 : 0.5);
    if (wrong) { ctx.fillStyle = theme.chrome.differ; ctx.fillRect(x + indent, y - 8, long, 1.5); }
    drawUnderline(ctx, theme, origin, x + indent, y + 6.5, long);
  }

  strip(scene, ctx, shape, y) {
    const { font, theme, pane, run, step, stage, queries } = scene, { chrome } = theme;
    const block = step ? `${run.rows} × ${queries.length / run.rows} block` : "prompts";
    if (this.label > BATCH.number) drawText(ctx, font(12.5, 400), pane.packed && step ? "packed strip" : block, 0, y + 7, chrome.muted);
    if (step === 0 || stage === 0) {
      const why = step ? "nothing is fed yet" : "prefill reads every prompt without pads, in all methods";
      return drawText(ctx, font(12.5, 400), why, this.label, y + 7, chrome.faint);
    }
    const width = shape.strip, rules = [], stamp = cellStamp(ctx, theme, width - 0.6, BATCH.stripHeight, font(9, 700));
    queries.forEach((query, n) => {
      const x = this.label + n * width;
      if (!n || query.row !== queries[n - 1].row) rules.push(n);
      ctx.globalAlpha = strength(scene, { kind: "query", row: query.row, index: query.index });
      if (width >= 4) stamp(query.kind, x, y);
      else drawRun(ctx, theme, query.kind, x, y, width, BATCH.stripHeight);
      ctx.globalAlpha = 1;
    });
    rules.push(queries.length);
    ctx.fillStyle = chrome.ink;
    for (const n of rules) ctx.fillRect(toPixel(this.label + n * width - 0.9), y - 3, 1.3, BATCH.stripHeight + 6);
    if (pane.packed) this.boundaries(scene, ctx, shape, rules, y + 24);
    else drawText(ctx, font(12.5, 400), fitText(ctx, font(12.5, 400), wasteOf(scene), shape.width - this.label), this.label, y + 24, chrome.muted);
  }

  // Values of cu_seqlens under the rules; close ones move apart, and are left out where even that does not help.
  boundaries({ font, theme, pane }, ctx, shape, rules, y) {
    const face = font(11, 400), labels = [];
    if (this.label > BATCH.number) drawText(ctx, face, "cu_seq", 0, y, theme.chrome.faint);
    for (const value of rules) {
      const half = textWidth(ctx, face, String(value)) / 2 + 2, last = labels[labels.length - 1];
      let x = this.label + value * shape.strip;
      const over = last ? last.x + last.half + half - x : 0;
      if (over > 0) {
        const before = labels[labels.length - 2], back = before ? last.x - last.half - before.x - before.half : 0;
        const shift = Math.min(over / 2, Math.max(0, back));
        if (over - shift > 9) continue;
        last.x -= shift;
        x += over - shift;
      }
      labels.push({ x, half, value: value && pane.covered?.size ? "?" : value });
    }
    for (const { x, half, value } of labels) drawText(ctx, face, String(value), Math.min(x, shape.width - half + 1), y, theme.chrome.muted, "center");
  }
}

// Under a token: how it came to be. The same patterns as in the cells.
function drawUnderline(ctx, theme, origin, x, y, w) {
  const phase = theme.phases[origin], colour = phase.line;
  ctx.fillStyle = origin === "bonus" ? phase.small : colour;
  if (origin === "plain") { ctx.fillRect(x, y, w, 1); ctx.fillRect(x, y + 2, w, 1); }
  else if (origin === "recovered") drawPattern(ctx, "up", x, y, w, 3, colour, 1, 3.5);
  else if (origin === "prompt") ctx.fillRect(x, y + 0.5, w, 1.2);
  else ctx.fillRect(x, y, w, 2.4);
}

function wasteOf({ queries, run, step }) {
  const pads = queries.filter(({ kind, live }) => kind === "pad" && live).length, idle = queries.filter(({ live }) => !live).length;
  if (!pads && !idle) return `${several(queries.length, "input row")}, no pads`;
  const ended = Array.from({ length: run.rows }, (_, row) => run.at(step, row)).filter(({ kind, pads: fed }) => kind === "finished" && fed).length;
  const why = [pads && several(pads, "input pad"), idle && `${idle} for ${ended === 1 ? "the finished row" : `${ended} finished rows`}`].filter(Boolean).join(", ");
  return `${pads + idle} of ${several(queries.length, "input row")} wasted: ${why}`;
}

class BatchMap extends Section {
  constructor(player) {
    super("map", "KV cache");
    dragWindow(player, this);
    tellTitles(player, this);
  }

  rowAt(y) { return Math.floor((y - BATCH.mapTop) / BATCH.mapLine); }

  paint(scene, shape) {
    const { run, pane } = scene, ctx = this.start(shape.width, BATCH.mapTop + run.rows * BATCH.mapLine + 3);
    this.label = shape.label;
    this.say(`all slots; ${pane.shared ? "one shared write cursor" : "one write cursor per row"}`, shape.width > 560 ? "drag to move the window below" : "");
    this.every = tickStep(shape.slots, Math.max(2, Math.min(7, Math.floor((shape.width - this.label) / 55))));
    this.end = Math.max(1, Math.ceil(shape.slots / this.every)) * this.every;
    this.unit = (shape.width - this.label - (scene.player.isLesson ? BATCH.endRoom : 0)) / this.end;
    this.rows = run.rows;
    this.slots = run.slots;
    this.axis(scene, ctx, shape);
    for (let row = 0; row < run.rows; row++) this.bar(scene, ctx, shape, row);
    this.focused(scene, ctx);
    this.windows(scene, ctx, shape);
    if (pane.shared) this.sharedCursor(scene, ctx);
    else for (let row = 0; row < run.rows; row++) this.ownCursor(scene, ctx, shape, row);
  }

  x(slot) { return this.label + slot * this.unit; }

  top(row) { return BATCH.mapTop + row * BATCH.mapLine; }

  axis({ font, theme: { chrome }, pane, cursors, run }, ctx, shape) {
    const face = font(11, 400), flag = pane.shared ? this.x(cursors[0]) : -100;
    if (this.label > BATCH.number) drawText(ctx, face, "slot", 0, 6, chrome.faint);
    for (let slot = 0; slot <= this.end; slot += this.every) {
      const x = this.x(slot), align = slot === 0 ? "left" : slot === this.end ? "right" : "center";
      ctx.fillStyle = chrome.hairline;
      ctx.fillRect(Math.min(x, shape.width - 1), BATCH.mapTop - 1, 1, run.rows * BATCH.mapLine + 2);
      if (Math.abs(x - flag) > 28) drawText(ctx, face, String(slot), x, 6, chrome.faint, align);
    }
  }

  bar(scene, ctx, shape, row) {
    const { grid, theme, run } = scene, y = this.top(row), base = row * run.slots;
    batchLabel(scene, ctx, row, y + 5, 11.5, this.label);
    ctx.globalAlpha = scene.focus ? DIMMED : 1;
    ctx.fillStyle = theme.chrome.sunk;
    ctx.fillRect(this.label, y, shape.width - this.label, BATCH.mapBar);
    for (let slot = 0; slot < run.slots; ) {
      const state = grid.state[base + slot];
      let end = slot + 1;
      while (end < run.slots && grid.state[base + end] === state) end++;
      drawRun(ctx, theme, STATES[state], this.x(slot), y, (end - slot) * this.unit, BATCH.mapBar);
      slot = end;
    }
    const cover = coverOf(scene.pane, row);
    if (cover) drawCover(ctx, scene.player, this.x(cover[0]), y, (cover[1] - cover[0]) * this.unit, BATCH.mapBar);
    ctx.globalAlpha = 1;
  }

  // What the focus touches, at full strength, runs merged; slots that are loaded for nothing on a tinted ground.
  focused({ focus, grid, theme, run }, ctx) {
    if (!focus) return;
    for (const row of new Set(Array.from(focus.cells.keys(), (key) => Number(key.split(".")[0])))) {
      for (let slot = 0; slot < run.slots; ) {
        const how = focus.cells.get(`${row}.${slot}`), state = grid.state[row * run.slots + slot];
        let end = slot + 1;
        while (end < run.slots && grid.state[row * run.slots + end] === state && focus.cells.get(`${row}.${end}`) === how) end++;
        if (how) this.lit(ctx, theme, how, state, this.x(slot), this.top(row), (end - slot) * this.unit);
        slot = end;
      }
    }
  }

  lit(ctx, theme, how, state, x, y, w) {
    if (how === "dead") {
      ctx.fillStyle = theme.chrome["differ-tint"];
      ctx.fillRect(x, y, w, BATCH.mapBar);
    }
    drawRun(ctx, theme, STATES[state], x, y, w, BATCH.mapBar);
  }

  // Where the window below looks, once it was moved away from the cursors.
  windows({ player, pane, cursors, theme, run }, ctx, shape) {
    const shift = nearShift(player);
    if (!shift || pane.covered?.size) return;
    ctx.strokeStyle = theme.chrome.ink;
    ctx.lineWidth = 1;
    for (let row = 0; row < run.rows; row++) {
      const from = Math.max(0, cursors[row] - shape.before + shift), to = Math.min(this.end, cursors[row] + BATCH.after + shift);
      if (to > from) ctx.strokeRect(crisp(this.x(from)), this.top(row) - 0.5, (to - from) * this.unit, BATCH.mapBar + 1);
    }
  }

  sharedCursor({ theme, font, cursors, run, pane, width }, ctx) {
    if (isCursorCovered(pane, 0)) return;
    const x = this.x(cursors[0]);
    ctx.fillStyle = theme.chrome.ink;
    ctx.fillRect(toPixel(x - 1.1), BATCH.mapTop - 2, 2.2, run.rows * BATCH.mapLine + 4);
    const half = textWidth(ctx, font(11.5, 650), String(cursors[0])) / 2 + 6;
    drawFlag(ctx, theme, String(cursors[0]), Math.min(x, width - half), 0, font(11.5, 650), { height: 13.5 });
  }

  ownCursor({ theme: { chrome }, font, cursors, run, pane, done, grid }, ctx, shape, row) {
    if (isCursorCovered(pane, row)) return;
    const finished = done >= 0 && run.at(done, row).finished, x = this.x(cursors[row]), y = this.top(row);
    let end = cursors[row];
    while (end < run.slots && grid.state[row * run.slots + end] !== STATE.free) end++;
    ctx.fillStyle = finished ? chrome.faint : chrome.ink;
    ctx.fillRect(toPixel(x - 1.1), y - 1, 2.2, BATCH.mapBar + 2);
    const text = (finished ? "end " : "") + cursors[row], face = font(11, 400), w = textWidth(ctx, face, text);
    const place = Math.min(this.x(end) + 7, shape.width - w - 1), crowded = place < this.x(end) + 2;
    if (crowded) drawHaloText(ctx, face, text, x - 6, y + 5, chrome.text, chrome.panel, "right", 3);
    else drawText(ctx, face, text, place, y + 5, finished ? chrome.faint : chrome.text);
  }

  cursorLine(row, slot) {
    return { x: this.x(slot), y: this.top(row) - 1, h: BATCH.mapBar + 2 };
  }

  hit(x, y) {
    const row = this.rowAt(y), slot = Math.floor((x - this.label) / this.unit);
    return row < 0 || row >= this.rows || slot < 0 || slot >= this.slots ? null : { kind: "cell", row, slot };
  }

  find(item) {
    if (item.kind !== "cell" || item.row >= this.rows || item.slot >= this.slots) return null;
    return { x: this.x(item.slot), y: this.top(item.row), w: this.unit, h: BATCH.mapBar };
  }
}

// Slots by which the window is moved away from the cursors, for both panes.
function nearShift(player) {
  return player.nearShift || 0;
}

function moveWindow(player, map, shift) {
  const bounded = Math.max(-map.slots, Math.min(map.slots, shift));
  if (bounded === nearShift(player)) return;
  player.nearShift = bounded;
  player.paint();
}

// Dragging on the map moves the window relative to the cursors; a double click puts it back.
function dragWindow(player, map) {
  const { canvas } = map;
  let from = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    from = { x: event.clientX, shift: nearShift(player), moved: false };
    canvas.setPointerCapture?.(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!from) return;
    from.moved ||= Math.abs(event.clientX - from.x) > 3;
    if (!from.moved) return;
    canvas.classList.add("dragging");
    moveWindow(player, map, from.shift + Math.round((event.clientX - from.x) / map.unit));
    event.stopImmediatePropagation();
  });
  const stop = () => {
    canvas.classList.remove("dragging");
    if (from?.moved) map.dragged = true;
    from = null;
  };
  canvas.addEventListener("pointerup", stop);
  canvas.addEventListener("pointercancel", stop);
  // The click that ends a drag pins nothing.
  canvas.addEventListener("click", (event) => {
    if (map.dragged) event.stopImmediatePropagation();
    map.dragged = false;
  });
  canvas.addEventListener("dblclick", () => moveWindow(player, map, 0));
}

class BatchNear extends Section {
  constructor(player) {
    super("near", "Around the cursor");
    tellTitles(player, this);
  }

  rowAt(y) { return Math.floor((y - 1) / this.shape.nearLine); }

  paint(scene, shape) {
    const { run, player } = scene, ctx = this.start(shape.width, run.rows * shape.nearLine + 3), shift = nearShift(player);
    this.shape = shape;
    this.label = shape.label;
    this.slots = run.slots;
    this.firsts = Array.from(scene.cursors, (cursor, row) => (coverOf(scene.pane, row)?.[0] ?? cursor) - shape.before + shift);
    this.say(shift ? `moved by ${shift > 0 ? "+" : "−"}${several(Math.abs(shift), "slot")} from each cursor; double-click the map to go back`
      : `${shape.before} slots before, ${BATCH.after} after, each row centred on its own cursor`, "next write");
    const stamp = cellStamp(ctx, scene.theme, shape.pitch - 1.2, shape.nearHeight, scene.font(9, 700));
    for (let row = 0; row < run.rows; row++) {
      batchLabel(scene, ctx, row, this.top(row) + shape.nearHeight / 2 + 0.5, 12, this.label);
      for (let n = 0; n < shape.count; n++) this.cell(scene, ctx, row, n, stamp);
      this.cursor(scene, ctx, row);
    }
    const box = scene.focus?.source?.kind === "cell" && this.find(scene.focus.source);
    if (box) drawOutline(ctx, scene.theme, box.x, box.y, box.w, box.h);
  }

  top(row) { return row * this.shape.nearLine + 1; }

  cell(scene, ctx, row, n, stamp) {
    const { grid, player } = scene, { pitch, nearHeight } = this.shape, slot = this.firsts[row] + n;
    if (slot < 0) return;
    const inside = slot < this.slots, index = row * this.slots + slot, name = inside ? STATES[grid.state[index]] : "free";
    if (name !== "free") ctx.globalAlpha = strength(scene, { kind: "cell", row, slot });
    const x = this.label + n * pitch, y = this.top(row);
    if (isCoveredSlot(scene.pane, row, slot)) drawCover(ctx, player, x, y, pitch - 1.2, nearHeight);
    else if (pitch < 22) stamp(name, x, y);
    else drawTokenCell(ctx, player, name, inside ? trimmed(player, grid.word[index]) : "", x, y, pitch - 1.5, nearHeight, 0.63);
    ctx.globalAlpha = 1;
  }

  cursor({ theme, font, pane, cursors, run, done }, ctx, row) {
    if (isCursorCovered(pane, row)) return;
    const { pitch, nearHeight, nearLine, count, width } = this.shape, place = cursors[row] - this.firsts[row], y = this.top(row);
    const quiet = done >= 0 && run.at(done, row).finished;
    if (place >= 0 && place <= count) {
      ctx.fillStyle = quiet ? theme.chrome.faint : theme.chrome.ink;
      ctx.fillRect(toPixel(this.label + place * pitch - 1.7), y - 1, 2.2, nearLine + 1);
    }
    const text = String(cursors[row]), face = font(11.5, 650), w = Math.max(BATCH.flag, textWidth(ctx, face, text) + 8);
    drawFlag(ctx, theme, text, width - w / 2 - 0.5, y + (nearHeight - 13) / 2, face, { height: 13, width: w, quiet });
  }

  hit(x, y) {
    const { pitch, count } = this.shape, row = this.rowAt(y), n = Math.floor((x - this.label) / pitch);
    if (row < 0 || row >= this.firsts.length || n < 0 || n >= count) return null;
    const slot = this.firsts[row] + n;
    return slot < 0 || slot >= this.slots ? null : { kind: "cell", row, slot };
  }

  find(item) {
    if (item.kind !== "cell" || !(item.row < this.firsts.length)) return null;
    const n = item.slot - this.firsts[item.row], { pitch, nearHeight, count } = this.shape;
    return n < 0 || n >= count ? null : { x: this.label + n * pitch, y: this.top(item.row), w: pitch - 1.2, h: nearHeight };
  }
}

class BatchView extends PaneView {
  constructor(player, pane) {
    super(player, pane, new BatchInput(player), new BatchMap(player), new BatchNear(player));
  }

  paint(focus) {
    const width = this.node.clientWidth;
    if (!width) return;
    const shape = batchShape(this.player, width), scene = sceneOf(this.player, this.pane, focus || attendFocus(this.pane), width);
    for (const section of this.sections) section.paint(scene, shape);
  }
}
