// One agent: its state, and its stored rows in one tab each. And the overview of all agents.

import { h, icon, sizeText } from "../dom.js";
import { batteryOf, batteryView, labelOf, tabOf } from "./battery.js";
import { withMarks } from "../marks.js";
import { act, decoded, fact, linkTo, section, table } from "./turn.js";
import { ago, chip, count, took, when } from "./words.js";

export const TABS = {
  turns: "Inbox and turns",
  messages: "Messages",
  submissions: "Submissions",
  incidents: "Incidents",
  fibers: "Fibers",
  schedules: "Schedules",
  ledger: "Ledger",
  sizes: "Stored bytes"
};

const code = (value) => h("code", { class: "line-of" }, JSON.stringify(value) ?? "null");
const none = (text) => h("p", { class: "none card" }, text);

function turns(rows, place, now) {
  const made = rows.map((turn) => h("tr", { "data-key": turn.id },
    h("td", { class: "right" }, String(turn.seq)),
    h("td", {}, chip(turn.outcome ?? turn.state)),
    h("td", { class: "wide" }, h("a", { class: "row-link", href: linkTo({ agent: turn.agent, turn: turn.id }) }, turn.asked || `(${turn.kind})`), turn.error ? h("small", { class: "row-note" }, turn.error) : null),
    h("td", {}, turn.origin),
    h("td", { class: "right" }, turn.attempt > 1 ? chip(`${turn.attempt}`, "warn") : String(turn.attempt)),
    h("td", { class: "right" }, took(turn) || "–"),
    h("td", { class: "right" }, when(turn.acceptedAt, now))));
  return table(["Seq", "State", "Asked", "Origin", "Attempts", "Took", "Accepted"], made, place.tab === "submissions" ? "Submissions" : "Inbox and turns");
}

/** Returns a link to a summary, at the last of the messages that it stands for. */
function summaryLink({ summary }, newer, place) {
  if (summary === null || newer?.summary === summary) return null;
  const href = linkTo({ agent: place.agent, tab: tabOf("session"), view: "Summaries", row: String(summary) });
  return h("small", { class: "row-note" }, "The model sees this and what came before as ", h("a", { href }, `summary ${summary}`));
}

function messages(rows, place, now) {
  const made = rows.map((message, n) => h("tr", { "data-key": message.id, class: message.summary === null ? null : "is-summarised", title: message.summary === null ? null : `The model sees summary ${message.summary} instead` },
    h("td", { class: "right" }, String(message.number)),
    h("td", {}, chip(message.role, message.role === "user" ? "busy" : "quiet")),
    h("td", { class: "wide" }, h("span", { class: "excerpt" }, message.text || "(no text)"), summaryLink(message, rows[n - 1], place)),
    h("td", {}, message.turn ? h("a", { href: linkTo({ agent: place.agent, turn: message.turn }) }, "its turn") : "–"),
    h("td", { class: "right" }, sizeText(message.size)),
    h("td", { class: "right" }, when(message.createdAt, now)),
    h("td", {}, act("fork", "Fork", { agent: place.agent, message: message.id }, { name: `Fork the conversation at message ${message.number}` }))));
  return table(["No.", "Role", "Text", "Turn", "Size", "Stored", ""], made, "Messages");
}

/** Returns the search box, and the messages that were found if it has words. */
function messagesPanel({ rows, found }, place, now) {
  const box = h("div", { class: "search find", "data-key": "find" },
    h("label", { class: "off-screen", for: "find" }, "Search the messages"),
    h("input", { id: "find", type: "search", placeholder: "Search the messages", autocomplete: "off", spellcheck: "false", value: place.q }));
  if (!found) return [box, rows.length ? messages(rows, place, now) : none(NOTHING.messages)];
  return [box, found.length ? foundMessages(found, place, now) : none(`No message matches “${place.q}”.`)];
}

function foundMessages(rows, place, now) {
  const made = rows.map((message) => h("tr", { "data-key": message.id },
    h("td", { class: "right" }, String(message.number)),
    h("td", {}, chip(message.role, message.role === "user" ? "busy" : "quiet")),
    h("td", { class: "wide" }, h("span", { class: "excerpt" }, withMarks(message))),
    h("td", {}, message.turn ? h("a", { href: linkTo({ agent: place.agent, turn: message.turn }) }, "its turn") : "–"),
    h("td", { class: "right" }, message.score.toFixed(2)),
    h("td", { class: "right" }, when(message.createdAt, now))));
  return table(["No.", "Role", "Passage", "Turn", "Score", "Stored"], made, "Found messages", FOUND_RIGHT);
}
const FOUND_RIGHT = new Set(["No.", "Score", "Stored"]);

