"""What stands in the store, read from outside while the server runs, or dies."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from dataclasses import dataclass, field
from typing import Any, Protocol, Self
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

TRIES = 200
KIND = "Chatter"

_ENTRIES = (
    "SELECT id, kind, state, outcome, error, message_id, attempt, cancelled FROM inbox"
    " WHERE agent = ? ORDER BY seq"
)
_MESSAGES = "SELECT id, parent, role, body FROM messages WHERE agent = ? ORDER BY number"
_STREAMS = "SELECT turn, seq, body FROM streams WHERE agent = ? ORDER BY turn, seq"
_GIVEN_UP = "SELECT turn, body FROM incidents WHERE state = 'exhausted' AND agent = ?"
_OPEN = {
    "a turn": "SELECT agent, id, state FROM inbox WHERE ended_at IS NULL AND agent > ?",
    "a fiber": "SELECT agent, id, status FROM fibers WHERE settled_at IS NULL AND agent > ?",
    "an incident": "SELECT agent, turn, state FROM incidents WHERE state <> 'exhausted' AND agent > ?",
    "a call": "SELECT agent, id, state FROM calls WHERE ended_at IS NULL AND agent > ?",
    "a boot": "SELECT agent, 'strikes', strikes FROM boots WHERE agent > ?",
}


@dataclass(frozen=True, slots=True)
class Entry:
    id: str
    kind: str
    state: str
    outcome: str | None
    error: str | None
    message_id: str | None
    attempt: int
    cancelled: str | None


@dataclass(frozen=True, slots=True)
class StoredMessage:
    id: str
    parent: str | None
    role: str
    body: dict[str, Any]


@dataclass(slots=True)
class Rows:
    """Of one agent."""

    entries: list[Entry] = field(default_factory=list)
    messages: list[StoredMessage] = field(default_factory=list)
    streams: dict[str, dict[int, str]] = field(default_factory=dict)  # by turn and seq
    given_up: dict[str, str] = field(default_factory=dict)  # turns, and why


class Fetches(Protocol):
    async def fetch(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]: ...


async def rows_of(store: Fetches, name: str) -> Rows:
    """What is stored of an agent."""
    agent = f"{KIND}/{name}"
    rows = Rows([Entry(*row) for row in await store.fetch(_ENTRIES, agent)])
    for id, parent, role, body in await store.fetch(_MESSAGES, agent):
        rows.messages.append(StoredMessage(id, parent, role, json.loads(body)))
    for turn, seq, body in await store.fetch(_STREAMS, agent):
        chunks = rows.streams.setdefault(turn, {})
        chunks.update(enumerate(body.split("\n"), seq))
    for turn, body in await store.fetch(_GIVEN_UP, agent):
        rows.given_up[turn] = str(json.loads(body).get("reason"))
    return rows


async def unfinished(store: Fetches) -> list[tuple[str, str]]:
    """What is still under way in the whole store: the agent's name, and what it is."""
    found = []
    for what, sql in _OPEN.items():
        for agent, id, state in await store.fetch(sql, ""):
            found.append((str(agent).partition("/")[2], f"{what} is left: {id} ({state})"))
    return found


class SqliteFile:
    """Read-only, a connection each time: none may keep the next worker from tidying up."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def fetch(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        for _ in range(TRIES):
            try:
                connection = sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=5)
                try:
                    return connection.execute(sql, arguments).fetchall()
                finally:
                    connection.close()
            except sqlite3.OperationalError:  # what a dead worker has left is not tidied up yet
                await asyncio.sleep(0.05)
        raise AssertionError(f"{self._path} cannot be read")


class PostgresSchema:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        self._schema = query.pop("schema", "outlast")
        self._url = urlunsplit(parts._replace(query=urlencode(query)))
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._connection: Any = None
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.terminate()

    async def fetch(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        import asyncpg

        async with self._lock:
            for _ in range(TRIES):
                try:
                    return await self._fetch(sql.replace("?", "$1"), *arguments)
                except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    self._connection = None  # it was restarted, and is back soon
                    await asyncio.sleep(0.05)
        raise AssertionError("the database cannot be read")

    async def _fetch(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        import asyncpg

        if self._connection is None:
            settings = {"search_path": self._schema}
            self._connection = await asyncpg.connect(self._url, server_settings=settings)
        return [tuple(row) for row in await self._connection.fetch(sql, *arguments)]


def reader(url: str) -> SqliteFile | PostgresSchema:
    """Whatever reads the store at a URL."""
    if url.startswith("sqlite:///"):
        return SqliteFile(url.removeprefix("sqlite:///"))
    return PostgresSchema(url)
