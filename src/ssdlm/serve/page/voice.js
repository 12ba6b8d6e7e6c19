// What the page says: how a run stands, what was done, what went wrong, and the finished text, once.

import { $ } from "./dom.js";
import { inWords } from "./errors.js";
import { keepKey } from "./server.js";

const BRIEFLY = 2500; // milliseconds

export function say(words) {
  for (const one of document.querySelectorAll(".status")) if (one.textContent !== words) one.textContent = words;
}

/** Has a finished text read out, once, by what reads pages to people. */
export function announce(text) {
  $("spoken").textContent = text;
}

let timer = 0;

export function sayBriefly(words) {
  $("said").textContent = words;
  $("said").hidden = false;
  clearTimeout(timer);
  timer = setTimeout(() => ($("said").hidden = true), BRIEFLY);
}

let again = null;

/** Says what went wrong, offers to try again, and marks the control that it is about. */
export function refuse(error, retry) {
  if (error.name === "AbortError") return;
  say("");
  if (error.status === 401) return askForKey(retry);
  again = retry;
  $("error").firstElementChild.textContent = inWords(error);
  $("retry").hidden = !retry;
  $("error").hidden = false;
  const form = $("talk").hidden ? $("form") : $("talk");
  const control = error.param && form.querySelector(`[name="${error.param}"], [data-name="${error.param}"] input`);
  control?.setAttribute("aria-invalid", "true");
  const group = control?.closest("details");
  if (group) group.open = true;
}

export function forgive() {
  $("error").hidden = true;
  for (const one of document.querySelectorAll("[aria-invalid]")) one.removeAttribute("aria-invalid");
}

/** Asks for the server's key, and then tries again. */
function askForKey(retry) {
  const dialog = $("key-dialog");
  dialog.addEventListener("close", () => {
    const key = $("key").value.trim();
    $("key").value = "";
    if (dialog.returnValue !== "use" || !key) return refuse(new Error("Without its key the server writes nothing."), retry);
    keepKey(key);
    retry();
  }, { once: true });
  if (!dialog.open) dialog.showModal();
}

export function listen() {
  $("retry").addEventListener("click", () => {
    forgive();
    again?.();
  });
}
