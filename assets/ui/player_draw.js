// Painting on a canvas: cells, hatches, flags, brackets, verdict marks, text. Colours come from the palette table alone.

const DIMMED = 0.28;
const HATCH = { up: 0.34, down: 0.34, rows: 0.34, dots: 0.6, hole: 0.55 };
const SPRITES = new Map(), TILES = new Map(), WIDTHS = new Map();
const MOST_SPRITES = 2000, MOST_WIDTHS = 20000; // canvases kept, texts kept per font

// Cells with letters and text widths are kept; a font that arrives late makes both wrong.
if (typeof document !== "undefined") document.fonts?.addEventListener?.("loadingdone", () => { SPRITES.clear(); WIDTHS.clear(); });

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

// Device pixels per CSS pixel, as of the last canvas that was begun: asking the window each time costs more than drawing.
let ratioNow = 1;

// A clear canvas of `width` x `height` CSS pixels at the device's pixel ratio; nothing is left of what was set before.
function context(canvas, width, height) {
  const ratio = (ratioNow = window.devicePixelRatio || 1);
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
  }
  const ctx = canvas.getContext("2d");
  ctx.reset();
  ctx.lastFont = "";
  ctx.scale(ratio, ratio);
  ctx.direction = "ltr";
  return ctx;
}

// The nearest place where a line of one pixel is sharp.
function crisp(value) {
  return Math.round(value - 0.5) + 0.5;
}

function toPixel(value) {
  return Math.round(value * ratioNow) / ratioNow;
}

function roundRect(ctx, x, y, w, h, radius) {
  ctx.beginPath();
  ctx.roundRect(x, y, w, h, Math.min(radius, w / 2, h / 2));
}

function drawLine(ctx, x0, y0, x1, y1) {
  ctx.beginPath();
  ctx.moveTo(x0, y0);
  ctx.lineTo(x1, y1);
  ctx.stroke();
}

// Setting a font costs more than comparing a text.
function useFont(ctx, font) {
  if (ctx.lastFont === font) return;
  ctx.lastFont = font;
  ctx.font = font;
}

// Width of a text in CSS pixels, measured once per font.
function textWidth(ctx, font, text) {
  let known = WIDTHS.get(font);
  if (!known || known.size > MOST_WIDTHS) WIDTHS.set(font, (known = new Map()));
  let width = known.get(text);
  if (width === undefined) {
    useFont(ctx, font);
    known.set(text, (width = ctx.measureText(text).width));
  }
  return width;
}

// A text that fits, its end replaced by an ellipsis; "" when not even one character fits. Never splits a code point.
function fitText(ctx, font, text, width) {
  if (textWidth(ctx, font, text) <= width) return text;
  const letters = Array.from(text.slice(0, 200));
  let low = 0, high = letters.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (textWidth(ctx, font, letters.slice(0, middle).join("") + "…") <= width) low = middle;
    else high = middle - 1;
  }
  return low ? letters.slice(0, low).join("") + "…" : "";
}

function drawText(ctx, font, text, x, y, colour, align = "left") {
  useFont(ctx, font);
  ctx.fillStyle = colour;
  ctx.textAlign = align;
  ctx.textBaseline = "middle";
  ctx.fillText(text, x, y);
}

// Text on a ground of its own colour, so that hatches or lines under it do not disturb it.
function drawHaloText(ctx, font, text, x, y, colour, ground, align = "center", halo = 4) {
  useFont(ctx, font);
  ctx.textAlign = align;
  ctx.textBaseline = "middle";
  ctx.lineJoin = "round";
  ctx.lineWidth = halo;
  ctx.strokeStyle = ground;
  ctx.strokeText(text, x, y);
  ctx.fillStyle = colour;
  ctx.fillText(text, x, y);
}

// One tile of lines or dots, `size` CSS pixels wide, as a pattern anchored to the canvas.
function patternTile(ctx, pattern, colour, size) {
  const key = `${pattern} ${colour} ${size} ${ratioNow}`;
  if (TILES.has(key)) return TILES.get(key);
  const pixels = Math.max(2, Math.round(size * ratioNow)), scale = pixels / size;
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = pixels;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.strokeStyle = pen.fillStyle = colour;
  pen.lineWidth = size < 6 ? 1 : 1.2;
  if (pattern === "dots") pen.fillRect(size / 2 - 0.6, size / 2 - 0.6, 1.2, 1.2);
  else if (pattern === "rows") drawLine(pen, 0, size / 2, size, size / 2);
  else for (const shift of [-size, 0, size]) {
    if (pattern === "up") drawLine(pen, shift - 1, size + 1, shift + size + 1, -1);
    else drawLine(pen, shift - 1, -1, shift + size + 1, size + 1);
  }
  const made = ctx.createPattern(canvas, "repeat");
  made.setTransform(new DOMMatrix([1 / scale, 0, 0, 1 / scale, 0, 0]));
  TILES.set(key, made);
  return made;
}

