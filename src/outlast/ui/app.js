// The page: connects the views, and keeps them in sync with the conversation.

import { Activity, described, Line, Rescue } from "./activity.js";
import { Chat } from "./chat.js";
import { Composer } from "./composer.js";
import { Couriers } from "./couriers.js";
import { h, icon, newId, setText } from "./dom.js";
import { textOf } from "./messages.js";
import { Known, Sidebar } from "./sidebar.js";
import { themed } from "./theme.js";
import { BROWSER_TOOLS } from "./tools.js";
import { Transcript } from "./transcript.js";

const $ = (id) => document.getElementById(id);
const root = new URL(".", document.baseURI);
const query = location.search; // sent with every request, since it may contain a token

const site = await about();
const agent = site.agents.find((each) => each.path === new URLSearchParams(query).get("agent")) ?? site.agents[0];
const tools = Object.fromEntries(
  site.browserTools.filter((name) => name in BROWSER_TOOLS).map((name) => [name, BROWSER_TOOLS[name]])
);

let chat = null;
let activity = null;
let isDrawn = true;
let revealing = null; // the message to scroll to, once it is loaded
let doing = "";

/** Fetches the settings of the page, and retries while the server is starting. */
async function about() {
  for (let wait = 200; ; wait = Math.min(wait * 1.6, 4000)) {
    try {
      const response = await fetch(new URL(`_outlast/page${query}`, root));
      if (response.ok) return await response.json();
    } catch {
      // not yet
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

/** Fetches data that only a development server provides; null if it does not. */
async function ask(what, given = {}) {
  if (!site.dev) return null;
  const url = new URL(`_outlast/${what}`, root);
  url.search = query;
  for (const [name, value] of Object.entries({ agent: agent.path, ...given })) url.searchParams.set(name, value);
  try {
    const response = await fetch(url);
    return response.ok ? await response.json() : null;
  } catch {
    return null;
  }
}

// --- announcements to screen readers ---------------------------------------------------------------------------------

function announce(text) {
  setText($("announcer"), text);
}

function complain(text) {
  const note = h("div", { class: "note", role: "alert" }, icon("warning"), h("p", {}, text));
  $("notes").append(note);
  setTimeout(() => note.remove(), 8000);
}

// --- the views -------------------------------------------------------------------------------------------------------

const known = new Known(agent?.path ?? "");
const actions = {
  regenerate: (id) => chat.regenerate(id),
  edit: (id, parts) => chat.edit(id, parts),
  retry: (id) => chat.retry(id),
  takeBack: (id) => composer.putBack(chat.takeBack(id)),
  isTooLarge,
  select: (id) => chat.select(id),
  approve: (id, approved) => {
    chat.approve(id, approved);
    announce(approved ? "Approved" : "Denied");
  },
  changed: () => draw()
};
const transcript = new Transcript(
  { scroller: $("scroller"), list: $("messages"), tail: $("tail"), latest: $("latest") },
  actions
);
const sidebar = new Sidebar({ list: $("conversations"), search: $("search") }, known, {
  open,
  ask,
  messages: () => chat?.messages ?? [],
  search: (words) => chat.search(words)
});
function isTooLarge(parts) {
  const refusal = chat.tooLarge(parts);
  if (refusal) complain(refusal);
  return refusal !== null;
}

function send(parts) {
  if (isTooLarge(parts)) return false;
  rescue.dismiss();
  chat.send(parts);
  transcript.follow();
  return true;
}
const composer = new Composer(
  {
    form: $("composer"),
    area: $("area"),
    shelf: $("shelf"),
    picker: $("picker"),
    attach: $("attach"),
    send: $("send"),
    stop: $("stop"),
    drop: document.body
  },
  {
    send,
    stop: () => chat.stop(),
    complain
  }
);
composer.limit = Math.round(site.limits.message * 0.9);
const line = new Line($("line"));
const rescue = new Rescue($("rescue"), announce);
const chatOf = (path, name) =>
  new Chat({
    root,
    prefix: site.prefix,
    agent: path,
    name,
    query,
    tools,
    limits: site.limits,
    hasSession: site.agents.find((each) => each.path === path)?.hasSession
  });
const couriers = new Couriers(root.pathname, { open: chatOf, shown: () => chat });

// --- conversations ---------------------------------------------------------------------------------------------------

function open(name, messageId = null) {
  revealing = messageId;
  showSidebar(false);
  if (chat?.name === name) return draw();
  if (chat) couriers.keep(chat);
  activity?.close();
  const hash = `#${name}`;
  if (location.hash !== hash) history.pushState(null, "", hash);
  sidebar.current = name;
  transcript.reset();
  chat = couriers.take(`${root.pathname} ${agent.path}/${name}`) ?? chatOf(agent.path, name);
  const mine = chat;
  chat.addEventListener("change", () => mine === chat && changed());
  chat.addEventListener("chunk", ({ detail }) => mine === chat && heardChunk(detail));
  chat.addEventListener("problem", ({ detail }) => mine === chat && complain(detail));
  chat.addEventListener("ended", ({ detail }) => mine === chat && ended(detail.outcome));
  follow(name);
  sidebar.show();
  return draw();
}

// The name is the segment of the agent's address, percent-encoded if necessary.
const named = () => location.hash.slice(1).replaceAll(/[/?#]/g, encodeURIComponent);

function openNew() {
  open(newId(5));
  $("area").focus();
}

let wasConnected = true;
function changed() {
  remember();
  const isConnected = chat.connection === "open";
  if (isConnected !== wasConnected) {
    wasConnected = isConnected;
    if (isConnected) couriers.look();
    if (rescue.isOn) {
      if (isConnected) rescue.step("back", "This page has reconnected");
      else rescue.step("lost", "This page lost its connection");
      if (isConnected && !rescue.wasBusy) {
        rescue.stopClock();
        setTimeout(() => rescue.end("Back. No answer was in progress."), 600);
      }
    } else announce(isConnected ? "Connected" : "Connection lost");
  }
  draw();
}

/** Stores the conversation in this browser's list, with its title if its beginning is loaded. */
function remember() {
  const before = known.list.find((each) => each.name === chat.name)?.title;
  const title = chat.hasEarlier ? (before ?? "") : titleOf(chat);
  if (title !== before && (title || chat.hasEarlier)) known.remember(chat.name, title);
}

/** Returns the first message as a title, or the listed title if that is not loaded; "" if it is empty. */
function titleOf({ name, messages, hasEarlier }) {
  const before = hasEarlier ? sidebar.titleOf(name) : "";
  if (before) return before;
  const first = messages.find((message) => message.role === "user");
  if (!first) return "";
  const text = textOf(first).slice(0, 1000).replaceAll(/\s+/g, " ");
  return text.slice(0, 80) || first.parts[0]?.filename || "";
}

const CONTINUES = ["text-delta", "reasoning-delta", "tool-output-available", "tool-output-error"];

function heardChunk(chunk) {
  if (!rescue.has("back") || !CONTINUES.includes(chunk.type)) return;
  rescue.stopClock();
  rescue.step("on", "The answer continues");
  rescue.say("Killed, and it continues.");
}

function ended(outcome) {
  const last = chat.messages.at(-1);
  const isAsking = last?.parts?.some((part) => part.state === "approval-requested");
  announce(
    isAsking
      ? "A call needs your approval"
      : outcome === "completed"
        ? "The answer is complete"
        : `The answer ended: ${outcome}`
  );
  rescue.end(
    outcome === "completed" ? "The answer is complete. Nothing was lost." : `The answer ended: ${outcome}.`
  );
  sidebar.refresh();
}

// --- drawing ---------------------------------------------------------------------------------------------------------

/** Schedules a repaint, at most one per frame. */
function draw() {
  if (!isDrawn) return;
  isDrawn = false;
  const paint = () => {
    isDrawn = true;
    paintNow();
  };
  if (document.hidden) setTimeout(paint, 200);
  else requestAnimationFrame(paint);
}

const CONNECTION = { connecting: "Connecting…", open: "Connected", lost: "Reconnecting…", refused: "Refused" };

function paintNow() {
  const { messages } = chat;
  const isEmpty = messages.length === 0 && chat.isLoaded;
  $("welcome").hidden = !isEmpty;
  document.body.classList.toggle("is-empty", isEmpty);
  transcript.show(chat);
  const isBusy = chat.busy !== null;
  composer.show(chat.canStop);
  const state = chat.connection === "open" && chat.isRecovering && isBusy ? "recovering" : chat.connection;
  $("connection").dataset.state = state;
  setText($("connection-text"), state === "recovering" ? "Recovering…" : CONNECTION[state]);
  if (state === "refused") $("connection").title = chat.refusal;
  const title = titleOf(chat);
  setText($("title"), title || "New conversation");
  document.title = title ? `${title} · ${site.title}` : site.title;
  $("clear").disabled = messages.length === 0;
  $("kill").disabled = chat.connection !== "open"; // no server to kill
  line.show(
    state,
    site.dev ? (activity?.pid ?? site.pid) : null,
    state === "open" ? doing || "ready" : (CONNECTION[state] ?? "recovering…")
  );
  if (site.inspector) {
    const address = `${agent.kind}/${encodeURIComponent(chat.name)}`;
    $("inspector").href = `${site.inspector}${query}#agent=${encodeURIComponent(address)}`;
  }
  reveal();
}

/** Scrolls to the requested message, and loads older messages until it is found. */
function reveal() {
  if (revealing === null) return;
  if (transcript.reveal(revealing)) revealing = null;
  else if (chat.isLoaded && !chat.hasEarlier) {
    revealing = null;
    complain("This message is not part of the shown branch: it was edited, or belongs to another answer.");
  } else if (chat.hasEarlier && chat.earlier === "") chat.loadEarlier();
}

// --- the activity of the server --------------------------------------------------------------------------------------

function follow(name) {
  doing = "";
  if (!site.dev) return;
  const url = new URL("_outlast/activity", root);
  url.search = query;
  url.searchParams.set("agent", agent.path);
  url.searchParams.set("name", name);
  activity = new Activity(url);
  const mine = activity;
  activity.addEventListener("event", ({ detail }) => mine === activity && heard(detail));
}

function heard(event) {
  const text = described(event);
  if (text !== null) doing = text;
  if (event.name === "tool:finish" && event.elapsed_ms > 0) chat.took(event.tool_call_id, event.elapsed_ms);
  switch (event.name) {
    case "host:started":
      rescue.step(
        "start",
        `A new worker started: ${event.pid}`,
        event.cause === "crashed" ? "it knows that the previous one crashed" : "",
        event.at
      );
      break;
    case "chat:recovery:detected":
      rescue.step("found", "It found the interrupted answer", "", event.at);
      break;
    case "tool:finish":
      if (event.outcome === "unknown")
        rescue.step("unknown", `${event.tool_name}: unknown`, "it may have run; it is not repeated", event.at);
      break;
    case "chat:recovery:decision":
      rescue.step("decided", `Decision: ${ACTION[event.action] ?? event.action}`, event.why ?? "", event.at);
      break;
    default:
  }
  draw();
}

const ACTION = { continue: "continue where it stopped", retry: "ask the model again", finalise: "store the finished answer" };

async function kill() {
  const pid = activity?.pid ?? site.pid;
  rescue.begin(pid, chat.busy !== null);
  announce("The server was killed");
  const url = new URL("_outlast/kill", root);
  url.search = query;
  url.searchParams.set("pid", pid); // if the browser retries, it must not kill the next process
  try {
    const response = await fetch(url, { method: "POST" });
    if (!response.ok && response.status !== 409) complain((await response.json()).error);
  } catch {
    // expected: the server was killed
  }
}

// --- the rest of the page --------------------------------------------------------------------------------------------

const narrow = matchMedia("(max-width: 52rem)");

/** Shows or hides the sidebar, which covers the messages on a narrow page. */
function showSidebar(isShown) {
  const isOver = isShown && narrow.matches;
  document.body.classList.toggle("shows-sidebar", isOver);
  document.querySelector("main").inert = isOver;
  $("menu").setAttribute("aria-expanded", String(isOver));
  if (isShown) $("search").focus();
}
narrow.addEventListener("change", () => showSidebar(false));

function welcome() {
  setText($("welcome-title"), site.demo ? "Kill the server. I finish the sentence." : "What would you like to talk about?");
  setText($("welcome-text"), site.intro || "Ask anything.");
  for (const { label, text, note } of site.suggestions) {
    $("suggestions").append(
      h(
        "li",
        {},
        h(
          "button",
          { type: "button", class: "suggestion", onclick: () => send([{ type: "text", text }]) },
          h("strong", {}, label),
          note ? h("span", {}, note) : null
        )
      )
    );
  }
}

for (const [id, name] of Object.entries({
  menu: "menu",
  attach: "attach",
  send: "send",
  stop: "stop",
  clear: "trash",
  new: "plus",
  latest: "down",
  kill: "bolt",
  "search-icon": "search"
})) {
  $(id).prepend(icon(name));
}
$("kill").hidden = !site.dev;
$("line").hidden = !site.dev;
if (site.inspector) {
  $("inspector").hidden = false;
  $("inspector").prepend(icon("inspect"));
}
themed($("theme"));
setText($("brand"), site.title);
if (site.agents.length > 1) {
  $("agents").hidden = false;
  $("agents").append(
    ...site.agents.map((each) => h("option", { value: each.path, selected: each.path === agent.path }, each.kind))
  );
  $("agents").addEventListener("change", () => (location.href = `?agent=${encodeURIComponent($("agents").value)}`));
}
$("menu").addEventListener("click", () => showSidebar(!document.body.classList.contains("shows-sidebar")));
$("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash is the name of a conversation
  $("area").focus();
});
$("shade").addEventListener("click", () => showSidebar(false));
$("new").addEventListener("click", openNew);
$("kill").addEventListener("click", kill);
$("clear").addEventListener("click", () => $("sure").showModal());
$("sure").addEventListener("close", () => $("sure").returnValue === "yes" && clear(chat));

async function clear(cleared) {
  if (await cleared.clear()) {
    sidebar.drop(cleared.name);
    announce("The conversation was deleted");
  } else complain("The server cannot be reached, so this conversation was not deleted. Try again later.");
}
addEventListener("popstate", () => open(named() || newId(5)));
addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "k") {
    event.preventDefault();
    showSidebar(true);
  } else if (event.key === "Escape" && document.body.classList.contains("shows-sidebar")) {
    showSidebar(false);
    $("menu").focus();
  } else if (event.key === "Escape" && !event.defaultPrevented && !$("sure").open && chat?.canStop) {
    chat.stop();
  }
});

welcome();
if (agent) {
  const listed = sidebar.refresh();
  if (!named()) await listed;
  open(named() || sidebar.newest || newId(5));
  couriers.look();
  listed.then(draw); // the list may have the title of this conversation
  document.body.classList.add("is-ready");
} else {
  complain("This server has no chat agents.");
}
