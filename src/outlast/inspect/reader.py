"""Opens a store to read it, next to any host that has it open."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from outlast.core.errors import StoreCorrupt, StoreError, StoreTooNew, StoreUnavailable
from outlast.store.base import Row
from outlast.store.catalogue import Reader, meta_of
from outlast.store.operations import Query
from outlast.store.password import without_password
from outlast.store.schema import FOUNDATION
from outlast.store.upgrade import version_of
from outlast.store.url import DEFAULT, file_of

BUSY_FOR = 5.0  # seconds that a read waits while SQLite recovers the file


class SqliteReader:
    """A SQLite file, opened read-only and without its lock."""

    engine = "sqlite"

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db = db
        self.path = path

    async def fetch(self, query: Query, *arguments: Any) -> list[Row]:
        try:
            return self._db.execute(query.sqlite, arguments).fetchall()
        except sqlite3.Error as error:
            raise _explained(self.path, error) from error


class PostgresReader:
    """A separate PostgreSQL connection whose transactions are read-only."""

    engine = "postgresql"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, query: Query, *arguments: Any) -> list[Row]:
        return [tuple(row) for row in await self._connection.fetch(query.postgres, *arguments)]


@asynccontextmanager
async def reading(url: str | None) -> AsyncIterator[Reader]:
    """Open the store at a URL for reading. It must exist; nothing is created or migrated."""
    url = url or DEFAULT
    path = file_of(url)
    if path is None:
        async with _postgres(url) as reader:
            yield reader
        return
    if not path.is_file():
        raise StoreUnavailable(f"no store at {path}; use --store to give its URL")
    with closing(_connected(path)) as db:
        found = SqliteReader(db, path)
        _check(await _version(found), str(path))
        yield found


def _connected(path: Path) -> sqlite3.Connection:
    try:
        db = sqlite3.connect(
            f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=BUSY_FOR
        )
    except sqlite3.Error as error:
        raise _explained(path, error) from error
    return db


def _explained(path: Path, error: sqlite3.Error) -> StoreError:
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
    ):
        return StoreCorrupt(f"{path} is not a valid SQLite database ({error})")
    readable = os.access(path, os.R_OK)
    why = str(error) if readable else "permission denied"
    return StoreUnavailable(f"cannot read {path}: {why}")


@asynccontextmanager
async def _postgres(url: str) -> AsyncIterator[Reader]:
    from outlast.store.postgres.engine import parse
    from outlast.store.postgres.migrate import HAS_SCHEMA

    dsn, name = parse(url)
    import asyncpg  # known to be installed by now

    settings = {
        "search_path": name,
        "application_name": "outlast inspect",
        "default_transaction_read_only": "on",
    }
    try:
        connection = await asyncpg.connect(dsn, timeout=10, server_settings=settings)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise StoreUnavailable(f"PostgreSQL at {without_password(dsn)}: {error}") from error
    try:
        if not await connection.fetchval(HAS_SCHEMA, name):
            raise StoreUnavailable(f"{without_password(dsn)} has no schema {name!r}")
        reader = PostgresReader(connection)
        _check(await _version(reader), f"the PostgreSQL schema {name!r}")
        yield reader
    except asyncpg.PostgresError as error:
        raise StoreUnavailable(f"PostgreSQL at {without_password(dsn)}: {error}") from error
    finally:
        await connection.close()


_TABLES = Query(
    "SELECT 1 FROM sqlite_master WHERE name = 'meta'",
    "SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = 'meta'",
)


async def _version(reader: Reader) -> int:
    if not await reader.fetch(_TABLES):
        return 0
    return version_of(FOUNDATION.name, await meta_of(reader))


def _check(version: int, where: str) -> None:
    newest = FOUNDATION.version
    if version == 0:
        raise StoreUnavailable(f"{where} is not an outlast store")
    if version > newest:
        raise StoreTooNew(
            f"{where} has schema version {version}, but this outlast supports versions up to {newest}."
            " A newer outlast wrote it: upgrade this one."
        )
    if version < newest:
        raise StoreUnavailable(
            f"{where} has schema version {version}, but this outlast reads version {newest}. Start a"
            " host on it once, which migrates it."
        )
