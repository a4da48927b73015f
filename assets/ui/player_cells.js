// Rows of a step as columns, and the state of every cache cell at every sub-step. Pure: the rules are those of emssd/cells.py.

const SUBSTEPS = ["draft", "pack", "write", "attend", "verify", "commit"];
const STATES = ["prompt", "plain", "accepted", "recovered", "bonus", "pending", "draft", "rejected", "hole", "pad", "free"];
const STATE = Object.fromEntries(STATES.map((name, index) => [name, index]));
const CAUSES = ["", "prompt", "input", "finished"];
const ROW_KINDS = ["prefill", "decode", "finished"];
const NEXT_KINDS = [null, "plain", "recovered", "bonus"];
const KEYFRAME = 16, RECENT = 12, FIXED = 14;

// One flat list R -> the row's entry of one step.
function decodeRow(flat, prompt) {
  const [kind, start, written, first, drafted, accepted, emitted, next, cacheLen, finished, pads, nextKind, source, added] = flat;
  const holes = flat.slice(FIXED, FIXED + added), words = flat.slice(FIXED + added);
  const fed = kind === 1 ? words.slice(0, 1 + drafted) : kind === 0 ? prompt : [];
  const answers = kind === 1 ? words.slice(1 + drafted) : words;
  return {
    kind: ROW_KINDS[kind], start, written, first, drafted, accepted, emitted, next, cacheLen, finished: !!finished, pads,
    nextKind: NEXT_KINDS[nextKind], source: source < 0 ? null : source, holes, fed, answers, emittedWords: [...fed.slice(1, 1 + accepted), ...answers.slice(accepted, emitted)],
  };
}

// A pane's steps -> run. Rows are decoded when they are asked for the first time.
function decodePane(pane) {
  const rows = pane.prompts.length, entries = pane.steps.map(() => new Array(rows).fill(null));
  const at = (step, row) => (entries[step][row] ||= decodeRow(pane.steps[step][row], pane.prompts[row]));
  let slots = 0;
  for (const step of pane.steps) for (const flat of step) slots = Math.max(slots, flat[7], flat[2] ? flat[1] + flat[2] : 0);
  const emitted = totalsByRow(pane.steps, rows);
  return { rows, slots, steps: pane.steps.length, at, emitted, prompts: pane.prompts, origins: originsBefore(pane.steps, rows), keyframes: [], recent: new Map() };
}

// [steps][rows] tokens that each row has emitted once the step is committed, prefill's included.
function totalsByRow(steps, rows) {
  const totals = new Int32Array(rows);
  return steps.map((step) => {
    step.forEach((flat, row) => { totals[row] += flat[6]; });
    return totals.slice();
  });
}

// [steps][rows] state that the row's pending token takes when it is written in that step: where it came from.
function originsBefore(steps, rows) {
  const now = new Uint8Array(rows).fill(STATE.plain);
  return steps.map((step) => {
    const before = now.slice();
    step.forEach((flat, row) => { if (flat[6]) now[row] = STATE[NEXT_KINDS[flat[11]] || "accepted"]; });
    return before;
  });
}

function emptyGrid(run) {
  const size = run.rows * run.slots, none = () => new Int32Array(size).fill(-1);
  return { rows: run.rows, slots: run.slots, state: new Uint8Array(size).fill(STATE.free), word: none(), position: none(), step: none(), cause: new Uint8Array(size) };
}

function copyGrid(grid) {
  const { state, word, position, step, cause } = grid;
  return { ...grid, state: state.slice(), word: word.slice(), position: position.slice(), step: step.slice(), cause: cause.slice() };
}

function setCell(grid, index, state, word, position, step, cause) {
  grid.state[index] = state;
  grid.word[index] = word;
  grid.position[index] = position;
  grid.step[index] = step;
  grid.cause[index] = cause;
}

// Takes a cell's place in the row away: nobody may look at it any more.
function deaden(grid, index, state, cause) {
  grid.state[index] = state;
  grid.position[index] = -1;
  grid.cause[index] = cause;
}

function writeRow(grid, base, entry, step, origin) {
  const real = entry.kind === "finished" ? 0 : entry.fed.length;
  for (let n = 0; n < entry.written; n++) {
    const index = base + entry.start + n;
    if (n >= real) setCell(grid, index, STATE.pad, -1, -1, step, 2);
    else setCell(grid, index, entry.kind === "prefill" ? STATE.prompt : n ? STATE.draft : origin, entry.fed[n], entry.first + n, step, 0);
  }
}

