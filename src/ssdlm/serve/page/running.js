// One thing is written at a time: what begins ends what was being written, and may be stopped.

import { instead, state } from "./state.js";
import { forgive, refuse, say } from "./voice.js";

const WRITING = "writing \u2026";

/** Does some work that writes; returns what it gives, or null where it failed or was given up. */
export async function during(work, retry) {
  const own = instead();
  forgive();
  say(WRITING);
  tell();
  try {
    const result = await work(own.signal);
    return state.running === own ? result : null;
  } catch (error) {
    own.abort(); // others of the same work
    if (state.running === own) refuse(error, retry);
    return null;
  } finally {
    if (state.running === own) state.running = null;
    tell();
  }
}

/** Gives up what is being written. */
export function cease() {
  state.running?.abort();
  state.running = null;
  say("stopped");
  tell();
}

/** Tells how a request stands. */
export function tellQueue({ event, position }) {
  if (event === "queued") say(position ? `waiting: ${position} before you` : WRITING);
}

function tell() {
  const isRunning = state.running !== null;
  const focused = document.activeElement;
  for (const one of document.querySelectorAll("[data-when]")) one.hidden = (one.dataset.when === "running") !== isRunning;
  if (focused?.hidden) focused.parentElement.querySelector("[data-when]:not([hidden])")?.focus();
}
