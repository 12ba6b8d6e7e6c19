// What is asked for: settings as an object, in the link, and as the body of a request.

export const PATHS = {
  left: { grid: "sliding", width: 1, T: 25 },
  window: { grid: "staggered", width: 8, T: 63 },
  all: { grid: "warped", T: 100 },
};
export const USUAL = {
  prompt: "The movie was", path: "left", length: 25, T: 25, top_p: 0.9, seed: 0,
  must: [], must_not: [], suffix: "", compare: false, guides: {}, more: {},
};
const NUMBERS = ["length", "T", "top_p", "seed"];
const GUIDE = "guide.";
const KNOWN = ["prompt", "path", ...NUMBERS, "suffix", "must", "must_not", "compare"];
const WORDS = ["regex", "stop", "bad_words"]; // options that are text even where they look like a number

/** Returns settings as the part of a link after #. */
export function toHash(settings) {
  const query = new URLSearchParams();
  for (const name of ["prompt", "path", ...NUMBERS, "suffix"]) query.set(name, settings[name]);
  for (const name of ["must", "must_not"]) for (const word of settings[name]) query.append(name, word);
  for (const [name, { label, strength }] of Object.entries(settings.guides)) {
    query.set(GUIDE + name, `${label}:${strength}`);
  }
  if (settings.compare) query.set("compare", "1");
  if (!settings.suffix) query.delete("suffix");
  for (const [name, value] of Object.entries(settings.more)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      query.append(name, typeof one === "string" ? one : JSON.stringify(one));
    }
  }
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

/**
 * Returns the settings of an address, after # or else after ?, or null where it has none.
 * What it leaves out is as usual. `more` has options that the page has no control for, `odd` what
 * it cannot mean.
 */
export function fromAddress({ hash, search }) {
  const parts = [hash, search].map((part) => new URLSearchParams(part.slice(1)));
  const query = parts.find((part) => part.has("prompt"));
  if (!query) return null;
  const odd = [];
  const settings = { ...USUAL, odd, guides: {}, more: {}, must: query.getAll("must"), must_not: query.getAll("must_not") };
  settings.prompt = query.get("prompt");
  settings.suffix = query.get("suffix") ?? "";
  settings.compare = query.get("compare") === "1";
  if (Object.hasOwn(PATHS, query.get("path") ?? "")) settings.path = query.get("path");
  else if (query.has("path")) odd.push(`path=${query.get("path")}`);
  settings.T = PATHS[settings.path].T;
  for (const name of NUMBERS) {
    const value = Number(query.get(name));
    if (!query.has(name)) continue;
    if (query.get(name) && Number.isFinite(value)) settings[name] = value;
    else odd.push(`${name}=${query.get(name)}`);
  }
  for (const [key, value] of query) {
    const [, label, strength] = /^(.*):([\d.]+)$/.exec(value) ?? [];
    if (key.startsWith(GUIDE) && label) {
      settings.guides[key.slice(GUIDE.length)] = { label, strength: Number(strength) };
    } else if (key.startsWith(GUIDE)) {
      odd.push(`${key}=${value}`);
    } else if (!KNOWN.includes(key)) {
      const values = query.getAll(key).map((word) => valueOf(key, word));
      settings.more[key] = values.length > 1 ? values : values[0];
    }
  }
  return settings;
}

/** Returns the options of a text, by the names of the library, without those that do nothing. */
export function optionsOf(settings, info, { isSteered = true } = {}) {
  const { grid, width } = PATHS[settings.path];
  const options = { length: settings.length, grid, T: settings.T, top_p: settings.top_p, seed: settings.seed };
  if (width !== undefined) options.width = width;
  const control = isSteered ? controlsOf(settings, info) : [];
  if (control.length) options.control = control;
  if (settings.must.length) options.must = settings.must;
  if (settings.must_not.length) options.must_not = settings.must_not;
  if (settings.suffix) options.suffix = settings.suffix;
  return { ...options, ...settings.more };
}

function controlsOf(settings, info) {
  return Object.entries(settings.guides)
    .filter(([name, { strength }]) => strength > 0 && name in info.guides)
    .map(([name, { label, strength }]) => {
      const weight = Number((strength * usualWeight(info, name)).toPrecision(3));
      return `${name}=${label}:${weight}`;
    });
}

/** Returns a guide's usual weight, which the server knows. */
export function usualWeight(info, name) {
  return info.lam?.[name] ?? 5;
}

/** Returns how many steps a text takes, and how many passes of the network. */
export function costOf(settings, info) {
  const B = info.defaults?.B?.[0] ?? 25;
  const { length, T } = settings;
  const isWhole = settings.must.length || settings.suffix; // planned for a block as a whole
  if (settings.path === "left" && !isWhole) {
    const steps = Math.ceil((length * T) / B);
    return { steps, passes: steps };
  }
  const blocks = settings.suffix ? 1 : Math.ceil(length / B); // a gap and what follows are one
  return { steps: blocks * T, passes: blocks * (T + 1) }; // one more reads what is before it
}
