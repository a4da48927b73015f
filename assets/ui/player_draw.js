// Painting on a canvas: one cell, a row of cells, all slots of a cache. Colours come from the palette table alone.

function makeTheme(palette, dark) {
  const tone = dark ? "dark" : "light";
  const phases = {};
  for (const [name, phase] of Object.entries(palette.phases)) {
    const [fill, line, text] = phase[tone];
    phases[name] = { ...phase, fill, line, text, small: phase.solid[dark ? 1 : 0] };
  }
  const chrome = {};
  for (const [name, pair] of Object.entries(palette.chrome)) chrome[name] = pair[dark ? 1 : 0];
  return { phases, chrome, dark };
}

// A canvas of `width` x `height` CSS pixels at the device's pixel ratio; only resized when it must be.
function context(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
  }
  const ctx = canvas.getContext("2d");
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.clearRect(0, 0, width, height);
  return ctx;
}

// Lines or dots inside a rectangle. Patterns are anchored to the canvas, so a cell looks the same however it was reached.
function drawPattern(ctx, pattern, x, y, w, h, colour, alpha, tile) {
  if (!pattern || pattern === "band") return;
  ctx.save();
  ctx.beginPath();
  ctx.rect(x, y, w, h);
  ctx.clip();
  ctx.globalAlpha = alpha;
  ctx.strokeStyle = ctx.fillStyle = colour;
  ctx.lineWidth = tile < 6 ? 1 : 1.2;
  ctx.beginPath();
  if (pattern === "dots") {
    for (let py = Math.floor(y / tile) * tile; py < y + h; py += tile)
      for (let px = Math.floor(x / tile) * tile; px < x + w; px += tile) ctx.rect(px + 1, py + 1, 1.2, 1.2);
    ctx.fill();
  } else if (pattern === "rows") {
    for (let py = Math.ceil(y / 3) * 3; py < y + h; py += 3) { ctx.moveTo(x, py + 0.5); ctx.lineTo(x + w, py + 0.5); }
    ctx.stroke();
  } else {
    const up = pattern === "up" ? 1 : -1;
    const from = Math.floor((x - h) / tile) * tile;
    for (let px = from; px < x + w + h; px += tile) {
      ctx.moveTo(px, up > 0 ? y + h : y);
      ctx.lineTo(px + h, up > 0 ? y : y + h);
    }
    ctx.stroke();
  }
  ctx.restore();
}

function roundRect(ctx, x, y, w, h, radius) {
  ctx.beginPath();
  ctx.roundRect(x, y, w, h, radius);
}

// One cell with its fill, outline, pattern and letter.
function drawCell(ctx, theme, name, x, y, w, h, font) {
  const phase = theme.phases[name];
  const [left, top, width, height] = [x + 0.5, y + 0.5, w - 1, h - 1];
  roundRect(ctx, left, top, width, height, 2.5);
  if (phase.fill) { ctx.fillStyle = phase.fill; ctx.fill(); }
  const hollow = name === "hole";
  drawPattern(ctx, phase.pattern, x + 1, y + 1, w - 2, h - 2, phase.line, hollow ? 0.55 : 0.34, 4);
  if (phase.pattern === "band") { ctx.fillStyle = theme.dark ? phase.line : "#56B4E9"; ctx.fillRect(x + 1, y + h - 4, w - 2, 3); }
  ctx.lineWidth = 1;
  ctx.strokeStyle = phase.line;
  ctx.setLineDash(name === "pad" ? [1.5, 2] : phase.dash ? [3, 2] : []);
  roundRect(ctx, left, top, width, height, 2.5);
  ctx.stroke();
  ctx.setLineDash([]);
  if (!phase.glyph || w < 10) return;
  ctx.font = font;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  const cy = y + h / 2 + (phase.pattern === "band" ? -1 : 0.5);
  if (phase.pattern && phase.pattern !== "band") {
    ctx.strokeStyle = phase.fill || theme.chrome.panel;
    ctx.lineWidth = 4;
    ctx.lineJoin = "round";
    ctx.strokeText(phase.glyph, x + w / 2, cy);
  }
  ctx.fillStyle = phase.text;
  ctx.fillText(phase.glyph, x + w / 2, cy);
}

// A run of equal cells in the map of all slots, where a slot is a few pixels wide.
function drawRun(ctx, theme, name, x, y, w, h) {
  const phase = theme.phases[name];
  if (name === "free") return;
  if (phase.small) {
    const hatched = ["up", "down", "rows"].includes(phase.pattern);
    ctx.fillStyle = hatched ? phase.fill : phase.small;
    ctx.fillRect(x, y, w, h);
    if (hatched) drawPattern(ctx, phase.pattern, x, y, w, h, phase.small, 1, 4);
    if (phase.pattern === "band") { ctx.fillStyle = theme.dark ? "#1D5F8F" : "#2B6F9E"; ctx.fillRect(x, y + h - 2, w, 2); }
    return;
  }
  drawPattern(ctx, phase.pattern, x, y, w, h, phase.line, name === "hole" ? 0.9 : 0.8, name === "hole" ? 4 : 3);
  ctx.strokeStyle = phase.line;
  ctx.lineWidth = 0.6;
  ctx.strokeRect(x + 0.3, y + 0.3, w - 0.6, h - 0.6);
}

// The slot number at a cursor, white on ink.
function drawFlag(ctx, theme, text, x, y, font) {
  ctx.font = font;
  const width = ctx.measureText(text).width + 10;
  ctx.fillStyle = theme.chrome.ink;
  roundRect(ctx, x - width / 2, y, width, 15, 3);
  ctx.fill();
  ctx.fillStyle = theme.chrome.page;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  ctx.fillText(text, x, y + 8);
  return width;
}

// A round distance between axis labels, so that at most `most` of them are drawn.
function tickStep(slots, most) {
  for (const step of [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]) if (slots / step <= most) return step;
  return 4096;
}

// The method's marker: filled circle, hollow square, half square, or the dashed line of greedy.
function methodMarker(method) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 12 12");
  svg.setAttribute("class", "marker");
  const add = (tag, entries) => {
    const shape = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(entries)) shape.setAttribute(name, value);
    svg.append(shape);
  };
  const square = { x: 1.5, y: 1.5, width: 9, height: 9, fill: "none", stroke: "var(--e-vanilla)", "stroke-width": 2 };
  if (method === "ems-sd") add("circle", { cx: 6, cy: 6, r: 5.5, fill: "var(--e-brand)" });
  else if (method.startsWith("greedy")) add("path", { d: "M0 6H12", stroke: "var(--e-ink)", "stroke-width": 2, "stroke-dasharray": "3 1.5" });
  else add("rect", square);
  if (method === "packed-input") add("rect", { x: 1, y: 1, width: 5, height: 10, fill: "var(--e-vanilla)" });
  if (method === "ragged-cache") add("rect", { x: 1, y: 6, width: 10, height: 5, fill: "var(--e-vanilla)" });
  return svg;
}