// Lines or dots inside the current path's rectangle.
function drawPattern(ctx, pattern, x, y, w, h, colour, alpha, size) {
  if (!pattern || pattern === "band" || w <= 0) return;
  const before = ctx.globalAlpha;
  ctx.globalAlpha = before * alpha;
  ctx.fillStyle = patternTile(ctx, pattern, colour, pattern === "rows" ? Math.min(size, 3.5) : pattern === "dots" ? Math.min(size, 4.5) : size);
  ctx.fillRect(x, y, w, h);
  ctx.globalAlpha = before;
}

// The letter in a cell: in the phase's line colour, where that can be told from the fill.
function glyphColour(phase) {
  return phase.fill && (phase.fill === phase.line || phase.glyph === "N" || phase.glyph === "B") ? phase.text : phase.line;
}

function dashOf(phase) {
  return phase.pattern === "dots" ? [1.5, 2] : phase.dash ? [3, 2] : [];
}

// Fill, hatch, foot band and outline of a cell, without words.
function drawBox(ctx, theme, name, x, y, w, h, { radius = 4, size = 6, lineWidth = 1.2, lineAlpha = 1 } = {}) {
  const phase = theme.phases[name], inset = lineWidth / 2;
  ctx.save();
  roundRect(ctx, x + inset, y + inset, w - lineWidth, h - lineWidth, radius);
  if (phase.fill) { ctx.fillStyle = phase.fill; ctx.fill(); }
  if (phase.pattern) {
    ctx.clip();
    drawPattern(ctx, phase.pattern, x, y, w, h, phase.line, HATCH[name] ?? HATCH[phase.pattern], size);
    if (phase.pattern === "band") { ctx.fillStyle = phase.small; ctx.fillRect(x, y + h - lineWidth - 3, w, 3); }
    ctx.restore();
    ctx.save();
  }
  ctx.globalAlpha *= lineAlpha;
  ctx.strokeStyle = phase.line;
  ctx.lineWidth = lineWidth;
  ctx.setLineDash(dashOf(phase));
  roundRect(ctx, x + inset, y + inset, w - lineWidth, h - lineWidth, radius);
  ctx.stroke();
  ctx.restore();
}

// A word in a cell's colours; over a hatch it gets a halo of the fill.
function cellWord(ctx, theme, name, font, text, x, y, colour, align = "center") {
  const phase = theme.phases[name];
  if (phase.pattern && phase.pattern !== "band") drawHaloText(ctx, font, text, x, y, colour, phase.fill || theme.chrome.panel, align);
  else drawText(ctx, font, text, x, y, colour, align);
}

// A picture that is drawn once and then copied, so that it can also be dimmed as a whole.
function spriteOf(key, w, h, paint) {
  const name = [key, w, h, ratioNow].join("\n");
  let sprite = SPRITES.get(name);
  if (!sprite) {
    if (SPRITES.size > MOST_SPRITES) SPRITES.clear();
    sprite = document.createElement("canvas");
    paint(context(sprite, w, h));
    SPRITES.set(name, sprite);
  }
  return sprite;
}

function drawSprite(ctx, sprite, x, y) {
  ctx.drawImage(sprite, toPixel(x), toPixel(y), sprite.width / ratioNow, sprite.height / ratioNow);
}

// Small cells of one size with their letters in the middle: a function that draws a phase at a place.
function cellStamp(ctx, theme, w, h, font) {
  const sprites = {};
  return (name, x, y) => drawSprite(ctx, (sprites[name] ||= smallCell(theme, name, w, h, font)), x, y);
}

function smallCell(theme, name, w, h, font) {
  return spriteOf(["cell", name, theme.dark, font].join("\n"), w, h, (pen) => paintSmallCell(pen, theme, name, w, h, font));
}

function drawCell(ctx, theme, name, x, y, w, h, font) {
  drawSprite(ctx, smallCell(theme, name, w, h, font), x, y);
}

