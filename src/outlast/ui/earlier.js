// Which messages are on the page: the newest ones, and older ones on demand. The scroll position is kept.

import { h, setText } from "./dom.js";

const FIRST = 60; // messages shown at first
const STEP = 100; // messages added above at a time
const MOST = 240; // messages kept while the reader is at the end
const NEAR = 300; // pixels from the top within which older messages are loaded automatically

const LABEL = {
  "": "Load earlier messages",
  loading: "Loading earlier messages…",
  failed: "Earlier messages could not be loaded. Try again."
};

/** Returns the index of the first shown message. Pure. */
export function beginsAt(messages, first, isAtEnd) {
  const count = messages.length;
  const place = first === null ? -1 : messages.findIndex((message) => message.id === first);
  const isTooMuch = isAtEnd && count - place > MOST;
  const newest = Math.max(0, count - FIRST);
  return place < 0 || isTooMuch ? newest : Math.min(place, newest);
}

export class Earlier {
  #first = null; // the id of the first shown message
  #chat = null;
  #changed;
  #isBusy = false;

  /** `changed()` redraws the messages. */
  constructor({ scroller, list }, changed) {
    Object.assign(this, { scroller, list });
    this.#changed = changed;
    this.button = h("button", { type: "button", class: "more earlier", hidden: true, onclick: () => this.load() });
    list.before(this.button);
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
  }

  reset() {
    this.#first = null;
    this.button.hidden = true;
  }

  /** Returns the shown messages. */
  of(chat, isAtEnd) {
    this.#chat = chat;
    const { messages } = chat;
    const begin = beginsAt(messages, this.#first, isAtEnd);
    this.#first = messages[begin]?.id ?? null;
    this.button.hidden = begin === 0 && !chat.hasEarlier;
    setText(this.button, LABEL[begin > 0 ? "" : chat.earlier]);
    return messages.slice(begin);
  }

  /** Includes a message in the shown ones. Returns false if it is not loaded. */
  include(chat, id) {
    const { messages } = chat;
    const place = messages.findIndex((message) => message.id === id);
    const begin = messages.findIndex((message) => message.id === this.#first);
    if (place >= 0 && place < begin) this.#first = messages[Math.max(0, place - 10)].id;
    return place >= 0;
  }

  /** Adds older messages above. */
  async load() {
    const chat = this.#chat;
    if (!chat || this.#isBusy) return;
    this.#isBusy = true;
    if (chat.messages[0]?.id === this.#first) await chat.loadEarlier();
    this.#isBusy = false;
    if (chat !== this.#chat) return;
    const { messages } = chat;
    const begin = messages.findIndex((message) => message.id === this.#first);
    if (begin <= 0) return;
    this.#first = messages[Math.max(0, begin - STEP)].id;
    this.#keepingPlace(() => this.#changed());
  }

  /** Keeps the scroll position while messages are added above. */
  #keepingPlace(change) {
    const anchor = this.list.firstElementChild;
    const before = anchor?.getBoundingClientRect().top;
    change();
    if (anchor?.isConnected) this.scroller.scrollTop += anchor.getBoundingClientRect().top - before;
  }

  #scrolled() {
    const { scrollTop } = this.scroller;
    const isUp = this.lastTop !== undefined && scrollTop < this.lastTop;
    this.lastTop = scrollTop;
    if (isUp && scrollTop < NEAR && !this.button.hidden && this.#chat?.earlier !== "failed") this.load();
  }
}
