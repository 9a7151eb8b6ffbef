"""A session with PostgreSQL: its settings, and the checks before anything is written."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from typing import Any

from outlast.core.errors import StoreURLError
from outlast.store.password import without_password
from outlast.store.postgres.errors import POOLED, asyncpg

logger = logging.getLogger("outlast.store")

CACHED_STATEMENTS = 500  # for whole groups, prepared on the server
CONNECT_WITHIN = 10.0  # seconds
ANSWER_WITHIN = 30.0  # seconds; a server that is silent for longer counts as lost
LOCK_TIMEOUT = 1000  # milliseconds that a group waits for a row that another session has locked
LONGEST_NAME = 63  # bytes of an application name that PostgreSQL keeps

_ABOUT = """
    SELECT current_setting('server_encoding'), current_setting('client_encoding'),
           current_setting('synchronous_commit'), current_setting('search_path'), pg_backend_pid()
"""
_PID = "SELECT pg_backend_pid()"


def application_name() -> str:
    """Return the name of this process in `pg_stat_activity`."""
    name = f"outlast {os.getpid()}@{socket.gethostname()}"
    return name.encode()[:LONGEST_NAME].decode(errors="ignore")


def reader_settings(schema: str) -> dict[str, str]:
    """Return the settings of a session that reads."""
    return {"search_path": schema, "application_name": application_name()}


def writer_settings(schema: str) -> dict[str, str]:
    """Return the settings of the session that writes.

    With few rows per statement, an index is always the right plan. The keepalives make the server release
    the locks of a machine that is down after half a minute, instead of hours.
    """
    return {
        **reader_settings(schema),
        "enable_seqscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        "jit": "off",
        "lock_timeout": str(LOCK_TIMEOUT),
        "tcp_keepalives_idle": "10",
        "tcp_keepalives_interval": "5",
        "tcp_keepalives_count": "4",
    }


async def connect(dsn: str, schema: str) -> Any:
    """Open a session for writing."""
    try:
        return await asyncpg.connect(
            dsn,
            timeout=CONNECT_WITHIN,
            command_timeout=ANSWER_WITHIN,
            statement_cache_size=CACHED_STATEMENTS,
            server_settings=writer_settings(schema),
        )
    except ValueError as error:  # asyncpg cannot parse the URL
        raise StoreURLError(f"{without_password(dsn)}: {error}") from None


async def check(connection: Any, dsn: str, schema: str, *, warns: bool) -> None:
    """Reject a database that cannot store every string, and a session that is not in its schema.

    With `warns`, also log a warning about risky settings.
    """
    where = f"PostgreSQL at {without_password(dsn)}"
    server, client, synchronous, path, pid = await connection.fetchrow(_ABOUT)
    if server not in ("UTF8", "SQL_ASCII"):
        raise StoreURLError(
            f"{where}: the encoding of the database must be UTF8, got {server}, which cannot store every"
            f" character. Create another database: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0."
        )
    if client not in ("UTF8", "SQL_ASCII"):
        raise StoreURLError(
            f"{where}: client_encoding must be UTF8, got {client}. Check whether a pooler, or a setting of"
            f" the role, changes it."
        )
    if warns and server == "SQL_ASCII":
        logger.warning(
            "%s: the encoding of the database is SQL_ASCII, so PostgreSQL does not validate text. outlast"
            " writes UTF-8; make sure that other programs do, too.",
            where,
        )
    if warns and synchronous == "off":
        logger.warning(
            "%s: synchronous_commit is off for this user or database, so a crash of the server can lose"
            " acknowledged commits. ALTER ROLE … SET synchronous_commit = on.",
            where,
        )
    first = path.partition(",")[0].strip().strip('"')
    if first != schema:
        raise StoreURLError(
            f"{where}: the session must be in the schema {schema!r}, got {path!r}: a pooler ignored the"
            f" setting (PgBouncer: ignore_startup_parameters). Connect directly to PostgreSQL, or see docs:"
            f" Poolers."
        )
    if connection.get_server_pid() != pid:  # there is a pooler
        await _check_pooler(connection, dsn, schema)


async def read(pool: Any, sql: str, arguments: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Read once. A connection that does not answer is closed."""
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
    """Reject a pooler that gives each transaction another session.

    Two connections each use a backend in a transaction, release it, and start another: whichever way the
    pooler assigns free backends, one of the two gets the other's.
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
