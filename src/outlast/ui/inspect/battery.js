// A battery's tab: its views as tables, or one row of a view. The server describes the views; no battery has code here.

import { h, sizeText } from "../dom.js";
import { decoded, fact, linkTo, section, table } from "./turn.js";
import { chip, clock, count, json, when } from "./words.js";

const PREFIX = "battery:";
const RIGHT = new Set(["number", "size", "time"]);
const LONG = new Set(["text", "code", "json"]);

export const tabOf = (name) => `${PREFIX}${name}`;
export const batteryOf = (tab) => (tab?.startsWith(PREFIX) ? tab.slice(PREFIX.length) : null);
export const labelOf = (name) => name.charAt(0).toUpperCase() + name.slice(1).replaceAll("_", " ");

/** Loads the tab. Views that are not live are loaded once, when the tab is opened. */
export async function loadBattery(api, { agent, tab, view, row }, shown) {
  const given = { agent, name: batteryOf(tab) };
  if (row !== null) return { detail: await api.get("battery", { ...given, view: view ?? "", row }) };
  const known = shown?.tables;
  if (!known) return { tables: await api.get("battery", given) };
  if (!known.some((each) => each.isLive)) return { tables: known };
  const fresh = new Map((await api.get("battery", { ...given, live: 1 })).map((each) => [each.title, each]));
  return { tables: known.map((each) => fresh.get(each.title) ?? each) };
}

function turnOf(value, column, values, place) {
  const agent = column.of === null ? place.agent : values[column.of];
  return h("a", { href: linkTo({ agent, turn: value }) }, "its turn");
}

/** Returns a value of a row as a node or text, never as HTML. */
function shownValue(value, column, values, place, now) {
  if (value === null) return h("span", { class: "none" }, "–");
  switch (column.kind) {
    case "time":
      return Number.isFinite(value) ? when(value, now) : String(value);
    case "size":
      return Number.isFinite(value) ? sizeText(value) : String(value);
    case "number":
      return Number.isFinite(value) ? value.toLocaleString("en") : String(value);
    case "state":
      return chip(String(value));
    case "turn":
      return turnOf(value, column, values, place);
    case "agent":
      return h("a", { href: linkTo({ agent: value }) }, decoded(String(value)));
    case "json":
      return h("code", { class: "line-of" }, typeof value === "string" ? value : JSON.stringify(value));
    case "code":
      return h("code", {}, String(value));
    default:
      return h("span", { class: "excerpt" }, String(value));
  }
}

function cell(view, values, place, now, n) {
  const column = view.columns[n];
  const shown = shownValue(values[n], column, values, place, now);
  const linked = n === 0 && view.hasDetail ? h("a", { class: "row-link", href: linkTo({ agent: place.agent, tab: place.tab, view: view.title, row: values[0] }) }, shown) : shown;
  return h("td", { class: RIGHT.has(column.kind) ? "right" : LONG.has(column.kind) && n > 0 ? "wide" : null }, linked);
}

function viewSection(view, place, now) {
  const rows = view.rows.map((values) => h("tr", { "data-key": values[0] }, view.columns.map((_, n) => cell(view, values, place, now, n))));
  const right = new Set(view.columns.filter((column) => RIGHT.has(column.kind)).map((column) => column.label));
  const shown = view.error ? h("p", { class: "problem card" }, view.error) : rows.length ? table(view.columns.map((column) => column.label), rows, view.title, right) : h("p", { class: "none card" }, view.none);
  const note = [rows.length ? count(rows.length, "row") : null, view.isLive ? null : "loaded when the tab was opened"].filter(Boolean).join(", ");
  return section(view.title, note, shown);
}

/** Returns a value in full, for the view of a single row. */
function wholeValue(value, column, values, place) {
  if (value !== null && column.kind === "time" && Number.isFinite(value)) return clock(value);
  if (value !== null && LONG.has(column.kind)) return h("pre", { class: "raw whole", tabindex: "0", "aria-label": column.label }, typeof value === "string" ? value : json(value));
  return shownValue(value, column, values, place, Date.now());
}

function detailSection({ title, row, columns, values }, place) {
  const back = h("a", { href: linkTo({ agent: place.agent, tab: place.tab }) }, `All of ${title}`);
  const long = (column, n) => LONG.has(column.kind) && values[n] !== null;
  const parts = columns.map((column, n) => ({ column, n, shown: wholeValue(values[n], column, values, place) }));
  const short = parts.filter(({ column, n }) => !long(column, n)).map(({ column, shown }) => fact(column.label, shown));
  return section(title, row,
    h("p", { class: "links" }, back),
    h("div", { class: "card question" }, short.length ? h("dl", { class: "facts" }, short) : null,
      parts.filter(({ column, n }) => long(column, n)).map(({ column, shown }) => h("div", { class: "whole-value", "data-key": column.label }, h("h3", {}, column.label), shown))));
}

export function batteryView({ tables, detail }, place, now) {
  if (detail) return detailSection(detail, place);
  return tables.length ? tables.map((view) => viewSection(view, place, now)) : h("p", { class: "none card" }, "This battery has no views.");
}
