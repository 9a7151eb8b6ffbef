"""A whole store into another one, of whatever engine: every row of every table, and proof that they arrived.

Both are read in one snapshot. Rows are counted and added up by their digests on the way, and again from what
the other store has then; the order in which an engine returns them does not matter.
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from outlast.core.errors import StoreError
from outlast.store import schema
from outlast.store.base import Row
from outlast.store.url import file_of, open_store

BATCH = 500  # rows at a time
_MODULUS = 1 << 128

Progress = Callable[[str, int], None]
"""Told the table, and how many more of its rows are done."""


class CopyFailed(StoreError):
    """The other store is not empty, or does not hold what was copied into it."""


@dataclass(frozen=True, slots=True)
class Sum:
    """What a table holds, in short."""

    rows: int = 0
    digest: int = 0

    def plus(self, rows: Sequence[Row]) -> Sum:
        digest = self.digest
        for row in rows:
            text = repr(tuple(row)).encode("utf-8", "surrogatepass")
            digest += int.from_bytes(hashlib.blake2b(text, digest_size=16).digest())
        return Sum(self.rows + len(rows), digest % _MODULUS)


class Side(Protocol):
    """One of the two stores."""

    async def count(self, table: str) -> int: ...
    def rows(self, table: str) -> AsyncIterator[list[Row]]: ...
    async def write(self, table: str, rows: list[Row]) -> None: ...


@cache
def tables() -> dict[str, tuple[str, ...]]:
    """All tables that hold rows of agents, with their columns."""
    script = (Path(schema.__file__).parent / "sql" / "schema.sqlite.sql").read_text("utf-8")
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(script)
        found = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid")
        names = [name for (name,) in found.fetchall() if name != "meta"]
        return {
            name: tuple(row[1] for row in db.execute(f"PRAGMA table_info({name})"))
            for name in names
        }


async def copy_store(source: str, target: str, progress: Progress | None = None) -> dict[str, int]:
    """Copy everything, and see that it is there. Returns how many rows each table has.

    The target must hold nothing. What a host writes into the source meanwhile is not copied.
    """
    tell = progress or (lambda table, rows: None)
    sums: dict[str, Sum] = {}
    store = await open_store(target)  # it is made, brought up to date, and kept from hosts
    try:
        async with _reading(source) as here, _writing(target) as there:
            for table in tables():
                if await there.count(table):
                    raise CopyFailed(f"the target is not empty: it has rows in {table}")
            for table in tables():
                total = Sum()
                async for rows in here.rows(table):
                    await there.write(table, rows)
                    total = total.plus(rows)
                    tell(table, len(rows))
                sums[table] = total
        async with _reading(target) as copied:
            for table, expected in sums.items():
                found = Sum()
                async for rows in copied.rows(table):
                    found = found.plus(rows)
                    tell(table, len(rows))
                if found != expected:
                    raise CopyFailed(
                        f"{table} was not copied as it is: {expected.rows} rows there,"
                        f" {found.rows} here, and they differ. Delete the target."
                    )
    finally:
        await store.close()
    return {table: total.rows for table, total in sums.items()}


async def counted(url: str) -> dict[str, int]:
    """How many rows each table has."""
    async with _reading(url) as side:
        return {table: await side.count(table) for table in tables()}


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
    async with _connected(url) as connection:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            yield _Postgres(connection)


@asynccontextmanager
async def _writing(url: str) -> AsyncIterator[Side]:
    """One transaction: all of it, or nothing."""
    path = file_of(url)
    if path is not None:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as db:
            db.execute("BEGIN IMMEDIATE")
            yield _Sqlite(db)
            db.execute("COMMIT")
        return
    async with _connected(url) as connection, connection.transaction():
        yield _Postgres(connection)


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Any]:
    from outlast.store.postgres.engine import parse

    dsn, name = parse(url)
    import asyncpg  # by now it is known to be there

    connection = await asyncpg.connect(dsn, timeout=10, server_settings={"search_path": name})
    try:
        yield connection
    finally:
        await connection.close()


class _Sqlite:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    async def count(self, table: str) -> int:
        found: int = self._db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        return found

    async def rows(self, table: str) -> AsyncIterator[list[Row]]:
        cursor = self._db.execute(f"SELECT {', '.join(tables()[table])} FROM {table}")
        while rows := cursor.fetchmany(BATCH):
            yield rows
            await asyncio.sleep(0)

    async def write(self, table: str, rows: list[Row]) -> None:
        columns = tables()[table]
        marks = ", ".join("?" * len(columns))
        sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"
        self._db.executemany(sql, rows)


class _Postgres:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def count(self, table: str) -> int:
        found: int = await self._connection.fetchval(f"SELECT count(*) FROM {table}")
        return found

    async def rows(self, table: str) -> AsyncIterator[list[Row]]:
        batch: list[Row] = []
        sql = f"SELECT {', '.join(tables()[table])} FROM {table}"
        async for row in self._connection.cursor(sql, prefetch=BATCH):
            batch.append(tuple(row))
            if len(batch) == BATCH:
                yield batch
                batch = []
        if batch:
            yield batch

    async def write(self, table: str, rows: list[Row]) -> None:
        columns = list(tables()[table])
        await self._connection.copy_records_to_table(table, records=rows, columns=columns)