function paintSmallCell(ctx, theme, name, w, h, font) {
  const phase = theme.phases[name];
  drawBox(ctx, theme, name, 0, 0, w, h, { radius: 3, size: 4, lineWidth: 1 });
  if (!phase.glyph || w < 10) return;
  cellWord(ctx, theme, name, font, phase.glyph, w / 2, h / 2 + (phase.pattern === "band" ? -0.5 : 0.5), glyphColour(phase));
}

// A cell with its letter in the corner and a token's text; both are left out when there is no room for them.
function drawTokenCell(ctx, player, name, word, x, y, w, h, low = 0.5) {
  const { theme } = player, letter = player.font(9, 700);
  if (w < 22) return drawCell(ctx, theme, name, x, y, w, h, letter);
  const shown = name === "hole" || name === "pad" || name === "free" ? "" : word;
  const key = ["token", name, theme.dark, letter, low, shown].join("\n");
  drawSprite(ctx, spriteOf(key, w, h, (pen) => paintTokenCell(pen, player, name, shown, w, h, low)), x, y);
}

function paintTokenCell(ctx, player, name, word, w, h, low) {
  const { theme } = player, phase = theme.phases[name], beside = low === 0.5;
  const widest = (room) => [12.5, 12, 11.5, 11].map((px) => player.font(px, 500)).find((each) => textWidth(ctx, each, word) <= room);
  // Where word and letter share a line, the word moves out of the letter's way; without room for both the letter goes.
  const both = !beside || !word || widest(w - 15), font = (both && widest(beside ? w - 15 : w - 3)) || widest(w - 3) || player.font(11, 500);
  drawBox(ctx, theme, name, 0, 0, w, h, { radius: 4 });
  if (phase.glyph && both) cellWord(ctx, theme, name, player.font(9, 700), phase.glyph, 4, 7.5, glyphColour(phase), "left");
  if (!word) return;
  const shown = fitText(ctx, font, word, w - 3), half = textWidth(ctx, font, shown) / 2;
  cellWord(ctx, theme, name, font, shown, beside && both ? Math.max(w / 2, 13 + half) : w / 2, h * low, phase.text);
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
  drawPattern(ctx, phase.pattern, x, y, w, h, phase.line, name === "hole" ? 0.75 : 0.9, name === "hole" ? 4 : 3);
  ctx.strokeStyle = phase.line;
  ctx.lineWidth = 0.6;
  if (w > 1) ctx.strokeRect(x + 0.3, y + 0.3, w - 0.6, h - 0.6);
}

// A number, white on ink, centred on x; quiet, in an outline, at the end of a finished row.
function drawFlag(ctx, theme, text, x, y, font, { height = 16, width = 0, quiet = false } = {}) {
  const wide = width || textWidth(ctx, font, text) + 10, { chrome } = theme;
  ctx.fillStyle = quiet ? chrome.panel : chrome.ink;
  roundRect(ctx, x - wide / 2, y, wide, height, 3.5);
  ctx.fill();
  ctx.strokeStyle = chrome.control;
  ctx.lineWidth = 1;
  if (quiet) ctx.stroke();
  drawText(ctx, font, text, x, y + height / 2 + 0.5, quiet ? chrome.faint : chrome.page, "center");
}

// A bracket over (down = 1) or under (down = -1) a range, with the first of `labels` that fits.
function drawBracket(ctx, { x0, x1, y, down, colour, font, ink, labels }) {
  const label = labels.find((text) => textWidth(ctx, font, text) <= x1 - x0 - 2) || "";
  const gap = label ? textWidth(ctx, font, label) / 2 + (x1 - x0 > 90 ? 12 : 6) : 0, middle = (x0 + x1) / 2;
  const sharp = crisp(y), left = crisp(x0), right = crisp(x1);
  ctx.strokeStyle = colour;
  ctx.lineWidth = 1.2;
  ctx.beginPath();
  if (middle - gap - x0 > 2 || !label) {
    ctx.moveTo(left, sharp + 4.5 * down);
    ctx.lineTo(left, sharp);
    ctx.lineTo(middle - gap, sharp);
    ctx.moveTo(middle + gap, sharp);
    ctx.lineTo(right, sharp);
    ctx.lineTo(right, sharp + 4.5 * down);
  }
  ctx.stroke();
  if (label) drawText(ctx, font, label, middle, y, ink, "center");
}

