"""One server per PostgreSQL schema: an advisory lock that the writing session holds until it ends.

The lock is shared, and its second number identifies the server: the workers of one server do not exclude each
other. A process that finds another number held is refused. See docs/decisions/0031-one-server-per-schema.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import socket
import time
from datetime import datetime
from typing import Any

from outlast.core.errors import StoreLocked

GATE = (
    0x6F75746C  # "outl": serialises the migrations and lock checks of processes that start together
)
WAIT_FOR = 5.0  # seconds for the session of a killed process to end
FIRST_RETRY = 0.01  # seconds, doubling
LAST_RETRY = 0.2

TAKE_GATE = f"SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock({GATE})"
_TAKE = "SELECT pg_advisory_lock_shared($1, $2)"
_OTHERS = """
    SELECT locks.pid, who.application_name, who.client_addr::text, who.backend_start
    FROM pg_locks AS locks LEFT JOIN pg_stat_activity AS who ON who.pid = locks.pid
    WHERE locks.locktype = 'advisory' AND locks.granted AND locks.objsubid = 2
      AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND locks.classid::bigint = $1 AND locks.objid::bigint <> $2 AND locks.pid <> pg_backend_pid()
    ORDER BY who.backend_start LIMIT 1
"""


_HELD = """
    SELECT true FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND classid::bigint = $1 LIMIT 1
"""


async def is_held(connection: Any, schema: str) -> bool:
    """Return whether a server on any machine holds the lock of a schema."""
    return await connection.fetchval(_HELD, _place(schema)) is not None


class SchemaLock:
    """The right of one server to write in a schema."""

    def __init__(self, schema: str, server: str) -> None:
        self._schema = schema
        self._place = _place(schema)
        self._server = _number(server)

    async def take(self, connection: Any) -> None:
        """Take the lock until this session ends. Raises `StoreLocked` if another server has it.

        Retries for a few seconds: the session of a killed process may not have ended yet.
        """
        give_up, delay = time.monotonic() + WAIT_FOR, FIRST_RETRY
        while (other := await self._try(connection)) is not None:
            if time.monotonic() + delay > give_up:
                raise self._locked(other)
            await asyncio.sleep(delay)
            delay = min(LAST_RETRY, delay * 2)

    async def _try(self, connection: Any) -> Any:
        async with connection.transaction():
            await connection.execute(TAKE_GATE)
            other = await connection.fetchrow(_OTHERS, self._place, self._server)
            if other is None:
                await connection.execute(_TAKE, _signed(self._place), _signed(self._server))
        return other

    def _locked(self, other: Any) -> StoreLocked:
        backend, name, address, since = other
        found = re.fullmatch(r"outlast (\d+)@(.*)", name or "")
        who = f"process {found[1]} on {found[2]}" if found else f"{name or 'another user'!r}"
        locked = StoreLocked(
            f"the PostgreSQL schema {self._schema!r} is in use by {who} (since {_formatted(since)}, from"
            f" {address or 'a socket'}, backend {backend}). Only one server at a time may write in a schema:"
            f" stop that server, or give this one its own ?schema=. If its machine is down, PostgreSQL"
            f" releases the lock within half a minute."
        )
        if found and found[2] == socket.gethostname():
            locked.pid = int(found[1])
        return locked


def _place(schema: str) -> int:
    return _number(f"outlast writes {schema}")


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])


def _signed(number: int) -> int:
    """Convert to the signed integer that PostgreSQL takes; `pg_locks` shows it unsigned."""
    return number - (1 << 32) if number >= 1 << 31 else number


def _formatted(since: datetime | None) -> str:
    return "unknown" if since is None else f"{since:%Y-%m-%d %H:%M:%S} UTC"
