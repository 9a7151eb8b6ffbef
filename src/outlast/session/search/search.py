"""The search of one agent's messages."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from outlast.session.search import sql
from outlast.session.search.matching import for_fts5, for_tsquery
from outlast.session.search.query import SearchQuery, parsed
from outlast.session.search.rank import Candidate, Matcher, Ranked
from outlast.session.search.scan import MAX_FOUND, scan
from outlast.session.search.snippet import SearchSnippet, snippet
from outlast.session.search.words import analyser
from outlast.session.search.writes import IndexWrites, text_of
from outlast.store.base import Row
from outlast.store.catalogue import Reader

LANGUAGE = "english"
MAX_HITS = 100


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A message that was found. `snippet.marked()` shows why."""

    message_id: str
    role: str
    snippet: SearchSnippet
    score: float
    created_at: datetime


class SearchIndex:
    """Finds messages of one agent, on all branches, by their words.

    `reader` is an open store, or one that was opened read-only. `writes` has the operations that keep the
    index up to date. Without an index, and for messages that it does not reach yet, the newest messages are
    read instead.
    """

    def __init__(
        self,
        reader: Reader,
        address: str,
        language: str | None = LANGUAGE,
        *,
        has_tables: bool = True,
    ) -> None:
        self._reader = reader
        self._address = address
        self._analyser = analyser(language)
        self._has_tables = has_tables
        self.writes = IndexWrites(address, self._analyser)

    async def search(self, text: str, limit: int = 20) -> list[SearchHit]:
        """Return the messages that match a query, best first. `query` says how it is written."""
        query = parsed(text, self._analyser)
        if not query or limit < 1:
            return []
        matcher = Matcher(query)
        candidates = await self._candidates(query, matcher)
        best = matcher.ranked(candidates)[: min(limit, MAX_HITS)]
        return await self._hits(query, matcher, best)

    async def _candidates(self, query: SearchQuery, matcher: Matcher) -> list[Candidate]:
        state = await self._reader.fetch(sql.STATE, self._address) if self._has_tables else []
        if state and state[0][0] != self._analyser.name:  # of another language
            state = []
        first = state[0][1] if state and isinstance(state[0][1], int) else sql.NOTHING
        if first <= sql.ALL:
            return await self._indexed(query)
        older = await scan(self._reader, self._address, matcher, self._analyser, below=first)
        return older if not state else (await self._indexed(query) + older)[:MAX_FOUND]

    async def _indexed(self, query: SearchQuery) -> list[Candidate]:
        written = for_fts5 if self._reader.engine == "sqlite" else for_tsquery
        match = written(query, sql.token_of(self._address))
        rows = await self._reader.fetch(sql.FOUND, self._address, match, MAX_FOUND)
        return [Candidate._make(row) for row in rows if isinstance(row[2], int)]

    async def _hits(
        self, query: SearchQuery, matcher: Matcher, best: Sequence[Ranked]
    ) -> list[SearchHit]:
        if not best:
            return []
        ids = [each.candidate.id for each in best]
        rows = await self._reader.fetch(sql.messages(len(ids)), self._address, *ids)
        messages = {row[0]: row for row in rows}
        hits = []
        for each in best:
            row = messages.get(each.candidate.id)
            if row is not None:
                with suppress(TypeError, ValueError, OverflowError, OSError):  # a damaged row
                    hits.append(self._hit(query, matcher, each, row))
        return hits

    def _hit(self, query: SearchQuery, matcher: Matcher, found: Ranked, row: Row) -> SearchHit:
        id, _, role, body, created_at = row
        start, length = found.candidate.start, found.candidate.length
        passage = text_of(body)[start : start + length]
        shown = snippet(passage, matcher.place(found.candidate), query, self._analyser)
        at = datetime.fromtimestamp(created_at / 1000, UTC)
        return SearchHit(id, role, shown, found.score, at)
