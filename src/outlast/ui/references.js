// Large outputs and files, which the server sends as URLs of their agent.

import { asText, h, icon, sizeText } from "./dom.js";
import { partialJson } from "./messages.js";

const SHOWN = 200000; // characters of an output that are shown at once
const CONTENT = /^\/(?!\/)[^?#]*\/chat\/content\/([^/?#]+)\/([^/?#]+)$/;

/** Returns the URL to fetch such a value from, always of this agent; null if `url` does not refer to a value. */
export function contentUrl(address, query, url) {
  const [, message, key] = CONTENT.exec(typeof url === "string" ? url : "") ?? [];
  return key === undefined ? null : `${address}/chat/content/${message}/${key}${query}`;
}

/** Returns whether an output is the placeholder of a large one. */
export const isReference = (output) => output?.type === "outlast-reference" && typeof output.url === "string";

function cut(text) {
  if (text.length <= SHOWN) return text;
  const count = (number) => number.toLocaleString("en");
  return `${text.slice(0, SHOWN)}\n… the first ${count(SHOWN)} of ${count(text.length)} characters; download it to see all`;
}

/** Returns a node with the beginning of a large output, and a button that loads the rest. */
export function referenceNode(label, { size, preview }, url, name) {
  const text = String(preview ?? "");
  const shown = h("pre", { tabindex: "0", "aria-label": label }, `${asText(partialJson(text) ?? text)}…`);
  const note = h("span", { class: "label", role: "status" }, `${sizeText(Number(size) || 0)}, not loaded`);
  const show = h("button", { type: "button", class: "more" }, "Show");
  show.addEventListener("click", async () => {
    show.disabled = true;
    note.textContent = "Loading…";
    try {
      const response = await fetch(url);
      if (!response.ok) throw new Error(String(response.status));
      const whole = await response.text();
      shown.textContent = cut(asText(JSON.parse(whole)));
      note.textContent = sizeText(whole.length);
      show.remove();
    } catch {
      note.textContent = "It could not be loaded. Is the server running?";
      show.disabled = false;
    }
  });
  const download = h("a", { class: "more", href: url, download: `${name}.json` }, "Download");
  return h(
    "div",
    { class: "field reference" },
    h("div", { class: "label" }, label),
    shown,
    h("div", { class: "buttons" }, show, download, note)
  );
}

const IMAGE = /^image\/(png|jpeg|gif|webp|avif)$/i;

/** Returns a node for a file on the server: an image, or a download link. */
export function fileNode(url, mediaType, name) {
  const link = () => h("a", { class: "file", href: url, download: name }, icon("file"), `${name} · Download`);
  if (!IMAGE.test(mediaType)) return link();
  const image = h("img", { src: url, alt: name, loading: "lazy" });
  image.addEventListener("error", () => image.replaceWith(link()), { once: true });
  return image;
}
