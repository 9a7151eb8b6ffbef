// Creating nodes. Text is always text: nothing on the page accepts HTML.

/** Creates an element: `h("button", { class: "send", onclick }, "Send")`. Null and false attributes are omitted. */
export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

const ICONS = {
  send: "M12 19V5M5 12l7-7 7 7",
  stop: "M7 7h10v10H7z",
  plus: "M12 5v14M5 12h14",
  attach: "M20 11.5l-8.2 8.2a5 5 0 0 1-7.1-7.1l8.6-8.6a3.4 3.4 0 0 1 4.8 4.8l-8.6 8.5a1.7 1.7 0 0 1-2.4-2.4l7.9-7.8",
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h10v11H9zM5 15V4h10",
  check: "M5 12.5l4.5 4.5L19 7.5",
  again: "M20 11a8 8 0 1 0-2.3 6.3M20 5v6h-6",
  edit: "M4 20h4L19 9l-4-4L4 16zM13.5 6.5l4 4",
  left: "M14.5 6l-6 6 6 6",
  right: "M9.5 6l6 6-6 6",
  down: "M6 9.5l6 6 6-6",
  trash: "M5 7h14M10 7V5h4v2M7 7l1 13h8l1-13",
  search: "M11 18a7 7 0 1 1 0-14 7 7 0 0 1 0 14zM16.2 16.2L20 20",
  bolt: "M13 3L5 14h6l-1 7 8-11h-6z",
  tool: "M14.5 6.5a4 4 0 0 1 5-1l-2.6 2.6 1 2 2 1 2.1-2.1a4 4 0 0 1-5.5 4.5L9 21a2.1 2.1 0 0 1-3-3l7.5-7.5a4 4 0 0 1 1-4z",
  thought: "M12 3a6.5 6.5 0 0 0-4 11.6V18h8v-3.4A6.5 6.5 0 0 0 12 3zM9.5 21h5",
  browser: "M3.5 5h17v14h-17zM3.5 9h17M6.5 7h.01M9 7h.01",
  shield: "M12 3l7.5 3v5.5c0 4.6-3 7.8-7.5 9.5-4.5-1.700-7.500-4.900-7.500-9.500V6z",
  question: "M9 9a3 3 0 1 1 4.2 2.8c-.8.400-1.200 1-1.200 1.900M12 17.500h.01",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  image: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15.500 9h.01",
  sun: "M12 16.500a4.500 4.500 0 1 0 0-9 4.500 4.500 0 0 0 0 9zM12 2.500v2M12 19.500v2M2.500 12h2M19.500 12h2M5.300 5.300l1.400 1.400M17.300 17.300l1.400 1.400M5.300 18.700l1.400-1.400M17.300 6.700l1.400-1.400",
  moon: "M20 14.500A8.500 8.500 0 0 1 9.500 4a8.500 8.500 0 1 0 10.500 10.500z",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
  link: "M10 14l4-4M8.500 11.500L6 14a3.500 3.500 0 0 0 5 5l2.500-2.500M15.500 12.500L18 10a3.500 3.500 0 0 0-5-5l-2.500 2.500",
  inspect: "M4 19V9M10 19V5M16 19v-7M21 19H3",
  clock: "M12 3.5a8.5 8.5 0 1 0 0 17 8.5 8.5 0 0 0 0-17zM12 8v4.300l3 1.700",
  warning: "M12 4l9 16H3zM12 10v4M12 17h.01"
};

/** Creates an icon in the colour of the surrounding text, hidden from screen readers. */
export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** Creates a button with an icon, and a label for screen readers. */
export function iconButton(name, label, onclick, attributes = {}) {
  return h(
    "button",
    { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...attributes },
    icon(name)
  );
}

/** Sets the text of a node if it differs. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Sets the children of a node, in this order, and leaves nodes alone that are in place. */
export function setChildren(parent, wanted) {
  let at = parent.firstChild;
  for (const node of wanted) {
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

/** Returns a random id, also on pages that are not served over HTTPS. */
export function newId(bytes = 8) {
  const random = crypto.getRandomValues(new Uint8Array(bytes));
  return [...random].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Returns a value as readable text. */
export const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2)) ?? "";

export function sizeText(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1e6 ? `${Math.round(bytes / 1000)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

export function durationText(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return ms < 60000
    ? `${(ms / 1000).toFixed(1)} s`
    : `${Math.floor(ms / 60000)} min ${Math.round((ms % 60000) / 1000)} s`;
}

/** Copies a text, and shows a check mark on the button. */
export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { class: "off-screen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const before = [...button.childNodes];
  button.replaceChildren(icon("check"));
  button.classList.add("is-done");
  setTimeout(() => {
    button.replaceChildren(...before);
    button.classList.remove("is-done");
  }, 1200);
}
