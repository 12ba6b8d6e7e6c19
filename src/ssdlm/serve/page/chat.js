// A talk with a model that has a template for it: messages, and answers that settle.

import { $, make } from "./dom.js";
import { cease, during, tellQueue } from "./running.js";
import { Refusal, events } from "./server.js";
import { copy, curlOf, python } from "./share.js";
import { state } from "./state.js";
import { announce, say, sayBriefly } from "./voice.js";

const PATH = "/v1/chat/completions";
let messages = []; // of user and assistant

/** Shows the tabs where the model can chat; else writing alone is left. */
export function openChat(model) {
  $("tabs").hidden = !model?.chat;
  if (!model?.chat) show(false);
}

function show(isChat) {
  $("talk").hidden = !isChat;
  $("form").hidden = isChat;
  for (const tab of $("tabs").children) tab.setAttribute("aria-pressed", String((tab.id === "tab-chat") === isChat));
  if (isChat) $("message").focus();
}

function bodyOf(asked) {
  const system = $("system").value.trim();
  const first = system ? [{ role: "system", content: system }] : [];
  const body = { model: state.info.model, messages: [...first, ...asked], max_completion_tokens: Number($("most").value) };
  const temperature = Number($("heat").value);
  return { ...body, temperature, seed: Number($("talk-seed").value) };
}

function add({ role, content }) {
  const text = make("p", {}, content);
  const who = role === "user" ? "You" : state.info.model;
  $("messages").append(make("li", { className: role }, make("small", {}, who), text));
  text.scrollIntoView({ block: "nearest" });
  return text;
}

async function send() {
  const content = $("message").value.trim();
  if (!content) return;
  const asked = [...messages, { role: "user", content }];
  add(asked.at(-1));
  $("message").value = "";
  const place = add({ role: "assistant", content: "\u2026" });
  place.className = "on-its-way";
  const text = await during((signal) => answered(bodyOf(asked), place, signal), () => {
    $("message").value = content;
    send();
  });
  place.className = "";
  if (text === null) {
    place.parentElement.previousSibling.remove();
    place.parentElement.remove();
    $("message").value ||= content;
    return;
  }
  messages = [...asked, { role: "assistant", content: text }];
  $("talk-tools").hidden = false;
  say("");
  announce(text);
}

/** Shows an answer as it settles, and returns it. */
async function answered(body, place, signal) {
  let [text, isDone] = ["", false];
  for await (const event of events(PATH, { ...body, diffusing: true }, signal)) {
    tellQueue(event);
    const told = event.choices?.[0]?.delta?.content;
    if (told) place.textContent = text = told;
    isDone ||= Boolean(event.choices?.[0]?.finish_reason);
  }
  if (!isDone) throw new Refusal("The server broke off before the answer was done.");
  return text.trim();
}

const WAYS = {
  text: () => messages.map(({ role, content }) => `${role}: ${content}`).join("\n\n"),
  curl: () => curlOf(PATH, bodyOf(messages.slice(0, -1)), state.info),
  python() {
    const { model, messages: said, ...options } = bodyOf(messages.slice(0, -1));
    return [
      "from openai import OpenAI",
      "",
      `client = OpenAI(base_url="${location.origin}/v1", api_key="none")`,
      "answer = client.chat.completions.create(",
      `    model=${python(model)},`,
      "    messages=[",
      ...said.map(({ role, content }) => `        {"role": ${python(role)}, "content": ${python(content)}},`),
      "    ],",
      ...Object.entries(options).map(([name, value]) => `    ${name}=${python(value)},`),
      ")",
      "print(answer.choices[0].message.content)",
    ].join("\n");
  },
};

export function makeChat() {
  for (const tab of $("tabs").children) {
    tab.addEventListener("click", () => {
      if (state.running) $(tab.id === "tab-chat" ? "stop" : "cease").click(); // what nobody would see
      show(tab.id === "tab-chat");
    });
  }
  $("talk").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  $("message").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  $("cease").addEventListener("click", cease);
  $("fresh").addEventListener("click", () => {
    messages = [];
    $("messages").replaceChildren();
    $("talk-tools").hidden = true;
    $("message").focus();
  });
  for (const button of $("talk-tools").querySelectorAll("[data-way]")) {
    button.addEventListener("click", async () => {
      if (await copy(WAYS[button.dataset.way]())) sayBriefly("copied");
    });
  }
}
