// A button that switches between the light, dark and system themes. The choice is stored in this browser.

import { icon } from "./dom.js";

const THEMES = { system: "system", light: "sun", dark: "moon" };
const KEY = "outlast.theme";

function stored() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function set(button, theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  button.replaceChildren(icon(THEMES[theme]));
  button.setAttribute("aria-label", `Theme: ${theme}`);
  button.title = `Theme: ${theme}`;
  button.value = theme;
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // the choice lasts for this visit
  }
}

export function themed(button) {
  const names = Object.keys(THEMES);
  set(button, names.includes(stored()) ? stored() : "system");
  button.addEventListener("click", () => set(button, names[(names.indexOf(button.value) + 1) % names.length]));
}
