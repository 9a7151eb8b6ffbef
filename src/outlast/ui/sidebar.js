// The list of conversations, from this browser and from a development server, and the search.

import { h, setChildren } from "./dom.js";
import { withMarks } from "./marks.js";
import { textOf } from "./messages.js";

const KEPT = 200; // conversations that this browser stores
const PAUSE = 120; // milliseconds without typing after which the server searches

/** The conversations that this browser stores, shared by its tabs. */
export class Known extends EventTarget {
  #key;

  constructor(agent) {
    super();
    this.#key = `outlast.conversations.${agent}`;
    addEventListener("storage", (event) => event.key === this.#key && this.dispatchEvent(new Event("change")));
  }

  get list() {
    try {
      const found = JSON.parse(localStorage.getItem(this.#key));
      return Array.isArray(found) ? found : [];
    } catch {
      return [];
    }
  }

  remember(name, title) {
    const others = this.list.filter((each) => each.name !== name);
    this.#store([{ name, title, at: Date.now() }, ...others].slice(0, KEPT));
  }

  forget(name) {
    this.#store(this.list.filter((each) => each.name !== name));
  }

  #store(list) {
    try {
      localStorage.setItem(this.#key, JSON.stringify(list));
    } catch {
      // the storage is full or disabled: only the server has the list
    }
    this.dispatchEvent(new Event("change"));
  }
}

/** Merges both lists, newest first. */
export function joined(ours, theirs) {
  const all = new Map(theirs.map((each) => [each.name, each]));
  for (const each of ours) {
    const known = all.get(each.name);
    all.set(each.name, { ...each, title: each.title || known?.title || "", at: Math.max(each.at, known?.at ?? 0) });
  }
  return [...all.values()].sort((one, other) => other.at - one.at);
}

function when(at) {
  const day = (time) => new Date(time).setHours(0, 0, 0, 0);
  const days = Math.round((day(Date.now()) - day(at)) / 86400000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  return days < 7 ? "This week" : "Earlier";
}

/** Finds a text in messages, and returns the matches with some context. */
export function foundIn(messages, wanted, name) {
  const hits = [];
  for (const message of messages) {
    const text = textOf(message);
    const place = text.toLowerCase().indexOf(wanted.toLowerCase());
    if (place < 0) continue;
    const start = Math.max(0, place - 60);
    const excerpt = text.slice(start, place + wanted.length + 60).replaceAll(/\s+/g, " ");
    hits.push({ name, messageId: message.id, role: message.role, excerpt: start ? `…${excerpt}` : excerpt });
  }
  return hits;
}

function marked(text, wanted) {
  const place = text.toLowerCase().indexOf(wanted.toLowerCase());
  if (place < 0) return [text];
  return [
    text.slice(0, place),
    h("mark", {}, text.slice(place, place + wanted.length)),
    text.slice(place + wanted.length)
  ];
}

/** Returns the first hit of each message. */
function unique(hits) {
  const found = new Map();
  for (const hit of hits) {
    const key = `${hit.name} ${hit.messageId}`;
    if (!found.has(key)) found.set(key, hit);
  }
  return [...found.values()];
}

export class Sidebar {
  #theirs = [];
  #asked = 0;
  #found = null; // {wanted, hits}

  /**
   * `actions`: `open(name, messageId)`; `messages()` of the current conversation, and `search(words)` in it, or null;
   * `ask(path)` of a development server, or null.
   */
  constructor({ list, search, title }, known, actions) {
    Object.assign(this, { list, search, title, known, actions });
    known.addEventListener("change", () => this.show());
    search.addEventListener("input", () => this.#search());
    search.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        search.value = "";
        this.#search();
      }
    });
  }

  current = null;

  async refresh() {
    const answer = await this.actions.ask("conversations");
    if (answer) this.#theirs = answer.conversations;
    this.show();
  }

  get all() {
    return joined(this.known.list, this.#theirs);
  }

  get newest() {
    return this.all[0]?.name ?? null;
  }

  titleOf(name) {
    return this.all.find((each) => each.name === name)?.title ?? "";
  }

  drop(name) {
    this.#theirs = this.#theirs.filter((each) => each.name !== name);
    this.known.forget(name);
  }

  async #search() {
    const wanted = this.search.value.trim();
    this.#asked += 1;
    const asked = this.#asked;
    if (!wanted) {
      this.#found = null;
      return this.show();
    }
    const name = this.current;
    const loaded = foundIn(this.actions.messages(), wanted, name);
    this.#found = { wanted, hits: loaded };
    this.show();
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
    if (asked !== this.#asked) return undefined;
    const [stored, all] = await Promise.all([this.actions.search(wanted), this.actions.ask("search", { q: wanted })]);
    if (asked !== this.#asked) return undefined;
    const ranked = (stored ?? []).map((hit) => ({ ...hit, name }));
    this.#found = { wanted, hits: unique([...ranked, ...loaded, ...(all?.found ?? [])]) };
    this.show();
    return undefined;
  }

  show() {
    setChildren(this.list, this.#found ? this.#results(this.#found) : this.#conversations());
  }

  #item(name, content, messageId = null) {
    const isHere = name === this.current && messageId === null;
    return h(
      "li",
      {},
      h(
        "a",
        {
          href: `#${name}`,
          class: "conversation",
          "aria-current": isHere ? "page" : null,
          onclick: (event) => {
            event.preventDefault();
            this.actions.open(name, messageId);
          }
        },
        ...content
      )
    );
  }

  #conversations() {
    let group = null;
    const nodes = [];
    for (const each of this.all) {
      if (when(each.at) !== group) {
        group = when(each.at);
        nodes.push(h("li", { class: "group" }, group));
      }
      nodes.push(this.#item(each.name, [h("span", { class: "name" }, each.title || each.name)]));
    }
    return nodes.length ? nodes : [h("li", { class: "nothing" }, "No conversations yet.")];
  }

  #results({ wanted, hits }) {
    const titled = this.all.filter((each) => (each.title || each.name).toLowerCase().includes(wanted.toLowerCase()));
    const nodes = titled.map((each) =>
      this.#item(each.name, [h("span", { class: "name" }, ...marked(each.title || each.name, wanted))])
    );
    if (hits.length) nodes.push(h("li", { class: "group" }, "In messages"));
    for (const hit of hits) {
      const title = this.titleOf(hit.name) || hit.name;
      nodes.push(
        this.#item(
          hit.name,
          [
            h("span", { class: "name" }, hit.role === "user" ? "You" : "Answer", h("small", {}, ` · ${title}`)),
            h("span", { class: "excerpt" }, ...(hit.snippet ? withMarks(hit.snippet) : marked(hit.excerpt, wanted)))
          ],
          hit.messageId
        )
      );
    }
    return nodes.length ? nodes : [h("li", { class: "nothing" }, `No results for “${wanted}”.`)];
  }
}
