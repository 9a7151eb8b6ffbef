"""Running out of memory: a control group whose kernel kills, or a limit of the address space.

A control group is the real thing, and needs the right to make one (root, mostly). Otherwise the process
takes all that its limit allows and goes on without any, until it ends by itself or is killed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

MOUNTED = Path("/sys/fs/cgroup")
GROUPS = Path("/proc/self/cgroup")
LIMIT = 640 * 1024 * 1024  # bytes, for a supervisor and its worker
BLOCK = 16 * 1024 * 1024
ROOM = 64 * 1024 * 1024  # that a process without a control group has left, when it begins to eat
BY_GROUP, BY_LIMIT = "control group", "address-space limit"

_eaten: list[bytes] = []


def exhaust(*, by_limit: bool) -> None:
    """Take memory until there is none: the kernel kills this process, or `MemoryError` is raised."""
    if by_limit:
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
    while True:
        _eaten.append(b"x" * BLOCK)


class Group:
    """A control group with a limit of memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def enter(self) -> None:
        """Put this process into it; called between fork and exec."""
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._folder.rmdir()


@contextlib.contextmanager
def group(limit: int = LIMIT) -> Iterator[Group | None]:
    """A control group of our own; None where that cannot be had."""
    made = _make(limit)
    try:
        yield made
    finally:
        if made is not None:
            made.remove()


def _make(limit: int) -> Group | None:
    for parent, files in _places():
        folder = parent / f"outlast-torture-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            for name, needed in files:
                file = folder / name
                if needed or file.exists():
                    file.write_text(str(limit) if needed else "0")
            return Group(folder)
        except OSError:
            folder.rmdir()
    return None


def _places() -> Iterator[tuple[Path, list[tuple[str, bool]]]]:
    """Where one may be made: version 1, then 2. With each, the files of its limit."""
    try:
        lines = [line.split(":", 2) for line in GROUPS.read_text().splitlines()]
    except OSError:
        return
    for line in lines:
        if len(line) == 3 and "memory" in line[1].split(","):
            for inside in (MOUNTED / "memory" / line[2].lstrip("/"), MOUNTED / "memory"):
                yield inside, [("memory.limit_in_bytes", True)]
    for line in lines:
        if len(line) == 3 and line[0] == "0" and (MOUNTED / "cgroup.controllers").exists():
            own = MOUNTED / line[2].lstrip("/")
            for inside in (own, own.parent):
                if MOUNTED in (inside, *inside.parents):
                    yield inside, [("memory.max", True), ("memory.swap.max", False)]
