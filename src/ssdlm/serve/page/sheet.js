// A form built from a JSON schema: what one fills in is fixed, the rest is written by the model.

import { $, make } from "./dom.js";

/** A field of the form; `fixed` is what somebody filled in, undefined where the model writes. */
class Field {
  constructor(name, schema) {
    this.schema = schema;
    this.control = controlOf(schema);
    this.control.addEventListener("input", () => this.tell(this.text !== "" && "fixed"));
    this.state = make("small");
    this.element = make("label", {}, make("span", {}, schema.title ?? name, this.state), this.control);
    this.tell("");
  }

  get text() {
    return this.control.value.trim();
  }

  get fixed() {
    return this.kind === "fixed" ? valueOf(this.text, this.schema) : undefined;
  }

  /** Puts a value there: of a link, which is fixed, or one that was written. */
  put(value, kind) {
    if (this.kind === "fixed" && kind !== "fixed") return;
    this.control.value = value === undefined ? "" : wordOf(value);
    this.tell(value === undefined ? "" : kind);
  }

  tell(kind) {
    this.kind = kind || "";
    this.element.dataset.kind = this.kind;
    this.state.textContent = { fixed: " yours", written: " written" }[kind] ?? "";
  }
}

/** An object within the form. */
class Group {
  constructor(name, { title = name, properties = {} }) {
    this.fields = Object.entries(properties).map(([key, schema]) => [key, schema.properties ? new Group(key, schema) : new Field(key, schema)]);
    const inner = this.fields.map(([, one]) => one.element);
    this.element = name ? make("fieldset", {}, make("legend", {}, title), ...inner) : make("div", { className: "fields" }, ...inner);
  }

  get fixed() {
    const given = this.fields.map(([key, one]) => [key, one.fixed]).filter(([, value]) => value !== undefined);
    return given.length ? Object.fromEntries(given) : undefined;
  }

  put(value, kind) {
    for (const [key, one] of this.fields) if (kind !== "fixed" || value?.[key] !== undefined) one.put(value?.[key], kind);
  }
}

class Sheet {
  group = null;
  source = "";

  /** Makes the form of a schema, as far as it is one; `fixed` are values that somebody gave. */
  build(text, fixed) {
    if (text !== this.source) {
      this.source = text;
      this.group = groupOf(text);
      $("sheet").hidden = !this.group;
      $("fields").replaceChildren(...(this.group ? [this.group.element] : []));
    }
    if (fixed) this.group?.put(fixed, "fixed");
  }

  get fixed() {
    return this.group?.fixed ?? {};
  }

  /** Fills in what was written; a text that is no JSON empties what the model wrote. */
  show(text) {
    let value;
    try {
      value = JSON.parse(text);
    } catch {
      value = undefined;
    }
    this.group?.put(value, "written");
  }

  /** Lets the model write all of it again. */
  clear() {
    const { source } = this;
    this.source = "";
    this.build(source);
  }
}

export const sheet = new Sheet();

function groupOf(text) {
  try {
    const schema = JSON.parse(text);
    return schema.properties ? new Group("", schema) : null;
  } catch {
    return null; // somebody is still typing
  }
}

function controlOf(schema) {
  const choices = schema.enum ?? (schema.type === "boolean" ? [true, false] : null);
  if (choices) return make("select", {}, new Option("", ""), ...choices.map((one) => new Option(wordOf(one))));
  const isNumber = schema.type === "number" || schema.type === "integer";
  if (isNumber) return make("input", { type: "number", step: schema.type === "integer" ? 1 : "any" });
  if (schema.type === "array" || schema.type === "object") return make("textarea", { rows: 2, spellcheck: false });
  return make("input", { type: "text", autocomplete: "off" });
}

function wordOf(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function valueOf(text, schema) {
  if (schema.enum) return schema.enum.find((one) => wordOf(one) === text);
  if (schema.type === "string") return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
