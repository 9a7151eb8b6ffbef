// Doing something to a turn or an agent: asked first, and what came of it is shown.

import { h, icon, setText } from "../dom.js";
import { linkTo } from "./turn.js";
import { count } from "./words.js";

const ACTS = {
  cancel: { title: "Cancel this turn?", text: "The turn ends as aborted. The partial answer is kept.", yes: "Cancel it", done: ({ cancelled }) => (cancelled ? "The turn is cancelled." : "There was nothing to cancel: it had ended.") },
  seal: { title: "Seal this turn?", text: "It is no longer recovered. The partial answer is kept, and the user sees an error.", yes: "Seal it", done: ({ sealed }) => (sealed ? "The turn is sealed." : "There was nothing to seal: it is not being recovered.") },
  retry: { title: "Try this turn again?", text: "The same is asked once more, and answered in a turn of its own, beside the answer that is there.", yes: "Try again", done: () => "It is accepted, and answered in its own time." },
  release: { title: "Release this agent?", text: "Its failed boots are forgotten, and it begins with its work again.", yes: "Release it", done: () => "The agent is released." },
  fork: { title: "Fork the conversation here?", text: "A new agent begins with the messages up to this one. This one stays as it is.", yes: "Fork", field: true, done: ({ name, messages }) => `${name} has ${count(messages, "message")} of this conversation.` }
};

export class Acting {
  constructor({ dialog, results }, api, after) {
    Object.assign(this, { dialog, results, api, after });
  }

  /** Asks whether it is meant, does it, and tells. `given` is what the server is sent. */
  async ask(what, given) {
    const known = ACTS[what];
    const part = (id) => this.dialog.querySelector(`#sure-${id}`);
    setText(part("title"), known.title);
    setText(part("text"), known.text);
    setText(part("yes"), known.yes);
    part("field").hidden = !known.field;
    part("input").value = "";
    part("input").placeholder = "one is made up, unless you give one";
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
      this.tell(ACTS[what].done(answer), true, what === "fork" ? answer.agent : null);
    } catch (error) {
      this.tell(error.message, false);
    }
    this.after();
  }

  tell(text, isGood, agent = null) {
    const close = h("button", { type: "button", class: "icon-button", "aria-label": "Close", onclick: () => note.remove() }, icon("close"));
    const note = h("div", { class: isGood ? "note good" : "note", role: isGood ? "status" : "alert" }, icon(isGood ? "check" : "warning"), h("p", {}, text, agent ? h("a", { href: linkTo({ agent }) }, "Look at it") : null), close);
    this.results.replaceChildren(note);
  }
}
