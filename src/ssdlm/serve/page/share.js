// The same text elsewhere: as a link, as a command line, as Python, as curl.

import { optionsOf, toHash } from "./settings.js";

/** Returns a word as a shell reads it. */
function quoted(value) {
  const word = String(value);
  return /^[\w./:=+-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

function python(value) {
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  return JSON.stringify(value);
}

const isBuiltIn = (info) => !info.model || info.model === "builtin:mini";

export const WAYS = {
  link: (settings) => location.href.split("#")[0] + toHash(settings),

  command(settings, info) {
    const words = ["ssdlm generate", quoted(settings.prompt)];
    if (!isBuiltIn(info)) words.push("--model", quoted(info.model));
    for (const [name, value] of Object.entries(optionsOf(settings, info))) {
      for (const one of [value].flat()) words.push(`--${name.replaceAll("_", "-")}`, quoted(one));
    }
    return words.join(" ");
  },

  python(settings, info) {
    const options = Object.entries(optionsOf(settings, info));
    return [
      "from ssdlm import SSDLM",
      "",
      `model = SSDLM.from_pretrained(${python(info.model ?? "builtin:mini")})`,
      "text = model.generate(",
      `    ${python(settings.prompt)},`,
      ...options.map(([name, value]) => `    ${name}=${python(value)},`),
      ")",
      "print(text.prompt + text.text)",
    ].join("\n");
  },

  curl(settings, info) {
    const body = JSON.stringify({ prompt: settings.prompt, ...optionsOf(settings, info) });
    const key = info.needs_key ? ` -H "Authorization: Bearer $SSDLM_KEY"` : "";
    return `curl -s ${location.origin}/v1/generate -H 'Content-Type: application/json'${key} -d ${quoted(body)}`;
  },
};
