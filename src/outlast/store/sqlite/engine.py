"""The SQLite engine: one commit per tick of the event loop, with all queued batches.

There is no writer thread: it would have to win the GIL back from a busy loop, and would starve. Only the
fsync moves to a thread, and only if it is slow (`fsync.SlowDisk`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from outlast.core.errors import (
    StoreError,
    StoreGone,
    StoreReadOnly,
    StoreUnavailable,
)
from outlast.store import fencing
from outlast.store.attempt import Attempt
from outlast.store.base import Row, Store, StoreOptions
from outlast.store.grouping import take_group
from outlast.store.operations import Batch, Fence, Query
from outlast.store.schema import Schema
from outlast.store.sqlite.errors import explained, trouble_of
from outlast.store.sqlite.files import FileWatch, create_private, make_folder, sync_log
from outlast.store.sqlite.fsync import SlowDisk, sync_data
from outlast.store.sqlite.group import write_group
from outlast.store.sqlite.lock import FileLock
from outlast.store.sqlite.migrate import migrate

logger = logging.getLogger("outlast.store")

Synchronous = Literal["full", "normal", "off"]
OPEN_WITHIN = 5.0  # seconds
CHECKPOINT_PAGES = 1000
FIRST_RETRY = 0.01  # seconds
LAST_RETRY = 1.0
CHECK_FILES_EVERY = 0.001  # seconds, at most


@dataclass(frozen=True, slots=True)
class SqliteOptions:
    """Settings that only SQLite has."""

    path: Path
    synchronous: Synchronous = "full"
    sync: Callable[[int], None] = sync_data


def open_sqlite(
    settings: SqliteOptions, options: StoreOptions, schemas: Sequence[Schema] = ()
) -> SqliteStore:
    """Lock the file, run missing migrations, and open it."""
    # The real path: for the lock, and in case the process changes its working directory.
    path = Path(os.path.realpath(settings.path))
    settings = replace(settings, path=path)
    try:
        make_folder(path.parent)
        lock = FileLock(path)
    except OSError as error:
        raise _not_opened(path, error) from None
    try:
        create_private(path)
        if settings.synchronous == "full":  # a killed host may not have synced its log
            sync_log(Path(f"{path}-wal"), settings.sync)
        return SqliteStore(settings, options, lock, schemas)
    except OSError as error:
        lock.release()
        raise _not_opened(path, error) from None
    except BaseException:
        lock.release()
        raise


def _not_opened(path: Path, error: OSError) -> StoreError:
    if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreUnavailable(f"cannot open {path}: {error}")
    return StoreReadOnly(
        f"cannot open {path} for writing ({error.strerror}: {error.filename})."
        f" Check the permissions of the file and of its folder."
    )


class SqliteStore(Store):
    """A store in one file for one host, with a connection for writing and one for long reads."""

    engine = "sqlite"

    def __init__(
        self,
        settings: SqliteOptions,
        options: StoreOptions,
        lock: FileLock,
        schemas: Sequence[Schema],
    ) -> None:
        super().__init__(options)
        self.path = settings.path
        self.identity = str(settings.path)
        self._synchronous = settings.synchronous
        self._sync = settings.sync
        self._lock = lock
        self._scheduled = False
        self._writing: Attempt | None = None  # taken from the queue, without an outcome
        self._is_doubtful = False  # the disk failed, and its outcome must be read back
        self._undone = 0  # attempts that readers may have seen, but that were not durable
        self._readers_wait: asyncio.Future[None] | None = None  # resolved with the outcome
        self._paused = False  # until a timer fires
        self._one_by_one = 0  # how many batches get a transaction of their own
        self._retry_after = FIRST_RETRY
        self._checked_at = -math.inf
        self._reader: sqlite3.Connection | None = None
        self._reader_thread: Executor | None = None
        self._db = self._connect(OPEN_WITHIN)
        try:
            migrate(self._db, schemas, str(self.path))
            self._files = FileWatch(self.path)
            self._disk = SlowDisk(
                self._files.log,
                settings.sync,
                enabled=settings.synchronous == "full",
                is_in_place=lambda: self._files.lost is None,
            )
            self._tune(self._db)
        except sqlite3.Error as error:
            self._db.close()
            raise explained(self.path, error) from error
        except BaseException:
            self._db.close()
            raise

    # --- opening ---------------------------------------------------------------------------------

    def _connect(self, within: float = 0) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(
                f"{self.path.as_uri()}?mode=rw",  # never creates a file
                uri=True,
                isolation_level=None,
                timeout=within,  # a reader may be recovering the log of a killed host
                check_same_thread=False,
                cached_statements=256,
            )
        except sqlite3.Error as error:
            raise explained(self.path, error) from error
        try:
            (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise StoreUnavailable(
                    f"{self.path}: SQLite cannot use its write-ahead log here (journal mode"
                    f" '{mode}'); is this a network file system?"
                )
            db.execute(f"PRAGMA synchronous = {self._synchronous}")
        except sqlite3.Error as error:
            db.close()
            raise explained(self.path, error) from error
        except BaseException:
            db.close()
            raise
        return db

    def _tune(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA busy_timeout = 0")  # from here on there is no other writer
        in_thread = self._disk.in_thread
        level = "normal" if in_thread else self._synchronous
        db.execute(f"PRAGMA synchronous = {level}")
        db.execute(f"PRAGMA wal_autocheckpoint = {0 if in_thread else CHECKPOINT_PAGES}")

    async def _add_schemas(self, schemas: Sequence[Schema]) -> None:
        try:
            migrate(self._db, schemas, str(self.path))
        except sqlite3.Error as error:
            raise explained(self.path, error) from error

    # --- writing ---------------------------------------------------------------------------------

    def _kick(self) -> None:
        if not (self._scheduled or self._writing or self._paused):
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if self._writing or self._paused or self._closed is not None:
            return
        queue = self._without_closed(self._queue)
        most = 1 if self._one_by_one else self.options.max_group
        group, self._queue = take_group(queue, most, self.options.max_group_bytes)
        if group:
            self._one_by_one = max(0, self._one_by_one - 1)
            self._write(group)
        if self._queue:
            self._kick()

    def _write(self, group: list[Batch]) -> None:
        """Commit a group, and handle every kind of failure."""
        attempt = Attempt(group)
        try:
            self._transact(attempt)
        except sqlite3.Error as error:
            self._rescue(attempt, error)
            return
        except MemoryError as error:
            self._doubt(attempt, error)
            return
        except Exception as error:  # a bug: the waiters must learn of it
            logger.exception("cannot write a group")
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            attempt.undo_fences()
            for batch in group:
                self._fail(batch, error)
            return
        self._retry_after = FIRST_RETRY
        if self._disk.in_thread:
            self._writing = attempt
            self._disk.sync(self._loop, lambda error: self._synced(attempt, error))
        else:
            self._durable(attempt)

    def _synced(self, attempt: Attempt, error: OSError | None) -> None:
        if self._closed is not None:
            return
        if error is not None:
            self._doubt(attempt, error)
        else:
            self._outcome_known()
            self._durable(attempt)
            if self._queue:
                self._kick()

    def _outcome_known(self) -> None:
        """End the attempt, and wake the readers that wait for its outcome."""
        self._writing, self._is_doubtful = None, False
        if self._readers_wait is not None:
            self._readers_wait.set_result(None)
            self._readers_wait = None

    def _durable(self, attempt: Attempt) -> None:
        now = self._loop.time()
        if now - self._checked_at >= CHECK_FILES_EVERY:
            self._checked_at = now
            if (lost := self._files.lost) is not None:
                self._lose_files(lost, attempt.group)
                return
        self._conclude(attempt)
        if self._disk.should_move():
            self._tune(self._db)

    def _transact(self, attempt: Attempt) -> None:
        db, group, probe = self._db, attempt.group, self.options.probe
        db.execute("BEGIN IMMEDIATE")
        verdicts = write_group(db, attempt)
        if probe is not None:
            probe.before_commit(group)
        attempt.verdicts = verdicts  # from here on it may be durable
        started = self._loop.time()
        db.execute("COMMIT")
        if not self._disk.in_thread:
            self._disk.record(self._loop.time() - started)
        if probe is not None:
            probe.after_commit(group)

    # --- failures --------------------------------------------------------------------------------

    def _rescue(self, attempt: Attempt, error: sqlite3.Error) -> None:
        """Roll back a failed transaction, and retry or fail its batches."""
        trouble = trouble_of(error)
        if trouble == "io":
            self._doubt(attempt, error)
            return
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        attempt.undo_fences()
        if trouble == "busy":
            self._unreachable(f"{error}; another process is writing to {self.path}")
            self._queue = attempt.group + self._queue
            self._paused = True
            self._later(self._resume)
        elif len(attempt.group) > 1:
            self._queue = attempt.group + self._queue
            self._one_by_one = len(attempt.group)
        else:
            self._fail(attempt.group[0], explained(self.path, error))

    def _doubt(self, attempt: Attempt, error: Exception) -> None:
        """Read back, until the disk answers, whether a commit is durable during which the disk failed."""
        with contextlib.suppress(sqlite3.Error):
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")  # otherwise readers could see it
        self._unreachable(f"{error}; checking whether the last commits are durable")
        self._writing, self._is_doubtful = attempt, True
        self._later(lambda: self._ask(attempt))

    def _ask(self, attempt: Attempt) -> None:
        if self._closed is not None:
            return
        if (lost := self._files.lost) is not None:
            self._lose_files(lost, attempt.group)
            return
        try:
            self._disk.forget()
            if self._synchronous == "full":
                sync_log(self._files.log, self._sync, anew=True)
            self._files.log_closed()
            self._db.close()
            self._db = self._connect()
            self._tune(self._db)
            # Once checkpointed into the database, it is durable even if the log is lost.
            (blocked, *_) = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._files.log_opened()
            if blocked:
                raise StoreUnavailable(f"a reader of {self.path} blocks the checkpoint")
            reached = attempt.verdicts is not None and all(
                fencing.has_reached(fence, self._fence_row(fence), commit_no)
                for fence, commit_no in attempt.advanced()
            )
        except (sqlite3.Error, StoreError, OSError) as error:
            logger.warning("%s still does not answer: %s", self.path, error)
            self._later(lambda: self._ask(attempt))
            return
        logger.warning(
            "%s answers again; the commits in doubt %s",
            self.path,
            "are durable" if reached else "were lost, and are written again",
        )
        self._outcome_known()
        self._retry_after = FIRST_RETRY
        if reached:
            self._conclude(attempt)
        else:
            self._undone += 1
            attempt.undo_fences()
            self._queue = attempt.group + self._queue
        self._kick()

    def _lose_files(self, lost: str, group: list[Batch]) -> None:
        """Stop acknowledging for good: even if the files come back, they may lack commits."""
        if self._files.has_database:  # save the acknowledged commits from the log
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        self._outcome_known()
        gone = StoreGone(
            f"{lost} while the host had it open. The host stores and acknowledges nothing more, and it is"
            f" unknown whether the last commits are durable: stop the host, put the files back or restore"
            f" a backup, and start it again."
        )
        pending, self._queue = group + self._queue, []
        self._refuse_all(gone, pending)

    def _resume(self) -> None:
        self._paused = False
        self._kick()

    def _fence_row(self, fence: Fence) -> tuple[int, str, int] | None:
        row: tuple[int, str, int] | None
        row = self._db.execute(fencing.READ.sqlite, (fence.root,)).fetchone()
        return row

    def _later(self, what: Callable[[], None]) -> None:
        def again() -> None:
            self._on_timer = False
            what()

        self._on_timer = True
        self._loop.call_later(self._retry_after, again)
        self._retry_after = min(LAST_RETRY, self._retry_after * 2)

    # --- reading ---------------------------------------------------------------------------------

    async def _fetch(self, query: Query, arguments: Sequence[Any]) -> list[Row]:
        """Read, then wait until the running commit is durable: the read may have seen it."""
        while True:
            while self._is_doubtful:
                await self._outcome()
            undone = self._undone
            rows = await self._rows(query, arguments)
            if self._writing is not None:
                await self._outcome()
            if undone == self._undone:
                return rows

    async def _outcome(self) -> None:
        """Wait for the outcome of the running commit only."""
        if self._readers_wait is None:
            self._readers_wait = self._loop.create_future()
        await asyncio.wait({self._readers_wait})
        self._check_open()

    async def _rows(self, query: Query, arguments: Sequence[Any]) -> list[Row]:
        try:
            if not query.bulk:
                return self._db.execute(query.sqlite, arguments).fetchall()
            if self._reader_thread is None:
                self.is_in_place()  # a connection opened after the log was lost would create another
                self._check_open()
                self._reader_thread = ThreadPoolExecutor(1, "outlast-reader")
            return await self._loop.run_in_executor(
                self._reader_thread, self._read, query.sqlite, arguments
            )
        except sqlite3.Error as error:
            self.is_in_place()
            self._check_open()
            raise explained(self.path, error) from error

    def _read(self, sql: str, arguments: Sequence[Any]) -> list[Row]:
        """Read on the reader thread. No cursor stays open."""
        if self._reader is None:
            self._reader = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode=ro",
                uri=True,
                isolation_level=None,
                timeout=5,
                check_same_thread=False,
            )
        return self._reader.execute(sql, arguments).fetchall()

    # --- state and closing -----------------------------------------------------------------------

    @property
    def _in_flight(self) -> int:
        return len(self._writing.group) if self._writing else 0

    def _pending(self) -> list[Batch]:
        return (self._writing.group if self._writing else []) + self._queue

    def _fsync_average(self) -> float | None:
        return self._disk.average

    def _fsync_in_thread(self) -> bool:
        return self._disk.in_thread

    def is_in_place(self) -> bool:
        if self._refusing is None and self._closed is None and self._writing is None:
            lost = self._files.lost
            if lost is not None:
                self._lose_files(lost, [])
        return super().is_in_place()

    def _release(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._outcome_known()
        self._disk.close()
        if self._reader_thread is not None:
            self._reader_thread.shutdown(wait=True)
        if self._reader is not None:
            self._reader.close()
        self._db.close()
        self._lock.release()
