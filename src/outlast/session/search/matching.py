"""A query in the languages of both engines. Pure.

Words have letters, digits and marks only, so nothing in them needs quoting.
"""

from __future__ import annotations

from outlast.session.search.query import SearchQuery, Term


def for_fts5(query: SearchQuery, token: str) -> str:
    """Return the query as an FTS5 expression.

    ```python
    from outlast.session.search.matching import for_fts5
    from outlast.session.search.query import SearchQuery, Term

    query = SearchQuery((Term(("owl",), "owl"), Term(("big", "ca"), is_prefix=True)))
    assert for_fts5(query, "t") == '("twowl" OR "tsowl") AND "twbig twca" *'
    ```
    """

    def written(term: Term) -> str:
        if term.stem is not None:
            return "(" + " OR ".join(f'"{each}"' for each in _forms(term, token)) + ")"
        return '"' + " ".join(_words(term, token)) + ('" *' if term.is_prefix else '"')

    found = " AND ".join(map(written, query.required))
    if query.excluded:
        found = f"({found}) NOT ({' OR '.join(map(written, query.excluded))})"
    return found


def for_tsquery(query: SearchQuery, token: str) -> str:
    """Return the query as the text of a `tsquery`."""

    def written(term: Term) -> str:
        if term.stem is not None:
            return "(" + " | ".join(f"'{each}'" for each in _forms(term, token)) + ")"
        words = " <-> ".join(f"'{each}'" for each in _words(term, token))
        return f"({words}{':*' if term.is_prefix else ''})"

    return " & ".join(
        [*map(written, query.required), *(f"!{written(term)}" for term in query.excluded)]
    )


def _words(term: Term, token: str) -> list[str]:
    return [f"{token}w{word}" for word in term.words]


def _forms(term: Term, token: str) -> list[str]:
    """Return the word, its stem as a word, and all words of that stem."""
    words = dict.fromkeys([*term.words, str(term.stem)])
    return [*(f"{token}w{word}" for word in words), f"{token}s{term.stem}"]
