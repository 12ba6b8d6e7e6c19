// Spans of a text on their way: what is outside of them stays, and each of them settles.

import { Drafts, change } from "./drafts.js";
import { fromCharacters, toCharacters } from "./text.js";

/** One alternative: drafts whose positions are those of all spans, with the words between them. */
export class Rewritten extends Drafts {
  constructor(text, spans) {
    super(text.slice(0, spans[0].start), { after: text.slice(spans.at(-1).end) });
    Object.assign(this, { text, spans, around: "fixed", versions: [] });
    this.found = spans.map(({ start, end }) => [{ text: text.slice(start, end), old: text.slice(start, end), noise: 1 }]);
    this.between = spans.slice(1).map(({ start }, index) => ({ text: text.slice(spans[index].end, start), noise: 0, fixed: true }));
  }

  take(event) {
    if (event.event === "draft") this.draft(event);
    if (event.event === "span") this.choose(event);
    if (event.event === "done") this.done = event;
  }

  draft({ span, gap, candidate, changed, passes }) {
    const version = `${gap}/${candidate}`;
    this.versions[span] ??= version; // of several lengths and candidates the first is shown
    if (this.versions[span] !== version) return;
    const positions = this.found[span].filter((one) => !("old" in one));
    change(positions, changed.filter((one) => one.position < gap), this.steps.length + 1);
    this.found[span] = positions;
    this.steps.push({ passes, ...this.now() });
  }

  /** Shows what was chosen for a span, in a step of its own where another version was shown. */
  choose({ span, text }) {
    const shown = this.found[span].map((one) => one.text).join("").trim();
    if (shown === text) return;
    this.found[span] = text.match(/\s*\S+/g).map((piece) => ({ text: piece, noise: 0 }));
    this.steps.push({ passes: this.last?.passes ?? 0, ...this.now() });
  }

  now() {
    const positions = this.found.flatMap((own, index) => [...this.trimmed(own, index), ...this.between.slice(index, index + 1)]);
    return { positions, decided: positions.filter((one) => one.noise === 0 && !one.fixed).length };
  }

  /** Returns the positions of a span without the space that stands before it already. */
  trimmed(own, index) {
    const isSpaced = /\s$/.test(this.text.slice(0, this.spans[index].start));
    const [first, ...rest] = own;
    return isSpaced && first?.text.startsWith(" ") ? [{ ...first, text: first.text.slice(1) }, ...rest] : own;
  }

  pieces(number) {
    const { positions } = this.at(number) ?? this.now();
    return positions.map((position, index) => this.piece(position, index));
  }

  /** Returns what became of each span: its place in the text as it was, and its new words. */
  edits() {
    const { text, spans } = this.done;
    return this.spans.map(({ start, end }, index) => {
      const [from, to] = spans[index].map((place) => fromCharacters(text, place));
      return { start, end, text: text.slice(from, to) };
    });
  }

  /** Returns where the new words are. */
  get places() {
    return this.done.spans.map((span) => {
      const [start, end] = span.map((place) => fromCharacters(this.done.text, place));
      return { start, end };
    });
  }
}

/** Returns spans as the server counts them. */
export function spansOf(text, spans) {
  return spans.map(({ start, end }) => [toCharacters(text, start), toCharacters(text, end)]);
}
