// The buttons below a finished text: rewrite, keep, type, undo, redo.

import { $ } from "./dom.js";
import { state } from "./state.js";
import { paper } from "./view.js";

const isTouched = matchMedia("(hover: none)");

/** Returns what Rewrite would write anew: the chosen words, or else all but those that are kept. */
export function toRewrite(chosen) {
  const { doc } = state.entry;
  if (chosen) return doc.free(chosen, ["kept"]);
  return doc.has("kept") ? doc.free({ start: 0, end: doc.text.length }, ["kept", "given"]) : [];
}

/** Shows what the buttons would do now. */
export function tellTools(past) {
  if (!state.entry || !paper.text) return;
  const { chosen } = paper;
  const spans = toRewrite(chosen);
  const count = paper.words.filter((word) => spans.some((span) => span.start <= word.start && word.end <= span.end)).length;
  const canRewrite = state.info.most_open !== 1;
  $("rewrite").disabled = !canRewrite || count === 0;
  $("rewrite").textContent = !count ? "Rewrite" : chosen ? `Rewrite ${count} ${count === 1 ? "word" : "words"}` : "Rewrite all but kept words";
  const isKept = chosen && paper.words.filter((word) => chosen.start <= word.start && word.end <= chosen.end).every((word) => paper.text.has("kept", word));
  $("keep").textContent = isKept ? "Let go" : "Keep";
  $("keep").disabled = $("type").disabled = !chosen;
  $("undo").disabled = !past.canUndo;
  $("redo").disabled = !past.canRedo;
  $("hint").textContent = hintOf(canRewrite, chosen, count);
}

function hintOf(canRewrite, chosen, count) {
  if (!canRewrite) return "This model writes left to right only; choose another one to rewrite the middle.";
  if (chosen && !count) return "These words are kept.";
  if (chosen && isTouched.matches) return "They can be written anew, kept, or typed over.";
  if (chosen) return "Enter writes them anew, Space keeps them, F2 types over them.";
  if (isTouched.matches) return "Select words to rewrite them or to type. Tap a word to keep it.";
  return "Drag over words to rewrite them. Click a word to keep it, double-click to type.";
}

/** Connects the buttons with what they do. */
export function listenToTools(act) {
  $("rewrite").addEventListener("click", () => act.rewrite(paper.chosen));
  $("keep").addEventListener("click", () => paper.keep(paper.chosen));
  $("type").addEventListener("click", () => paper.type(paper.chosen));
  $("undo").addEventListener("click", act.undo);
  $("redo").addEventListener("click", act.redo);
}
