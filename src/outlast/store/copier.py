"""Copying a whole store into another, of either engine: every row of every table, verified.

Each store is read in one snapshot. Rows are counted and their digests added up while copying, and again from
the target; the order in which an engine returns them does not matter.
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any, Protocol

from outlast.core.errors import StoreError
from outlast.store.base import Row
from outlast.store.catalogue import Reader, columns_of, meta_of
from outlast.store.operations import Query
from outlast.store.upgrade import stored_schemas
from outlast.store.url import file_of, open_store

MAX_ROWS = 500  # per read
MAX_BYTES = 8 * 1024 * 1024  # per read, roughly
FIRST_BATCH = 16  # rows
_MODULUS = 1 << 128

Columns = Mapping[str, Mapping[str, str]]
Progress = Callable[[str, int], None]
"""Called with a table, and the number of rows just done."""


class CopyFailed(StoreError):
    """The target is not empty, or its rows differ from the source."""


@dataclass(frozen=True, slots=True)
class Sum:
    """The number of rows of a table, and the sum of their digests."""

    rows: int = 0
    digest: int = 0

    def plus(self, rows: Sequence[Row]) -> Sum:
        digest = self.digest
        for row in rows:
            text = repr(tuple(row)).encode("utf-8", "surrogatepass")
            digest += int.from_bytes(hashlib.blake2b(text, digest_size=16).digest())
        return Sum(self.rows + len(rows), digest % _MODULUS)


class Side(Reader, Protocol):
    """One of the two stores."""

    async def count(self, table: str) -> int: ...
    def rows(self, table: str, columns: Sequence[str]) -> AsyncIterator[list[Row]]: ...
    async def write(self, table: str, columns: Sequence[str], rows: list[Row]) -> None: ...


async def copy_store(source: str, target: str, progress: Progress | None = None) -> dict[str, int]:
    """Copy everything and verify it. Returns the number of rows per table.

    The target must be empty. Rows written to the source during the copy are not copied. Tables of batteries
    are created in the target by the scripts that created them in the source.
    """
    report = progress or (lambda table, rows: None)
    sums: dict[str, Sum] = {}
    async with _reading(source) as here:
        schemas = stored_schemas(await meta_of(here))
        # The open store creates the target, migrates it, and keeps hosts out.
        store = await open_store(target, schemas=schemas)
        try:
            async with _writing(target) as there:
                tables = shared_tables(await columns_of(here), await columns_of(there))
                for table in tables:
                    if await there.count(table):
                        raise CopyFailed(f"the target must be empty, but has rows in {table}")
                for table, columns in tables.items():
                    total = Sum()
                    async for rows in here.rows(table, columns):
                        await there.write(table, columns, rows)
                        total = total.plus(rows)
                        report(table, len(rows))
                    sums[table] = total
            async with _reading(target) as copied:
                for table, columns in tables.items():
                    found = Sum()
                    async for rows in copied.rows(table, columns):
                        found = found.plus(rows)
                        report(table, len(rows))
                    if found != sums[table]:
                        raise CopyFailed(
                            f"the copy of {table} differs: {sums[table].rows} rows in the source,"
                            f" {found.rows} in the target. Delete the target and copy again."
                        )
        finally:
            await store.close()
    return {table: total.rows for table, total in sums.items()}


def shared_tables(here: Columns, there: Columns) -> dict[str, list[str]]:
    """Return the tables and columns to copy: those of a new store, as far as the source has them.

    Tables that only one engine needs, and tables of other applications, are not copied.
    """
    tables: dict[str, list[str]] = {}
    for table, columns in there.items():
        if table == "meta" or table not in here:
            continue
        missing = [column for column in here[table] if column not in columns]
        if missing:
            raise CopyFailed(
                f"the target has no column {missing[0]!r} in {table}, but the source has"
            )
        tables[table] = list(here[table])
    return tables


async def count_rows(url: str) -> dict[str, int]:
    """Return the number of rows per table."""
    async with _reading(url) as side:
        tables = await columns_of(side)
        return {table: await side.count(table) for table in tables if table != "meta"}


@asynccontextmanager
async def _reading(url: str) -> AsyncIterator[Side]:
    path = file_of(url)
    if path is not None:
        with closing(
            sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=30)
        ) as db:
            db.execute("BEGIN")
            yield _Sqlite(db)
        return
    async with connected(url) as (connection, _):
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            yield _Postgres(connection)


@asynccontextmanager
async def _writing(url: str) -> AsyncIterator[Side]:
    """Open the target in one transaction."""
    path = file_of(url)
    if path is not None:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as db:
            db.execute("BEGIN IMMEDIATE")
            yield _Sqlite(db)
            db.execute("COMMIT")
        return
    async with connected(url) as (connection, _), connection.transaction():
        yield _Postgres(connection)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[Any, str]]:
    """Open a plain connection to PostgreSQL, in the store's schema. Yields it and the schema's name."""
    from outlast.store.postgres.engine import parse

    dsn, name = parse(url)
    import asyncpg  # `parse` has checked that it is installed

    connection = await asyncpg.connect(dsn, timeout=10, server_settings={"search_path": name})
    try:
        yield connection, name
    finally:
        await connection.close()


class _Sqlite:
    engine = "sqlite"

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    async def fetch(self, query: Query, *arguments: Any) -> list[Row]:
        return self._db.execute(query.sqlite, arguments).fetchall()

    async def count(self, table: str) -> int:
        found: int = self._db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        return found

    async def rows(self, table: str, columns: Sequence[str]) -> AsyncIterator[list[Row]]:
        cursor = self._db.execute(f"SELECT {_list(columns)} FROM {table}")
        pace = Pace()
        while rows := cursor.fetchmany(pace.rows):
            yield rows
            pace.adjust(rows)
            await asyncio.sleep(0)

    async def write(self, table: str, columns: Sequence[str], rows: list[Row]) -> None:
        marks = ", ".join("?" * len(columns))
        sql = f"INSERT INTO {table} ({_list(columns)}) VALUES ({marks})"
        self._db.executemany(sql, rows)


class _Postgres:
    engine = "postgresql"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, query: Query, *arguments: Any) -> list[Row]:
        return [tuple(row) for row in await self._connection.fetch(query.postgres, *arguments)]

    async def count(self, table: str) -> int:
        found: int = await self._connection.fetchval(f"SELECT count(*) FROM {table}")
        return found

    async def rows(self, table: str, columns: Sequence[str]) -> AsyncIterator[list[Row]]:
        cursor = await self._connection.cursor(f"SELECT {_list(columns)} FROM {table}")
        pace = Pace()
        while rows := [tuple(row) for row in await cursor.fetch(pace.rows)]:
            yield rows
            pace.adjust(rows)

    async def write(self, table: str, columns: Sequence[str], rows: list[Row]) -> None:
        await self._connection.copy_records_to_table(table, records=rows, columns=list(columns))


class Pace:
    """The number of rows per read: fewer if they are large, so that they fit into memory."""

    def __init__(self) -> None:
        self.rows = FIRST_BATCH

    def adjust(self, rows: Sequence[Row]) -> None:
        """Set the number for the next read from the sizes of the last rows."""
        size = sum(len(value) for row in rows for value in row if isinstance(value, str | bytes))
        mean = max(1, size // len(rows))
        self.rows = max(1, min(MAX_ROWS, MAX_BYTES // mean, self.rows * 2))


def _list(columns: Sequence[str]) -> str:
    return ", ".join(f'"{column}"' for column in columns)
