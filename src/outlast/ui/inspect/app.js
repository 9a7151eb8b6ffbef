// The inspector: the current place (in the hash of the URL), the requests for it, and how often they are made.

import { h, icon, setText } from "../dom.js";
import { themed } from "../theme.js";
import { Acting } from "./acting.js";
import { agentView, overview, TABS } from "./agent.js";
import { Api, Refused } from "./api.js";
import { batteryOf, loadBattery } from "./battery.js";
import { morph } from "./morph.js";
import { decoded, linkTo, turnView } from "./turn.js";
import { ago } from "./words.js";

const $ = (id) => document.getElementById(id);
const EVERY = 1000; // milliseconds between two requests, while the tab is visible
const PAUSE = 200; // milliseconds without typing after which a search starts
const SLOWLY = 10000; // milliseconds between two requests for stored bytes
const AGENTS = 300;

const root = new URL(".", document.baseURI);
const api = new Api(root, location.search);
const acting = new Acting({ dialog: $("sure"), results: $("results") }, api, () => look());

let site = null;
let place = here();
let shown = null; // the last data for this place
let agents = [];
let stored = { of: null, at: 0, rows: null };
let found = { of: null, q: "", rows: null };
let searching = null; // the timer of a search
let folds = new Set(); // the open details of a turn
let turn = 0; // the number of the last request: older responses are not shown
let timer = null;
let failures = 0;
let isRefused = false;
let meant = null; // the moment under the pointer
let seen = null; // the place whose tab was scrolled into view

/** Returns the current place: `#agent=Class/name&turn=…&tab=…`; also `&view=…&row=…` of a battery, `&q=…` of messages. */
function here() {
  const given = new URLSearchParams(location.hash.slice(1));
  const tab = given.get("tab");
  const isTab = tab in TABS || batteryOf(tab) !== null;
  return { agent: given.get("agent"), turn: given.get("turn"), tab: isTab ? tab : "turns", view: given.get("view"), row: given.get("row"), q: given.get("q") ?? "" };
}

// --- requests --------------------------------------------------------------------------------------------------------

async function sizesOf(agent) {
  const isOld = stored.of !== agent || Date.now() - stored.at > SLOWLY;
  if (isOld) stored = { of: agent, at: Date.now(), rows: await api.get("sizes", agent === null ? {} : { agent }) };
  return stored.rows;
}

async function tabRows(place) {
  const { agent, tab } = place;
  if (batteryOf(tab) !== null) return loadBattery(api, place, shown);
  if (tab === "messages" && place.q) return { found: await foundFor(place) };
  return { rows: await (tab === "sizes" ? sizesOf(agent) : api.get(tab, { agent, limit: 100 })) };
}

/** Searches once: the results change only if the query does. */
async function foundFor({ agent, q }) {
  if (found.of !== agent || found.q !== q) found = { of: agent, q, rows: await api.get("search", { agent, q, limit: 50 }) };
  return found.rows;
}

async function load(place) {
  const { agent, turn: id } = place;
  if (agent !== null && id !== null) {
    const given = { agent, id };
    const isOver = shown?.details?.turn.endedAt != null;
    const wanted = (name) => (!folds.has(name) ? null : isOver && shown[name] ? shown[name] : api.get(name, given));
    const [details, chunks, requests] = await Promise.all([api.get("turn", given), wanted("chunks"), wanted("requests")]);
    return { details, chunks, requests };
  }
  if (agent !== null) {
    const [known, rows, sizes] = await Promise.all([api.get("agent", { agent }), tabRows(place), sizesOf(agent)]);
    return { agent: known, stored: sizes, ...rows };
  }
  const [host, open, incidents, sizes] = await Promise.all([api.get("host"), api.get("turns", { open: 1, limit: 1000 }), api.get("incidents"), sizesOf(null)]);
  return { host, open, incidents, stored: sizes };
}

async function look() {
  clearTimeout(timer);
  turn += 1;
  const mine = turn;
  try {
    const [found, everyone] = await Promise.all([load(place), api.get("agents", { limit: AGENTS })]);
    if (mine !== turn) return;
    failures = 0;
    isRefused = false;
    shown = found;
    agents = everyone.sort((one, other) => (other.lastActivityAt ?? 0) - (one.lastActivityAt ?? 0));
    connected("open", "Live");
    draw();
  } catch (error) {
    if (mine !== turn) return;
    isRefused = error instanceof Refused && error.status < 500;
    if (isRefused) refused(error);
    else {
      failures += 1;
      connected("lost", "Reconnecting…");
    }
  }
  document.body.classList.add("is-ready");
  if (shown?.agent) showTab();
  if (!document.hidden) timer = setTimeout(look, isRefused ? SLOWLY : failures ? Math.min(4000, 250 * failures) : EVERY);
}

function refused(error) {
  const isAllowed = error.status === 404 || error.status === 400;
  connected(isAllowed ? "open" : "refused", isAllowed ? "Live" : "Refused");
  morph($("view"), [h("div", { class: "card nothing-there", "data-key": "refused" }, icon("warning"), h("p", {}, error.message), h("a", { href: "#" }, "All agents"))]);
}

// --- views -----------------------------------------------------------------------------------------------------------

function connected(state, text) {
  $("connection").dataset.state = state;
  setText($("connection-text"), text);
}

