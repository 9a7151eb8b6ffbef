"""One host per SQLite file: a lock file next to the database, which names its holder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
import weakref
from pathlib import Path

from outlast.core.errors import StoreLocked


class FileLock:
    """An advisory lock that ends with the process, however that ends. Forked children drop it.

    The lock file is never deleted: that would race with the next holder.
    """

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(database.name + ".lock")
        self.held = False
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self.path, flags, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid, holder = self._holder()
            os.close(self._descriptor)
            locked = StoreLocked(
                f"{database} is in use by {holder}. Only one host at a time can use a SQLite file: stop"
                f" that process, or use PostgreSQL for several hosts."
            )
            locked.pid = pid
            raise locked from None
        self.held = True
        about = {"pid": os.getpid(), "host": socket.gethostname(), "started": int(time.time())}
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(about).encode(), 0)
        _drop_in_children(self)

    def _holder(self) -> tuple[int | None, str]:
        try:
            about = json.loads(os.pread(self._descriptor, 1000, 0))
            since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(about["started"]))
            return int(about["pid"]), f"process {about['pid']} on {about['host']} (since {since})"
        except (ValueError, KeyError, TypeError):
            return None, "another process (the lock file does not name it)"

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self.held:
            self.held = False
            with contextlib.suppress(OSError):
                os.close(self._descriptor)


def _drop_in_children(lock: FileLock) -> None:
    """Release the lock in forked children, which must not keep it when the parent dies."""
    reference = weakref.ref(lock)

    def drop() -> None:
        held = reference()
        if held is not None:
            held.release()

    os.register_at_fork(after_in_child=drop)
