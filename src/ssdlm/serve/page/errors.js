// Errors in the words of a person: what the server says, without the names that programs use.

const NAMES = {
  T: "steps",
  length: "tokens",
  must: "the required words",
  must_not: "the forbidden words",
  suffix: "the text after the gap",
  regex: "the pattern",
  json_schema: "the schema",
  control: "steering",
  particles: "gentle steering",
  num_samples: "samples",
  max_completion_tokens: "tokens",
};
const NAMED = new RegExp(`(?<![\\w'"/.])(${Object.keys(NAMES).join("|")})=`, "g");
const FIRST = new RegExp(`^(${Object.keys(NAMES).join("|")}) `);

/** Returns what is wrong, for who reads it. */
export function inWords({ message, status, wait }) {
  if (status === 0) return message;
  if (status === 429) return `Too many people are writing just now. Try again${wait ? ` in ${wait} seconds` : " soon"}.`;
  if (status === 503) return "The server is shutting down. Try again when it is back.";
  if (status >= 500) return "Something broke in the server; its log says what.";
  const said = message
    .replace(FIRST, (_, name) => `${NAMES[name]}: it `)
    .replace(NAMED, (_, name) => `${NAMES[name]} `)
    .replace(/^span \d+-\d+/, "what you chose");
  return said.charAt(0).toUpperCase() + said.slice(1) + (/[.!?]$/.test(said) ? "" : ".");
}
