// A finished text, word by word: words are chosen, kept, and typed over.
//
// A drag or Shift with the arrow keys chooses words, a click or Space keeps one, a double click, F2
// or simply typing opens a field in its place.

import { hideCandidates, tellCandidates } from "./candidates.js";
import { make } from "./dom.js";
import { walk } from "./walk.js";

const KINDS = ["given", "kept", "new"];

export class Paper {
  /** `act` has what people do: change(text), rewrite(), undo(), redo(), chosen(). */
  constructor(element, act) {
    Object.assign(this, { element, act, text: null, spans: [], range: null, field: null, pressed: null, dragged: false });
    element.addEventListener("keydown", (event) => this.isOn && this.key(event));
    element.addEventListener("pointerdown", (event) => this.press(event));
    element.addEventListener("click", (event) => this.isOn && this.click(event));
    element.addEventListener("dblclick", (event) => this.isOn && this.type(this.wordAt(event.target)));
    element.addEventListener("pointerover", (event) => this.isOn && event.pointerType === "mouse" && this.over(event.target));
    element.addEventListener("pointerleave", () => this.isOn && hideCandidates());
    element.addEventListener("focusin", (event) => this.isOn && this.focused(event.target));
    element.addEventListener("focusout", () => this.isOn && hideCandidates());
    addEventListener("pointerup", () => this.release());
    document.addEventListener("selectionchange", () => this.isOn && this.select());
  }

  get isOn() {
    return this.spans.length > 0 && this.spans[0].isConnected;
  }

  /** Shows a text, with the words of a range chosen. */
  show(text, range = null) {
    this.text = text;
    this.field = null;
    this.words = text.words;
    let at = 0;
    const parts = [];
    this.spans = this.words.map((word, index) => {
      const span = make("span", { role: "option", tabIndex: index === 0 ? 0 : -1 }, word.text);
      parts.push(text.text.slice(at, word.start), span);
      at = word.end;
      return span;
    });
    this.element.replaceChildren(...parts, text.text.slice(at));
    this.choose(range);
  }

  /** The number of the word that has the focus, -1 where none has it. */
  get place() {
    return this.spans.indexOf(document.activeElement);
  }

  /** Gives the focus to the word of a number, or the last one. */
  return(place) {
    if (place >= 0) this.focus(this.words[Math.min(place, this.words.length - 1)]);
  }

  /** Chooses the words of a range, or none. */
  choose(range) {
    this.range = range && this.words.some((word) => touches(word, range)) ? range : null;
    this.words.forEach((word, index) => {
      const kinds = KINDS.filter((kind) => this.text.has(kind, word));
      const isChosen = this.range && touches(word, this.range);
      const span = this.spans[index];
      span.className = ["word", ...kinds, isChosen ? "chosen" : ""].join(" ").trim();
      span.setAttribute("aria-selected", String(Boolean(isChosen)));
      if (kinds.includes("kept")) span.setAttribute("aria-description", "kept");
      else span.removeAttribute("aria-description");
    });
    this.act.chosen();
  }

  /** Returns the chosen range from its first word's start to its last word's end. */
  get chosen() {
    const words = this.range ? this.words.filter((word) => touches(word, this.range)) : [];
    return words.length ? { start: words[0].start, end: words.at(-1).end, count: words.length } : null;
  }

  wordAt(target) {
    return this.words[this.spans.indexOf(target)];
  }

  /** The word that has the focus, or had it last. */
  get current() {
    return this.words[this.spans.findIndex((span) => span.tabIndex === 0)];
  }

  focus(word) {
    if (!word) return;
    const index = this.words.findIndex((one) => touches(one, word));
    this.spans.forEach((span, number) => (span.tabIndex = number === index ? 0 : -1));
    this.spans[index]?.focus({ preventScroll: true });
  }

  key(event) {
    const index = this.spans.indexOf(event.target);
    if (index < 0) return;
    const word = this.words[index];
    const isCommand = event.ctrlKey || event.metaKey;
    if (event.key === "Enter") this.act.rewrite(this.chosen ?? word);
    else if (event.key === " ") this.keep(this.chosen ?? word);
    else if (event.key === "Escape") this.choose(null);
    else if (event.key === "F2") this.type(word);
    else if (isCommand && event.key.toLowerCase() === "z") (event.shiftKey ? this.act.redo : this.act.undo)();
    else if (isCommand && event.key.toLowerCase() === "y") this.act.redo();
    else if (isCommand && event.key.toLowerCase() === "a") this.choose({ start: 0, end: this.text.text.length });
    else if (!isCommand && !event.altKey && [...event.key].length === 1) this.type(word, event.key);
    else return this.go(event, word);
    event.preventDefault();
  }

