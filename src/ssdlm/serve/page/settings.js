// What is asked for: read from the form, and put into it.

import { $ } from "./dom.js";
import { Chips } from "./chips.js";
import { isPath, pathOf, tellPaths } from "./paths.js";
import { GuideSlider } from "./steering.js";
import { sheet } from "./sheet.js";
import { state } from "./state.js";

export const NUMBERS = ["length", "T", "temperature", "top_p", "seed", "samples"];
const TEXTS = ["prompt", "suffix", "regex", "json_schema"];
const SWITCHES = ["compare", "gentle", "free"];
const chips = {};
export let sliders = [];

/** Returns what a model's texts are like where nothing else is asked for. */
export function usual(info) {
  const { top_p = 0.9, temperature = 1 } = info.defaults;
  const numbers = { length: 25, T: pathOf("left", info).T, temperature, top_p, seed: 0, samples: 1 };
  const texts = { prompt: "The movie was", suffix: "", regex: "", json_schema: "" };
  return { ...numbers, ...texts, path: "left", must: [], must_not: [], compare: false, gentle: false, free: false, guides: {}, more: {} };
}

export function settings() {
  const guides = {};
  for (const slider of sliders) if (slider.value) guides[slider.name] = slider.value;
  const found = { path: $("form").elements.path.value, guides, more: state.more, fixed: sheet.fixed };
  if (state.models.length > 1) found.model = state.info.model;
  for (const name of TEXTS) found[name] = $(name).value;
  for (const name of NUMBERS) found[name] = Number($(name).value);
  for (const name of SWITCHES) found[name] = $(name).checked;
  for (const [name, one] of Object.entries(chips)) found[name] = one.value;
  return { ...found, seed: Math.max(0, Math.trunc(found.seed || 0)) };
}

/** Puts settings into the form. */
export function fill(given) {
  for (const name of [...TEXTS, ...NUMBERS]) $(name).value = given[name];
  for (const name of SWITCHES) $(name).checked = given[name];
  $("form").elements.path.value = isPath(given.path) ? given.path : "left";
  state.more = given.more;
  for (const [name, one] of Object.entries(chips)) one.value = given[name];
  for (const slider of sliders) slider.value = given.guides[slider.name] ?? null;
  $("contents").open ||= given.must.length + given.must_not.length > 0 || Boolean(given.suffix);
  $("structure").open ||= Boolean(given.regex || given.json_schema);
  sheet.build(given.json_schema, given.fixed);
  tellSettings();
}

/** Shows the figures beside the sliders, and what the paths cost. */
export function tellSettings() {
  for (const output of $("form").querySelectorAll("output")) output.textContent = $(output.htmlFor.value).value;
  tellPaths(settings());
}

/** Makes a slider for each guide of the model. */
export function makeSliders(info, changed) {
  sliders = Object.entries(info.guides).map(([name, labels]) => new GuideSlider(name, labels, info, changed));
  $("guides").replaceChildren(...sliders.map((one) => one.element));
  $("steering").hidden = sliders.length === 0;
}

export function makeChips() {
  for (const element of $("form").querySelectorAll(".chips")) {
    chips[element.dataset.name] = new Chips(element, tellSettings);
  }
}
