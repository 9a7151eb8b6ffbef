// Simple syntax highlighting: comments, strings, numbers and common keywords. Nodes, never HTML.

const WORDS = new Set(
  `abstract and any as assert async await bool boolean break case catch char class const continue def default del do double
   elif else enum except export extends false False final finally float fn for from func function global go goto if impl
   implements import in instanceof int interface is lambda let long loop match mod mut namespace new nil None nonlocal not
   null number object of or package pass pub private protected public raise readonly return self short static str string
   struct super switch this throw throws trait true True try type typeof undefined union unless until use using val var
   void where while with yield SELECT FROM WHERE INSERT INTO UPDATE DELETE CREATE TABLE JOIN LEFT ON GROUP ORDER BY LIMIT
   AND OR NOT NULL VALUES SET echo done then fi`
    .split(/\s+/)
    .filter(Boolean)
);
const PLAIN = new Set(["", "text", "txt", "plain", "output", "console", "log", "markdown", "md"]);
const HASH = /^(py|python|sh|bash|zsh|shell|rb|ruby|yaml|yml|toml|ini|r|perl|make|dockerfile|nginx)$/i;
const TOKEN =
  /(\/\*[\s\S]*?(?:\*\/|$)|\/\/[^\n]*|--[^\n]*|#[^\n]*|<!--[\s\S]*?(?:-->|$))|("""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|`(?:\\.|[^`\\])*`?)|(\b\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?\b|\b0x[\da-fA-F]+\b)|([A-Za-z_$][\w$]*)(\s*\()?|(@[\w.]+)/g;

function isComment(text, language) {
  if (text.startsWith("#")) return HASH.test(language);
  if (text.startsWith("--")) return /^(sql|lua|hs|haskell|elm|ada)$/i.test(language);
  if (text.startsWith("//")) return !HASH.test(language);
  return true;
}

function span(kind, text) {
  const node = document.createElement("span");
  node.className = `c-${kind}`;
  node.textContent = text;
  return node;
}

/** Returns the nodes of a piece of code. */
export function highlighted(code, language) {
  if (PLAIN.has(language.toLowerCase())) return [code];
  const nodes = [];
  let last = 0;
  TOKEN.lastIndex = 0;
  for (let found = TOKEN.exec(code); found; found = TOKEN.exec(code)) {
    const [all, comment, string, number, word, called, decorator] = found;
    let kind = null;
    let length = all.length;
    if (comment !== undefined) {
      if (isComment(comment, language)) kind = "comment";
      else TOKEN.lastIndex = found.index + (length = comment.startsWith("#") ? 1 : 2);
    } else if (string !== undefined) kind = "string";
    else if (number !== undefined) kind = "number";
    else if (decorator !== undefined) kind = "function";
    else {
      length = word.length;
      TOKEN.lastIndex = found.index + length;
      kind = WORDS.has(word) ? "word" : called ? "function" : null;
    }
    if (kind === null) continue;
    nodes.push(code.slice(last, found.index), span(kind, code.slice(found.index, found.index + length)));
    last = found.index + length;
  }
  nodes.push(code.slice(last));
  return nodes.filter((node) => node !== "");
}
