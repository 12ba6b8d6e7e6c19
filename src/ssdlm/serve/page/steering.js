// Guides: a slider for each from one label through off to the other, and what it makes of the text.

import { percent } from "./candidates.js";
import { make } from "./dom.js";
import { usualWeight } from "./request.js";
import { state } from "./state.js";

/** Times the usual weight; beyond it texts are no longer texts (docs/page.md says how it was measured). */
const STRONGEST = 1.1;
const FEWEST = 5; // decided tokens of which a reading means something

/** One guide's slider; `value` is { label, strength }, or null where it is off. */
export class GuideSlider {
  constructor(name, labels, info, changed) {
    Object.assign(this, { name, labels, info });
    this.isTwo = labels.length === 2;
    const least = this.isTwo ? -STRONGEST : 0;
    this.input = make("input", { type: "range", min: least, max: STRONGEST, step: 0.1, value: 0 });
    this.input.setAttribute("aria-label", `steer ${name}`);
    this.choice = make("select", { hidden: this.isTwo }, ...labels.map((label) => new Option(label)));
    this.choice.setAttribute("aria-label", `${name}: what to steer towards`);
    const [low, high] = this.isTwo ? labels : ["off", "stronger"];
    this.ends = [make("span", {}, low), make("b", {}, name), make("span", {}, high)];
    this.bar = make("i");
    this.reading = new Reading(this.isTwo ? labels : null);
    const track = make("div", { className: this.isTwo ? "track" : "" }, this.input, this.bar);
    this.element = make("div", { className: "guide" }, make("div", { className: "ends" }, ...this.ends), this.choice, track, this.reading.element);
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
    const weight = value && Number((value.strength * usualWeight(this.info, this.name)).toPrecision(2));
    this.input.setAttribute("aria-valuetext", value ? `towards ${value.label}, weight ${weight}` : "off");
    const share = this.isTwo ? Number(this.input.value) / STRONGEST / 2 : 0;
    this.bar.style.left = `${50 + 100 * Math.min(0, share)}%`;
    this.bar.style.width = `${100 * Math.abs(share)}%`;
    this.reading.seeks = value?.label;
  }

  /** Shows what the guide makes of a step, and of one that was not steered. */
  read(step, plain) {
    this.reading.show(...[step, plain].map((one) => (one?.decided >= FEWEST ? one.guides?.[this.name] : undefined)));
  }
}

/** A scale from one label to the other with a mark where the text is. */
class Reading {
  /** `ends` are the labels at its two ends; without them it is the share of the likeliest label. */
  constructor(ends) {
    this.ends = ends;
    this.dots = ["text", "plain"].map((name) => make("i", { className: name }));
    this.words = make("span");
    const scale = make("span", { className: "scale" }, ...this.dots);
    this.element = make("p", { className: "reading", hidden: true }, scale, this.words);
  }

  show(own, plain) {
    const isOnItsWay = !own && state.running; // it keeps its room, so that no slider moves below a finger
    this.element.classList.toggle("away", Boolean(isOnItsWay));
    if (!isOnItsWay) this.element.hidden = !own;
    if (!own) return;
    const label = this.ends ? this.ends.reduce((one, other) => (own[other] > own[one] ? other : one)) : this.seeks ?? likeliest(own);
    const place = (shares) => (this.ends ? shares[this.ends[1]] : shares[label]);
    this.dots[0].style.left = `${100 * place(own)}%`;
    this.dots[1].hidden = !plain;
    if (plain) this.dots[1].style.left = `${100 * place(plain)}%`;
    const beside = plain ? `, unsteered ${percent(plain[label])}` : "";
    this.words.textContent = `reads as ${label}: ${percent(own[label])}${beside}`;
  }
}

function likeliest(shares) {
  return Object.keys(shares).reduce((one, other) => (shares[other] > shares[one] ? other : one));
}
