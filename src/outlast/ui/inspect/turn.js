// One turn: its timeline as a picture and in words, its calls, the raw chunks, and the model requests.

import { durationText, h, icon } from "../dom.js";
import { legend, picture } from "./picture.js";
import { chip, clock, count, json, kindText, offset, took } from "./words.js";

const MOST = 300000; // characters of raw text that are shown

export const linkTo = (place) => `#${new URLSearchParams(Object.entries(place).filter(([, value]) => value))}`;

/** Creates a button for an action on a turn, an agent or a message, which the user has to confirm. */
export function act(what, label, given, { tone = "secondary", name = null } = {}) {
  const attributes = Object.fromEntries(Object.entries(given).map(([key, value]) => [`data-${key}`, value]));
  return h("button", { type: "button", class: `${tone} small`, "data-act": what, "data-key": `act-${what}-${Object.values(given).join("-")}`, "aria-label": name, ...attributes }, label);
}

export function fact(label, value, title = null) {
  return h("div", { class: "fact", title }, h("dt", {}, label), h("dd", {}, value));
}

function actions(details) {
  const { turn, incident } = details;
  const given = { agent: turn.agent, id: turn.id };
  const isOpen = turn.endedAt === null;
  const isRecovered = incident !== null && incident.state === "open";
  const made = [];
  if (isOpen) made.push(act("cancel", "Cancel", given));
  if (isOpen && isRecovered) made.push(act("seal", "Seal", given));
  if (!isOpen && turn.messageId !== null) made.push(act("retry", "Retry", given));
  return h("div", { class: "buttons" }, made);
}

function head(details, place) {
  const { turn } = details;
  const state = turn.outcome ?? turn.state;
  return [
    h("nav", { class: "crumbs", "aria-label": "Where you are" }, h("a", { href: "#" }, "Agents"), icon("right"), h("a", { href: linkTo({ agent: place.agent }) }, decoded(place.agent)), icon("right"), h("span", { "aria-current": "page" }, "Turn")),
    h("div", { class: "card question" },
      h("div", { class: "question-head" }, chip(state), turn.attempt > 1 ? chip(`${turn.attempt} attempts`, "warn") : null, details.incident ? chip(`incident ${details.incident.state}`, details.incident.state === "exhausted" ? "bad" : "warn") : null, h("code", { class: "id" }, turn.id), actions(details)),
      h("p", { class: "asked" }, turn.asked || `(${turn.kind}, no text)`),
      h("dl", { class: "facts" },
        fact("Origin", turn.origin),
        fact("Kind", turn.kind),
        fact("Accepted", clock(turn.acceptedAt)),
        fact("Took", took(turn) || "not ended"),
        fact("Chunks", details.chunks.toLocaleString("en")),
        fact("Inbox seq", String(turn.seq)),
        turn.key ? fact("Key", turn.key) : null),
      turn.error ? h("p", { class: "problem" }, turn.error) : null)
  ];
}

/** Decodes an address, in which special characters of names are percent-encoded. */
export function decoded(address) {
  try {
    return decodeURIComponent(address);
  } catch {
    return address;
  }
}

function momentNode(moment, n, start) {
  const isBad = moment.kind === "interrupted" || moment.kind === "left" || !moment.ok;
  const tone = moment.kind === "decided" ? "decision" : moment.kind === "interrupted" || moment.kind === "left" ? "crash" : isBad ? "bad" : moment.kind === "settled" ? "ok" : "plain";
  return h("li", { "data-moment": n, "data-tone": tone, "data-kind": moment.kind },
    h("span", { class: "at", title: moment.at === null ? "The exact time is unknown" : clock(moment.at) }, moment.at === null ? "·" : offset(moment.at - start)),
    h("span", { class: "dot", "aria-hidden": "true" }),
    h("div", { class: "told" },
      h("span", { class: "kind" }, kindText(moment), moment.row === null ? null : h("span", { class: "row-number" }, `row ${moment.row}`), moment.action ? h("code", {}, moment.action) : null),
      h("p", {}, moment.what),
      moment.why ? h("p", { class: "why" }, moment.kind === "decided" ? `Why: ${moment.why}.` : moment.why) : null));
}

function moments(details) {
  const start = details.turn.acceptedAt;
  return h("ol", { class: "moments", "aria-label": "What happened" }, details.moments.map((moment, n) => momentNode(moment, n, start)));
}

