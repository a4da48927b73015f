// The player beside a lesson's text: compact, moved by the page from state to state, and with rows that stay covered
// until their question is answered. The page says in data.lesson: {key, reveals, asks, hide: [[pane, row]], says,
// sealed, marked, stops, query: [row, index], attends: [panes][steps] what is said of that query}.

const LESSON_TOP = 58, TIGHT = 760;
const TEXT_GAP = 9; // between a pane's own text and its other section
const COVER_MORE = 3; // slots, so that the number of covered cells tells nothing
// How much is seen at once, the best first: which sections, and what is left out (classes of the style sheet).
const SMALL_LEVELS = [[0, ""], [1, ""], [1, "slim"], [1, "slim brief"]];
const OWN_TEXT_LEVELS = [[0, ""], [0, "slim"], ...SMALL_LEVELS.slice(1), [1, "slim brief textless"]];
const MANY_LEVELS = [[1, ""], [1, "brief"], [1, "mute"], [1, "slim mute"]];
const MANY_BATCH_LEVELS = [[1, "slim"], [1, "slim brief"], [1, "slim brief mute"], [2, "slim brief mute"], [2, "slim brief mute bare"]];
const BATCH_LEVELS = [[0, "slim"], [1, "slim"], [1, "slim brief"], [2, "slim"], [2, "slim brief"], [2, "slim brief bare"]];
const LESS = ["slim", "brief", "mute", "textless", "bare"];
const PANE_WORDS = ["", "", "both", "all three", "all four"];
const INPUT_STAGES = [0, 1, 4]; // draft, pack, verify are told of the fed tokens, the others of the cache

class Lesson {
  constructor(player) {
    this.player = player;
    this.place = make("span", { class: "part-note" });
    this.head = make("div", { class: "l-head" }, make("b", { class: "part-title", text: "Text" }), this.place, player.bar.badge);
    this.card = make("div", { class: "l-card" }, this.head);
    player.root.classList.add("lesson");
    player.board.before(this.card);
    player.bar.node.hidden = true;
  }

  get told() {
    return this.player.data.lesson;
  }

  // The page has come to another section or question, or the reader has answered.
  take(before) {
    const { player, told } = this;
    if (told.stops) player.ticked = new Set(told.stops);
    this.tellOf();
    if (before?.key === told.key) {
      if (told.says && told.says !== before.says) {
        player.tell(told.says);
        this.scrollText();
      }
      return player.refresh();
    }
    this.scrollText();
    player.pause();
    player.message.hidden = true;
    if (!told.stops) player.ticked.clear();
    const plays = !!told.reveals && told.reveals === before?.key, { step, sub, pin } = player;
    player.startAt(player.data.start || {});
    player.roving = player.hover = null;
    this.target = null;
    if (plays) this.playFrom({ step, sub, pin: player.pin });
    player.setClock("step");
    this.fit();
    if (told.says) player.tell(told.says);
    if (this.target !== null) player.play();
  }

  // A new screen of text begins at its top; a result is brought into sight. The page draws a run's text no later than
  // it gives the player the data of that run; a reader who scrolls after that is left alone.
  scrollText() {
    const { reveals, says } = this.told, text = document.querySelector(".st-key-lesson_body"), verdict = text?.querySelector(".l-verdict");
    if (!reveals && !says) return text?.scrollTo(0, 0);
    const below = verdict && text.scrollHeight - text.scrollTop > text.clientHeight;
    if (below) text.scrollTo(0, text.scrollTop + verdict.getBoundingClientRect().top - text.getBoundingClientRect().top - text.clientHeight / 3);
  }

  // From where the question stood to its answer, sub-step by sub-step.
  playFrom({ step, sub, pin }) {
    const { player } = this, target = player.placeNumber();
    if (step * 6 + SUBSTEPS.indexOf(sub) >= target) return;
    Object.assign(this, { target, pin });
    Object.assign(player, { step, sub, pin: null, playSubs: true });
  }

  // Whether playing has come to the answer.
  arrived() {
    if (this.target === null || this.player.placeNumber() < this.target) return false;
    this.target = null;
    if (this.pin) this.player.setPin(this.pin);
    return true;
  }

  build() {
    const { player } = this, texts = player.isBatch || !player.sharesText ? [] : [player.panes[0].view.sections[0].node];
    this.card.replaceChildren(this.head, ...texts);
    player.root.classList.toggle("own-texts", !player.sharesText);
    player.root.classList.toggle("many", this.isMany);
    player.ticked = new Set(this.told.stops);
    this.target = null;
    this.tighten();
    this.tellOf();
    for (const pane of player.panes) {
      pane.numbers = new LessonNumbers(player, pane);
      pane.shell.story.after(pane.numbers.node);
    }
  }

  // The query that "attend" is about, where the text asks for one.
  tellOf() {
    for (const pane of this.player.panes) pane.told = this.told.query || undefined;
  }

