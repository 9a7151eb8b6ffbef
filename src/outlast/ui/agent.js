// One agent over HTTP: what the page asks beside its socket.

import { contentUrl } from "./references.js";

const EARLIER = "x-outlast-earlier";

export class Agent {
  #address;
  #query;

  /** `query` goes along with every request: a token may stand there. */
  constructor(address, query) {
    this.#address = address;
    this.#query = query;
  }

  /** The URL of its socket. */
  socketUrl(more) {
    const url = this.#url("", more);
    url.protocol = url.protocol.replace("http", "ws");
    return url;
  }

  /** Where a large output or file is; null: it is not one of this agent. */
  contentUrl(url) {
    return contentUrl(this.#address.href, this.#query, url);
  }

  /** The newest messages, or those before one: `{messages, hasEarlier}`; null: there is no such message. */
  async messages(before) {
    const response = await fetch(this.#url("/get-messages", before === undefined ? {} : { before }));
    if (response.status === 404) return null;
    if (!response.ok) throw new Error(`get-messages: ${response.status}`);
    return { messages: await response.json(), hasEarlier: response.headers.get(EARLIER) === "true" };
  }

  /** Of messages that have others in their place, the ids of these; null: the server does not say. */
  async branches() {
    try {
      const response = await fetch(this.#url("/chat/branches"));
      return response.ok ? (await response.json()).branches : null;
    } catch {
      return null;
    }
  }

  select(messageId) {
    return fetch(this.#url("/chat/branch"), { method: "POST", body: JSON.stringify({ messageId }) });
  }

  /** Deletes the conversation. Whether the server has done so. */
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