function incidents(rows, place, now) {
  const made = rows.map((incident) => h("tr", { "data-key": `${incident.agent}-${incident.turn}` },
    h("td", {}, chip(incident.state)),
    h("td", { class: "wide" }, h("a", { class: "row-link", href: linkTo({ agent: incident.agent, turn: incident.turn }) }, incident.turn), incident.reason ? h("small", { class: "row-note" }, incident.reason) : null),
    h("td", {}, incident.cause),
    h("td", { class: "right" }, String(incident.row)),
    h("td", { class: "right" }, `${incident.attempts} (${incident.attempt} in a row)`),
    h("td", { class: "right" }, String(incident.work)),
    h("td", { class: "right" }, when(incident.firstSeenAt, now)),
    h("td", {}, h("div", { class: "buttons" }, incident.state === "open" ? act("seal", "Seal", { agent: incident.agent, id: incident.turn }) : act("retry", "Retry", { agent: incident.agent, id: incident.turn })))));
  return table(["State", "Turn", "Cause", "Row", "Attempts", "Chunks", "Since", ""], made, "Incidents");
}

function fibers(rows, place, now) {
  const made = rows.map((fiber) => h("tr", { "data-key": fiber.id },
    h("td", {}, chip(fiber.status)),
    h("td", {}, h("code", {}, fiber.name)),
    h("td", { class: "wide" }, h("code", { class: "id" }, fiber.id), fiber.error ? h("small", { class: "row-note" }, fiber.error) : null),
    h("td", { class: "right" }, String(fiber.tries)),
    h("td", { class: "wide" }, code(fiber.snapshot)),
    h("td", { class: "right" }, when(fiber.createdAt, now))));
  return table(["State", "Name", "Id", "Tries", "Snapshot", "Created"], made, "Fibers");
}

function schedules(rows, place, now) {
  const made = rows.map((schedule) => h("tr", { "data-key": schedule.id },
    h("td", {}, h("code", {}, schedule.callback)),
    h("td", {}, schedule.kind, schedule.cron ? h("small", { class: "row-note" }, `${schedule.cron} ${schedule.timezone ?? ""}`) : null),
    h("td", { class: "wide" }, code(schedule.payload)),
    h("td", { class: "right" }, when(schedule.runAt, now)),
    h("td", {}, schedule.claimedAt === null ? "–" : chip("running")),
    h("td", { class: "right" }, when(schedule.createdAt, now))));
  return table(["Calls", "Kind", "Payload", "Next", "Now", "Created"], made, "Schedules");
}

function ledger(rows, place, now) {
  const made = rows.map((call) => h("tr", { "data-key": `${call.turn}-${call.id}` },
    h("td", {}, h("code", {}, call.name)),
    h("td", {}, chip(call.state)),
    h("td", {}, call.effect),
    h("td", { class: "wide" }, code(call.input)),
    h("td", {}, h("a", { href: linkTo({ agent: place.agent, turn: call.turn }) }, "its turn")),
    h("td", { class: "right" }, when(call.startedAt, now))));
  return table(["Tool", "State", "Effect", "Input", "Turn", "Begun"], made, "Ledger");
}

export function sizes(rows) {
  const most = Math.max(1, ...rows.map((row) => row.bytes));
  const all = rows.reduce((sum, row) => sum + row.bytes, 0);
  const made = rows.filter((row) => row.rows).sort((one, other) => other.bytes - one.bytes).map((row) => h("tr", { "data-key": row.table },
    h("td", {}, row.table),
    h("td", { class: "right" }, row.rows.toLocaleString("en")),
    h("td", { class: "right" }, sizeText(row.bytes)),
    h("td", { class: "wide" }, h("meter", { min: 0, max: most, value: row.bytes, "aria-label": `${row.table}: ${sizeText(row.bytes)}` }))));
  return [h("p", { class: "sum" }, `${sizeText(all)} in columns that can be large.`), table(["Table", "Rows", "Bytes", ""], made, "Stored bytes")];
}

