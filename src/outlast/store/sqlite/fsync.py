"""On a slow disk, fsync moves to a thread; everything else stays on the event loop.

A thread has to win the GIL back from a busy loop before it can report. So during a long fsync the loop yields
now and then: it waits briefly for the thread's signal, which releases the GIL.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from outlast.store.sqlite.files import sync_folder

SLOW = 0.002  # seconds: above this average, fsync moves to a thread
QUICK = 0.001  # and below this it moves back
MIN_COMMITS = 8  # before the average means anything
WEIGHT = 0.1  # of the newest measurement in the moving average
YIELD_AFTER = 0.001
YIELD_FOR = 0.002
CHECKPOINT_BYTES = 4 * 1024 * 1024


def sync_data(descriptor: int) -> None:
    """Make the data of a file durable."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


class SlowDisk:
    """Watches how long commits take, and runs the fsync in a thread while they take too long."""

    def __init__(
        self,
        wal: Path,
        sync: Callable[[int], None],
        *,
        enabled: bool,
        is_in_place: Callable[[], bool] = lambda: True,
    ) -> None:
        self.in_thread = False
        self.syncing = False
        self.average: float | None = None
        self._seen = 0
        self._enabled = enabled
        self._wal = wal
        self._sync = sync
        self._is_in_place = is_in_place  # both files still exist
        self._descriptor: int | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._checkpointer: sqlite3.Connection | None = None

    def record(self, seconds: float) -> None:
        """Record the duration of a commit (or, in the thread, of an fsync)."""
        self._seen += 1
        before = seconds if self.average is None else self.average
        self.average = before + WEIGHT * (seconds - before)

    def should_move(self) -> bool:
        """Decide again where fsync runs. Returns whether that changed."""
        if not self._enabled or self._seen < MIN_COMMITS or self.average is None:
            return False
        wanted = self.average > (QUICK if self.in_thread else SLOW)
        if wanted == self.in_thread:
            return False
        self.in_thread = wanted
        self._seen = 0
        return True

    def sync(self, loop: asyncio.AbstractEventLoop, done: Callable[[OSError | None], None]) -> None:
        """Make the log durable in a thread, then call `done` on the loop."""
        try:
            descriptor = self._opened()
        except OSError as error:
            loop.call_soon(done, error)
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "outlast-fsync")
        self.syncing = True
        finished = threading.Event()
        started = loop.time()

        def work() -> None:
            begun = time.perf_counter()
            error: OSError | None = None
            try:
                self._sync(descriptor)
                if os.fstat(descriptor).st_size > CHECKPOINT_BYTES and self._is_in_place():
                    self._checkpoint()
            except OSError as problem:
                error = problem
            except BaseException as problem:  # `done` must be called in any case
                error = OSError(f"cannot sync the log: {problem!r}")
            elapsed = time.perf_counter() - begun
            finished.set()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(conclude, elapsed, error)

        def conclude(elapsed: float, error: OSError | None) -> None:
            self.syncing = False
            self.record(elapsed)
            done(error)

        def yield_gil() -> None:
            if self.syncing and not finished.is_set():
                if loop.time() - started >= YIELD_AFTER:
                    finished.wait(YIELD_FOR)
                loop.call_later(YIELD_AFTER / 2, yield_gil)

        self._thread.submit(work)
        loop.call_later(YIELD_AFTER, yield_gil)

    def _opened(self) -> int:
        """Return the log's descriptor, opened once, and again after `forget`."""
        if self._descriptor is None:
            descriptor = os.open(self._wal, os.O_RDWR | os.O_CLOEXEC)
            try:
                sync_folder(self._wal.parent)  # the name of the log must be durable, too
            except OSError:
                os.close(descriptor)
                raise
            self._descriptor = descriptor
        return self._descriptor

    def forget(self) -> None:
        """Close the descriptor: SQLite may have deleted the log with its connection."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _checkpoint(self) -> None:
        """Move the log into the database, off the loop. There is no writer at this time.

        It truncates the log, whose size decides when the next checkpoint is due.
        """
        with contextlib.suppress(sqlite3.Error):  # the next checkpoint will do it
            if self._checkpointer is None:
                database = Path(str(self._wal).removesuffix("-wal"))
                self._checkpointer = sqlite3.connect(
                    f"{database.as_uri()}?mode=rw",  # never creates a file
                    uri=True,
                    isolation_level=None,
                    timeout=0,
                    check_same_thread=False,
                )
            self._checkpointer.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        if self._checkpointer is not None:
            self._checkpointer.close()
        self.forget()
