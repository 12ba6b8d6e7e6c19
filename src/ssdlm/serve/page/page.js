// The page: its parts connected with each other.

import { makeChat, openChat } from "./chat.js";
import { $ } from "./dom.js";
import { Drafts } from "./drafts.js";
import { note } from "./history.js";
import { fitting, oddities, queryIn, settingsIn, toHash } from "./link.js";
import { steer } from "./live.js";
import { listenToModels, makeModels } from "./models.js";
import { Past } from "./past.js";
import { makePaths, measure, pathOf } from "./paths.js";
import { picture } from "./picture.js";
import { rewrite } from "./rewrite.js";
import { cease } from "./running.js";
import { getInfo, getModels } from "./server.js";
import { fill, makeChips, makeSliders, settings, sliders, tellSettings, usual } from "./settings.js";
import { WAYS, copy } from "./share.js";
import { sheet } from "./sheet.js";
import { listenToSpeed, tellSpeed } from "./speed.js";
import { state } from "./state.js";
import { Text } from "./text.js";
import { makeTheme } from "./theme.js";
import { listenToTools, tellTools, toRewrite } from "./tools.js";
import { act, choices, paper, settle, timeline, wait, watchers } from "./view.js";
import { announce, forgive, listen, refuse, say, sayBriefly } from "./voice.js";
import { write } from "./write.js";

const past = new Past();
let round = 0; // of rewriting: each has seeds of its own

// What people do.

/** Shows a text that is new; a slider that goes on moving makes one state, not many. */
function take(entry) {
  if (entry.isLive && past.now?.isLive) past.replace(entry);
  else past.push(entry);
  settle(entry);
  announce(entry.doc.text);
  note(entry, (one) => {
    past.push(one);
    bring(one);
  });
  $("share").hidden = false;
  if (entry.kind !== "write") return say(entry.isLive ? "steered" : "rewritten");
  const { written, asked, body, took } = entry;
  const sum = (count) => written.reduce((all, drafts) => all + count(drafts), 0);
  const [tokens, passes] = [sum(({ done }) => done.tokens.length), sum(({ last }) => last.passes)];
  const isAlone = written.length === 1;
  if (isAlone && !body.particles) measure(asked, passes, took);
  tellSpeed({ tokens, passes, took, body: isAlone ? body : null });
  say("done");
  sheet.show(entry.texts.main.done.text);
  tellSettings();
}

/** Shows an earlier state of the text, and what it was asked for with. */
function bring(entry) {
  fill(entry.asked);
  settle(entry);
  sheet.show(entry.texts.main.done?.text ?? "");
  say("");
}

async function start() {
  const entry = await write();
  if (entry) take(entry);
  else if (state.entry && !state.running) settle(state.entry);
}

Object.assign(act, {
  change(doc) {
    const entry = { ...state.entry, doc, kind: doc.text === state.entry.doc.text ? state.entry.kind : "typed" };
    past.push(entry);
    state.entry = entry;
    choices.show(null);
    history.replaceState(null, "", new URL(WAYS.link(entry)).hash);
    if (entry.kind === "typed") say("Your words are kept. Enter writes the sentence around them anew.");
  },

  async rewrite(range) {
    if (state.running || state.info.most_open === 1) return;
    const spans = toRewrite(range);
    if (!spans.length) return;
    const { doc } = state.entry;
    const seed = settings().seed + 3 * round++;
    const work = rewrite(doc, spans, { seed, retry: () => act.rewrite(range) });
    choices.focus();
    const entry = await work;
    if (!entry) return state.running || settle(state.entry);
    take(entry);
    history.replaceState(null, "", new URL(WAYS.link(entry)).hash);
    if (document.activeElement === document.body) choices.focus();
  },

  undo() {
    if (past.canUndo) bring(past.undo());
  },

  redo() {
    if (past.canRedo) bring(past.redo());
  },

  chosen: () => tellTools(past),
});

choices.chose = (number) => {
  if (state.running) return;
  const { entry } = state;
  const { drafts, doc } = entry.choices.list[number];
  const texts = drafts ? { ...entry.texts, main: drafts } : entry.texts;
  const chosen = { ...entry, texts, doc, choices: { ...entry.choices, chosen: number } };
  past.replace(chosen);
  settle(chosen);
  if (entry.kind === "rewrite") history.replaceState(null, "", new URL(WAYS.link(chosen)).hash);
};

choices.left = () => {
  const place = state.entry.doc.marks.find(({ kind }) => kind === "new");
  if (state.running || !place) return;
  paper.choose(place);
  paper.focus(place);
  document.activeElement.scrollIntoView({ block: "nearest" }); // the cards may have taken all the room
};

