// The models of the server on cards, with what each is good for.

import { $, make } from "./dom.js";

/** Returns what a model is good for, in words, from what the server tells of its abilities. */
export function goodFor({ chat, gaps, guides, context_length: length }) {
  const found = [gaps ? "writes, rewrites the middle, fills gaps" : "writes left to right"];
  if (chat) found.push("chats");
  if (guides.length) found.push(`steered by ${guides.join(", ")}`);
  if (length) found.push(`reads ${length.toLocaleString("en")} tokens`);
  return `${found.join("; ")}.`;
}

/** Shows the models; `choose` is told the name of another one. */
export function makeModels(models, current, choose) {
  $("models").hidden = models.length < 2;
  $("only-model").hidden = models.length > 1;
  $("only-model").textContent = current;
  $("models").querySelector("summary b").textContent = current;
  const cards = models.map((model) => {
    const input = make("input", { type: "radio", name: "model", value: model.id, checked: model.id === current });
    input.addEventListener("change", () => choose(model.id));
    return make("label", { className: "model" }, input, make("b", {}, model.id), make("small", {}, goodFor(model)));
  });
  const list = $("models").querySelector("[role=radiogroup]");
  const hadFocus = list.contains(document.activeElement);
  list.replaceChildren(...cards);
  if (hadFocus) list.querySelector(":checked").focus();
}

/** Lets the list close as lists do: by Escape, Enter, and a click elsewhere. */
export function listenToModels() {
  const list = $("models");
  const close = () => {
    if (!list.open) return;
    list.open = false;
    if (list.contains(document.activeElement)) list.querySelector("summary").focus();
  };
  list.addEventListener("keydown", (event) => {
    if (event.key === "Escape" || (event.key === "Enter" && event.target.type === "radio")) {
      event.preventDefault();
      close();
    }
  });
  list.addEventListener("click", (event) => event.detail && event.target.closest(".model") && close()); // no key
  addEventListener("pointerdown", (event) => list.contains(event.target) || close());
}
