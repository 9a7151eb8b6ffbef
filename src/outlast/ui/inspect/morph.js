// Updating a view: only nodes that differ are changed, so that focus, selection, scroll positions and open details are
// kept.

const KEPT = new Set(["open"]); // attributes that only the user changes

function attributes(node, wanted) {
  for (const { name, value } of wanted.attributes) {
    if (!KEPT.has(name) && node.getAttribute(name) !== value) node.setAttribute(name, value);
  }
  for (const { name } of [...node.attributes]) {
    if (!KEPT.has(name) && !wanted.hasAttribute(name)) node.removeAttribute(name);
  }
}

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null);
const isAlike = (one, other) => one.nodeType === other.nodeType && one.nodeName === other.nodeName && keyOf(one) === keyOf(other);

/** Updates the children of `parent` to equal `wanted`. Nodes with a `data-key` are reused wherever they are. */
export function morph(parent, wanted) {
  const keyed = new Map([...parent.children].filter((node) => keyOf(node) !== null).map((node) => [keyOf(node), node]));
  let at = parent.firstChild;
  for (const given of wanted) {
    const next = typeof given === "string" ? document.createTextNode(given) : given;
    const key = keyOf(next);
    const known = key === null ? at : keyed.get(key);
    if (!known || !isAlike(known, next)) {
      parent.insertBefore(next, at);
      continue;
    }
    if (known !== at) parent.insertBefore(known, at);
    else at = at.nextSibling;
    if (known.nodeType === Node.TEXT_NODE) {
      if (known.data !== next.data) known.data = next.data;
    } else {
      attributes(known, next);
      morph(known, [...next.childNodes]);
    }
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}
