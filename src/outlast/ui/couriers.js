// Conversations that are not on screen and have unsent requests: each stays connected until the server accepts them.

import { HERE, livingTabs, onNews, records, watch } from "./outbox.js";

export class Couriers {
  #root;
  #open;
  #shown;
  #chats = new Map();

  /** `open(agent, name)` creates a `Chat`; `shown()` returns the one on screen. */
  constructor(root, { open, shown }) {
    this.#root = root;
    this.#open = open;
    this.#shown = shown;
    onNews(() => this.look());
  }

  /** Returns the chat of a conversation, if it is connected, and hands it to the caller. */
  take(conversation) {
    const chat = this.#chats.get(conversation);
    this.#chats.delete(conversation);
    return chat;
  }

  /** Keeps a chat that leaves the screen connected while it has unsent requests. */
  keep(chat) {
    if (!chat.isSending) return chat.close();
    this.#chats.set(chat.conversation, chat);
    chat.addEventListener("change", () => this.#check(chat));
    return undefined;
  }

  /** Looks for unsent requests of closed tabs. */
  async look() {
    const found = await records.all();
    if (!found?.length) return;
    const isAlive = await livingTabs();
    for (const { conversation, agent, name, tab, refusal } of found) {
      if (!conversation.startsWith(`${this.#root} `) || refusal !== undefined) continue;
      if (tab !== HERE && isAlive(tab)) watch(tab, () => this.look());
      else if (this.#shown()?.conversation === conversation) this.#shown().adopt();
      else if (!this.#chats.has(conversation)) this.#send(agent, name);
    }
  }

  async #send(agent, name) {
    const chat = this.#open(agent, name);
    this.#chats.set(chat.conversation, chat);
    await chat.adopt();
    this.keep(chat);
  }

  #check(chat) {
    if (this.#chats.get(chat.conversation) !== chat) return;
    if (chat.isSending && chat.connection !== "refused") return;
    this.#chats.delete(chat.conversation);
    chat.close();
  }
}
