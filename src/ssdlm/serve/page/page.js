// The page: settings in, a run, what is seen of it.

import { Chips } from "./chips.js";
import { Drafts } from "./drafts.js";
import { drawPath } from "./paths.js";
import { picture } from "./picture.js";
import { Refusal, events, getInfo } from "./server.js";
import { PATHS, USUAL, costOf, fromAddress, optionsOf, toHash } from "./settings.js";
import { WAYS } from "./share.js";
import { Stage } from "./stage.js";
import { GuideSlider, Meter } from "./steering.js";
import { Timeline } from "./timeline.js";
import { $, askForKey, refuse, say, sayBriefly } from "./words.js";

const CANDIDATES = 5;
const SLOW = 1000; // milliseconds between what is seen, where little motion is wanted
const THEMES = ["auto", "light", "dark"];

const form = $("form");
const isStill = matchMedia("(prefers-reduced-motion: reduce)");
const stages = { main: new Stage($("main-text").lastElementChild), plain: new Stage($("plain-text").lastElementChild) };
const timeline = new Timeline($("timeline"), show);
const chips = {};
let info = { guides: {}, defaults: {} };
let sliders = [];
let meters = [];
let texts = {}; // the drafts of the run, by stage
let running = null; // its AbortController
let secondsPerPass = 0;
let more = {}; // options of a link that the page has no control for

// Settings: from the form, and into it.

function settings() {
  const guides = {};
  for (const slider of sliders) if (slider.value) guides[slider.name] = slider.value;
  return {
    prompt: $("prompt").value,
    path: form.elements.path.value,
    length: Number($("length").value),
    T: Number($("T").value),
    top_p: Number($("top_p").value),
    seed: Math.max(0, Math.trunc(Number($("seed").value) || 0)),
    must: chips.must.value,
    must_not: chips.must_not.value,
    suffix: $("suffix").value,
    compare: $("compare").checked,
    guides,
    more,
  };
}

/** Says what of a link is used beside the page's own settings, and what cannot be. */
function tellLinked({ odd = [], ...given }) {
  const now = settings();
  const other = ["length", "T", "top_p", "seed"].filter((name) => given[name] !== now[name]);
  const unknown = Object.keys(given.guides).filter((name) => !(name in info.guides));
  const words = Object.entries(more).map(([name, value]) => {
    return `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`;
  });
  const lines = [
    words.length ? `The link also asks for ${words.join(", ")}.` : "",
    ...odd.map((word) => `The link's ${word} is not known here and left out.`),
    ...unknown.map((name) => `The link's guide ${name} is not on this server and left out.`),
    ...other.map((name) => `The link's ${name}=${given[name]} is out of range; ${now[name]} is used.`),
  ];
  $("linked").textContent = lines.filter(Boolean).join(" ");
  $("linked").hidden = !$("linked").textContent;
}

/** Returns settings without what a model with one open position cannot do, which is told. */
function fitting(given) {
  if (info.most_open !== 1) return given;
  const single = { path: "left", must: [], suffix: "" };
  const lost = Object.keys(single).filter((name) => String(given[name]) !== String(single[name]));
  const odd = [...(given.odd ?? []), ...lost.map((name) => `${name}=${given[name]}`)];
  return { ...given, ...single, T: info.defaults.B?.[0] ?? 25, odd };
}

function fill(given) {
  for (const name of ["prompt", "length", "T", "top_p", "seed", "suffix"]) $(name).value = given[name];
  form.elements.path.value = given.path;
  more = given.more;
  $("compare").checked = given.compare;
  for (const name of ["must", "must_not"]) chips[name].value = given[name];
  for (const slider of sliders) slider.value = given.guides[slider.name] ?? null;
  $("words").open = given.must.length + given.must_not.length > 0 || $("words").open;
  $("gap").open = Boolean(given.suffix) || $("gap").open;
  tellLinked(given);
  tellCost();
}

