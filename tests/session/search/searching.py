"""A store with the tables of the search index, and conversations in it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from rows import opened

import outlast.session
from outlast.chat.transcript import sql as message_rows
from outlast.session.search.backfill import Backfill
from outlast.session.search.query import parsed
from outlast.session.search.rank import Matcher
from outlast.session.search.scan import scan
from outlast.session.search.search import SearchHit, SearchIndex
from outlast.session.search.words import analyser
from outlast.store.base import Store, StoreOptions
from outlast.store.operations import Fence, Operation, Query
from outlast.store.schema import Schema
from outlast.store.url import open_store

SQL = Path(outlast.session.__file__).parent / "sql"
SCHEMA = Schema(
    "session",
    {
        f"0001_search.{engine}.sql": (SQL / f"0002_search.{engine}.sql").read_text("utf-8")
        for engine in ("sqlite", "postgres")
    },
    owned={"session_texts": "agent", "session_indexed": "agent"},
)
TEXTS = Query.same(
    "SELECT id, slice, number, due, words FROM session_texts WHERE agent = ? ORDER BY id, slice"
)
STATE = Query.same("SELECT analyser, first FROM session_indexed WHERE agent = ?")
OWNER = Query.same("SELECT epoch, owner, commit_no FROM agents WHERE root = ?")


def message(id: str, text: str, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"id": id, "role": role, "parts": [{"type": "text", "text": text}], **more}


class Conversation:
    """The messages of one agent, stored as the transcript does it, with the index or without."""

    def __init__(
        self, store: Store, address: str = "A/x", language: str | None = "english"
    ) -> None:
        self.store = store
        self.address = address
        self.language = language
        self.index = SearchIndex(store, address, language)
        self._fence: Fence | None = None
        self.number = 0

    async def commit(self, operations: list[Operation]) -> tuple[int, ...]:
        if self._fence is None:
            found = await self.store.fetch(OWNER, self.address)
            known: Any = tuple(found[0]) if found else None
            self._fence = Fence.after(self.address, f"host{id(self)}", known)
        return await self.store.commit(self._fence, operations)

    async def add(self, *messages: dict[str, Any], is_indexed: bool = True) -> None:
        """New messages, in one commit."""
        operations: list[Operation] = []
        if is_indexed:
            operations.append(self.index.writes.begun(self.number + 1))
        for each in messages:
            self.number += 1
            operations.append(self._put(message_rows.CREATE, each))
        await self._store(operations, is_indexed)

    async def put(self, changed: dict[str, Any], is_indexed: bool = True) -> None:
        """A message that is stored again; its number is kept."""
        self.number += 1
        await self._store([self._put(message_rows.PUT, changed)], is_indexed)

    async def replace(self, changed: dict[str, Any], is_indexed: bool = True) -> None:
        body = json.dumps(changed)
        values = (self.address, changed["id"], len(body), body)
        await self._store([(message_rows.REPLACE, values)], is_indexed)

    async def clear(self, is_indexed: bool = True) -> None:
        await self._store([(message_rows.CLEAR, (self.address,))], is_indexed)

    async def remove(self, id: str) -> None:
        await self.commit(self.index.writes.removed([id]))

    def _put(self, statement: Any, each: dict[str, Any]) -> Operation:
        body = json.dumps(each)
        place = (self.address, each["id"], None, self.number, each["role"])
        return statement, (*place, "settled", None, len(body), body, self.number * 1000)

    async def _store(self, operations: list[Operation], is_indexed: bool) -> None:
        follow = self.index.writes.following(operations) if is_indexed else []
        await self.commit([*operations, *follow])

    def backfill(self) -> Backfill:
        return Backfill(self.store, self.commit, self.address, analyser(self.language))

    async def ids(self, query: str, limit: int = 20) -> list[str]:
        return [hit.message_id for hit in await self.index.search(query, limit)]

    async def shown(self, query: str) -> dict[str, str]:
        return {hit.message_id: hit.snippet.marked("[", "]") for hit in await self.hits(query)}

    async def hits(self, query: str) -> list[SearchHit]:
        return await self.index.search(query)

    async def scanned(self, query: str) -> list[str]:
        """What the same search finds without the index."""
        words = analyser(self.language)
        wanted = parsed(query, words)
        if not wanted:
            return []
        matcher = Matcher(wanted)
        found = await scan(self.store, self.address, matcher, words, most=1_000_000)
        return [each.candidate.id for each in matcher.ranked(found)]


def searching(url: str, options: StoreOptions | None = None) -> Any:
    """The store at a URL, opened with the tables of the index."""
    return opened(url, options, schemas=[SCHEMA])


@contextlib.asynccontextmanager
async def conversation(
    url: str, texts: Iterable[str] = (), language: str | None = "english"
) -> AsyncIterator[Conversation]:
    """A conversation with these texts; their ids are m1, m2, …"""
    async with searching(url) as store:
        made = Conversation(store, language=language)
        messages = [message(f"m{number}", text) for number, text in enumerate(texts, 1)]
        if messages:
            await made.add(*messages)
        yield made


__all__ = [
    "SCHEMA",
    "STATE",
    "TEXTS",
    "Conversation",
    "conversation",
    "message",
    "open_store",
    "searching",
]
