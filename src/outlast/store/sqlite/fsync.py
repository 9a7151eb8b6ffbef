"""Where fsync is slow, it alone moves to a thread; everything else stays on the event loop.

A thread has to win the GIL back from a busy loop before it can report. So while an fsync is under way the
loop, once it has waited long enough, gives way for a moment: it waits on the thread's signal, which
releases the GIL.
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

SLOW = 0.002  # seconds: on average above this, fsync moves to a thread
QUICK = 0.001  # and below this it comes back
ENOUGH = 8  # commits before the average means anything
WEIGHT = 0.1  # of the newest measurement in the moving average
GIVE_WAY_AFTER = 0.001
GIVE_WAY_FOR = 0.002
CHECKPOINT_BYTES = 4 * 1024 * 1024


def sync_data(descriptor: int) -> None:
    """Make what was written to a file durable."""
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
        self._is_in_place = is_in_place  # both files are where they were
        self._descriptor: int | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._checkpointer: sqlite3.Connection | None = None

    def took(self, seconds: float) -> None:
        """A commit (or, in the thread, an fsync) took this long."""
        self._seen += 1
        before = seconds if self.average is None else self.average
        self.average = before + WEIGHT * (seconds - before)

    def should_move(self) -> bool:
        """Decide anew where fsync runs; True when that changed."""
        if not self._enabled or self._seen < ENOUGH or self.average is None:
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
            except BaseException as problem:  # whatever it is, somebody waits for this to end
                error = OSError(f"the log could not be made durable: {problem!r}")
            elapsed = time.perf_counter() - begun
            finished.set()
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(conclude, elapsed, error)

        def conclude(elapsed: float, error: OSError | None) -> None:
            self.syncing = False
            self.took(elapsed)
            done(error)

        def give_way() -> None:
            if self.syncing and not finished.is_set():
                if loop.time() - started >= GIVE_WAY_AFTER:
                    finished.wait(GIVE_WAY_FOR)
                loop.call_later(GIVE_WAY_AFTER / 2, give_way)

        self._thread.submit(work)
        loop.call_later(GIVE_WAY_AFTER, give_way)

    def _opened(self) -> int:
        """The log's descriptor: opened once, and again after `forget`."""
        if self._descriptor is None:
            descriptor = os.open(self._wal, os.O_RDWR | os.O_CLOEXEC)
            try:
                sync_folder(self._wal.parent)  # the log's own name must be durable too
            except OSError:
                os.close(descriptor)
                raise
            self._descriptor = descriptor
        return self._descriptor

    def forget(self) -> None:
        """The connection was closed, and perhaps the log was removed with it: open it anew."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _checkpoint(self) -> None:
        """Move the log into the database, here rather than on the loop. Nobody writes meanwhile.

        And truncate it: its size is what tells that the next one is due.
        """
        with contextlib.suppress(sqlite3.Error):  # the next one will do it
            if self._checkpointer is None:
                database = Path(str(self._wal).removesuffix("-wal"))
                self._checkpointer = sqlite3.connect(
                    f"{database.as_uri()}?mode=rw",  # never a new file
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
