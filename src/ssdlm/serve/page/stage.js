// Where a text is shown: a span per position, and the candidates of the one that is looked at.

import { shown } from "./drafts.js";

const box = document.getElementById("candidates");
const isStill = matchMedia("(prefers-reduced-motion: reduce)");

export class Stage {
  constructor(element) {
    this.element = element;
    this.spans = [];
    this.painted = [];
    this.selected = -1;
    this.drafts = null;
    this.number = 0;
    this.prompt = document.createElement("span");
    this.prompt.className = "given";
    element.addEventListener("pointerover", (event) => this.look(this.indexOf(event.target)));
    element.addEventListener("pointerleave", () => this.look(-1));
    element.addEventListener("click", (event) => this.look(this.indexOf(event.target), true));
    element.addEventListener("focusin", (event) => this.look(this.indexOf(event.target)));
    element.addEventListener("focusout", () => this.look(-1));
    element.addEventListener("keydown", (event) => this.move(event));
  }

  /** Shows a text that has not begun. */
  clear(drafts, hint = "") {
    this.drafts = drafts;
    this.spans = [];
    this.painted = [];
    this.number = 0;
    this.look(-1);
    this.prompt.textContent = drafts.prompt;
    const words = document.createElement("span");
    words.className = "hint";
    words.textContent = hint;
    this.element.replaceChildren(this.prompt, ...(hint ? [words] : []));
  }

  /** Shows a step; with `isNew`, words that change are seen to. */
  show(number, isNew) {
    const step = this.drafts.at(number);
    if (!step) return;
    if (!this.spans.length) this.element.replaceChildren(this.prompt);
    this.number = number;
    step.positions.forEach((position, index) => this.paint(index, position, isNew));
    for (const span of this.spans.splice(step.positions.length)) span.remove();
    this.painted = step.positions;
    if (this.selected >= 0) this.tell();
  }

  paint(index, position, isNew) {
    if (this.painted[index] === position) return;
    let span = this.spans[index];
    if (!span) {
      span = document.createElement("span");
      span.role = "option";
      span.tabIndex = index === 0 ? 0 : -1;
      this.spans.push(span);
      this.element.append(span);
    }
    const text = shown(position);
    const kind = `position ${this.drafts.kind(index, position)}`;
    if (span.className !== kind) span.className = kind;
    if (span.textContent === text) return;
    span.textContent = text;
    if (isNew && position.noise < 1 && !isStill.matches) {
      span.animate([{ opacity: 0.25 }, { opacity: 1 }], { duration: 180, easing: "linear" });
    }
  }

  indexOf(target) {
    return this.spans.indexOf(target);
  }

  /** Looks at a position, or at none; a tap gives it the focus, too. */
  look(index, isTap = false) {
    if (isTap && index >= 0) this.spans[index].focus();
    if (index === this.selected) return;
    this.spans[this.selected]?.setAttribute("aria-selected", "false");
    this.spans[this.selected]?.removeAttribute("aria-describedby");
    this.selected = index;
    box.hidden = index < 0;
    if (index < 0) return;
    this.spans[index].setAttribute("aria-selected", "true");
    this.spans[index].setAttribute("aria-describedby", "candidates");
    this.tell();
  }

  move(event) {
    if (event.key === "Escape") this.look(-1);
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!by || !this.spans.length) return;
    event.preventDefault();
    const at = this.indexOf(document.activeElement);
    const next = Math.min(this.spans.length - 1, Math.max(0, at + by));
    this.spans[at]?.setAttribute("tabindex", "-1");
    this.spans[next].tabIndex = 0;
    this.spans[next].focus();
  }

  /** Fills the box of candidates and puts it under the position. */
  tell() {
    const position = this.drafts.at(this.number)?.positions[this.selected];
    const span = this.spans[this.selected];
    if (!position || !span) return this.look(-1);
    const head = document.createElement("p");
    head.textContent = `position ${this.selected + 1}: ${state(position)}`;
    const list = document.createElement("ol");
    for (const { token, text, probability } of position.noise < 1 ? position.candidates ?? [] : []) {
      const item = document.createElement("li");
      item.className = token === position.token ? "chosen" : "";
      const bar = document.createElement("i");
      bar.style.width = `${100 * probability}%`;
      const [word, share] = [document.createElement("span"), document.createElement("span")];
      word.textContent = text.replaceAll("\n", "\u21b5");
      share.textContent = percent(probability);
      item.append(bar, word, share);
      list.append(item);
    }
    box.replaceChildren(head, list);
    const at = span.getClientRects()[0] ?? span.getBoundingClientRect();
    const left = Math.min(at.left, this.element.getBoundingClientRect().right - box.offsetWidth);
    box.style.left = `${Math.max(8, left) + scrollX}px`;
    box.style.top = `${at.bottom + scrollY + 6}px`;
  }
}

function state({ noise, seen }) {
  if (noise === 1) return "noise";
  if (noise > 0) return `noise level ${noise.toFixed(2)}`;
  return seen ? `decided at step ${seen}` : "decided";
}

export function percent(probability) {
  const value = 100 * probability;
  return value > 0 && value < 1 ? "< 1 %" : `${Math.round(value)} %`;
}
