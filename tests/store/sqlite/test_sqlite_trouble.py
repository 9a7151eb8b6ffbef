"""SQLite: full, locked by others, corrupt."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from disks import Faulty
from rows import (
    READ,
    READ_ON_THREAD,
    fence,
    look,
    opened,
    path_of,
    put,
    settled,
    stored,
    writes_held_up,
)

from outlast.core.errors import (
    CommitFailed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from outlast.store.base import Store
from outlast.store.operations import Query
from outlast.store.sqlite.engine import OPEN_WITHIN
from outlast.store.url import open_store

PAGE = 4096


def leave_room_for(store: Store, pages: int) -> None:
    (used,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {used + pages}")


async def test_a_full_disk_is_said_and_neighbours_that_fit_are_written(sqlite_url: str) -> None:
    async with opened(sqlite_url) as store:
        leave_room_for(store, 10)
        fences = [fence(f"A/{n}") for n in range(10)]
        sizes = [50 * PAGE if n in (3, 7) else 10 for n in range(10)]
        outcomes = [
            store.submit(each, [put(each.root, "before"), put(each.root, "k", "v" * size)])
            for each, size in zip(fences, sizes, strict=True)
        ]
        outcomes.append(store.submit(fences[3], [put("A/3", "behind")]))
        ends = await settled(outcomes)
        assert isinstance(ends[3], StoreFull)
        assert str(path_of(sqlite_url)) in str(ends[3])
        assert isinstance(ends[7], StoreFull)
        assert isinstance(ends[10], CommitFailed)
        assert [end for end in ends if isinstance(end, tuple)] == [(1, 1)] * 8
        assert await stored(store, "A/3") == {}
        store._db.execute("PRAGMA max_page_count = 1000000")  # somebody has made room
        assert await store.commit(fences[0], [put("A/0", "large", "v" * 50 * PAGE)]) == (1,)
        assert await look(sqlite_url, "SELECT count(*) FROM storage") == [(17,)]


async def test_a_disk_that_is_full_at_commit_undoes_the_group_and_tries_each_batch(
    sqlite_url: str,
) -> None:
    async with opened(sqlite_url) as store:
        store._db = Faulty(store._db, "COMMIT", "before", sqlite3.SQLITE_FULL)
        outcomes = [store.submit(fence(f"A/{n}"), [put(f"A/{n}", "k")]) for n in range(5)]
        assert await settled(outcomes) == [(1,)] * 5
        assert store.statistics().commits == 5
        assert await look(sqlite_url, "SELECT count(*) FROM storage") == [(5,)]


async def test_a_database_that_cannot_be_written_any_more_is_said_and_recovers(
    sqlite_url: str,
) -> None:
    async with opened(sqlite_url) as store:
        store._db.execute("PRAGMA query_only = 1")
        outcomes = [store.submit(fence(f"A/{n}"), [put(f"A/{n}", "k")]) for n in range(3)]
        ends = await settled(outcomes)
        assert [type(end) for end in ends] == [StoreReadOnly] * 3
        assert str(path_of(sqlite_url)) in str(ends[0])
        store._db.execute("PRAGMA query_only = 0")
        assert await store.commit(fence(), [put("A/x", "k")]) == (1,)


# --- somebody else writes to the file -------------------------------------------------------------


async def test_commits_wait_for_a_foreign_writer_without_blocking_the_loop(
    sqlite_url: str,
) -> None:
    async with opened(sqlite_url) as store:
        mine = fence()
        await store.commit(mine, [put("A/x", "k", "0")])
        async with writes_held_up(sqlite_url):
            outcomes = [store.submit(mine, [put("A/x", "k", str(n))]) for n in range(1, 6)]
            tries: list[str] = []
            store._db.set_trace_callback(tries.append)
            turns, slowest = 0, 0.0
            while turns < 200 or len(tries) < 3:
                turn = time.monotonic()
                turns += 1
                outcomes.append(store.submit(fence(f"A/{turns}"), []))
                await asyncio.sleep(0)
                slowest = max(slowest, time.monotonic() - turn)
            store._db.set_trace_callback(None)
            assert slowest < OPEN_WITHIN, (
                "SQLite's own waiting would hold up the loop for all of it"
            )
            assert len(tries) < turns / 10  # less and less often
            assert store.statistics().unavailable_for is not None
            assert not any(outcome.done() for outcome in outcomes)
            assert await stored(store) == {"k": "0"}
        ends = await settled(outcomes)
        assert ends == [(1,)] * 5 + [()] * turns
        assert await stored(store) == {"k": "5"}
        assert store.statistics().unavailable_for is None


# --- corrupt files --------------------------------------------------------------------------------


async def test_a_store_waits_for_a_reader_that_mends_what_a_killed_host_has_left(
    sqlite_url: str,
) -> None:
    path = sqlite_url.removeprefix("sqlite:///")
    await (await open_store(sqlite_url)).close()
    holding, over = threading.Event(), threading.Event()

    def mend() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
            database.execute("BEGIN IMMEDIATE")
            holding.set()
            over.wait(0.3)

    mending = threading.Thread(target=mend)
    mending.start()
    assert holding.wait(10)
    store = await open_store(sqlite_url)  # and does not say that it is locked
    mending.join()
    assert store._db.execute("PRAGMA busy_timeout").fetchone() == (0,), "commits never block"
    await store.close()


@pytest.mark.parametrize(
    "content",
    [b"garbage " * 1000, b"SQLite format 3\0" + b"\xff" * 4096, bytes(range(100))],
    ids=["text", "header only", "short"],
)
async def test_a_file_that_is_no_database_is_refused_by_name(
    sqlite_url: str, content: bytes
) -> None:
    path_of(sqlite_url).write_bytes(content)
    with pytest.raises(StoreCorrupt, match=f"^{path_of(sqlite_url)} is not a valid SQLite"):
        await open_store(sqlite_url)
    assert path_of(sqlite_url).read_bytes() == content


async def a_store_with_many_pages(url: str) -> Path:
    async with opened(url) as store:
        await store.commit(fence(), [put("A/x", f"{n:03}", "v" * 1000) for n in range(500)])
    return path_of(url)


def overwrite_pages_in_the_middle(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[60 * PAGE : 100 * PAGE] = b"\xde\xad" * (20 * PAGE)  # behind those of the schema
    path.write_bytes(content)


async def test_a_page_that_was_overwritten_is_said_when_it_is_read(sqlite_url: str) -> None:
    path = await a_store_with_many_pages(sqlite_url)
    overwrite_pages_in_the_middle(path)
    async with opened(sqlite_url) as store:
        for query in (READ, READ_ON_THREAD):
            with pytest.raises(StoreCorrupt, match=str(path)):
                await store.fetch(query, "A/x")
        # What does not touch these pages goes on.
        assert await store.commit(fence("A/y"), [put("B/y", "k")]) == (1,)


async def test_a_commit_that_meets_a_corrupt_page_fails_alone(sqlite_url: str) -> None:
    path = await a_store_with_many_pages(sqlite_url)
    overwrite_pages_in_the_middle(path)
    async with opened(sqlite_url) as store:
        outcomes = [
            store.submit(fence("A/1"), [put("B/1", "k")]),
            store.submit(fence("A/2"), [put("A/x", f"{n:03}", "new") for n in range(500)]),
            store.submit(fence("A/3"), [put("B/3", "k")]),
        ]
        ends = await settled(outcomes)
        assert isinstance(ends[1], StoreCorrupt)
        assert str(path) in str(ends[1])
        assert ends[0] == ends[2] == (1,)
        assert await store.fetch(Query.same("SELECT root FROM agents ORDER BY root")) == [
            ("A/1",),
            ("A/3",),
            ("A/x",),
        ]


async def test_a_truncated_file_is_said_at_open_or_at_use(sqlite_url: str) -> None:
    path = await a_store_with_many_pages(sqlite_url)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2 // PAGE * PAGE])
    with pytest.raises(StoreCorrupt, match=str(path)):
        async with opened(sqlite_url) as store:
            await stored(store)


# --- paths ----------------------------------------------------------------------------------------


async def test_missing_folders_are_made(tmp_path: Path) -> None:
    async with opened(f"sqlite:///{tmp_path}/a/b/store.db") as store:
        assert await store.commit(fence(), []) == ()
    assert (tmp_path / "a/b/store.db").exists()


async def test_a_path_below_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("I am no folder")
    with pytest.raises(StoreUnavailable, match=f"cannot open {tmp_path}/file/store.db"):
        await open_store(f"sqlite:///{tmp_path}/file/store.db")


async def test_a_path_that_is_a_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"{tmp_path}.*unable to open database file"):
        await open_store(f"sqlite:///{tmp_path}")


async def test_a_path_with_odd_characters_is_one_file(tmp_path: Path) -> None:
    name = "a b?c%20d#e'\"é.db"
    escaped = name.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    async with opened(f"sqlite:///{tmp_path}/{escaped}") as store:
        await store.commit(fence(), [put("A/x", "k")])
        assert await store.fetch(READ_ON_THREAD, "A/x") == [("k", "v")]
    assert set(os.listdir(tmp_path)) == {name, f"{name}.lock"}
