// Builds messages from chunks, with the rules of the server's reducer (outlast/chat/message/reducer.py). Pure.

const SETTLED = ["output-available", "output-error", "output-denied"];
const AS_THEY_ARE = ["file", "reasoning-file", "source-url", "source-document", "custom"];

/** Returns the name of the tool that a part calls; null if it is not a call. */
export function toolName(part) {
  if (part?.type === "dynamic-tool") return typeof part.toolName === "string" ? part.toolName : null;
  return typeof part?.type === "string" && part.type.startsWith("tool-") ? part.type.slice(5) : null;
}

/** Returns whether a call has its final outcome. */
export const isSettled = (part) => SETTLED.includes(part.state) && part.preliminary !== true;

/** Returns whether the outcome of a call is unknown. Older messages are recognised by their error text. */
export function isUnknown(part) {
  return (
    part.state === "output-error" &&
    (part.resultProviderMetadata?.outlast?.outcome === "unknown" ||
      /^(The outcome of this call is unknown|It is not known whether)/.test(part.errorText ?? ""))
  );
}

/** Returns the text parts of a message as one text. */
export function textOf(message) {
  return message.parts
    .filter((part) => part.type === "text" && part.text)
    .map((part) => part.text)
    .join("\n\n");
}

/** Parses incomplete JSON, as far as possible; undefined if that is not possible. */
export function partialJson(text) {
  try {
    return JSON.parse(text);
  } catch {
    // below
  }
  const closers = [];
  let isString = false;
  for (let at = 0; at < text.length; at += 1) {
    const mark = text[at];
    if (isString) {
      if (mark === "\\") at += 1;
      else if (mark === '"') isString = false;
    } else if (mark === '"') isString = true;
    else if (mark === "{" || mark === "[") closers.unshift(mark === "{" ? "}" : "]");
    else if (mark === "}" || mark === "]") closers.shift();
  }
  const ends = [(isString ? '"' : "") + closers.join("")];
  if (isString) ends.push(`":null${closers.join("")}`);
  for (const end of ends) {
    try {
      return JSON.parse(text.replace(/[,:\s]+$/, "") + end);
    } catch {
      // try the next ending
    }
  }
  return undefined;
}

/** Returns an input as an object; empty if it is not one. */
function asObject(given) {
  if (typeof given === "string") {
    try {
      given = JSON.parse(given);
    } catch {
      return {};
    }
  }
  return given && typeof given === "object" && !Array.isArray(given) ? given : {};
}

const merged = (old, more) =>
  old && more && typeof old === "object" && typeof more === "object" && !Array.isArray(more)
    ? { ...old, ...Object.fromEntries(Object.entries(more).map(([name, value]) => [name, merged(old[name], value)])) }
    : more;

/** Builds one assistant message from its chunks, or continues an existing one, which is never modified. */
export class MessageBuilder {
  #base;

  constructor(message = null) {
    this.#base = message;
    this.#begin(message ?? {});
  }