  /** Goes to another word; with Shift all between are chosen. */
  go(event, word) {
    this.anchor = event.shiftKey ? this.anchor ?? word : null;
    const to = this.wordAt(walk(event, this.spans, event.target));
    if (to && event.shiftKey) this.choose(between(this.anchor, to));
    else if (to) this.choose(null);
  }

  press({ target, pointerType, button }) {
    this.dragged = false;
    this.pressed = this.isOn && pointerType === "mouse" && button === 0 ? this.wordAt(target) ?? null : null;
    hideCandidates();
  }

  /** Chooses all words from where the mouse was pressed; else tells of the one that it points at. */
  over(target) {
    const word = this.wordAt(target);
    if (!this.pressed || !word || this.field) return this.tell(target);
    this.dragged ||= word !== this.pressed;
    if (this.dragged) this.choose(between(this.pressed, word));
  }

  release() {
    if (!this.pressed) return;
    this.pressed = null;
    if (!this.dragged || !this.chosen) return;
    getSelection().removeAllRanges(); // the words are marked as chosen
    this.focus(this.chosen);
  }

  /** Chooses the words that a finger selects, as it selects text elsewhere. */
  select() {
    const selection = getSelection();
    if (selection.isCollapsed || this.field || this.pressed) return;
    const inside = this.spans.filter((span) => selection.containsNode(span, true));
    if (inside.length) this.choose(between(this.wordAt(inside[0]), this.wordAt(inside.at(-1))));
  }

  click({ target, detail }) {
    const word = this.wordAt(target);
    if (this.dragged || this.field) return;
    if (!word) return this.choose(null);
    this.focus(word);
    if (detail < 3) this.keep(word);
  }

  /** Keeps words whatever is written anew, or lets them go again. */
  keep(range) {
    const words = this.words.filter((word) => touches(word, range));
    const isKept = words.every((word) => this.text.has("kept", word));
    let { text } = this;
    for (const word of words) text = isKept ? text.unmarked("kept", word) : text.marked("kept", word);
    this.act.change(text);
    this.text = text;
    this.choose(null);
  }

  focused(target) {
    if (target.matches(":focus-visible")) this.tell(target);
  }

  tell(target) {
    const word = this.wordAt(target);
    const position = word && !this.pressed && this.text.mark("from", word)?.position;
    if (position?.candidates) tellCandidates(target, `\u201c${word.text}\u201d`, position);
    else hideCandidates();
  }

  /** Opens a field in place of the chosen words, or of one, for words of one's own. */
  type(word, letters = null) {
    if (!word || this.field) return;
    const range = this.chosen && touches(word, this.chosen) ? this.chosen : word;
    const inside = this.spans.filter((_, index) => touches(this.words[index], range));
    const old = this.text.text.slice(range.start, range.end);
    const field = make("span", { className: "field", role: "textbox", contentEditable: "plaintext-only" }, letters ?? old);
    field.setAttribute("aria-label", "Words of your own; Enter puts them into the text");
    hideCandidates();
    inside[0].before(field);
    for (const span of inside) span.hidden = true;
    this.field = field;
    field.focus();
    getSelection().selectAllChildren(field);
    if (letters) getSelection().collapseToEnd();
    const end = (isTaken) => {
      if (this.field !== field) return;
      this.field = null;
      const typed = field.textContent.replace(/\s+/g, " ").trim();
      if (isTaken && typed !== old) this.put(range, typed);
      else this.show(this.text);
      if (isTaken || document.activeElement === document.body) this.focus(range);
    };
    field.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter") event.preventDefault();
      if (event.key === "Enter" || event.key === "Escape") end(event.key === "Enter");
    });
    field.addEventListener("blur", () => end(true));
  }

  /** Puts words of one's own into the text; they are kept, and the sentence around them is chosen. */
  put({ start, end }, typed) {
    let text = this.text.replaced([{ start, end, text: typed }]);
    const own = { start, end: start + typed.length };
    if (typed) text = text.unmarked("new").marked("kept", own);
    this.act.change(text);
    const sentence = text.sentence(own);
    const around = text.free(sentence, ["kept", "given"]);
    this.show(text, around.length ? { start: around[0].start, end: around.at(-1).end } : null);
  }
}

function touches(word, { start, end }) {
  return word.start < end && start < word.end;
}

function between(one, other) {
  return { start: Math.min(one.start, other.start), end: Math.max(one.end, other.end) };
}
