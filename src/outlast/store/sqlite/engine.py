"""The SQLite engine: the commit runs on the event loop, once a tick, with all that queued in it.

There is no writer thread: it would have to win the GIL back from a busy loop, and starve. Only the fsync
moves to a thread, and only where it is slow (`fsync.SlowDisk`).
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
from outlast.store.sqlite.files import Whereabouts, create_private, make_folder, sync_log
from outlast.store.sqlite.fsync import SlowDisk, sync_data
from outlast.store.sqlite.group import written
from outlast.store.sqlite.lock import FileLock
from outlast.store.sqlite.migrate import bring_up_to_date

logger = logging.getLogger("outlast.store")

Synchronous = Literal["full", "normal", "off"]
OPEN_WITHIN = 5.0  # seconds
CHECKPOINT_PAGES = 1000
FIRST_RETRY = 0.01  # seconds
LAST_RETRY = 1.0
LOOK_EVERY = 0.001  # seconds: at most so often it is looked whether the files are in their places


@dataclass(frozen=True, slots=True)
class SqliteOptions:
    """Settings that only SQLite has."""

    path: Path
    synchronous: Synchronous = "full"
    sync: Callable[[int], None] = sync_data


def open_sqlite(
    settings: SqliteOptions, options: StoreOptions, schemas: Sequence[Schema] = ()
) -> SqliteStore:
    """Lock the file, bring its tables up to date, and open it."""
    # Its one real name: for the lock, and for when the process changes its working directory.
    path = Path(os.path.realpath(settings.path))
    settings = replace(settings, path=path)
    try:
        make_folder(path.parent)
        lock = FileLock(path)
    except OSError as error:
        raise _not_opened(path, error) from None
    try:
        create_private(path)
        if settings.synchronous == "full":  # what a killed host left was perhaps never synced
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
        return StoreUnavailable(f"{path} cannot be opened: {error}")
    return StoreReadOnly(
        f"{path} cannot be opened for writing ({error.strerror}: {error.filename})."
        f" Check the permissions of the file and of its folder."
    )


class SqliteStore(Store):
    """One file, one host, one connection for writing and one for long reads."""

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
        self._writing: Attempt | None = None  # taken from the queue; its outcome is not known
        self._is_doubtful = False  # the disk failed under it, and has to be asked
        self._undone = 0  # attempts that could be read, and were not durable in the end
        self._readers_wait: asyncio.Future[None] | None = None  # for that outcome
        self._paused = False  # until a timer ends that
        self._one_by_one = 0  # this many batches are to be written each in its own transaction
        self._retry_after = FIRST_RETRY
        self._looked_at = -math.inf
        self._reader: sqlite3.Connection | None = None
        self._reader_thread: Executor | None = None
        self._db = self._connect(OPEN_WITHIN)
        try:
            bring_up_to_date(self._db, schemas, str(self.path))
            self._files = Whereabouts(self.path)
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
                f"{self.path.as_uri()}?mode=rw",  # never a new file
                uri=True,
                isolation_level=None,
                timeout=within,  # whoever reads may be mending what a killed host left
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
        db.execute("PRAGMA busy_timeout = 0")  # from here on nobody else writes
        in_thread = self._disk.in_thread
        level = "normal" if in_thread else self._synchronous
        db.execute(f"PRAGMA synchronous = {level}")
        db.execute(f"PRAGMA wal_autocheckpoint = {0 if in_thread else CHECKPOINT_PAGES}")

    async def _add_schemas(self, schemas: Sequence[Schema]) -> None:
        try:
            bring_up_to_date(self._db, schemas, str(self.path))
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
        """Commit a group, and see to every way in which that can go wrong."""
        attempt = Attempt(group)
        try:
            self._transact(attempt)
        except sqlite3.Error as error:
            self._rescue(attempt, error)
            return
        except MemoryError as error:
            self._doubt(attempt, error)
            return
        except Exception as error:  # a fault of ours: whoever waits must hear of it
            logger.exception("a group could not be written")
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
            self._not_writing()
            self._durable(attempt)
            if self._queue:
                self._kick()

    def _not_writing(self) -> None:
        """Its outcome is known."""
        self._writing, self._is_doubtful = None, False
        if self._readers_wait is not None:
            self._readers_wait.set_result(None)
            self._readers_wait = None

    def _durable(self, attempt: Attempt) -> None:
        now = self._loop.time()
        if now - self._looked_at >= LOOK_EVERY:
            self._looked_at = now
            if (lost := self._files.lost) is not None:
                self._lose_files(lost, attempt.group)
                return
        self._conclude(attempt)
        if self._disk.should_move():
            self._tune(self._db)

    def _transact(self, attempt: Attempt) -> None:
        db, group, probe = self._db, attempt.group, self.options.probe
        db.execute("BEGIN IMMEDIATE")
        verdicts = written(db, attempt)
        if probe is not None:
            probe.before_commit(group)
        attempt.verdicts = verdicts  # from here on it may be durable
        started = self._loop.time()
        db.execute("COMMIT")
        if not self._disk.in_thread:
            self._disk.took(self._loop.time() - started)
        if probe is not None:
            probe.after_commit(group)

    # --- when it goes wrong ----------------------------------------------------------------------

    def _rescue(self, attempt: Attempt, error: sqlite3.Error) -> None:
        """The transaction failed as a whole. Undo it, and decide what becomes of its batches."""
        trouble = trouble_of(error)
        if trouble == "io":
            self._doubt(attempt, error)
            return
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        attempt.undo_fences()
        if trouble == "busy":
            self._unreachable(f"{error}; somebody else is writing to {self.path}")
            self._queue = attempt.group + self._queue
            self._paused = True
            self._later(self._resume)
        elif len(attempt.group) > 1:
            self._queue = attempt.group + self._queue
            self._one_by_one = len(attempt.group)
        else:
            self._fail(attempt.group[0], explained(self.path, error))

    def _doubt(self, attempt: Attempt, error: Exception) -> None:
        """The disk failed, so nobody knows whether this is durable: ask it, until it answers."""
        with contextlib.suppress(sqlite3.Error):
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")  # or it could be read meanwhile
        self._unreachable(f"{error}; whether the last commits are durable is looked up")
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
            # In the database it is durable whatever became of the log.
            (blocked, *_) = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._files.log_opened()
            if blocked:
                raise StoreUnavailable(f"{self.path} is being read")
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
            "are durable" if reached else "are not there, and are written again",
        )
        self._not_writing()
        self._retry_after = FIRST_RETRY
        if reached:
            self._conclude(attempt)
        else:
            self._undone += 1
            attempt.undo_fences()
            self._queue = attempt.group + self._queue
        self._kick()

    def _lose_files(self, lost: str, group: list[Batch]) -> None:
        """Nothing more is acknowledged, not even if the files come back: who knows what they missed?"""
        if self._files.has_database:  # the log still holds what was acknowledged: save that
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        self._not_writing()
        gone = StoreGone(
            f"{lost} while the host had it open. Nothing is stored or acknowledged any more, and whether"
            f" the last commits are durable is not known: stop the host, put the files back or restore a"
            f" backup, and start it again."
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
        """Read, then wait until what was being written by then is durable: the read may have seen it."""
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
        """Wait until the outcome of what is being written is known, and of nothing that comes after it."""
        if self._readers_wait is None:
            self._readers_wait = self._loop.create_future()
        await asyncio.wait({self._readers_wait})
        self._check_open()

    async def _rows(self, query: Query, arguments: Sequence[Any]) -> list[Row]:
        try:
            if not query.bulk:
                return self._db.execute(query.sqlite, arguments).fetchall()
            if self._reader_thread is None:
                self.is_in_place()  # a connection that is opened beside a lost log makes another one
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
        """On the reader thread. No cursor stays open when this returns."""
        if self._reader is None:
            self._reader = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode=ro",
                uri=True,
                isolation_level=None,
                timeout=5,
                check_same_thread=False,
            )
        return self._reader.execute(sql, arguments).fetchall()

    # --- the rest --------------------------------------------------------------------------------

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
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self._not_writing()
        self._disk.close()
        if self._reader_thread is not None:
            self._reader_thread.shutdown(wait=True)
        if self._reader is not None:
            self._reader.close()
        self._db.close()
        self._lock.release()
