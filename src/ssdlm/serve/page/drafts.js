// A text on its way: every step that was told of it, so that one can go back and forth.

export class Drafts {
  /**
   * `before` and `after` stay as they are. `old` are pieces of an earlier text, seen where the new
   * one is still noise. `numFree` positions are written; those behind them were given.
   */
  constructor(before, { after = "", old = [], numFree = Infinity } = {}) {
    Object.assign(this, { before, after, old, numFree, steps: [], done: null, around: "given" });
  }

  /** Returns a text as if it had been written in one step: nobody could watch it. */
  static whole(before, done) {
    const drafts = new Drafts(before);
    const pieces = done.text.match(/\s*\S+|\s+$/g) ?? [];
    const positions = pieces.map((text) => ({ text, noise: 0 }));
    const passes = done.calls ?? 0;
    drafts.steps.push({ passes, decided: positions.length, positions });
    drafts.done = done;
    return drafts;
  }

  /** Takes in an event. Positions that did not change are shared between steps. */
  take(event) {
    if (event.event === "draft") {
      const positions = (this.steps.at(-1)?.positions ?? []).slice(0, event.length);
      change(positions, event.changed, this.steps.length + 1);
      const { passes, decided, guides } = event;
      this.steps.push({ passes, decided, guides, positions });
    } else if (event.event === "done") {
      this.done = event;
      const last = this.steps.pop();
      const positions = cut(last.positions, event);
      // The token that ends a text is decided, and not in it.
      const decided = Math.min(last.decided, positions.length);
      this.steps.push({ ...last, decided, positions });
    }
  }

  /** Returns what is seen at a step: of each position its text, its kind and what is known of it. */
  pieces(number) {
    const positions = this.at(number)?.positions ?? [];
    const found = positions.map((position, index) => this.piece(position, index));
    const isDone = this.done && number >= this.steps.length;
    const rest = isDone ? [] : this.old.slice(positions.length);
    return [...found, ...rest.map((text) => ({ text, kind: "old" }))];
  }

  piece(position, index) {
    if (position.fixed) return { text: position.text, kind: "fixed" };
    const old = position.old ?? this.old[index];
    if (position.noise === 1 && old !== undefined) return { text: old, kind: "old" };
    const kind = index >= this.numFree ? "given" : `n${shade(position.noise)}`;
    return { text: shown(position), kind, position };
  }

  /** Returns the step of this number, from 1; the last one where there are fewer. */
  at(number) {
    return this.steps[Math.min(number, this.steps.length) - 1];
  }

  get last() {
    return this.steps.at(-1);
  }

  /** Ends a text where it is decided: somebody stopped it. */
  stop() {
    const { positions, ...step } = this.last;
    const open = positions.findIndex((one) => one.noise > 0);
    const kept = open < 0 ? positions : positions.slice(0, open);
    this.done = { prompt: this.before, text: kept.map((one) => one.text).join(""), tokens: kept };
    this.steps[this.steps.length - 1] = { ...step, positions: kept };
  }
}

/** Puts what an event tells into positions. */
export function change(positions, changed, step) {
  for (const { position, ...news } of changed) {
    const old = positions[position] ?? {};
    positions[position] = { ...old, ...news, seen: "candidates" in news ? step : old.seen };
  }
}

/** Returns positions as the finished text has them: it may end before the last of them. */
function cut(positions, { tokens, text }) {
  let left = text.length;
  const kept = positions.slice(0, tokens.length + 1).map((position) => {
    const piece = position.text.slice(0, left);
    left -= piece.length;
    return piece === position.text ? position : { ...position, text: piece };
  });
  if (kept[tokens.length]?.text === "") kept.pop(); // a stop string may begin inside a token
  return kept;
}

/** Returns which of ten shades a noise level has: 9 is noise, 0 is decided. */
export function shade(noise) {
  if (noise === 0 || noise === 1) return 9 * noise;
  return Math.min(8, Math.max(1, Math.ceil(noise * 8)));
}

/** Returns what is shown of a position; noise may be half a letter, or no letter at all. */
function shown({ text, noise }) {
  if (noise < 1) return text;
  return /^[ \p{L}\p{N}\p{P}]+$/u.test(text) ? text : " \u00b7";
}
