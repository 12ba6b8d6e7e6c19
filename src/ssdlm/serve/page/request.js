// Settings as the body of a request: the options of the library, by its names.

import { pathOf } from "./paths.js";
import { Refusal } from "./server.js";

const PARTICLES = 8;
const GENTLY = 0.8; // of the usual weight: beside particles (docs/control.md)

/** Returns the body that asks for a text, without what does nothing. */
export function bodyOf(settings, info, { isSteered = true } = {}) {
  const { grid, width } = pathOf(settings.path, info);
  const { prompt, length, T, temperature, top_p, seed, must, must_not, suffix, regex } = settings;
  const body = { prompt, length, grid, T, top_p, seed };
  if (width !== undefined) body.width = width;
  if (temperature !== (info.defaults.temperature ?? 1)) body.temperature = temperature;
  const control = isSteered ? controlsOf(settings, info) : [];
  if (control.length) body.control = control;
  if (control.length && settings.gentle) body.particles = PARTICLES;
  if (must.length) body.must = must;
  if (must_not.length) body.must_not = must_not;
  if (suffix) body.suffix = suffix;
  if (regex) body.regex = regex;
  if (settings.json_schema.trim()) body.json_schema = withFixed(schemaIn(settings.json_schema), settings.fixed);
  if (settings.model) body.model = settings.model;
  return { ...body, ...settings.more };
}

/** Returns the schema that somebody wrote, or raises with where it is none. */
export function schemaIn(text) {
  try {
    const schema = JSON.parse(text);
    if (schema && typeof schema === "object") return schema;
  } catch (error) {
    throw new Refusal(`The schema is no JSON: ${error.message}.`, { param: "json_schema" });
  }
  throw new Refusal("The schema is no object: begin it with {.", { param: "json_schema" });
}

/** Returns a schema in which fields that somebody has filled have that value and no other. */
export function withFixed(schema, fixed) {
  if (!fixed || !Object.keys(fixed).length) return schema;
  const properties = { ...schema.properties };
  for (const [name, value] of Object.entries(fixed)) {
    const isInner = value && typeof value === "object" && !Array.isArray(value);
    properties[name] = isInner ? withFixed(properties[name], value) : { const: value };
  }
  const required = [...new Set([...(schema.required ?? []), ...Object.keys(fixed)])];
  return { ...schema, properties, required };
}

export function isSteered(settings, info) {
  return controlsOf(settings, info).length > 0;
}

function controlsOf(settings, info) {
  return Object.entries(settings.guides)
    .filter(([name, { strength }]) => strength > 0 && name in info.guides)
    .map(([name, { label, strength }]) => {
      const weight = strength * usualWeight(info, name) * (settings.gentle ? GENTLY : 1);
      return `${name}=${label}:${Number(weight.toPrecision(3))}`;
    });
}

/** Returns a guide's usual weight, which the server knows. */
export function usualWeight(info, name) {
  return info.lam[name];
}
