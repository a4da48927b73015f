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
  pngText(player, ctx, ["EMS-SD", state, badge].filter(Boolean).join("   ·   "), PNG_GAP, 32, 15.5, 650, chrome.ink);
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
  const { chrome } = player.theme;
  ctx.fillStyle = chrome.panel;
  ctx.strokeStyle = chrome.hairline;
  ctx.lineWidth = 1;
  ctx.beginPath();
  ctx.roundRect(0.5, 0.5, box.width - 1, box.height - 1, 12);
  ctx.fill();
  ctx.stroke();
  for (const node of pane.node.querySelectorAll(PNG_TEXTS)) drawNodeText(player, ctx, node, box);
  for (const bar of pane.node.querySelectorAll(".c-bar")) drawNodeBar(ctx, bar, box, chrome);
  for (const canvas of pane.node.querySelectorAll("canvas")) {
    const at = canvas.getBoundingClientRect();
    if (at.width && at.height && canvas.width && canvas.height) ctx.drawImage(canvas, at.left - box.left, at.top - box.top, at.width, at.height);
  }
}

const PNG_TEXTS = "h3, .layout, .speed > *, .story > *, .c-label, .c-value > *, .c-below > *, .part-title, .part-note, .part-right, .card b, .card span, .card dt, .card dd";

// A text node's lines where the page has them, drawn as text.
function drawNodeText(player, ctx, node, box) {
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
