// Tool calls: those that the page runs itself, and the duration of each as measured in this tab.

import { isSettled, toolName } from "./messages.js";

const KEPT = "outlast.durations";
const MOST = 200; // calls whose durations are stored

function kept() {
  try {
    const found = JSON.parse(sessionStorage.getItem(KEPT));
    return Array.isArray(found) ? found : [];
  } catch {
    return [];
  }
}

/** The durations of calls, kept across reloads of this tab. */
export class Durations {
  #calls = new Map(kept()); // {since, ms}

  /** Returns milliseconds; undefined if unknown, or if the call still runs. */
  of(callId) {
    return this.#calls.get(callId)?.ms;
  }

  start(callId) {
    this.#calls.set(callId, { since: performance.now() });
  }

  /** Records the end of a call, with the server's duration if it is known. */
  end(callId, ms = performance.now() - this.#calls.get(callId).since) {
    this.#calls.set(callId, { ms });
    try {
      const others = kept().filter(([id]) => id !== callId);
      sessionStorage.setItem(KEPT, JSON.stringify([...others, [callId, { ms }]].slice(-MOST)));
    } catch {
      // it is lost with the next reload
    }
  }

  /** Measures the call of a chunk. Returns whether it has ended. */
  hear(chunk, builder) {
    const id = chunk.toolCallId;
    if (typeof id !== "string") return false;
    if (chunk.type === "tool-input-available") this.start(id);
    const call = this.#calls.get(id);
    const part = builder.call(id);
    if (call?.since === undefined || call.ms !== undefined || !part || !isSettled(part)) return false;
    this.end(id);
    return true;
  }
}

/** The tools of the page: `{description, parameters, run(input)}`, by name. */
export class PageTools {
  #tools;
  #ran = new Set(); // calls that ran here

  constructor(tools) {
    this.#tools = tools;
  }

  /** The tool schemas for the server. */
  get offered() {
    const all = Object.entries(this.#tools);
    return all.map(([name, { description, parameters }]) => ({ name, description, parameters }));
  }

  /** Returns the calls of a message that the page has to run. Each call is returned once. */
  take(message) {
    const open = message.parts.filter((part) => part.state === "input-available" && toolName(part) in this.#tools);
    const news = open.filter((part) => !this.#ran.has(part.toolCallId));
    for (const { toolCallId } of news) this.#ran.add(toolCallId);
    return news;
  }

  /** Runs a call, and returns the frame with its result. */
  async run(part) {
    const { toolCallId, input } = part;
    const name = toolName(part);
    const frame = { type: "cf_agent_tool_result", toolCallId, toolName: name, autoContinue: true };
    try {
      return { ...frame, state: "output-available", output: await this.#tools[name].run(input) };
    } catch (error) {
      return { ...frame, state: "output-error", errorText: String(error) };
    }
  }
}
