// The player: one state (step, sub-step, pin) for all panes, kept by clock, keyboard, play and address.

const TICK_MS = 900, REST_MS = 300;
const SMALL_ROWS = 3, SMALL_SLOTS = 40, NARROW = 1080;

// Where the reader was in each group: a player that is built anew on the same page of the browser goes on there.
const PLACES = (window.emssdPlaces ||= new Map());

function placeLeft(group) {
  return (group && PLACES.get(group)) || null;
}

class Player {
  static made = 0;

  constructor(root, data) {
    Object.assign(this, { root, serial: Player.made++, menus: [], step: 0, sub: "commit", clock: "step", pin: null, hover: null, roving: null, single: null });
    this.isLesson = !!data.lesson;
    Object.assign(this, { speed: 1, playSubs: null, ticked: new Set(), playing: false, predicting: false, showsCode: false, count: 1 });
    this.build();
    this.attach();
    this.load(data);
  }

  build() {
    this.bar = new ControlBar(this);
    this.transport = new Transport(this);
    this.predict = new PredictCard(this);
    this.codePanel = new CodePanel(this);
    this.message = make("p", { class: "message", role: "status", hidden: true });
    this.notices = make("div", { class: "notices" });
    this.board = make("div", { class: "panes" });
    this.legend = new Legend(this);
    this.table = new StepTable(this);
    this.tip = new Tooltip(this);
    this.live = make("div", { class: "hidden", "aria-live": "polite", "data-testid": "live" });
    // The probe's colour follows the theme through a transition, which tells when to paint again.
    this.probe = make("i", { class: "probe", "aria-hidden": "true" });
    const above = [this.bar.node, this.transport.node, this.message, this.notices, this.predict.node, this.codePanel.node];
    const below = [this.legend.node, this.table.node, this.tip.node, this.live, this.probe];
    this.root.replaceChildren(...above, this.board, ...below);
    if (this.isLesson) this.lesson = new Lesson(this);
  }

  // Listeners beyond the root's own children; `detach` takes them away.
  attach() {
    if (this.listeners) return;
    this.listeners = new AbortController();
    const { signal } = this.listeners;
    this.root.addEventListener("keydown", (event) => playerKey(this, event), { signal });
    this.root.addEventListener("pointerdown", (event) => this.closeMenus(event), { signal });
    document.addEventListener("visibilitychange", () => { if (document.hidden) this.pause(); }, { signal });
    document.fonts?.addEventListener("loadingdone", () => this.refresh(), { signal });
    this.probe.addEventListener("transitionend", () => this.refresh(), { signal });
    if (this.lesson) window.addEventListener("resize", () => this.lesson.fit(), { signal });
    this.resized = new ResizeObserver(() => this.refresh());
    this.resized.observe(this.root);
  }

  detach() {
    this.pause();
    clearTimeout(this.resting);
    cancelAnimationFrame(this.frame);
    this.resized?.disconnect();
    this.listeners?.abort();
    this.listeners = null;
  }

  // Takes in data: the same content only refreshes its flags; other panes of the same group keep the reader's place.
  load(data) {
    this.attach();
    const before = this.data;
    this.data = data;
    if (before && data.id === before.id) return this.lesson ? this.lesson.take(before.lesson) : this.refresh();
    this.pause();
    const kept = before && before.group && before.group === data.group;
    this.panes = data.panes.map((pane, index) => ({ ...pane, index, run: decodePane(pane), last: pane.steps.length - 1, parts: {} }));
    for (const pane of this.panes) pane.events = eventsOf(pane.run, pane);
    this.slots = Math.max(...this.panes.map((pane) => pane.run.slots));
    this.steps = Math.max(...this.panes.map((pane) => pane.steps.length));
    this.timeline = timelineOf(this.panes);
    this.sharesText = shareText(this.panes);
    this.isBatch = data.rows.length > SMALL_ROWS || this.slots > SMALL_SLOTS;
    this.phases = phasesOf(this.panes, data.palette);
    if (this.playSubs === null || !kept) this.playSubs = this.steps - 1 <= FEW_STEPS;
    if (this.single !== null && !this.panes[this.single]) this.single = null;
    const back = before ? null : placeLeft(data.group);
    if (!kept) this.startAt(data.start || {});
    Object.assign(this, back, { hover: null, roving: null });
    if (!this.holds(this.pin)) this.pin = null;
    this.readTheme();
    this.buildPanes();
    this.bar.load(data);
    this.notices.replaceChildren(...(data.notices || []).map((text) => make("p", { text })));
    this.lesson?.build();
    this.setClock(this.panes.length > 1 ? this.clock : "step", !!(before || back));
    this.lesson?.fit();
    if (before) this.lesson?.scrollText();
  }

