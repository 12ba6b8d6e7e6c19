// The timeline: a map of the run, one column a step and one row a position, and a slider below it.

import { shade } from "./drafts.js";

const STEPS_PER_SECOND = 16;
const SECONDS = 8; // of a whole run at the most, played again

export class Timeline {
  /** `show(number, isNew)` is called whenever another step is to be seen. */
  constructor(root, show) {
    this.root = root;
    this.show = show;
    this.map = root.querySelector("canvas");
    this.slider = root.querySelector("input");
    this.play = root.querySelector("button");
    this.caption = root.querySelector("#caption");
    this.drafts = null;
    this.columns = 0;
    this.rows = 0;
    this.drawn = 0;
    this.isFollowing = true;
    this.timer = 0;
    this.slider.addEventListener("input", () => this.drag(Number(this.slider.value)));
    this.play.addEventListener("click", () => (this.timer ? this.pause() : this.run()));
    new ResizeObserver(() => this.redraw()).observe(this.map);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
  }

  get num() {
    return this.drafts?.steps.length ?? 0;
  }

  get number() {
    return Number(this.slider.value);
  }

  /** Begins a run of so many steps, as far as one can tell. */
  begin(drafts, numSteps) {
    this.pause();
    this.drafts = drafts;
    this.columns = numSteps;
    this.rows = 0;
    this.isFollowing = true;
    this.root.hidden = true;
  }

  /** Tells that there are new steps; they are seen unless somebody looks at an earlier one. */
  grow() {
    this.root.hidden = false;
    const columns = this.drafts.done ? this.num : Math.max(this.columns, this.num);
    const rows = Math.max(this.rows, this.drafts.at(this.num).positions.length);
    if (columns !== this.columns || rows !== this.rows) this.drawn = 0;
    [this.columns, this.rows] = [columns, rows];
    this.slider.max = columns;
    this.draw();
    if (this.isFollowing) this.to(this.num, true);
  }

  drag(number) {
    this.pause();
    this.isFollowing = number >= this.num;
    this.to(Math.min(number, this.num), false);
  }

  to(number, isNew) {
    this.slider.value = number;
    const { passes, decided, positions } = this.drafts.at(number);
    this.caption.textContent =
      `step ${number} of ${this.num}: ${passes} passes, ${decided} of ${positions.length} decided`;
    this.slider.setAttribute("aria-valuetext", this.caption.textContent);
    this.show(number, isNew);
  }

  run() {
    let number = this.number === this.num ? 1 : this.number;
    this.to(number, false);
    const wait = Math.min(1000 / STEPS_PER_SECOND, (1000 * SECONDS) / this.num);
    this.play.textContent = "pause";
    this.timer = setInterval(() => {
      number = Math.min(this.num, number + 1);
      this.to(number, true);
      if (number === this.num) this.pause();
    }, wait);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = 0;
    this.play.textContent = "play";
  }

  /** Draws the map anew, at the page's size and in its colours. */
  redraw() {
    this.drawn = 0;
    this.draw();
  }

  /** Draws what is new on the map; a word that changes leaves a spot. */
  draw() {
    const { map } = this;
    if (!this.num || !map.clientWidth) return;
    if (this.drawn === 0) {
      map.width = map.clientWidth * devicePixelRatio;
      map.height = map.clientHeight * devicePixelRatio;
      this.colours = shades(this.root);
    }
    for (; this.drawn < this.num; this.drawn++) this.drawColumn(this.drawn);
  }

  drawColumn(column) {
    const { map, colours } = this;
    const pen = map.getContext("2d");
    const [wide, high] = [map.width / this.columns, map.height / this.rows];
    const x = Math.round(column * wide);
    const width = Math.round((column + 1) * wide) - x;
    const before = this.drafts.steps[column - 1]?.positions ?? [];
    this.drafts.steps[column].positions.forEach((position, row) => {
      const y = Math.round(row * high);
      const height = Math.round((row + 1) * high) - y;
      const isFresh = position.noise === 0 && before[row]?.noise !== 0; // it was decided just now
      pen.fillStyle = colours[isFresh ? 1 : shade(position.noise)];
      pen.fillRect(x, y, width, height);
      if (before[row] && before[row].token !== position.token) {
        pen.fillStyle = colours.ground;
        pen.fillRect(x, y + height / 3, width / 3, height / 3);
      }
    });
  }
}

/** Returns the colours of the shades as the page has them now. */
function shades(root) {
  const probe = document.createElement("span");
  root.append(probe);
  const found = [...Array(10).keys()].map((n) => {
    probe.className = `n${n}`;
    return getComputedStyle(probe).color;
  });
  probe.remove();
  found.ground = getComputedStyle(document.body).backgroundColor;
  found[0] = getComputedStyle(root.querySelector("canvas")).backgroundColor; // little to see there
  return found;
}
