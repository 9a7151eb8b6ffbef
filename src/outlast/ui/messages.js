// Chunks become a message: the rules of the server's own reducer (outlast/chat/reducer.py), without I/O and without a page.

const SETTLED = ["output-available", "output-error", "output-denied"];
const AS_THEY_ARE = ["file", "reasoning-file", "source-url", "source-document", "custom"];

/** The name of the tool that a part calls; null when it is no call. */
export function toolName(part) {
  if (part?.type === "dynamic-tool") return typeof part.toolName === "string" ? part.toolName : null;
  return typeof part?.type === "string" && part.type.startsWith("tool-") ? part.type.slice(5) : null;
}

/** Whether a call has its final outcome. */
export const isSettled = (part) => SETTLED.includes(part.state) && part.preliminary !== true;

/** Whether nobody knows if a call has happened. */
export function isUnknown(part) {
  return (
    part.state === "output-error" &&
    (part.resultProviderMetadata?.outlast?.outcome === "unknown" ||
      /^It is not known whether/.test(part.errorText ?? ""))
  );
}

/** All that a message says, as one text. */
export function textOf(message) {
  return message.parts
    .filter((part) => part.type === "text" && part.text)
    .map((part) => part.text)
    .join("\n\n");
}

/** An object out of half a JSON text: what can be read of it so far. */
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
      // the next one
    }
  }
  return undefined;
}

/** An input as an object, which it should be. */
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

/** Builds one assistant message from its chunks, or goes on with one that exists, which is never changed. */
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
    this.open = new Map(); // texts that grow, by kind and id
    this.inputs = new Map(); // the JSON text of inputs that are coming, by call
  }

  get isEmpty() {
    return this.message.id === "" || !this.message.parts.some((part) => part.type !== "step-start");
  }

  call(id) {
    return this.message.parts.find((part) => part.toolCallId === id && toolName(part) !== null);
  }

  /** Applies one chunk; one that makes no sense here is skipped. */
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

  /** A call goes forwards only: what is repeated must not undo an approval or a result. */
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
