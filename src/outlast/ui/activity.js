// The activity of the server in one line, and the steps of the recovery after a kill.

import { durationText, h, icon, setText } from "./dom.js";

const CAUSES = {
  crashed: "the previous process crashed",
  oom: "the previous process ran out of memory",
  deploy: "the previous process was asked to stop"
};
const ACTIONS = {
  continue: "continue the answer",
  retry: "ask the model again",
  finalise: "store the finished answer",
  abort: "stop",
  seal: "give up"
};

/** Returns a short description of an event; null if it is not worth showing. */
export function described(event) {
  const tool = event.tool_name;
  switch (event.name) {
    case "host:started":
      return CAUSES[event.cause] ? `started; ${CAUSES[event.cause]}` : "started";
    case "inbox:accepted":
      return event.kind === "continue" ? "continuing the answer" : "message stored";
    case "chat:turn:start":
      return event.attempt > 1 ? `answering, attempt ${event.attempt}` : "answering";
    case "chat:turn:finish":
      return event.status === "completed"
        ? `answer stored after ${durationText(event.duration_ms)}`
        : `answer ended: ${event.status}`;
    case "tool:start":
      return `running ${tool} (effect: ${event.effect})`;
    case "tool:finish":
      return event.outcome === "unknown"
        ? `${tool} was interrupted: its outcome is unknown`
        : `${tool}: ${event.outcome} after ${durationText(event.elapsed_ms)}`;
    case "tool:result":
      return `${tool}: result from the browser stored`;
    case "tool:approval":
      return `${tool}: ${event.approved ? "approved" : "denied"}, and stored`;
    case "chat:recovery:detected":
      return "found an interrupted answer";
    case "chat:recovery:decision":
      return `decided: ${ACTIONS[event.action] ?? event.action}${event.why ? ` (${event.why})` : ""}`;
    case "chat:recovery:completed":
      return "the answer was recovered";
    case "chat:recovery:exhausted":
      return "gave up on the answer";
    case "chat:recovery:attempt":
    case "chat:recovery:scheduled":
    case "inbox:claimed":
    case "inbox:acked":
    case "message:request":
    case "message:response":
    case "lifecycle:activated":
    case "state:update":
      return null;
    case "lifecycle:evicted":
      return "the agent left memory; everything is stored";
    case "cancel:recorded":
      return "stopping";
    case "message:clear":
      return "conversation deleted";
    default:
      return event.name.replaceAll(":", " ");
  }
}

/** Reads the server's events while the tab is visible, because tabs share a limited number of connections. */
export class Activity extends EventTarget {
  #url;
  #source = null;
  #last = null; // the number of the last event of this process

  constructor(url) {
    super();
    this.#url = url;
    this.pid = null;
    this.listen = this.listen.bind(this);
    document.addEventListener("visibilitychange", this.listen);
    this.listen();
  }

  close() {
    document.removeEventListener("visibilitychange", this.listen);
    this.#source?.close();
    this.#source = null;
    clearTimeout(this.timer);
  }

