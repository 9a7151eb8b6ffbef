// A conversation as the server tells it: the transcript, what is being answered, and what this page has asked for.
//
// The server's transcript is the truth (`#stored`). On top of it come messages that the server has not accepted yet
// (`#outbox`), and the answers that are being streamed (`#streams`). What was not accepted is sent again after a lost
// connection; what was accepted and not answered is asked for (`#asked`).

import { Agent } from "./agent.js";
import { Durations, PageTools } from "./calls.js";
import { newId } from "./dom.js";
import { MessageBuilder } from "./messages.js";
import { Outbox, pendingOf } from "./outbox.js";
import { Socket } from "./socket.js";
import { composed, Stored, trailing } from "./stored.js";

const REQUEST = "cf_agent_use_chat_request";
const RESPONSE = "cf_agent_use_chat_response";
const CANCEL = "cf_agent_chat_request_cancel";
const ACK = "cf_agent_stream_resume_ack";
const PROBE = "cf_agent_stream_resume_request";

const OPEN = ["input-streaming", "input-available", "approval-requested"]; // calls that wait for an answer
const SKIPPED = "The server was busy with another message and did not take this one.";

const answerId = (callId) => `call ${callId}`;

export class Chat extends EventTarget {
  #agent;
  #socket;
  #tools;
  #stored = new Stored();
  #outbox;
  #asked = new Map(); // requests that were sent and have no answer yet: the message of each
  #streams = new Map(); // by request
  #stops = new Map(); // frames that stop a request, which may have been lost
  #ended = new Set(); // requests that are over
  #told = 0; // how often the server has told the transcript
  #greeting = null; // of this connection, once the server has said hello: {probe, told, sent, taken, isOver}
  #adopting = Promise.resolve();
  #quiet = null; // the last message when nothing was being answered, as the server says
  #shown = null;
  #expectsClear = false;

  /** `tools`: what this page can run itself, by name: `{description, parameters, run(input)}`. */
  constructor({ root, prefix, agent, name, query, tools, limits }) {
    super();
    this.#agent = new Agent(new URL(`${prefix}/${agent}/${name}`, root), query);
    this.#tools = new PageTools(tools);
    this.name = name;
    this.conversation = `${root.pathname} ${agent}/${name}`;
    this.limits = limits;
    this.isLoaded = false;
    this.isRecovering = false;
    this.earlier = ""; // "loading" or "failed"
    this.error = null; // of the last turn: {request, text}
    this.branches = {}; // of a message: the ids of those in its place
    this.durations = new Durations();
    this.revision = 0; // goes up when anything but the messages has changed
    this.#outbox = new Outbox({ conversation: this.conversation, agent, name }, () => this.#outboxChanged());
    this.#socket = new Socket(this.#agent.socketUrl({ _pk: newId(), _delta: "1" })); // which asks for changes only
    this.#socket.addEventListener("state", () => this.#connected());
    this.#socket.addEventListener("frame", ({ detail }) => this.#hear(detail));
  }

  close() {
    this.#socket.close();
    this.#outbox.close();
  }

  // --- what there is to see ---

  get connection() {
    return this.#socket.state;
  }

  get refusal() {
    return this.#socket.reason;
  }

  get hasEarlier() {
    return this.#stored.hasEarlier;
  }

  /** The messages, oldest first. */
  get messages() {
    this.#shown ??= composed(this.#stored.messages, this.#outbox.entries, this.#streams.values());
    return this.#shown;
  }

  /** How a message stands that the server has not accepted: `{state, text, id}`; null: it has. */
  pending(message) {
    const entry = this.#outbox.entries.find((each) => each.message?.id === message.id);
    const connection = this.connection === "open" && !this.#isGreeted ? "connecting" : this.connection;
    return entry ? pendingOf(entry, connection) : null;
  }

  /** The request that is being answered, or waits for it; null: nothing is. */
  get busy() {
    const waiting = this.#outbox.waiting.find((entry) => entry.content);
    return this.#streams.keys().next().value ?? this.#asked.keys().next().value ?? waiting?.id ?? null;
  }

  /** Whether the server has something to stop. */
  get canStop() {
    return this.#streams.size + this.#asked.size > 0;
  }

