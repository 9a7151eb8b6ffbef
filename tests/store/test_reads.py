"""Reads: what they see, where they run, and that they leave nothing open."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from rows import (
    READ,
    READ_ON_THREAD,
    fence,
    opened,
    path_of,
    put,
    settled,
    stored,
    writes_held_up,
)

from outlast.core.errors import StoreClosed
from outlast.store.operations import Query
from outlast.store.url import open_store

BOTH = pytest.mark.parametrize("query", [READ, READ_ON_THREAD], ids=["keyed", "bulk"])
SLOW = Query.same(
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000)"
    " SELECT count(*) FROM n",
    bulk=True,
)


@BOTH
async def test_a_read_sees_every_batch_whose_outcome_is_known(store_url: str, query: Query) -> None:
    async with opened(store_url) as store:
        mine = fence()
        for n in range(20):
            await store.commit(mine, [put("A/x", "k", str(n))])
            assert await store.fetch(query, "A/x") == [("k", str(n))]


@BOTH
async def test_a_read_does_not_wait_for_commits_that_are_held_up(
    store_url: str, query: Query
) -> None:
    async with opened(store_url) as store:
        mine = fence()
        await store.commit(mine, [put("A/x", "k", "old")])
        async with writes_held_up(store_url):
            outcome = store.submit(mine, [put("A/x", "k", "new")])
            assert await store.fetch(query, "A/x") == [("k", "old")]
            assert not outcome.done()
        await settled([outcome])
        assert await store.fetch(query, "A/x") == [("k", "new")]


async def test_rows_are_tuples_on_both_engines(store_url: str) -> None:
    async with opened(store_url) as store:
        query = Query.same("SELECT ?, CAST(? AS BIGINT), NULL")
        if store.engine == "postgresql":
            query = Query("", "SELECT $1::text, $2::bigint, NULL")
        (row,) = await store.fetch(query, "text", 2**62)
        assert (type(row), row) == (tuple, ("text", 2**62, None))


def test_question_marks_become_numbers_for_postgresql() -> None:
    query = Query.same("SELECT a FROM t WHERE b = ? AND c < ?", bulk=True)
    assert query.postgres == "SELECT a FROM t WHERE b = $1 AND c < $2"
    assert query.sqlite == "SELECT a FROM t WHERE b = ? AND c < ?"
    assert query.bulk


async def test_many_reads_at_once_all_answer(store_url: str) -> None:
    async with opened(store_url) as store:
        await store.commit(fence(), [put("A/x", "k")])
        reads = [store.fetch(READ_ON_THREAD, "A/x") for _ in range(50)]
        assert await asyncio.gather(*reads) == [[("k", "v")]] * 50


async def test_a_keyed_read_answers_without_giving_up_the_loop(sqlite_url: str) -> None:
    async with opened(sqlite_url) as store:
        await store.commit(fence(), [put("A/x", "k")])
        with pytest.raises(StopIteration) as answer:
            store.fetch(READ, "A/x").send(None)
        assert answer.value.value == [("k", "v")]


async def test_a_bulk_read_runs_on_the_reader_thread(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(sqlite_url) as store:
        threads: list[threading.Thread] = []
        read = store._read

        def noticed(*arguments: Any) -> Any:
            threads.append(threading.current_thread())
            return read(*arguments)

        monkeypatch.setattr(store, "_read", noticed)
        for _ in range(3):
            await store.fetch(READ_ON_THREAD, "A/x")
        assert len(threads) == 3
        assert len(set(threads)) == 1
        assert threading.main_thread() not in threads


async def test_the_loop_turns_while_a_bulk_read_computes(sqlite_url: str) -> None:
    async with opened(sqlite_url) as store:
        reading = asyncio.create_task(store.fetch(SLOW))
        turns = 0
        while not reading.done():
            turns += 1
            await asyncio.sleep(0)
        assert reading.result() == [(1_000_000,)]
        assert turns > 100
        assert await stored(store) == {}


async def test_reads_leave_no_cursor_open(sqlite_url: str) -> None:
    """An open cursor would pin the log, which then could never be truncated."""
    async with opened(sqlite_url) as store:
        mine = fence()
        await store.commit(mine, [put("A/x", str(n)) for n in range(500)])
        assert len(await store.fetch(READ, "A/x")) == 500
        assert len(await store.fetch(READ_ON_THREAD, "A/x")) == 500
        await store.commit(mine, [put("A/x", "after")])
        with contextlib.closing(sqlite3.connect(path_of(sqlite_url))) as db:
            blocked, *_ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert blocked == 0


async def test_a_cancelled_read_harms_nobody(store_url: str) -> None:
    async with opened(store_url) as store:
        await store.commit(fence(), [put("A/x", "k")])
        reading = asyncio.create_task(store.fetch(SLOW))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert not store.busy
        assert await store.fetch(READ_ON_THREAD, "A/x") == [("k", "v")]


@BOTH
async def test_a_closed_store_says_so(store_url: str, query: Query) -> None:
    store = await open_store(store_url)
    await store.close()
    with pytest.raises(StoreClosed, match="the store was closed"):
        await store.fetch(query, "A/x")


async def test_the_store_stays_the_same_file_when_the_process_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    async with opened("sqlite:///store.db") as store:
        await store.commit(fence(), [put("A/x", "k")])
        monkeypatch.chdir(elsewhere)
        assert await store.fetch(READ_ON_THREAD, "A/x") == [("k", "v")]
        assert list(elsewhere.iterdir()) == []
