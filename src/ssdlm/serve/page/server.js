// The server's two answers: what it has, and the events of a text.

const KEY = "ssdlm-key";

/** An error in words, as the server says it. */
export class Refusal extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
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
    throw new Refusal("The server does not answer. Is it still running?", 0);
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  let message = said.error?.message ?? `The server answers ${response.status} ${response.statusText}.`;
  const wait = response.headers.get("Retry-After");
  if (response.status === 429) message = `The server is busy${wait ? `; try again in ${wait} s` : ""}. ${message}`;
  throw new Refusal(message, response.status);
}

/** Returns what the server has: its model, its guides and their labels, its defaults. */
export async function getInfo() {
  return (await ask("/v1/info")).json();
}

/** Yields the events of a text, as they come. */
export async function* events(body, signal) {
  const response = await ask("/v1/generate", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const messages = (rest + value).split(/\r?\n\r?\n/);
    rest = messages.pop();
    for (const message of messages) {
      const data = message.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      if (data.length) yield JSON.parse(data.map((line) => line.slice(5)).join("\n"));
    }
  }
}