  // More than two panes stand in a grid.
  get isMany() {
    return this.player.panes.length > 2;
  }

  get levels() {
    const { isBatch, sharesText } = this.player;
    if (this.isMany) return isBatch ? MANY_BATCH_LEVELS : MANY_LEVELS;
    return isBatch ? BATCH_LEVELS : sharesText ? SMALL_LEVELS : OWN_TEXT_LEVELS;
  }

  tighten() {
    const { root } = this.player;
    root.classList.toggle("tight", this.isMany || root.clientWidth < TIGHT);
  }

  // ---- questions

  // Place beyond which a lesson with open questions lets nobody look.
  get limit() {
    const { start, lesson } = this.player.data;
    return lesson.sealed ? start.step * 6 + SUBSTEPS.indexOf(start.step ? start.sub : "commit") : Infinity;
  }

  // Takes a reader who goes too far back to the question; what to say then.
  hold() {
    const { player } = this;
    if (player.placeNumber() <= this.limit) return "";
    const { step, sub } = player.data.start;
    player.step = step;
    player.sub = step ? sub : "commit";
    return `Answer or skip the question${this.told.asks && !this.told.key.includes("/question/") ? "" : "s"} to see what comes next.`;
  }

  openMarks(marks) {
    const { sealed, marked } = this.told;
    return sealed ? marks.map((all) => all.filter((mark) => this.player.placeNumber(mark.step, mark.sub) <= marked)) : marks;
  }

  // Which slots of which rows are covered now. Their end is the same for all rows: it tells of none.
  cover() {
    const { player } = this, { asks, hide } = this.told, { step } = player.data.start, here = asks && player.step === step;
    this.covers = asks ? hide.join(";") : "";
    for (const pane of player.panes) {
      const rows = here ? hide.filter(([index, row]) => index === pane.index && row < pane.run.rows).map(([, row]) => row) : [];
      pane.covered = new Map(rows.map((row) => [row, [pane.run.at(Math.min(step, pane.last), row).start, this.coverEnd(step)]]));
    }
    if (player.pin && player.panes.some((pane) => coverOf(pane, player.pin.row))) player.pin = null;
  }

  coverEnd(step) {
    return COVER_MORE + Math.max(...this.player.panes.flatMap(({ run, last }) => Array.from({ length: run.rows }, (_, row) => {
      const { start, written, next } = run.at(Math.min(step, last), row);
      return Math.max(start + written, next);
    })));
  }

  atQuestion() {
    return this.player.placeNumber() >= this.limit;
  }

  waiting(pane) {
    const rows = [...pane.covered.keys()].sort((a, b) => a - b);
    const words = `${rows.length > 1 ? "rows" : "row"} ${rows.join(" and ")}`;
    return this.told.key.includes("/question/") ? `Hidden until Predict: ${words}.` : `Answer the question to reveal ${words}.`;
  }

  // ---- layout

  // Everything at once where there is room; else the fed tokens or the cache, by what the sub-step is about.
  fit() {
    const { player } = this, { root } = player;
    if (!root.isConnected || !root.clientWidth || !player.panes) return;
    this.tighten();
    for (const [level, less] of this.levels) {
      this.level = level;
      for (const name of LESS) root.classList.toggle(name, less.split(" ").includes(name));
      player.paint();
      if (this.height() <= window.innerHeight - LESSON_TOP) break;
    }
  }

  height() {
    const { board, root } = this.player;
    return board.getBoundingClientRect().bottom - root.getBoundingClientRect().top;
  }

  // Which sections a pane shows; the others are painted, but not seen.
  arrange(pane) {
    const { isBatch, root } = this.player, { level = 0 } = this, bare = root.classList.contains("bare"), stage = SUBSTEPS.indexOf(pane.at.sub);
    const fed = pane.at.step > 0 && INPUT_STAGES.includes(stage), input = isBatch ? ["rows"] : ["input"];
    const cache = isBatch ? (level > 1 ? ["near"] : ["map", "near"]) : ["cache"];
    const shown = level === 0 ? [...input, ...cache] : fed ? input : cache;
    const own = pane.view.sections.filter(({ name }) => name !== "text");
    for (const section of own) section.node.hidden = !shown.includes(section.name);
    const tall = (names) => own.filter(({ name }) => names.includes(name)).reduce((sum, { canvas }) => sum + parseFloat(canvas.style.height || 0) + (isBatch && !bare ? 27 : 9), 0);
    const ownText = !isBatch && !this.player.sharesText, seen = ownText && !root.classList.contains("textless");
    const above = (ownText ? TEXT_GAP : 0) + (seen ? parseFloat(pane.view.sections[0].canvas.style.height || 0) : 0);
    pane.view.node.style.minHeight = level ? above + Math.max(tall(input), tall(cache)) - 9 + "px" : "";
  }

