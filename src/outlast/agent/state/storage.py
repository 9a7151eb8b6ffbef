"""A durable key-value map per agent. Values are strict JSON."""

from __future__ import annotations

import asyncio
from typing import Any

from outlast.agent.commit import Commits
from outlast.core import json
from outlast.core.errors import CorruptValue
from outlast.core.text import problem_of
from outlast.store.base import Store
from outlast.store.operations import Query, Statement

INLINE_BYTES = 64 * 1024  # larger values are read on the reader thread
PAGE = 200

_PUT = Statement.same(
    "storage put",
    "agent text, key text, size bigint, value text",
    """
        INSERT INTO storage (agent, key, size, value)
        VALUES (:agent, :key, :size, :value)
        ON CONFLICT (agent, key) DO UPDATE SET size = excluded.size, value = excluded.value
    """,
    key=2,
)

_DELETE = Statement.same(
    "storage delete",
    "agent text, key text",
    "DELETE FROM storage WHERE storage.agent = :agent AND storage.key = :key",
    key=2,
)

_GET_SMALL = Query.same(
    f"SELECT CASE WHEN size <= {INLINE_BYTES} THEN value END FROM storage"
    f" WHERE agent = ? AND key = ?"
)
_GET = Query.same("SELECT value FROM storage WHERE agent = ? AND key = ?", bulk=True)
_LIST = Query.same(
    "SELECT key, value FROM storage WHERE agent = ? AND key >= ? AND key < ? ORDER BY key LIMIT ?",
    bulk=True,
)
_LIST_TO_THE_END = Query.same(
    "SELECT key, value FROM storage WHERE agent = ? AND key >= ? ORDER BY key LIMIT ?", bulk=True
)


class Storage:
    """The agent's own key-value map.

    ```python
    from outlast import Agent, Host

    class Notes(Agent):
        async def demo(self) -> dict:
            await self.storage.put("note:1", {"text": "buy milk"})
            await self.storage.put("note:2", {"text": "sell cow"})
            await self.storage.delete("note:1")
            return await self.storage.list("note:")

    async with Host(agents=[Notes], store="sqlite:///notes.db") as host:
        assert await host.get(Notes, "alice").demo() == {"note:2": {"text": "sell cow"}}
    ```
    """

    def __init__(self, agent: str, store: Store, commits: Commits) -> None:
        self._agent = agent
        self._store = store
        self._commits = commits

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value of `key`, or `default`."""
        _check_key(key)
        written = self._written()
        if written is not None and key in written:
            text = written[key]
        else:
            text = await self._read(key)
        return default if text is None else self._decoded(key, text)

    async def put(self, key: str, value: Any) -> None:
        """Set `key`. Durable when this returns; inside `commit()`, when the block ends."""
        _check_key(key)
        text = json.encode(value, "value")
        written = self._written()
        if written is not None:
            written[key] = text
        await self._commits.write([(_PUT, (self._agent, key, len(text), text))])

    async def delete(self, key: str) -> None:
        """Delete `key`, if it exists."""
        _check_key(key)
        written = self._written()
        if written is not None:
            written[key] = None
        await self._commits.write([(_DELETE, (self._agent, key))])

    async def list(self, prefix: str = "") -> dict[str, Any]:
        """Return all keys that start with `prefix` and their values, ordered by code points."""
        _check_key(prefix)
        found = await self._scan(prefix)
        for key, text in (self._written() or {}).items():
            if key.startswith(prefix):
                found[key] = text
        return {
            key: self._decoded(key, text) for key, text in sorted(found.items()) if text is not None
        }

    def _written(self) -> dict[str, str | None] | None:
        """Return the writes of the open commit() block, or None if no block is open."""
        block = self._commits.current()
        return None if block is None else block.view(self, dict[str, str | None])

    async def _read(self, key: str) -> str | None:
        rows = await self._store.fetch(_GET_SMALL, self._agent, key)
        if rows and rows[0][0] is None:
            rows = await self._store.fetch(_GET, self._agent, key)
        return rows[0][0] if rows else None

    async def _scan(self, prefix: str) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        start, end = prefix, end_of(prefix)
        while True:
            if end is None:
                rows = await self._store.fetch(_LIST_TO_THE_END, self._agent, start, PAGE)
            else:
                rows = await self._store.fetch(_LIST, self._agent, start, end, PAGE)
            found.update(rows)
            if len(rows) < PAGE:
                return found
            start = rows[-1][0] + "\x01"  # the next possible key: keys contain no NUL
            await asyncio.sleep(0)

    def _decoded(self, key: str, text: str) -> Any:
        try:
            return json.decode(text)
        except ValueError as error:
            raise CorruptValue(
                f"{self._agent}: the stored value of {key!r} is not valid JSON ({error}). Other keys are"
                f" not affected; put() or delete() this key."
            ) from None


def end_of(prefix: str) -> str | None:
    """Return the first string after all that start with `prefix`, by code points, or None."""
    prefix = prefix.rstrip("\U0010ffff")
    if not prefix:
        return None
    following = ord(prefix[-1]) + 1
    if 0xD800 <= following <= 0xDFFF:
        following = 0xE000  # surrogates are not valid in a string that is stored
    return prefix[:-1] + chr(following)


def _check_key(key: str) -> None:
    problem = problem_of(key, blank=True)
    if problem is not None:
        kind = ValueError if isinstance(key, str) else TypeError
        raise kind(f"a storage key {problem}")
