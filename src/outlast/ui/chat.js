// A conversation: the server's transcript, the streaming answers, and the requests of this page.
//
// The server's transcript is authoritative (`#stored`). The page adds messages that the server has not accepted yet
// (`#outbox`) and streaming answers (`#streams`). After a lost connection, requests that were not accepted are sent
// again, and the answers to accepted ones (`#asked`) are requested.

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
const SKIPPED = "The server was busy with another message and did not accept this one.";

const answerId = (callId) => `call ${callId}`;

export class Chat extends EventTarget {
  #agent;
  #socket;
  #tools;
  #stored = new Stored();
  #outbox;
  #asked = new Map(); // sent requests without an answer, with the message of each
  #streams = new Map(); // by request
  #stops = new Map(); // frames that stop a request, kept because they may be lost
  #ended = new Set(); // requests that have ended
  #received = 0; // how often the server has sent the transcript
  #greeting = null; // of this connection, after the server's identity frame: {probe, received, sent, taken}
  #adopting = Promise.resolve();
  #quiet = null; // the last message when the server last reported that it was idle
  #shown = null;
  #expectsClear = false;
  #hasSession;

  /** `tools` are those that this page can run, by name: `{description, parameters, run(input)}`. */
  constructor({ root, prefix, agent, name, query, tools, limits, hasSession = false }) {
    super();
    this.#hasSession = hasSession;
    this.#agent = new Agent(new URL(`${prefix}/${agent}/${name}`, root), query);
    this.#tools = new PageTools(tools);
    this.name = name;
    this.conversation = `${root.pathname} ${agent}/${name}`;
    this.limits = limits;
    this.isLoaded = false;
    this.isRecovering = false;
    this.earlier = ""; // "loading" or "failed"
    this.error = null; // of the last turn: {request, text}
    this.branches = {}; // by message: the ids of its alternatives
    this.summary = null; // what the model sees instead of the messages up to one: {last, text}
    this.isCompacting = false; // whether the server is writing a summary
    this.durations = new Durations();
    this.revision = 0; // increases when anything but the messages changes
    this.#outbox = new Outbox({ conversation: this.conversation, agent, name }, () => this.#outboxChanged());
    this.#socket = new Socket(this.#agent.socketUrl({ _pk: newId(), _delta: "1" })); // requests changes only
    this.#socket.addEventListener("state", () => this.#connected());
    this.#socket.addEventListener("frame", ({ detail }) => this.#hear(detail));
  }

  close() {
    this.#socket.close();
    this.#outbox.close();
  }

  // --- the state ---

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

  /** The state of a message that the server has not accepted, `{state, text, id}`; null if it has. */
  pending(message) {
    const entry = this.#outbox.entries.find((each) => each.message?.id === message.id);
    const connection = this.connection === "open" && !this.#isGreeted ? "connecting" : this.connection;
    return entry ? pendingOf(entry, connection) : null;
  }

  /** The request that is being answered, or waits for its answer; null if there is none. */
  get busy() {
    const waiting = this.#outbox.waiting.find((entry) => entry.content);
    return this.#streams.keys().next().value ?? this.#asked.keys().next().value ?? waiting?.id ?? null;
  }

  /** Whether there is a request that the server can stop. */
  get canStop() {
    return this.#streams.size + this.#asked.size > 0;
  }

  /** Whether the server has accepted a request that is not answered yet. */
  get isAccepted() {
    return this.#streams.size > 0 || [...this.#asked.keys()].some((id) => !this.#outbox.get(id));
  }

  /** Whether there are requests that the server has not accepted. */
  get isSending() {
    return this.#outbox.waiting.length > 0;
  }

  /** Whether the last message has no answer, and none is in progress. */
  get isUnanswered() {
    const last = this.messages.at(-1);
    return last?.role === "user" && last.id === this.#quiet && this.busy === null && !this.pending(last);
  }

