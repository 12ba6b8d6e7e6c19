// Steering live: the text follows the slider, with the same seed, and what is kept stays.

import { rewrite } from "./rewrite.js";
import { state } from "./state.js";
import { settings } from "./settings.js";
import { settle } from "./view.js";
import { say } from "./voice.js";
import { write } from "./write.js";

const PAUSE = 40; // milliseconds in which a slider that moves on asks for nothing

let timer = 0;

/** Follows a slider that moved; `done` is given the entry of the text. */
export function steer(done) {
  if (!state.entry && !state.running) return;
  clearTimeout(timer);
  say("steering \u2026");
  state.running?.abort(); // nobody wants what an earlier place of the slider asked for
  const own = (timer = setTimeout(async () => {
    const entry = await follow(() => steer(done));
    if (entry) done({ ...entry, isLive: true });
    else if (own === timer && state.entry) settle(state.entry);
  }, PAUSE));
}

async function follow(retry) {
  const { entry } = state;
  const base = entry?.base ?? entry?.doc; // the same words are rewritten at each place of the slider
  if (!base?.has("kept")) {
    const isWritten = entry && !entry.base && entry.kind === "write";
    return write({ old: isWritten ? entry.texts.main : null, earlier: entry, retry });
  }
  const spans = base.free({ start: 0, end: base.text.length }, ["given", "kept"]);
  if (!spans.length) return null;
  const found = await rewrite(base, spans, { alternatives: 1, seed: settings().seed, retry });
  return found && { ...found, base };
}
