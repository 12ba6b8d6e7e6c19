// Light, dark, or as the system has it; remembered by the browser.

import { $ } from "./dom.js";

const KEY = "ssdlm-theme";
const THEMES = ["auto", "light", "dark"];

function set(theme, changed) {
  $("theme").textContent = `Theme: ${theme}`;
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  localStorage.setItem(KEY, theme);
  changed();
}

/** Makes the button that goes from one to the next. */
export function makeTheme(changed) {
  const now = () => localStorage.getItem(KEY) ?? "auto";
  $("theme").addEventListener("click", () => set(THEMES[(THEMES.indexOf(now()) + 1) % THEMES.length], changed));
  set(now(), changed);
}
