// A text on its way: every step that was told of it, so that one can go back and forth.

export class Drafts {
  /** `numFree` positions are written; what is behind them was given, as the end of a gap is. */
  constructor(prompt, numFree = Infinity) {
    this.prompt = prompt;
    this.numFree = numFree;
    this.steps = [];
    this.done = null;
  }

  /** Takes in an event. Positions that did not change are shared between steps. */
  take(event) {
    if (event.event === "draft") {
      const positions = (this.steps.at(-1)?.positions ?? []).slice(0, event.length);
      for (const { position, ...news } of event.changed) {
        const old = positions[position] ?? {};
        const step = this.steps.length + 1;
        positions[position] = { ...old, ...news, seen: "candidates" in news ? step : old.seen };
      }
      const { block, num_blocks, passes, decided, guides } = event;
      this.steps.push({ block, num_blocks, passes, decided, guides, positions });
    } else if (event.event === "done") {
      this.done = event;
      const last = this.steps.pop();
      const positions = cut(last.positions, event);
      // The token that ends a text is decided, and not in it.
      const decided = Math.min(last.decided, positions.length);
      this.steps.push({ ...last, decided, positions });
    }
  }

  /** Returns what a position is shown as: given, or one of ten shades from noise to decided. */
  kind(index, position) {
    return index >= this.numFree ? "given" : `n${shade(position.noise)}`;
  }

  /** Returns the step of this number, from 1; the last one where there are fewer. */
  at(number) {
    return this.steps[Math.min(number, this.steps.length) - 1];
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
export function shown({ text, noise }) {
  if (noise < 1) return text;
  return /^[ \p{L}\p{N}\p{P}]+$/u.test(text) ? text : " \u00b7";
}
