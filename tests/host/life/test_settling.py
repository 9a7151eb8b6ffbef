"""`until_settled` and `statistics`: what a host is still doing, for tests and for operators."""

from __future__ import annotations

import asyncio
from dataclasses import FrozenInstanceError
from typing import Any, ClassVar

import pytest

from outlast import Agent, Host, HostStatistics
from support import World, fiber_rows, forever

pytestmark = pytest.mark.virtual_time


class Worker(Agent):
    recovered: ClassVar[list[str]] = []

    async def call(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def chain(self, fibers: int) -> None:
        self.run_fiber("link", self.link, fibers)

    async def link(self, fiber: Any, left: int) -> None:
        """A fiber that ends by starting the next one."""
        await asyncio.sleep(1)
        if left > 1:
            self.run_fiber("link", self.link, left - 1)

    async def begin(self) -> None:
        await self.run_fiber("work", forever)._fiber.accepted

    async def on_fiber_recovered(self, fiber: Any) -> None:
        await asyncio.sleep(7)
        Worker.recovered.append(self.name)

    async def put_without_waiting(self) -> None:
        self.task = asyncio.create_task(self.storage.put("key", 1))


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_host_with_nothing_to_do_is_settled_at_once(world: World) -> None:
    host = await world.host(Worker)
    await host.until_settled()
    assert now() == 0
    await host.until_settled()


async def test_it_waits_for_calls_fibers_and_the_fibers_that_those_start(world: World) -> None:
    host = await world.host(Worker)
    call = asyncio.create_task(host.get(Worker, "a").call(3))
    await host.get(Worker, "b").chain(5)
    await host.until_settled()
    assert now() == 5
    assert call.done()
    assert await fiber_rows(host) == []


async def test_it_waits_for_boot_and_recovery(world: World) -> None:
    host = await world.host(Worker, shutdown_timeout=0)
    for name in "abc":
        await host.get(Worker, name).begin()
    await world.stop()
    Worker.recovered = []
    started = now()
    host = await world.next_life()
    await host.until_settled()
    assert now() - started == 7
    assert sorted(Worker.recovered) == ["a", "b", "c"]


async def test_it_waits_for_what_was_handed_over_to_the_store(world: World) -> None:
    host = await world.host(Worker)
    await host.get(Worker, "a").put_without_waiting()
    await asyncio.sleep(0)
    await host.until_settled()
    assert not host.store.busy
    assert host.store.statistics().batches == 1


async def test_several_may_wait_and_a_keep_alive_keeps_them_waiting(sqlite_world: World) -> None:
    host = await sqlite_world.host(Worker)
    async with host.using(host.get(Worker, "a")._address) as agent:
        lease = agent.keep_alive()  # type: ignore[attr-defined]
    waiting = [asyncio.create_task(host.until_settled()) for _ in range(3)]
    await asyncio.sleep(100)
    assert not any(task.done() for task in waiting)
    lease.release()
    await asyncio.sleep(0.1)
    assert all(task.done() for task in waiting)


async def test_stopping_the_host_releases_who_waits(sqlite_world: World) -> None:
    host = await sqlite_world.host(Worker)
    await host.get(Worker, "a").begin()
    waiting = asyncio.create_task(host.until_settled())
    await asyncio.sleep(1)
    await host.stop(5)
    await waiting
    assert now() == 6


async def test_statistics_tell_who_is_in_memory_and_who_of_them_is_at_work(
    sqlite_world: World,
) -> None:
    host = await sqlite_world.host(Worker)
    await host.until_settled()
    assert host.statistics() == HostStatistics(0, 0, booting=False, next_alarm_at=None)
    calls = [asyncio.create_task(host.get(Worker, name).call(5)) for name in "abc"]
    calls.append(asyncio.create_task(host.get(Worker, "a").call(10)))
    await asyncio.sleep(1)
    assert (host.statistics().active, host.statistics().held) == (3, 3)
    await asyncio.sleep(5)
    assert (host.statistics().active, host.statistics().held) == (3, 1)
    await asyncio.gather(*calls)
    assert (host.statistics().active, host.statistics().held) == (3, 0)
    with pytest.raises(FrozenInstanceError):
        host.statistics().active = 0  # type: ignore[misc]


async def test_statistics_can_be_asked_for_at_any_time(sqlite_url: str) -> None:
    host = Host(agents=[Worker], store=sqlite_url)
    nothing = HostStatistics(0, 0, booting=False, next_alarm_at=None)
    assert host.statistics() == nothing
    await host.start()
    assert host.statistics().booting is True
    await host.stop()
    assert host.statistics() == nothing
