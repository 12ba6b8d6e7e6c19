// The server: what it has, and what it writes, event by event.

const KEY = "ssdlm-key";

/** An error as the server says it. */
export class Refusal extends Error {
  constructor(message, { status = 0, param = null, wait = null } = {}) {
    super(message);
    Object.assign(this, { status, param, wait });
  }
}

export function keepKey(key) {
  sessionStorage.setItem(KEY, key);
}

async function ask(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("The server does not answer. Is it still running?");
  }
  if (response.ok) return response;
  const { error = {} } = await response.json().catch(() => ({}));
  const { status, statusText, headers: told } = response;
  const message = error.message ?? `the server answers ${status} ${statusText}`;
  throw new Refusal(message, { status, param: error.param, wait: told.get("Retry-After") });
}

/** Returns what the server has of a model, or of its first: guides, labels, defaults, limits. */
export async function getInfo(model) {
  return (await ask(`/v1/info${model ? `?model=${encodeURIComponent(model)}` : ""}`)).json();
}

/** Returns the models there are, and what each can do. */
export async function getModels() {
  return (await (await ask("/v1/models")).json()).data;
}

function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return ask(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

/** Returns the whole answer to a request. */
export async function answer(path, body, signal) {
  return (await post(path, body, signal)).json();
}

/** Yields the events of an answer, as they come. */
export async function* events(path, body, signal) {
  const response = await post(path, { ...body, stream: true }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await read(reader);
    if (done) return;
    const messages = (rest + value).split(/\r?\n\r?\n/);
    rest = messages.pop();
    for (const message of messages) {
      const lines = message.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      const data = lines.map((line) => line.slice(5).trim()).join("\n");
      if (!data || data === "[DONE]") continue;
      const event = JSON.parse(data);
      const wrong = event.event === "error" ? event : event.error;
      if (wrong) throw new Refusal(wrong.message, { status: 400 });
      yield event;
    }
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("The server broke off before the text was done.");
  }
}