  listen() {
    if (document.hidden) {
      this.#source?.close();
      this.#source = null;
    } else if (!this.#source) this.#open();
  }

  #open() {
    clearTimeout(this.timer);
    const source = (this.#source = new EventSource(this.#url));
    source.addEventListener("message", ({ data }) => this.#hear(JSON.parse(data)));
    source.addEventListener("error", () => {
      if (source !== this.#source) return;
      source.close(); // its own retry delay is too long
      this.#source = null;
      this.timer = setTimeout(this.listen, 250);
    });
  }

  #hear(event) {
    if (event.name === "host:started") {
      if (this.pid === event.pid) return;
      this.pid = event.pid;
      this.#last = 0;
    } else if (event.seq <= this.#last) return;
    this.#last = event.seq;
    this.dispatchEvent(new CustomEvent("event", { detail: event }));
  }
}

/** The line at the foot of the page. */
export class Line {
  constructor(node) {
    this.node = node;
    this.dot = h("span", { class: "dot" });
    this.pid = h("span", { class: "pid" });
    this.text = h("span", { class: "text" });
    node.replaceChildren(this.dot, this.pid, this.text);
  }

  show(connection, pid, text) {
    this.node.dataset.connection = connection;
    setText(this.pid, pid ? `worker ${pid}` : "");
    setText(this.text, text);
  }
}

/** The steps of the recovery after a kill, with the time of each. */
export class Rescue {
  #since = null;
  #wall = 0;
  #steps = new Map();
  #timer = null;
  #ticking = null;
  #stopped = null; // the time on the stopped clock, in milliseconds

  constructor(node, announce) {
    this.announce = announce;
    this.list = h("ol", {});
    this.clock = h("span", { class: "clock" });
    this.title = h("span", { class: "rescue-title" });
    const close = h(
      "button",
      { type: "button", class: "icon-button", "aria-label": "Close", title: "Close", onclick: () => this.#hide() },
      icon("close")
    );
    this.node = node;
    node.replaceChildren(h("div", { class: "rescue-head" }, icon("bolt"), this.title, this.clock, close), this.list);
  }

  get isOn() {
    return this.#since !== null;
  }

  has(key) {
    return this.isOn && this.#steps.has(key);
  }

  begin(pid, wasBusy) {
    this.#since = performance.now();
    this.#wall = Date.now();
    this.#stopped = null;
    this.wasBusy = wasBusy;
    this.#steps.clear();
    this.list.replaceChildren();
    this.node.hidden = false;
    this.node.dataset.state = "on";
    clearTimeout(this.#timer);
    setText(this.title, "Killed. Watch what happens.");
    this.step("kill", `kill -9 ${pid ?? ""}`.trim(), "the process is gone, without any cleanup");
    this.#tick();
  }

  /** Adds a step, once. `at` is its time by the server's clock, if known. */
  step(key, title, note = "", at = null) {
    if (!this.isOn || this.#steps.has(key)) return;
    const seen = performance.now() - this.#since;
    const reported = at === null ? seen : at - this.#wall;
    // The clock of another machine may differ, so an impossible time is ignored.
    const ms = at !== null && reported >= 0 && reported <= seen + 50 ? reported : seen;
    const item = h(
      "li",
      {},
      h("span", { class: "at" }, `${(ms / 1000).toFixed(2)} s`),
      h("span", {}, h("strong", {}, title), note ? h("small", {}, ` ${note}`) : null)
    );
    this.#steps.set(key, { ms, item });
    const ordered = [...this.#steps.values()].sort((one, other) => one.ms - other.ms);
    this.list.replaceChildren(...ordered.map((each) => each.item));
    this.list.scrollTop = this.list.scrollHeight;
  }

  say(title) {
    setText(this.title, title);
  }

  /** Stops the clock: the answer continues, or none was in progress. */
  stopClock() {
    if (!this.isOn || this.#stopped !== null) return;
    this.#stopped = performance.now() - this.#since;
    this.#showClock(this.#stopped);
  }

  end(title) {
    if (!this.isOn) return;
    this.stopClock();
    this.#since = null;
    this.node.dataset.state = "over";
    setText(this.title, title);
    this.announce(title);
    this.#timer = setTimeout(() => this.#hide(), 30000);
  }

  /** Hides the steps of a recovery that has ended. */
  dismiss() {
    if (!this.isOn) this.#hide();
  }

  #tick() {
    clearTimeout(this.#ticking);
    if (!this.isOn || this.#stopped !== null) return;
    this.#showClock(performance.now() - this.#since);
    this.#ticking = setTimeout(() => this.#tick(), 100);
  }

  #showClock(ms) {
    setText(this.clock, `${(ms / 1000).toFixed(1)} s`);
  }

  #hide() {
    this.#since = null;
    this.node.hidden = true;
  }
}
