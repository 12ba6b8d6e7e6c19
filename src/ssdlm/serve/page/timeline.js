// The timeline: a map of the run, one column a step and one row a position, and a slider over it.

import { shade } from "./drafts.js";

const STEPS_PER_SECOND = 16;
const SECONDS = 8; // of a whole run at the most, played again
const STRIP = 0.14; // of the map's height: how many words changed at each step

export class Timeline {
  /** `show(number)` is called whenever another step is to be seen. */
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

  get isAtEnd() {
    return this.number >= this.num;
  }

  /** Begins a run of so many steps, as far as one can tell. */
  begin(drafts, numSteps) {
    this.pause();
    this.drafts = drafts;
    this.columns = numSteps;
    this.rows = this.drawn = 0;
    this.isFollowing = true;
  }

  /** Tells that there are new steps; they are seen unless somebody looks at an earlier one. */
  grow() {
    this.root.hidden = this.drafts.done !== null && this.num < 2;
    const columns = this.drafts.done ? this.num : Math.max(this.columns, this.num);
    const rows = Math.max(this.rows, rowsOf(this.drafts.at(this.num)).length);
    if (columns !== this.columns || rows !== this.rows) this.drawn = 0;
    [this.columns, this.rows] = [columns, rows];
    this.slider.max = columns;
    this.draw();
    if (this.isFollowing) this.to(this.num);
  }

  /** Goes to the end, where the text is finished. */
  toEnd() {
    this.drag(this.num);
  }

  drag(number) {
    this.pause();
    this.isFollowing = number >= this.num;
    this.to(Math.min(number, this.num));
  }

  to(number) {
    this.slider.value = number;
    const step = this.drafts.at(number);
    const total = rowsOf(step).length;
    this.caption.textContent = `step ${number} of ${this.num}: ${step.decided} of ${total} tokens decided`;
    this.slider.setAttribute("aria-valuetext", this.caption.textContent);
    this.show(number);
  }

  run() {
    let number = this.isAtEnd ? 1 : this.number;
    this.to(number);
    const wait = Math.min(1000 / STEPS_PER_SECOND, (1000 * SECONDS) / this.num);
    this.play.textContent = "Pause";
    this.timer = setInterval(() => {
      number = Math.min(this.num, number + 1);
      this.to(number);
      if (number === this.num) this.pause();
    }, wait);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = 0;
    this.play.textContent = "Play";
  }

  /** Draws the map anew, at the page's size and in its colours. */
  redraw() {
    this.drawn = 0;
    this.draw();
  }

  /** Draws what is new on the map. */
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

  /** Draws a step: above, how many words changed; below, how noisy each position is. */
  drawColumn(column) {
    const { map, colours, drafts } = this;
    const pen = map.getContext("2d");
    const strip = Math.round(map.height * STRIP);
    const [x, width] = cell(column, this.columns, map.width);
    const before = column ? rowsOf(drafts.steps[column - 1]) : [];
    const now = rowsOf(drafts.steps[column]);
    const changed = now.filter((one, row) => before[row] && before[row].token !== one.token).length;
    const high = Math.round(strip * Math.min(1, changed / Math.max(4, this.rows / 2)));
    pen.fillStyle = colours[4];
    pen.fillRect(x, strip - high, width, high);
    now.forEach((position, row) => {
      const [y, height] = cell(row, this.rows, map.height - strip - 2);
      const isFresh = position.noise === 0 && before[row]?.noise !== 0; // it was decided just now
      pen.fillStyle = colours[isFresh ? 1 : shade(position.noise)];
      pen.fillRect(x, strip + 2 + y, width, height);
    });
  }
}

function cell(index, count, length) {
  const from = Math.round((index * length) / count);
  return [from, Math.round(((index + 1) * length) / count) - from];
}

/** Returns the positions of a step that are written. */
function rowsOf({ positions }) {
  return positions.filter((one) => !one.fixed);
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
  found[0] = getComputedStyle(root.querySelector("canvas")).backgroundColor; // little to see there
  return found;
}