  startAt({ step = 0, sub = "commit", pin = null, pane = 0 }) {
    this.clock = "step";
    this.step = step;
    this.sub = SUBSTEPS.includes(sub) ? sub : "commit";
    const [row, slot] = String(pin ?? "").split(".").map(Number);
    const { run } = this.panes[pane], fits = pin && row >= 0 && row < run.rows && slot >= 0 && slot < run.slots;
    this.pin = fits ? { pane, kind: "cell", row, slot } : null;
  }

  // Whether there is such an item in the panes of now.
  holds(item) {
    const run = item && this.panes[item.pane]?.run;
    return !!run && item.row < run.rows && (item.kind !== "cell" || item.slot < run.slots);
  }

  buildPanes() {
    for (const pane of this.panes) {
      pane.shell = new PaneShell(this, pane);
      pane.node = pane.shell.node;
      pane.at = { step: 0, sub: "commit" };
      pane.view = this.isBatch ? new BatchView(this, pane) : new SmallView(this, pane);
      pane.overlay = make("canvas", { class: "overlay", "aria-hidden": "true" });
      pane.card = new PinnedCard(this, pane);
      pane.marks = { pin: make("div", { class: "outline" }), roving: make("div", { class: "outline roving" }) };
      pane.node.append(pane.view.node, pane.overlay, ...Object.values(pane.marks), pane.card.node);
      for (const { canvas } of pane.view.canvases) this.listen(pane, canvas);
    }
    this.board.replaceChildren(...this.panes.map((pane) => pane.node));
    this.board.classList.toggle("batch", this.isBatch);
  }

  listen(pane, canvas) {
    canvas.addEventListener("pointermove", (event) => this.point(pane, pane.view.hit(canvas, event.offsetX, event.offsetY), event));
    canvas.addEventListener("pointerleave", () => this.point(pane, null));
    canvas.addEventListener("click", (event) => this.press(pane, pane.view.hit(canvas, event.offsetX, event.offsetY)));
  }

  // ---- state

  setClock(clock, remember = true) {
    if (clock !== this.clock) {
      const time = Math.max(...this.panes.map((pane) => pane.counters.ms[Math.min(this.step, pane.last)]));
      if (clock === "time") this.step = this.timeline.findIndex((end) => end >= time - 1e-9);
      else this.step = Math.max(...this.panes.map((pane) => stepAtTime(pane, this.timeline[this.step])));
    }
    this.clock = clock;
    this.count = clock === "time" ? this.timeline.length : this.steps;
    this.marks = this.lesson ? this.lesson.openMarks(this.clockMarks()) : this.clockMarks();
    this.root.dataset.steps = this.count;
    this.transport.load();
    this.go(this.step, this.sub, { remember });
  }

  // [places][marks]: with the modelled-time clock a step's events are seen where it ends.
  clockMarks() {
    if (this.clock === "step") return allMarks(this.panes, this.steps);
    const events = this.panes.map((pane) => {
      const places = new Array(this.timeline.length).fill(null);
      pane.events.forEach((event, step) => { places[this.timeline.findIndex((end) => end >= pane.counters.ms[step] - 1e-9)] = event; });
      return { events: places };
    });
    return allMarks(events, this.timeline.length).map((marks) => marks.map((mark) => ({ ...mark, sub: "commit" })));
  }

  // The sub-step that is shown; `sub` is the one that the reader wants where a step has all six.
  get shownSub() {
    return this.step === 0 || this.clock === "time" ? "commit" : this.sub;
  }