const NOTHING = {
  turns: "No turns yet.",
  messages: "No messages.",
  submissions: "No submissions.",
  incidents: "No turn is being recovered, and none was given up.",
  fibers: "No fibers.",
  schedules: "No schedules.",
  ledger: "No tool was called, or the calls were deleted."
};
const SHOWN = { turns, submissions: turns, incidents, fibers, schedules, ledger };

function tabs(place, agent) {
  const numbers = { turns: agent.turns, messages: agent.messages, incidents: agent.incidents + agent.givenUp, fibers: agent.fibers, schedules: agent.schedules };
  return h("div", { class: "tabs", role: "tablist", "aria-label": "Stored rows" }, [...Object.entries(TABS), ...agent.batteries.map((name) => [tabOf(name), labelOf(name)])].map(([name, label]) => {
    const isHere = place.tab === name;
    return h("a", { role: "tab", id: `tab-${name}`, "data-key": name, href: linkTo({ agent: place.agent, tab: name }), "aria-selected": String(isHere), "aria-controls": "panel", tabindex: isHere ? "0" : "-1" }, label, numbers[name] ? h("span", { class: "number" }, numbers[name].toLocaleString("en")) : null);
  }));
}

function panel(data, place, now) {
  if (batteryOf(place.tab) !== null) return batteryView(data, place, now);
  const { rows } = data;
  if (place.tab === "messages") return messagesPanel(data, place, now);
  if (place.tab === "sizes") return sizes(rows);
  return rows.length ? SHOWN[place.tab](rows, place, now) : none(NOTHING[place.tab]);
}

export function agentView(data, place, now) {
  const { agent, stored } = data;
  const bytes = (stored ?? []).reduce((sum, row) => sum + row.bytes, 0);
  return [
    h("nav", { class: "crumbs", "aria-label": "Where you are" }, h("a", { href: "#" }, "Agents"), icon("right"), h("span", { "aria-current": "page" }, decoded(place.agent))),
    h("div", { class: "card question" },
      h("div", { class: "question-head" }, chip(agent.state), h("strong", { class: "agent-name" }, agent.name), h("span", { class: "kind-of" }, agent.kind), agent.strikes ? h("div", { class: "buttons" }, act("release", "Release", { agent: place.agent })) : null),
      h("dl", { class: "facts" },
        fact("Sockets", String(agent.sockets)),
        fact("Last activity", agent.lastActivityAt === null ? "never" : ago(agent.lastActivityAt, now)),
        fact("Turns", agent.openTurns ? `${agent.turns} (${agent.openTurns} open)` : String(agent.turns)),
        fact("Messages", String(agent.messages)),
        fact("Fibers", String(agent.fibers)),
        fact("Schedules", String(agent.schedules)),
        fact("Stored", stored ? sizeText(bytes) : "…"),
        agent.givenUp ? fact("Given up", String(agent.givenUp)) : null,
        agent.strikes ? fact("Failed boots", String(agent.strikes)) : null)),
    tabs(place, agent),
    h("div", { id: "panel", role: "tabpanel", "aria-labelledby": `tab-${place.tab}` }, panel(data, place, now))
  ];
}

export function overview({ host, agents, open, incidents: known, stored }, now) {
  const rows = agents.map((agent) => h("tr", { "data-key": agent.address },
    h("td", {}, chip(agent.state)),
    h("td", { class: "wide" }, h("a", { class: "row-link", href: linkTo({ agent: agent.address }) }, agent.name)),
    h("td", {}, agent.kind),
    h("td", { class: "right" }, String(agent.sockets)),
    h("td", { class: "right" }, String(agent.turns)),
    h("td", { class: "right" }, String(agent.messages)),
    h("td", { class: "right" }, when(agent.lastActivityAt, now))));
  return [
    h("dl", { class: "card facts host" },
      fact("Agents", agents.length.toLocaleString("en")),
      fact("In memory", String(host.active)),
      fact("Sockets", String(host.sockets)),
      fact("Open turns", open.length.toLocaleString("en")),
      fact("Store", host.engine),
      fact("Classes", host.classes.join(", "))),
    known.length ? section("Incidents", `${count(known.length, "turn")} interrupted or given up`, incidents(known, {}, now)) : null,
    section("Agents", null, agents.length ? table(["State", "Name", "Class", "Sockets", "Turns", "Messages", "Last activity"], rows, "Agents") : none("There are no agents yet. An agent appears here when it is first used.")),
    stored ? section("Stored bytes", null, ...sizes(stored)) : null
  ].filter((node) => node !== null);
}
