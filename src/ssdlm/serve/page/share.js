// The same text elsewhere: as a link, as a command, as Python, as curl.

import { toHash } from "./link.js";
import { Text } from "./text.js";

const BUILT_IN = "builtin:mini";

/** Returns a word as a shell reads it. */
export function quoted(value) {
  const word = String(value);
  return /^[\w./:=+-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/** Returns a value as Python writes it. */
export function python(value) {
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "boolean") return value ? "True" : "False";
  if (value !== null && typeof value === "object") return python(JSON.stringify(value));
  return JSON.stringify(value);
}

/** Returns what asks a path of this server for an answer. */
export function curlOf(path, body, info) {
  const key = info.needs_key ? ` -H "Authorization: Bearer $SSDLM_KEY"` : "";
  return `curl -s ${location.origin}${path} -H 'Content-Type: application/json'${key} -d ${quoted(JSON.stringify(body))}`;
}

/** Returns a control with the folder of its guide in place of the name that this server has for it. */
function openable(control, info) {
  const [, name, label] = /^(.*?)(=.*)$/.exec(control);
  return (info.sources?.guides[name] ?? name) + label;
}

/** Returns the options of a body, with guides by what opens them elsewhere. */
function optionsOf({ prompt, text, spans, model, ...options }, info) {
  const control = options.control?.map((one) => openable(one, info));
  return Object.entries({ ...options, ...(control ? { control } : {}) });
}

function sourceOf(info) {
  return info.sources?.model ?? BUILT_IN;
}

function flagsOf(options) {
  return options.flatMap(([name, value]) => {
    const flag = `--${name.replaceAll("_", "-")}`;
    if (typeof value === "boolean") return [value ? flag : flag.replace("--", "--no-")];
    const words = [value].flat().map((part) => (typeof part === "object" ? JSON.stringify(part) : part));
    return words.flatMap((one) => (String(one).startsWith("-") ? [`${flag}=${quoted(one)}`] : [flag, quoted(one)]));
  });
}

export const WAYS = {
  text: ({ doc }) => doc.text,

  link({ asked, doc, texts, kind }) {
    const isChanged = kind !== "write" || Text.of(texts.main).text !== doc.text;
    return location.origin + location.pathname + toHash(asked, isChanged ? doc.text : "");
  },

  command({ body }, info) {
    const model = sourceOf(info) === BUILT_IN ? [] : ["--model", quoted(sourceOf(info))];
    const flags = [...model, ...flagsOf(optionsOf(body, info))];
    if (body.spans) {
      const spans = body.spans.flatMap((span) => ["--span", span.join("-")]);
      return [`printf %s ${quoted(body.text)} | ssdlm rewrite -`, ...spans, ...flags].join(" ");
    }
    const prompt = quoted(body.prompt);
    const isFlag = body.prompt.startsWith("-"); // or would be taken for one
    return ["ssdlm generate", ...(isFlag ? [] : [prompt]), ...flags, ...(isFlag ? ["--", prompt] : [])].join(" ");
  },

  python({ body }, info) {
    const options = optionsOf(body, info).map(([name, value]) => `    ${name}=${python(value)},`);
    const open = ["from ssdlm import SSDLM", "", `model = SSDLM.from_pretrained(${python(sourceOf(info))})`];
    const lines = body.spans
      ? ["texts = model.rewrite(", `    ${python(body.text)},`, `    ${python(body.spans)},`, ...options, ")", "for one in texts:", "    print(one.text)"]
      : ["text = model.generate(", `    ${python(body.prompt)},`, ...options, ")", "print(text.prompt + text.text)"];
    return [...open, ...lines].join("\n");
  },

  curl({ body }, info) {
    if (body.spans) return curlOf("/v1/rewrite", body, info);
    const { length, ...rest } = body;
    return curlOf("/v1/completions", { model: info.model, ...rest, max_tokens: length }, info);
  },
};

/** Copies words, or shows them where the browser keeps its clipboard to itself. */
export async function copy(words) {
  try {
    await navigator.clipboard.writeText(words);
    return true;
  } catch {
    prompt("Copy this:", words);
    return false;
  }
}
