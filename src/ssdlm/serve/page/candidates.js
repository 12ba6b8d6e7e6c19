// The box that tells the likeliest words of a position.

import { $, make } from "./dom.js";

const box = $("candidates");

addEventListener("keydown", (event) => event.key === "Escape" && hideCandidates());

export function hideCandidates() {
  for (const one of document.querySelectorAll("[aria-describedby=candidates]")) one.removeAttribute("aria-describedby");
  box.hidden = true;
}

/** Tells of a position, below the element that shows it. */
export function tellCandidates(element, name, position) {
  hideCandidates();
  const list = position.noise < 1 ? position.candidates ?? [] : [];
  const items = list.map(({ token, text, probability }) => {
    const bar = make("i");
    bar.style.width = `${100 * probability}%`;
    const word = make("span", {}, text.replaceAll("\n", "\u21b5"));
    const className = token === position.token ? "chosen" : "";
    return make("li", { className }, bar, word, make("span", {}, percent(probability)));
  });
  box.replaceChildren(make("p", {}, `${name}: ${stateOf(position)}`), make("ol", {}, ...items));
  box.hidden = false;
  element.setAttribute("aria-describedby", "candidates");
  const at = element.getClientRects()[0] ?? element.getBoundingClientRect();
  const most = document.documentElement.clientWidth - box.offsetWidth - 8;
  box.style.left = `${Math.max(8, Math.min(at.left, most)) + scrollX}px`;
  box.style.top = `${at.bottom + scrollY + 6}px`;
}

function stateOf({ noise, seen }) {
  if (noise === 1) return "noise";
  if (noise > 0) return `${percent(noise)} noise`;
  return seen ? `decided at step ${seen}` : "decided";
}

export function percent(share) {
  const value = 100 * share;
  return value > 0 && value < 1 ? "< 1 %" : `${Math.round(value)} %`;
}
