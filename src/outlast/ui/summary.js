// The mark where a summary stands for the messages above it, when the model sees the conversation.

import { h, icon } from "./dom.js";
import { Markdown } from "./markdown.js";

const TITLE = "The model sees a summary of the messages above";

export class SummaryMark {
  #markdown = new Markdown();
  node = h(
    "details",
    { class: "summarised" },
    h("summary", {}, h("span", {}, TITLE, icon("down"))),
    h("div", { class: "summary-text", role: "region", "aria-label": "Summary" }, this.#markdown.node)
  );

  /** Shows a summary, `{text}`; null if there is none. */
  show(summary) {
    if (summary) this.#markdown.show(summary.text);
  }
}
