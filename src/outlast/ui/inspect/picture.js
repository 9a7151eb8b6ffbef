// A turn as a picture: lanes from left to right, red marks for interruptions, amber marks for recovery decisions.

import { h } from "../dom.js";
import { LANES, layout } from "./layout.js";
import { count, kindText, offset } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const LETTER = 6.2; // the approximate width of a letter

function s(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, String(value));
  }
  node.append(...children.flat().filter((child) => child !== null));
  return node;
}

/** Truncates a text to a width; empty if fewer than four letters would be left. */
function fitted(text, width, letter = LETTER) {
  const most = Math.floor((width - 12) / letter);
  if (text.length <= most) return text;
  return most >= 4 ? `${text.slice(0, most - 1)}…` : "";
}

const titled = (text) => s("title", {}, text);
const round = (value) => Math.round(value * 10) / 10;

function bar({ x, y, width, height, label, tone, from, to }, moments) {
  const thin = tone === "thin";
  const shown = fitted(label, width);
  return s("g", { class: `span ${tone}`, "data-moment": from, "data-until": to },
    titled(`${label ? `${label}: ` : ""}${moments[from].what}`),
    s("rect", { x: round(x), y: thin ? y + height - 6 : y, width: round(width), height: thin ? 3 : height, rx: thin ? 1.5 : 6, fill: tone === "nobody" ? "url(#hatched)" : null }),
    shown ? s("text", { x: round(x + 7), y: thin ? y + height - 10 : y + height / 2 + 4 }, shown) : null);
}

function mark({ kind, x, y, n, label, why }, moments, picture) {
  const at = `translate(${round(x)} ${round(y)})`;
  const title = titled(`${kindText(moments[n])}: ${moments[n].what}`);
  const group = (...children) => s("g", { class: `sign ${kind}`, "data-moment": n }, title, ...children);
  const line = () => s("line", { x1: round(x), x2: round(x), y1: y + 9, y2: picture.bottom });
  switch (kind) {
    case "crash":
      return group(line(), s("g", { transform: at }, s("circle", { r: 9 }), s("path", { d: "M-3.500 -3.500L3.500 3.500M3.500 -3.500L-3.500 3.500" }), s("text", { x: -14, y: 4, "text-anchor": "end" }, label)));
    case "decision":
      return group(line(), s("g", { transform: at }, s("path", { d: "M0 -10L10 0L0 10L-10 0Z" }), s("text", { x: 15, y: why ? -3 : 4 }, label), why ? s("text", { class: "why", x: 15, y: 12 }, fitted(why, room(n, picture), 5.5)) : null));
    case "dropped":
      return group(s("path", { transform: at, d: "M-4 -4L4 4M4 -4L-4 4" }));
    default:
      return group(s("circle", { cx: round(x), cy: y, r: 6 }), kind === "settled" ? s("path", { transform: at, d: "M-3 0L-1 2.500L3.500 -2.500" }) : null);
  }
}

/** Returns the width available for the text of a decision, before the next mark or the end. */
function room(n, picture) {
  const next = picture.marks.find((each) => each.n > n && each.kind === "crash");
  return (next ? next.x - 80 : picture.width) - picture.x[n] - 10;
}

function summary(details) {
  const { moments } = details;
  const number = (kind) => moments.filter((moment) => moment.kind === kind).length;
  const parts = [count(number("step"), "step"), count(number("called"), "call"), count(number("interrupted"), "interruption")];
  return `Timeline of the turn: ${parts.join(", ")}. ${moments.at(-1).what} The list below describes the same moments.`;
}

/** Draws the picture for this width. A picture that needs more room is wider, and scrolls. */
export function picture(details, width) {
  const { moments } = details;
  const narrow = width < 560;
  const places = layout(details, Math.max(320, width - (narrow ? 66 : 92)));
  const { lanes, height } = places;
  const drawing = s("svg", { class: "picture", width: places.width, height, viewBox: `0 0 ${places.width} ${height}`, role: "img", "aria-label": summary(details) },
    s("defs", {}, s("pattern", { id: "hatched", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, s("line", { x1: 0, x2: 0, y1: 0, y2: 7 }))),
    lanes.map((lane, n) => s("rect", { class: n % 2 ? "lane" : "lane odd", x: 0, y: lane.top, width: places.width, height: lane.height })),
    places.ticks.map((tick) => s("line", { class: "grid", x1: round(tick.x), x2: round(tick.x), y1: lanes[0].top, y2: places.bottom })),
    places.bars.map((each) => bar(each, moments)),
    places.commits.map(({ x, y, commit }) => s("line", { class: "commit", x1: round(x), x2: round(x), y1: y + 23, y2: y + 30 }, titled(`A commit of ${count(commit.chunks, "chunk")}, starting at ${commit.seq}`))),
    places.marks.map((each) => mark(each, moments, places)),
    places.ticks.map((tick, n) => s("text", { class: "tick", x: round(tick.x), y: places.bottom + 17, "text-anchor": n === 0 ? "start" : tick.x > places.width - 40 ? "end" : "middle" }, offset(tick.ms))));
  const names = LANES.map((name, n) => s("text", { x: 0, y: lanes[n].top + 21 }, name));
  return h("div", { class: "timeline" },
    s("svg", { class: "lane-names", width: narrow ? 62 : 86, height, "aria-hidden": "true" }, names),
    h("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "Timeline" }, drawing));
}

/** Explains the colours. */
export function legend() {
  const entry = (name, text) => h("li", {}, h("i", { class: `key ${name}`, "aria-hidden": "true" }), text);
  return h("ul", { class: "legend", "aria-label": "Legend" },
    entry("crash", "the turn was interrupted"), entry("decision", "decision, with its row of the table"), entry("nobody", "no process works on it"), entry("unknown", "outcome unknown"), entry("commit", "a commit of chunks"));
}
