// A picture of what the player shows: title, story and counters as text, the canvases as they are.

const PNG_GAP = 20, PNG_HEAD = 44;

function savePicture(player) {
  const canvas = drawPicture(player), names = player.shown.map((pane) => pane.method).join("-");
  canvas.toBlob((blob) => {
    const link = make("a", { href: URL.createObjectURL(blob), download: `emssd-${names}-step-${player.step}.png` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }, "image/png");
}

// The whole picture at the device's pixel ratio.
function drawPicture(player) {
  const panes = player.shown, boxes = panes.map((pane) => pane.node.getBoundingClientRect()), first = player.board.getBoundingClientRect();
  const width = first.width + 2 * PNG_GAP, height = first.height + PNG_HEAD + 2 * PNG_GAP;
  const canvas = make("canvas"), ctx = context(canvas, width, height), { chrome } = player.theme;
  ctx.fillStyle = chrome.page;
  ctx.fillRect(0, 0, width, height);
  const state = player.transport.valueText(), badge = player.bar.badge.hidden ? "" : player.bar.badge.textContent;
  pngText(player, ctx, ["EMS-SD", player.data.title, state, badge].filter(Boolean).join("   ·   "), PNG_GAP, 32, 15.5, 650, chrome.ink);
  panes.forEach((pane, n) => {
    ctx.save();
    ctx.translate(boxes[n].left - first.left + PNG_GAP, boxes[n].top - first.top + PNG_HEAD + PNG_GAP);
    drawPanePicture(player, ctx, pane, boxes[n]);
    ctx.restore();
  });
  return canvas;
}

function pngText(player, ctx, text, x, y, px, weight, colour, align = "left") {
  ctx.font = player.font(px, weight);
  ctx.fillStyle = colour;
  ctx.textAlign = align;
  ctx.textBaseline = "alphabetic";
  ctx.fillText(text, x, y);
  return ctx.measureText(text).width;
}

function drawPanePicture(player, ctx, pane, box) {
  const { chrome } = player.theme, { card } = pane;
  pngBox(ctx, { x: 0, y: 0, w: box.width, h: box.height }, chrome.panel, chrome.hairline);
  drawMarker(ctx, chrome, pane.method, 20, 21);
  const inside = (list) => [...pane.node.querySelectorAll(list)].filter((node) => !card.node.contains(node));
  for (const node of inside(PNG_TEXTS)) drawNodeText(ctx, node, box);
  for (const bar of inside(".c-bar")) drawNodeBar(ctx, bar, box, chrome);
  for (const canvas of inside("canvas")) drawNodeCanvas(ctx, canvas, box);
  if (card.node.hidden) return;
  const at = card.node.getBoundingClientRect();
  pngBox(ctx, { x: at.left - box.left, y: at.top - box.top, w: at.width, h: at.height }, chrome.panel, chrome.control);
  for (const node of card.node.querySelectorAll("b, dt, dd, .card-head span, .card-foot .right")) drawNodeText(ctx, node, box);
  for (const canvas of card.node.querySelectorAll("canvas")) drawNodeCanvas(ctx, canvas, box);
}

function pngBox(ctx, { x, y, w, h }, fill, line) {
  ctx.fillStyle = fill;
  ctx.strokeStyle = line;
  ctx.lineWidth = 1;
  ctx.beginPath();
  ctx.roundRect(x + 0.5, y + 0.5, w - 1, h - 1, 12);
  ctx.fill();
  ctx.stroke();
}

// The method's shape as in `methodMarker`, 12 px.
function drawMarker(ctx, chrome, method, x, y) {
  ctx.fillStyle = method === "ems-sd" ? chrome.brand : chrome.vanilla;
  ctx.strokeStyle = method.startsWith("greedy") ? chrome.ink : chrome.vanilla;
  ctx.lineWidth = 2;
  ctx.beginPath();
  if (method === "ems-sd") {
    ctx.arc(x + 6, y + 6, 5.5, 0, 2 * Math.PI);
    return ctx.fill();
  }
  if (method.startsWith("greedy")) {
    ctx.setLineDash([3, 1.5]);
    ctx.moveTo(x, y + 6);
    ctx.lineTo(x + 12, y + 6);
  } else ctx.rect(x + 1.5, y + 1.5, 9, 9);
  ctx.stroke();
  ctx.setLineDash([]);
  if (method === "packed-input") ctx.fillRect(x + 1, y + 1, 5, 10);
  if (method === "ragged-cache") ctx.fillRect(x + 1, y + 6, 10, 5);
}

function drawNodeCanvas(ctx, canvas, box) {
  const at = canvas.getBoundingClientRect();
  if (at.width && at.height && canvas.width && canvas.height) ctx.drawImage(canvas, at.left - box.left, at.top - box.top, at.width, at.height);
}

const PNG_TEXTS = "h3, .layout, .speed > *, .story > *, .c-label, .c-value > *, .c-added, .part-title, .part-note, .part-right";

// A text node's lines where the page has them, drawn as text.
function drawNodeText(ctx, node, box) {
  if (!node.textContent || !node.getClientRects().length) return;
  const style = getComputedStyle(node), range = document.createRange(), text = node.firstChild;
  if (!text || text.nodeType !== Node.TEXT_NODE) return;
  ctx.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  ctx.fillStyle = style.color;
  ctx.textAlign = "left";
  ctx.textBaseline = "middle";
  for (const line of linesOf(text, range)) ctx.fillText(line.text, line.left - box.left, line.middle - box.top);
}

// [{text, left, middle}]: where the browser broke a text.
function linesOf(text, range) {
  const lines = [];
  for (let n = 0; n < text.length; n++) {
    range.setStart(text, n);
    range.setEnd(text, n + 1);
    const at = range.getClientRects()[0], last = lines[lines.length - 1];
    if (!at) continue;
    if (last && Math.abs(at.top - last.top) < 4) last.text += text.data[n];
    else lines.push({ text: text.data[n], left: at.left, top: at.top, middle: (at.top + at.bottom) / 2 });
  }
  return lines;
}

function drawNodeBar(ctx, bar, box, chrome) {
  const whole = bar.getBoundingClientRect();
  ctx.fillStyle = chrome.sunk;
  ctx.fillRect(whole.left - box.left, whole.top - box.top, whole.width, whole.height);
  [...bar.children].forEach((part, n) => {
    const at = part.getBoundingClientRect();
    if (at.width < 0.5) return;
    ctx.fillStyle = chrome.useful;
    if (n === 0) ctx.fillRect(at.left - box.left, at.top - box.top, at.width, at.height);
    else drawWaste(ctx, at.left - box.left, at.top - box.top, at.width, at.height, chrome.waste, part.className);
  });
}

function drawWaste(ctx, x, y, w, h, colour, pattern) {
  drawPattern(ctx, pattern === "dots" ? "dots" : "up", x, y, w, h, colour, 0.9, 3);
  ctx.strokeStyle = colour;
  ctx.lineWidth = 1;
  ctx.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
}
