"""SQLite: a COMMIT whose outcome is unknown, because the disk failed around it."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Literal

import pytest
from disks import Disk, Faulty, on_a_slow_disk
from rows import (
    APPEND,
    CREATE,
    fence,
    log_of,
    look,
    opened,
    path_of,
    put,
    settled,
    stored,
    until,
    write,
)

from outlast.core.errors import CommitFailed, CommitRefused, StoreUnavailable
from outlast.store.sqlite import engine as sqlite
from outlast.store.sqlite.files import latest_transaction

VALUES = "SELECT agent, value FROM storage ORDER BY agent"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("is_new", [True, False], ids=["first commit", "later commit"])
async def test_a_commit_with_a_disk_error_is_applied_exactly_once(
    sqlite_url: str, when: Literal["before", "after"], is_new: bool
) -> None:
    async with opened(sqlite_url) as store:
        fences = [fence(f"A/{n}") for n in range(3)]
        if not is_new:
            await settled([store.submit(each, []) for each in fences])
        store._db = faulty = Faulty(store._db, "COMMIT", when)
        outcomes = [store.submit(each, [write(APPEND, each.root, "k", "x")]) for each in fences]
        assert await settled(outcomes) == [(1,)] * 3
        assert faulty.failed
        more = [store.submit(each, [write(APPEND, each.root, "k", "y")]) for each in fences]
        assert await settled(more) == [(1,)] * 3
        assert await look(sqlite_url, VALUES) == [(f"A/{n}", "xy") for n in range(3)]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_what_came_of_each_batch_survives_the_doubt(
    sqlite_url: str, when: Literal["before", "after"]
) -> None:
    async with opened(sqlite_url) as store:
        store._db = Faulty(store._db, "COMMIT", when)
        ends = await settled(
            [
                store.submit(fence("A/1"), [write(APPEND, "A/1", "k", "x")]),
                store.submit(fence("A/2"), [put("A/2", "k"), write(CREATE, "A/2", "k")]),
                store.submit(fence("A/3"), [put("A/3", "k", None)]),
            ]
        )
        assert ends[0] == (1,)
        assert (type(ends[1]), type(ends[2])) == (CommitRefused, CommitFailed)
        assert await look(sqlite_url, VALUES) == [("A/1", "x")]


@pytest.mark.parametrize("at", ["BEGIN", "INSERT INTO storage", "INSERT INTO agents"])
async def test_a_disk_error_before_commit_undoes_everything_and_it_is_tried_again(
    sqlite_url: str, at: str
) -> None:
    async with opened(sqlite_url) as store:
        store._db = faulty = Faulty(store._db, at, "after")
        outcome = store.submit(fence(), [write(APPEND, "A/x", "k", "x")])
        assert await settled([outcome]) == [(1,)]
        assert faulty.failed
        assert await stored(store) == {"k": "x"}


@pytest.mark.parametrize("when", ["before", "after"])
async def test_while_the_outcome_cannot_be_read_the_agent_neither_goes_on_nor_fails(
    sqlite_url: str, when: Literal["before", "after"], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(sqlite_url) as store:
        mine, asked, connect = fence(), 0, store._connect
        await store.commit(mine, [write(APPEND, "A/x", "k", "1")])

        def in_vain() -> Any:
            nonlocal asked
            asked += 1
            raise StoreUnavailable("the disk is gone")

        store._connect = in_vain
        store._db = Faulty(store._db, "COMMIT", when)
        doubtful = store.submit(mine, [write(APPEND, "A/x", "k", "2")])
        await until(lambda: asked >= 2, "it asked again")
        behind = store.submit(mine, [write(APPEND, "A/x", "k", "3")])
        await until(lambda: asked >= 3, "it goes on asking")
        assert not doubtful.done()
        assert not behind.done()
        assert mine.closed is None
        statistics = store.statistics()
        assert (statistics.in_flight, statistics.queue_depth) == (1, 1)
        assert statistics.unavailable_for is not None
        store._connect = connect
        assert await settled([doubtful, behind]) == [(1,), (1,)]
        assert await stored(store) == {"k": "123"}
        assert store.statistics().unavailable_for is None


async def test_a_read_waits_while_what_it_would_see_is_in_doubt(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "FIRST_RETRY", 0.2)
    async with opened(sqlite_url) as store:
        store._retry_after = 0.2
        store._db = faulty = Faulty(store._db, "COMMIT", "before")
        outcome = store.submit(fence(), [put("A/x", "k")])
        await until(lambda: faulty.failed, "the disk failed")
        reading = asyncio.create_task(stored(store))
        await asyncio.sleep(0)
        assert not outcome.done()
        assert not reading.done()
        assert await settled([outcome]) == [(1,)]
        assert await reading == {"k": "v"}


async def test_a_failed_fsync_is_asked_about_and_told_once(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    async with on_a_slow_disk(sqlite_url, disk, monkeypatch) as store:
        mine = fence()
        disk.failures = 1
        outcomes = [store.submit(mine, [write(APPEND, "A/x", "k", str(n))]) for n in range(3)]
        assert await settled(outcomes) == [(1,)] * 3
        assert disk.failures == 0
        assert await stored(store) == {"k": "012"}


async def test_after_a_failed_fsync_the_log_that_is_synced_is_the_one_in_use(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    async with on_a_slow_disk(sqlite_url, disk, monkeypatch) as store:
        mine = fence()
        for failures in (0, 1, 0):
            disk.failures = failures
            await settled([store.submit(mine, [put("A/x", "k", str(failures))])])
        synced = os.fstat(disk.descriptors[-1])
        in_use = os.stat(f"{path_of(sqlite_url)}-wal")
        assert (synced.st_dev, synced.st_ino) == (in_use.st_dev, in_use.st_ino)


async def test_a_log_that_cannot_be_opened_for_the_fsync_holds_commits_up_until_it_can(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    async with on_a_slow_disk(sqlite_url, disk, monkeypatch) as store:
        refusals, really = 2, os.open

        def no_descriptor_left(path: Any, *arguments: Any, **more: Any) -> int:
            nonlocal refusals
            if str(path).endswith("-wal") and refusals:
                refusals -= 1
                raise OSError(24, "Too many open files")
            return really(path, *arguments, **more)

        monkeypatch.setattr(os, "open", no_descriptor_left)
        outcomes = [store.submit(fence(f"A/{n}"), [put(f"A/{n}", "k")]) for n in range(2)]
        assert await settled(outcomes) == [(1,)] * 2
        assert await settled([store.submit(fence("A/2"), [put("A/2", "k")])]) == [(1,)]
        assert refusals < 2
        assert await look(sqlite_url, "SELECT count(*) FROM storage") == [(3,)]


async def test_after_a_failed_fsync_only_the_transaction_in_doubt_is_written_again(
    sqlite_url: str,
) -> None:
    """What is before it is durable: to write over it would put it at risk."""
    async with opened(sqlite_url) as store:
        mine = fence()
        await store.commit(mine, [put("A/x", "1", "v" * 9000)])
        await store.commit(mine, [put("A/x", "2", "v" * 9000)])
        log = log_of(sqlite_url)
        durable = log.stat().st_size
        await store.commit(mine, [put("A/x", "3", "v" * 9000)])
        content = log.read_bytes()

        def read(size: int, offset: int) -> bytes:
            return content[offset : offset + size]

        assert latest_transaction(read) == (durable, len(content))
        content = content[:-1000]  # half a transaction
        assert latest_transaction(read)[0] == durable
        content = content[:32]
        assert latest_transaction(read) == (0, 32)
        content = b""
        assert latest_transaction(read) == (0, 0)
