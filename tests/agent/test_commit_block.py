"""`async with self.commit()`: all of it, or none of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outlast import Agent, CommitFailed, FiberConflict, FiberContext
from support import World, fiber_rows, forever


class Booker(Agent):
    async def do(self, function: Any) -> Any:
        return await function(self)


async def test_everything_inside_is_one_commit(world: World) -> None:
    host = await world.host(Booker)

    async def book(agent: Booker) -> None:
        async def work(fiber: FiberContext) -> None:
            before = host.store.statistics().batches
            async with agent.commit():
                await agent.storage.put("a", 1)
                await agent.storage.put("b", 2)
                await fiber.stash("position")
                await agent.stash("better position")
                assert fiber.snapshot is None, "not durable yet"
                await agent.storage.delete("a")
                agent.run_fiber("inner", forever, 5)
                assert host.store.statistics().batches == before
            assert host.store.statistics().batches == before + 1
            assert fiber.snapshot == "better position"

        await agent.run_fiber("outer", work)

    await host.get(Booker, "a").do(book)
    assert await host.get(Booker, "a").do(lambda agent: agent.storage.list()) == {"b": 2}
    assert await fiber_rows(host, "name, snapshot") == [("inner", "5")]
    await host.stop(0)


async def test_an_error_inside_writes_nothing_and_starts_nothing(world: World) -> None:
    host = await world.host(Booker)
    ran: list[int] = []

    async def work(fiber: FiberContext) -> None:
        ran.append(1)

    async def book(agent: Booker) -> None:
        await agent.storage.put("a", "before")
        with pytest.raises(ZeroDivisionError):
            async with agent.commit():
                await agent.storage.put("a", "inside")
                handle = agent.run_fiber("never", work)
                1 / 0  # noqa: B018
        with pytest.raises(CommitFailed, match="rolled back: ZeroDivisionError"):
            await handle
        assert await agent.storage.get("a") == "before"

    await host.get(Booker, "a").do(book)
    await host.until_settled()
    assert ran == []
    assert await fiber_rows(host) == []


async def test_code_inside_sees_its_own_writes_and_others_do_not(world: World) -> None:
    host = await world.host(Booker)
    stub = host.get(Booker, "a")

    async def book(agent: Booker) -> None:
        await agent.storage.put("old", 1)
        async with agent.commit():
            await agent.storage.put("new", 2)
            await agent.storage.delete("old")
            assert await agent.storage.get("new") == 2
            assert await agent.storage.get("old", "gone") == "gone"
            assert await agent.storage.list() == {"new": 2}
            outside = asyncio.create_task(
                stub.do(lambda agent: agent.storage.list()), context=_empty_context()
            )
            assert await outside == {"old": 1}
        assert await agent.storage.list() == {"new": 2}

    await stub.do(book)


def _empty_context() -> Any:
    import contextvars

    return contextvars.Context()


async def test_an_inner_block_is_part_of_the_outer_one(sqlite_world: World) -> None:
    host = await sqlite_world.host(Booker)

    async def book(agent: Booker) -> None:
        with pytest.raises(ValueError):
            async with agent.commit():
                async with agent.commit():
                    await agent.storage.put("inner", 1)
                assert host.store.statistics().batches == 0
                raise ValueError

    await host.get(Booker, "a").do(book)
    assert await host.get(Booker, "a").do(lambda agent: agent.storage.list()) == {}


async def test_a_block_of_one_agent_does_not_catch_the_writes_of_another(
    sqlite_world: World,
) -> None:
    host = await sqlite_world.host(Booker)
    other = host.get(Booker, "other")
    me = host.get(Booker, "me")

    async def book(agent: Booker) -> None:
        with pytest.raises(ValueError):
            async with agent.commit():
                await agent.storage.put("mine", 1)
                await other.do(lambda agent: agent.storage.put("theirs", 2))
                await other.do(lambda _: me.do(lambda agent: agent.storage.put("again mine", 3)))
                raise ValueError

    await me.do(book)
    assert await other.do(lambda agent: agent.storage.list()) == {"theirs": 2}
    assert await me.do(lambda agent: agent.storage.list()) == {}


async def test_gathered_writes_inside_belong_to_the_block(sqlite_world: World) -> None:
    host = await sqlite_world.host(Booker)

    async def book(agent: Booker) -> None:
        async with agent.commit():
            await asyncio.gather(*(agent.storage.put(str(n), n) for n in range(10)))
        assert host.store.statistics().batches == 1
        assert len(await agent.storage.list()) == 10

    await host.get(Booker, "a").do(book)


async def test_a_fiber_started_inside_commits_on_its_own_account(sqlite_world: World) -> None:
    host = await sqlite_world.host(Booker)

    async def book(agent: Booker) -> None:
        async def work(fiber: FiberContext) -> str:
            await agent.storage.put("from the fiber", 1)
            return "ran"

        with pytest.raises(ValueError):
            async with agent.commit():
                async with agent.commit():
                    pass
                raise ValueError
        async with agent.commit():
            handle = agent.run_fiber("inner", work)
        assert await handle == "ran"
        assert await agent.storage.list() == {"from the fiber": 1}

    await host.get(Booker, "a").do(book)


async def test_an_empty_block_commits_nothing(sqlite_world: World) -> None:
    host = await sqlite_world.host(Booker)

    async def book(agent: Booker) -> None:
        async with agent.commit():
            await agent.storage.get("x")

    await host.get(Booker, "a").do(book)
    assert host.store.statistics().batches == 0


async def test_managed_fibers_join_a_block(world: World) -> None:
    host = await world.host(Booker)

    async def ended(fiber: FiberContext) -> None: ...

    async def book(agent: Booker) -> None:
        await agent.start_fiber("w", forever, id="w")
        with pytest.raises(ValueError):
            async with agent.commit():
                await agent.start_fiber("n", ended, id="never")
                assert await agent.cancel_fiber("w")
                raise ValueError
        assert await agent.inspect_fiber("never") is None
        async with agent.commit():
            started = await agent.start_fiber("n", ended, id="n", idempotency_key="k")
            assert started.accepted
            again = await agent.start_fiber("n", ended, idempotency_key="k")
            assert (again.id, again.accepted) == ("n", False)
            with pytest.raises(FiberConflict, match="already started in this commit"):
                await agent.start_fiber("n", ended, id="n")
            assert await agent.cancel_fiber("w")
            await agent.storage.put("both", True)
        done = await agent.start_fiber("n", ended, id="n", wait=True)
        assert done.status == "completed"
        cancelled = await agent.inspect_fiber("w")
        assert cancelled is not None
        assert cancelled.status == "aborted"

    await host.get(Booker, "a").do(book)
    await host.until_settled()


async def test_waiting_inside_the_block_for_what_starts_at_its_end_is_refused(
    sqlite_world: World,
) -> None:
    host = await sqlite_world.host(Booker)

    async def quick(fiber: FiberContext) -> str:
        return "result"

    async def book(agent: Booker) -> None:
        async with agent.commit():
            handle = agent.run_fiber("inner", quick)
            with pytest.raises(RuntimeError, match="await it after the block"):
                await handle
            with pytest.raises(ValueError, match="wait after the block"):
                await agent.start_fiber("inner", quick, wait=True)
        assert await handle == "result"

    await host.get(Booker, "a").do(book)


async def test_a_key_taken_meanwhile_refuses_the_whole_block_and_the_agent_goes_on(
    world: World,
) -> None:
    host = await world.host(Booker)

    async def ended(fiber: FiberContext) -> None: ...

    async def book(agent: Booker) -> None:
        with pytest.raises(Exception, match="condition did not hold"):
            async with agent.commit():
                await agent.storage.put("a", 1)
                await agent.start_fiber("n", ended, idempotency_key="k")
                await asyncio.create_task(
                    agent.start_fiber("n", ended, idempotency_key="k", wait=True),  # type: ignore[arg-type]
                    context=_empty_context(),
                )
        assert await agent.storage.list() == {}
        await agent.storage.put("b", 1)

    await host.get(Booker, "a").do(book)
    await host.until_settled()
    assert await fiber_rows(host, "status") == [("completed",)]


async def test_cancelling_whoever_commits_takes_nothing_back(world: World) -> None:
    """Handed over means it will be tried: memory and store must agree on the outcome."""
    host = await world.host(Booker)
    ran: list[str] = []

    async def inner(fiber: FiberContext) -> None:
        ran.append(fiber.name)

    async def book(agent: Booker) -> None:
        async def outer(fiber: FiberContext) -> None:
            async def block() -> None:
                async with agent.commit():
                    await fiber.stash("in the block")
                    agent.run_fiber("inner", inner)

            for work in (block(), fiber.stash("alone")):
                task = asyncio.create_task(work)
                await asyncio.sleep(0)  # it has handed its batch over
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert f'"{fiber.snapshot}"' in [row[2] for row in await fiber_rows(host)]
            assert fiber.snapshot == "alone"

        await agent.run_fiber("outer", outer)

    await host.get(Booker, "a").do(book)
    await host.until_settled()
    assert ran == ["inner"]
    assert await fiber_rows(host) == []


async def test_a_fiber_is_stopped_even_if_whoever_cancelled_it_is_cancelled(
    sqlite_world: World,
) -> None:
    host = await sqlite_world.host(Booker)

    async def book(agent: Booker) -> None:
        await agent.start_fiber("w", forever, id="w")
        task = asyncio.create_task(agent.cancel_fiber("w"))
        await asyncio.sleep(0)  # it has handed its batch over
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    await host.get(Booker, "a").do(book)
    await host.until_settled()
    assert await fiber_rows(host, "status") == [("aborted",)]


async def test_keep_alive_while_takes_an_awaitable_or_a_function(sqlite_world: World) -> None:
    host = await sqlite_world.host(Booker)

    async def work() -> str:
        return "value"

    async def fail() -> None:
        raise ValueError("passed through")

    async def book(agent: Booker) -> None:
        assert await agent.keep_alive_while(work()) == "value"
        assert await agent.keep_alive_while(work) == "value"
        with pytest.raises(ValueError, match="passed through"):
            await agent.keep_alive_while(fail)

    await host.get(Booker, "a").do(book)
    assert host.statistics().held == 0
