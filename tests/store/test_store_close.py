"""Closing a store, abandoning it, and its statistics. On both engines."""

from __future__ import annotations

import asyncio

import pytest
from rows import (
    CREATE,
    PATIENCE,
    fence,
    look,
    opened,
    put,
    settled,
    stored,
    until,
    write,
    writes_held_up,
)

from outlast.core.errors import CommitFailed, StoreClosed
from outlast.store.base import StoreOptions
from outlast.store.url import open_store


async def test_close_writes_what_was_handed_over(store_url: str) -> None:
    store = await open_store(store_url, StoreOptions(max_group=3))
    mine = fence()
    outcomes = [store.submit(mine, [put("A/x", str(n))]) for n in range(10)]
    await store.close()
    assert [outcome.result() for outcome in outcomes] == [(1,)] * 10
    assert await look(store_url, "SELECT count(*) FROM storage") == [(10,)]


async def test_close_waits_for_a_commit_that_is_held_up(store_url: str) -> None:
    store = await open_store(store_url)
    async with writes_held_up(store_url):
        outcome = store.submit(fence(), [put("A/x", "k")])
        closing = asyncio.create_task(store.close())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not closing.done()
    await asyncio.wait_for(closing, PATIENCE)
    assert outcome.result() == (1,)


async def test_nothing_can_be_handed_over_after_close(store_url: str) -> None:
    store = await open_store(store_url)
    await store.close()
    with pytest.raises(StoreClosed, match="the store was closed"):
        store.submit(fence(), [put("A/x", "k")])
    with pytest.raises(StoreClosed):
        await store.commit(fence(), [])
    assert await look(store_url, "SELECT count(*) FROM agents") == [(0,)]


async def test_closing_twice_is_closing_once(store_url: str) -> None:
    store = await open_store(store_url)
    await store.close()
    await store.close()
    store.abandon()
    async with opened(store_url) as again:
        assert await stored(again) == {}


async def test_closing_from_two_tasks_at_once_is_closing_once(store_url: str) -> None:
    store = await open_store(store_url)
    outcome = store.submit(fence(), [put("A/x", "k")])
    await asyncio.gather(store.close(), store.close())
    assert outcome.result() == (1,)
    assert await look(store_url, "SELECT count(*) FROM storage") == [(1,)]


async def test_what_was_queued_when_a_store_is_abandoned_stays_unknown(store_url: str) -> None:
    store = await open_store(store_url)
    mine = fence()
    outcome = store.submit(mine, [put("A/x", "k")])
    store.abandon("the host died")
    for _ in range(20):
        await asyncio.sleep(0)
    assert not outcome.done()
    assert mine.closed is None
    with pytest.raises(StoreClosed, match="the host died"):
        store.submit(mine, [])
    async with opened(store_url) as again:  # nothing is locked
        assert await stored(again) == {}


async def test_drained_waits_for_everything_that_was_handed_over(store_url: str) -> None:
    async with opened(store_url, StoreOptions(max_group=2)) as store:
        mine = fence()
        outcomes = [store.submit(mine, [put("A/x", str(n))]) for n in range(7)]
        assert store.busy
        await store.drained()
        assert all(outcome.done() for outcome in outcomes)
        assert not store.busy


# --- statistics -----------------------------------------------------------------------------------


async def test_statistics_of_a_fresh_store_are_zero(store_url: str) -> None:
    async with opened(store_url) as store:
        statistics = store.statistics()
        assert statistics.engine == ("sqlite" if store_url.startswith("sqlite") else "postgresql")
        assert (statistics.commits, statistics.batches, statistics.largest_group) == (0, 0, 0)
        assert (statistics.latency_p50, statistics.latency_p99, statistics.mean_group) == (0, 0, 0)
        assert statistics.unavailable_for is None
        assert not statistics.fsync_in_thread


async def test_statistics_count_groups_batches_refusals_and_failures(store_url: str) -> None:
    async with opened(store_url) as store:
        fences = [fence(f"A/{n}") for n in range(10)]
        await settled([store.submit(each, [put(each.root, "k")]) for each in fences])
        await store.commit(fences[0], [])
        refused = store.submit(fences[1], [write(CREATE, "A/1", "k")])
        failed = [store.submit(fences[2], [put("A/2", "k", None)]) for _ in range(3)]
        await settled([refused, *failed])
        statistics = store.statistics()
        assert (statistics.commits, statistics.batches) == (3, 11)
        assert (statistics.refused, statistics.failed) == (1, 3)
        assert statistics.largest_group == 10
        assert statistics.mean_group == pytest.approx(11 / 3)
        assert 0 < statistics.latency_p50 <= statistics.latency_p99


async def test_statistics_tell_what_waits_and_forget_what_has_ended(store_url: str) -> None:
    async with opened(store_url) as store:
        mine, other = fence(), fence("A/y")
        await store.commit(other, [put("A/y", "k")])
        async with writes_held_up(store_url):
            outcomes = [store.submit(mine, [put("A/x", "k", "v" * 1000)])]
            assert store.statistics().queue_depth == 1
            await until(lambda: store.statistics().queue_bytes > 1000, "it is counted")
            outcomes += [
                store.submit(other, [write(CREATE, "A/y", "k")]),  # will be refused
                store.submit(mine, [put("A/x", "k", None)]),  # will fail
                store.submit(mine, [put("A/x", "k", "v" * 1000)]),  # and this one with it
            ]
            statistics = store.statistics()
            assert statistics.queue_depth + statistics.in_flight == 4
            assert 2000 < statistics.queue_bytes < 2100
        ends = await settled(outcomes)
        assert [type(end) for end in ends[2:]] == [CommitFailed] * 2
        statistics = store.statistics()
        assert (statistics.queue_depth, statistics.in_flight, statistics.queue_bytes) == (0, 0, 0)


async def test_statistics_know_how_long_a_commit_takes_on_sqlite(sqlite_url: str) -> None:
    async with opened(sqlite_url) as store:
        assert store.statistics().fsync_average is None
        await store.commit(fence(), [])
        average = store.statistics().fsync_average
        assert average is not None
        assert average > 0
