// A conversation as the server tells it: the transcript, what is being answered, and what this page has asked for.
//
// The server's transcript is the truth (`#settled`). On top of it come messages that were sent and are not in it yet
// (`#sent`), and the answers that are being streamed (`#streams`). What was asked and not answered is sent again after a
// lost connection: requests have ids, and count once.

import { newId } from "./dom.js";
import { isSettled, MessageBuilder, toolName } from "./messages.js";
import { Socket } from "./socket.js";

const REQUEST = "cf_agent_use_chat_request";
const RESPONSE = "cf_agent_use_chat_response";
const CANCEL = "cf_agent_chat_request_cancel";
const ACK = "cf_agent_stream_resume_ack";
const PROBE = "cf_agent_stream_resume_request";

const KEPT = "outlast.durations";

/** How long calls took, as this tab has seen it before it was reloaded. */
function kept() {
  try {
    const found = JSON.parse(sessionStorage.getItem(KEPT));
    return Array.isArray(found) ? found : [];
  } catch {
    return [];
  }
}

export class Chat extends EventTarget {
  #address;
  #query;
  #socket;
  #tools;
  #settled = [];
  #sent = []; // {request, message}
  #streams = new Map(); // by request
  #requests = new Map(); // frames that may have been lost, by request
  #answers = new Map(); // the same, of stops and of answers to calls, by what they are about
  #ended = new Set(); // requests that are over
  #told = 0; // how often the server has told the transcript
  #ran = new Set(); // calls that this page has run

  /** `tools`: what this page can run itself, by name: `{description, parameters, run(input)}`. */
  constructor({ root, prefix, agent, name, query, tools }) {
    super();
    this.#address = new URL(`${prefix}/${agent}/${name}`, root);
    this.#query = query;
    this.#tools = tools;
    this.name = name;
    this.isLoaded = false;
    this.isRecovering = false;
    this.error = null; // of the last turn: {request, text}
    this.branches = {}; // of a message: the ids of those in its place
    this.durations = new Map(kept()); // {since, ms}, by call
    this.revision = 0; // goes up when anything but the messages has changed
    this.#socket = new Socket(this.#url());
    this.#socket.addEventListener("state", () => this.#changed());
    this.#socket.addEventListener("frame", ({ detail }) => this.#hear(detail));
    this.#load();
  }

  close() {
    this.#socket.close();
  }

  // --- what there is to see ---

  get connection() {
    return this.#socket.state;
  }

  get refusal() {
    return this.#socket.reason;
  }

