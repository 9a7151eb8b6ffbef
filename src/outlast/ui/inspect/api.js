// Requests to the server. Its responses contain untrusted text, which is only shown as text.

/** The error of a request that the server refused. */
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export class Api {
  constructor(root, query) {
    this.root = root;
    this.query = query;
  }

  url(what, given = {}) {
    const url = new URL(`_outlast/inspect/${what}`, this.root);
    url.search = this.query;
    for (const [name, value] of Object.entries(given)) url.searchParams.set(name, value);
    return url;
  }

  get(what, given = {}) {
    return this.#answer(fetch(this.url(what, given)));
  }

  post(what, body) {
    return this.#answer(fetch(this.url(what), { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) }));
  }

  async about() {
    return this.#answer(fetch(new URL(`_outlast/page${this.query}`, this.root)));
  }

  async #answer(asked) {
    const response = await asked;
    const text = await response.text();
    let value = null;
    try {
      value = JSON.parse(text);
    } catch {
      throw new Refused(response.status, `The server answered ${response.status}.`);
    }
    if (!response.ok) throw new Refused(response.status, value?.error ?? `The server answered ${response.status}.`);
    return value;
  }
}