  go(step, sub = this.predicting && step !== this.step ? "attend" : this.sub, { remember = true, motion = true } = {}) {
    const before = this.placeNumber();
    this.step = Math.min(Math.max(step, 0), this.count - 1);
    if (this.step > 0 || sub !== "commit") this.sub = sub;
    const held = this.lesson?.hold();
    if (this.placeNumber() !== before) this.message.hidden = true;
    if (held) this.say(held);
    this.moves = motion && this.mayMove();
    for (const pane of this.panes) pane.at = paneAt(pane, this.clock, this.timeline, this.step, this.sub);
    this.lesson?.cover();
    this.paint();
    this.moves = false;
    if (!remember) return;
    this.untold = true;
    this.remember();
  }

  mayMove() {
    return !(this.playing && this.speed >= 4) && !window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  }

  // From the track: no motion, and the wanted sub-step stays where the track has steps only.
  scrub(step, sub, stepsOnly) {
    this.pause();
    this.go(step, stepsOnly || step === 0 ? this.sub : sub, { motion: false });
  }

  goSub(direction) {
    if (this.clock === "time") return this.go(this.step + direction);
    const place = this.step === 0 ? 0 : (this.step - 1) * 6 + SUBSTEPS.indexOf(this.sub) + 1;
    const next = Math.min(Math.max(place + direction, 0), 6 * (this.count - 1));
    if (next === 0) return this.go(0);
    this.go(Math.floor((next - 1) / 6) + 1, SUBSTEPS[(next - 1) % 6]);
  }

  goEvent(direction) {
    const test = this.ticked.size ? (mark) => isBreakpoint(mark, this.ticked, this.marks) : () => true;
    const place = nextMark(this.marks, this.step, this.shownSub, direction, test);
    if (place) return this.go(place.step, this.clock === "time" ? this.sub : place.sub);
    this.say(direction > 0 ? "No event after this place." : "No event before this place.");
  }

  jumpToDifference() {
    const pane = this.panes.find((each) => each.differs);
    if (!pane) return;
    if (this.clock === "time") this.setClock("step");
    this.go(pane.differs.step, "commit");
  }

  atEnd() {
    return this.step === this.count - 1 && this.shownSub === "commit";
  }

  // ---- play

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  play() {
    if (this.count < 2) return;
    this.playing = true;
    if (this.atEnd()) this.go(0);
    this.schedule();
    this.transport.paint();
  }

  pause() {
    clearTimeout(this.timer);
    this.timer = null;
    if (!this.playing) return;
    this.playing = false;
    this.transport.paint();
  }