function sidebar(now) {
  const wanted = $("search").value.trim().toLowerCase();
  const fitting = agents.filter((each) => decoded(each.address).toLowerCase().includes(wanted));
  const nodes = fitting.map((each) => h("li", { "data-key": each.address },
    h("a", { class: "conversation agent", href: linkTo({ agent: each.address }), "aria-current": each.address === place.agent ? "page" : null },
      h("i", { class: "state", "data-state": each.state, title: each.state }),
      h("span", { class: "name" }, each.name),
      h("small", {}, `${each.kind} · ${each.state === "idle" ? ago(each.lastActivityAt, now) : each.state}${each.sockets ? ` · ${each.sockets} ${each.sockets === 1 ? "socket" : "sockets"}` : ""}`))));
  morph($("agents-list"), nodes.length ? nodes : [h("li", { class: "nothing" }, wanted ? `No agent matches “${$("search").value.trim()}”.` : "There are no agents yet.")]);
}

function draw() {
  if (!shown) return;
  const now = Date.now();
  sidebar(now);
  if (shown.details) {
    setText($("title"), decoded(place.agent));
    morph($("view"), turnView({ chunks: null, requests: null, ...shown }, place, $("view").clientWidth - 2, api));
    showMeant();
  } else if (shown.agent) {
    setText($("title"), decoded(place.agent));
    morph($("view"), agentView(shown, place, now));
  } else {
    setText($("title"), "Agents");
    morph($("view"), overview({ ...shown, agents }, now));
  }
  document.title = `${(shown.details?.turn.asked || $("title").textContent).slice(0, 60)} · Inspector`;
  chatLink();
}

/** Scrolls the selected tab into view, because not all tabs may fit. */
function showTab() {
  if (seen !== place) $("view").querySelector("[role=tab][aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  seen = place;
}

function chatLink() {
  const [kind, name, ...deeper] = (place.agent ?? "").split("/");
  const known = site.agents.find((each) => each.kind === kind);
  $("chat").hidden = !site.chat;
  const query = new URLSearchParams(location.search);
  if (known && site.agents.length > 1) query.set("agent", known.path);
  $("chat").href = known && !deeper.length ? `./?${query}#${decoded(name)}` : `./?${query}`;
}

function moved() {
  const next = here();
  const isSame = next.agent === place.agent && next.turn === place.turn;
  if (isSame && next.tab === place.tab && next.view === place.view && next.row === place.row && next.q === place.q) return;
  place = next;
  if (!isSame) {
    folds = new Set();
    $("results").replaceChildren();
    $("scroller").scrollTop = 0;
    if ($("view").contains(document.activeElement)) $("view").focus({ preventScroll: true });
    $("view").replaceChildren();
    setText($("announcer"), place.turn ? "Turn" : place.agent ? `Agent ${decoded(place.agent)}` : "All agents");
  }
  shown = null;
  if ($("find")) $("find").value = place.q;
  showSidebar(false);
  look();
}

function showSidebar(isShown) {
  document.body.classList.toggle("shows-sidebar", isShown);
  $("menu").setAttribute("aria-expanded", String(isShown));
  if (isShown) $("search").focus();
}

/** Highlights a moment in both the picture and the list when the pointer is over either. */
function point(event) {
  meant = event.target.closest?.("[data-moment]")?.dataset.moment ?? null;
  showMeant();
}

function showMeant() {
  for (const node of $("view").querySelectorAll(".is-meant")) node.classList.remove("is-meant");
  if (meant !== null) for (const node of $("view").querySelectorAll(`[data-moment="${meant}"]`)) node.classList.add("is-meant");
}

/** Searches messages once the user pauses, and puts the words into the address. */
function searchLater({ value }) {
  clearTimeout(searching);
  searching = setTimeout(() => {
    if (!place.agent || place.tab !== "messages") return;
    history.replaceState(null, "", linkTo({ agent: place.agent, tab: place.tab, q: value.trim() }));
    place = here();
    look();
  }, PAUSE);
}

$("view").addEventListener("mouseover", point);
$("view").addEventListener("input", ({ target }) => target.id === "find" && searchLater(target));
$("view").addEventListener("click", (event) => {
  const button = event.target.closest("[data-act]");
  if (button) {
    const { act, agent, id, message } = button.dataset;
    acting.ask(act, Object.fromEntries(Object.entries({ agent, id, message }).filter(([, value]) => value !== undefined)));
    return;
  }
  const mark = event.target.closest("svg [data-moment]");
  if (mark) $("view").querySelector(`.moments [data-moment="${mark.dataset.moment}"]`)?.scrollIntoView({ block: "center" });
});
$("view").addEventListener("keydown", (event) => {
  const tab = event.target.closest("[role=tab]");
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!tab || !step) return;
  const all = [...tab.parentElement.children];
  const next = all[(all.indexOf(tab) + step + all.length) % all.length];
  event.preventDefault();
  next.focus();
  next.click();
});
$("view").addEventListener("toggle", (event) => {
  const { fold } = event.target.dataset;
  if (!fold) return;
  if (event.target.open) folds.add(fold);
  else folds.delete(fold);
  if (event.target.open && !shown?.[fold]) look();
}, true);

$("menu").prepend(icon("menu"));
$("search-icon").prepend(icon("search"));
$("chat").prepend(icon("left"));
themed($("theme"));
$("menu").addEventListener("click", () => showSidebar(!document.body.classList.contains("shows-sidebar")));
$("shade").addEventListener("click", () => showSidebar(false));
$("search").addEventListener("input", () => sidebar(Date.now()));
$("skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("view").focus();
});
addEventListener("hashchange", moved);
addEventListener("resize", () => draw());
document.addEventListener("visibilitychange", () => !document.hidden && look());
addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "k") {
    event.preventDefault();
    showSidebar(true);
    $("search").focus();
  } else if (event.key === "Escape" && document.body.classList.contains("shows-sidebar")) {
    showSidebar(false);
    $("menu").focus();
  }
});

for (let wait = 200; site === null; wait = Math.min(wait * 1.6, 4000)) {
  try {
    site = await api.about();
  } catch {
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}
look();
