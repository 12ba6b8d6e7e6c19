// Guides: a slider for each from one label through off to the other, and a meter of what it thinks.

import { percent } from "./stage.js";
import { usualWeight } from "./settings.js";

const SVG = "http://www.w3.org/2000/svg";
const STRONGEST = 2; // times the usual weight

function make(tag, className, text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.textContent = text;
  return element;
}

/** One guide's slider; `value` is { label, strength }, or null where it is off. */
export class GuideSlider {
  constructor(name, labels, info, changed) {
    this.name = name;
    this.labels = labels;
    this.info = info;
    this.element = make("div", "guide");
    this.isTwo = labels.length === 2;
    this.input = document.createElement("input");
    Object.assign(this.input, { type: "range", min: this.isTwo ? -STRONGEST : 0, max: STRONGEST, step: 0.1 });
    this.input.value = 0;
    this.input.setAttribute("aria-label", `${name} guide`);
    this.choice = make("select");
    this.choice.setAttribute("aria-label", `${name}: label to seek`);
    this.choice.append(...labels.map((label) => new Option(label)));
    const ends = make("div", "ends");
    this.ends = [make("span", "", this.isTwo ? labels[0] : "off"), make("span", "name", name), make("span")];
    this.ends[2].textContent = this.isTwo ? labels[1] : "stronger";
    ends.append(...this.ends);
    const track = make("div", this.isTwo ? "track" : "");
    this.bar = document.createElement("i");
    track.append(this.input, this.bar);
    this.element.append(ends, ...(this.isTwo ? [] : [this.choice]), track);
    for (const part of [this.input, this.choice]) {
      part.addEventListener("input", () => {
        this.tell();
        changed();
      });
    }
    this.tell();
  }

  get value() {
    const at = Number(this.input.value);
    if (at === 0) return null;
    const label = this.isTwo ? this.labels[at < 0 ? 0 : 1] : this.choice.value;
    return { label, strength: Math.abs(at) };
  }

  set value(value) {
    const isKnown = value && this.labels.includes(value.label);
    const sign = this.isTwo && value?.label === this.labels[0] ? -1 : 1;
    this.input.value = isKnown ? sign * value.strength : 0;
    if (isKnown) this.choice.value = value.label;
    this.tell();
  }

  tell() {
    const { value } = this;
    const [first, , last] = this.ends;
    first.classList.toggle("on", this.isTwo && value?.label === this.labels[0]);
    last.classList.toggle("on", Boolean(value) && value.label !== (this.isTwo ? this.labels[0] : ""));
    const weight = value && (value.strength * usualWeight(this.info, this.name)).toPrecision(2);
    const words = value ? `${this.name} towards ${value.label}, weight ${Number(weight)}` : `${this.name} off`;
    this.input.setAttribute("aria-valuetext", words);
    const share = this.isTwo ? Number(this.input.value) / STRONGEST / 2 : 0;
    this.bar.style.left = `${50 + 100 * Math.min(0, share)}%`;
    this.bar.style.width = `${100 * Math.abs(share)}%`;
    this.ends[1].textContent = value ? `${this.name} \u00d7 ${value.strength}` : this.name;
  }
}

/** What one guide makes of the text: a line over the steps, from one label below to one above. */
export class Meter {
  constructor(name, labels) {
    this.name = name;
    this.label = labels.at(-1);
    this.element = make("div", "meter");
    this.output = make("b"); // not <output>, which is read aloud whenever it changes
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("viewBox", "0 0 100 100");
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("aria-hidden", "true");
    this.svg.append(this.mark("line", "", { x1: 0, x2: 100, y1: 50, y2: 50 }));
    this.beside = this.mark("polyline", "beside");
    this.line = this.mark("polyline", "");
    this.now = this.mark("line", "now", { y1: 0, y2: 100 });
    this.svg.append(this.beside, this.line, this.now);
    this.element.append(make("span", "", name), this.output, this.svg);
  }

  mark(tag, className, attributes = {}) {
    const element = document.createElementNS(SVG, tag);
    element.setAttribute("class", className);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  }

  /** Shows what it makes of a text at one of some steps, and beside it of one not steered. */
  show(number, numSteps, drafts, other) {
    const width = Math.max(numSteps, 2) - 1;
    this.line.setAttribute("points", this.points(drafts, width));
    this.beside.setAttribute("points", other ? this.points(other, width) : "");
    const x = (100 * (number - 1)) / width;
    this.now.setAttribute("x1", x);
    this.now.setAttribute("x2", x);
    const [own, plain] = [drafts, other].map((one) => one?.at(number)?.guides?.[this.name]?.[this.label]);
    this.output.textContent = own === undefined ? "" : `${this.label} ${percent(own)}`;
    if (plain !== undefined) this.output.textContent += `, not steered ${percent(plain)}`;
  }

  points(drafts, width) {
    return drafts.steps
      .map((step, index) => [(100 * index) / width, step.guides?.[this.name]?.[this.label]])
      .filter(([, share]) => share !== undefined)
      .map(([x, share]) => `${x.toFixed(2)},${(100 - 100 * share).toFixed(1)}`)
      .join(" ");
  }
}