  schedule() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.tick(), TICK_MS / this.speed);
  }

  tick() {
    if (!this.playing || document.hidden || !this.root.isConnected) return this.pause();
    const from = this.placeNumber(), stepOnly = !this.playSubs;
    if (stepOnly) this.go(this.step + 1, this.step + 1 === this.count - 1 ? "commit" : this.sub);
    else this.goSub(1);
    if (this.stopsAtBreakpoint(from) || this.atEnd() || this.placeNumber() === from || this.lesson?.arrived()) return this.pause();
    this.schedule();
  }

  placeNumber(step = this.step, sub = this.shownSub) {
    return step * 6 + SUBSTEPS.indexOf(sub);
  }

  // Whether a ticked event lies after place `from`, up to what is shown now. One of the step before is gone back to.
  stopsAtBreakpoint(from) {
    const marks = [this.step - 1, this.step].flatMap((step) => this.marks[step] || []);
    const passed = marks.filter((mark) => {
      const at = this.placeNumber(mark.step, mark.sub);
      return at > from && at <= this.placeNumber() && isBreakpoint(mark, this.ticked, this.marks);
    });
    const earlier = passed.find((mark) => mark.step < this.step);
    if (earlier) this.go(earlier.step, earlier.sub);
    return passed.length > 0;
  }

  setSpeed(speed) {
    this.speed = speed;
    this.transport.paintMenus();
    if (this.playing) this.schedule();
  }

  setPlaySubs(on) {
    this.playSubs = on;
    this.transport.paintMenus();
  }

  setBreakpoint(key, on) {
    if (on) this.ticked.add(key);
    else this.ticked.delete(key);
    this.transport.paintMenus();
    this.transport.paint(); // a longer name takes room from the track
  }

  // ---- pointing and pinning

  point(pane, item, event = null) {
    const same = samePlace(item && { ...item, pane: pane.index }, this.hover);
    if (event && item) this.tip.move(event);
    if (same) return;
    if (!item && this.hover && this.hover.pane !== pane.index) return;
    this.hover = item ? { ...item, pane: pane.index } : null;
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.paintFocus());
  }

  press(pane, item) {
    if (item?.kind === "text") {
      const slot = slotOfText(pane, item.row, item.n);
      item = slot < 0 ? null : { kind: "cell", row: item.row, slot };
    }
    if (!item) return;
    const pin = { ...item, pane: pane.index };
    this.setPin(samePlace(pin, this.pin) ? null : pin);
  }

  setPin(pin) {
    this.pin = pin;
    const told = pin && this.describe(this.panes[pin.pane], pin);
    if (told) this.tell(told.text);
    this.paintFocus();
    this.keepFocus();
    this.remember();
  }

  // What is said of one item now, instead of the narration that waits.
  tell(text) {
    this.untold = false;
    this.live.textContent = text;
  }

  describe(pane, item) {
    if (item.kind === "cell") return describeCell(this, pane, item.row, item.slot);
    if (item.kind === "text") return describeText(this, pane, item.row, item.n);
    const query = queriesAt(pane.run, pane.at.step).find((each) => each.row === item.row && each.index === item.index);
    return query ? describeQuery(this, pane, query) : null;
  }

  // What the reader points at: pointer first, then the roving cell, then the pin.
  get source() {
    return this.hover || this.roving || this.pin;
  }

  // ---- painting

  refresh() {
    if (!this.root.isConnected || !this.root.clientWidth) return;
    this.readTheme();
    const narrow = this.root.clientWidth < NARROW;
    this.root.classList.toggle("narrow", narrow);
    this.transport.fit(narrow);
    this.bar.load(this.data);
    if (this.lesson) this.lesson.fit();
    else this.paint();
  }

  // Dark or light as the style sheet's own colours are.
  readTheme() {
    const ground = getComputedStyle(this.probe).color.match(/[\d.]+/g).map(Number), family = getComputedStyle(this.root).fontFamily;
    this.theme = makeTheme(this.data.palette, 0.3 * ground[0] + 0.59 * ground[1] + 0.11 * ground[2] < 128);
    this.font = (px, weight = 400) => `${weight} ${px}px ${family}`;
  }

  get shown() {
    return this.panes.filter((pane) => this.single === null || this.single === pane.index);
  }

  paint() {
    if (!this.root.isConnected || !this.board.clientWidth || !this.panes) return;
    this.board.classList.toggle("single", this.shown.length === 1);
    for (const pane of this.panes) pane.node.hidden = !this.shown.includes(pane);
    this.paintFocus();
    for (const pane of this.panes) pane.shell.paint();
    this.bar.paint();
    this.transport.paint();
    this.transport.paintMenus();
    this.legend.paint();
    this.lesson?.paint();
    this.predict.paint();
    this.codePanel.paint();
    this.table.paint();
    this.keepFocus();
    for (const pane of this.panes) pane.node.dataset.step = pane.at.step;
    Object.assign(this.root.dataset, { step: this.step, substep: this.shownSub, ready: "1" });
  }

  // The keyboard goes on where the focused button has just been switched off or put away.
  keepFocus() {
    const focused = this.root.getRootNode().activeElement;
    if (!focused || focused === this.root || !this.root.contains(focused)) return;
    if (focused.disabled || !focused.getClientRects().length) this.root.focus({ preventScroll: true });
  }

  // The views with what is pointed at, lines, cards and outlines.
  paintFocus() {
    for (const pane of this.shown) {
      const focus = focusOf(this, pane);
      pane.focus = focus;
      pane.view.paint(focus);
      this.lesson?.arrange(pane);
      this.links ||= new Links();
      this.links.paint(this, pane, pane.view, focus);
      outline(pane, pane.marks.pin, this.pin);
      outline(pane, pane.marks.roving, this.roving);
      pane.card.paint();
    }
    this.tip.paint();
  }

  storyOf(pane) {
    if (pane.covered?.size && this.lesson.atQuestion()) return [[this.lesson.waiting(pane), 0]];
    if (this.clock === "step" && this.step > pane.last) return [[`Finished after step ${pane.last}.`, 0]];
    const { step, sub } = pane.at, told = pane.narration[step], own = sub === "attend" && this.data.lesson?.attends?.[pane.index]?.[step];
    if (own) return own;
    return told[told.length > 1 ? SUBSTEPS.indexOf(sub) : 0] || [];
  }

  // ---- what a reader opens

  togglePredict() {
    this.predicting = !this.predicting;
    this.predict.clear();
    if (this.predicting && this.clock === "time") this.setClock("step");
    if (this.predicting) this.go(Math.max(this.step, 1), "attend");
    else this.paint();
  }

  toggleCode() {
    this.showsCode = !this.showsCode;
    this.paint();
  }

  // One pane, and with every further call the next one; or all.
  showPanes(count) {
    if (count === 2) this.single = null;
    else if (this.panes.length > 1) this.single = this.single === null ? 0 : (this.single + 1) % this.panes.length;
    this.paint();
  }

  closeMenus(event) {
    for (const box of this.menus) if (!box.contains(event.target)) box.close();
  }

  // One sentence for eyes and ears; it goes with the next change of place.
  say(text) {
    this.message.textContent = text;
    this.message.hidden = false;
    clearTimeout(this.saying);
    this.saying = setTimeout(() => { this.message.hidden = true; }, 8000);
  }

  explainEqualTime() {
    const [left, right] = this.panes.map((pane) => pane.counters.ms[pane.at.step]), { step } = this.panes[1].at;
    const steps = step === 1 ? "the step" : `each of the ${step} steps`, worth = Math.abs(left - right).toFixed(2);
    const weights = `${steps} reads all weights of the model once, and that dominates a small batch.`;
    this.say(`Modelled for ${this.data.time.where}: ${weights} What differs, the KV slots that are read, is worth ${worth} ms here.`);
  }

  // ---- address

  // "row.slot" of the pin in the left pane, through the token's position when another pane has it.
  pinText() {
    const pin = this.pin && itemIn(this, this.panes[0], this.pin);
    if (!pin) return null;
    if (pin.kind === "cell") return `${pin.row}.${pin.slot}`;
    const query = queriesAt(this.panes[0].run, this.panes[0].at.step).find((each) => each.row === pin.row && each.index === pin.index);
    return query && query.slot >= 0 ? `${pin.row}.${query.slot}` : null;
  }

  address() {
    const address = new URL(window.location.href), { link } = this.data, { step, sub } = this.panes[0].at;
    const place = this.clock === "time" ? { step, sub } : { step: this.step, sub: this.shownSub };
    const entries = { preset: null, state: null, left: null, right: null, ...link, ...place, pin: this.pinText(), v: link ? 1 : null };
    for (const [name, value] of Object.entries(entries)) {
      if (value === null) address.searchParams.delete(name);
      else address.searchParams.set(name, value);
    }
    return address;
  }

  // Once the reader rests, the address holds the view and the narration is said; the server is not asked.
  remember() {
    const { data, step, sub, clock, pin } = this;
    PLACES.set(data.group, { step, sub, clock, pin });
    clearTimeout(this.resting);
    this.resting = setTimeout(() => {
      if (!this.isLesson) this.writeAddress();
      this.narrate();
    }, REST_MS);
  }

  // Said once for each place: what is said of a cell after that stays.
  narrate() {
    if (!this.untold) return;
    this.untold = false;
    this.live.textContent = this.shown.map((pane) => `${pane.title}: ${this.storyOf(pane).map(([text]) => text).join("")}`).join(" ");
  }

  // The covers that may be seen, as text; "" for none.
  get covers() {
    return this.lesson?.covers || "";
  }

  // A page inside a frame or a file may have an address that cannot be changed; it works without.
  writeAddress() {
    try {
      window.history.replaceState(window.history.state, "", this.address());
    } catch (error) {
      if (error.name !== "SecurityError") throw error;
    }
  }

  async copyLink(button) {
    this.writeAddress();
    try {
      await navigator.clipboard.writeText(this.address().href);
      this.say("The link to this view is in the clipboard.");
    } catch {
      this.say(`Copy the link yourself: ${this.address().href}`);
    }
    button.focus();
  }
}
