// The messages on the page. Nodes are updated in place, so that selection, focus and open details are kept.

import { copyText, h, icon, iconButton, setChildren, setText, sizeText } from "./dom.js";
import { Earlier } from "./earlier.js";
import { Markdown, safeUrl } from "./markdown.js";
import { textOf, toolName } from "./messages.js";
import { fileNode } from "./references.js";
import { SummaryMark } from "./summary.js";
import { ToolCard } from "./tools.js";

const PLAIN = 20000; // characters of a user's message that are shown before "Show all"
const NEAR = 80; // pixels from the end within which the page follows a streaming answer

// --- parts -----------------------------------------------------------------------------------------------------------

class Text {
  #markdown = new Markdown();
  node = this.#markdown.node;
  show({ text }) {
    this.#markdown.show(text);
    this.node.hidden = text === "";
  }
}

class Reasoning {
  #markdown = new Markdown();
  #label = h("span", {}, "Thinking");
  #since = performance.now();
  #isOpen = null;
  node = h("details", { class: "reasoning" }, h("summary", {}, icon("thought"), this.#label), this.#markdown.node);

  constructor() {
    this.node.querySelector("summary").addEventListener("click", () => (this.#isOpen = !this.node.open));
  }

  show({ text, state }) {
    const isOver = state !== "streaming";
    if (isOver && this.seconds === undefined && this.hasGrown)
      this.seconds = Math.round((performance.now() - this.#since) / 1000);
    if (!isOver) this.hasGrown = true;
    this.#markdown.show(text);
    this.node.classList.toggle("is-live", !isOver);
    setText(this.#label, isOver ? (this.seconds ? `Thought for ${this.seconds} s` : "Thoughts") : "Thinking…");
    this.node.open = this.#isOpen ?? !isOver;
    this.node.hidden = text === "" && isOver;
  }
}

class File {
  node = h("div", { class: "files" });
  show({ url = "", mediaType = "", filename }, { contentUrl }) {
    if (this.url === url) return;
    this.url = url;
    const name = filename || mediaType || "file";
    const stored = contentUrl(url);
    if (stored) this.node.replaceChildren(fileNode(stored, mediaType, name));
    else if (/^data:image\/(png|jpeg|gif|webp|avif)[;,]/i.test(url)) {
      this.node.replaceChildren(h("img", { src: url, alt: name, loading: "lazy" }));
    } else if (url.startsWith("data:")) {
      // A download, so that the browser never renders it as a page of this origin.
      this.node.replaceChildren(
        h(
          "a",
          { class: "file", href: url, download: name },
          icon("file"),
          `${name} · ${sizeText(Math.round(url.length * 0.75))}`
        )
      );
    } else {
      const safe = safeUrl(url);
      this.node.replaceChildren(
        safe
          ? h(
              "a",
              { class: "file", href: safe, target: "_blank", rel: "noopener noreferrer nofollow" },
              icon("file"),
              name
            )
          : h("span", { class: "file" }, icon("file"), name)
      );
    }
  }
}

class Source {
  node = h("div", { class: "files" });
  show({ url, title, filename }) {
    const safe = url ? safeUrl(url) : null;
    const label = title || filename || url || "source";
    this.node.replaceChildren(
      safe
        ? h(
            "a",
            { class: "file", href: safe, target: "_blank", rel: "noopener noreferrer nofollow" },
            icon("link"),
            label
          )
        : h("span", { class: "file" }, icon("link"), label)
    );
  }
}

class Plain {
  #text = null;
  node = h("div", { class: "said" });
  show({ text }) {
    if (text === this.#text) return;
    this.#text = text;
    if (text.length <= PLAIN) return this.node.replaceChildren(text);
    const more = h("button", { type: "button", class: "more" }, `Show all ${sizeText(text.length)}`);
    more.addEventListener("click", () => this.node.replaceChildren(text));
    return this.node.replaceChildren(`${text.slice(0, PLAIN)}…`, h("div", {}, more));
  }
}

function viewOf(part, role, actions) {
  if (part.type === "text") return role === "user" ? new Plain() : new Text();
  if (part.type === "reasoning") return new Reasoning();
  if (part.type === "file") return new File();
  if (part.type === "source-url" || part.type === "source-document") return new Source();
  return toolName(part) === null ? null : new ToolCard(actions);
}

// --- a message -------------------------------------------------------------------------------------------------------

class Message {
  #views = new Map();
  #actions;
  #editor = null;
  #stamp = "";

  constructor(message, actions) {
    this.role = message.role;
    this.#actions = actions;
    this.parts = h("div", { class: "parts" });
    this.state = h("div", { class: "state", hidden: true });
    this.bar = h("div", { class: "bar" });
    this.node = h(
      "article",
      {
        class: `message ${message.role}`,
        id: `m-${message.id}`,
        "aria-label": message.role === "user" ? "You" : "Answer",
        tabindex: "-1"
      },
      this.parts,
      this.state,
      this.bar
    );
    this.copy = iconButton("copy", "Copy", () => copyText(textOf(this.message), this.copy));
    this.again = iconButton("again", "Another answer", () => this.#actions.regenerate(this.message.id));
    this.change = iconButton("edit", "Edit and send again", () => this.#edit());
    this.pager = h("div", { class: "pager", role: "group", "aria-label": "Other answers" });
  }

  show(message, chat) {
    const isWriting = chat.writing?.id === message.id;
    const stamp = `${isWriting} ${chat.busy === null} ${chat.revision}`;
    if (message === this.message && stamp === this.#stamp && !isWriting) return; // unchanged
    this.#stamp = stamp;
    this.message = message;
    const wanted = [];
    message.parts.forEach((part, place) => {
      const key = `${place} ${part.type} ${part.toolCallId ?? ""}`;
      let view = this.#views.get(key);
      if (view === undefined) {
        view = viewOf(part, this.role, this.#actions);
        this.#views.set(key, view);
      }
      if (view === null) return;
      const answered = part.toolCallId === undefined ? null : chat.answered(part.toolCallId);
      const ms = chat.durations.of(part.toolCallId);
      view.show(part, { isWriting, answered, ms, contentUrl: (url) => chat.contentUrl(url) });
      wanted.push(view.node);
    });
    if (!this.#editor) setChildren(this.parts, wanted);
    this.node.setAttribute("aria-busy", String(isWriting));
    this.node.classList.toggle("is-writing", isWriting);
    const pending = chat.pending(message);
    this.#showPending(pending);
    this.#showBar(message, chat, isWriting || pending !== null);
  }

  /** Shows that the server has not accepted the message, with buttons for what the user can do. */
  #showPending(pending) {
    this.node.classList.toggle("is-pending", pending !== null);
    this.state.hidden = pending === null;
    const key = pending && `${pending.id} ${pending.text}`;
    if (key === this.pendingKey) return;
    this.pendingKey = key;
    if (!pending) return this.state.replaceChildren();
    const { id, state, text } = pending;
    const button = (label, action) =>
      h("button", { type: "button", class: "secondary", onclick: () => this.#actions[action](id) }, label);
    this.state.dataset.state = state;
    this.state.setAttribute("role", state === "refused" ? "alert" : "status");
    return this.state.replaceChildren(
      h("span", {}, icon(state === "refused" ? "warning" : "clock"), " ", text),
      ...(state === "refused" ? [button("Try again", "retry")] : []),
      ...(state === "unconfirmed" ? [] : [button("Edit", "takeBack")])
    );
  }

  #showBar(message, chat, isUnfinished) {
    const isIdle = chat.busy === null && !isUnfinished;
    if (this.#editor) return setChildren(this.bar, []);
    const buttons = [];
    if (!isUnfinished && textOf(message)) buttons.push(this.copy);
    if (this.role === "user" && isIdle) buttons.push(this.change);
    if (this.role === "assistant" && isIdle) buttons.push(this.again);
    const siblings = chat.branches[message.id];
    if (siblings?.length > 1 && isIdle) {
      this.#page(message.id, siblings);
      buttons.push(this.pager);
    }
    return setChildren(this.bar, buttons);
  }

  #page(id, siblings) {
    const at = siblings.indexOf(id);
    const key = `${at} ${siblings.join()}`;
    if (this.paged === key) return;
    this.paged = key;
    const step = (by, name, label) =>
      iconButton(name, label, () => this.#actions.select(siblings[at + by]), {
        disabled: siblings[at + by] === undefined
      });
    this.pager.replaceChildren(
      step(-1, "left", "Previous answer"),
      h("span", {}, `${at + 1} / ${siblings.length}`),
      step(1, "right", "Next answer")
    );
  }

  #edit() {
    const files = this.message.parts.filter((part) => part.type !== "text");
    const area = h("textarea", { "aria-label": "Your message", rows: "3" });
    area.value = textOf(this.message);
    const end = () => {
      this.#editor = null;
      this.#stamp = "";
      this.parts.replaceChildren(...[...this.#views.values()].filter(Boolean).map((view) => view.node));
      this.#actions.changed();
      this.change.focus();
    };
    const send = () => {
      const text = area.value.trim();
      const parts = [...files, { type: "text", text }];
      if (this.#actions.isTooLarge(parts)) return;
      end();
      if (text && text !== textOf(this.message)) this.#actions.edit(this.message.id, parts);
    };
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") end();
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    });
    this.#editor = h(
      "div",
      { class: "editor" },
      area,
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "button", class: "primary", onclick: send }, "Send again"),
        h("button", { type: "button", class: "secondary", onclick: end }, "Cancel")
      )
    );
    this.parts.replaceChildren(this.#editor);
    this.#stamp = "";
    this.#actions.changed();
    area.focus();
  }
}

// --- all messages ----------------------------------------------------------------------------------------------------

export class Transcript {
  #views = new Map();
  #actions;
  #summary = new SummaryMark();
  #follows = true;
  #chat = null;

  constructor({ scroller, list, tail, latest }, actions) {
    this.#actions = actions;
    Object.assign(this, { scroller, list, tail, latest });
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    latest.addEventListener("click", () => this.follow());
    list.addEventListener("click", ({ target }) => {
      if (target.closest(".summarised > summary")) this.#follows = false; // its text must not scroll it away
    });
    this.earlier = new Earlier({ scroller, list }, () => {
      this.#follows = false; // the user reads older messages
      this.show(this.#chat);
    });
    // When content grows (text, images, opened cards), the end stays visible if it was.
    new ResizeObserver(() => this.#follows && this.#toEnd()).observe(list.parentElement);
  }

  reset() {
    this.#views.clear();
    this.list.replaceChildren();
    this.tail.replaceChildren();
    this.state = "";
    this.#summary = new SummaryMark();
    this.earlier.reset();
    this.follow();
  }

  show(chat) {
    this.#chat = chat;
    const kept = new Map();
    for (const message of this.earlier.of(chat, this.#follows)) {
      let view = this.#views.get(message.id);
      if (view?.role !== message.role) view = new Message(message, this.#actions);
      view.show(message, chat);
      kept.set(message.id, view);
    }
    this.#views = kept;
    this.#summary.show(chat.summary);
    setChildren(
      this.list,
      [...kept].flatMap(([id, { node }]) => (id === chat.summary?.last ? [node, this.#summary.node] : [node]))
    );
    this.#showTail(chat);
    if (this.#follows) this.#toEnd();
    this.#scrolled();
  }

  #showTail(chat) {
    const state = tailOf(chat);
    if (state === this.state) return;
    this.state = state;
    this.tail.replaceChildren();
    if (state === "refused") {
      this.tail.append(
        h(
          "div",
          { class: "failed", role: "alert" },
          icon("warning"),
          h("p", {}, `The server refused the connection: ${chat.refusal}.`)
        )
      );
    } else if (chat.error) {
      this.tail.append(
        h(
          "div",
          { class: "failed", role: "alert" },
          icon("warning"),
          h("p", {}, chat.error.text),
          h(
            "button",
            { type: "button", class: "secondary", onclick: () => this.#actions.regenerate(null) },
            "Try again"
          )
        )
      );
    } else if (state === "lost") {
      this.tail.append(
        h(
          "p",
          { class: "recovering" },
          dots(),
          "The connection is lost. The answer so far is stored; it continues when the server is back."
        )
      );
    } else if (state === "recovering") {
      this.tail.append(h("p", { class: "recovering" }, dots(), "Recovering…"));
    } else if (state === "compacting") {
      this.tail.append(h("p", { class: "compacting", role: "status" }, dots(), "Summarising…"));
    } else if (state === "unanswered") {
      this.tail.append(
        h(
          "div",
          { class: "unanswered" },
          h("p", {}, "There is no answer."),
          h(
            "button",
            { type: "button", class: "secondary", onclick: () => this.#actions.regenerate(null) },
            "Try again"
          )
        )
      );
    } else if (state === "waiting") {
      this.tail.append(
        h("p", { class: "waiting" }, dots(), h("span", { class: "off-screen" }, "The answer is about to begin"))
      );
    }
  }

  /** Scrolls to the end, and keeps it visible from now on. */
  follow() {
    this.#follows = true;
    this.#toEnd();
  }

  /** Scrolls to a message, and highlights it for a moment. */
  reveal(id) {
    if (!this.earlier.include(this.#chat, id)) return false;
    this.#follows = false; // showing the messages must not scroll to the end
    if (!this.#views.has(id)) this.show(this.#chat);
    const view = this.#views.get(id);
    if (!view) return false;
    this.#follows = false; // even if the end was visible until now
    view.node.scrollIntoView({ block: "center" });
    view.node.focus({ preventScroll: true });
    view.node.classList.add("is-found");
    setTimeout(() => view.node.classList.remove("is-found"), 2000);
    return true;
  }

  #toEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    const left = scrollHeight - scrollTop - clientHeight;
    // Scrolling up stops following the end; scrolling close to it starts again.
    if (this.lastTop !== undefined && scrollTop < this.lastTop - 2 && left > NEAR) this.#follows = false;
    else if (left <= NEAR) this.#follows = true;
    this.lastTop = scrollTop;
    this.latest.hidden = this.#follows || left <= NEAR;
  }
}

/** Returns the state that is shown below the last message. */
function tailOf(chat) {
  if (chat.connection === "refused") return "refused";
  if (chat.error) return `error ${chat.error.text}`;
  if (chat.isCompacting && chat.connection === "open" && !chat.writing) return "compacting";
  if (chat.busy === null) return chat.isUnanswered && chat.connection === "open" ? "unanswered" : "";
  if (chat.connection !== "open") return chat.isAccepted ? "lost" : ""; // an unsent message shows its own state
  if (chat.isRecovering) return "recovering";
  return chat.writing ? "" : "waiting";
}

const dots = () => h("span", { class: "dots", "aria-hidden": "true" }, h("i"), h("i"), h("i"));