  #begin({ id = "", parts = [], metadata }) {
    this.message = { id, role: "assistant", parts: parts.map((part) => ({ ...part })) };
    if (metadata !== undefined) this.message.metadata = metadata;
    this.first = this.message.parts.length;
    this.open = new Map(); // streaming texts, by kind and id
    this.inputs = new Map(); // the JSON of streaming inputs, by call
  }

  get isEmpty() {
    return this.message.id === "" || !this.message.parts.some((part) => part.type !== "step-start");
  }

  call(id) {
    return this.message.parts.find((part) => part.toolCallId === id && toolName(part) !== null);
  }

  /** Applies one chunk; an invalid one is skipped. */
  apply(chunk) {
    const { parts } = this.message;
    const type = chunk?.type;
    if (typeof type !== "string") return;
    const [, kind, event] = /^(text|reasoning)-(start|delta|end)$/.exec(type) ?? [];
    if (kind) this.#text(kind, event, chunk);
    else if (type === "start") this.#start(chunk);
    else if (type === "start-step") parts.push({ type: "step-start" });
    else if (type === "reset-step") this.#reset();
    else if (type === "finish" || type === "message-metadata") this.#metadata(chunk);
    else if (type.startsWith("tool-")) this.#tool(type, chunk);
    else if (type.startsWith("data-")) this.#data(type, chunk);
    else if (AS_THEY_ARE.includes(type)) parts.push({ ...chunk });
  }

  #start(chunk) {
    if (typeof chunk.messageId !== "string") this.#begin(this.#base ?? {});
    else
      this.#begin({
        id: chunk.messageId,
        metadata: chunk.messageId === this.#base?.id ? this.#base.metadata : undefined
      });
    this.#metadata(chunk);
  }

  #metadata({ messageMetadata }) {
    if (messageMetadata !== undefined) this.message.metadata = merged(this.message.metadata, messageMetadata);
  }

  #reset() {
    const { parts } = this.message;
    const step = parts.findLastIndex((part) => part.type === "step-start");
    parts.length = Math.min(parts.length, Math.max(step + 1, this.first));
    this.open.clear();
  }

  #text(kind, event, chunk) {
    const key = `${kind} ${chunk.id}`;
    const growing = this.open.get(key);
    if (event === "start") {
      if (growing) growing.state = "done";
      const part = { type: kind, text: "", state: "streaming" };
      if (kind === "reasoning") part.id = chunk.id;
      this.message.parts.push(part);
      this.open.set(key, part);
    } else if (growing && event === "delta") growing.text += chunk.delta ?? "";
    else if (growing) {
      growing.state = "done";
      this.open.delete(key);
    }
  }

  #data(type, chunk) {
    if (chunk.transient === true) return;
    const { parts } = this.message;
    const known = chunk.id === undefined ? null : parts.find((part) => part.type === type && part.id === chunk.id);
    if (known) known.data = chunk.data;
    else parts.push({ ...chunk });
  }

  #tool(type, chunk) {
    if (type === "tool-approval-response") {
      const asked = this.message.parts.find((part) => part.approval?.id === chunk.approvalId);
      if (asked?.state === "approval-requested") {
        Object.assign(asked, {
          state: "approval-responded",
          approval: { ...asked.approval, approved: chunk.approved }
        });
      }
      return;
    }
    let part = this.call(chunk.toolCallId);
    if (!part) {
      if (!["tool-input-start", "tool-input-available", "tool-input-error"].includes(type)) return;
      part = chunk.dynamic
        ? { type: "dynamic-tool", toolName: chunk.toolName, toolCallId: chunk.toolCallId }
        : { type: `tool-${chunk.toolName}`, toolCallId: chunk.toolCallId };
      this.message.parts.push(part);
    }
    this.#advance(part, type, chunk);
  }

  /** Advances a call. It never moves back: a repeated chunk must not undo an approval or a result. */
  #advance(part, type, chunk) {
    const id = part.toolCallId;
    if (type !== "tool-input-delta" && type !== "tool-input-start") this.inputs.delete(id);
    if (type === "tool-input-start") {
      if (part.state !== undefined) return;
      part.state = "input-streaming";
      this.inputs.set(id, "");
    } else if (type === "tool-input-delta") {
      if (part.state !== "input-streaming") return;
      const text = (this.inputs.get(id) ?? "") + (chunk.inputTextDelta ?? "");
      this.inputs.set(id, text);
      const input = partialJson(text);
      if (input !== undefined) part.input = input;
    } else if (type === "tool-input-available") {
      if ((part.state ?? "input-streaming") !== "input-streaming") return;
      Object.assign(part, { state: "input-available", input: asObject(chunk.input) });
      if (chunk.providerExecuted) part.providerExecuted = true;
    } else if (type === "tool-input-error") {
      if (!isSettled(part))
        Object.assign(part, { state: "output-error", input: asObject(chunk.input), errorText: chunk.errorText ?? "" });
    } else if (type === "tool-approval-request") {
      if (!["input-streaming", "input-available"].includes(part.state)) return;
      Object.assign(part, {
        state: "approval-requested",
        approval: { id: chunk.approvalId, requestReason: chunk.reason }
      });
    } else if (type === "tool-output-available") {
      if (chunk.preliminary === true && isSettled(part)) return;
      delete part.errorText;
      Object.assign(part, { state: "output-available", output: chunk.output, preliminary: chunk.preliminary === true });
    } else if (type === "tool-output-error") {
      if (isSettled(part) && part.state !== "output-error") return;
      Object.assign(part, { state: "output-error", errorText: chunk.errorText ?? "" });
    } else if (type === "tool-output-denied") {
      if (!isSettled(part) && part.approval?.approved !== true) part.state = "output-denied";
    }
    if (chunk.providerMetadata && type.startsWith("tool-output")) {
      part.resultProviderMetadata = merged(part.resultProviderMetadata, chunk.providerMetadata);
    }
  }
}
