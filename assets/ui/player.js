// The step player: the whole trace is here, so a step changes without asking the server.

const LABEL = 104, LINE = 18, MAP_LINE = 12, CELL = 13.7, GAP = 1.2, BEFORE = 28, AFTER = 8;
const NUMBER = new Intl.NumberFormat("en-US");

function make(tag, entries = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(entries)) {
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

class Player {
  constructor(root, data) {
    this.root = root;
    this.step = 0;
    this.timer = null;
    this.build();
    this.load(data);
    new ResizeObserver(() => this.paint()).observe(root);
    // The probe's colour follows the theme through a transition, which tells when to paint again.
    this.probe = root.appendChild(make("i", { class: "probe", "aria-hidden": "true" }));
    this.probe.addEventListener("transitionend", () => this.paint());
  }

  load(data) {
    if (this.data && data.id === this.data.id) return;
    this.data = data;
    this.pause();
    this.panes = data.panes.map((pane) => ({ ...pane, last: pane.changes.length - 1, grid: null, at: -1 }));
    this.buildPanes();
    this.slider.max = data.steps - 1;
    this.go(Math.min(Math.max(data.start, 0), data.steps - 1), false);
    this.root.dataset.steps = data.steps;
  }

  build() {
    const button = (name, label, action, path) => {
      const node = make("button", { type: "button", class: "tool " + name, title: label, "aria-label": label, onclick: action });
      node.innerHTML = `<svg viewBox="0 0 20 20" aria-hidden="true"><path d="${path}"/></svg>`;
      return node;
    };
    this.buttons = {
      first: button("first", "First step (Home)", () => this.go(0), "M5 4v12M15 4l-7 6 7 6"),
      back: button("back", "Back one step (left arrow)", () => this.go(this.step - 1), "M13 4l-7 6 7 6"),
      play: button("play", "Play or pause (Space)", () => this.toggle(), "M7 4l9 6-9 6z"),
      next: button("next", "Next step (right arrow)", () => this.go(this.step + 1), "M7 4l7 6-7 6"),
      last: button("last", "Last step (End)", () => this.go(this.data.steps - 1), "M15 4v12M5 4l7 6-7 6"),
    };
    this.slider = make("input", { type: "range", min: 0, step: 1, "aria-label": "Step", oninput: () => this.go(+this.slider.value) });
    this.label = make("output", { class: "where" });
    const bar = make("div", { class: "transport" }, ...Object.values(this.buttons), this.slider, this.label);
    this.board = make("div", { class: "panes" });
    this.legend = make("div", { class: "legend" });
    this.live = make("div", { class: "hidden", "aria-live": "polite" });
    this.tip = make("div", { class: "tip", role: "tooltip" });
    this.root.append(bar, this.board, this.legend, this.live, this.tip);
    this.root.addEventListener("keydown", (event) => this.key(event));
  }

  buildPanes() {
    this.board.replaceChildren();
    this.board.classList.toggle("single", this.panes.length === 1);
    for (const [side, pane] of this.panes.entries()) {
      const parts = (pane.parts = {});
      const part = (name, tag, entries = {}, ...children) => (parts[name] = make(tag, entries, ...children));
      const counters = make("div", { class: "counters" }, ...COUNTERS.map((counter) => this.counter(parts, counter)));
      const head = make("div", { class: "head" }, methodMarker(pane.method), make("h3", { text: pane.title }),
        make("span", { class: "muted layout", text: pane.layout }), part("speed", "span", { class: "speed" }));
      const rows = this.data.rows.map((title) => make("span", { class: "label", title, text: title }));
      parts.texts = this.data.rows.map(() => make("div", { class: "tail", dir: "ltr" }));
      parts.gains = this.data.rows.map(() => make("span", { class: "gain" }));
      const lines = make("div", { class: "lines" }, make("div", {}, ...rows), part("verdicts", "canvas"),
        make("div", { class: "tails" }, ...parts.texts), make("div", { class: "gains" }, ...parts.gains));
      const section = (title, note, right = "") => make("div", { class: "section" }, make("b", { text: title }), make("span", { class: "muted", text: note }), make("span", { class: "muted right", text: right }));
      const cursor = pane.shared ? "one shared write cursor" : "one write cursor per row";
      const cache = make("div", { class: "cache" }, part("map", "canvas"));
      const near = make("div", { class: "cache" }, part("near", "canvas"));
      pane.node = make("section", { class: "pane", "data-testid": side ? "pane-right" : "pane-left", "data-method": pane.method, "aria-label": pane.title },
        head, part("story", "p", { class: "story" }), counters,
        section("Input and text", "verdict per fed token; newest text in ink", "gain this step"), lines, part("strip", "canvas"), part("stripNote", "div", { class: "muted note" }),
        section("KV cache", "all slots; " + cursor), cache,
        section("Around the cursor", "each row centred on its own cursor", "next write"), near);
      this.hover(parts.near, pane, (x, y) => this.cellNear(pane, x, y));
      this.hover(parts.map, pane, (x, y) => this.cellInMap(pane, x, y));
      this.board.append(pane.node);
    }
  }

  counter(parts, { key, label, help }) {
    const value = make("b"), note = make("span", { class: "muted" }), bar = make("div", { class: "bar" }, make("i"), make("i"), make("i"));
    parts[key] = { value, note, bar, box: make("div", { class: "counter", "data-counter": key, title: help }, make("div", { class: "muted", text: label }), make("div", {}, value, note), bar) };
    return parts[key].box;
  }

  // The pane's cells after its step, by applying changes; going back starts again from the beginning.
  cells(pane) {
    const step = Math.min(this.step, pane.last);
    if (!pane.grid || step < pane.at) {
      pane.grid = this.data.rows.map(() => Array.from({ length: this.data.slots }, () => [this.data.states.indexOf("free"), -1, 0, -1]));
      pane.at = -1;
    }
    while (pane.at < step) {
      const flat = pane.changes[++pane.at];
      for (let i = 0; i < flat.length; i += 5) pane.grid[flat[i]][flat[i + 1]] = [flat[i + 2], flat[i + 3], flat[i + 4], pane.at];
    }
    return pane.grid;
  }

  go(step, remember = true) {
    this.step = Math.min(Math.max(step, 0), this.data.steps - 1);
    this.slider.value = this.step;
    this.label.textContent = this.step ? `Step ${this.step} of ${this.data.steps - 1}` : `Prefill, then ${this.data.steps - 1} steps`;
    this.slider.setAttribute("aria-valuetext", this.label.textContent);
    for (const [name, at] of [["first", 0], ["back", 0], ["next", this.data.steps - 1], ["last", this.data.steps - 1]]) this.buttons[name].disabled = this.step === at;
    this.paint();
    if (remember) this.remember();
  }

  // The address shows the step once the reader rests; the server is not asked.
  remember() {
    clearTimeout(this.pending);
    this.pending = setTimeout(() => {
      const address = new URL(window.location.href);
      address.searchParams.set("step", this.step);
      window.history.replaceState(window.history.state, "", address);
      this.live.textContent = this.panes.map((pane) => pane.title + ": " + this.story(pane).map(([text]) => text).join("")).join(" ");
    }, 300);
  }

  story(pane) {
    return this.step > pane.last ? [["Finished after step " + pane.last + ".", false]] : pane.narration[this.step];
  }

  toggle() { this.timer ? this.pause() : this.play(); }

  play() {
    if (this.step === this.data.steps - 1) this.go(0);
    this.timer = setInterval(() => {
      if (document.hidden || !this.root.isConnected || this.step >= this.data.steps - 1) return this.pause();
      this.go(this.step + 1);
    }, 700);
    this.showPlay("M6 4v12M14 4v12", true);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.showPlay("M7 4l9 6-9 6z", false);
  }

  showPlay(path, playing) {
    this.buttons.play.querySelector("path").setAttribute("d", path);
    this.buttons.play.setAttribute("aria-pressed", playing);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = { ArrowLeft: () => this.go(this.step - 1), ArrowRight: () => this.go(this.step + 1), Home: () => this.go(0), End: () => this.go(this.data.steps - 1), " ": () => this.toggle() }[event.key];
    if (!act || (event.key === " " && event.target.tagName === "BUTTON")) return;
    act();
    event.preventDefault();
    event.stopPropagation();
  }
}
