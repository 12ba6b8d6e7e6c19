// Words to the reader: how a run stands, what went wrong, the question for a key.

import { keepKey } from "./server.js";

const BRIEFLY = 2500; // milliseconds

export const $ = (id) => document.getElementById(id);

export function say(words) {
  if ($("status").textContent !== words) $("status").textContent = words;
}

export function refuse(message) {
  say("");
  $("error").textContent = message;
  $("error").hidden = false;
}

let timer = 0;

export function sayBriefly(words) {
  $("said").textContent = words;
  $("said").hidden = false;
  clearTimeout(timer);
  timer = setTimeout(() => ($("said").hidden = true), BRIEFLY);
}

/** Asks for the server's key, and then tries again. */
export function askForKey(retry) {
  const dialog = $("key-dialog");
  say("");
  dialog.addEventListener("close", () => {
    const key = $("key").value.trim();
    $("key").value = "";
    if (dialog.returnValue !== "use" || !key) return refuse("Without its key the server writes nothing.");
    keepKey(key);
    retry();
  }, { once: true });
  if (!dialog.open) dialog.showModal();
}