  paint() {
    const { player } = this, { step } = player;
    const when = player.shownSub === "commit" ? (step ? `after step ${step}` : "after prefill") : step > 1 ? `after step ${step - 1}` : "after prefill";
    this.place.textContent = when + (player.panes.length > 1 && player.sharesText ? `, the same for ${PANE_WORDS[player.panes.length]}` : "");
    for (const pane of player.panes) {
      pane.numbers.paint();
      pane.shell.story.title = pane.shell.story.textContent; // where there is room for one line only
    }
  }
}

// The few numbers beside a pane.
class LessonNumbers {
  constructor(player, pane) {
    Object.assign(this, { player, pane });
    const { rows } = pane.run, isMany = player.panes.length > 2;
    this.lines = [this.line("input-rows", isMany ? "Fed" : "Input rows"), this.line("holes", "Holes")];
    if (!isMany) this.lines.splice(1, 0, this.line("kv-slots", "KV slots read"));
    if (isMany) this.lines.push(this.line("next-all", "Next"));
    else if (player.isBatch) this.lines.push(this.line("modelled-time", player.data.time.label));
    else for (let row = 0; row < rows; row++) this.lines.push(this.line(`next-${row}`, rows > 1 ? `Next write, row ${row}` : "Next write"));
    this.node = make("dl", { class: "l-numbers", "aria-label": "So far" }, ...this.lines.map(({ node }) => node));
  }

  line(key, label) {
    const value = make("b"), note = make("span", { class: "c-note" }), sum = key === "kv-slots" ? make("dd", { class: "c-sum" }) : null;
    const node = make("div", { "data-number": key }, make("dt", { text: label }), make("dd", {}, note, value), ...(sum ? [sum] : []));
    if (key === "next-all") node.title = "Slots that are written next";
    if (!key.startsWith("next-")) node.title = counterHelp(key, this.player.data, this.pane);
    return { key, value, note, sum, node };
  }

  paint() {
    for (const { key, value, note, sum } of this.lines) {
      const [text, more] = this.isCovered(key) ? ["?", ""] : key === "next-all" ? [this.nextOfAll(), ""] : key.startsWith("next-") ? [this.next(+key.slice(5)), ""] : this.count(key);
      value.textContent = text;
      value.classList.toggle("q", text === "?");
      note.textContent = more;
      sum?.replaceChildren(...(text === "?" ? [] : this.launches()));
    }
  }

  // How the slots that queries read, each counted once, become the number of the paper's kernel.
  launches() {
    const { step } = this.upTo("kv-slots").at, parts = { 1: 0, 2: 0 };
    for (let each = 1; each <= step; each++) parts[launchesOf(this.pane.run, each)] += slotsRead(this.pane, each);
    if (!parts[2]) return [];
    const { show } = unitOf(this.player, "kv-slots"), once = parts[1] ? ` + ${show(parts[1])}` : "";
    return [`= ${show(parts[2] / 2)} × 2`, make("i", { text: " launches" }), once];
  }

  // What could tell the answer; rows and slots of a step are known once they are fed and read.
  isCovered(key) {
    const { pane } = this, asked = SUBSTEPS.indexOf(this.player.data.start.sub);
    if (!pane.covered?.size) return false;
    if (key === "input-rows") return asked < 1;
    return key.startsWith("next-") ? isCursorCovered(pane, +key.slice(5)) : true;
  }

  next(row) {
    const done = committedStep(this.pane.at);
    return String(done < 0 ? 0 : this.pane.run.at(done, row).next);
  }

  // Of a shared cursor one number, of few own ones all, of many the first and the last slot.
  nextOfAll() {
    const { rows } = this.pane.run, all = Array.from({ length: this.pane.shared ? 1 : rows }, (_, row) => Number(this.next(row)));
    return rows > SMALL_ROWS && all.length > 1 ? `${Math.min(...all)} to ${Math.max(...all)}` : all.join(", ");
  }

  // Counted from the sub-step on that does the work.
  upTo(key) {
    const { pane } = this, { step, sub } = pane.at, from = { "input-rows": 1, "kv-slots": 3, holes: 5, "modelled-time": 5 }[key];
    return { ...pane, at: { step: SUBSTEPS.indexOf(sub) >= from ? step : Math.max(step - 1, 0), sub: "commit" } };
  }

  count(key) {
    const { player } = this, seen = this.upTo(key);
    const now = counterAt(seen, key), unit = unitOf(player, key);
    if (key === "modelled-time") return [`${unit.show(now.value)} ${unit.name}`, ""];
    return [unit.show(now.value), key === "holes" ? "" : counterNote(key, now, seen, unit)];
  }
}

// Slots that a step's queries read, as often as the paper's kernel does.
function slotsRead(pane, step) {
  const whole = (at) => Object.values(partsAt(pane, "kv-slots", at)).reduce((sum, part) => sum + part, 0);
  return whole(step) - whole(step - 1);
}
