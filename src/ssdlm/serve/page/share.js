// The same text elsewhere: as a link, as a command line, as Python, as curl.

import { optionsOf, toHash } from "./settings.js";

/** Returns a word as a shell reads it. */
function quoted(value) {
  const word = String(value);
  return /^[\w./:=+-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

function python(value) {
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "boolean") return value ? "True" : "False";
  if (value !== null && typeof value === "object") return python(JSON.stringify(value));
  return JSON.stringify(value);
}

const BUILT_IN = "builtin:mini";

/** Returns a control with the folder of its guide in place of the name that this server has for it. */
function openable(control, info) {
  const [, name, label] = /^(.*?)(=.*)$/.exec(control);
  return (info.sources?.guides[name] ?? name) + label;
}

/** Returns what opens the model elsewhere, and a text's options with guides by what opens them. */
function elsewhere(settings, info) {
  const options = optionsOf(settings, info);
  if (options.control) options.control = options.control.map((control) => openable(control, info));
  return { model: info.sources?.model ?? BUILT_IN, options: Object.entries(options) };
}

export const WAYS = {
  link: (settings) => location.origin + location.pathname + toHash(settings),

  command(settings, info) {
    const { model, options } = elsewhere(settings, info);
    const prompt = quoted(settings.prompt);
    const isFlag = settings.prompt.startsWith("-"); // or would be taken for one
    const words = isFlag ? ["ssdlm generate"] : ["ssdlm generate", prompt];
    if (model !== BUILT_IN) words.push("--model", quoted(model));
    for (const [name, value] of options) {
      const flag = `--${name.replaceAll("_", "-")}`;
      if (typeof value === "boolean") {
        words.push(value ? flag : flag.replace("--", "--no-"));
        continue;
      }
      for (const one of [value].flat().map((part) => (typeof part === "object" ? JSON.stringify(part) : part))) {
        if (String(one).startsWith("-")) words.push(`${flag}=${quoted(one)}`);
        else words.push(flag, quoted(one));
      }
    }
    if (isFlag) words.push("--", prompt);
    return words.join(" ");
  },

  python(settings, info) {
    const { model, options } = elsewhere(settings, info);
    return [
      "from ssdlm import SSDLM",
      "",
      `model = SSDLM.from_pretrained(${python(model)})`,
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
