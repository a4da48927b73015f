// What a reader opens beside the panes: the predict card, the code of the sub-step, the step as a table.

// A question about what step `step` reveals, and its answer: always the same one for the same step.
function questionOf(player, step) {
  const panes = player.panes.filter((pane) => step <= pane.last);
  if (!panes.length || step === 0) return null;
  const live = [...Array(panes[0].run.rows).keys()].filter((row) => panes[0].run.at(step, row).kind === "decode");
  if (!live.length) return null;
  const drafting = live.filter((row) => panes[0].run.at(step, row).drafted > 0), shared = panes.find((pane) => pane.shared);
  const kinds = [drafting.length ? "accepted" : null, "next", shared ? "holes" : null].filter(Boolean);
  const kind = kinds[step % kinds.length], rows = kind === "accepted" ? drafting : live, row = rows[Math.floor(step / kinds.length) % rows.length];
  const pane = kind === "holes" ? shared : panes[step % panes.length];
  return { kind, row, pane, step, ...QUESTIONS[kind](player, pane, step, row) };
}

const QUESTIONS = {
  accepted(player, pane, step, row) {
    const entry = pane.run.at(step, row), { accepted, drafted } = entry, say = (word) => quoted(player.data, word);
    const missed = accepted < drafted && verdictOf(entry, accepted) === "rejected";
    const end = missed ? `draft ${accepted + 1} ${say(entry.fed[accepted + 1])} meets the target’s ${say(entry.answers[accepted])}, so the walk ends there` : "the walk finds no mismatch";
    const words = entry.fed.slice(1).map(say).join(" ");
    const text = `Row ${row} drafts ${words}. How many of these ${several(drafted, "draft")} will the target accept?`;
    return { text, answer: accepted, reason: `Row ${row} keeps ${accepted} of ${drafted}: ${end}.` };
  },
  next(player, pane, step, row) {
    const { start, next } = pane.run.at(step, row), moved = next - start;
    const shared = `the shared cursor moves by the largest gain of the live rows, ${moved}`;
    const own = `row ${row} gains ${several(moved, "token")}, and its own cursor moves by that`;
    const text = `${pane.title}: row ${row} writes from slot ${start} in this step. From which slot in the next step?`;
    return { text, answer: next, reason: `Slot ${next}: ${pane.shared ? shared : own} (${start} + ${moved}).` };
  },
  holes(player, pane, step) {
    const counts = pane.events[step].holes, total = counts.reduce((sum, [, count]) => sum + count, 0);
    const which = counts.map(([row, count]) => `row ${row} leaves ${count}`).join(", ");
    const some = `The step leaves ${several(total, "hole")}: the cursor moves by the largest gain, so ${which}.`;
    const text = `${pane.title}: how many new holes does this step leave in the KV cache, all rows together?`;
    return { text, answer: total, reason: total ? some : "None: no row that lives on gains less than the others." };
  },
};

class PredictCard {
  constructor(player) {
    Object.assign(this, { player, asked: 0, right: 0, given: new Map() });
    this.text = make("p", { class: "q-text" });
    this.input = make("input", { type: "number", min: 0, step: 1, "aria-label": "Your prediction", onkeydown: (event) => { if (event.key === "Enter") this.check(); } });
    this.button = make("button", { type: "button", class: "word primary", text: "Check", onclick: () => this.check() });
    this.skip = make("button", { type: "button", class: "word", text: "Skip", onclick: () => this.pass() });
    this.result = make("p", { class: "q-result", role: "status" });
    this.next = make("button", { type: "button", class: "word", text: "Next question", onclick: () => this.ask() });
    this.score = make("span", { class: "q-score" });
    this.form = make("div", { class: "q-line" }, this.input, this.button, this.skip);
    const head = make("div", { class: "q-head" }, this.text, this.score, iconButton("cross", "Stop predicting", () => player.togglePredict()));
    this.node = make("section", { class: "predict", "aria-label": "Predict before you see", hidden: true }, head, this.form, this.result, make("div", { class: "q-line" }, this.next));
  }

  clear() {
    this.given.clear();
    this.hint = "";
    Object.assign(this, { asked: 0, right: 0 });
  }

  // Asks only what is not on screen yet; a step that was answered shows its explanation.
  paint() {
    const { player } = this;
    this.node.hidden = !player.predicting;
    if (!player.predicting) return (this.question = null);
    const { step } = player, question = questionOf(player, step), given = this.given.get(`${player.data.id} ${step}`);
    const revealed = SUBSTEPS.indexOf(player.shownSub) >= 4, open = question && !given && !revealed;
    this.question = open ? question : null;
    this.text.textContent = question ? `Step ${step}. ${question.text}` : "Nothing to predict here: go to a step that decodes.";
    this.form.hidden = !open;
    if (this.askedAt !== step) this.input.value = this.hint = "";
    this.askedAt = step;
    this.next.parentNode.hidden = !question || !!open || step >= player.count - 1;
    this.result.textContent = given || this.hint || (question && revealed ? `Already on screen: ${question.answer}. Go to another step to predict.` : "");
    this.score.textContent = this.asked ? `${this.right} of ${this.asked} right` : "";
  }

  check() {
    const { question } = this;
    if (!question) return;
    if (this.input.value === "" || !Number.isInteger(+this.input.value)) {
      this.hint = "Type a whole number, or skip.";
      return this.paint();
    }
    const right = +this.input.value === question.answer;
    this.asked++;
    this.right += right ? 1 : 0;
    this.tell(question, `${right ? "✓ Right." : `✗ Not ${this.input.value}.`} ${question.reason}`);
  }

  // The next step's question, ready to be answered.
  ask() {
    this.player.go(this.player.step + 1);
    if (this.question) this.input.focus({ preventScroll: true });
  }

