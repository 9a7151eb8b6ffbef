"""Wall and CPU time of a section, the CPU of every process that takes part."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

Metrics = dict[str, float]


def resident_mb() -> float:
    """Resident memory of this process."""
    import psutil

    return float(psutil.Process().memory_info().rss) / 2**20


def cpu_seconds(pid: int) -> float:
    """CPU time of another process and of its children, the exited ones included where known."""
    import psutil

    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        children = process.children(recursive=True)
    except psutil.NoSuchProcess:
        return 0.0
    total: float = times.user + times.system
    total += times.children_user + times.children_system  # of those that have been waited for
    for child in children:
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


class Meter:
    """Measures a `with` block. `others` are roots of further process trees that work for it."""

    def __init__(self, others: Iterable[int] = ()) -> None:
        self.others = tuple(pid for pid in others if pid != os.getpid())
        self.wall = 0.0
        self.cpu = 0.0
        self.own_cpu = 0.0
        """The share of this process."""

    def __enter__(self) -> Self:
        # Looking at other processes costs CPU of our own: it stays outside the section.
        self._others = sum(map(cpu_seconds, self.others))
        self._cpu = time.process_time()
        self._wall = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall = time.perf_counter() - self._wall
        self.own_cpu = time.process_time() - self._cpu
        self.cpu = self.own_cpu + sum(map(cpu_seconds, self.others)) - self._others

    def each(self, n: int) -> Metrics:
        """Microseconds of wall and CPU time per operation, and the rate."""
        return {
            "wall_us": self.wall / n * 1e6,
            "cpu_us": self.cpu / n * 1e6,
            "per_s": n / self.wall,
        }