  /** Whether the server has accepted what is not answered yet. */
  get isAccepted() {
    return this.#streams.size > 0 || [...this.#asked.keys()].some((id) => !this.#outbox.get(id));
  }

  /** Whether there is anything that the server has not accepted. */
  get isSending() {
    return this.#outbox.waiting.length > 0;
  }

  /** Whether the last message has no answer, and none is under way. */
  get isUnanswered() {
    const last = this.messages.at(-1);
    return last?.role === "user" && last.id === this.#quiet && this.busy === null && !this.pending(last);
  }

  /** The message that is being written, if it has begun. */
  get writing() {
    const stream = this.#streams.values().next().value;
    return stream && !stream.builder.isEmpty ? stream.builder.message : null;
  }

  /** Where a large output or file is; null: it is not one of this agent. */
  contentUrl(url) {
    return this.#agent.contentUrl(url);
  }

  // --- what a user does ---

  /** Why the server would not take a message with these parts; null: it would. */
  tooLarge(parts) {
    const size = JSON.stringify(parts).length + 200;
    if (size <= this.limits.message) return null;
    const count = (number) => number.toLocaleString("en");
    return `This message is too large: it has ${count(size)} characters, and the server takes ${count(this.limits.message)}.`;
  }

  send(parts) {
    const message = { id: newId(), role: "user", parts, metadata: { at: Date.now() } };
    this.#ask([message], "submit-message", { message });
    return message;
  }

