"""SQLite: a database or a log that is taken away under the host. Nothing is acknowledged into the void."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from disks import Disk, Faulty, on_a_slow_disk
from rows import (
    READ,
    READ_ON_THREAD,
    fence,
    look,
    opened,
    path_of,
    put,
    settled,
    until,
)

from outlast.core.errors import StoreGone, StoreUnavailable
from outlast.store.operations import Query
from outlast.store.sqlite import engine as sqlite

Loss = Callable[[Path], None]


def remove_all(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


def remove_log(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink()


def move_away(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))


def replace(path: Path) -> None:
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    copy.rename(path)


def remove_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


LOSSES = pytest.mark.parametrize(
    "lose",
    [remove_all, remove_log, move_away, replace, remove_folder],
    ids=lambda lose: lose.__name__,
)


@pytest.fixture(autouse=True)
def look_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only once a millisecond: a test may be quicker than that."""
    monkeypatch.setattr(sqlite, "CHECK_FILES_EVERY", 0.0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/folder/store.db"


@LOSSES
async def test_nothing_is_acknowledged_once_a_file_is_gone(url: str, lose: Loss) -> None:
    async with opened(url) as store:
        mine = fence()
        await store.commit(mine, [put("A/x", "before")])
        lose(path_of(url))
        ends = await settled([store.submit(mine, [put("A/x", f"k{n}")]) for n in range(3)])
        assert {type(end) for end in ends} == {StoreGone}
        assert "stores and acknowledges nothing more" in str(ends[0])
        assert isinstance(mine.closed, StoreGone)
        with pytest.raises(StoreGone):
            store.submit(fence("A/other"), [put("A/other", "k")])
        for query in (READ, READ_ON_THREAD):
            with pytest.raises(StoreGone):
                await store.fetch(query, "A/x")
        assert store.statistics().unavailable_for is not None


@LOSSES
async def test_nothing_is_acknowledged_on_a_slow_disk_either(
    url: str, lose: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    path_of(url).parent.mkdir()
    async with on_a_slow_disk(url, disk, monkeypatch) as store:
        disk.entered.clear()
        disk.go_on.clear()
        under_way = store.submit(fence(), [put("A/x", "k")])
        await until(disk.entered.is_set, "the fsync began")
        behind = store.submit(fence("A/y"), [put("A/y", "k")])
        reading = asyncio.create_task(store.fetch(READ, "A/x"))
        lose(path_of(url))
        disk.go_on.set()
        ends = await settled([under_way, behind, reading])
        assert {type(end) for end in ends} == {StoreGone}


async def test_it_is_logged_once_and_says_what_to_do(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(url) as store:
        remove_all(path_of(url))
        await settled([store.submit(fence(f"A/{n}"), []) for n in range(5)])
        assert not store.is_in_place()
        told = [each for each in caplog.records if each.levelno >= logging.ERROR]
        assert len(told) == 1
        message = told[0].getMessage()
        assert f"{path_of(url)} was removed or moved while the host had it open" in message
        assert "start it again" in message


async def test_files_that_come_back_are_refused_until_the_store_is_opened_again(url: str) -> None:
    path = path_of(url)
    mine = fence()
    async with opened(url) as store:
        await store.commit(mine, [put("A/x", "before")])
        move_away(path)
        await settled([store.submit(mine, [put("A/x", "meanwhile")])])
        path.with_name("elsewhere.db").rename(path)
        with pytest.raises(StoreGone):
            await store.fetch(READ, "A/x")
        assert not store.is_in_place()
    async with opened(url) as store:
        assert ("before", "v") in await store.fetch(READ, "A/x")


async def test_a_look_notices_what_no_commit_has_run_into(url: str) -> None:
    async with opened(url) as store:
        assert store.is_in_place()
        remove_all(path_of(url))
        assert not store.is_in_place()
        with pytest.raises(StoreGone):
            store.submit(fence(), [])


async def test_no_new_file_is_made_in_place_of_a_lost_one(url: str) -> None:
    """Neither by a connection that is opened for the first time nor by one that is opened anew."""
    async with opened(url) as store:
        mine = fence()
        await store.commit(mine, [put("A/x", "k")])
        remove_all(path_of(url))
        with pytest.raises(StoreUnavailable):
            await store.fetch(READ_ON_THREAD, "A/x")
    async with opened(url) as store:
        store._db = Faulty(store._db, "COMMIT", "before")
        outcome = store.submit(fence(), [put("A/x", "k")])
        remove_all(path_of(url))
        assert [type(end) for end in await settled([outcome])] == [StoreGone]
        assert list(path_of(url).parent.iterdir()) == []


async def test_what_was_acknowledged_into_a_log_that_is_lost_is_saved(url: str) -> None:
    async with opened(url) as store:
        mine = fence()
        for n in range(20):
            await store.commit(mine, [put("A/x", f"k{n:02}")])
        remove_log(path_of(url))
        assert not store.is_in_place()
        # As after SIGKILL: the database alone, without what a close might still write.
        copy = path_of(url).with_name("copy.db")
        shutil.copy(path_of(url), copy)
        assert await look(f"sqlite:///{copy}", "SELECT count(*) FROM storage") == [(20,)]


async def test_a_store_whose_files_stay_is_never_taken_for_lost(url: str) -> None:
    """Its log is truncated, others read it, and its connections are opened anew."""
    async with opened(url) as store:
        mine = fence()
        for n in range(3):
            await store.commit(mine, [put("A/x", f"k{n}")])
            await look(url, "PRAGMA wal_checkpoint(TRUNCATE)")
            store._db = Faulty(store._db, "COMMIT", "after")
            await settled([store.submit(mine, [put("A/x", f"again{n}")])])
            assert store.is_in_place()
        assert await store.fetch(Query.same("SELECT count(*) FROM storage")) == [(6,)]


async def test_a_log_that_was_opened_anew_is_watched_too(url: str) -> None:
    async with opened(url) as store:
        store._db = Faulty(store._db, "COMMIT", "after")
        assert await settled([store.submit(fence(), [put("A/x", "k")])]) == [(1,)]
        remove_log(path_of(url))
        assert not store.is_in_place()


@pytest.mark.virtual_time
async def test_it_is_looked_at_most_once_a_millisecond(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "CHECK_FILES_EVERY", 0.001)
    async with opened(url) as store:
        mine = fence()
        await store.commit(mine, [])
        remove_all(path_of(url))
        assert await store.commit(mine, []) == (), "within the same millisecond"
        await asyncio.sleep(0.001)
        assert [type(end) for end in await settled([store.submit(mine, [])])] == [StoreGone]