  /** The message that is being streamed, once it has content. */
  get writing() {
    const stream = this.#streams.values().next().value;
    return stream && !stream.builder.isEmpty ? stream.builder.message : null;
  }

  /** The URL to fetch a large output or file from; null if it does not belong to this agent. */
  contentUrl(url) {
    return this.#agent.contentUrl(url);
  }

  // --- actions of the user ---

  /** Returns why the server would reject a message with these parts; null if it would not. */
  tooLarge(parts) {
    const size = JSON.stringify(parts).length + 200;
    if (size <= this.limits.message) return null;
    const count = (number) => number.toLocaleString("en");
    return `This message is too large: it has ${count(size)} characters, and the server allows ${count(this.limits.message)}.`;
  }

  send(parts) {
    const message = { id: newId(), role: "user", parts, metadata: { at: Date.now() } };
    this.#ask([message], "submit-message", { message });
    return message;
  }

  /** Replaces a sent message, which gets a new answer. */
  edit(id, parts) {
    const place = this.#stored.at(id);
    if (place < 0) return;
    const message = { ...this.#stored.messages[place], parts };
    this.#ask([message], "submit-message", { message, isEdit: true });
  }

  /** Requests another answer in place of this one; with null, an answer to the last message of the user. */
  regenerate(id) {
    const place = id === null ? -1 : this.#stored.at(id);
    const question = this.#stored.messages
      .slice(0, place < 0 ? undefined : place + 1)
      .findLastIndex((message) => message.role === "user");
    if (question < 0) return;
    this.#ask(trailing(this.#stored.messages.slice(0, question + 1)), "regenerate-message");
  }

  /** Sends a message again that the server refused. */
  retry(entryId) {
    const entry = this.#outbox.remove(entryId);
    if (!entry) return;
    const { message, isEdit } = entry;
    if (isEdit) this.#ask([message], "submit-message", { message, isEdit });
    else this.#ask([...trailing(this.#stored.messages), message], "regenerate-message", { message });
  }

  /** Removes a message that was never sent, or was refused, and returns its parts. */
  takeBack(entryId) {
    const { wasSent, refusal } = this.#outbox.get(entryId) ?? {};
    if (wasSent && refusal === undefined) return []; // the server may have received it
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

  /** The page's answer to a call, if the server has not accepted it: `{isSending, approved}`, or null. */
  answered(callId) {
    const entry = this.#outbox.get(answerId(callId));
    return entry ? { isSending: this.#isGreeted, approved: entry.frame.approved } : null;
  }

  /** Deletes the conversation, and its unsent requests. Returns false if the server could not be reached. */
  async clear() {
    this.#outbox.clear();
    this.#outboxChanged();
    const before = this.#received;
    if (!(await this.#agent.clear())) return false;
    if (this.#received === before) {
      this.#expectsClear = this.#greeting !== null; // the frame must not delete later requests
      this.#forget();
      this.#changed();
    }
    return true;
  }

  async select(messageId) {
    await this.#agent.select(messageId);
    await Promise.all([this.#loadBranches(), this.#loadSummary()]);
  }

  // --- requests ---

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

  /** Hides the messages after one that is answered again; they reappear if the server refuses. */
  #cutFor({ message, isEdit, content, answers }) {
    const place = this.#stored.at(answers);
    if (place < 0 || !content || (message && !isEdit)) return;
    this.#stored.cut(isEdit ? place : place + 1);
    if (isEdit) this.#stored.append(message);
  }

  /** Sends the waiting entries that were not sent on this connection, in order. */
  async #flush() {
    await this.#adopting;
    const { sent } = this.#greeting ?? {};
    if (!sent) return;
    for (const entry of this.#outbox.waiting) {
      if (sent.has(entry.id)) continue;
      if (!this.#socket.send(this.#frameOf(entry))) return;
      sent.add(entry.id);
      this.#outbox.sent(entry);
      this.#cutFor(entry); // the transcript may have arrived since
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

  /** Takes over the entries of closed tabs, and sends them. */
  async adopt() {
    await this.#outbox.adopt();
    await this.#flush();
  }

  /** Removes an entry that the server has accepted. */
  #accepted(id) {
    if (this.#outbox.remove(id)) this.revision += 1;
  }

  #outboxChanged() {
    this.revision += 1;
    this.#changed();
  }

  // --- the connection ---

  /** Whether the server has sent its identity on this connection. */
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

  /** Resumes everything that is in progress, on a new connection. */
  #greet({ limits }) {
    this.limits = { ...this.limits, ...limits };
    this.isRecovering = this.isCompacting = false; // unless a frame says so
    this.#greeting = { probe: newId(), received: this.#received, sent: new Set(), taken: new Set() };
    this.#socket.send({ type: PROBE, probeId: this.#greeting.probe });
    for (const id of new Set([...this.#streams.keys(), ...this.#asked.keys()]))
      if (!this.#outbox.get(id)) this.#take(id);
    this.#adopting = this.#outbox.adopt();
    this.#flush().then(() => this.#runTools());
  }

  /** Requests a stream from its first chunk. Live chunks before that are ignored. */
  #take(id) {
    if (this.#greeting?.taken.has(id)) return;
    this.#greeting?.taken.add(id);
    const stream = this.#streams.get(id);
    if (stream) stream.awaitsReplay = true;
    this.#socket.send({ type: ACK, id });
  }

  /** Handles the reply to a probe, which follows all frames that a new connection receives. */
  #probed(frame) {
    if (!this.#greeting || frame.probeId !== this.#greeting.probe) return;
    const isReceived = this.#received !== this.#greeting.received;
    const isIdle = frame.type === "cf_agent_stream_resume_none" && frame.reason === "idle";
    this.#loadSummary();
    if (isReceived) this.#loadBranches();
    else if (isIdle) this.#settle([], false);
    else this.#load();
    if (isIdle) this.#quiet = this.#stored.messages.at(-1)?.id ?? null;
  }

  /** Fetches the newest messages, if no frame contains them. Frames that arrive meanwhile take precedence. */
  async #load() {
    const before = this.#received;
    try {
      const { messages, hasEarlier } = await this.#agent.messages();
      if (this.#received === before) this.#settle(messages, hasEarlier);
    } catch {
      return; // it is retried with the next connection
    }
    await this.#loadBranches();
  }

  /** Fetches messages that are older than the loaded ones. Returns whether there are any. */
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

  async #loadSummary() {
    const found = this.#hasSession ? await this.#agent.summary() : undefined;
    if (found === undefined) return;
    this.summary = found;
    this.#changed();
  }

  /** Searches all messages of the conversation. Returns null if the server cannot. */
  async search(words) {
    if (!this.#hasSession) return null;
    const hits = await this.#agent.search(words);
    const isPrefix = /[^\s"*]$/.test(words) && (words.match(/"/g) ?? []).length % 2 === 0;
    return hits?.length === 0 && isPrefix ? this.#agent.search(`${words}*`) : hits; // the last word may be incomplete
  }

  // --- frames ---

  #hear(frame) {
    switch (frame.type) {
      case "cf_agent_identity":
        this.#greet(frame);
        break;
      case RESPONSE:
        this.#response(frame);
        return; // it reports changes itself
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
          this.#received += 1;
          this.#outbox.clear();
          this.#forget();
        }
        break;
      case "cf_agent_chat_recovering":
        this.isRecovering = frame.recovering === true;
        break;
      case "cf_agent_session":
        this.isCompacting = frame.phase === "compacting";
        if (frame.compacted) this.#loadSummary();
        break;
      case "cf_agent_session_error":
        this.isCompacting = false;
        this.dispatchEvent(new CustomEvent("problem", { detail: frame.error }));
        break;
      case "cf_agent_stream_resuming":
        this.#accepted(frame.id);
        this.#take(frame.id);
        this.#probed(frame);
        break;
      case "cf_agent_stream_pending":
        this.#accepted(frame.id);
        if (!this.#asked.has(frame.id)) this.#asked.set(frame.id, null);
        if (this.#streams.has(frame.id)) this.#streams.get(frame.id).awaitsReplay = false; // it has not begun, so live chunks are complete
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

  /** Forgets the requests of other clients: the server is idle. */
  #forgetOthers() {
    for (const [id, answers] of this.#asked) if (answers === null) this.#asked.delete(id);
  }

  /** Applies the newest messages, or those that have changed. */
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
    this.#received += 1;
    this.isLoaded = true;
    const known = new Set(messages.map((message) => message.id));
    for (const { id, message, isEdit } of this.#outbox.waiting)
      if (message && !isEdit && known.has(message.id)) this.#accepted(id);
    this.#arrived(messages);
    this.#runTools();
    this.#changed();
  }

  /** Removes the page's answers to calls that are no longer open in these messages. */
  #arrived(messages) {
    for (const message of messages)
      for (const part of message?.parts ?? [])
        if (!OPEN.includes(part.state)) this.#accepted(answerId(part.toolCallId));
  }

  /** Removes answers to calls that no longer exist, once they were sent again. */
  #forgetAnswers() {
    const { sent, received } = this.#greeting ?? {};
    if (!sent || received === this.#received || this.busy) return;
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
    this.summary = null;
    this.error = null;
    this.isRecovering = this.isCompacting = false;
  }

  #response(frame) {
    const { id } = frame;
    const answers = this.#asked.get(id);
    if (frame.replay) this.#greeting?.taken.delete(id);
    let stream = this.#streams.get(id);
    if (frame.done || frame.error) return this.#end(frame);
    this.#accepted(id);
    this.#asked.delete(id);
    if (stream?.awaitsReplay && !frame.replay) return undefined; // the replay contains it
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
    if (!frame.replay && chunk.type?.endsWith("-delta")) this.isRecovering = false; // new text is visible
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
      this.#stored.append(stream.builder.message); // until the transcript arrives
    }
    if (isRefused || frame.outcome === "skipped") this.#load();
    else this.#loadBranches();
    if (this.summary && !this.#stored.has(this.summary.last)) this.#loadSummary(); // an edit may be on another branch
    if (this.busy === null) this.#quiet = this.#stored.messages.at(-1)?.id ?? null;
    this.#runTools();
    this.dispatchEvent(
      new CustomEvent("ended", {
        detail: { outcome: isRefused ? "refused" : frame.error ? "error" : (frame.outcome ?? "completed") }
      })
    );
    this.#changed();
  }

  /** Returns whether a final frame refuses a message. The message stays visible, with the reason. */
  #refused({ id, error, outcome, body, messageIds }, stream) {
    const entry = this.#outbox.get(id);
    if (!entry?.message || stream || messageIds?.some((each) => this.#stored.has(each))) return false;
    if (!error && outcome !== "skipped") return false;
    if (!entry.isEdit && this.#stored.has(entry.message.id)) return false;
    this.#outbox.refuse(id, error ? body || "Something went wrong." : SKIPPED);
    return true;
  }

  // --- tools ---

  /** Sets the duration of a call as measured by the server. */
  took(callId, ms) {
    this.durations.end(callId, ms);
    this.revision += 1;
    this.#changed();
  }

  /** Runs the calls for this page. Other tabs may run them, too; the first answer counts. */
  #runTools() {
    const last = this.#stored.messages.at(-1);
    if (this.busy || this.isRecovering || !this.#isGreeted || last?.role !== "assistant") return;
    for (const part of this.#tools.take(last)) this.#run(part);
  }

  async #run(part) {
    await this.#adopting; // a closed tab may have run it
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