function calls(details) {
  if (!details.calls.length) return null;
  const rows = details.calls.map((call) => h("tr", { "data-key": call.id },
    h("td", {}, h("code", {}, call.name)), h("td", {}, chip(call.state)), h("td", {}, call.effect),
    h("td", { class: "right" }, call.endedAt === null ? "–" : durationText(call.endedAt - call.startedAt)), h("td", { class: "wide" }, h("code", { class: "line-of" }, JSON.stringify(call.input)))));
  return section("Ledger", `${count(details.calls.length, "call")} of tools`, table(["Tool", "State", "Effect", "Took", "Input"], rows, "Calls"));
}

const NUMBERS = new Set(["Seq", "No.", "Took", "Attempts", "Accepted", "Size", "Stored", "Row", "Chunks", "Since", "Tries", "Created", "Next", "Begun", "Rows", "Bytes", "Sockets", "Turns", "Messages", "Last activity"]);

/** Creates a table. `right` has the names of right-aligned columns. */
export function table(names, rows, label, right = NUMBERS) {
  return h("div", { class: "table", tabindex: "0", role: "region", "aria-label": label }, h("table", {}, h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col", class: right.has(name) ? "right" : null }, name)))), h("tbody", {}, rows)));
}

export function section(title, note, ...children) {
  return h("section", { class: "part", "data-key": `part-${title}` }, h("h2", {}, title, note ? h("small", {}, note) : null), ...children);
}

/** Creates collapsed details, which are loaded when they are opened. */
function folded(key, title, note, children, state) {
  return h("details", { class: "folded", "data-key": key, "data-fold": key }, h("summary", {}, icon("right"), h("span", {}, title), h("small", {}, note)), state === "waiting" ? h("p", { class: "none" }, "Loading…") : children);
}

function raw(text, label) {
  const cut = text.length > MOST;
  return [h("pre", { class: "raw", tabindex: "0", "aria-label": label }, cut ? `${text.slice(0, MOST)}\n…` : text), cut ? h("p", { class: "none" }, "The rest is not shown: open it as JSON.") : null];
}

function rawChunks(details, chunks, href) {
  const lines = (chunks ?? []).map(({ seq, attempt, chunk }) => `${String(seq).padStart(5)}  attempt ${attempt}  ${JSON.stringify(chunk)}`);
  const kept = chunks && !chunks.length ? h("p", { class: "none" }, "The chunks were deleted.") : raw(lines.join("\n"), "Raw chunks");
  return folded("chunks", "Raw chunks", `${details.chunks.toLocaleString("en")} in ${count(details.commits.length, "commit")}`, [h("p", { class: "links" }, h("a", { href, target: "_blank", rel: "noreferrer" }, "As JSON")), kept], chunks === null ? "waiting" : "there");
}

function modelRequests(requests, href) {
  const whole = ({ at, step, model, ...rest }) => rest; // without the fields of the summary
  const shown = (requests ?? []).map((request, n) => h("details", { class: "request", "data-key": `request-${n}` },
    h("summary", {}, icon("right"), h("span", {}, `Step ${request.step}`), h("small", {}, `${request.model} · ${count(request.messages.length, "message")} · ${count(request.tools.length, "tool")} · ${clock(request.at).slice(11)}`)),
    raw(json(whole(request)), `Request ${n + 1}`)));
  const none = h("p", { class: "none" }, "No requests in this process: only the last requests of recent turns are kept, in memory.");
  return folded("requests", "Model requests", "as they were made", [shown.length ? h("p", { class: "links" }, h("a", { href, target: "_blank", rel: "noreferrer" }, "As JSON")) : null, shown.length ? shown : none], requests === null ? "waiting" : "there");
}

/** Shows a turn: its details, and `chunks` and `requests` if they were loaded. */
export function turnView({ details, chunks, requests }, place, width, api) {
  const given = { agent: place.agent, id: place.turn };
  return [
    ...head(details, place),
    section("Timeline", "not to scale; every mark is described below", h("div", { class: "card flat" }, picture(details, width), legend())),
    section("In words", null, h("div", { class: "card" }, moments(details))),
    details.said ? section("Answer", `${details.said.length.toLocaleString("en")} characters stored`, h("div", { class: "card said-text", tabindex: "0", role: "region", "aria-label": "Answer" }, details.said.slice(0, 4000) + (details.said.length > 4000 ? "…" : ""))) : null,
    calls(details),
    section("Raw", null, h("div", { class: "card folds" }, rawChunks(details, chunks, api.url("chunks", given).href), modelRequests(requests, api.url("requests", given).href)))
  ].filter((node) => node !== null);
}