function verifyRow(grid, base, entry) {
  for (let n = 0; n < entry.drafted; n++) grid.state[base + entry.start + 1 + n] = n < entry.accepted ? STATE.accepted : STATE.rejected;
}

function commitRow(grid, base, entry) {
  for (const slot of entry.holes) deaden(grid, base + slot, STATE.hole, 0);
  if (entry.kind === "prefill") {
    for (let slot = entry.written; slot < entry.next; slot++) setCell(grid, base + slot, STATE.pad, -1, -1, -1, 1);
    return;
  }
  let end = entry.start + entry.emitted;
  if (entry.emitted === entry.accepted && entry.accepted > 0) grid.state[base + end++] = STATE.pending;
  if (entry.finished) for (let slot = end; slot < entry.next; slot++) deaden(grid, base + slot, STATE.pad, 3);
}

// One step on a grid of the step before, up to sub-step number `until`.
function applyStep(run, grid, step, until) {
  for (let row = 0; row < run.rows; row++) {
    const entry = run.at(step, row), base = row * run.slots;
    if (until >= 2) writeRow(grid, base, entry, step, run.origins[step][row]);
    if (until >= 4) verifyRow(grid, base, entry);
    if (until >= 5) commitRow(grid, base, entry);
  }
}

// The committed grid of step KEYFRAME * number.
function keyframe(run, number) {
  while (run.keyframes.length <= number) {
    const from = run.keyframes.length, grid = from ? copyGrid(run.keyframes[from - 1]) : emptyGrid(run);
    for (let step = from ? (from - 1) * KEYFRAME + 1 : 0; step <= from * KEYFRAME; step++) applyStep(run, grid, step, 5);
    run.keyframes.push(grid);
  }
  return run.keyframes[number];
}

// Every cell at a sub-step: "draft" and "pack" still show the step before. The grid is shared: read it only.
function cellsAt(run, step, sub) {
  const until = SUBSTEPS.indexOf(sub), key = step * 6 + until, known = run.recent.get(key);
  if (known) return known;
  const number = Math.floor(step / KEYFRAME), first = number * KEYFRAME;
  let grid;
  if (step === first && until === 5) grid = keyframe(run, number);
  else if (step === 0) applyStep(run, (grid = emptyGrid(run)), 0, until);
  else {
    const from = step === first ? number - 1 : number;
    grid = copyGrid(keyframe(run, from));
    for (let each = from * KEYFRAME + 1; each < step; each++) applyStep(run, grid, each, 5);
    applyStep(run, grid, step, until);
  }
  run.recent.set(key, grid);
  if (run.recent.size > RECENT) run.recent.delete(run.recent.keys().next().value);
  return grid;
}

// Whether a row of a batch that is cut to the minimum gave up what it gained beyond its last draft kept.
function isCut(pane, entry) {
  return pane.cut && entry.accepted > 0 && entry.emitted === entry.accepted && !entry.finished;
}

// Drafts of a row that the target says, too: all that are kept, and in a cut batch those that are thrown away.
function confirmedOf(pane, entry) {
  let count = entry.accepted;
  while (pane.cut && count < entry.drafted && entry.answers[count] === entry.fed[count + 1]) count++;
  return count;
}

// Whether a cell holds a draft that was confirmed and then thrown away, since the slowest row gained less.
function isCutOff(pane, grid, row, slot) {
  const index = row * grid.slots + slot;
  if (!pane.cut || grid.state[index] !== STATE.rejected) return false;
  const entry = pane.run.at(grid.step[index], row);
  return slot - entry.start <= confirmedOf(pane, entry);
}

// Whether what the target answers to a fed token was gained and then thrown away; its own last token may be.
function isCutAnswer(pane, entry, index) {
  return pane.cut && index >= entry.emitted && index <= confirmedOf(pane, entry);
}

// Verdict on draft `n` (from 0): after the first rejection, an accepted end of sequence or a cut, nobody looks.
function verdictOf(entry, n) {
  if (n < entry.accepted) return "accepted";
  return n === entry.accepted && entry.emitted > entry.accepted ? "rejected" : "unused";
}

