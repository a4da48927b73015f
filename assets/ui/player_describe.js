// Words about one cell, one fed token or one committed token: what the card shows and the live region says. No DOM.

const NUMBER = new Intl.NumberFormat("en-US");
const MOST_LINES = 7;
const PAD_CAUSES = { prompt: "prompt pad", input: "input pad", finished: "end of a finished row" };

// "1 hole", "2 holes", "no holes".
function several(count, noun, many = noun + "s") {
  return `${count ? NUMBER.format(count) : "no"} ${count === 1 ? noun : many}`;
}

function capital(text) {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}

function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) { bytes /= 1024; unit++; }
  return `${unit && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes)} ${units[unit]}`;
}

// A token's text in quotes, without the space before it; a token of spaces alone stays visible.
function quoted(data, word) {
  return word < 0 ? "nothing" : `“${data.words[word].trim() || "␣"}”`;
}

// "“six” (id 2412)", where the token's id is known.
function wordAndId(data, word) {
  const id = word < 0 ? undefined : data.ids?.[word];
  return quoted(data, word) + (id === undefined || id < 0 ? "" : ` (id ${id})`);
}

function cellOf(grid, row, slot) {
  const index = row * grid.slots + slot;
  return { state: STATES[grid.state[index]], word: grid.word[index], position: grid.position[index], step: grid.step[index], cause: CAUSES[grid.cause[index]] };
}

// The step in whose commit a slot became a hole, up to `last`; -1 for none.
function holeSince(run, row, slot, last) {
  for (let step = last; step > 0; step--) if (run.at(step, row).holes.includes(slot)) return step;
  return -1;
}

function description(title, phase, row, slot, place, lines, foot = "") {
  const shown = lines.filter(Boolean).slice(0, MOST_LINES);
  const text = [`${title}, ${place}.`, ...shown.map(([label, value]) => `${label}: ${value}.`)].join(" ");
  return { title, phase, row, slot, place, lines: shown, foot, text };
}

function titleOfCell(player, cell) {
  if (cell.state === "cut") return "Cut off";
  if (cell.state === "pad") return capital(PAD_CAUSES[cell.cause]);
  if (cell.state === "free") return "Free";
  return capital(player.data.palette.phases[cell.state].word);
}

// What a slot holds; a hole says what it held when it was cut off.
function holdsOf(player, pane, cell, row, slot, since) {
  if (since < 0) return cell.word < 0 ? "nothing" : wordAndId(player.data, cell.word);
  const before = cellOf(cellsAt(pane.run, since, "verify"), row, slot);
  if (before.word < 0) return before.state === "pad" ? "an input pad" : "nothing was ever written";
  return `${before.state} ${quoted(player.data, before.word)}`;
}

// [label, text, note below]: who loads a slot in this step; nothing before the attention runs.
function loadsOf(player, pane, row, slot) {
  const { step, sub } = pane.at;
  if (step === 0 || SUBSTEPS.indexOf(sub) < 3) return null;
  const readers = readersOf(pane.run, step, row, slot);
  if (!readers.length) return { who: ["Loaded by", "no query in this step"] };
  const { visible } = readers[0], stale = isStale(pane.run, step, row, slot), pads = readers.filter(({ query }) => query.kind === "pad").length;
  const wasted = visible ? pads : readers.length;
  const launches = launchesOf(pane.run, step), bytes = player.data.bytesPerSlot;
  const queries = several(readers.length, "query", "queries");
  return {
    who: visible ? ["Read by", queries + (stale ? ", by mistake: it was rejected" : pads ? `, ${several(pads, "pad")} among them` : "")] : ["Loaded by", `${queries}, weight 0`],
    cost: bytes ? [wasted === readers.length ? "Wasted" : "Loads", `${bytesText(bytes * readers.length * launches)} this step`] : null,
    foot: bytes ? `${bytesText(bytes)} × ${several(launches, "launch", "launches")}` : "",
  };
}

