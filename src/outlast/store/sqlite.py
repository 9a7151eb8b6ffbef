"""The SQLite engine: the commit runs on the event loop, once a tick, with all that queued in it.

There is no writer thread: it would have to win the GIL back from a busy loop, and starve. Only the fsync
moves to a thread, and only where it is slow (`fsync.SlowDisk`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from outlast.core.errors import (
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from outlast.store import fencing, schema
from outlast.store.attempt import Attempt, Verdict
from outlast.store.base import Row, Store, StoreOptions
from outlast.store.fsync import SlowDisk, sync_data
from outlast.store.grouping import results_from, slots_of, take_group
from outlast.store.lock import FileLock
from outlast.store.operations import Argument, Batch, Fence, Query

logger = logging.getLogger("outlast.store")

Synchronous = Literal["full", "normal", "off"]
OPEN_WITHIN = 5.0  # seconds
CHECKPOINT_PAGES = 1000
FIRST_RETRY = 0.01  # seconds
LAST_RETRY = 1.0

# What can be wrong with a batch itself, rather than with the disk or the file.
_BATCH_ERRORS = (sqlite3.Error, OverflowError, UnicodeEncodeError)

Trouble = Literal["batch", "busy", "full", "io", "readonly", "corrupt"]
_TROUBLES: dict[int, Trouble] = {
    sqlite3.SQLITE_BUSY: "busy",
    sqlite3.SQLITE_LOCKED: "busy",
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_IOERR: "io",
    sqlite3.SQLITE_PROTOCOL: "io",
    sqlite3.SQLITE_NOMEM: "io",
    sqlite3.SQLITE_READONLY: "readonly",
    sqlite3.SQLITE_CANTOPEN: "readonly",
    sqlite3.SQLITE_PERM: "readonly",
    sqlite3.SQLITE_AUTH: "readonly",
    sqlite3.SQLITE_CORRUPT: "corrupt",
    sqlite3.SQLITE_NOTADB: "corrupt",
}


def _trouble(error: sqlite3.Error) -> Trouble:
    """What kind of trouble an SQLite error is: the batch's own, or one that concerns everybody."""
    return _TROUBLES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, "batch")


@dataclass(frozen=True, slots=True)
class SqliteOptions:
    """Settings that only SQLite has."""

    path: Path
    synchronous: Synchronous = "full"
    sync: Callable[[int], None] = sync_data


