"""The files of a SQLite store: created durably, and watched, so that their loss is noticed."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

_PIECE = 1024 * 1024  # bytes
_GONE = (FileNotFoundError, NotADirectoryError)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:  # a folder must be readable to be synced
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the file system does not sync folders
            raise
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents durably."""
    if folder.is_dir():
        return
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)


def create_private(path: Path) -> None:
    """Create the file, if missing, readable by its owner only. SQLite gives its other files the same mode."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def sync_log(log: Path, sync: Callable[[int], None], *, anew: bool = False) -> None:
    """Make a log and its name durable, if it exists.

    `anew` is for a log whose fsync failed. The kernel then treats the unwritten pages as clean, and the next
    fsync succeeds without them. So the latest transaction, the only one in doubt, is written again first.
    Earlier transactions are durable, and are not touched.
    """
    try:
        descriptor = os.open(log, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if anew:
            _write_again(descriptor)
        sync(descriptor)
    finally:
        os.close(descriptor)
    sync_folder(log.parent)


def _write_again(descriptor: int) -> None:
    at, end = latest_transaction(lambda size, offset: os.pread(descriptor, size, offset))
    while at < end:
        at += os.pwrite(descriptor, os.pread(descriptor, min(_PIECE, end - at), at), at)


def latest_transaction(read: Callable[[int, int], bytes]) -> tuple[int, int]:
    """Return the start and end of the latest transaction of a log; the log's header belongs to the first.

    `read` takes a size and an offset. A log is a header of 32 bytes and frames, each a header of 24 bytes and
    a page. Frames of this log have its salt; the last frame of a transaction has the size of the database.
    """
    head = read(32, 0)
    page, salt = int.from_bytes(head[8:12]), head[16:24]
    begins, ends, at = 0, 0, len(head)
    while page and len(frame := read(24, at)) == 24 and frame[8:16] == salt:
        at += 24 + page
        if any(frame[4:8]):
            begins, ends = ends, at
    return (begins, at) if at == ends else (ends, at)


class FileWatch:
    """Checks that the paths of a database and its log still lead to the files that SQLite has open.

    Writes to a file without a name are lost with the process. An inode is not reused while a process has it
    open, so a path with the same inode leads to the same file.
    """

    def __init__(self, database: Path) -> None:
        self.log = Path(f"{database}-wal")
        self._database = (str(database), _identity(database))
        self._known = [self._database]
        self.log_opened()

    def log_opened(self) -> None:
        """Watch the log that SQLite has just opened."""
        self._known = [self._database, (str(self.log), _identity(self.log))]

    def log_closed(self) -> None:
        """Stop watching the log: SQLite may delete it and create another."""
        self._known = [self._database]

    @property
    def lost(self) -> str | None:
        """Which file was removed or replaced, for a message; None if both are in place."""
        for name, identity in self._known:
            try:
                found = os.stat(name)
            except _GONE:
                return f"{name} was removed or moved"
            except OSError:  # this proves nothing
                continue
            if (found.st_dev, found.st_ino) != identity:
                return f"{name} was replaced by another file"
        return None

    @property
    def has_database(self) -> bool:
        """Whether the database itself is in place."""
        with contextlib.suppress(OSError):
            return _identity(Path(self._database[0])) == self._database[1]
        return False


def _identity(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
