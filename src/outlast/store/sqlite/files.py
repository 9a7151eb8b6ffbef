"""The files of a SQLite store: made so that a power cut leaves them, and watched, so that a loss is seen."""

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
    except PermissionError:  # who may not read a folder cannot sync it
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that syncs no folders
            raise
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, as far as there are none, and see that a power cut leaves them."""
    if folder.is_dir():
        return
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)


def create_private(path: Path) -> None:
    """A new file is its owner's alone, and so are those that SQLite puts beside it: they take its mode."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def sync_log(log: Path, sync: Callable[[int], None], *, anew: bool = False) -> None:
    """Make a log and its name durable, if there is one.

    `anew`: an fsync of it has failed. The kernel then takes what it could not write for written, and the
    next fsync succeeds without it. So the latest transaction, the only one in doubt, is written once more
    first. What is before it is durable, and stays untouched.
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
    """Where the latest transaction of a log begins and ends; the log's head counts as part of the first.

    `read` is given a size and an offset. A log is a head of 32 bytes and frames, each a head of 24 bytes and
    a page. Frames of this log have its salt; the last one of a transaction has the size of the database.
    """
    head = read(32, 0)
    page, salt = int.from_bytes(head[8:12]), head[16:24]
    begins, ends, at = 0, 0, len(head)
    while page and len(frame := read(24, at)) == 24 and frame[8:16] == salt:
        at += 24 + page
        if any(frame[4:8]):
            begins, ends = ends, at
    return (begins, at) if at == ends else (ends, at)


class Whereabouts:
    """Whether the names of a database and of its log still lead to the files that SQLite has open.

    What is written to a file without a name is lost with the process. An inode is not given to another file
    while somebody has it open, so a name that leads to the same one leads to the same file.
    """

    def __init__(self, database: Path) -> None:
        self.log = Path(f"{database}-wal")
        self._database = (str(database), _identity(database))
        self._known = [self._database]
        self.log_opened()

    def log_opened(self) -> None:
        """SQLite has the log open: from now on it is this one."""
        self._known = [self._database, (str(self.log), _identity(self.log))]

    def log_closed(self) -> None:
        """SQLite may have removed the log, and may make another."""
        self._known = [self._database]

    @property
    def lost(self) -> str | None:
        """Which of the files is not in its place, in words; None: none."""
        for name, identity in self._known:
            try:
                found = os.stat(name)
            except _GONE:
                return f"{name} was removed or moved away"
            except OSError:  # it cannot be looked at, which proves nothing
                continue
            if (found.st_dev, found.st_ino) != identity:
                return f"{name} is another file now"
        return None

    @property
    def has_database(self) -> bool:
        """Whether at least the database is in its place."""
        with contextlib.suppress(OSError):
            return _identity(Path(self._database[0])) == self._database[1]
        return False


def _identity(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
