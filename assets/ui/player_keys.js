// The keyboard, while the player has the focus: stepping, opening things, and inspecting cells one by one.

const PLAYER_KEYS = {
  ArrowLeft: (player, shift) => (shift ? player.goSub(-1) : player.go(player.step - 1)),
  ArrowRight: (player, shift) => (shift ? player.goSub(1) : player.go(player.step + 1)),
  Home: (player) => player.go(0),
  End: (player) => player.go(player.count - 1, "commit"),
  " ": (player) => player.toggle(),
  b: (player) => player.goEvent(1),
  B: (player) => player.goEvent(-1),
  1: (player) => player.showPanes(1),
  2: (player) => player.showPanes(2),
  g: (player) => player.transport.openJump(),
  i: (player) => startInspecting(player),
  p: (player) => !player.isLesson && player.togglePredict(),
  "?": (player) => player.transport.keys.firstElementChild.click(),
  Escape: (player) => escapeOnce(player),
};

// A key that the player knows is used up; everything else is left to the page.
function playerKey(player, event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const target = event.composedPath()[0], typing = target.tagName === "INPUT" && target.type !== "range";
  if (typing && !(event.key === "Escape")) return;
  const pressed = target.tagName === "BUTTON" || target.tagName === "SUMMARY";
  if (pressed && !player.roving && (event.key === " " || event.key === "Enter")) return;
  if (/^\d$/.test(event.key) && player.predict.question) return player.predict.input.focus({ preventScroll: true });
  const name = event.key.length === 1 && !(event.key === "B" && event.shiftKey) ? event.key.toLowerCase() : event.key;
  const done = (player.roving && inspectKey(player, event.key)) || act(PLAYER_KEYS[name], player, event.shiftKey);
  if (!done) return;
  event.preventDefault();
  event.stopPropagation();
}

function act(action, player, shift) {
  if (!action) return false;
  return action(player, shift) !== false;
}

// Closes the innermost thing: an open menu, then the inspected cell, then the pin, then an open card. False where there was nothing.
function escapeOnce(player) {
  const menu = player.menus.find((box) => !box.lastElementChild.hidden);
  if (menu) return menu.close();
  if (player.roving) return stopInspecting(player);
  if (player.pin) return player.setPin(null);
  if (player.predicting) return player.togglePredict();
  if (player.showsCode) return player.toggleCode();
  return false;
}

// ---- inspecting cells by keyboard

function startInspecting(player) {
  const next = player.roving ? (player.roving.pane + 1) % player.panes.length : player.shown[0].index;
  const pane = player.shown.includes(player.panes[next]) ? player.panes[next] : player.shown[0];
  const row = player.roving?.row || 0, cursor = isCursorCovered(pane, row) || committedStep(pane.at) < 0 ? 0 : pane.run.at(committedStep(pane.at), row).next;
  rove(player, pane, row, player.roving?.slot ?? Math.max(cursor - 1, 0));
}

function stopInspecting(player) {
  player.roving = null;
  player.paintFocus();
}

function rove(player, pane, row, slot) {
  const { rows, slots } = pane.run;
  player.roving = { pane: pane.index, kind: "cell", row: Math.min(Math.max(row, 0), rows - 1), slot: Math.min(Math.max(slot, 0), slots - 1) };
  player.hover = null;
  player.tell(`${pane.title}, ${describeCell(player, pane, player.roving.row, player.roving.slot).text}`);
  player.paintFocus();
}

function inspectKey(player, key) {
  const { pane, row, slot } = player.roving, here = player.panes[pane];
  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -slot], End: [0, here.run.slots] };
  if (moves[key]) rove(player, here, row + moves[key][0], slot + moves[key][1]);
  else if (key === "Enter") player.press(here, { kind: "cell", row, slot });
  else return false;
  return true;
}
