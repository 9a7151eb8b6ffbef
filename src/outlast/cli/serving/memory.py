"""Counts the processes of this control group that the kernel killed for their memory use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

GROUPS = Path("/proc/self/cgroup")
MOUNTED = Path("/sys/fs/cgroup")


def oom_kills(groups: Path = GROUPS, mounted: Path = MOUNTED) -> int | None:
    """Return the kernel's counter; None where it is not available."""
    try:
        text = groups.read_text()
    except OSError:
        return None
    for path in counters(text, mounted):
        try:
            found = counted(path.read_text())
        except OSError:
            continue
        if found is not None:
            return found
    return None


def counters(groups: str, mounted: Path) -> Iterator[Path]:
    """Yield the possible paths of the counter: version 2, then 1, whose root may be the own group."""
    lines = [line.split(":", 2) for line in groups.splitlines() if line.count(":") >= 2]
    for number, _, group in lines:
        if number == "0":
            yield mounted / group.lstrip("/") / "memory.events"
    for _, controllers, group in lines:
        if "memory" in controllers.split(","):
            yield mounted / "memory" / group.lstrip("/") / "memory.oom_control"
            yield mounted / "memory" / "memory.oom_control"


def counted(text: str) -> int | None:
    """Parse the number in the line `oom_kill 3`."""
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if name == "oom_kill" and number.strip().isdecimal():
            return int(number)
    return None
