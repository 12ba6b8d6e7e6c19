// Alternatives side by side: cards on which each settles; a click or the arrow keys choose one.

import { make } from "./dom.js";
import { Stage } from "./stage.js";

const [BEFORE, AFTER] = [48, 48]; // characters of the text around what is new

export class Choices {
  constructor(element) {
    this.element = element;
    this.cards = element.querySelector("[role=radiogroup]");
    this.stages = [];
    this.list = null;
    this.chose = () => {}; // told the number of the card that was chosen
    this.left = () => {}; // told when Enter or Escape leaves the cards
    this.cards.addEventListener("change", () => this.chose(this.number));
    this.cards.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      this.left();
    });
  }

  get number() {
    return this.stages.findIndex(({ input }) => input.checked);
  }

  /** Shows alternatives: drafts, or a text with what was there before. `name` says what they are. */
  show(choices) {
    this.element.hidden = !choices;
    if (!choices) return (this.list = null);
    if (this.list !== choices.list) this.build(choices);
    this.stages[choices.chosen].input.checked = true;
    this.redraw();
  }

  build({ name, list }) {
    this.list = list;
    this.element.querySelector("h2").textContent = name;
    this.stages = list.map(({ drafts, label, words }) => {
      const input = make("input", { type: "radio", name: "choice" });
      const inner = make("span", { className: "stage" }, words ?? "");
      const card = make("label", { className: label ? "choice was" : "choice" }, input, inner);
      if (label) card.append(make("small", {}, label));
      return { input, card, drafts, stage: drafts && new Stage(inner, { isQuiet: true }) };
    });
    this.cards.replaceChildren(...this.stages.map(({ card }) => card));
    for (const { stage, drafts } of this.stages) stage?.clear(excerpt(drafts));
  }

  /** Shows the newest step of each. */
  redraw() {
    if (!this.list) return;
    for (const { stage, drafts } of this.stages) stage?.show(drafts.steps.length);
  }

  focus() {
    this.stages[Math.max(0, this.number)]?.input.focus({ preventScroll: true });
    this.element.scrollIntoView({ block: "nearest" });
  }
}

/** Returns less of the text around what is new, in whole words. */
export function shortened(before, after) {
  const left = before.length > BEFORE ? `\u2026${before.slice(-BEFORE).replace(/^\S*/, "")}` : before;
  const right = after.length > AFTER ? `${after.slice(0, AFTER).replace(/\S*$/, "")}\u2026` : after;
  return [left, right];
}

function excerpt(drafts) {
  const [before, after] = shortened(drafts.before, drafts.after);
  return Object.create(drafts, { before: { value: before }, after: { value: after } });
}
