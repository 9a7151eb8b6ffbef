// Actions on a turn or an agent: the user confirms them, and sees the result.

import { h, icon, setText } from "../dom.js";
import { linkTo } from "./turn.js";
import { count } from "./words.js";

const ACTS = {
  cancel: { title: "Cancel this turn?", text: "The turn ends as aborted. The partial answer is kept.", yes: "Cancel it", done: ({ cancelled }) => (cancelled ? "The turn was cancelled." : "The turn had already ended.") },
  seal: { title: "Seal this turn?", text: "Recovery ends. The partial answer is kept, and the user sees an error.", yes: "Seal it", done: ({ sealed }) => (sealed ? "The turn was sealed." : "The turn was not being recovered.") },
  retry: { title: "Retry this turn?", text: "A new turn answers the same message. The existing answer is kept as an alternative.", yes: "Retry it", done: () => "The retry was accepted." },
  release: { title: "Release this agent?", text: "Its failed boots are reset, and it resumes its work.", yes: "Release it", done: () => "The agent was released." },
  fork: { title: "Fork the conversation here?", text: "A new agent gets a copy of the messages up to this one. This conversation does not change.", yes: "Fork", field: true, done: ({ name, messages }) => `${name} has ${count(messages, "message")} of this conversation.` }
};

export class Acting {
  constructor({ dialog, results }, api, after) {
    Object.assign(this, { dialog, results, api, after });
  }

  /** Asks for confirmation, runs the action, and shows the result. `given` is the body of the request. */
  async ask(what, given) {
    const known = ACTS[what];
    const part = (id) => this.dialog.querySelector(`#sure-${id}`);
    setText(part("title"), known.title);
    setText(part("text"), known.text);
    setText(part("yes"), known.yes);
    part("field").hidden = !known.field;
    part("input").value = "";
    part("input").placeholder = "generated if left empty";
    part("yes").className = what === "cancel" || what === "seal" ? "danger" : "primary";
    this.dialog.returnValue = "";
    const from = document.activeElement;
    this.dialog.showModal();
    part(known.field ? "input" : "yes").focus();
    await new Promise((resolve) => this.dialog.addEventListener("close", resolve, { once: true }));
    if (from?.isConnected) from.focus();
    if (this.dialog.returnValue !== "yes") return;
    const name = part("input").value.trim();
    await this.#do(what, known.field && name ? { ...given, name } : given);
  }

  async #do(what, given) {
    try {
      const answer = await this.api.post(what, given);
      this.#report(ACTS[what].done(answer), true, what === "fork" ? answer.agent : null);
    } catch (error) {
      this.#report(error.message, false);
    }
    this.after();
  }

  #report(text, isGood, agent = null) {
    const close = h("button", { type: "button", class: "icon-button", "aria-label": "Close", onclick: () => note.remove() }, icon("close"));
    const note = h("div", { class: isGood ? "note good" : "note", role: isGood ? "status" : "alert" }, icon(isGood ? "check" : "warning"), h("p", {}, text, agent ? h("a", { href: linkTo({ agent }) }, "Open it") : null), close);
    this.results.replaceChildren(note);
  }
}
