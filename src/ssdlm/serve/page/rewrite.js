// Words are written anew, in view of both sides: what else is there stays.

import { shortened } from "./choices.js";
import { bodyOf } from "./request.js";
import { Rewritten, spansOf } from "./rewriting.js";
import { during, tellQueue } from "./running.js";
import { Refusal, events } from "./server.js";
import { settings } from "./settings.js";
import { state } from "./state.js";
import { choices, follow, redraw } from "./view.js";

const OWN = ["prompt", "suffix", "length", "regex", "json_schema", "particles", "must"];

/** Writes spans of a finished text anew, and returns the entry of it, or null. */
export async function rewrite(doc, spans, { alternatives = 3, seed, was = true, retry }) {
  const asked = { ...settings(), seed };
  const { text } = doc;
  const options = Object.entries(bodyOf(asked, state.info)).filter(([name]) => !OWN.includes(name));
  const body = { text, spans: spansOf(text, spans), alternatives, ...Object.fromEntries(options) };
  if (asked.free) body.length = "free";
  const list = Array.from({ length: alternatives }, () => ({ drafts: new Rewritten(text, spans) }));
  const shown = { name: "Choose by click or arrow keys, Enter keeps it", list: [...list], chosen: 0 };
  if (was) shown.list.push({ drafts: null, label: "as it was", words: excerpt(text, spans), doc });
  if (alternatives > 1) choices.show(shown);
  const texts = { main: list[0].drafts };
  follow(texts, 0);
  const began = performance.now();
  const done = await during(async (signal) => {
    for await (const event of events("/v1/rewrite", { ...body, candidates: 5 }, signal)) {
      tellQueue(event);
      list[event.alternative ?? 0].drafts.take(event);
      redraw();
    }
    if (list.some(({ drafts }) => !drafts.done)) throw new Refusal("The server broke off before the words were done.");
    return true;
  }, retry);
  if (!done) return null;
  const took = (performance.now() - began) / 1000;
  for (const one of list) one.doc = renewed(doc, one.drafts);
  return { asked, texts, doc: list[0].doc, choices: alternatives > 1 ? shown : null, took, kind: "rewrite", body };
}

/** Returns a text with its new words, which are marked. */
function renewed(doc, drafts) {
  const text = doc.unmarked("new").replaced(drafts.edits());
  return drafts.places.reduce((found, place) => found.marked("new", place), text);
}

function excerpt(text, spans) {
  const [start, end] = [spans[0].start, spans.at(-1).end];
  const [before, after] = shortened(text.slice(0, start), text.slice(end));
  return before + text.slice(start, end) + after;
}
