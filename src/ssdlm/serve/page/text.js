// A finished text: its characters, and what is known of some of them.
//
// A mark is { start, end, kind }: "given" is the prompt, "kept" stays when the rest is rewritten,
// "new" was rewritten just now, "from" tells which draft a position comes from.

export class Text {
  constructor(text, marks = []) {
    this.text = text;
    this.marks = marks;
  }

  /** Returns the finished text of drafts. */
  static of(drafts) {
    let text = drafts.before;
    const marks = text ? [{ start: 0, end: text.length, kind: "given" }] : [];
    drafts.last.positions.forEach((position, index) => {
      const [start, end] = [text.length, text.length + position.text.length];
      text += position.text;
      marks.push({ start, end, kind: "from", position });
      if (index === drafts.numFree) marks.push({ start, end: Infinity, kind: "given" });
    });
    return new Text(text, marks);
  }

  /** Returns the words with their places; what is between them are spaces. */
  get words() {
    return [...this.text.matchAll(/\S+/g)].map(({ 0: text, index }) => ({ text, start: index, end: index + text.length }));
  }

  /** Returns the first mark of a kind that touches some characters. */
  mark(kind, { start, end }) {
    return this.marks.find((one) => one.kind === kind && one.start < end && start < one.end);
  }

  /** Tells whether some characters have a mark; they are given only if all of them are. */
  has(kind, { start, end } = { start: 0, end: this.text.length }) {
    const found = this.mark(kind, { start, end });
    return kind === "given" && found ? found.start <= start && end <= found.end : found !== undefined;
  }

  /** Returns the text with a mark more. */
  marked(kind, { start, end }) {
    return new Text(this.text, [...this.unmarked(kind, { start, end }).marks, { start, end, kind }]);
  }

  /** Returns the text without marks of a kind, as far as they touch some characters. */
  unmarked(kind, { start, end } = { start: 0, end: Infinity }) {
    const marks = this.marks.flatMap((one) => {
      if (one.kind !== kind || one.end <= start || end <= one.start) return [one];
      const rest = [{ ...one, end: Math.min(one.end, start) }, { ...one, start: Math.max(one.start, end) }];
      return rest.filter((part) => part.start < part.end);
    });
    return new Text(this.text, marks);
  }

  /** Returns the text with other characters in some places, which are in order; marks of them go. */
  replaced(edits) {
    let text = "";
    let at = 0;
    const moved = (place) => edits.reduce((to, one) => (one.end <= place ? to + one.text.length - one.end + one.start : to), place);
    for (const one of edits) {
      text += this.text.slice(at, one.start) + one.text;
      at = one.end;
    }
    const isKept = (mark) => edits.every((one) => mark.end <= one.start || one.end <= mark.start);
    const marks = this.marks.filter(isKept).map((one) => ({ ...one, start: moved(one.start), end: moved(one.end) }));
    return new Text(text + this.text.slice(at), marks);
  }

  /** Returns runs of words among those from one place to another of which none is of some kinds. */
  free({ start, end }, kinds) {
    const runs = [];
    let last = null;
    for (const word of this.words) {
      const isFree = word.start < end && start < word.end && !kinds.some((kind) => this.has(kind, word));
      if (isFree && last) last.end = word.end;
      else if (isFree) runs.push((last = { start: word.start, end: word.end }));
      else last = null;
    }
    return runs;
  }

  /** Returns the sentence around some characters. */
  sentence({ start, end }) {
    const before = this.text.slice(0, start).match(/[\s\S]*[.!?]['")\]]*\s/)?.[0].length ?? 0;
    const after = this.text.slice(end).match(/^[\s\S]*?[.!?]['")\]]*(?=\s|$)/)?.[0].length ?? this.text.length - end;
    return { start: before, end: end + after };
  }
}

/** Returns a place in characters, as the server counts them, of one in JavaScript's units. */
export function toCharacters(text, place) {
  return [...text.slice(0, place)].length;
}

/** Returns a place in JavaScript's units of one in characters. */
export function fromCharacters(text, place) {
  return [...text].slice(0, place).join("").length;
}
