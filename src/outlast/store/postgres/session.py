"""A session with PostgreSQL: what it is asked to be, and what it has to be before anything is written."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from typing import Any

from outlast.core.errors import StoreURLError
from outlast.store.postgres.errors import POOLED, asyncpg
from outlast.store.url import without_password

logger = logging.getLogger("outlast.store")

SHAPES = 500  # statements for whole groups that are kept, prepared on the server
CONNECT_WITHIN = 10.0  # seconds
ANSWER_WITHIN = 30.0  # seconds; a server that is silent for longer is taken for lost
LOCKED_FOR = 1000  # milliseconds that a group waits for a row that somebody else has locked
LONGEST_NAME = 63  # bytes that PostgreSQL keeps of an application's name

_ABOUT = """
    SELECT current_setting('server_encoding'), current_setting('client_encoding'),
           current_setting('synchronous_commit'), current_setting('search_path'), pg_backend_pid()
"""
_PID = "SELECT pg_backend_pid()"


def name_of_this() -> str:
    """How this process is called in `pg_stat_activity`."""
    name = f"outlast {os.getpid()}@{socket.gethostname()}"
    return name.encode()[:LONGEST_NAME].decode(errors="ignore")


def reading(schema: str) -> dict[str, str]:
    """The settings of a session that reads."""
    return {"search_path": schema, "application_name": name_of_this()}


def writing(schema: str) -> dict[str, str]:
    """The settings of the session that writes.

    With so few rows a statement, an index is always right. The server lets go of what a machine that has
    vanished held: half a minute after its last sign, instead of hours.
    """
    return {
        **reading(schema),
        "enable_seqscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        "jit": "off",
        "lock_timeout": str(LOCKED_FOR),
        "tcp_keepalives_idle": "10",
        "tcp_keepalives_interval": "5",
        "tcp_keepalives_count": "4",
    }


async def connect(dsn: str, schema: str) -> Any:
    """A session for writing."""
    try:
        return await asyncpg.connect(
            dsn,
            timeout=CONNECT_WITHIN,
            command_timeout=ANSWER_WITHIN,
            statement_cache_size=SHAPES,
            server_settings=writing(schema),
        )
    except ValueError as error:  # asyncpg cannot make sense of the URL
        raise StoreURLError(f"{without_password(dsn)}: {error}") from None


async def check(connection: Any, dsn: str, schema: str, *, warns: bool) -> None:
    """Refuse a database that cannot hold every text, and a session that is not in its schema.

    `warns`: of what is a risk, too."""
    where = f"PostgreSQL at {without_password(dsn)}"
    server, client, synchronous, path, pid = await connection.fetchrow(_ABOUT)
    if server not in ("UTF8", "SQL_ASCII"):
        raise StoreURLError(
            f"{where}: the encoding of the database must be UTF8, got {server}, which cannot hold every"
            f" character that people and models write. Make another: CREATE DATABASE … ENCODING 'UTF8'"
            f" TEMPLATE template0."
        )
    if client not in ("UTF8", "SQL_ASCII"):
        raise StoreURLError(
            f"{where}: client_encoding must be UTF8, got {client}. Does a pooler, or a setting of the role,"
            f" change it?"
        )
    if warns and server == "SQL_ASCII":
        logger.warning(
            "%s: the database has the encoding SQL_ASCII: PostgreSQL checks no text in it. What outlast"
            " writes is UTF-8; that everybody else's is, is up to you.",
            where,
        )
    if warns and synchronous == "off":
        logger.warning(
            "%s: synchronous_commit is off for this user or database: a crash of the server can lose"
            " commits that clients were shown. ALTER ROLE … SET synchronous_commit = on.",
            where,
        )
    first = path.partition(",")[0].strip().strip('"')
    if first != schema:
        raise StoreURLError(
            f"{where}: the session must be in the schema {schema!r}, got {path!r}: the setting was ignored"
            f" on the way (PgBouncer: ignore_startup_parameters). Connect to PostgreSQL itself, or see docs:"
            f" Poolers."
        )
    if connection.get_server_pid() != pid:  # somebody is in between
        await _check_pooler(connection, dsn, schema)


async def read(pool: Any, sql: str, arguments: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Read once. A connection that has not answered is dropped, and not waited for again."""
    connection = await pool.acquire()
    try:
        rows = await connection.fetch(sql, *arguments)
    except BaseException as error:
        if not isinstance(error, asyncpg.PostgresError):
            connection.terminate()
        raise
    finally:
        await pool.release(connection)
    return [tuple(row) for row in rows]


async def _check_pooler(one: Any, dsn: str, schema: str) -> None:
    """Refuse a pooler that gives each transaction another session.

    Each of two connections holds a process of the server for a moment, and asks for one again: whichever way
    a pooler picks the next free one, one of the two is given the other's.
    """
    other = await connect(dsn, schema)
    try:
        pids = []
        for connection in (one, other):
            await connection.execute("BEGIN")
            pids.append(await connection.fetchval(_PID))
        for connection in (one, other):
            await connection.execute("COMMIT")
        for connection, pid in ((other, pids[1]), (one, pids[0])):
            if await connection.fetchval(_PID) != pid:
                raise StoreURLError(f"PostgreSQL at {without_password(dsn)}: {POOLED}.")
    finally:
        other.terminate()