  /** Another text in place of one that was sent: it is answered anew. */
  edit(id, parts) {
    const place = this.#stored.at(id);
    if (place < 0) return;
    const message = { ...this.#stored.messages[place], parts };
    this.#ask([message], "submit-message", { message, isEdit: true });
  }

  /** Another answer in place of this one; null: of the last one, or the first one if there is none. */
  regenerate(id) {
    const place = id === null ? -1 : this.#stored.at(id);
    const question = this.#stored.messages
      .slice(0, place < 0 ? undefined : place + 1)
      .findLastIndex((message) => message.role === "user");
    if (question < 0) return;
    this.#ask(trailing(this.#stored.messages.slice(0, question + 1)), "regenerate-message");
  }

  /** Sends a message again that the server has refused. */
  retry(entryId) {
    const entry = this.#outbox.remove(entryId);
    if (!entry) return;
    const { message, isEdit } = entry;
    if (isEdit) this.#ask([message], "submit-message", { message, isEdit });
    else this.#ask([...trailing(this.#stored.messages), message], "regenerate-message", { message });
  }

  /** Takes back a message that was never sent, or was refused; gives its parts. */
  takeBack(entryId) {
    const { wasSent, refusal } = this.#outbox.get(entryId) ?? {};
    if (wasSent && refusal === undefined) return []; // the server may have it by now
    const entry = this.#outbox.remove(entryId);
    this.#outboxChanged();
    return entry?.message?.parts ?? [];
  }

  stop() {
    for (const id of new Set([...this.#streams.keys(), ...this.#asked.keys()]))
      this.#stops.set(id, { type: CANCEL, id });
    this.#flush();
  }

  approve(callId, approved) {
    this.durations.start(callId);
    this.#answer(callId, { type: "cf_agent_tool_approval", toolCallId: callId, approved, autoContinue: true });
  }

  /** What this page has answered to a call, which the server has not accepted: `{isSending, approved}`, or null. */
  answered(callId) {
    const entry = this.#outbox.get(answerId(callId));
    return entry ? { isSending: this.#isGreeted, approved: entry.frame.approved } : null;
  }

  /** Deletes the conversation, and what waits for it. False: the server could not be asked. */
  async clear() {
    this.#outbox.clear();
    this.#outboxChanged();
    const before = this.#told;
    if (!(await this.#agent.clear())) return false;
    if (this.#told === before) {
      this.#expectsClear = this.#greeting !== null; // what is sent from now on is not meant
      this.#forget();
      this.#changed();
    }
    return true;
  }

  async select(messageId) {
    await this.#agent.select(messageId);
    await this.#loadBranches();
  }

  // --- asking ---

  #ask(messages, trigger, more = {}) {
    this.error = null;
    this.#post({ id: newId(), content: { messages, trigger }, answers: messages.at(-1).id, ...more });
  }

  #answer(callId, frame) {
    const isTooLarge = JSON.stringify(frame).length > (this.limits.body ?? Infinity);
    const error = { output: undefined, state: "output-error", errorText: "The result is too large." };
    this.#post({ id: answerId(callId), frame: isTooLarge ? { ...frame, ...error } : frame });
  }

  #post(entry) {
    this.#cutFor(entry);
    this.#outbox.add(entry);
    this.#flush();
    if (!this.#greeting) this.#outbox.announce();
    this.#outboxChanged();
  }

  /** What follows a message that is answered anew goes, and comes back if the server refuses. */
  #cutFor({ message, isEdit, content, answers }) {
    const place = this.#stored.at(answers);
    if (place < 0 || !content || (message && !isEdit)) return;
    this.#stored.cut(isEdit ? place : place + 1);
    if (isEdit) this.#stored.append(message);
  }

  /** Sends what was not sent on this connection, in order. */
  async #flush() {
    await this.#adopting;
    const { sent } = this.#greeting ?? {};
    if (!sent) return;
    for (const entry of this.#outbox.waiting) {
      if (sent.has(entry.id)) continue;
      if (!this.#socket.send(this.#frameOf(entry))) return;
      sent.add(entry.id);
      this.#outbox.sent(entry);
      this.#cutFor(entry); // the transcript has come meanwhile
      if (entry.content) this.#asked.set(entry.id, entry.answers);
    }
    for (const frame of this.#stops.values()) if (!sent.has(frame) && this.#socket.send(frame)) sent.add(frame);
    this.#forgetAnswers();
    this.#outboxChanged();
  }

  #frameOf({ id, frame, content }) {
    if (frame) return frame;
    const clientTools = this.#tools.offered;
    const body = JSON.stringify(clientTools.length ? { ...content, clientTools } : content);
    return { type: REQUEST, id, init: { method: "POST", body } };
  }

  /** Takes over what tabs have left that are gone, and sends it. */
  async adopt() {
    await this.#outbox.adopt();
    await this.#flush();
  }

  /** The server has it. */
  #accepted(id) {
    if (this.#outbox.remove(id)) this.revision += 1;
  }

  #outboxChanged() {
    this.revision += 1;
    this.#changed();
  }

  // --- the connection ---

  /** Whether the server has said hello on this connection. */
  get #isGreeted() {
    return this.connection === "open" && this.#greeting !== null;
  }

  #connected() {
    if (this.connection !== "open") {
      this.#greeting = null;
      this.#expectsClear = false;
      this.#outbox.announce();
    }
    this.#outboxChanged();
  }

  /** The server is there: take up whatever was under way. */
  #greet({ limits }) {
    this.limits = { ...this.limits, ...limits };
    this.isRecovering = false; // or it is told
    this.#greeting = { probe: newId(), told: this.#told, sent: new Set(), taken: new Set() };
    this.#socket.send({ type: PROBE, probeId: this.#greeting.probe });
    for (const id of new Set([...this.#streams.keys(), ...this.#asked.keys()]))
      if (!this.#outbox.get(id)) this.#take(id);
    this.#adopting = this.#outbox.adopt();
    this.#flush().then(() => this.#runTools());
  }

  /** From the first chunk on; what is live by then comes too early. */
  #take(id) {
    if (this.#greeting?.taken.has(id)) return;
    this.#greeting?.taken.add(id);
    const stream = this.#streams.get(id);
    if (stream) stream.awaitsReplay = true;
    this.#socket.send({ type: ACK, id });
  }

  /** The answer to a probe comes after everything that a new connection is told. */
  #probed(frame) {
    if (!this.#greeting || frame.probeId !== this.#greeting.probe) return;
    const isTold = this.#told !== this.#greeting.told;
    const isIdle = frame.type === "cf_agent_stream_resume_none" && frame.reason === "idle";
    if (isTold) this.#loadBranches();
    else if (isIdle) this.#settle([], false);
    else this.#load();
    if (isIdle) this.#quiet = this.#stored.messages.at(-1)?.id ?? null;
  }

  /** The newest messages, when no frame tells them; frames that come meanwhile know better. */
  async #load() {
    const before = this.#told;
    try {
      const { messages, hasEarlier } = await this.#agent.messages();
      if (this.#told === before) this.#settle(messages, hasEarlier);
    } catch {
      return; // the connection comes back, and so does this
    }
    await this.#loadBranches();
  }

  /** Fetches messages that are older than those which are known. Whether there are any. */
  async loadEarlier() {
    const first = this.#stored.messages[0];
    if (!this.hasEarlier || !first || this.earlier === "loading") return false;
    this.earlier = "loading";
    this.#changed();
    let isNews = false;
    try {
      const found = await this.#agent.messages(first.id);
      if (found) isNews = this.#stored.prepend(found.messages, first.id, found.hasEarlier);
      else await this.#load();
      this.earlier = "";
    } catch {
      this.earlier = "failed";
    }
    this.#changed();
    return isNews;
  }

  async #loadBranches() {
    this.branches = (await this.#agent.branches()) ?? this.branches;
    this.revision += 1;
    this.#changed();
  }

  // --- hearing ---

  #hear(frame) {
    switch (frame.type) {
      case "cf_agent_identity":
        this.#greet(frame);
        break;
      case RESPONSE:
        this.#response(frame);
        return; // it says itself what has changed
      case "cf_agent_chat_messages":
        this.#transcript(frame);
        break;
      case "cf_agent_message_updated":
        this.#stored.update(frame.message);
        this.#arrived([frame.message]);
        break;
      case "cf_agent_chat_clear":
        if (this.#expectsClear) this.#expectsClear = false;
        else {
          this.#told += 1;
          this.#outbox.clear();
          this.#forget();
        }
        break;
      case "cf_agent_chat_recovering":
        this.isRecovering = frame.recovering === true;
        break;
      case "cf_agent_stream_resuming":
        this.#accepted(frame.id);
        this.#take(frame.id);
        this.#probed(frame);
        break;
      case "cf_agent_stream_pending":
        this.#accepted(frame.id);
        if (!this.#asked.has(frame.id)) this.#asked.set(frame.id, null);
        if (this.#streams.has(frame.id)) this.#streams.get(frame.id).awaitsReplay = false; // what comes is all of it
        this.#greeting?.taken.delete(frame.id);
        this.#probed(frame);
        break;
      case "cf_agent_stream_resume_none":
        if (frame.reason === "idle") this.#forgetOthers();
        this.#probed(frame);
        break;
      default:
        return;
    }
    this.#changed();
  }

  /** Requests of others that the page waited for: nothing is under way. */
  #forgetOthers() {
    for (const [id, answers] of this.#asked) if (answers === null) this.#asked.delete(id);
  }

  /** The newest messages, or what has changed in them. */
  #transcript({ messages = [], earlier = false, after }) {
    if (after === undefined) this.#settle(messages, earlier);
    else if (this.#stored.showAfter(after, messages)) this.#settled(messages);
    else this.#load();
    this.#forgetAnswers();
  }

  #settle(messages, hasEarlier) {
    this.#stored.show(messages, hasEarlier);
    this.#settled(messages);
  }

  #settled(messages) {
    this.#told += 1;
    this.isLoaded = true;
    const known = new Set(messages.map((message) => message.id));
    for (const { id, message, isEdit } of this.#outbox.waiting)
      if (message && !isEdit && known.has(message.id)) this.#accepted(id);
    this.#arrived(messages);
    this.#runTools();
    this.#changed();
  }

  /** Calls that are answered here need no answer any more. */
  #arrived(messages) {
    for (const message of messages)
      for (const part of message?.parts ?? [])
        if (!OPEN.includes(part.state)) this.#accepted(answerId(part.toolCallId));
  }

  /** Answers to calls that are not there any more: they were sent once again, and that is all there is to do. */
  #forgetAnswers() {
    const { sent, told } = this.#greeting ?? {};
    if (!sent || told === this.#told || this.busy) return;
    const isThere = (callId) => this.#stored.messages.some((each) => each.parts.some((part) => part.toolCallId === callId));
    for (const { id, frame } of this.#outbox.waiting)
      if (frame && sent.has(id) && !isThere(frame.toolCallId)) this.#accepted(id);
  }

  #forget() {
    this.#stored.clear();
    this.#asked.clear();
    this.#streams.clear();
    this.#stops.clear();
    this.branches = {};
    this.error = null;
    this.isRecovering = false;
  }

  #response(frame) {
    const { id } = frame;
    const answers = this.#asked.get(id);
    if (frame.replay) this.#greeting?.taken.delete(id);
    let stream = this.#streams.get(id);
    if (frame.done || frame.error) return this.#end(frame);
    this.#accepted(id);
    this.#asked.delete(id);
    if (stream?.awaitsReplay && !frame.replay) return undefined; // all of it is about to come
    if (!stream) {
      if (this.#ended.has(id)) return undefined;
      const last = this.#stored.messages.findLast((message) => message.role === "assistant");
      const builder = new MessageBuilder(frame.continuation && last ? last : null);
      stream = { builder, next: 0, awaitsReplay: false, answers };
      this.#streams.set(id, stream);
    }
    stream.awaitsReplay = false;
    if (typeof frame.seq !== "number" || frame.seq < stream.next || !frame.body) return this.#changed();
    stream.next = frame.seq + 1;
    const chunk = JSON.parse(frame.body);
    stream.builder.apply(chunk);
    if (!frame.replay && this.durations.hear(chunk, stream.builder)) this.revision += 1;
    if (!frame.replay && chunk.type?.endsWith("-delta")) this.isRecovering = false; // it is said until the end; this is more
    this.dispatchEvent(new CustomEvent("chunk", { detail: chunk }));
    return this.#changed();
  }

  #end(frame) {
    const { id } = frame;
    const stream = this.#streams.get(id);
    this.#streams.delete(id);
    this.#asked.delete(id);
    this.#stops.delete(id);
    this.#ended.add(id);
    this.isRecovering = false;
    const isRefused = this.#refused(frame, stream);
    if (!isRefused) this.#accepted(id);
    if (frame.error && !isRefused && this.busy === null)
      this.error = { request: id, text: frame.body || "Something went wrong." };
    if (stream && !stream.builder.isEmpty && !this.#stored.has(stream.builder.message.id)) {
      this.#stored.append(stream.builder.message); // until the transcript comes
    }
    if (isRefused || frame.outcome === "skipped") this.#load();
    else this.#loadBranches();
    if (this.busy === null) this.#quiet = this.#stored.messages.at(-1)?.id ?? null;
    this.#runTools();
    this.dispatchEvent(
      new CustomEvent("ended", {
        detail: { outcome: isRefused ? "refused" : frame.error ? "error" : (frame.outcome ?? "completed") }
      })
    );
    this.#changed();
  }

  /** Whether a terminal frame says that a message was not accepted. Then it stays, with the reason. */
  #refused({ id, error, outcome, body, messageIds }, stream) {
    const entry = this.#outbox.get(id);
    if (!entry?.message || stream || messageIds?.some((each) => this.#stored.has(each))) return false;
    if (!error && outcome !== "skipped") return false;
    if (!entry.isEdit && this.#stored.has(entry.message.id)) return false;
    this.#outbox.refuse(id, error ? body || "Something went wrong." : SKIPPED);
    return true;
  }

  // --- tools ---

  /** How long a call has taken, from whoever knows better. */
  took(callId, ms) {
    this.durations.end(callId, ms);
    this.revision += 1;
    this.#changed();
  }

  /** Runs the calls that are for this page. The first answer counts, should other tabs run them as well. */
  #runTools() {
    const last = this.#stored.messages.at(-1);
    if (this.busy || this.isRecovering || !this.#isGreeted || last?.role !== "assistant") return;
    for (const part of this.#tools.take(last)) this.#run(part);
  }

  async #run(part) {
    await this.#adopting; // it may have been run in a tab that is gone
    if (this.#outbox.get(answerId(part.toolCallId))) return;
    this.durations.start(part.toolCallId);
    const frame = await this.#tools.run(part);
    this.durations.end(part.toolCallId);
    this.#answer(part.toolCallId, frame);
  }

  #changed() {
    this.#shown = null;
    this.dispatchEvent(new Event("change"));
  }
}