def _create_private(path: Path) -> None:
    """A new file is its owner's alone, and so are those that SQLite puts beside it: they take its mode."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def open_sqlite(settings: SqliteOptions, options: StoreOptions) -> SqliteStore:
    """Lock the file, bring its schema up to date, and open it."""
    # Its one real name: for the lock, and for when the process changes its working directory.
    path = Path(os.path.realpath(settings.path))
    settings = replace(settings, path=path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        _create_private(path)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StoreUnavailable(f"{path} cannot be opened: {error}") from None
        raise StoreReadOnly(
            f"{path} cannot be opened for writing ({error.strerror}: {error.filename})."
            f" Check the permissions of the file and of its folder."
        ) from None
    try:
        return SqliteStore(settings, options, lock)
    except BaseException:
        lock.release()
        raise


class SqliteStore(Store):
    """One file, one host, one connection for writing and one for long reads."""

    engine = "sqlite"

    def __init__(self, settings: SqliteOptions, options: StoreOptions, lock: FileLock) -> None:
        super().__init__(options)
        self.path = settings.path
        self.identity = str(settings.path)
        self._synchronous = settings.synchronous
        self._lock = lock
        self._scheduled = False
        self._writing: Attempt | None = None  # taken from the queue; its outcome is not known
        self._paused = False  # until a timer ends that
        self._one_by_one = 0  # this many batches are to be written each in its own transaction
        self._retry_after = FIRST_RETRY
        self._reader: sqlite3.Connection | None = None
        self._reader_thread: Executor | None = None
        self._db = self._connect(OPEN_WITHIN)
        try:
            self._migrate()
            self._disk = SlowDisk(
                Path(f"{self.path}-wal"), settings.sync, enabled=settings.synchronous == "full"
            )
            self._tune(self._db)
        except sqlite3.Error as error:
            self._db.close()
            raise self._explained(error) from error
        except BaseException:
            self._db.close()
            raise

    # --- opening ---------------------------------------------------------------------------------

    def _connect(self, within: float = 0) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(
                self.path,
                isolation_level=None,
                timeout=within,  # whoever reads may be mending what a killed host left
                check_same_thread=False,
                cached_statements=256,
            )
        except sqlite3.Error as error:
            raise self._explained(error) from error
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
            raise self._explained(error) from error
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

    def _migrate(self) -> None:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            db.execute(schema.META)
            db.execute("DELETE FROM meta WHERE key = ''")  # no row; a read-only file fails here
            row = db.execute(schema.READ_VERSION).fetchone()
            version = int(row[0]) if row else 0
            for migration in schema.pending(schema.migrations("sqlite"), version, str(self.path)):
                for statement in migration.statements:
                    db.execute(statement)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

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
            self._writing = None
            self._durable(attempt)
            if self._queue:
                self._kick()

    def _durable(self, attempt: Attempt) -> None:
        self._conclude(attempt)
        if self._disk.should_move():
            self._tune(self._db)

    def _transact(self, attempt: Attempt) -> None:
        db, group, probe = self._db, attempt.group, self.options.probe
        db.execute("BEGIN IMMEDIATE")
        try:
            verdicts = self._quickly(group[0]) if len(group) == 1 else self._together(attempt)
        except _BATCH_ERRORS as error:
            if isinstance(error, sqlite3.Error) and _trouble(error) != "batch":
                raise
            verdicts = None
        if verdicts is None:
            db.execute("ROLLBACK")
            attempt.undo_fences()
            db.execute("BEGIN IMMEDIATE")
            verdicts = self._one_after_another(group)
        if probe is not None:
            probe.before_commit(group)
        attempt.verdicts = verdicts  # from here on it may be durable
        started = self._loop.time()
        db.execute("COMMIT")
        if not self._disk.in_thread:
            self._disk.took(self._loop.time() - started)
        if probe is not None:
            probe.after_commit(group)

    def _together(self, attempt: Attempt) -> list[Verdict] | None:
        """Write all batches with a few statements; None when one of them has to be singled out."""
        execute, executemany = self._db.execute, self._db.executemany
        group, counts = attempt.group, attempt.counts
        guards: dict[str, list[tuple[Argument, ...]]] = {}
        for fence, count in counts.items():
            statement, arguments = fencing.guard(fence, count)
            guards.setdefault(statement.sqlite, []).append(arguments)
        for sql, rows in guards.items():
            if executemany(sql, rows).rowcount != len(rows):
                return None
        slots = slots_of(group, counts)
        touched = [
            execute(slot.statement.sqlite, slot.rows[0]).rowcount
            if len(slot.rows) == 1
            else executemany(slot.statement.sqlite, slot.rows).rowcount
            for slot in slots
        ]
        results = results_from(slots, touched, group)
        if results is None:
            return None
        for fence, count in counts.items():
            fencing.passed(fence, count)
        return list(results)

    def _quickly(self, batch: Batch) -> list[Verdict] | None:
        """The same for a group of one."""
        statement, arguments = fencing.guard(batch.fence, 1)
        if self._db.execute(statement.sqlite, arguments).rowcount != 1:
            return None
        touched = self._operations(batch)
        if touched is None:
            return None
        fencing.passed(batch.fence, 1)
        return [touched]

    def _operations(self, batch: Batch) -> tuple[int, ...] | None:
        """Execute them one by one; None when a condition does not hold."""
        touched = []
        for statement, arguments in batch.operations:
            count = self._db.execute(statement.sqlite, arguments).rowcount
            if not count and statement.expect:
                return None
            touched.append(count)
        return tuple(touched)

    def _one_after_another(self, group: list[Batch]) -> list[Verdict]:
        """Write each batch so that it can be undone without its neighbours."""
        verdicts: list[Verdict] = []
        broken: set[Fence] = set()
        for batch in group:
            verdict: Verdict = "behind" if batch.fence in broken else self._alone(batch)
            if isinstance(verdict, Exception) or verdict == "stale":
                broken.add(batch.fence)
            verdicts.append(verdict)
        return verdicts

    def _alone(self, batch: Batch) -> Verdict:
        db = self._db
        db.execute("SAVEPOINT batch")
        verdict: Verdict
        statement, arguments = fencing.guard(batch.fence, 1)
        try:
            if db.execute(statement.sqlite, arguments).rowcount != 1:
                verdict = "stale"
            else:
                touched = self._operations(batch)
                verdict = "refused" if touched is None else touched
        except _BATCH_ERRORS as error:
            if isinstance(error, sqlite3.Error) and _trouble(error) != "batch":
                raise
            verdict = error
        if isinstance(verdict, tuple):
            fencing.passed(batch.fence, 1)
        else:
            db.execute("ROLLBACK TO batch")
        db.execute("RELEASE batch")
        return verdict

    # --- when it goes wrong ----------------------------------------------------------------------

    def _rescue(self, attempt: Attempt, error: sqlite3.Error) -> None:
        """The transaction failed as a whole. Undo it, and decide what becomes of its batches."""
        trouble = _trouble(error)
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
            self._fail(attempt.group[0], self._explained(error))

    def _doubt(self, attempt: Attempt, error: Exception) -> None:
        """The disk failed, so nobody knows whether this is durable: ask it, until it answers."""
        with contextlib.suppress(sqlite3.Error):
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")  # or it could be read meanwhile
        self._unreachable(error)
        self._writing = attempt
        self._later(lambda: self._ask(attempt))

    def _ask(self, attempt: Attempt) -> None:
        if self._closed is not None:
            return
        try:
            self._db.close()
            self._disk.forget()
            self._db = self._connect()
            self._tune(self._db)
            # What the log holds was perhaps never synced. This writes it out, and syncs.
            (blocked, *_) = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if blocked:
                raise StoreUnavailable(f"{self.path} is being read")
            reached = attempt.verdicts is not None and all(
                fencing.has_reached(fence, self._fence_row(fence), commit_no)
                for fence, commit_no in attempt.advanced()
            )
        except (sqlite3.Error, StoreError) as error:
            logger.warning("%s still does not answer: %s", self.path, error)
            self._later(lambda: self._ask(attempt))
            return
        self._writing = None
        self._retry_after = FIRST_RETRY
        if reached:
            self._conclude(attempt)
        else:
            attempt.undo_fences()
            self._queue = attempt.group + self._queue
        self._kick()

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

    def _explained(self, error: sqlite3.Error) -> StoreError:
        """What an SQLite error means to the person who runs this."""
        match _trouble(error):
            case "full":
                return StoreFull(
                    f"{self.path}: no space left ({error}). Nothing of this commit was written;"
                    f" free some space and the store goes on."
                )
            case "readonly":
                return StoreReadOnly(
                    f"{self.path} cannot be written ({error}). Check the permissions of the file"
                    f" and of its folder."
                )
            case "corrupt":
                return StoreCorrupt(
                    f"{self.path} is not a sound SQLite database ({error}). Restore a backup; the"
                    f" sqlite3 command's .recover can save what is still readable."
                )
        return StoreUnavailable(f"{self.path}: {error}")

    # --- reading ---------------------------------------------------------------------------------

    async def _fetch(self, query: Query, arguments: Sequence[Any]) -> list[Row]:
        while self._writing is not None:  # what it wrote can be seen, but is not durable yet
            await asyncio.wait({self._writing.group[-1].outcome})
        try:
            if not query.bulk:
                return self._db.execute(query.sqlite, arguments).fetchall()
            if self._reader_thread is None:
                self._reader_thread = ThreadPoolExecutor(1, "outlast-reader")
            return await self._loop.run_in_executor(
                self._reader_thread, self._read, query.sqlite, arguments
            )
        except sqlite3.Error as error:
            if self._closed is not None:
                raise StoreClosed(str(self._closed)) from None
            raise self._explained(error) from error

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

    def _release(self) -> None:
        self._disk.close()
        if self._reader_thread is not None:
            self._reader_thread.shutdown(wait=True)
        if self._reader is not None:
            self._reader.close()
        self._db.close()
        self._lock.release()
