"""The keys of entries that the model writes. Pure."""

from __future__ import annotations

import re
from hashlib import sha256

from outlast.core.text import problem_of

MAX_SLUG = 60  # characters

_BETWEEN = re.compile(r"[\W_]+")


def slug(text: str) -> str:
    """Return a text as words in lower case with hyphens between them; "" if it has no words."""
    return _BETWEEN.sub("-", text.casefold()[: 4 * MAX_SLUG]).strip("-")[:MAX_SLUG].strip("-")


def entry_key(content: str, title: str | None) -> str:
    """Return the key of an entry: the same title is the same entry, and so is the same content."""
    if title is not None and (named := slug(title)):
        return named
    digest = sha256(content.encode("utf-8", "replace")).hexdigest()[:12]
    return f"{slug(content)[: MAX_SLUG - 13].strip('-')}-{digest}".lstrip("-")


def key_problem(key: object) -> str | None:
    """Return why this cannot be the key of an entry, or None."""
    return problem_of(key)
