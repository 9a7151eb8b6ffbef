"""Disks that fail, and disks that are slow."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

from rows import PATIENCE, fence, path_of

from outlast.store.base import StoreOptions
from outlast.store.sqlite import fsync
from outlast.store.sqlite.engine import SqliteOptions, SqliteStore, open_sqlite


class Faulty:
    """An SQLite connection that fails at one statement, before or after it has been executed."""

    def __init__(
        self,
        db: sqlite3.Connection,
        at: str,
        when: Literal["before", "after"],
        code: int = sqlite3.SQLITE_IOERR,
    ) -> None:
        self._db = db
        self._at = at
        self._when = when
        self._code = code
        self.failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        if self.failed or not sql.strip().startswith(self._at):
            return self._db.execute(sql, *arguments)
        self.failed = True
        if self._when == "after":
            self._db.execute(sql, *arguments)
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = self._code
        raise error


class Disk:
    """Stands in for `fdatasync`: can be held up, can fail, and remembers what it synced."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.is_real = True
        self.failures = 0  # so many of the next calls fail
        self.delay: Callable[[], None] = lambda: None
        self.descriptors: list[int] = []
        self.threads: list[str] = []

    def sync(self, descriptor: int) -> None:
        self.descriptors.append(descriptor)
        self.threads.append(threading.current_thread().name)
        self.entered.set()
        assert self.go_on.wait(PATIENCE)
        self.delay()
        if self.failures:
            self.failures -= 1
            raise OSError(5, "Input/output error")
        if self.is_real:
            fsync.sync_data(descriptor)


@contextlib.asynccontextmanager
async def on_a_slow_disk(url: str, disk: Disk, monkeypatch: Any) -> AsyncIterator[SqliteStore]:
    """A store whose fsync has moved to a thread, and stays there."""
    monkeypatch.setattr(fsync, "SLOW", 0.0)
    monkeypatch.setattr(fsync, "QUICK", 0.0)
    store = open_sqlite(SqliteOptions(path_of(url), sync=disk.sync), StoreOptions())
    try:
        warming_up = fence("warming/up")
        for _ in range(fsync.MIN_COMMITS):
            await store.commit(warming_up, [])
        assert store.statistics().fsync_in_thread
        yield store
        disk.go_on.set()
        await store.close()
    finally:
        disk.go_on.set()
        store.abandon()
