// What is seen of the text: on its way, at any step of it, and finished.

import { Choices } from "./choices.js";
import { $, isStill } from "./dom.js";
import { Paper } from "./paper.js";
import { Stage } from "./stage.js";
import { state } from "./state.js";
import { Timeline } from "./timeline.js";

const SLOW = 1000; // milliseconds between what is seen, where little motion is wanted

const [main, plain] = ["main-text", "plain-text"].map((id) => $(id).querySelector(".stage"));
const stages = { main: new Stage(main), plain: new Stage(plain) };
export const act = {}; // what people do to a finished text
export const paper = new Paper(main, act);
export const timeline = new Timeline($("timeline"), show);
export const choices = new Choices($("choices"));
let texts = {};
let drawn = 0;
let isDue = false;
export const watchers = []; // told of every step that is seen: (number, texts)

/** Shows a text that has not begun. */
export function wait(drafts) {
  texts = {};
  stages.main.clear(drafts, " \u2026");
}

/** Begins to show texts on their way, in so many steps as far as one can tell. */
export function follow(given, numSteps) {
  texts = given;
  for (const [name, drafts] of Object.entries(texts)) stages[name].clear(drafts);
  $("plain-text").hidden = !texts.plain;
  $("main-text").querySelector("h2").hidden = !texts.plain;
  timeline.begin(texts.main, numSteps);
  tellTools();
}

/** Shows the newest step at the next frame; slowly where little motion is wanted. */
export function redraw() {
  if (isDue) return;
  isDue = true;
  const pause = isStill.matches && !texts.main.done ? SLOW - (performance.now() - drawn) : 0;
  setTimeout(() => requestAnimationFrame(() => {
    isDue = false;
    drawn = performance.now();
    choices.redraw();
    if (texts.main?.steps.length) timeline.grow();
    else if (texts.plain?.steps.length) stages.plain.show(texts.plain.steps.length);
  }), Math.max(0, pause));
}

function show(number) {
  // While both are being written, each shows its newest; afterwards both are at one step.
  const isLive = state.running && timeline.isFollowing;
  for (const [name, drafts] of Object.entries(texts)) {
    const isLast = isLive || timeline.isAtEnd; // one may have more steps than the other
    if (drafts.steps.length) stages[name].show(isLast ? drafts.steps.length : number);
  }
  if (!state.running && timeline.isAtEnd && state.entry) paper.show(state.entry.doc);
  for (const watch of watchers) watch(isLive ? Infinity : number, texts);
  tellTools();
}

function tellTools() {
  $("tools").hidden = !state.entry;
  $("tools").classList.toggle("away", Boolean(state.running) || !paper.isOn); // what is below stays where it is
}

/** Shows a finished text, with the words of a range chosen. */
export function settle(entry, range = null) {
  state.entry = entry;
  const { place } = paper;
  const isNew = texts !== entry.texts;
  texts = entry.texts;
  $("plain-text").hidden = !texts.plain;
  $("main-text").querySelector("h2").hidden = !texts.plain;
  for (const [name, drafts] of Object.entries(isNew ? texts : {})) stages[name].clear(drafts);
  if (timeline.drafts !== texts.main) timeline.begin(texts.main, texts.main.steps.length);
  timeline.grow();
  timeline.toEnd();
  paper.show(entry.doc, range);
  paper.return(place);
  choices.show(entry.choices);
  tellTools();
}