function tellCost() {
  for (const name of ["length", "T", "top_p"]) {
    form.querySelector(`output[for="${name}"]`).textContent = $(name).value;
  }
  const now = settings();
  const { passes } = costOf(now, info);
  const time = secondsPerPass ? `, about ${seconds(passes * secondsPerPass)} here` : "";
  $("cost").textContent = `${passes} passes, ${(passes / now.length).toFixed(1)} per token${time}`;
}

function seconds(value) {
  return value < 10 ? `${value.toFixed(1)} s` : `${Math.round(value)} s`;
}

// A run.

async function write() {
  stop();
  const asked = settings();
  const isCompared = asked.compare && Object.keys(asked.guides).length > 0;
  const whole = new AbortController();
  running = whole;
  history.replaceState(null, "", location.pathname + toHash(asked));
  const make = () => new Drafts(asked.prompt, asked.suffix ? asked.length : Infinity);
  texts = isCompared ? { main: make(), plain: make() } : { main: make() };
  $("plain-text").hidden = !isCompared;
  $("main-text").querySelector("h2").hidden = !isCompared;
  for (const [name, drafts] of Object.entries(texts)) stages[name].clear(drafts);
  timeline.begin(texts.main, costOf(asked, info).steps);
  $("meters").hidden = meters.length === 0;
  setRunning(true);
  const began = performance.now();
  try {
    await Promise.all(Object.keys(texts).map((name) => follow(name, asked, whole.signal)));
    timeline.grow();
    const { tokens } = texts.main.done;
    const { passes } = texts.main.steps.at(-1);
    const took = (performance.now() - began) / 1000;
    secondsPerPass = took / passes;
    say(`${tokens.length} tokens in ${passes} passes, ${seconds(took)}`);
    $("share").hidden = false;
    tellCost();
  } catch (error) {
    whole.abort(); // the other of two
    if (error.status === 401) askForKey(write);
    else if (error.name !== "AbortError") refuse(error.message);
  }
  if (running === whole) setRunning(false);
}

/** Takes in the events of one text. */
async function follow(name, asked, signal) {
  const drafts = texts[name];
  const options = optionsOf(asked, info, { isSteered: name === "main" });
  const guides = Object.keys(info.guides);
  const body = { prompt: asked.prompt, ...options, stream: true, candidates: CANDIDATES, guides };
  say("waiting for the server");
  for await (const event of events(body, signal)) {
    if (event.event === "error") throw new Refusal(event.message, 200);
    if (event.event === "queued") say(event.position ? `waiting: ${event.position} before you` : "writing");
    if (event.event === "draft" && drafts.steps.length === 0) say("writing");
    if (event.event === "block" && name === "main") $("spoken").textContent = event.text;
    drafts.take(event);
    if (event.event === "draft" || event.event === "done") redraw();
  }
  if (!drafts.done) throw new Refusal("The server broke off before the text was done.", 0);
}

let drawn = 0;
let isDue = false;

/** Shows the newest step at the next frame; slowly where little motion is wanted. */
function redraw() {
  if (isDue) return;
  isDue = true;
  const wait = isStill.matches && !texts.main.done ? SLOW - (performance.now() - drawn) : 0;
  setTimeout(() => requestAnimationFrame(() => {
    isDue = false;
    drawn = performance.now();
    if (texts.main.steps.length) timeline.grow();
    else if (texts.plain) stages.plain.show(texts.plain.steps.length, true);
  }), Math.max(0, wait));
}

function show(number, isNew) {
  // While both are being written, each shows its newest; afterwards both are at one step.
  const isLive = running && timeline.isFollowing;
  for (const [name, drafts] of Object.entries(texts)) {
    stages[name].show(isLive ? drafts.steps.length : number, isNew);
  }
  for (const meter of meters) meter.show(number, timeline.columns, texts.main, texts.plain);
}

