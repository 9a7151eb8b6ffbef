"""Reading and writing regular files. These functions block: call them in a thread."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from secrets import token_hex

_BINARY = getattr(os, "O_BINARY", 0)  # the flags that only some systems have
_READ = os.O_RDONLY | _BINARY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
_PROBE = 8192  # bytes in which a binary file shows


def read_file(path: Path, most: int) -> bytes:
    """Return the first bytes of a regular file. Folders, pipes, devices and links are refused."""
    descriptor = os.open(path, _READ)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "not a regular file", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(descriptor)


def write_file(path: Path, content: str) -> None:
    """Replace a file as a whole: a crash leaves the old content or the new one."""
    temporary = path.with_name(f".{path.name}.{token_hex(6)}")
    try:
        with temporary.open("x", encoding="utf-8", newline="") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def text_of(content: bytes) -> str | None:
    """Return the text of a file, or None if it is binary."""
    return None if b"\0" in content[:_PROBE] else content.decode("utf-8", "replace")
