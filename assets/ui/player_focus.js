// What both panes light up for the item that the reader points at, linked by row and position.

function samePlace(a, b) {
  if (!a || !b) return a === b || (!a && !b);
  return ["pane", "kind", "row", "slot", "index", "n"].every((name) => a[name] === b[name]);
}

// The item of another pane in this pane, by row and place in its text; null where it has none.
function itemIn(player, pane, item) {
  if (item.pane === pane.index) return item;
  const from = player.panes[item.pane];
  if (item.kind === "text") return textToken(pane, item.row, item.n) && item;
  if (item.kind === "query") {
    const query = findQuery(from, item), twin = query && twinOf(from, pane, query);
    return twin ? { kind: "query", row: twin.row, index: twin.index } : null;
  }
  const place = textPlace(from.run, cellsAt(from.run, from.at.step, from.at.sub), item.row, item.slot);
  const slot = place < 0 ? -1 : slotOfText(pane, item.row, place);
  return slot < 0 ? null : { kind: "cell", row: item.row, slot };
}

// The fed token of another pane that stands at the same place of the same row; a pad has none.
function twinOf(from, pane, { row, index, kind }) {
  if (kind === "pad" || pane.at.step < 1) return null;
  const twin = index + firstPlace(from.run, from.at.step, row) - firstPlace(pane.run, pane.at.step, row);
  return queriesAt(pane.run, pane.at.step).find((each) => each.row === row && each.index === twin && each.kind !== "pad");
}

function findQuery(pane, { row, index }) {
  return queriesAt(pane.run, pane.at.step).find((each) => each.row === row && each.index === index);
}

// What a pane lights up for what the reader points at: {queries, cells, source}; null for nothing.
function focusOf(player, pane) {
  const item = player.source && itemIn(player, pane, player.source);
  if (!item || player.panes.some((each) => coverOf(each, item.row))) return null;
  if (item.kind === "query") return queryFocus(pane, item);
  const slot = item.kind === "text" ? slotOfText(pane, item.row, item.n) : item.slot;
  const focus = slot < 0 ? null : cellFocus(pane, item, slot);
  // A pin stays while the reader steps: where no query loads its cell, nothing needs to step back.
  return focus && !focus.queries.size && player.source === player.pin ? null : focus;
}

function queryFocus(pane, item) {
  const query = findQuery(pane, item);
  if (!query) return null;
  const { visible, dead, stale } = readsOf(pane.run, pane.at.step, query), cells = new Map();
  const written = SUBSTEPS.indexOf(pane.at.sub) >= 2, end = written ? Infinity : pane.run.at(pane.at.step, item.row).start;
  for (const slot of visible) if (slot < end) cells.set(`${item.row}.${slot}`, "visible");
  for (const slot of dead) if (slot < end) cells.set(`${item.row}.${slot}`, "dead");
  for (const slot of stale) if (slot < end) cells.set(`${item.row}.${slot}`, "stale");
  return { queries: new Set([`${item.row}.${item.index}`]), cells, source: item };
}

function cellFocus(pane, item, slot) {
  const readers = readersNow(pane, item.row, slot);
  const grid = cellsAt(pane.run, pane.at.step, pane.at.sub);
  if (!readers.length && grid.state[item.row * grid.slots + slot] === STATE.free) return null;
  const queries = new Set(readers.map(({ query }) => `${query.row}.${query.index}`));
  const how = !readers.length || pane.at.step < 1 ? "visible" : !readers[0].visible ? "dead" : isStale(pane.run, pane.at.step, item.row, slot) ? "stale" : "visible";
  return { queries, cells: new Map([[`${item.row}.${slot}`, how]]), source: item };
}

// Who has to do with a slot at what the pane shows: the query that writes it at "write", who loads it from "attend" on.
function readersNow({ run, at: { step, sub } }, row, slot) {
  const stage = SUBSTEPS.indexOf(sub);
  if (stage < 2) return [];
  const readers = readersOf(run, step, row, slot);
  return stage > 2 ? readers : readers.filter(({ query }) => query.slot === slot).map((each) => ({ ...each, visible: true }));
}

// Puts an outline over an item of this pane; away when it is elsewhere or not on screen.
function outline(pane, node, item) {
  const box = item && item.pane === pane.index ? pane.view.box(item) : null;
  node.hidden = !box;
  if (box) Object.assign(node.style, { left: box.x - 2 + "px", top: box.y - 2 + "px", width: box.w + 4 + "px", height: box.h + 4 + "px" });
}
