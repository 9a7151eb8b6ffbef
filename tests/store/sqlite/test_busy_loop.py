"""SQLite: commits beside a coroutine that keeps the event loop busy."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator

import pytest
from disks import Disk, on_a_slow_disk
from rows import fence, opened, put

from outlast.store.base import Store
from outlast.store.sqlite import fsync

SLICE = 0.0002  # seconds


class Ticks:
    """How often the loop has turned."""

    count = 0


@contextlib.asynccontextmanager
async def busy_loop() -> AsyncIterator[Ticks]:
    """A coroutine that computes for 0.2 ms in each turn of the loop, and never waits."""
    ticks = Ticks()

    async def compute() -> None:
        while True:
            ticks.count += 1
            end = time.perf_counter() + SLICE
            while time.perf_counter() < end:
                pass
            await asyncio.sleep(0)

    task = asyncio.create_task(compute())
    try:
        yield ticks
    finally:
        task.cancel()


async def ticks_per_commit(store: Store, ticks: Ticks, writers: int, commits: int) -> list[int]:
    """Let many agents commit one after another beside the busy coroutine: the turns each one took."""
    taken: list[int] = []

    async def writer(name: str) -> None:
        mine = fence(name)
        for n in range(commits):
            started = ticks.count
            await store.commit(mine, [put(name, str(n))])
            taken.append(ticks.count - started)

    await asyncio.gather(*(writer(f"A/{n}") for n in range(writers)))
    return taken


async def test_each_commit_takes_two_turns_of_a_busy_loop(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsync, "SLOW", math.inf)  # it stays on the loop, however slow this disk is
    async with opened(sqlite_url) as store, busy_loop() as ticks:
        taken = await ticks_per_commit(store, ticks, writers=20, commits=10)
        assert len(taken) == 200
        assert max(taken) <= 2
        assert store.statistics().batches == 200


async def test_a_busy_loop_does_not_starve_the_fsync_in_its_thread(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    disk.delay = lambda: time.sleep(0.004)
    async with on_a_slow_disk(sqlite_url, disk, monkeypatch) as store, busy_loop() as ticks:
        before, began = ticks.count, time.perf_counter()
        taken = await ticks_per_commit(store, ticks, writers=20, commits=20)
        assert len(taken) == 400
        computing = (ticks.count - before) * SLICE / (time.perf_counter() - began)
        assert computing < 0.6  # 0.4 at most, on a slow machine less; 0.8 if it did not give way
