"""What somebody searches for, as terms. Pure; every text is a query, and none is an error.

| written | finds |
| --- | --- |
| `night owls` | both words, in any order, in any form (`owl`) |
| `"night owls"` | this phrase, in these forms |
| `read_file(1)` | the same words beside each other |
| `ow*` | words that begin with `ow` |
| `owls -night` | the first without the second |
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from outlast.session.search.words import Analyser, Piece, is_unspaced

MAX_CHARACTERS = 4_096
MAX_TERMS = 32
MAX_WORDS = 32  # of a phrase

_QUOTES = str.maketrans("“”„‟«»「」", '""""""""')
_TERM = re.compile(
    r'(?P<minus>(?<![^\s,;|])-)?(?:"(?P<phrase>[^"]*)"(?P<star>\*?)|(?P<chunk>[^\s",;|]+))'
)


@dataclass(frozen=True, slots=True)
class Term:
    """Words that follow each other. A single word with a `stem` matches other forms of it, too."""

    words: tuple[str, ...]
    stem: str | None = None
    is_prefix: bool = False  # the last word is the beginning of one


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """All of the required terms, and none of the excluded ones."""

    required: tuple[Term, ...] = ()
    excluded: tuple[Term, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.required)


def parsed(text: str, analyser: Analyser) -> SearchQuery:
    """Return the query that a text means; it is empty if nothing in it can be searched for.

    ```python
    from outlast.session.search.query import parsed
    from outlast.session.search.words import analyser

    query = parsed('owls "night sky" ow* -cat', analyser("english"))
    assert [term.words for term in query.required] == [("owls",), ("night", "sky"), ("ow",)]
    assert [term.words for term in query.excluded] == [("cat",)]
    ```
    """
    required: dict[Term, None] = {}
    excluded: dict[Term, None] = {}
    for match in _TERM.finditer(_balanced(text[:MAX_CHARACTERS].translate(_QUOTES))):
        term = _term(match, analyser)
        if term is not None and len(required) + len(excluded) < MAX_TERMS:
            (excluded if match["minus"] else required)[term] = None
    return SearchQuery(tuple(required), tuple(excluded)) if required else SearchQuery()


def _balanced(text: str) -> str:
    """Return the text without a quote that no other one closes."""
    if text.count('"') % 2 == 0:
        return text
    before, _, after = text.rpartition('"')
    return f"{before} {after}"


def _term(match: re.Match[str], analyser: Analyser) -> Term | None:
    chunk = match["chunk"]
    is_prefix = match["star"] == "*" if chunk is None else chunk.endswith("*")
    pieces = analyser.spans(match["phrase"] if chunk is None else chunk)[:MAX_WORDS]
    if not pieces:
        return None
    if len(pieces) > 1 and _ends_run(pieces[-2], pieces[-1]):
        pieces.pop()  # the text may go on after this character
    last = pieces[-1].word
    is_prefix = is_prefix or (len(last) == 1 and is_unspaced(last))
    words = tuple(piece.word for piece in pieces)
    if chunk is None or is_prefix or len(words) > 1 or is_unspaced(last):
        return Term(words, None, is_prefix)
    return Term(words, pieces[0].stem or last)


def _ends_run(before: Piece, last: Piece) -> bool:
    """Return whether the last piece is the last character of the pair before it."""
    is_pair = len(before.word) == 2 and is_unspaced(before.word) and len(last.word) == 1
    return is_pair and before.word[1] == last.word and before.end == last.end
