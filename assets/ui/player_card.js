// What is said about the item under the pointer (tooltip) and about the pinned one (card).

const CARD_WIDTH = 222, CARD_GAP = 8, GROUND = 8, LIT_COST = 1e5, MOST_LIT = 40;
// A packed strip holds all rows: less is lost there than over what the pinned token reads.
const ROW_COST = { cell: 1e6, query: 5e4 };

function lineList(lines) {
  return make("dl", {}, ...lines.flatMap(([label, value]) => [make("dt", { text: label }), make("dd", { text: value })]));
}

function cardHead(player, told, ...more) {
  return make("div", { class: "card-head" }, swatch(player, told.phase), make("b", { text: told.title }), make("span", { text: told.place }), ...more);
}

class Tooltip {
  constructor(player) {
    this.player = player;
    this.node = make("div", { class: "tip", role: "tooltip", hidden: true });
    this.at = { x: 0, y: 0 };
  }

  move(event) {
    const box = this.player.root.getBoundingClientRect();
    this.at = { x: event.clientX - box.left, y: event.clientY - box.top };
    if (!this.node.hidden) this.place();
  }

  paint() {
    const { player } = this, item = player.hover || player.roving;
    const told = item && !samePlace(item, player.pin) ? player.describe(player.panes[item.pane], item) : null;
    this.node.hidden = !told;
    if (!told) return;
    this.node.replaceChildren(cardHead(player, told), lineList(told.lines));
    if (!player.hover) this.at = this.below(player.panes[item.pane], item);
    this.place();
  }

  // Below the roving cell, in the root's pixels.
  below(pane, item) {
    const box = pane.view.box(item) || { x: 20, y: 20, w: 0, h: 0 };
    return { x: pane.node.offsetLeft + box.x, y: pane.node.offsetTop + box.y + box.h };
  }

  place() {
    const { x, y } = this.at, { offsetWidth: w, offsetHeight: h } = this.node, { root } = this.player;
    const left = x + 16 + w > root.clientWidth ? x - w - 12 : x + 16;
    // What a fed token loads lies below it.
    const top = root.getBoundingClientRect().top, above = this.player.source?.kind === "query" && top + y - h - 12 > 0;
    const below = !above && top + y + 18 + h < window.innerHeight;
    Object.assign(this.node.style, { left: Math.max(0, left) + "px", top: (below ? y + 18 : Math.max(0, y - h - 12)) + "px" });
  }
}

class PinnedCard {
  constructor(player, pane) {
    this.player = player;
    this.pane = pane;
    this.node = make("aside", { class: "card", hidden: true, "aria-label": "Pinned" });
  }

  paint() {
    const { player, pane } = this, { pin } = player, told = pin && pin.pane === pane.index ? player.describe(pane, pin) : null;
    this.node.hidden = !told;
    if (!told) return;
    const unpin = iconButton("pin", "Unpin", () => player.setPin(null), "tool pin");
    const foot = make("div", { class: "card-foot" }, make("kbd", { text: "Esc" }), make("span", { text: "unpin" }), make("span", { class: "right", text: told.foot }));
    if (player.isLesson) return this.node.replaceChildren(cardHead(player, told), lineList(told.lines), unpin); // a line below the cells
    this.node.replaceChildren(cardHead(player, told, unpin), lineList(told.lines), foot);
    this.place(pin);
  }

  place(pin) {
    const { node, pane } = this, box = pane.view.box(pin), size = { w: CARD_WIDTH, h: node.offsetHeight };
    const place = cardPlace(pane, size, box && { ...box, kind: pin.kind });
    Object.assign(node.style, { left: place.x + "px", top: place.y + "px" });
  }
}

// The emptiest place for a card in a pane, below its counters: never over the item's row where there is room, and not
// over what the item lights up.
function cardPlace(pane, size, item) {
  const width = pane.node.clientWidth, height = pane.node.clientHeight, top = pane.view.node.offsetTop;
  const ground = groundOf(pane, width, height), lit = litBoxes(pane);
  let best = null;
  for (let y = top + CARD_GAP; y <= Math.max(top + CARD_GAP, height - size.h - CARD_GAP); y += GROUND) {
    for (let x = width - size.w - CARD_GAP; x >= CARD_GAP; x -= 2 * GROUND) {
      const cost = coveredInk(ground, x, y, size) + rowCost(item, x, y, size) + LIT_COST * lit.filter((box) => overlaps(box, x, y, size)).length;
      if (!best || cost < best.cost - 1e-6) best = { x, y, cost };
    }
  }
  return best || { x: CARD_GAP, y: top };
}

// Where the focused cells and fed tokens are; a long list is cut, since nothing could avoid it.
function litBoxes(pane) {
  if (!pane.focus) return [];
  const item = (kind, key) => { const [row, n] = key.split(".").map(Number); return kind === "cell" ? { kind, row, slot: n } : { kind, row, index: n }; };
  const items = [...pane.focus.queries].map((key) => item("query", key)).concat([...pane.focus.cells.keys()].map((key) => item("cell", key)));
  return items.slice(-MOST_LIT).map((each) => pane.view.box(each)).filter(Boolean);
}

function overlaps(box, x, y, size) {
  return x < box.x + box.w && x + size.w > box.x && y < box.y + box.h && y + size.h > box.y;
}

// How bad it is to lie over the pinned item, or over its row.
function rowCost(item, x, y, size) {
  if (!item) return 0;
  const apart = y > item.y + item.h + 2 || y + size.h < item.y - 2;
  if (apart) return 0;
  return x > item.x + item.w + 2 || x + size.w < item.x - 2 ? ROW_COST[item.kind] : 1e9;
}

// Sums of what is drawn in the pane, one number for every GROUND pixels, as an integral image.
function groundOf(pane, width, height) {
  const w = Math.ceil(width / GROUND), h = Math.ceil(height / GROUND);
  const canvas = make("canvas", { width: w, height: h }), ctx = canvas.getContext("2d", { willReadFrequently: true });
  const from = pane.node.getBoundingClientRect();
  for (const { canvas: drawn } of pane.view.canvases) {
    const at = drawn.getBoundingClientRect();
    if (drawn.width && drawn.height && at.width) ctx.drawImage(drawn, (at.left - from.left) / GROUND, (at.top - from.top) / GROUND, at.width / GROUND, at.height / GROUND);
  }
  const { data } = ctx.getImageData(0, 0, w, h), sums = new Float64Array((w + 1) * (h + 1));
  for (let y = 0; y < h; y++) for (let x = 0; x < w; x++) {
    const ink = data[4 * (y * w + x) + 3];
    sums[(y + 1) * (w + 1) + x + 1] = ink + sums[y * (w + 1) + x + 1] + sums[(y + 1) * (w + 1) + x] - sums[y * (w + 1) + x];
  }
  return { sums, w, h };
}

function coveredInk({ sums, w, h }, x, y, size) {
  const x0 = Math.max(0, Math.floor(x / GROUND)), y0 = Math.max(0, Math.floor(y / GROUND));
  const x1 = Math.min(w, Math.ceil((x + size.w) / GROUND)), y1 = Math.min(h, Math.ceil((y + size.h) / GROUND));
  const at = (row, column) => sums[row * (w + 1) + column];
  return at(y1, x1) - at(y0, x1) - at(y1, x0) + at(y0, x0);
}
