// Calls of tools: those that the page runs itself, and how long each took as far as this tab has seen.

import { isSettled, toolName } from "./messages.js";

const KEPT = "outlast.durations";
const MOST = 200; // calls whose durations are remembered

function kept() {
  try {
    const found = JSON.parse(sessionStorage.getItem(KEPT));
    return Array.isArray(found) ? found : [];
  } catch {
    return [];
  }
}

/** How long calls took, also before this tab was reloaded. */
export class Durations {
  #calls = new Map(kept()); // {since, ms}

  /** Milliseconds; undefined: it is not known, or not over. */
  of(callId) {
    return this.#calls.get(callId)?.ms;
  }

  start(callId) {
    this.#calls.set(callId, { since: performance.now() });
  }

  /** It is over, after as long as somebody says who knows better. */
  end(callId, ms = performance.now() - this.#calls.get(callId).since) {
    this.#calls.set(callId, { ms });
    try {
      const others = kept().filter(([id]) => id !== callId);
      sessionStorage.setItem(KEPT, JSON.stringify([...others, [callId, { ms }]].slice(-MOST)));
    } catch {
      // then it is gone with the next reload
    }
  }

  /** What a chunk says about a call. Whether it is over. */
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
  #ran = new Set(); // calls that were run here

  constructor(tools) {
    this.#tools = tools;
  }

  /** What a request tells the server of them. */
  get offered() {
    const all = Object.entries(this.#tools);
    return all.map(([name, { description, parameters }]) => ({ name, description, parameters }));
  }

  /** The calls of a message that are for the page and were not run here. Each is given once. */
  take(message) {
    const open = message.parts.filter((part) => part.state === "input-available" && toolName(part) in this.#tools);
    const news = open.filter((part) => !this.#ran.has(part.toolCallId));
    for (const { toolCallId } of news) this.#ran.add(toolCallId);
    return news;
  }

  /** The frame that answers a call. */
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