  pass() {
    if (this.question) this.tell(this.question, `Skipped. ${this.question.reason}`);
  }

  // The player then shows the sub-step that proves it.
  tell(question, text) {
    const { player } = this;
    this.given.set(`${player.data.id} ${question.step}`, text);
    player.root.focus({ preventScroll: true });
    player.go(question.step, question.kind === "accepted" ? "verify" : "commit");
  }
}

class CodePanel {
  constructor(player) {
    this.player = player;
    this.node = make("section", { class: "codes", "aria-label": "Code of this sub-step", hidden: true });
  }

  paint() {
    const { player } = this;
    this.node.hidden = !player.showsCode;
    if (!player.showsCode) return;
    const shown = player.shown.map((pane) => ({ pane, code: pane.code?.[pane.at.sub] }));
    const key = JSON.stringify(shown.map(({ pane, code }) => [player.data.id, pane.index, pane.at.sub, code?.active]));
    if (key === this.painted) return;
    this.painted = key;
    const same = shown.length === 2 && JSON.stringify(shown[0].code) === JSON.stringify(shown[1].code);
    this.node.replaceChildren(...(same ? shown.slice(0, 1) : shown).map(({ pane, code }) => this.listing(same ? "Both panes" : pane.title, pane.at.sub, code)));
    for (const listing of this.node.children) scrollToActive(listing.querySelector("pre"));
  }

  listing(title, sub, code) {
    const head = make("div", { class: "code-head" }, make("b", { text: `${title}, ${sub}` }));
    if (!code) return make("div", {}, head, make("p", { text: "No code is recorded for this sub-step." }));
    head.append(make("span", { text: `${code.name} · ${code.file}:${code.line}` }));
    const active = new Set(code.active);
    const lines = code.lines.map((text, n) => {
      const number = make("i", { text: String(code.line + n) });
      return make("div", { class: active.has(n) ? "active" : "" }, number, make("span", { text: text || " " }));
    });
    return make("div", {}, head, make("pre", { tabindex: "0", "aria-label": `${code.name}, ${code.file} line ${code.line}` }, ...lines));
  }
}

function scrollToActive(listing) {
  const line = listing?.querySelector(".active");
  if (line) listing.scrollTop = Math.max(0, line.offsetTop - listing.offsetTop - listing.clientHeight / 3);
}

const TAIL_WORDS = 40;
const TABLE_COLUMNS = ["Pane", "Row", "Fed", "Drafts", "Kept", "Target’s own", "Gain", "Next slot", "Holes", "Cache length", "Text"];

class StepTable {
  constructor(player) {
    this.player = player;
    this.body = make("tbody");
    this.caption = make("caption");
    const head = make("thead", {}, make("tr", {}, ...TABLE_COLUMNS.map((name) => make("th", { scope: "col", text: name }))));
    const table = make("table", {}, this.caption, head, this.body);
    const title = "This step as a table";
    const scroll = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, table);
    this.node = make("details", { class: "step-table", ontoggle: () => this.paint() }, make("summary", { text: title }), scroll);
  }

  paint() {
    const { player } = this;
    if (!this.node.open) return;
    this.caption.textContent = player.step ? `${player.transport.valueText()}. What this sub-step does not show yet is “–”.` : "Prefill";
    this.body.replaceChildren(...player.panes.flatMap((pane) => Array.from({ length: pane.run.rows }, (_, row) => this.line(pane, row))));
  }

  line(pane, row) {
    const cells = rowFacts(this.player, pane, row).map((text, n) => make(n < 2 ? "th" : "td", { text: String(text), ...(n < 2 ? { scope: "row" } : {}) }));
    return make("tr", {}, ...cells);
  }
}

// One row of one pane in words. What the sub-step does not show yet is "–".
function rowFacts(player, pane, row) {
  const { step, sub } = pane.at, stage = SUBSTEPS.indexOf(sub), entry = pane.run.at(step, row), { data } = player;
  const word = (index) => (index < 0 ? "pad" : data.words[index]), join = (words) => words.map(word).join(" ") || "none";
  const judged = stage >= 4, done = stage >= 5, last = committedStep(pane.at), before = last < 0 ? null : pane.run.at(last, row);
  if (coverOf(pane, row)) return [pane.title, `${row}: ${data.rows[row]}`, ...Array(8).fill("?"), tailText(player, textOf(pane, row))];
  const own = entry.emitted > entry.accepted ? `${word(entry.answers[entry.emitted - 1])} (${entry.nextKind || "plain"})` : "none";
  let holes = 0;
  for (let each = 1; each <= last; each++) holes += pane.run.at(each, row).holes.length;
  const fed = entry.kind === "prefill" ? several(entry.fed.length, "prompt token") : join(entry.fed.concat(Array(entry.pads).fill(-1)));
  const told = (value) => (isCursorCovered(pane, row) ? "?" : value);
  return [
    pane.title, `${row}: ${data.rows[row]}`, stage < 1 ? "–" : entry.kind === "finished" && !entry.pads ? "finished, nothing" : fed,
    entry.drafted ? join(entry.fed.slice(1)) : "none", judged ? `${entry.accepted} of ${entry.drafted}` : "–", judged ? own : "–",
    done ? entry.emitted : "–", told(before ? before.next : 0), told(holes), before ? before.cacheLen : 0, tailText(player, textOf(pane, row)),
  ];
}

// The text's end in a batch, as the picture has it; the whole text of a small run.
function tailText({ data, isBatch }, words) {
  const cut = isBatch && words.length > TAIL_WORDS;
  return (cut ? "…" : "") + (cut ? words.slice(-TAIL_WORDS) : words).map((word) => data.words[word]).join("");
}