  /** The messages, oldest first. */
  get messages() {
    let shown = [...this.#settled];
    const known = new Set(shown.map((message) => message.id));
    for (const { message } of this.#sent) if (!known.has(message.id)) shown.push(message);
    for (const stream of this.#streams.values()) {
      if (stream.builder.isEmpty) continue;
      const { message } = stream.builder;
      const place = shown.findIndex((each) => each.id === message.id);
      if (place >= 0) shown[place] = message;
      else {
        const question = shown.findIndex((each) => each.id === stream.answers);
        if (question >= 0) shown.splice(question + 1, 0, message);
        else shown = [...shown, message];
      }
    }
    return shown;
  }

  /** The request that is being answered, or waits for it; null: nothing is. */
  get busy() {
    return this.#streams.keys().next().value ?? this.#requests.keys().next().value ?? null;
  }

  /** The message that is being written, if it has begun. */
  get writing() {
    const stream = this.#streams.values().next().value;
    return stream && !stream.builder.isEmpty ? stream.builder.message : null;
  }

  // --- what a user does ---

  send(parts) {
    const message = { id: newId(), role: "user", parts, metadata: { at: Date.now() } };
    this.#ask([message], "submit-message", message);
    return message;
  }

  /** Another text in place of one that was sent: it is answered anew. */
  edit(id, parts) {
    const place = this.#settled.findIndex((message) => message.id === id);
    if (place < 0) return;
    const message = { ...this.#settled[place], parts };
    this.#settled = [...this.#settled.slice(0, place), message];
    this.#ask(this.#settled, "submit-message", message);
  }

  /** Another answer in place of this one. */
  regenerate(id) {
    const place = this.#settled.findIndex((message) => message.id === id);
    const question = this.#settled
      .slice(0, place < 0 ? undefined : place + 1)
      .findLastIndex((message) => message.role === "user");
    if (question < 0) return;
    this.#settled = this.#settled.slice(0, question + 1);
    this.#ask(this.#settled, "regenerate-message", this.#settled[question]);
  }

  stop() {
    for (const id of new Set([...this.#streams.keys(), ...this.#requests.keys()]))
      this.#answer(id, { type: CANCEL, id });
    this.#changed();
  }

  approve(callId, approved) {
    this.#started(callId);
    this.#answer(callId, { type: "cf_agent_tool_approval", toolCallId: callId, approved, autoContinue: true });
    this.#changed();
  }

  isAnswered(callId) {
    return this.#answers.has(callId);
  }

  clear() {
    this.#socket.send({ type: "cf_agent_chat_clear" });
    this.#forget();
    this.#changed();
  }

  async select(messageId) {
    await fetch(this.#http("/chat/branch"), { method: "POST", body: JSON.stringify({ messageId }) });
    await this.#loadBranches();
  }

  // --- asking ---

  #ask(shown, trigger, message) {
    const id = newId();
    this.error = null;
    const content = { messages: shown.slice(-1), trigger };
    const tools = Object.entries(this.#tools);
    if (tools.length)
      content.clientTools = tools.map(([name, { description, parameters }]) => ({ name, description, parameters }));
    const frame = { type: REQUEST, id, init: { method: "POST", body: JSON.stringify(content) } };
    if (!this.#settled.some((each) => each.id === message.id)) this.#sent.push({ request: id, message });
    this.#requests.set(id, { frame, answers: message.id, at: performance.now() });
    this.#socket.send(frame);
    this.#changed();
  }

  /** Sends what counts once, and again after a lost connection until it is seen to have arrived. */
  #answer(about, frame) {
    this.#answers.set(about, frame);
    this.revision += 1;
    this.#socket.send(frame);
  }

  // --- the connection ---

  #url() {
    const url = new URL(this.#address);
    url.protocol = url.protocol.replace("http", "ws");
    url.search = this.#query;
    url.searchParams.set("_pk", newId());
    return url;
  }

  #http(rest) {
    return `${this.#address.href}${rest}${this.#query}`;
  }

  /** The server is there: take up whatever was under way. */
  #greet() {
    this.isRecovering = false; // or it is told
    for (const [id, stream] of this.#streams) this.#take(id, stream);
    for (const { frame } of this.#requests.values()) this.#socket.send(frame);
    for (const frame of this.#answers.values()) this.#socket.send(frame);
    this.#load();
  }

  /** From the first chunk on; what is live by then comes too early. */
  #take(id, stream) {
    if (stream) stream.awaitsReplay = true;
    this.#socket.send({ type: ACK, id });
  }

  /** The transcript as a page that loads is told it; frames that come meanwhile know better. */
  async #load() {
    const before = this.#told;
    try {
      const response = await fetch(this.#http("/get-messages"));
      if (!response.ok) return;
      const messages = await response.json();
      if (this.#told === before) this.#settle(messages);
    } catch {
      return; // the connection comes back, and so does this
    }
    await this.#loadBranches();
  }

  async #loadBranches() {
    try {
      const response = await fetch(this.#http("/chat/branches"));
      if (response.ok) this.branches = (await response.json()).branches;
      this.revision += 1;
    } catch {
      return;
    }
    this.#changed();
  }

  // --- hearing ---

  #hear(frame) {
    switch (frame.type) {
      case "cf_agent_identity":
        this.#greet();
        break;
      case RESPONSE:
        this.#response(frame);
        return; // it says itself what has changed
      case "cf_agent_chat_messages":
        this.#settle(frame.messages ?? []);
        // Nothing runs, or it would have been offered. Did the last turn fail?
        if (frame.connect && !this.busy) this.#socket.send({ type: PROBE, probeId: newId() });
        break;
      case "cf_agent_message_updated":
        this.#settled = this.#settled.map((each) => (each.id === frame.message?.id ? frame.message : each));
        this.#arrived([frame.message]);
        break;
      case "cf_agent_chat_clear":
        this.#forget();
        break;
      case "cf_agent_chat_recovering":
        this.isRecovering = frame.recovering === true;
        break;
      case "cf_agent_stream_resuming":
        this.#take(frame.id, this.#streams.get(frame.id));
        break;
      case "cf_agent_stream_pending":
        if (this.#streams.has(frame.id)) this.#streams.get(frame.id).awaitsReplay = false; // what comes is all of it
        break;
      default:
        return;
    }
    this.#changed();
  }

  #settle(messages) {
    this.#told += 1;
    this.isLoaded = true;
    this.#settled = messages;
    const known = new Set(messages.map((message) => message.id));
    this.#sent = this.#sent.filter(({ message }) => !known.has(message.id));
    this.#arrived(messages);
    this.#runTools();
    this.#changed();
  }

  /** Calls that are answered here need no answer any more. */
  #arrived(messages) {
    for (const message of messages) {
      for (const part of message?.parts ?? []) {
        if (!["input-streaming", "input-available", "approval-requested"].includes(part.state))
          this.#answers.delete(part.toolCallId);
      }
    }
  }

  #forget() {
    this.#settled = [];
    this.#sent = [];
    this.#streams.clear();
    this.#requests.clear();
    this.#answers.clear();
    this.branches = {};
    this.error = null;
    this.isRecovering = false;
  }

  #response(frame) {
    const { id } = frame;
    const asked = this.#requests.get(id);
    this.#requests.delete(id); // it was accepted
    let stream = this.#streams.get(id);
    if (stream?.awaitsReplay && !frame.replay && !frame.done) return; // all of it is about to come
    if (frame.done || frame.error) return this.#end(frame);
    if (!stream) {
      if (this.#ended.has(id)) return;
      const last = this.#settled.findLast((message) => message.role === "assistant");
      const builder = new MessageBuilder(frame.continuation && last ? last : null);
      stream = { builder, next: 0, awaitsReplay: false, answers: asked?.answers };
      this.#streams.set(id, stream);
    }
    stream.awaitsReplay = false;
    if (typeof frame.seq !== "number" || frame.seq < stream.next || !frame.body) return this.#changed();
    stream.next = frame.seq + 1;
    const chunk = JSON.parse(frame.body);
    stream.builder.apply(chunk);
    this.#clock(chunk, stream.builder, frame.replay === true);
    if (!frame.replay && chunk.type?.endsWith("-delta")) this.isRecovering = false; // it is said until the end; this is more
    if (!frame.replay) this.dispatchEvent(new CustomEvent("chunk", { detail: chunk }));
    this.#changed();
  }

  #end(frame) {
    const { id } = frame;
    const stream = this.#streams.get(id);
    this.#streams.delete(id);
    this.#answers.delete(id);
    this.#ended.add(id);
    this.#sent = this.#sent.filter((each) => each.request !== id || !frame.error);
    this.isRecovering = false;
    if (frame.error) this.error = { request: id, text: frame.body || "Something went wrong." };
    if (stream && !stream.builder.isEmpty && !this.#settled.some((each) => each.id === stream.builder.message.id)) {
      this.#settled = [...this.#settled, stream.builder.message]; // until the transcript comes
    }
    if (frame.outcome === "skipped") this.#load();
    else this.#loadBranches();
    this.#runTools();
    this.dispatchEvent(
      new CustomEvent("ended", { detail: { outcome: frame.error ? "error" : (frame.outcome ?? "completed") } })
    );
    this.#changed();
  }

  // --- tools ---

  #started(callId) {
    this.durations.set(callId, { since: performance.now() });
  }

  /** How long a call has taken, from whoever knows better. */
  took(callId, ms) {
    this.#timed(callId, ms);
    this.#changed();
  }

  /** How long calls take, as far as this page has seen. */
  #clock(chunk, builder, isReplay) {
    const id = chunk.toolCallId;
    if (isReplay || typeof id !== "string") return;
    if (chunk.type === "tool-input-available") this.#started(id);
    const timed = this.durations.get(id);
    const part = builder.call(id);
    if (timed?.since !== undefined && timed.ms === undefined && part && isSettled(part))
      this.#timed(id, performance.now() - timed.since);
  }

  #timed(callId, ms) {
    this.durations.set(callId, { ms });
    this.revision += 1;
    try {
      sessionStorage.setItem(
        KEPT,
        JSON.stringify([...kept().filter(([id]) => id !== callId), [callId, { ms }]].slice(-200))
      );
    } catch {
      // then it is gone with the next reload
    }
  }

  /** Runs the calls that are for this page. The first answer counts, should other tabs run them as well. */
  #runTools() {
    if (this.busy || this.isRecovering) return;
    const last = this.#settled.at(-1);
    if (last?.role !== "assistant") return;
    for (const part of last.parts) {
      const tool = this.#tools[toolName(part)];
      if (tool && part.state === "input-available" && !this.#ran.has(part.toolCallId)) {
        this.#ran.add(part.toolCallId);
        this.#run(tool, part);
      }
    }
  }

  async #run(tool, { toolCallId, input, ...part }) {
    const frame = { type: "cf_agent_tool_result", toolCallId, toolName: toolName(part), autoContinue: true };
    this.#started(toolCallId);
    try {
      Object.assign(frame, { state: "output-available", output: await tool.run(input) });
    } catch (error) {
      Object.assign(frame, { state: "output-error", errorText: String(error) });
    }
    this.#timed(toolCallId, performance.now() - this.durations.get(toolCallId).since);
    this.#answer(toolCallId, frame);
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }
}