// Round mark of a verdict: a filled check, a hollow cross, a star, or a check that a faulty run gave to a wrong draft.
function drawVerdict(ctx, theme, kind, x, y, radius = 7) {
  const { phases, chrome } = theme, colour = { check: phases.accepted.line, cross: phases.rejected.line, star: phases.bonus.fill, wrong: chrome.differ }[kind];
  const scale = radius / 7;
  ctx.beginPath();
  ctx.arc(x, y, radius - (kind === "cross" ? 0.7 : 0), 0, 2 * Math.PI);
  ctx.fillStyle = kind === "cross" ? chrome.panel : colour;
  ctx.fill();
  ctx.lineWidth = 1.4;
  ctx.strokeStyle = colour;
  if (kind === "cross") ctx.stroke();
  ctx.lineWidth = 1.7 * scale;
  ctx.lineCap = ctx.lineJoin = "round";
  ctx.strokeStyle = kind === "cross" ? colour : kind === "star" || !theme.dark ? "#FFFFFF" : chrome.panel;
  ctx.fillStyle = ctx.strokeStyle;
  if (kind === "star") starPath(ctx, x, y + 0.2, 4.4 * scale).fill();
  else {
    const points = kind !== "cross" ? [[[-3, 0.2], [-0.9, 2.3], [3.1, -2.1]]] : [[[-2.4, -2.4], [2.4, 2.4]], [[2.4, -2.4], [-2.4, 2.4]]];
    ctx.beginPath();
    for (const path of points) path.forEach(([dx, dy], n) => ctx[n ? "lineTo" : "moveTo"](x + dx * scale, y + dy * scale));
    ctx.stroke();
  }
  ctx.lineCap = "butt";
}

function starPath(ctx, x, y, radius) {
  ctx.beginPath();
  for (let n = 0; n < 10; n++) {
    const angle = (n * Math.PI) / 5 - Math.PI / 2, r = n % 2 ? radius * 0.42 : radius;
    ctx.lineTo(x + r * Math.cos(angle), y + r * Math.sin(angle));
  }
  ctx.closePath();
  return ctx;
}

// A triangle that points up, its tip at (x, y).
function drawTriangle(ctx, x, y, colour, size = 3.5) {
  ctx.fillStyle = colour;
  ctx.beginPath();
  ctx.moveTo(x, y);
  ctx.lineTo(x + size, y + 6);
  ctx.lineTo(x - size, y + 6);
  ctx.fill();
}

// A thin arrow to the right; nothing where there is no room.
function drawArrow(ctx, x0, x1, y, colour) {
  if (x1 - x0 < 8) return;
  ctx.strokeStyle = ctx.fillStyle = colour;
  ctx.lineWidth = 1;
  drawLine(ctx, x0, crisp(y), x1 - 4, crisp(y));
  ctx.beginPath();
  ctx.moveTo(x1, crisp(y));
  ctx.lineTo(x1 - 5, crisp(y) - 2.8);
  ctx.lineTo(x1 - 5, crisp(y) + 2.8);
  ctx.fill();
}

// Outline of what the pointer or the keyboard is on.
function drawOutline(ctx, theme, x, y, w, h) {
  ctx.strokeStyle = theme.chrome.panel;
  ctx.lineWidth = 4;
  roundRect(ctx, x - 1, y - 1, w + 2, h + 2, 6);
  ctx.stroke();
  ctx.strokeStyle = theme.chrome.ink;
  ctx.lineWidth = 2;
  ctx.stroke();
}

// A round distance between axis labels, so that at most `most` of them are drawn.
function tickStep(slots, most) {
  for (const step of [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]) if (slots / step <= most) return step;
  return 8192;
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

// What stands for cells whose content is covered until a question is answered.
function drawCover(ctx, { theme: { chrome }, font }, x, y, w, h) {
  ctx.fillStyle = chrome["brand-tint"];
  ctx.strokeStyle = chrome.brand;
  ctx.lineWidth = 1.2;
  roundRect(ctx, x + 0.6, y + 0.6, w - 1.2, h - 1.2, 4);
  ctx.fill();
  ctx.setLineDash([3.5, 2.5]);
  ctx.stroke();
  ctx.setLineDash([]);
  if (w >= 10) drawText(ctx, font(h < 20 ? 11 : 13, 650), "?", x + w / 2, y + h / 2 + 0.5, chrome.brand, "center");
}
