"""Plain fibers: durable before they run, gone when they have ended."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from outlast import (
    Agent,
    FiberCancelled,
    FiberContext,
    FiberHandle,
    FiberInterrupted,
    Host,
    NotInFiber,
)
from support import World, fiber_rows, forever, hosting, listen


class Worker(Agent):
    """Runs whatever a test hands it."""

    handles: dict[str, FiberHandle[Any]]

    async def run(self, function: Any, *input: Any) -> Any:
        return await self.run_fiber("work", function, *input)

    async def begin(self, function: Any, *input: Any) -> FiberHandle[Any]:
        return self.run_fiber("work", function, *input)

    async def stash_here(self, value: Any) -> None:
        await self.stash(value)


@pytest.mark.invariant("A1")
async def test_row_is_durable_before_the_code_runs_and_gone_when_it_returns(world: World) -> None:
    host = await world.host(Worker)
    seen: list[Any] = []

    async def work(fiber: FiberContext) -> str:
        seen.extend(await fiber_rows(host))
        return "result"

    assert await host.get(Worker, "a").run(work) == "result"
    assert seen == [(seen[0][0], "running", None)]
    assert await fiber_rows(host) == []


@pytest.mark.invariant("A1")
async def test_row_is_gone_when_the_code_raises_and_the_error_is_unchanged(world: World) -> None:
    host = await world.host(Worker)
    error = ZeroDivisionError("x")

    async def work(fiber: FiberContext) -> None:
        raise error

    with pytest.raises(ZeroDivisionError) as caught:
        await host.get(Worker, "a").run(work)
    assert caught.value is error
    assert await fiber_rows(host) == []


@pytest.mark.invariant("A1")
async def test_row_is_gone_when_the_user_cancels(world: World) -> None:
    host = await world.host(Worker)
    started = asyncio.Event()

    async def work(fiber: FiberContext) -> None:
        started.set()
        await forever()

    handle = await host.get(Worker, "a").begin(work)
    await started.wait()
    assert handle.cancel()
    with pytest.raises(FiberCancelled):
        await handle
    assert await fiber_rows(host) == []
    assert handle.done()
    assert not handle.cancel()


async def test_cancelling_before_the_row_is_durable_leaves_no_row(world: World) -> None:
    host = await world.host(Worker)
    ran: list[int] = []

    async def work(fiber: FiberContext) -> None:
        ran.append(1)

    handle = await host.get(Worker, "a").begin(work)
    handle.cancel()
    with pytest.raises(FiberCancelled):
        await handle
    await host.until_settled()
    assert await fiber_rows(host) == []
    assert ran == []


@pytest.mark.invariant("A2")
@pytest.mark.parametrize("function", [lambda fiber: 3, lambda: None, lambda a, b, c: None])
async def test_a_function_that_cannot_be_run_leaves_no_row(world: World, function: Any) -> None:
    host = await world.host(Worker)
    with pytest.raises(TypeError):
        await host.get(Worker, "a").run(function)
    assert await fiber_rows(host) == []


@pytest.mark.parametrize(
    ("name", "function", "input", "says"),
    [
        ("", forever, 1, "name must not be blank"),
        ("a\0b", forever, 1, "NUL"),
        ("\ud800", forever, 1, "valid Unicode"),
        ("x" * 1001, forever, 1, "at most 1,000 bytes"),
        ("x", "not a function", 1, "must be an async function"),
        ("x", forever, {1, 2}, "input is a set"),
    ],
)
async def test_bad_arguments_raise_at_once_and_write_nothing(
    sqlite_world: World, name: str, function: Any, input: Any, says: str
) -> None:
    class Strict(Agent):
        async def begin(self) -> None:
            self.run_fiber(name, function, input)

    host = await sqlite_world.host(Strict)
    with pytest.raises((TypeError, ValueError), match=says):
        await host.get(Strict, "a").begin()
    assert host.store.statistics().batches == 0


async def test_a_coroutine_instead_of_a_function_is_explained(sqlite_world: World) -> None:
    host = await sqlite_world.host(Worker)
    with pytest.raises(TypeError, match="without calling it"):
        await host.get(Worker, "a").begin(forever())


async def test_input_is_stored_with_the_row_and_is_the_first_snapshot(world: World) -> None:
    host = await world.host(Worker)
    given = {"topic": "owls", "done": [1]}
    seen: list[Any] = []

    async def work(fiber: FiberContext, plan: dict[str, Any]) -> None:
        seen.append((plan, fiber.snapshot, (await fiber_rows(host))[0][2]))
        plan["done"].append(2)

    await host.get(Worker, "a").run(work, given)
    assert seen[0][1:] == (given, '{"topic":"owls","done":[1]}')
    assert given == {"topic": "owls", "done": [1]}, "the fiber works on a copy"


@pytest.mark.invariant("A3")
async def test_stash_is_durable_when_it_returns_and_replaces_everything(world: World) -> None:
    host = await world.host(Worker)
    stored: list[Any] = []

    async def work(fiber: FiberContext) -> None:
        assert fiber.snapshot is None
        for value in ({"a": 1, "b": 2}, {"c": 3}, None, [1]):
            await fiber.stash(value)
            stored.append((await fiber_rows(host))[0][2])
            assert fiber.snapshot == value

    await host.get(Worker, "a").run(work)
    assert stored == ['{"a":1,"b":2}', '{"c":3}', "null", "[1]"]


@pytest.mark.invariant("A4")
async def test_concurrent_fibers_stash_into_their_own_rows_through_the_agent(
    world: World,
) -> None:
    host = await world.host(Worker)
    agent = host.get(Worker, "a")
    gate = asyncio.Barrier(21)

    async def work(fiber: FiberContext, number: int) -> None:
        for step in range(3):
            await agent.stash_here({"number": number, "step": step})
        await gate.wait()
        await gate.wait()

    handles = [await agent.begin(work, number) for number in range(20)]
    await gate.wait()
    rows = {id: snapshot for id, _, snapshot in await fiber_rows(host)}
    await gate.wait()
    await asyncio.gather(*handles)
    assert rows == {
        handle.id: f'{{"number":{number},"step":2}}' for number, handle in enumerate(handles)
    }


async def test_stash_outside_a_fiber_raises(sqlite_world: World) -> None:
    host = await sqlite_world.host(Worker)
    with pytest.raises(NotInFiber, match="start one with run_fiber"):
        await host.get(Worker, "a").stash_here(1)


async def test_stash_in_another_agents_fiber_raises(sqlite_world: World) -> None:
    host = await sqlite_world.host(Worker)
    other = host.get(Worker, "other")

    async def work(fiber: FiberContext) -> None:
        await other.stash_here(1)

    with pytest.raises(NotInFiber):
        await host.get(Worker, "a").run(work)


async def test_stash_after_the_fibers_end_raises_also_from_a_task_it_started(
    sqlite_world: World,
) -> None:
    host = await sqlite_world.host(Worker)
    agent = host.get(Worker, "a")
    ended = asyncio.Event()
    kept: list[Any] = []

    async def late() -> None:
        await ended.wait()
        await agent.stash_here(1)

    async def work(fiber: FiberContext) -> None:
        kept.append(fiber)
        kept.append(asyncio.create_task(late()))

    await agent.run(work)
    ended.set()
    with pytest.raises(NotInFiber, match="has ended"):
        await kept[0].stash(1)
    with pytest.raises(NotInFiber, match="has ended"):
        await kept[1]


async def test_stash_of_something_that_is_not_json_says_where(sqlite_world: World) -> None:
    host = await sqlite_world.host(Worker)

    async def work(fiber: FiberContext) -> None:
        await fiber.stash({"steps": [1, {"at": object()}]})

    with pytest.raises(TypeError, match=r"snapshot\['steps'\]\[1\]\['at'\] is a object"):
        await host.get(Worker, "a").run(work)


async def test_cancelling_the_one_who_waits_does_not_cancel_the_fiber(sqlite_world: World) -> None:
    host = await sqlite_world.host(Worker)
    go, started = asyncio.Event(), asyncio.Event()

    async def work(fiber: FiberContext) -> str:
        started.set()
        await go.wait()
        return "done"

    handle = await host.get(Worker, "a").begin(work)
    waiter = asyncio.ensure_future(_result(handle))
    await started.wait()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    go.set()
    assert await handle == "done"


async def _result(handle: FiberHandle[Any]) -> Any:
    return await handle


async def test_a_failure_that_nobody_waits_for_is_logged(
    sqlite_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    host = await sqlite_world.host(Worker)
    failures = listen(host, "fiber")

    async def work(fiber: FiberContext) -> None:
        raise ValueError("nobody listens")

    with caplog.at_level(logging.ERROR, "outlast"):
        await host.get(Worker, "a").begin(work)
        await host.until_settled()
    assert "the fiber 'work' failed" in caplog.text
    assert "nobody listens" in caplog.text
    assert [event.name for event in failures] == ["fiber:run:started", "fiber:run:failed"]
    assert failures[1].payload["error"] == "ValueError: nobody listens"


@pytest.mark.parametrize("how", ["shutdown", "outside"])
async def test_row_is_kept_when_the_host_stops_or_a_stranger_cancels_the_task(
    store_url: str, how: str
) -> None:
    """Only the user's own cancel removes a row: a loop that is torn down must not lose work."""
    recovered: list[str] = []

    class Left(Worker):
        async def on_fiber_recovered(self, fiber: Any) -> None:
            recovered.append(fiber.snapshot)

    async with hosting(Left, url=store_url) as host:
        started = asyncio.Event()

        async def work(fiber: FiberContext, _: str) -> None:
            started.set()
            await forever()

        handle = await host.get(Left, "a").begin(work, "precious")
        await started.wait()
        if how == "outside":
            (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "fiber work")
            task.cancel()
        else:
            await host.stop(0)
        with pytest.raises(FiberInterrupted):
            await handle
        if how == "outside":
            await host.until_settled()
    if how == "shutdown":
        async with hosting(Left, url=store_url, life="2") as host:
            await host.until_settled()
    assert recovered == ["precious"]


async def test_a_fiber_that_ends_while_its_host_is_stopping_is_not_left_behind(
    sqlite_world: World,
) -> None:
    ended: list[int] = []
    host = await sqlite_world.host(Worker)
    go = asyncio.Event()

    async def work(fiber: FiberContext) -> None:
        await go.wait()
        ended.append(1)

    await host.get(Worker, "a").begin(work)
    asyncio.get_running_loop().call_later(0.01, go.set)
    await sqlite_world.stop()
    assert ended == [1]
    async with Host([Worker], sqlite_world.url) as host:
        assert await fiber_rows(host) == []


async def test_run_fiber_through_a_stub_says_where_to_use_it(sqlite_world: World) -> None:
    host = await sqlite_world.host(Worker)
    with pytest.raises(TypeError, match="Use it in an async method of Worker"):
        host.get(Worker, "a").run_fiber("x", forever)
