// How it writes: the paths on cards, what each is good for, and what it costs here.

import { $, draw, make } from "./dom.js";
import { state } from "./state.js";

const PATHS = {
  left: { name: "Left to right", good: "writes best" },
  window: { name: "A moving window", good: "shows words change" },
  all: { name: "All at once", good: "the paper's; roughest" },
};
const [COLUMNS, ROWS] = [10, 8];
const NOISE = {
  left: (row, column) => (column < ((row + 1) / ROWS) * COLUMNS ? 0 : 1),
  window: (row, column) => Math.min(1, Math.max(0, (column - (row * 15) / ROWS + 5) / 5)),
  all: (row) => 1 - row / (ROWS - 1),
};

export const isPath = (name) => Object.hasOwn(PATHS, name);

/** Returns a path's options for a model, with its usual number of steps. */
export function pathOf(path, info) {
  const B = blockOf(info);
  if (path === "left") return { grid: "sliding", width: 1, T: B };
  if (path === "window") return { grid: "staggered", width: 8, T: Math.round(2.52 * B) };
  return { grid: "warped", T: 4 * B };
}

function blockOf(info) {
  return info.defaults.B?.[0] ?? 25;
}

/** Returns how many steps a text takes, and how many passes of the network. */
export function costOf({ path, length, T, must, suffix }, info) {
  const B = blockOf(info);
  const isWhole = must.length || suffix; // planned for a block as a whole
  if (path === "left" && !isWhole) {
    const steps = Math.ceil((length * T) / B);
    return { steps, passes: steps };
  }
  const blocks = suffix ? 1 : Math.ceil(length / B); // a gap and what follows are one
  return { steps: blocks * T, passes: blocks * (T + 1) }; // one more reads what is before it
}

const measured = {}; // seconds a pass, by path

/** Notes how long a text took. */
export function measure({ path }, passes, took) {
  measured[path] = took / passes;
}

/** Fills the cards; what a path costs here is known once one text was timed. */
export function tellPaths(settings) {
  const any = measured[settings.path] ?? Object.values(measured)[0];
  for (const card of $("paths").children) {
    const path = card.querySelector("input").value;
    const T = path === settings.path ? settings.T : pathOf(path, state.info).T;
    const { passes } = costOf({ ...settings, path, T }, state.info);
    const per = Number((passes / settings.length).toFixed(1));
    const each = measured[path] ?? any;
    const time = each ? `, ${measured[path] ? "" : "about "}${seconds(passes * each)}` : "";
    card.querySelector("small").textContent = `${per} ${per === 1 ? "step" : "steps"} a token${time}`;
  }
}

export function seconds(value) {
  return value < 10 ? `${value.toFixed(1)} s` : `${Math.round(value)} s`;
}

/** Makes the cards. */
export function makePaths() {
  const cards = Object.entries(PATHS).map(([value, { name, good }]) => {
    const input = make("input", { type: "radio", name: "path", value, defaultChecked: value === "left" });
    const card = make("label", {}, input, drawPath(value), make("span", {}, make("b", {}, name), good, make("small")));
    if (value !== "left") card.dataset.open = "";
    return card;
  });
  $("paths").replaceChildren(...cards);
}

/** Returns the picture of a path: one row a step, one column a position, noise to decided. */
function drawPath(path) {
  const cells = Array.from({ length: ROWS * COLUMNS }, (_, index) => {
    const [row, column] = [Math.floor(index / COLUMNS), index % COLUMNS];
    const opacity = (0.1 + 0.9 * (1 - NOISE[path](row, column)) ** 1.5).toFixed(2);
    return draw("rect", { x: column * 8 + 0.5, y: row * 6 + 0.5, width: 7, height: 5, opacity });
  });
  return draw("svg", { viewBox: "0 0 80 48", "aria-hidden": "true" }, ...cells);
}
