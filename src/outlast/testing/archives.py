"""Copies of a store while its host runs, one for each commit, and their way back."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from outlast.store.url import file_of


class Archive(Protocol):
    """Copies of a store, by the number of commits that it held."""

    def keep(self, commits: int) -> None:
        """Copy the store, while whoever writes to it waits. Again: nothing."""

    def put_back(self, commits: int) -> str:
        """The URL of a store that holds what that one held then. There is one such store at a time."""

    def close(self) -> None: ...


class SqliteArchive:
    """Copies of the file and of its log: what a killed process leaves."""

    def __init__(self, url: str) -> None:
        file = file_of(url)
        assert file is not None
        self._file = file
        self._current = file.with_name(f"{file.stem}-current.db")
        self._url = url.replace(file.name, self._current.name)
        self._kept: set[int] = set()

    def keep(self, commits: int) -> None:
        if commits not in self._kept:
            self._kept.add(commits)
            _copy(self._file, self._copy_of(commits))

    def put_back(self, commits: int) -> str:
        _copy(self._copy_of(commits), self._current)
        return self._url

    def _copy_of(self, commits: int) -> Path:
        return self._file.with_name(f"{self._file.stem}-{commits}.db")

    def close(self) -> None: ...


def _copy(source: Path, target: Path) -> None:
    """A database, and its log if there is one. The index of the log is made anew by whoever opens it."""
    for end in ("", "-wal", "-shm"):
        copy = Path(f"{target}{end}")
        copy.unlink(missing_ok=True)
        if end != "-shm" and (file := Path(f"{source}{end}")).exists():
            shutil.copyfile(file, copy)


def rows_of(url: str) -> dict[str, list[Any]]:
    """All that a SQLite store holds, by table; virtual tables as the tables behind them."""
    file = file_of(url)
    assert file is not None
    with closing(sqlite3.connect(file)) as db:
        tables = db.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL %'"
        ).fetchall()
        return {name: sorted(db.execute(f"SELECT * FROM {name}"), key=repr) for (name,) in tables}


class PostgresArchive:
    """Rows in tables beside those of the store. They go back into the store itself.

    It works in a thread: a host whose commit waits for it does not let its own event loop run.
    """

    def __init__(self, dsn: str, url: str, schema: str) -> None:
        self._dsn, self._url = dsn, url
        self._schema, self._copies = schema, f"{schema}_kept"
        self._kept: set[int] = set()
        self._tables: dict[str, str] = {}  # the columns of each
        self._runner = asyncio.Runner()
        self._thread = ThreadPoolExecutor(1)
        self._connection: Any = None

    def keep(self, commits: int) -> None:
        if commits not in self._kept:
            self._kept.add(commits)
            self._do(self._keep(commits))

    def put_back(self, commits: int) -> str:
        self._do(self._put_back(commits))
        return self._url

    def close(self) -> None:
        self._do(self._close())
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        self._thread.submit(self._runner.run, work).result()

    async def _open(self) -> None:
        import asyncpg

        self._connection = await asyncpg.connect(self._dsn)
        found = await self._connection.fetch(
            "SELECT table_name, string_agg(column_name, ', ' ORDER BY ordinal_position)"
            " FROM information_schema.columns WHERE table_schema = $1 AND is_generated = 'NEVER'"
            " GROUP BY 1",
            self._schema,
        )
        self._tables = dict(map(tuple, found))
        script = f"CREATE SCHEMA {self._copies};"
        for table, columns in self._tables.items():
            script += f"CREATE UNLOGGED TABLE {self._copies}.{table} AS"
            script += f" SELECT {columns}, 0 AS kept_commits FROM {self._schema}.{table} LIMIT 0;"
        await self._connection.execute(script)

    async def _keep(self, commits: int) -> None:
        if self._connection is None:
            await self._open()
        script = ""
        for table, columns in self._tables.items():
            script += f"INSERT INTO {self._copies}.{table}"
            script += f" SELECT {columns}, {commits} FROM {self._schema}.{table};"
        await self._connection.execute(script)

    async def _put_back(self, commits: int) -> None:
        script = ""
        for table, columns in self._tables.items():
            store = f"{self._schema}.{table}"
            script += f"DELETE FROM {store}; INSERT INTO {store} ({columns}) SELECT {columns}"
            script += f" FROM {self._copies}.{table} WHERE kept_commits = {commits};"
        await self._connection.execute(script)

    async def _close(self) -> None:
        if self._connection is not None:
            await self._connection.execute("SET client_min_messages = error")
            await self._connection.execute(f"DROP SCHEMA {self._copies} CASCADE")
            await self._connection.close()