// What a cell's card says at what the pane shows.
function describeCell(player, pane, row, slot) {
  if (isCoveredSlot(pane, row, slot)) return description("Hidden", "free", row, slot, `row ${row}, slot ${slot}`, [["Holds", "shown once you answer or skip the question"]]);
  const { run, at } = pane, grid = cellsAt(run, at.step, at.sub), cell = cellOf(grid, row, slot);
  const since = cell.state === "hole" ? holeSince(run, row, slot, committedStep(at)) : -1;
  const loads = loadsOf(player, pane, row, slot);
  if (isCutOff(pane, grid, row, slot)) cell.state = "cut";
  const lines = [["Holds", holdsOf(player, pane, cell, row, slot, since)]];
  if (cell.state !== "free") lines.push(["Position", cell.position < 0 ? "none" : String(cell.position)]);
  lines.push(cell.step < 0 ? ["Written", "never"] : ["Written", cell.step ? `step ${cell.step}, write` : "prefill"]);
  if (since >= 0) lines.push(["Hole since", `step ${since}, commit`]);
  if (loads) lines.push(loads.who, player.isLesson ? null : loads.cost);
  return description(titleOfCell(player, cell), cell.state, row, slot, `row ${row}, slot ${slot}`, lines, player.isLesson ? "" : loads?.foot);
}

// The target's best few tokens where a query stands, with how far each is behind the best.
function bestTokens(player, pane, query) {
  const best = pane.tops?.[`${pane.at.step}.${query.row}`]?.[query.index];
  return best?.length ? `${best.map(([word, gap]) => `${quoted(player.data, word)} ${gap ? "−" + gap.toFixed(2) : "best"}`).join(", ")} (logits)` : "";
}

// Where a looked-up draft was copied from: position and token just before the copy.
function copiedFrom(player, pane, query) {
  const entry = pane.run.at(pane.at.step, query.row);
  if (entry.source === null || query.kind !== "draft") return "";
  const position = entry.source + query.index - 1, word = textOf(pane, query.row)[position];
  return word === undefined ? `position ${position}` : `position ${position} ${quoted(player.data, word)}`;
}

function verdictLine(pane, query, judged) {
  if (!judged) return null;
  if (query.kind === "pad") return ["Answer", "wasted: nobody looks at it"];
  if (!query.verdict) return null;
  const entry = pane.run.at(pane.at.step, query.row), cut = query.index <= confirmedOf(pane, entry) ? "confirmed" : "unused";
  if (query.verdict === "unused") return ["Verdict", isCut(pane, entry) ? `${cut}, but cut to what the slowest row gained` : "unused: a token before it ended the walk"];
  if (query.verdict === "rejected") return ["Verdict", "rejected"];
  return ["Verdict", isWronglyKept(pane, query) ? "accepted, though the target says something else" : "accepted: the target says the same"];
}

// Whether a faulty run kept a draft that is not the target's answer in its place.
function isWronglyKept(pane, { row, index, verdict }) {
  const { answers, fed } = pane.run.at(pane.at.step, row);
  return verdict === "accepted" && answers[index - 1] !== fed[index];
}

function readsLine({ kind }, { visible, dead, stale }) {
  if (kind === "pad") return ["Loads", `${several(visible.length + dead.length, "slot")}, all for nothing`];
  const wrong = stale.length ? ` and ${several(stale.length, "rejected draft")}` : "";
  return ["Reads", `${several(visible.length, "token")} of its row` + wrong + (dead.length ? `, loads ${several(dead.length, "dead slot")}` : "")];
}

// The fed token before a draft is the one whose answer judges it.
function whyRejected(player, pane, query) {
  const judge = pane.run.at(pane.at.step, query.row).answers[query.index - 1], judged = { ...query, index: query.index - 1 };
  const best = bestTokens(player, pane, judged), known = pane.tops?.[`${pane.at.step}.${query.row}`]?.[judged.index] || [];
  const beyond = best && !known.some(([word]) => word === query.word) ? `; ${quoted(player.data, query.word)} is not among these` : "";
  return ["Why rejected", best ? best + beyond : `the target says ${quoted(player.data, judge)}`];
}

