"""A commit cannot be cancelled: whoever waits for it learns of the cancellation afterwards."""

from __future__ import annotations

import asyncio

import pytest
from rows import PATIENCE, fence, look, opened, put, stored, until, writes_held_up

from outlast.core.errors import CommitFailed
from outlast.store.base import Store

TICKS = 20


async def is_under_way(store: Store) -> None:
    """The batch has reached the engine, which waits for somebody else's lock."""
    await until(
        lambda: store.statistics().queue_depth + store.statistics().in_flight == 1, "commit"
    )
    for _ in range(TICKS):
        await asyncio.sleep(0)


async def test_a_cancelled_awaiter_is_told_once_the_commit_is_durable(store_url: str) -> None:
    async with opened(store_url) as store:
        async with writes_held_up(store_url):
            waiter = asyncio.create_task(store.commit(fence(), [put("A/x", "k")]))
            await is_under_way(store)
            for _ in range(3):
                waiter.cancel()
                await is_under_way(store)
            assert not waiter.done()
        _, pending = await asyncio.wait([waiter], timeout=PATIENCE)
        assert not pending
        assert waiter.cancelled()
        assert await look(store_url, "SELECT key FROM storage") == [("k",)]


async def test_an_awaiter_cancelled_in_the_tick_of_handing_over_does_not_undo_it(
    store_url: str,
) -> None:
    async with opened(store_url) as store:
        waiter = asyncio.create_task(store.commit(fence(), [put("A/x", "k")]))
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert await look(store_url, "SELECT key FROM storage") == [("k",)]


async def passed(begun: asyncio.Event) -> None:
    """A timeout of a millisecond has passed: its timer was set before this one."""
    await begun.wait()
    await asyncio.sleep(0.001)


async def test_a_timeout_is_told_once_the_outcome_is_known(store_url: str) -> None:
    async with opened(store_url) as store:
        order: list[str] = []
        begun = asyncio.Event()

        async def wait() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    begun.set()
                    await store.commit(fence(), [put("A/x", "k")])
            order.append("told")

        async with writes_held_up(store_url):
            waiter = asyncio.create_task(wait())
            await passed(begun)
            await is_under_way(store)
            order.append("let go")
        await asyncio.wait_for(waiter, PATIENCE)
        assert order == ["let go", "told"]
        assert await stored(store) == {"k": "v"}


async def test_wait_for_ends_once_the_outcome_is_known(store_url: str) -> None:
    async with opened(store_url) as store:
        begun = asyncio.Event()

        async def wait() -> None:
            begun.set()
            await asyncio.wait_for(store.commit(fence(), [put("A/x", "k")]), 0.001)

        async with writes_held_up(store_url):
            waiter = asyncio.create_task(wait())
            await passed(begun)
            await is_under_way(store)
            assert not waiter.done()
        with pytest.raises(TimeoutError):
            await waiter
        assert await stored(store) == {"k": "v"}


async def test_one_of_two_awaiters_can_be_cancelled_without_the_other(store_url: str) -> None:
    async with opened(store_url) as store:
        async with writes_held_up(store_url):
            outcome = store.submit(fence(), [put("A/x", "k")])

            async def wait() -> tuple[int, ...]:
                return await outcome

            one, other = asyncio.create_task(wait()), asyncio.create_task(wait())
            await is_under_way(store)
            one.cancel()
        await asyncio.wait([one, other], timeout=PATIENCE)
        assert one.cancelled()
        assert other.result() == (1,)


async def test_a_cancelled_awaiter_does_not_hide_that_the_agent_is_lost(store_url: str) -> None:
    async with opened(store_url) as store:
        mine = fence()
        async with writes_held_up(store_url):
            waiter = asyncio.create_task(store.commit(mine, [put("A/x", "k", None)]))
            await is_under_way(store)
            waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert isinstance(mine.closed, CommitFailed)
