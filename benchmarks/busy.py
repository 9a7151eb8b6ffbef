"""W1b: how long a commit takes while another coroutine keeps the event loop busy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.meter import Metrics

SLICE = 0.0002
Commit = Callable[[int, int], Awaitable[Any]]


class Latencies:
    """Commits until a deadline, and how long each took."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.started = time.perf_counter()
        self.deadline = self.started + seconds
        self.taken: list[float] = []

    async def writer(self, commit: Commit, k: int) -> None:
        """Commits one after another as writer k."""
        i = 0
        while (before := time.perf_counter()) < self.deadline:
            await commit(k, i)
            self.taken.append(time.perf_counter() - before)
            i += 1

    async def spinner(self) -> None:
        """Computes in slices, as a coroutine that parses or renders does."""
        while (now := time.perf_counter()) < self.deadline:
            while time.perf_counter() < now + SLICE:
                pass
            await asyncio.sleep(0)

    def metrics(self) -> Metrics:
        """Percentiles in milliseconds, and the rate."""
        taken = sorted(self.taken)
        n = len(taken)
        return {
            "p50_ms": taken[n // 2] * 1e3,
            "p99_ms": taken[n * 99 // 100] * 1e3,
            "max_ms": taken[-1] * 1e3,
            "per_s": n / (time.perf_counter() - self.started),
        }