// What a fed token's card says at what the pane shows.
function describeQuery(player, pane, query) {
  const { step, sub } = pane.at, stage = SUBSTEPS.indexOf(sub), covered = !!coverOf(pane, query.row), judged = stage >= 4 && !covered;
  const title = { pending: "Next token", draft: "Draft", pad: query.live ? "Input pad" : "Pad of a finished row" }[query.kind];
  const reads = readsOf(pane.run, step, query), lines = [];
  const phase = query.kind === "draft" && judged && query.verdict ? (query.verdict === "accepted" ? "accepted" : "rejected") : query.kind;
  if (query.word >= 0) lines.push(["Token", wordAndId(player.data, query.word)]);
  lines.push(["Position", `${query.position}${query.kind === "pad" ? ", the row’s last again" : ""}`]);
  if (isCursorCovered(pane, query.row)) lines.push(["Slot", "shown once you answer or skip the question"]);
  else if (query.slot < 0) lines.push(["Written", "nowhere; it reads nothing"]);
  else lines.push(readsLine(query, reads));
  const copied = copiedFrom(player, pane, query);
  if (copied) lines.push(["Copied from", copied]);
  lines.push(verdictLine(pane, query, judged));
  if (judged && query.verdict === "rejected") lines.push(whyRejected(player, pane, query));
  if (judged && query.answer >= 0 && query.verdict !== "rejected" && query.verdict !== "unused") {
    lines.push(["Target says", bestTokens(player, pane, query) || quoted(player.data, query.answer)]);
  }
  const place = `row ${query.row}` + (query.slot < 0 || isCursorCovered(pane, query.row) ? "" : `, slot ${query.slot}`);
  return description(title, phase, query.row, query.slot, place, lines);
}

// [prompt and new words] of a row, up to the last committed step.
function textOf(pane, row) {
  const words = pane.run.prompts[row].slice();
  for (let step = 0; step <= toldStep(pane, row); step++) words.push(...pane.run.at(step, row).emittedWords);
  return words;
}

// Position, origin and step of the n-th token of a row's text, the prompt's tokens first; null beyond its end.
function textToken(pane, row, n) {
  let first = pane.run.prompts[row].length;
  if (n < first) return { word: pane.run.prompts[row][n], state: "prompt", step: 0 };
  for (let step = 0; step <= toldStep(pane, row); step++) {
    const entry = pane.run.at(step, row), at = n - first;
    if (at < entry.emitted) return { word: entry.emittedWords[at], state: originOf(entry, at), step };
    first += entry.emitted;
  }
  return null;
}

// Where the n-th token that a row emitted in a step came from.
function originOf(entry, n) {
  return n < Math.min(entry.accepted, entry.emitted) ? "accepted" : entry.nextKind || "plain";
}

function describeText(player, pane, row, n) {
  const token = textToken(pane, row, n);
  if (!token) return null;
  const slot = slotOfText(pane, row, n), prompt = n < pane.run.prompts[row].length;
  const lines = [["Token", wordAndId(player.data, token.word)], ["Position", String(n)]];
  lines.push(["Committed", token.step ? `step ${token.step}` : prompt ? "prompt" : "prefill"]);
  lines.push(["In the cache", isCoveredSlot(pane, row, slot) ? "hidden" : slot < 0 ? "not yet" : `slot ${slot}`]);
  const place = `row ${row}, ` + (prompt ? "prompt" : `new token ${n - pane.run.prompts[row].length + 1}`);
  return description(capital(player.data.palette.phases[token.state].word), token.state, row, slot, place, lines);
}

// Slot of a row that holds the n-th token of its text; -1 for none. A rejected token only counts while none is kept there.
function slotOfText(pane, row, n) {
  const grid = cellsAt(pane.run, pane.at.step, pane.at.sub), base = row * grid.slots;
  let stale = -1;
  for (let slot = 0; slot < grid.slots; slot++) {
    if (textPlace(pane.run, grid, row, slot) !== n) continue;
    if (grid.state[base + slot] !== STATE.rejected) return slot;
    stale = slot;
  }
  return stale;
}
