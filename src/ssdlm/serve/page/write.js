// A text is written: with samples beside it, and without steering to compare with.

import { $ } from "./dom.js";
import { Drafts } from "./drafts.js";
import { toHash } from "./link.js";
import { costOf } from "./paths.js";
import { bodyOf, isSteered } from "./request.js";
import { during, tellQueue } from "./running.js";
import { Refusal, answer, events } from "./server.js";
import { settings } from "./settings.js";
import { state } from "./state.js";
import { Text } from "./text.js";
import { choices, follow, redraw } from "./view.js";
import { refuse, say } from "./voice.js";

const CANDIDATES = 5;

/**
 * Writes what the settings ask for, and returns the entry of it, or null. With `old`, drafts of an
 * earlier text, its words are seen where there are none yet.
 */
export async function write({ old = null, earlier = null, retry = () => $("form").requestSubmit() } = {}) {
  const asked = settings();
  const { info } = state;
  let bodies;
  try {
    bodies = Array.from({ length: asked.samples }, (_, index) => bodyOf({ ...asked, seed: asked.seed + index }, info));
  } catch (error) {
    refuse(error);
    return null;
  }
  history.replaceState(null, "", location.pathname + toHash(asked));
  document.body.classList.add("begun");
  const numFree = asked.suffix ? asked.length : Infinity;
  const pieces = old?.last?.positions.map(({ text }) => text) ?? [];
  const make = () => new Drafts(asked.prompt, { numFree, old: pieces });
  const list = bodies.map((body) => ({ drafts: make(), body }));
  const texts = { main: list[0].drafts };
  const written = list.map(({ drafts }) => drafts);
  if (asked.compare && isSteered(asked, info)) texts.plain = reusable(earlier, asked) ?? make();
  const name = `${list.length} samples: choose one`;
  const shown = list.length > 1 ? { name, list, chosen: 0 } : null;
  choices.show(shown);
  follow(texts, costOf(asked, info).steps);
  const began = performance.now();
  const done = await during(async (signal) => {
    const works = list.map((one) => taken(one, signal));
    if (texts.plain && !texts.plain.done) {
      const body = bodyOf(asked, info, { isSteered: false });
      works.push(taken({ drafts: texts.plain, body }, signal));
      written.push(texts.plain);
    }
    await Promise.all(works);
    return true;
  }, retry);
  if (!done) return null;
  for (const one of list) one.doc = Text.of(one.drafts);
  const took = (performance.now() - began) / 1000;
  return { asked, texts, doc: list[0].doc, choices: shown, took, kind: "write", body: bodies[0], written };
}

/** Returns the text that was not steered, where nothing but steering is asked for anew. */
function reusable(earlier, asked) {
  const bare = ({ guides, gentle, ...rest }) => JSON.stringify(rest);
  const isSame = earlier?.texts.plain?.done && bare(earlier.asked) === bare(asked);
  return isSame ? earlier.texts.plain : null;
}

/** Takes in the events of one text; particles are weighed against each other, and none is watched. */
async function taken({ drafts, body }, signal) {
  if (body.particles) {
    say(`weighing ${body.particles} versions against each other \u2026`);
    const { texts } = await answer("/v1/generate", body, signal);
    Object.assign(drafts, Drafts.whole(drafts.before, texts[0]));
    return redraw();
  }
  const guides = Object.keys(state.info.guides);
  for await (const event of events("/v1/generate", { ...body, candidates: CANDIDATES, guides }, signal)) {
    tellQueue(event);
    drafts.take(event);
    if (event.event === "draft" || event.event === "done") redraw();
  }
  if (!drafts.done) throw new Refusal("The server broke off before the text was done.");
}
