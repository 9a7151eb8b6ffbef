"""SQLite: where fsync is slow, it alone moves to a thread, and comes back when it is quick."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from disks import Disk, on_a_slow_disk
from rows import PATIENCE, fence, look, path_of, put, settled, stored, until

from outlast.store.base import StoreOptions
from outlast.store.sqlite import fsync
from outlast.store.sqlite.engine import SqliteOptions, SqliteStore, Synchronous, open_sqlite
from outlast.store.sqlite.fsync import SlowDisk


class SlowCommit:
    """An SQLite connection whose COMMIT takes `seconds` where it syncs."""

    def __init__(self, db: sqlite3.Connection, seconds: float) -> None:
        self._db = db
        self.seconds = seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        if sql == "COMMIT" and self._db.execute("PRAGMA synchronous").fetchone() == (2,):
            time.sleep(self.seconds)
        return self._db.execute(sql, *arguments)


def store_with(url: str, disk: Disk, synchronous: Synchronous = "full") -> SqliteStore:
    return open_sqlite(SqliteOptions(path_of(url), synchronous, disk.sync), StoreOptions())


def moves(disk: SlowDisk, *seconds: float) -> list[int]:
    """After which of these measurements fsync moved."""
    moved = []
    for n, each in enumerate(seconds, 1):
        disk.record(each)
        if disk.should_move():
            moved.append(n)
    return moved


def slow_disk(*, enabled: bool = True) -> SlowDisk:
    return SlowDisk(Path("unused-wal"), lambda _: None, enabled=enabled)


def test_fsync_moves_once_enough_commits_took_more_than_two_milliseconds_on_average() -> None:
    assert moves(slow_disk(), *[0.0025] * 20) == [fsync.MIN_COMMITS]
    assert moves(slow_disk(), *[0.0019] * 100) == []


def test_a_single_slow_commit_moves_nothing() -> None:
    assert moves(slow_disk(), *[0.0002] * 10, 0.015, *[0.0002] * 50) == []


def test_fsync_comes_back_once_it_is_quick_and_not_before() -> None:
    disk = slow_disk()
    assert moves(disk, *[0.005] * 8) == [8]
    assert moves(disk, *[0.0015] * 100) == []  # between the two thresholds: it stays where it is
    assert disk.in_thread
    assert len(moves(disk, *[0.0005] * 100)) == 1
    assert not disk.in_thread


def test_fsync_never_moves_where_commits_are_not_synced() -> None:
    assert moves(slow_disk(enabled=False), *[1.0] * 100) == []


async def test_commits_on_a_slow_disk_move_their_fsync_to_a_thread_and_back(
    sqlite_url: str,
) -> None:
    disk = Disk()
    disk.delay = lambda: time.sleep(0.004)
    store = store_with(sqlite_url, disk)
    store._db = SlowCommit(store._db, 0.005)
    mine = fence()
    for n in range(fsync.MIN_COMMITS):
        assert not store.statistics().fsync_in_thread
        await store.commit(mine, [put("A/x", str(n))])
    assert store.statistics().fsync_in_thread
    assert (store.statistics().fsync_average or 0) > fsync.SLOW
    assert disk.threads == []
    await store.commit(mine, [put("A/x", "in the thread")])
    assert len(disk.threads) == 1
    assert threading.current_thread().name not in disk.threads
    disk.delay, store._db.seconds = lambda: None, 0.0  # the disk is quick again
    disk.is_real = False
    for n in range(200):
        if not store.statistics().fsync_in_thread:
            break
        await store.commit(mine, [put("A/x", f"back {n}")])
    assert not store.statistics().fsync_in_thread
    assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    synced = len(disk.threads)
    await store.commit(mine, [put("A/x", "inline")])
    assert len(disk.threads) == synced
    assert {"in the thread", "inline"} < set(await stored(store))
    await store.close()


async def test_the_outcome_is_told_only_after_the_fsync_has_returned(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    async with on_a_slow_disk(sqlite_url, disk, monkeypatch) as store:
        disk.go_on.clear()
        outcome = store.submit(fence(), [put("A/x", "k")])
        await until(disk.entered.is_set, "the fsync began")
        assert await look(sqlite_url, "SELECT key FROM storage") == [("k",)]  # but not durable
        for _ in range(50):
            await asyncio.sleep(0)
        assert not outcome.done()
        assert store.statistics().in_flight == 1
        disk.go_on.set()
        assert await settled([outcome]) == [(1,)]


async def test_what_queues_during_an_fsync_shares_the_next_one(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    async with on_a_slow_disk(sqlite_url, disk, monkeypatch) as store:
        before = store.statistics()
        disk.go_on.clear()
        fences = [fence(f"A/{n}") for n in range(50)]
        outcomes = [store.submit(fences[0], [put("A/0", "first")])]
        await until(disk.entered.is_set, "the fsync began")
        outcomes += [store.submit(each, [put(each.root, "k")]) for each in fences]
        disk.go_on.set()
        assert await settled(outcomes) == [(1,)] * 51
        after = store.statistics()
        assert after.commits - before.commits == 2
        assert len(disk.threads) == 2
        assert disk.threads[0] == disk.threads[1] != threading.current_thread().name


async def test_closing_waits_for_the_fsync_under_way(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    async with on_a_slow_disk(sqlite_url, disk, monkeypatch) as store:
        disk.go_on.clear()
        outcome = store.submit(fence(), [put("A/x", "k")])
        await until(disk.entered.is_set, "the fsync began")
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        assert not closing.done()
        disk.go_on.set()
        await asyncio.wait_for(closing, PATIENCE)
        assert outcome.result() == (1,)


async def test_the_log_stays_small_while_fsync_is_in_a_thread(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsync, "CHECKPOINT_BYTES", 200_000)
    checkpoints = 0
    really = SlowDisk._checkpoint

    def counted(disk: SlowDisk) -> None:
        nonlocal checkpoints
        checkpoints += 1
        really(disk)

    monkeypatch.setattr(SlowDisk, "_checkpoint", counted)
    disk, largest = Disk(), 0
    async with on_a_slow_disk(sqlite_url, disk, monkeypatch) as store:
        mine = fence()
        for n in range(200):
            await store.commit(mine, [put("A/x", str(n), "v" * 8000)])
            largest = max(largest, os.stat(f"{path_of(sqlite_url)}-wal").st_size)
        assert len(await stored(store)) == 200
    assert largest < 300_000  # of about 3 MB that were written
    assert 5 < checkpoints < 50


@pytest.mark.parametrize("synchronous", ["normal", "off"])
async def test_a_store_that_does_not_sync_each_commit_has_no_fsync_to_move(
    sqlite_url: str, synchronous: Synchronous
) -> None:
    disk = Disk()
    store = store_with(sqlite_url, disk, synchronous)
    assert store._db.execute("PRAGMA synchronous").fetchone() == (
        {"off": 0, "normal": 1}[synchronous],
    )
    store._disk.record(1.0)
    mine = fence()
    for n in range(20):
        await store.commit(mine, [put("A/x", str(n))])
    assert not store.statistics().fsync_in_thread
    assert disk.threads == []
    await store.close()
