// What this page has to send to one conversation and the server has not accepted yet, in order.
//
// It is also stored, so that a tab that is opened later can send it. An entry belongs to one tab, which alone sends it;
// when that tab is gone, another one takes it over. A living tab holds a Web Lock. Where there are no locks (plain HTTP
// under a name), every tab sends what it finds: requests have ids, and the server counts each once.

import { newId } from "./dom.js";
import { Records } from "./records.js";

export const HERE = newId(); // this tab
const LOCK = "outlast.tab.";
const BEFORE = reloaded(); // what this tab was called before it was reloaded: its lock may still be held

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
        return new Promise(() => {}); // as long as this tab lives
      };
      navigator.locks.request(LOCK + HERE, hold).catch(() => resolve(false));
    })
  : Promise.resolve(false);

/** A function that says whether a tab is alive. */
export async function livingTabs() {
  if (!(await hasLock)) return (tab) => tab === HERE;
  const { held } = await navigator.locks.query();
  const names = new Set(held.filter((lock) => lock.mode === "exclusive").map((lock) => lock.name));
  return (tab) => tab !== BEFORE && names.has(LOCK + tab);
}

/** Calls `gone` once this tab, which is alive, is so no more. */
export function watch(tab, gone) {
  if (tab === HERE || watched.has(tab)) return;
  watched.add(tab);
  const granted = navigator.locks?.request(LOCK + tab, { mode: "shared" }, () => watched.delete(tab));
  granted?.then(gone).catch(() => {});
}

/** Calls `changed` when another tab has something to send that may become ours. */
export function onNews(changed) {
  channel?.addEventListener("message", ({ data }) => data.news && changed());
}

let last = 0;
const nextOrder = () => (last = Math.max(Date.now(), last + 0.001));

export class Outbox {
  entries = []; // oldest first
  #gone = new Set();
  #keeping = null; // the last time that something was stored
  #changed;
  #heard = ({ data }) => {
    if (data.cleared !== this.conversation) return;
    this.#drop();
    this.#changed();
  };

  /** `changed` is called when the entries have changed without this page's doing. */
  constructor({ conversation, agent, name }, changed) {
    Object.assign(this, { conversation, agent, name });
    this.#changed = changed;
    channel?.addEventListener("message", this.#heard);
  }

  /** Entries that are to be sent: not those that the server has refused. */
  get waiting() {
    return this.entries.filter((entry) => entry.refusal === undefined);
  }

  get(id) {
    return this.entries.find((entry) => entry.id === id);
  }

  /** `entry`: `{id, message?, content?, frame?, isEdit?}`. */
  add(entry) {
    const { conversation, agent, name } = this;
    const made = { wasSent: false, ...entry, conversation, agent, name, tab: HERE, order: nextOrder() };
    this.entries.push(made);
    this.#keep(made);
    return made;
  }

  /** It was handed to a connection. */
  sent(entry) {
    if (entry.wasSent) return;
    entry.wasSent = true;
    this.#keep(entry);
  }

  /** The server does not take it: it stays to be seen, and is not sent again. */
  refuse(id, text) {
    const entry = this.get(id);
    if (!entry) return;
    entry.refusal = text;
    this.#keep(entry);
  }

  /** The server has it, or it is not wanted any more. Gives the entry, if it was here. */
  remove(id) {
    const entry = this.get(id);
    if (!entry) return undefined;
    this.#gone.add(id);
    this.entries = this.entries.filter((each) => each !== entry);
    records.delete(entry);
    return entry;
  }

  /** The conversation is deleted, and all that waits for it, whichever tab has it. */
  clear() {
    this.#drop();
    records.clear(this.conversation);
    channel?.postMessage({ cleared: this.conversation });
  }

  /** Takes over what tabs have left that are gone. */
  async adopt() {
    const isAlive = await livingTabs();
    const found = await records.claim(this.conversation, HERE, isAlive);
    const news = (found ?? []).filter(({ id }) => !this.#gone.has(id) && !this.get(id));
    if (!news.length) return;
    this.entries = [...this.entries, ...news].sort((one, other) => one.order - other.order);
    this.#changed();
  }

  /** Tells other tabs that there is something here which they would have to send, should this tab go. */
  async announce() {
    await this.#keeping;
    if (this.waiting.length) channel?.postMessage({ news: true });
  }

  /** This tab does not show the conversation any more. */
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

/** How an entry stands that the server has not accepted: `{id, state, text}`; null: it is on its way. */
export function pendingOf({ id, refusal, wasSent, isKept }, connection) {
  if (refusal !== undefined) return { id, state: "refused", text: `Not sent. ${refusal}` };
  if (connection === "refused") return { id, state: "waiting", text: "Not sent. The server refuses this page." };
  if (connection === "open") return null;
  const text = wasSent
    ? "Not confirmed yet. It will be sent again when the server is back, and counts once."
    : "Not sent yet. It will be sent when the server is back.";
  const more = isKept === false ? " Keep this tab open: this browser does not store it." : "";
  return { id, state: wasSent ? "unconfirmed" : "waiting", text: text + more };
}
