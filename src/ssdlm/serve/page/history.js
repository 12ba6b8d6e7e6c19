// What was written since the page was opened; each text can be had back.

import { $, make } from "./dom.js";

const MOST = 30;
const LETTERS = 60;
const entries = [];

/** Notes a text; `open` brings it back. */
export function note(entry, open) {
  const at = entries.findIndex((one) => one.doc.text === entry.doc.text);
  if (at >= 0) entries.splice(at, 1);
  entries.unshift(entry);
  entries.splice(MOST);
  const items = entries.map((one) => {
    const { text } = one.doc;
    const words = text.length > LETTERS ? `${text.slice(0, LETTERS)} \u2026` : text;
    const button = make("button", { type: "button", className: "plain" }, words, make("small", {}, how(one)));
    button.addEventListener("click", () => open(one));
    return make("li", {}, button);
  });
  $("earlier").replaceChildren(...items);
  $("history").hidden = false;
}

function how({ asked, kind }) {
  const guides = Object.entries(asked.guides).map(([name, { label, strength }]) => `${name} ${label} \u00d7 ${strength}`);
  return [kind === "rewrite" ? "rewritten" : "", ...guides, `seed ${asked.seed}`].filter(Boolean).join(", ");
}
