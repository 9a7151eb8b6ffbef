// Markdown as nodes. The model's text is untrusted: it becomes text and a few kinds of elements, never HTML. Only http,
// https and mailto links are allowed; images are not loaded but become links.

import { copyText, h, icon, sizeText } from "./dom.js";
import { highlighted } from "./highlight.js";

const LONG = 20000; // characters from which a block is shown as plain text
const SHOWN = 60000; // characters of such a block that are shown at first
const DEPTH = 8; // of nested lists and quotations

/** Returns a URL that a link may lead to; null if it is not allowed. */
export function safeUrl(text) {
  try {
    const url = new URL(text.trim());
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

// --- blocks ----------------------------------------------------------------------------------------------------------

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,12})([-*+]|\d{1,9}[.)])(\s+|$)(.*)$/;
const TABLE_RULE = /^ {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/** Returns the blocks of a text: `{kind, raw, …}`. Each line is read once. */
export function blocksOf(text) {
  const lines = text.split("\n");
  const blocks = [];
  let at = 0;
  const take = (kind, from, more = {}) => blocks.push({ kind, raw: lines.slice(from, at).join("\n"), ...more });
  while (at < lines.length) {
    const line = lines[at];
    const from = at;
    if (line.length > LONG) {
      at += 1;
      take("long", from);
      continue;
    }
    if (line.trim() === "") {
      at += 1;
      continue;
    }
    const fence = FENCE.exec(line);
    if (fence) {
      const end = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}\\s*$`);
      at += 1;
      while (at < lines.length && !end.test(lines[at])) at += 1;
      const body = lines.slice(from + 1, at).join("\n");
      const isOpen = at >= lines.length;
      at += 1;
      take("code", from, { language: fence[2], body, isOpen });
    } else if (HEADING.test(line)) {
      at += 1;
      const [, marks, title] = HEADING.exec(line);
      take("heading", from, { level: marks.length, title: withoutMarks(title.trimEnd()) });
    } else if (RULE.test(line)) {
      at += 1;
      take("rule", from);
    } else if (QUOTE.test(line)) {
      while (at < lines.length && lines[at].trim() !== "" && (QUOTE.test(lines[at]) || !startsBlock(lines[at])))
        at += 1;
      take("quote", from, {
        body: lines
          .slice(from, at)
          .map((each) => each.replace(QUOTE, ""))
          .join("\n")
      });
    } else if (ITEM.test(line)) {
      at = endOfList(lines, at);
      take("list", from);
    } else if (line.includes("|") && TABLE_RULE.test(lines[at + 1] ?? "") && lines[at + 1].includes("-")) {
      at += 2;
      while (at < lines.length && lines[at].includes("|") && lines[at].trim() !== "") at += 1;
      take("table", from);
    } else {
      at += 1;
      while (at < lines.length && lines[at].trim() !== "" && lines[at].length <= LONG && !startsBlock(lines[at]))
        at += 1;
      take("paragraph", from);
    }
  }
  return blocks;
}

/** Removes the optional closing marks of a heading. */
function withoutMarks(title) {
  let end = title.length;
  while (title[end - 1] === "#") end -= 1;
  return end === 0 || title[end - 1] === " " ? title.slice(0, end).trimEnd() : title;
}

const startsBlock = (line) =>
  FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);

/** Reads a list: items, indented lines below them, and single empty lines in between. */
function endOfList(lines, from) {
  let at = from + 1;
  while (at < lines.length) {
    const line = lines[at];
    const goesOn = line.trim() === "" ? ITEM.test(lines[at + 1] ?? "") || /^ {2,}\S/.test(lines[at + 1] ?? "") : true;
    if (!goesOn) break;
    if (
      line.trim() !== "" &&
      !ITEM.test(line) &&
      !/^\s{2,}/.test(line) &&
      (lines[at - 1].trim() === "" || startsBlock(line))
    )
      break;
    if (RULE.test(line)) break;
    at += 1;
  }
  return at;
}

function blockNode(block, depth) {
  if (block.raw.length > LONG && block.kind !== "code") return longNode(block.raw);
  switch (block.kind) {
    case "heading": // the page has headings of its own above these
      return h(`h${Math.min(6, block.level + 2)}`, { class: `level-${block.level}` }, ...inline(block.title));
    case "rule":
      return h("hr");
    case "code":
      return codeNode(block);
    case "quote":
      return h("blockquote", {}, ...nested(block.body, depth));
    case "list":
      return listNode(block.raw, depth);
    case "table":
      return tableNode(block.raw);
    default:
      return h("p", {}, ...inline(block.raw));
  }
}

const nested = (text, depth) =>
  depth >= DEPTH ? [h("p", {}, text)] : blocksOf(text).map((block) => blockNode(block, depth + 1));

/** Shows a block that is too long to be parsed: as plain text, and only its beginning at first. */
function longNode(text) {
  const shown = h("p", { class: "long" }, text.slice(0, SHOWN));
  if (text.length <= SHOWN) return shown;
  const more = h("button", { type: "button", class: "more" }, `Show all ${sizeText(text.length)}`);
  more.addEventListener("click", () => {
    shown.textContent = text;
    more.remove();
  });
  return h("div", {}, shown, more);
}

function codeNode({ body, language, isOpen }) {
  const code = h("code", {}, ...(body.length > LONG ? [body.slice(0, SHOWN)] : highlighted(body, language)));
  const copy = h(
    "button",
    { type: "button", class: "icon-button", "aria-label": "Copy code", title: "Copy code" },
    icon("copy")
  );
  copy.addEventListener("click", () => copyText(body, copy));
  const head = h("div", { class: "code-head" }, h("span", {}, language || "code"), copy);
  return h("div", { class: isOpen ? "code is-open" : "code" }, head, h("pre", { tabindex: "0" }, code));
}

function listNode(raw, depth) {
  const lines = raw.split("\n");
  const [, indent, mark] = ITEM.exec(lines[0]);
  const isOrdered = /\d/.test(mark);
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= indent.length + 1)
      items.push({ width: item[1].length + item[2].length + Math.max(1, item[3].length), lines: [item[4]] });
    else items.at(-1).lines.push(line.slice(Math.min(items.at(-1).width, line.length - line.trimStart().length)));
  }
  const list = h(
    isOrdered ? "ol" : "ul",
    isOrdered && Number.parseInt(mark, 10) !== 1 ? { start: Number.parseInt(mark, 10) } : {}
  );
  for (const item of items) {
    const task = /^\[([ xX])\]\s+/.exec(item.lines[0]);
    if (task) item.lines[0] = item.lines[0].slice(task[0].length);
    const blocks = nested(item.lines.join("\n"), depth);
    // The first paragraph of an item becomes the text of the item.
    const content = blocks.length && blocks[0].tagName === "P" ? [...blocks[0].childNodes, ...blocks.slice(1)] : blocks;
    const box = task
      ? h("input", {
          type: "checkbox",
          disabled: true,
          checked: task[1] !== " ",
          "aria-label": task[1] === " " ? "to do" : "done"
        })
      : null;
    list.append(h("li", task ? { class: "task" } : {}, box, ...content));
  }
  return list;
}

function cells(line) {
  return line
    .trim()
    .replace(/^\||\|$/g, "")
    .split(/(?<!\\)\|/)
    .map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function tableNode(raw) {
  const [head, rule, ...body] = raw.split("\n");
  const align = cells(rule).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : null));
  const row = (line, tag) =>
    h(
      "tr",
      {},
      ...cells(line).map((cell, n) =>
        h(tag, { class: align[n] ?? null, scope: tag === "th" ? "col" : null }, ...inline(cell))
      )
    );
  const table = h("table", {}, h("thead", {}, row(head, "th")), h("tbody", {}, ...body.map((line) => row(line, "td"))));
  return h("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, table);
}

// --- inside a line ---------------------------------------------------------------------------------------------------

// Repetitions are bounded, so that a hostile text cannot make parsing slow.
const TITLE = String.raw`(?:\s+"[^"\n]{0,200}")?\s*\)`;
const INLINE = new RegExp(
  [
    String.raw`(?<tick>${"`"}+)(?<code>[^${"`"}](?:[\s\S]{0,2000}?[^${"`"}])?)\k<tick>(?!${"`"})`,
    String.raw`!\[(?<alt>[^\]\n]{0,500})\]\(\s*<?(?<image>[^\s()<>]{1,2000})>?${TITLE}`,
    String.raw`\[(?<label>(?:[^\[\]\n]|\[[^\[\]\n]{0,200}\]){1,500})\]\(\s*<?(?<target>[^\s()<>]{0,2000}(?:\([^\s()<>]{0,200}\)[^\s()<>]{0,200})?)>?${TITLE}`,
    String.raw`<(?<angle>(?:https?:\/\/|mailto:)[^\s<>]{1,2000})>`,
    String.raw`(?<bare>https?:\/\/[^\s<>"'${"`"}*]{1,2000})`,
    String.raw`(?<stars>\*\*|__)(?=\S)(?<strong>\S|\S[\s\S]{0,600}?\S)\k<stars>`,
    String.raw`~~(?=\S)(?<gone>[^~\n]{1,400}?)~~`,
    // An underscore inside a word, as in snake_case, is not a mark.
    String.raw`(?<star>\*|(?<![\p{L}\p{N}_])_)(?=[^\s*_])(?<weak>[^\n]{0,400}?[^\s*_])\k<star>(?![\p{L}\p{N}])`,
    String.raw`\\(?<escaped>[\\${"`"}*_{}\[\]()#+\-.!~|<>])`,
    String.raw`(?<broken> {2,9}|\\)\n`
  ].join("|"),
  "gu"
);

function linkNode(url, children) {
  const safe = safeUrl(url);
  if (safe === null) return children.length ? children : [url];
  return [h("a", { href: safe, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children)];
}

/** Returns the nodes of a line or a paragraph. */
export function inline(text, depth = 0) {
  if (depth > 6) return [text];
  const nodes = [];
  let last = 0;
  for (const found of text.matchAll(INLINE)) {
    nodes.push(text.slice(last, found.index), ...marked(found.groups, depth + 1));
    last = found.index + found[0].length;
  }
  nodes.push(text.slice(last));
  return nodes.filter((node) => node !== "");
}

function marked({ code, alt, image, label, target, angle, bare, strong, gone, weak, escaped }, depth) {
  if (code !== undefined) return [h("code", {}, code.replace(/^ (.*) $/, "$1"))];
  if (image !== undefined) return [imageNode(alt, image)];
  if (label !== undefined) return linkNode(target, inline(label, depth));
  if (angle !== undefined) return linkNode(angle, [angle]);
  if (bare !== undefined) {
    const end = /[.,;:!?)\]]+$/.exec(bare)?.[0] ?? "";
    const url = bare.slice(0, bare.length - end.length);
    return [...linkNode(url, [url]), end];
  }
  if (strong !== undefined) return [h("strong", {}, ...inline(strong, depth))];
  if (gone !== undefined) return [h("del", {}, ...inline(gone, depth))];
  if (weak !== undefined) return [h("em", {}, ...inline(weak, depth))];
  return escaped !== undefined ? [escaped] : [h("br")];
}

/** Returns a link instead of an image: loading it would reveal the reader to its server. */
function imageNode(alt, url) {
  const safe = safeUrl(url);
  const label = alt || "image";
  if (safe === null) return h("span", { class: "image-link" }, icon("image"), label);
  return h(
    "a",
    {
      class: "image-link",
      href: safe,
      target: "_blank",
      rel: "noopener noreferrer nofollow",
      title: `Not loaded: ${safe}`
    },
    icon("image"),
    label
  );
}

// --- a text that grows -----------------------------------------------------------------------------------------------

/** Shows a text in a node. When it grows, only the changed blocks are created again. */
export class Markdown {
  #shown = []; // {raw, node}
  #text = null;

  constructor() {
    this.node = h("div", { class: "markdown" });
  }

  show(text) {
    if (text === this.#text) return;
    this.#text = text;
    const blocks = blocksOf(text);
    blocks.forEach((block, place) => {
      const before = this.#shown[place];
      if (before?.raw === block.raw && before.kind === block.kind) return;
      if (before && block.kind === "code" && before.kind === "code" && this.#growCode(before, block)) return;
      const node = blockNode(block, 0);
      if (before) before.node.replaceWith(node);
      else this.node.append(node);
      this.#shown[place] = { raw: block.raw, kind: block.kind, node };
    });
    for (const { node } of this.#shown.splice(blocks.length)) node.remove();
  }

  /** Updates a growing code block in place, so that selection, scroll position and focus are kept. */
  #growCode(before, block) {
    const fresh = codeNode(block);
    before.node.className = fresh.className;
    before.node.querySelector("pre").replaceChildren(...fresh.querySelector("pre").childNodes);
    before.node.querySelector(".code-head").replaceWith(fresh.querySelector(".code-head"));
    before.raw = block.raw;
    return true;
  }
}
