// Passages of messages that a search found.

import { h } from "./dom.js";

/** Returns a text with its marks, `[start, end]` in code points, as nodes. */
export function withMarks({ text, marks }) {
  const points = [...text];
  const between = (start, end) => points.slice(start, end).join("");
  const nodes = [];
  let at = 0;
  for (const [start, end] of marks) {
    nodes.push(between(at, start), h("mark", {}, between(start, end)));
    at = end;
  }
  return [...nodes, between(at)];
}
