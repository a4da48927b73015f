// The clock of both panes, marks on the track, breakpoints, and the numbers of one state. Pure: no DOM.

const BREAKPOINTS = [
  { key: "first-rejection", word: "first rejection" },
  { key: "rejection", word: "every rejection" },
  { key: "first-hole", word: "first hole" },
  { key: "hole", word: "every new hole" },
  { key: "kept", word: "a row kept all drafts" },
  { key: "finished", word: "a row finished" },
  { key: "differs", word: "output differs from greedy" },
];
const MARK_ORDER = ["differs", "finished", "hole", "kept", "rejection"];

// Ends of all steps in either pane, in ms: the ticks of the modelled-time clock.
function timelineOf(panes) {
  const ends = panes.flatMap((pane) => pane.counters.ms).sort((a, b) => a - b);
  return ends.filter((end, n) => !n || end - ends[n - 1] > 1e-9);
}

// The pane's last step that has ended at a time.
function stepAtTime(pane, time) {
  let step = 0;
  while (step < pane.last && pane.counters.ms[step + 1] <= time + 1e-9) step++;
  return step;
}

// What a pane shows. A finished pane stays on its last step.
function paneAt(pane, clock, timeline, step, sub) {
  if (clock === "time") return { step: stepAtTime(pane, timeline[step]), sub: "commit" };
  if (step > pane.last) return { step: pane.last, sub: "commit" };
  return { step, sub: step ? sub : "commit" };
}

// All events of one step in either pane: {key, sub, rows, count}.
function marksOfStep(events, step) {
  const here = events.map((pane) => pane[step]).filter(Boolean), marks = [];
  const rows = (name) => [...new Set(here.flatMap((event) => event[name]))].sort((a, b) => a - b);
  const add = (key, sub, who, count = who.length) => { if (count) marks.push({ key, sub, rows: who, count, step }); };
  add("rejection", "verify", rows("rejected"));
  add("kept", "verify", rows("kept"));
  const holes = here.flatMap((event) => event.holes);
  add("hole", "commit", [...new Set(holes.map(([row]) => row))], Math.max(0, ...here.map((event) => event.holes.reduce((sum, [, count]) => sum + count, 0))));
  add("finished", "commit", rows("finished"));
  if (here.some((event) => event.differs)) add("differs", "commit", [], 1);
  return marks.sort((a, b) => MARK_ORDER.indexOf(a.key) - MARK_ORDER.indexOf(b.key));
}

// [steps][marks] in the order of what matters most.
function allMarks(panes, steps) {
  const events = panes.map((pane) => pane.events);
  return Array.from({ length: steps }, (_, step) => marksOfStep(events, step));
}

// Marks that are drawn: in a long run only the first rejection and the first hole are.
function drawnMarks(marks, long) {
  const seen = new Set();
  return marks.map((step) => step.filter(({ key }) => {
    const repeated = seen.has(key);
    seen.add(key);
    return !(long && repeated && (key === "rejection" || key === "hole"));
  }));
}

function markText({ key, rows, count, step }) {
  const who = rows.length === 1 ? `row ${rows[0]}` : `rows ${rows.join(", ")}`;
  const what = {
    rejection: `draft rejected in ${who}`, kept: `all drafts kept in ${who}`, finished: `${who} finished`,
    hole: `${several(count, "new hole")} in ${who}`, differs: "output differs from greedy",
  }[key];
  return `Step ${step}: ${what}`;
}

// Whether a mark is one that the reader ticked; `marks` tells which is the first of its kind.
function isBreakpoint(mark, ticked, marks) {
  if (ticked.has(mark.key)) return true;
  const first = { rejection: "first-rejection", hole: "first-hole" }[mark.key];
  if (!first || !ticked.has(first)) return false;
  return marks.findIndex((step) => step.some(({ key }) => key === mark.key)) === mark.step;
}

// The next place after (step, sub), or before it, at which a mark passes `test`; null for none.
function nextMark(marks, step, sub, direction, test) {
  const now = step * 6 + SUBSTEPS.indexOf(sub);
  const places = marks.flat().filter(test).map((mark) => ({ step: mark.step, sub: mark.sub, at: mark.step * 6 + SUBSTEPS.indexOf(mark.sub) }));
  const later = places.filter(({ at }) => (at - now) * direction > 0).sort((a, b) => (a.at - b.at) * direction);
  return later[0] || null;
}

const COUNTERS = [
  { key: "input-rows", label: "Input rows fed", short: "Input rows" },
  { key: "kv-slots", label: "KV slots read" },
  { key: "holes", label: "Holes" },
  { key: "flops-wasted", label: "FLOPs wasted" },
  { key: "modelled-time", label: "Modelled time" },
];

function totalOf(pane, names, step) {
  return step < 0 ? 0 : names.reduce((sum, name) => sum + (pane.counters[name]?.[step] || 0), 0);
}

const PARTS_OF = {
  "input-rows": { useful: ["rowsUseful"], wasted: ["rowsPad", "rowsFinished"], pattern: "dots" },
  "kv-slots": { useful: ["slotsUseful"], wasted: ["slotsDead", "slotsPadQuery"], pattern: "hatch" },
  holes: { whole: "slotsHeld", wasted: ["holes"], pattern: "hatch", atCommit: true },
  "flops-wasted": { whole: "flops", wasted: ["flopsWasted"], pattern: "dots" },
  "modelled-time": { useful: ["ms"], wasted: [] },
};

// Useful and wasted part of one counter at a step.
function partsAt(pane, key, step) {
  const { useful, whole, wasted } = PARTS_OF[key], waste = totalOf(pane, wasted, step);
  return { wasted: waste, useful: whole ? totalOf(pane, [whole], step) - waste : totalOf(pane, useful, step) };
}

// One counter of a pane: its number, its parts, what the step added. Holes are counted once they are committed.
function counterAt(pane, key) {
  const { whole, atCommit } = PARTS_OF[key], step = atCommit ? committedStep(pane.at) : pane.at.step;
  const parts = partsAt(pane, key, step);
  const value = (each) => (whole ? each.wasted : each.useful + each.wasted);
  const before = pane.at.step > 0 ? partsAt(pane, key, pane.at.step - 1) : { useful: 0, wasted: 0 };
  return { ...parts, value: value(parts), added: value(parts) - value(before), total: parts.useful + parts.wasted };
}

// Right end of a counter's bar: the largest total that any pane reaches.
function counterScale(panes, key) {
  return Math.max(1e-12, ...panes.map((pane) => { const parts = partsAt(pane, key, pane.last); return parts.useful + parts.wasted; }));
}

// Tokens that equal the baseline's, of those emitted, at what the pane shows; null without a baseline.
function agreement(pane) {
  if (!pane.agree) return null;
  const step = committedStep(pane.at);
  return step < 0 ? { agree: 0, emitted: 0 } : { agree: pane.agree[step], emitted: pane.emitted[step] };
}