function stop() {
  const drafts = timeline.drafts;
  cease();
  if (drafts?.around === "given" && !drafts.old.length && drafts.last) {
    drafts.stop();
    const asked = settings();
    const entry = { asked, texts: { main: drafts }, doc: Text.of(drafts), choices: null, kind: "stopped" };
    past.push(entry);
    settle(entry);
  } else if (state.entry) settle(state.entry);
}

function follow() {
  tellSettings();
  steer(take);
}

// The beginning.

async function begin(model) {
  const query = queryIn(location);
  try {
    state.models = await getModels();
    const wanted = model ?? query?.get("model");
    const isThere = state.models.some(({ id }) => id === wanted);
    state.info = { guides: {}, defaults: {}, ...(await getInfo(isThere ? wanted : undefined)) };
  } catch (error) {
    return refuse(error, () => begin(model));
  }
  const { info } = state;
  // Drafts are watched here, and other guides read whole texts alone.
  const readers = Object.entries(info.guides).filter(([name]) => info.readers?.includes(name) ?? true);
  info.guides = Object.fromEntries(readers);
  forgive();
  makeModels(state.models, info.model, (other) => {
    stop();
    begin(other);
  });
  makeSliders(info, follow);
  $("examples").hidden = info.sources?.model !== "builtin:mini";
  $("length").max = Math.min(200, info.limits?.max_length ?? 200);
  for (const element of document.querySelectorAll("[data-open]")) element.hidden = info.most_open === 1;
  $("single").hidden = info.most_open !== 1;
  openChat(state.models.find(({ id }) => id === info.model));
  if (model) {
    const given = { ...usual(info), prompt: $("prompt").value };
    fill(given);
    state.entry = null;
    choices.show(null);
    return wait(new Drafts(given.prompt));
  }
  if (query) return open(query);
  fill(usual(info));
  wait(new Drafts($("prompt").value));
  if (!matchMedia("(hover: hover)").matches) return;
  $("prompt").focus();
  chooseExample();
}

/** Chooses the beginning that stands there as an example, so that what one types takes its place. */
function chooseExample() {
  if ($("prompt").value === $("prompt").defaultValue) $("prompt").select();
}

/** Opens a link: the text that it asks for is written, or one that was changed is shown. */
function open(query) {
  const given = fitting(settingsIn(query, state.info), state.info);
  fill(given);
  $("linked").textContent = oddities(given, settings(), state.info);
  $("linked").hidden = !$("linked").textContent;
  if (!given.text) return start();
  const drafts = Drafts.whole("", { text: given.text, tokens: [] });
  const asked = settings();
  const body = { prompt: given.prompt, length: given.length, seed: given.seed };
  take({ asked, texts: { main: drafts }, doc: new Text(given.text), choices: null, kind: "typed", body });
  say("");
}

listen();
listenToModels();
listenToSpeed();
listenToTools(act);
makePaths();
makeChips();
makeChat();
makeTheme(() => timeline.redraw());
watchers.push((number, texts) => {
  const [step, plain] = [texts.main, texts.plain].map((one) => (one?.steps.length ? one.at(number) : undefined));
  for (const slider of sliders) slider.read(step, plain);
});

const form = $("form");
form.addEventListener("submit", (event) => {
  event.preventDefault();
  start();
});
form.addEventListener("input", (event) => {
  if (event.target.name === "path") $("T").value = pathOf(event.target.value, state.info).T;
  if (event.target.id === "json_schema") sheet.build($("json_schema").value);
  if (event.target.id === "gentle") follow();
  else tellSettings();
});
$("compare").addEventListener("change", follow);
$("prompt").addEventListener("click", chooseExample, { once: true });
$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
});
for (const button of document.querySelectorAll("[data-fill]")) {
  button.addEventListener("click", () => {
    const field = $(button.dataset.fill);
    field.value = button.dataset.value ?? button.textContent;
    if (button.dataset.length) $("length").value = button.dataset.length; // fewer would leave its fields empty
    field.dispatchEvent(new Event("input", { bubbles: true }));
    if (field.id === "prompt") form.requestSubmit();
    else field.focus();
  });
}
$("stop").addEventListener("click", stop);
$("another").addEventListener("click", () => {
  $("seed").value = Number($("seed").value) + 1;
  start();
});
$("release").addEventListener("click", () => sheet.clear());
for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    if (await copy(WAYS[button.dataset.copy](state.entry, state.info))) sayBriefly("copied");
  });
}
$("picture").addEventListener("click", () => {
  const { texts, body } = state.entry;
  const svg = picture(texts.main, body ? WAYS.command({ body }, state.info) : "");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  link.download = "settling.svg";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});
addEventListener("hashchange", () => {
  const query = queryIn(location);
  if (!query || `#${query}` === toHash(settings())) return;
  const isOther = state.models.some(({ id }) => id === query.get("model") && id !== state.info.model);
  if (isOther) begin();
  else open(query);
});
begin();
