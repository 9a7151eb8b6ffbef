"""Schemas of a PostgreSQL server that tests use in turn: making one takes longer than most tests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

from outlast.store.url import open_store

# All that a test may have changed besides rows, and whether anybody still writes.
SHAPE = """
    SELECT (SELECT string_agg(concat_ws(' ', table_name, column_name, data_type, column_default), ','
                              ORDER BY table_name, ordinal_position)
            FROM information_schema.columns WHERE table_schema = $1),
           (SELECT string_agg(replace(indexdef, $1 || '.', ''), ',' ORDER BY indexname)
            FROM pg_indexes WHERE schemaname = $1),
           (SELECT count(*) FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
            JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = $1)
"""
WRITERS = """
    SELECT count(*) FROM pg_locks JOIN pg_class ON pg_class.oid = relation
    JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = $1 AND pid <> pg_backend_pid()
"""
WAITS_AT_MOST = "SET lock_timeout = '200ms'"


class Schemas:
    """Those of one process. What a test gives back is emptied for another one, unless it was altered."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._numbers = count(1)
        self._used: deque[str] = deque()
        self._runner = asyncio.Runner()
        self._thread = ThreadPoolExecutor(1)  # tests have event loops of their own
        self._do(self._open())

    def url(self, name: str) -> str:
        return f"{self._server}{'&' if '?' in self._server else '?'}schema={name}"

    def take(self) -> str:
        """The name of an empty schema, or of one that is not there yet."""
        while len(self._used) > 1:  # the sessions of the last one may not have ended yet
            name = self._used.popleft()
            if self._do(self._emptied(name)):
                return name
        return f"reused{next(self._numbers)}"

    def give_back(self, name: str) -> None:
        self._used.append(name)

    def close(self) -> None:
        self._do(self._disconnect())
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._thread.submit(self._runner.run, work).result()

    async def _open(self) -> None:

        store = await open_store(self.url("pattern"))
        await store.close()
        await self._connect()
        self._shape = await self._connection.fetchrow(SHAPE, "pattern")
        self._meta = await self._connection.fetch("SELECT * FROM pattern.meta ORDER BY key")
        found = await self._connection.fetch(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'pattern' AND tablename <> 'meta'"
        )
        self._tables = [name for (name,) in found]

    async def _connect(self) -> None:
        import asyncpg

        self._connection = await asyncpg.connect(self._server)
        await self._connection.execute(WAITS_AT_MOST)

    async def _disconnect(self) -> None:
        """Say goodbye to the server; a session that a test has ended cannot, and is just dropped."""
        import asyncpg

        try:
            await self._connection.close()
        except (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError):
            self._connection.terminate()

    async def _emptied(self, name: str) -> bool:
        """False: it is not as it was made, or somebody is still at it; then nobody gets it again."""
        import asyncpg

        try:
            if self._connection.is_closed():
                await self._connect()
            return await self._is_emptied(name)
        except (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError):
            return False  # a test has ended every session of the server
        except asyncpg.LockNotAvailableError:
            return False

    async def _is_emptied(self, name: str) -> bool:
        if await self._connection.fetchrow(SHAPE, name) != self._shape:
            return False
        if await self._connection.fetchval(WRITERS, name):
            return False
        meta = await self._connection.fetch(f"SELECT * FROM {name}.meta ORDER BY key")
        if meta != self._meta:
            return False
        script = "".join(f"DELETE FROM {name}.{table};" for table in self._tables)
        await self._connection.execute(script)
        return True
