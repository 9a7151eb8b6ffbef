"""SQLite: what a read returns is durable, also where the fsync of it is still under way; and it returns."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest
from disks import Disk, Faulty, on_a_slow_disk
from rows import PATIENCE, READ, READ_ON_THREAD, fence, log_of, opened, path_of, put, settled, until

from outlast.core.errors import StoreClosed, StoreUnavailable
from outlast.store.base import StoreOptions
from outlast.store.operations import Query
from outlast.store.sqlite.engine import SqliteOptions, open_sqlite

BOTH = pytest.mark.parametrize("query", [READ, READ_ON_THREAD], ids=["keyed", "bulk"])


@BOTH
async def test_a_read_returns_nothing_whose_fsync_is_under_way(
    sqlite_url: str, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    async with on_a_slow_disk(sqlite_url, disk, monkeypatch) as store:
        disk.entered.clear()
        disk.go_on.clear()
        outcome = store.submit(fence(), [put("A/x", "k")])
        await until(disk.entered.is_set, "the fsync began")
        reading = asyncio.create_task(store.fetch(query, "A/x"))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not reading.done()
        disk.go_on.set()
        assert await settled([reading]) == [[("k", "v")]]
        assert outcome.done()


async def test_a_bulk_read_that_begins_after_a_commit_waits_for_its_fsync(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was asked for before there was anything to wait for, and the reader thread was busy."""
    disk = Disk()
    async with on_a_slow_disk(sqlite_url, disk, monkeypatch) as store:
        await store.fetch(READ_ON_THREAD, "A/x")
        busy = threading.Event()
        assert store._reader_thread is not None
        store._reader_thread.submit(busy.wait, PATIENCE)
        reading = asyncio.create_task(store.fetch(READ_ON_THREAD, "A/x"))
        await asyncio.sleep(0)
        disk.entered.clear()
        disk.go_on.clear()
        outcome = store.submit(fence(), [put("A/x", "k")])
        await until(disk.entered.is_set, "the fsync began")
        busy.set()
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not reading.done()
        disk.go_on.set()
        assert await settled([reading]) == [[("k", "v")]]
        assert outcome.done()


@BOTH
async def test_a_read_waits_for_one_fsync_and_not_for_those_that_follow(
    sqlite_url: str, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    async with on_a_slow_disk(sqlite_url, disk, monkeypatch) as store:
        await store.fetch(READ_ON_THREAD, "A/x")  # the reader thread is there
        mine, has_read = fence("A/writer"), False
        commits = 0

        async def write() -> None:
            nonlocal commits
            while not has_read:
                await store.commit(mine, [put("A/writer", "k")])
                commits += 1

        writing = asyncio.create_task(write())
        await until(lambda: commits > 3, "it writes")
        try:
            for _ in range(5):
                before = commits
                await asyncio.wait_for(store.fetch(query, "A/x"), PATIENCE)
                if query is READ:
                    assert commits - before <= 2
        finally:
            has_read = True
            await writing


async def test_what_was_read_and_then_undone_is_read_again(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has dropped what it could not write, so what had been read never was."""
    disk, path = Disk(), path_of(sqlite_url)
    async with on_a_slow_disk(sqlite_url, disk, monkeypatch) as store:
        before = {each: each.read_bytes() for each in (path, log_of(sqlite_url))}
        disk.failures = 1
        disk.entered.clear()
        disk.go_on.clear()
        outcome = store.submit(fence(), [put("A/x", "k", "new")])
        await until(disk.entered.is_set, "the fsync began")
        reading = asyncio.create_task(store.fetch(READ, "A/x"))
        await asyncio.sleep(0)
        assert not reading.done()

        def drop_pages(*_: object, **__: object) -> None:
            store._db.close()
            for each, content in before.items():
                each.write_bytes(content)

        monkeypatch.setattr("outlast.store.sqlite.engine.sync_log", drop_pages)
        monkeypatch.setattr(store, "_flush", lambda: None)  # it is not written again just yet
        disk.go_on.set()
        assert await settled([reading]) == [[]]
        assert not outcome.done()
        monkeypatch.undo()
        store._flush()
        assert await settled([outcome]) == [(1,)]
        assert await store.fetch(READ, "A/x") == [("k", "new")]


async def test_a_read_that_waits_for_a_store_that_is_let_go_ends(
    sqlite_url: str,
) -> None:
    async with opened(sqlite_url) as store:
        store._retry_after = PATIENCE
        store._db = faulty = Faulty(store._db, "COMMIT", "before")
        outcome = store.submit(fence(), [put("A/x", "k")])
        await until(lambda: faulty.failed, "the disk failed")
        reading = asyncio.create_task(store.fetch(READ, "A/x"))
        await asyncio.sleep(0)
        store.give_up("the host was stopped")
        assert [type(end) for end in await settled([reading, outcome])] == [StoreClosed] * 2


# --- what a killed process left -------------------------------------------------------------------


async def test_a_log_that_was_left_is_synced_before_anything_is_read(sqlite_url: str) -> None:
    path = path_of(sqlite_url)
    first = open_sqlite(SqliteOptions(path), StoreOptions())
    await first.commit(fence(), [put("A/x", "k")])
    log = log_of(sqlite_url)
    left = log.read_bytes()
    first.abandon()
    log.write_bytes(left)  # as if it had been killed
    disk = Disk()
    synced: list[tuple[int, int]] = []
    really = disk.sync

    def sync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        synced.append((found.st_ino, found.st_size))
        really(descriptor)

    identity = (log.stat().st_ino, len(left))
    second = open_sqlite(SqliteOptions(path, sync=sync), StoreOptions())
    assert synced == [identity]
    assert await second.fetch(READ, "A/x") == [("k", "v")]
    await second.close()


async def test_a_log_that_cannot_be_synced_keeps_the_store_closed(sqlite_url: str) -> None:
    path = path_of(sqlite_url)
    log_of(sqlite_url).write_bytes(b"left over")
    disk = Disk()
    disk.failures = 1
    with pytest.raises(StoreUnavailable, match=r"cannot open .*: .*Input/output error"):
        open_sqlite(SqliteOptions(path, sync=disk.sync), StoreOptions())
    async with opened(sqlite_url) as store:  # and its lock is free
        assert await store.fetch(READ, "A/x") == []


@pytest.mark.parametrize("synchronous", ["normal", "off"])
async def test_a_store_that_does_not_sync_each_commit_does_not_sync_what_was_left(
    sqlite_url: str, synchronous: str
) -> None:
    path = path_of(sqlite_url)
    log_of(sqlite_url).write_bytes(b"left over")
    disk = Disk()
    store = open_sqlite(SqliteOptions(path, synchronous, disk.sync), StoreOptions())  # type: ignore[arg-type]
    assert disk.descriptors == []
    await store.close()
