// One agent over HTTP: the requests that the page makes besides its socket.

import { contentUrl } from "./references.js";

const EARLIER = "x-outlast-earlier";

export class Agent {
  #address;
  #query;

  /** `query` is sent with every request, since it may contain a token. */
  constructor(address, query) {
    this.#address = address;
    this.#query = query;
  }

  /** Returns the URL of its socket. */
  socketUrl(more) {
    const url = this.#url("", more);
    url.protocol = url.protocol.replace("http", "ws");
    return url;
  }

  /** Returns the URL to fetch a large output or file from; null if it does not belong to this agent. */
  contentUrl(url) {
    return contentUrl(this.#address.href, this.#query, url);
  }

  /** Fetches the newest messages, or those before a message: `{messages, hasEarlier}`; null if it does not exist. */
  async messages(before) {
    const response = await fetch(this.#url("/get-messages", before === undefined ? {} : { before }));
    if (response.status === 404) return null;
    if (!response.ok) throw new Error(`get-messages: ${response.status}`);
    return { messages: await response.json(), hasEarlier: response.headers.get(EARLIER) === "true" };
  }

  /** Fetches the ids of alternatives, for each message that has any; null if the request fails. */
  async branches() {
    try {
      const response = await fetch(this.#url("/chat/branches"));
      return response.ok ? (await response.json()).branches : null;
    } catch {
      return null;
    }
  }

  /** Fetches where a summary stands for messages, `{last, text}` or null; undefined if the request fails. */
  async summary() {
    try {
      const response = await fetch(this.#url("/session"));
      return response.ok ? (await response.json()).summary : undefined;
    } catch {
      return undefined;
    }
  }

  /** Searches all messages: `[{messageId, role, snippet: {text, marks}}]`, best first; null if the request fails. */
  async search(words) {
    try {
      const response = await fetch(this.#url("/search", { q: words }));
      return response.ok ? (await response.json()).hits : null;
    } catch {
      return null;
    }
  }

  select(messageId) {
    return fetch(this.#url("/chat/branch"), { method: "POST", body: JSON.stringify({ messageId }) });
  }

  /** Deletes the conversation. Returns whether the server did so. */
  async clear() {
    try {
      return (await fetch(this.#url("/chat"), { method: "DELETE" })).ok;
    } catch {
      return false;
    }
  }

  #url(rest, more = {}) {
    const url = new URL(`${this.#address.href}${rest}${this.#query}`);
    for (const [name, value] of Object.entries(more)) url.searchParams.set(name, value);
    return url;
  }
}
