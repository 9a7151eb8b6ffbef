"""The misfortunes of a database: a gateway between PostgreSQL and the server, which cuts and freezes.

A crash is a real one: a process of PostgreSQL is killed, which then drops everybody and recovers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

CUT = "connections cut, database"
FREEZE = "frozen, database"
AWAY = "away, database"
CRASH = "crashed, database"
KINDS = {CUT: 12, FREEZE: 6, AWAY: 4, CRASH: 4}

FROZEN_FOR = 2.0  # seconds: less than the next worker waits for the lock of the last
AWAY_FOR = 2.0  # seconds
PIECE = 65536  # bytes


class Gateway:
    """Passes on what is sent, as long as it may."""

    def __init__(self, url: str, *, may_crash: bool = False) -> None:
        """`may_crash`: nobody else has anything in that server."""
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        self._direct = urlunsplit(
            parts._replace(query=urlencode({k: v for k, v in query.items() if k != "schema"}))
        )
        host = query.pop("host", None) or parts.hostname or "127.0.0.1"
        port = query.pop("port", None) or parts.port or 5432
        self._is_local = host.startswith("/")
        self._may_crash = may_crash and self._is_local
        self._path = f"{host}/.s.PGSQL.{port}"
        self._address = host, int(port)
        if self._is_local:
            query["sslmode"] = "disable"
        self._parts, self._query = parts, query
        self._links: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._is_away = False

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._listener.sockets[0].getsockname()[1]
        user = self._parts.netloc.rpartition("@")[0] or quote(os.environ.get("USER", "postgres"))
        netloc = f"{user}@127.0.0.1:{port}"
        parts = self._parts._replace(netloc=netloc, query=urlencode(self._query))
        self.url = urlunsplit(parts)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        self._flows.set()
        self._drop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.sleep(0)  # their connections are closed by then

    # --- misfortunes -----------------------------------------------------------------------------

    async def strike(self, kind: str) -> float:
        """Have one of them. When it was over, on the monotonic clock."""
        match kind:
            case "connections cut, database":
                self._drop()
            case "frozen, database":
                self._flows.clear()
                await asyncio.sleep(FROZEN_FOR)
                self._flows.set()
            case "crashed, database" if self._may_crash and await self._crash():
                pass
            case _:
                self._is_away = True
                self._drop()
                await asyncio.sleep(AWAY_FOR)
                self._is_away = False
        return time.monotonic()

    async def _crash(self) -> bool:
        """Kill a process of PostgreSQL, and wait until it has recovered. False: it cannot be killed."""
        import asyncpg

        connection: Any = await asyncpg.connect(self._direct)
        pid = connection.get_server_pid()
        try:
            if not _is_postgres(pid):
                return False
            os.kill(pid, signal.SIGKILL)
        except OSError:
            return False
        finally:
            connection.terminate()
        async with asyncio.timeout(60):
            while True:
                try:
                    connection = await asyncpg.connect(self._direct, timeout=5)
                except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    await asyncio.sleep(0.05)
                    continue
                await connection.close()
                return True

    def _drop(self) -> None:
        for link in list(self._links):
            link.transport.abort()

    # --- passing on ------------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_away:
            writer.transport.abort()
            return
        try:
            behind = await (
                asyncio.open_unix_connection(self._path)
                if self._is_local
                else asyncio.open_connection(*self._address)
            )
        except OSError:
            writer.transport.abort()
            return
        self._links |= {writer, behind[1]}
        ways = [
            asyncio.create_task(self._pass_on(reader, behind[1])),
            asyncio.create_task(self._pass_on(behind[0], writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for end in (writer, behind[1]):
                end.close()
                self._links.discard(end)

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(PIECE):
                await self._flows.wait()
                target.write(data)
                await target.drain()


def _is_postgres(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"postgres:")
