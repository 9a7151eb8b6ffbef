"""Shutdown: running work may finish, the rest is left for the next host, and then nothing runs."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from outlast import Agent, FiberInterrupted, Host, HostStopped
from outlast.core.errors import StoreClosed
from outlast.store import fencing
from outlast.store.url import open_store
from support import World, fiber_rows, forever, hosting

pytestmark = pytest.mark.virtual_time


class Worker(Agent):
    log: ClassVar[list[str]] = []

    async def call(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        await self.storage.put("call", "ended")
        Worker.log.append("call ended")
        return "ended"

    async def begin(self, seconds: float) -> Any:
        handle = self.run_fiber("work", self.work, seconds)
        await handle._fiber.accepted
        return handle

    async def work(self, fiber: Any, seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
            await self.storage.put("fiber", "ended")
            Worker.log.append("fiber ended")
        finally:
            Worker.log.append("fiber left")
        return "ended"

    async def on_fiber_recovered(self, fiber: Any) -> None:
        Worker.log.append(f"recovered {fiber.snapshot}")

    async def delegate(self, host: Host, seconds: float) -> None:
        self.run_fiber("delegate", self.delegating, None)
        self.host, self.seconds = host, seconds

    async def delegating(self, fiber: Any, _: None) -> None:
        await asyncio.sleep(self.seconds)
        Worker.log.append(await self.host.get(Worker, "other").call(1))

    async def tick(self) -> None:
        self.run_fiber("tick", self.ticking)

    async def ticking(self, fiber: Any) -> None:
        while True:
            Worker.log.append("tick")
            await asyncio.sleep(1)

    async def stored(self) -> dict[str, Any]:
        return await self.storage.list()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Worker.log = []


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_stopping_waits_for_running_calls_and_fibers(world: World) -> None:
    host = await world.host(Worker)
    call = asyncio.create_task(host.get(Worker, "a").call(5))
    fiber = await host.get(Worker, "b").begin(8)
    await host.stop()
    assert now() == 8
    assert (await call, await fiber) == ("ended", "ended")
    host = await world.next_life()
    assert await host.get(Worker, "a").stored() == {"call": "ended"}
    assert await host.get(Worker, "b").stored() == {"fiber": "ended"}
    assert Worker.log == ["call ended", "fiber ended", "fiber left"]


async def test_an_idle_host_stops_at_once(world: World) -> None:
    host = await world.host(Worker)
    await host.get(Worker, "a").stored()
    started = now()
    await host.stop()
    assert now() == started


async def test_fibers_past_the_deadline_keep_their_rows_and_the_next_host_recovers_them(
    world: World,
) -> None:
    host = await world.host(Worker)
    fiber = await host.get(Worker, "a").begin(1000)
    started = now()
    await host.stop()
    assert now() - started == 10  # the default
    with pytest.raises(FiberInterrupted, match="host was stopped"):
        await fiber
    assert Worker.log == ["fiber left"]
    host = await world.next_life()
    await host.until_settled()
    assert Worker.log[1:] == ["recovered 1000"]
    assert await fiber_rows(host) == []
    assert await host.get(Worker, "a").stored() == {}


@pytest.mark.parametrize(("of_host", "of_stop", "expected"), [(3, None, 3), (3, 5, 5), (3, 0, 0)])
async def test_the_deadline_is_the_hosts_or_the_one_given_to_stop(
    sqlite_world: World, of_host: float, of_stop: float | None, expected: float
) -> None:
    host = await sqlite_world.host(Worker, shutdown_timeout=of_host)
    await host.get(Worker, "a").begin(1000)
    await host.stop(of_stop)
    assert now() == expected


async def test_a_call_past_the_deadline_can_write_nothing_more(world: World) -> None:
    host = await world.host(Worker)
    call = asyncio.create_task(host.get(Worker, "a").call(20))
    await asyncio.sleep(0)
    await host.stop()
    with pytest.raises(HostStopped):
        await call
    host = await world.next_life()
    assert await host.get(Worker, "a").stored() == {}


async def test_work_inside_may_call_other_agents_while_the_host_drains_and_outside_callers_may_not(
    sqlite_world: World,
) -> None:
    host = await sqlite_world.host(Worker)
    await host.get(Worker, "a").delegate(host, 5)
    stopping = asyncio.create_task(host.stop())
    await asyncio.sleep(1)
    with pytest.raises(HostStopped, match=r"cannot call Worker/b: the host is stopping"):
        await host.get(Worker, "b").stored()
    await stopping
    assert Worker.log == ["call ended", "ended"]
    with pytest.raises(HostStopped, match="the host is stopped"):
        await host.get(Worker, "b").stored()


async def test_a_call_that_is_under_way_may_call_on_while_the_host_drains(
    sqlite_world: World,
) -> None:
    host = await sqlite_world.host(Worker)
    async with host.using(host.get(Worker, "a")._address):
        stopping = asyncio.create_task(host.stop())
        await asyncio.sleep(1)
        assert await host.get(Worker, "b").call(1) == "ended"
    with pytest.raises(HostStopped):
        await host.get(Worker, "b").call(1)
    await stopping


async def test_nothing_of_a_host_runs_after_its_stop_has_returned(world: World) -> None:
    host = await world.host(Worker)
    await host.get(Worker, "a").tick()
    await host.get(Worker, "b").begin(1000)
    calling = asyncio.create_task(host.get(Worker, "c").call(3))
    await asyncio.sleep(2)
    before = asyncio.all_tasks()
    await host.stop(5)
    assert await calling == "ended"
    ticks = len(Worker.log)
    assert asyncio.all_tasks() <= {asyncio.current_task()}, before
    await asyncio.sleep(100)
    assert len(Worker.log) == ticks


async def test_stopping_twice_is_harmless_and_the_second_waits_for_the_first(
    sqlite_world: World,
) -> None:
    host = await sqlite_world.host(Worker)
    await host.get(Worker, "a").begin(5)
    first = asyncio.create_task(host.stop())
    await asyncio.sleep(1)
    await host.stop()
    assert now() == 5
    assert first.done()
    await host.stop()
    await sqlite_world.stop()
    store = await open_store(sqlite_world.url)  # the file is free
    await store.close()


async def test_a_host_that_was_stopped_before_it_was_started_never_starts(sqlite_url: str) -> None:
    host = Host(agents=[Worker], store=sqlite_url)
    await host.stop()
    with pytest.raises(HostStopped, match="started only once"):
        await host.start()


async def test_a_host_starts_once(sqlite_world: World) -> None:
    host = await sqlite_world.host(Worker)
    with pytest.raises(HostStopped, match="started only once; create a new Host"):
        await host.start()
    await sqlite_world.stop()
    with pytest.raises(HostStopped, match="started only once; create a new Host"):
        await host.start()


async def test_a_body_that_raises_still_shuts_the_host_down(sqlite_url: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with hosting(Worker, url=sqlite_url) as host:
            await host.get(Worker, "a").begin(5)
            raise ZeroDivisionError
    assert Worker.log == ["fiber ended", "fiber left"]
    with pytest.raises(HostStopped):
        await host.get(Worker, "a").stored()


async def test_cancelling_a_stopping_host_makes_it_leave_its_work_at_once_and_let_go_of_the_store(
    sqlite_world: World,
) -> None:
    host = await sqlite_world.host(Worker)
    await host.get(Worker, "a").begin(1000)
    stopping = asyncio.create_task(host.stop(100))
    await asyncio.sleep(1)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert (now(), Worker.log) == (1, ["fiber left"])
    host = await sqlite_world.next_life()
    await host.until_settled()
    assert Worker.log[1:] == ["recovered 1000"]


class Slow(Agent):
    log: ClassVar[list[str]] = []

    async def on_start(self) -> None:
        Slow.log.append("start")
        await asyncio.sleep(20)
        Slow.log.append("started")

    async def hello(self) -> str:
        return "hello"


async def test_who_waits_for_an_on_start_that_outlasts_the_deadline_is_told_that_the_host_stopped(
    world: World,
) -> None:
    Slow.log = []
    host = await world.host(Slow)
    calls = [asyncio.create_task(host.get(Slow, "a").hello()) for _ in range(3)]
    await asyncio.sleep(1)
    await host.stop()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [HostStopped] * 3
    await asyncio.sleep(100)
    assert Slow.log == ["start"]


async def test_an_agent_that_is_still_being_looked_up_is_not_started_by_a_stopped_host(
    sqlite_world: World,
) -> None:
    Slow.log = []
    host = await sqlite_world.host(Slow)
    await host.until_settled()
    fetch, looked_up = host.store.fetch, asyncio.Event()

    async def slow(*query: Any) -> Any:
        looked_up.set()
        rows = await fetch(*query)
        await asyncio.sleep(30)
        return rows

    host.store.fetch = slow  # type: ignore[method-assign]
    call = asyncio.create_task(host.get(Slow, "a").hello())
    await looked_up.wait()
    await host.stop()
    with pytest.raises(HostStopped):
        await call
    await asyncio.sleep(100)
    assert Slow.log == []


async def test_work_that_will_not_stop_is_waited_for_only_a_moment(sqlite_world: World) -> None:
    class Stubborn(Agent):
        async def begin(self) -> None:
            await self.run_fiber("work", self.work)._fiber.accepted

        async def work(self, fiber: Any) -> None:
            try:
                await forever()
            finally:
                await asyncio.sleep(50)

    host = await sqlite_world.host(Stubborn)
    await host.get(Stubborn, "a").begin()
    await host.stop(0)
    assert now() == 5


async def test_a_host_that_is_stopped_while_it_is_starting_does_not_run_and_closes_its_store(
    postgres_url: str,
) -> None:
    host = Host(agents=[Worker], store=postgres_url)
    starting = asyncio.create_task(host.start())
    await asyncio.sleep(0)
    await host.stop()
    with pytest.raises(HostStopped, match="while it was starting"):
        await starting
    with pytest.raises(HostStopped, match="host is stopped"):
        await host.get(Worker, "a").stored()
    with pytest.raises(StoreClosed):
        await host.store.fetch(fencing.READ, "Worker/a")
