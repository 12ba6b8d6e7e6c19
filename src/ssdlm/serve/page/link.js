// The address: settings as its part after #, and what one asks for.

import { isPath, pathOf } from "./paths.js";
import { NUMBERS, usual } from "./settings.js";

const GUIDE = "guide.";
const TEXTS = ["prompt", "suffix", "regex", "json_schema"];
const SWITCHES = ["compare", "gentle", "free"];
const LISTS = ["must", "must_not"];
const KNOWN = [...TEXTS, ...NUMBERS, ...SWITCHES, ...LISTS, "path", "model", "fixed", "text"];
const WORDS = ["stop", "bad_words"]; // options that are text even where they look like a number
const UNSAID = { temperature: "1", samples: "1" };

/** Returns settings as the part of a link after #; `text` is a finished text that was changed. */
export function toHash(settings, text = "") {
  const query = new URLSearchParams({ prompt: settings.prompt, path: settings.path });
  for (const name of NUMBERS) if (String(settings[name]) !== UNSAID[name]) query.set(name, settings[name]);
  for (const name of TEXTS.slice(1)) if (settings[name]) query.set(name, settings[name]);
  for (const name of LISTS) for (const word of settings[name]) query.append(name, word);
  for (const name of SWITCHES) if (settings[name]) query.set(name, "1");
  if (settings.model) query.set("model", settings.model);
  if (Object.keys(settings.fixed ?? {}).length) query.set("fixed", JSON.stringify(settings.fixed));
  for (const [name, { label, strength }] of Object.entries(settings.guides)) {
    query.set(GUIDE + name, `${label}:${strength}`);
  }
  for (const [name, value] of Object.entries(settings.more)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      query.append(name, typeof one === "string" ? one : JSON.stringify(one));
    }
  }
  if (text) query.set("text", text);
  return `#${query}`;
}

/** Returns a value of a link as the library takes it. */
function valueOf(name, word) {
  if (WORDS.includes(name)) return word;
  try {
    return JSON.parse(word);
  } catch {
    return word;
  }
}

/** Returns what an address asks for, after # or else after ?, or null where it asks for nothing. */
export function queryIn({ hash, search }) {
  const parts = [hash, search].map((part) => new URLSearchParams(part.slice(1)));
  return parts.find((part) => part.has("prompt")) ?? null;
}

/**
 * Returns the settings of an address. What it leaves out is as usual. `more` has options that the
 * page has no control for, `odd` what it cannot mean.
 */
export function settingsIn(query, info) {
  const odd = [];
  const found = { ...usual(info), odd, text: query.get("text") };
  for (const name of TEXTS) found[name] = query.get(name) ?? "";
  for (const name of SWITCHES) found[name] = query.get(name) === "1";
  for (const name of LISTS) found[name] = query.getAll(name);
  if (query.has("fixed")) found.fixed = valueOf("fixed", query.get("fixed"));
  if (isPath(query.get("path"))) found.path = query.get("path");
  else if (query.has("path")) odd.push(`path=${query.get("path")}`);
  found.T = pathOf(found.path, info).T;
  for (const name of NUMBERS) {
    if (!query.has(name)) continue;
    const value = Number(query.get(name));
    if (query.get(name) && Number.isFinite(value)) found[name] = value;
    else odd.push(`${name}=${query.get(name)}`);
  }
  for (const [key, value] of query) {
    const [, label, strength] = /^(.*):([\d.]+)$/.exec(value) ?? [];
    if (key.startsWith(GUIDE) && label) found.guides[key.slice(GUIDE.length)] = { label, strength: Number(strength) };
    else if (key.startsWith(GUIDE)) odd.push(`${key}=${value}`);
    else if (!KNOWN.includes(key)) {
      const values = query.getAll(key).map((word) => valueOf(key, word));
      found.more[key] = values.length > 1 ? values : values[0];
    }
  }
  return found;
}

/** Returns settings without what a model cannot do, which is told in `odd`. */
export function fitting(given, info) {
  if (info.most_open !== 1) return given;
  const single = { path: "left", must: [], suffix: "" };
  const lost = Object.keys(single).filter((name) => String(given[name]) !== String(single[name]));
  const odd = [...(given.odd ?? []), ...lost.map((name) => `${name}=${given[name]}`)];
  return { ...given, ...single, T: pathOf("left", info).T, odd };
}

/** Returns in words what of a link is used beside the page's own settings, and what cannot be. */
export function oddities({ odd = [], ...given }, now, info) {
  const other = NUMBERS.filter((name) => given[name] !== now[name]);
  const unknown = Object.keys(given.guides).filter((name) => !(name in info.guides));
  const words = Object.entries(given.more).map(([name, value]) => {
    return `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`;
  });
  return [
    words.length ? `The link also asks for ${words.join(", ")}.` : "",
    ...odd.map((word) => `The link's ${word} is not known here and left out.`),
    ...unknown.map((name) => `The link's guide ${name} is not on this server and left out.`),
    ...other.map((name) => `The link's ${name}=${given[name]} is out of range; ${now[name]} is used.`),
  ].filter(Boolean).join(" ");
}
