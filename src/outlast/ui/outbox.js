// The requests of one conversation that the server has not accepted yet, in order.
//
// They are also stored, so that another tab can send them later. An entry belongs to one tab, and only that tab sends
// it; when the tab is closed, another one takes it over. An open tab holds a Web Lock. Where locks are unavailable (plain
// HTTP under a host name), every tab sends what it finds: requests have ids, and the server processes each once.

import { newId } from "./dom.js";
import { Records } from "./records.js";

export const HERE = newId(); // this tab
const LOCK = "outlast.tab.";
const BEFORE = reloaded(); // the id of this tab before it was reloaded: its lock may still be held

function reloaded() {
  try {
    const before = sessionStorage.getItem("outlast.tab");
    sessionStorage.setItem("outlast.tab", HERE);
    return performance.getEntriesByType("navigation")[0]?.type === "reload" ? before : null;
  } catch {
    return null;
  }
}

export const records = new Records();
const channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("outlast.outbox") : null;
const watched = new Set();

const hasLock = navigator.locks
  ? new Promise((resolve) => {
      const hold = () => {
        resolve(true);
        return new Promise(() => {}); // until this tab is closed
      };
      navigator.locks.request(LOCK + HERE, hold).catch(() => resolve(false));
    })
  : Promise.resolve(false);

/** Returns a function that tells whether a tab is open. */
export async function livingTabs() {
  if (!(await hasLock)) return (tab) => tab === HERE;
  const { held } = await navigator.locks.query();
  const names = new Set(held.filter((lock) => lock.mode === "exclusive").map((lock) => lock.name));
  return (tab) => tab !== BEFORE && names.has(LOCK + tab);
}

/** Calls `gone` when this open tab is closed. */
export function watch(tab, gone) {
  if (tab === HERE || watched.has(tab)) return;
  watched.add(tab);
  const granted = navigator.locks?.request(LOCK + tab, { mode: "shared" }, () => watched.delete(tab));
  granted?.then(gone).catch(() => {});
}

/** Calls `changed` when another tab has entries that this tab may have to take over. */
export function onNews(changed) {
  channel?.addEventListener("message", ({ data }) => data.news && changed());
}

let last = 0;
const nextOrder = () => (last = Math.max(Date.now(), last + 0.001));

export class Outbox {
  entries = []; // oldest first
  #gone = new Set();
  #keeping = null; // the last write to the storage
  #changed;
  #heard = ({ data }) => {
    if (data.cleared !== this.conversation) return;
    this.#drop();
    this.#changed();
  };

  /** `changed` is called when entries change for reasons outside this page. */
  constructor({ conversation, agent, name }, changed) {
    Object.assign(this, { conversation, agent, name });
    this.#changed = changed;
    channel?.addEventListener("message", this.#heard);
  }

  /** The entries to send, without those that the server refused. */
  get waiting() {
    return this.entries.filter((entry) => entry.refusal === undefined);
  }

  get(id) {
    return this.entries.find((entry) => entry.id === id);
  }

  /** Adds an entry: `{id, message?, content?, frame?, isEdit?}`. */
  add(entry) {
    const { conversation, agent, name } = this;
    const made = { wasSent: false, ...entry, conversation, agent, name, tab: HERE, order: nextOrder() };
    this.entries.push(made);
    this.#keep(made);
    return made;
  }

  /** Records that an entry was passed to a connection. */
  sent(entry) {
    if (entry.wasSent) return;
    entry.wasSent = true;
    this.#keep(entry);
  }

  /** Marks an entry as refused by the server: it stays visible, and is not sent again. */
  refuse(id, text) {
    const entry = this.get(id);
    if (!entry) return;
    entry.refusal = text;
    this.#keep(entry);
  }

  /** Removes an entry that the server accepted, or that the user withdrew, and returns it. */
  remove(id) {
    const entry = this.get(id);
    if (!entry) return undefined;
    this.#gone.add(id);
    this.entries = this.entries.filter((each) => each !== entry);
    records.delete(entry);
    return entry;
  }

  /** Removes all entries of a deleted conversation, in all tabs. */
  clear() {
    this.#drop();
    records.clear(this.conversation);
    channel?.postMessage({ cleared: this.conversation });
  }

  /** Takes over the entries of closed tabs. */
  async adopt() {
    const isAlive = await livingTabs();
    const found = await records.claim(this.conversation, HERE, isAlive);
    const news = (found ?? []).filter(({ id }) => !this.#gone.has(id) && !this.get(id));
    if (!news.length) return;
    this.entries = [...this.entries, ...news].sort((one, other) => one.order - other.order);
    this.#changed();
  }

  /** Notifies other tabs that they have to take over entries if this tab is closed. */
  async announce() {
    await this.#keeping;
    if (this.waiting.length) channel?.postMessage({ news: true });
  }

  /** Gives up the entries: this tab no longer has the conversation open. */
  close() {
    channel?.removeEventListener("message", this.#heard);
    for (const entry of this.entries) records.put({ ...entry, tab: null });
  }

  async #keep(entry) {
    entry.isKept = true;
    const { isKept: _, ...record } = entry;
    this.#keeping = records.put(record);
    if ((await this.#keeping) !== null) return;
    entry.isKept = false;
    this.#changed();
  }

  #drop() {
    for (const { id } of this.entries) this.#gone.add(id);
    this.entries = [];
  }

}

/** Returns the state of an entry that the server has not accepted, `{id, state, text}`; null if it is being sent. */
export function pendingOf({ id, refusal, wasSent, isKept }, connection) {
  if (refusal !== undefined) return { id, state: "refused", text: `Not sent. ${refusal}` };
  if (connection === "refused") return { id, state: "waiting", text: "Not sent. The server refused the connection." };
  if (connection === "open") return null;
  const text = wasSent
    ? "Not confirmed yet. It will be sent again when the server is back, and processed once."
    : "Not sent yet. It will be sent when the server is back.";
  const more = isKept === false ? " Keep this tab open: this browser could not store it." : "";
  return { id, state: wasSent ? "unconfirmed" : "waiting", text: text + more };
}
