// Where a text settles: a span for each position, painted anew where it changed.

import { hideCandidates, tellCandidates } from "./candidates.js";
import { make } from "./dom.js";
import { walk } from "./walk.js";

export class Stage {
  /** Draws into an element; with `isQuiet` positions are not told one by one. */
  constructor(element, { isQuiet = false } = {}) {
    this.element = element;
    this.isQuiet = isQuiet;
    this.clear(null);
    if (isQuiet) return;
    element.addEventListener("pointerover", (event) => this.look(event.target));
    element.addEventListener("pointerleave", () => this.look(null));
    element.addEventListener("click", (event) => this.tap(event.target));
    element.addEventListener("focusin", (event) => this.look(event.target));
    element.addEventListener("focusout", () => this.look(null));
    element.addEventListener("keydown", (event) => this.isOn && walk(event, this.spans, event.target));
  }

  get isOn() {
    return this.spans.length > 0 && this.spans[0].isConnected;
  }

  /** Shows a text that has not begun. */
  clear(drafts, hint = "") {
    this.drafts = drafts;
    this.spans = [];
    this.pieces = [];
    this.selected = null;
    this.before = make("span", { className: drafts?.around ?? "" }, drafts?.before ?? "");
    this.after = make("span", {}, drafts?.after ?? "");
    this.element.replaceChildren(this.before, ...(hint ? [make("span", { className: "hint" }, hint)] : []), this.after);
    if (drafts?.pieces(drafts.steps.length).length) this.show(drafts.steps.length);
  }

  /** Shows a step. */
  show(number) {
    const pieces = this.drafts.pieces(number);
    if (!this.isOn) this.element.replaceChildren(this.before, ...this.spans, this.after);
    pieces.forEach((piece, index) => this.paint(index, piece));
    for (const span of this.spans.splice(pieces.length)) span.remove();
    this.pieces = pieces;
    if (this.selected) this.tell();
  }

  paint(index, piece) {
    const span = this.spans[index] ?? this.add(index);
    const kind = `position ${piece.kind}`;
    if (span.className !== kind) span.className = kind;
    if (span.textContent !== piece.text) span.textContent = piece.text;
  }

  add(index) {
    const span = make("span", this.isQuiet ? {} : { role: "option", tabIndex: index === 0 ? 0 : -1 });
    this.spans.push(span);
    this.after.before(span);
    return span;
  }

  tap(target) {
    if (this.spans.includes(target)) target.focus();
  }

  /** Looks at a position, or at none. */
  look(target) {
    if (!this.isOn) return;
    const span = this.spans.includes(target) ? target : null;
    if (span === this.selected) return;
    this.selected?.removeAttribute("aria-selected");
    this.selected = span;
    span?.setAttribute("aria-selected", "true");
    this.tell();
  }

  tell() {
    const index = this.spans.indexOf(this.selected);
    const position = this.pieces[index]?.position;
    if (!position) return hideCandidates();
    tellCandidates(this.selected, `position ${index + 1}`, position);
  }
}
