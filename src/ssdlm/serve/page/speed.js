// How fast it writes here, and beside it the same model one token after another.

import { $ } from "./dom.js";
import { seconds } from "./paths.js";
import { answer } from "./server.js";
import { state } from "./state.js";
import { refuse } from "./voice.js";

let entry = null;

/** Tells what a text took. */
export function tellSpeed(given) {
  entry = given;
  const { tokens, passes, took } = given;
  $("speed").hidden = false;
  $("speed").firstElementChild.textContent =
    `${tokens} tokens in ${passes} ${passes === 1 ? "step" : "steps"}, ${seconds(took)}: ${rate(tokens, took)}`;
  $("autoregressive").hidden = !given.body;
}

function rate(tokens, took) {
  const value = tokens / took;
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} tokens/s`;
}

/** Writes as many tokens as an autoregressive model does, and says how fast that was. */
async function compare() {
  const { prompt, length, seed, top_p, model } = entry.body;
  const body = { prompt, length, seed, top_p, mode: "autoregressive", ...(model ? { model } : {}) };
  $("autoregressive").disabled = true;
  const began = performance.now();
  try {
    const { texts } = await answer("/v1/generate", body);
    const took = (performance.now() - began) / 1000;
    const count = Math.max(1, texts[0].tokens.length);
    $("speed").firstElementChild.textContent += `; autoregressive ${rate(count, took)}`;
    $("autoregressive").hidden = true;
  } catch (error) {
    refuse(error, compare);
  }
  $("autoregressive").disabled = false;
}

export function listenToSpeed() {
  $("autoregressive").addEventListener("click", () => state.running || compare());
}
