// The cards that show tool calls, and the tools that the page runs itself.

import { asText, durationText, h, icon, setChildren, setText } from "./dom.js";
import { isUnknown, toolName } from "./messages.js";
import { isReference, referenceNode } from "./references.js";

/** The tools that run in the browser, if the server enables them. */
export const BROWSER_TOOLS = {
  browser_time: {
    description: "The time, the time zone and the language of the user's browser",
    parameters: { type: "object", properties: {} },
    run: () => {
      const { timeZone } = Intl.DateTimeFormat().resolvedOptions();
      return {
        time: new Date().toString(),
        timeZone,
        language: navigator.language,
        screen: `${screen.width} × ${screen.height}`
      };
    }
  }
};

const words = (name) => {
  const spread = name
    .replaceAll(/[_-]+/g, " ")
    .replaceAll(/([a-z])([A-Z])/g, "$1 $2")
    .trim();
  return spread ? spread[0].toUpperCase() + spread.slice(1) : name;
};

/** Returns the state of a call: one word for the style sheet, and a few for the reader. */
function standing(part, isWriting, answered) {
  const isOurs = toolName(part) in BROWSER_TOOLS;
  if (isUnknown(part)) return ["unknown", "unknown"];
  if (answered && !answered.isSending) return ["waiting", "not sent yet"];
  switch (part.state) {
    case "input-streaming":
      return ["running", "preparing"];
    case "input-available":
      if (isOurs) return ["running", "in your browser"];
      return isWriting ? ["running", "running"] : ["waiting", "waiting for its client"];
    case "approval-requested":
      return answered ? ["running", "sending"] : ["waiting", "needs your approval"];
    case "approval-responded":
      return part.approval?.approved === false ? ["denied", "denied"] : ["running", "approved"];
    case "output-available":
      return part.preliminary ? ["running", "running"] : ["done", "done"];
    case "output-denied":
      return ["denied", "denied"];
    default:
      return ["failed", "failed"];
  }
}

const ICON = {
  running: "tool",
  waiting: "shield",
  done: "check",
  denied: "close",
  failed: "warning",
  unknown: "question"
};

function field(label, text, kind = "") {
  const shown = text.length > 20000 ? `${text.slice(0, 20000)}\n… ${text.length.toLocaleString()} characters` : text;
  return h(
    "div",
    { class: `field ${kind}` },
    h("div", { class: "label" }, label),
    h("pre", { tabindex: "0", "aria-label": label }, shown)
  );
}

/** One call. `actions`: `approve(callId, approved)`. */
export class ToolCard {
  #actions;
  #shown = "";
  #isOpen = null; // as the user chose; null until then, and the state decides

  constructor(actions) {
    this.#actions = actions;
    this.mark = h("span", { class: "mark" });
    this.title = h("span", { class: "title" });
    this.chip = h("span", { class: "chip" });
    this.time = h("span", { class: "time" });
    this.head = h(
      "button",
      { type: "button", class: "tool-head", onclick: () => this.#toggle() },
      this.mark,
      this.title,
      this.chip,
      this.time,
      icon("down")
    );
    this.body = h("div", { class: "tool-body" });
    this.asking = h("div", { class: "asking" });
    this.node = h("section", { class: "tool" }, this.head, this.asking, this.body);
  }

  show(part, { isWriting, answered, ms, contentUrl }) {
    const [state, word] = standing(part, isWriting, answered);
    const name = toolName(part);
    const key = JSON.stringify([state, word, ms, part]);
    if (key === this.#shown) return;
    this.#shown = key;
    this.part = part;
    this.state = state;
    this.node.dataset.state = state;
    this.node.setAttribute("aria-label", `${words(name)}: ${word}`);
    setText(this.title, part.title ?? words(name));
    setText(this.chip, word);
    setText(this.time, ms === undefined ? "" : durationText(ms));
    this.mark.replaceChildren(icon(name in BROWSER_TOOLS && state === "running" ? "browser" : ICON[state]));
    this.#ask(part, state === "waiting" && part.state === "approval-requested" && !answered);
    if (answered && !answered.isSending) this.#wait(answered.approved);
    this.#fill(part, state, contentUrl);
    this.#open();
  }

  #ask(part, isAsked) {
    if (!isAsked) return this.asking.replaceChildren();
    if (this.asking.childNodes.length) return undefined;
    const answer = (approved) => () => this.#actions.approve(part.toolCallId, approved);
    const reason = part.approval?.requestReason;
    setChildren(this.asking, [
      h("p", {}, reason || "This call runs only if you approve it."),
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "button", class: "primary", onclick: answer(true) }, "Approve"),
        h("button", { type: "button", class: "secondary", onclick: answer(false) }, "Deny")
      )
    ]);
    return undefined;
  }

  /** Shows that the answer to a call was not sent yet. */
  #wait(approved) {
    const answer = { true: "You approved this.", false: "You denied this." }[approved] ?? "Your browser ran this.";
    setChildren(this.asking, [h("p", {}, `${answer} Not sent yet. It will be sent when the server is back.`)]);
  }

  #fill(part, state, contentUrl) {
    const fields = [];
    if (part.input !== undefined && Object.keys(part.input ?? {}).length)
      fields.push(field("Input", asText(part.input)));
    if (part.state === "output-available")
      fields.push(this.#output(part.preliminary ? "Output so far" : "Output", part, contentUrl));
    if (state === "unknown") {
      fields.push(
        h(
          "p",
          { class: "explained" },
          "The call was interrupted. It may or may not have taken effect, so it is not repeated automatically."
        )
      );
    }
    if (part.errorText)
      fields.push(field(state === "unknown" ? "Message to the model" : "Error", part.errorText, "error"));
    if (state === "denied") fields.push(h("p", { class: "explained" }, "It was denied, and did not run."));
    this.body.replaceChildren(...(fields.length ? fields : [h("p", { class: "explained" }, "No input.")]));
  }

  #output(label, part, contentUrl) {
    const url = isReference(part.output) ? contentUrl(part.output.url) : null;
    return url ? referenceNode(label, part.output, url, toolName(part)) : field(label, asText(part.output));
  }

  #toggle() {
    this.#isOpen = this.head.getAttribute("aria-expanded") !== "true";
    this.#open();
  }

  #open() {
    const isOpen = this.#isOpen ?? ["waiting", "failed", "unknown"].includes(this.state);
    this.head.setAttribute("aria-expanded", String(isOpen));
    this.body.hidden = !isOpen;
  }
}
