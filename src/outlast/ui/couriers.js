// Conversations that are not on the screen and have something to send: each is connected until the server has it.

import { HERE, livingTabs, onNews, records, watch } from "./outbox.js";

export class Couriers {
  #root;
  #open;
  #shown;
  #chats = new Map();

  /** `open(agent, name)` gives a `Chat`; `shown()` the one on the screen. */
  constructor(root, { open, shown }) {
    this.#root = root;
    this.#open = open;
    this.#shown = shown;
    onNews(() => this.look());
  }

  /** The chat of a conversation, if it is under way. It is the caller's from now on. */
  take(conversation) {
    const chat = this.#chats.get(conversation);
    this.#chats.delete(conversation);
    return chat;
  }

  /** A chat that leaves the screen: it stays connected while it has something to send. */
  keep(chat) {
    if (!chat.isSending) return chat.close();
    this.#chats.set(chat.conversation, chat);
    chat.addEventListener("change", () => this.#check(chat));
    return undefined;
  }

  /** Looks for what tabs have left that are gone. */
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