function stop() {
  running?.abort();
  running = null;
  setRunning(false);
}

function setRunning(isRunning) {
  if (!isRunning) running = null;
  $("go").hidden = isRunning;
  $("stop").hidden = !isRunning;
  $("error").hidden = $("error").hidden || isRunning;
}

// Elsewhere.

async function copy(way) {
  const text = texts.main.done ?? {};
  const words = way === "text" ? text.prompt + text.text : WAYS[way](settings(), info);
  try {
    await navigator.clipboard.writeText(words);
    sayBriefly(way === "link" ? "link copied" : "copied");
  } catch {
    prompt("Copy this:", words); // where the browser keeps its clipboard to itself
  }
}

function savePicture() {
  const svg = picture(texts.main, WAYS.command(settings(), info));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  link.download = "denoising.svg";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function setTheme(theme) {
  $("theme").textContent = `theme: ${theme}`;
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  localStorage.setItem("ssdlm-theme", theme);
  timeline.redraw();
}

// The beginning.

async function begin() {
  try {
    info = { guides: {}, defaults: {}, ...(await getInfo()) };
  } catch (error) {
    if (error.status === 401) return askForKey(begin);
    return refuse(error.message);
  }
  // Drafts are watched here, and other guides read whole texts alone.
  const readers = Object.entries(info.guides).filter(([name]) => info.readers?.includes(name) ?? true);
  info.guides = Object.fromEntries(readers);
  $("error").hidden = true;
  $("model").textContent = info.model ?? "";
  const listed = Object.entries(info.guides);
  sliders = listed.map(([name, labels]) => new GuideSlider(name, labels, info, tellCost));
  meters = listed.map(([name, labels]) => new Meter(name, labels));
  $("guides").replaceChildren(...sliders.map((one) => one.element));
  $("meters").replaceChildren(...meters.map((one) => one.element));
  $("steering").hidden = listed.length === 0;
  $("examples").hidden = info.sources?.model !== "builtin:mini";
  $("length").max = Math.min(200, info.limits?.max_length ?? 200);
  const linked = fromAddress(location);
  for (const element of document.querySelectorAll("[data-open]")) element.hidden = info.most_open === 1;
  $("single").hidden = info.most_open !== 1;
  fill(fitting(linked ?? { ...USUAL, top_p: info.defaults.top_p ?? USUAL.top_p }));
  if (linked) write();
  else stages.main.clear(new Drafts($("prompt").value), " \u2026");
  if (!linked && matchMedia("(hover: hover)").matches) $("prompt").focus();
}

for (const label of form.querySelectorAll("#paths label")) {
  drawPath(label.querySelector("svg"), label.querySelector("input").value);
}
for (const element of form.querySelectorAll(".chips")) {
  chips[element.dataset.name] = new Chips(element, tellCost);
}
form.addEventListener("submit", (event) => {
  event.preventDefault();
  write();
});
form.addEventListener("input", (event) => {
  if (event.target.name === "path") $("T").value = PATHS[event.target.value].T;
  tellCost();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
});
for (const button of $("examples").querySelectorAll("button")) {
  button.addEventListener("click", () => {
    $("prompt").value = button.textContent;
    write();
  });
}
$("stop").addEventListener("click", () => {
  stop();
  say("stopped");
});
$("another").addEventListener("click", () => {
  $("seed").value = Number($("seed").value) + 1;
  write();
});
$("theme").addEventListener("click", () => {
  const now = localStorage.getItem("ssdlm-theme") ?? "auto";
  setTheme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
});
for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", () => copy(button.dataset.copy));
}
$("picture").addEventListener("click", savePicture);
addEventListener("hashchange", () => {
  const linked = fromAddress(location);
  if (linked && toHash(linked) !== toHash(settings())) {
    fill(linked);
    write();
  }
});
setTheme(localStorage.getItem("ssdlm-theme") ?? "auto");
begin();