// What the target is fed in a step, in packed order.
function queriesAt(run, step) {
  const queries = [];
  if (step === 0) return queries;
  for (let row = 0; row < run.rows; row++) {
    const entry = run.at(step, row), live = entry.kind === "decode", real = live ? entry.fed.length : 0;
    for (let index = 0; index < real + entry.pads; index++) {
      const pad = index >= real, slot = index < entry.written ? entry.start + index : -1;
      queries.push({
        row, index, word: pad ? -1 : entry.fed[index], kind: pad ? "pad" : index ? "draft" : "pending", slot,
        position: live ? entry.first + Math.min(index, real - 1) : Math.max(entry.cacheLen - 1, 0),
        answer: pad ? -1 : entry.answers[index], verdict: pad || !index ? null : verdictOf(entry, index - 1), live,
      });
    }
  }
  return queries;
}

// Slots that a query loads with the per-token kernel: its row's slots up to its own. Dead ones are masked; stale ones
// are rejected drafts that a faulty run reads, because its cursor was not taken back before them.
function readsOf(run, step, query) {
  const visible = [], dead = [], stale = [], grid = cellsAt(run, step, "attend"), base = query.row * run.slots;
  for (let slot = 0; slot <= query.slot; slot++) {
    const state = grid.state[base + slot];
    (state === STATE.hole || state === STATE.pad ? dead : state === STATE.rejected ? stale : visible).push(slot);
  }
  return { visible, dead, stale };
}

// The place in its row's text of what a slot holds; -1 for none. A faulty run may have given it another position.
function textPlace(run, grid, row, slot) {
  const index = row * grid.slots + slot, position = grid.position[index], step = grid.step[index];
  if (position < 0 || step < 1) return position;
  return position - run.at(step, row).first + firstPlace(run, step, row);
}

// The place in the row's text of the pending token that a step feeds.
function firstPlace(run, step, row) {
  return run.prompts[row].length + run.emitted[step - 1][row] - 1;
}

// Whether a slot held a rejected draft when the step's queries read.
function isStale(run, step, row, slot) {
  return cellsAt(run, step, "attend").state[row * run.slots + slot] === STATE.rejected;
}

// Queries of a step that load one slot.
function readersOf(run, step, row, slot) {
  const state = cellsAt(run, step, "attend").state[row * run.slots + slot];
  const visible = state !== STATE.hole && state !== STATE.pad;
  return queriesAt(run, step).filter((query) => query.row === row && query.slot >= slot).map((query) => ({ query, visible }));
}

// The paper's kernel is launched twice when any row feeds more than one token.
function launchesOf(run, step) {
  for (let row = 0; row < run.rows; row++) {
    const entry = run.at(step, row);
    if (entry.kind === "decode" && entry.fed.length + entry.pads > 1) return 2;
  }
  return 1;
}

// What happened in each step, by row.
function eventsOf(run, pane) {
  return pane.steps.map((_, step) => {
    const event = { rejected: [], holes: [], kept: [], finished: [], differs: !!pane.differs && pane.differs.step === step };
    for (let row = 0; row < run.rows; row++) {
      const entry = run.at(step, row);
      if (entry.holes.length) event.holes.push([row, entry.holes.length]);
      if (entry.kind === "finished") continue;
      if (entry.finished) event.finished.push(row);
      if (!entry.drafted) continue;
      if (entry.accepted === entry.drafted) event.kept.push(row);
      else if (entry.emitted > entry.accepted) event.rejected.push(row);
    }
    return event;
  });
}

// The last step whose commit is shown; -1 before prefill's.
function committedStep({ step, sub }) {
  return sub === "commit" ? step : step - 1;
}

// The slots of a row that are covered until a question is answered, [first, end]; undefined for a row that is open.
function coverOf(pane, row) {
  return pane.covered?.get(row);
}

function isCoveredSlot(pane, row, slot) {
  const cover = coverOf(pane, row);
  return !!cover && slot >= cover[0] && slot < cover[1];
}

// The last committed step of a row that is not covered; -1 for none.
function toldStep(pane, row) {
  const done = committedStep(pane.at);
  return coverOf(pane, row) ? Math.min(done, pane.at.step - 1) : done;
}

// A shared cursor tells of every row.
function isCursorCovered(pane, row) {
  return pane.shared ? !!pane.covered?.size : !!coverOf(pane, row);
}
