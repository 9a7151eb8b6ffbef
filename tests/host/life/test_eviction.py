"""Eviction: an agent that nothing holds leaves memory after a while, and loses nothing by it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any, ClassVar

import pytest

from outlast import Agent, CommitFailed, Host, Lease
from support import World, alarm_rows, fiber_rows, listen

pytestmark = pytest.mark.virtual_time


class Sleeper(Agent):
    objects: ClassVar[list[weakref.ref[Sleeper]]] = []
    release: ClassVar[asyncio.Event]

    def __init__(self) -> None:
        Sleeper.objects.append(weakref.ref(self))
        self.memory: list[str] = []

    async def remember(self, text: str) -> list[str]:
        self.memory.append(text)
        stored = [*(await self.storage.get("texts") or []), text]
        await self.storage.put("texts", stored)
        return stored

    async def recall(self) -> tuple[list[str], list[str]]:
        return self.memory, await self.storage.get("texts")

    async def wait(self) -> None:
        await Sleeper.release.wait()

    async def begin(self) -> None:
        self.run_fiber("work", self.work)

    async def work(self, fiber: Any) -> None:
        await Sleeper.release.wait()

    async def hold(self) -> Lease:
        return self.keep_alive()

    async def hold_while(self) -> None:
        self.task = asyncio.create_task(self.keep_alive_while(Sleeper.release.wait()))

    async def stray(self) -> asyncio.Task[None]:
        async def write() -> None:
            await asyncio.sleep(100)
            await self.storage.put("texts", ["written by a ghost"])

        return asyncio.create_task(write())


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Sleeper.objects, Sleeper.release = [], asyncio.Event()


def alive() -> int:
    """How many objects of the class are still in memory."""
    gc.collect()
    return sum(reference() is not None for reference in Sleeper.objects)


async def idle_for_a_while(host: Host) -> None:
    """Alice waits for her eviction already; what holds her from now on must put it off."""
    await host.get(Sleeper, "alice").recall()
    await asyncio.sleep(30)


async def test_after_sixty_idle_seconds_the_object_is_gone_and_the_next_call_finds_all_its_data(
    world: World,
) -> None:
    host = await world.host(Sleeper)
    seen = listen(host, "lifecycle")
    stub = host.get(Sleeper, "alice")
    await stub.remember("milk")
    await asyncio.sleep(59)
    assert (alive(), host.statistics().active) == (1, 1)
    await asyncio.sleep(2)
    assert (alive(), host.statistics().active) == (0, 0)
    assert [(event.name, event.agent) for event in seen] == [
        ("lifecycle:activated", "Sleeper/alice"),
        ("lifecycle:evicted", "Sleeper/alice"),
    ]
    assert await stub.recall() == ([], ["milk"])
    assert await stub.remember("eggs") == ["milk", "eggs"]
    assert len(Sleeper.objects) == 2


async def test_each_agent_is_evicted_at_its_own_time_and_a_call_starts_the_wait_anew(
    sqlite_world: World,
) -> None:
    host = await sqlite_world.host(Sleeper, idle_timeout=10)
    early, late = host.get(Sleeper, "early"), host.get(Sleeper, "late")
    await early.recall()
    await asyncio.sleep(4)
    await late.recall()
    await asyncio.sleep(4)
    await early.recall()
    await asyncio.sleep(5)
    assert host.statistics().active == 2
    await asyncio.sleep(1.5)  # 10 s after the call to late, 6.5 s after the last to early
    assert (alive(), host.statistics().active) == (1, 1)
    await asyncio.sleep(4)
    assert host.statistics().active == 0


async def test_of_a_thousand_agents_called_one_a_second_only_the_warm_ones_stay_in_memory(
    sqlite_world: World,
) -> None:
    host = await sqlite_world.host(Sleeper, idle_timeout=10)
    for number in range(1000):
        await host.get(Sleeper, str(number)).recall()
        await asyncio.sleep(1)
    assert host.statistics().active <= 11


async def test_an_agent_is_not_evicted_while_a_call_runs(sqlite_world: World) -> None:
    host = await sqlite_world.host(Sleeper)
    await idle_for_a_while(host)
    call = asyncio.create_task(host.get(Sleeper, "alice").wait())
    await asyncio.sleep(3600)
    assert (host.statistics().active, host.statistics().held) == (1, 1)
    Sleeper.release.set()
    await call
    del call
    await asyncio.sleep(61)
    assert alive() == 0


async def test_an_agent_is_not_evicted_while_a_fiber_runs(world: World) -> None:
    host = await world.host(Sleeper)
    await idle_for_a_while(host)
    await host.get(Sleeper, "alice").begin()
    await asyncio.sleep(3600)
    assert (host.statistics().active, len(await fiber_rows(host))) == (1, 1)
    Sleeper.release.set()
    await asyncio.sleep(61)
    assert (host.statistics().active, await fiber_rows(host)) == (0, [])
    await asyncio.sleep(600)  # asyncpg's timers remember who used a connection for 5 minutes
    assert alive() == 0


async def test_an_agent_is_not_evicted_while_something_it_keeps_alive_for_is_awaited(
    sqlite_world: World,
) -> None:
    host = await sqlite_world.host(Sleeper)
    await idle_for_a_while(host)
    await host.get(Sleeper, "alice").hold_while()
    await asyncio.sleep(3600)
    assert host.statistics().active == 1
    Sleeper.release.set()
    await asyncio.sleep(61)
    assert alive() == 0


@pytest.mark.invariant("A14")
async def test_a_lease_released_twice_counts_once_and_its_end_leaves_no_alarm_and_no_timer(
    world: World,
) -> None:
    host = await world.host(Sleeper)
    stub = host.get(Sleeper, "alice")
    first, second = await stub.hold(), await stub.hold()
    first.release()
    first.release()
    await asyncio.sleep(3600)
    assert host.statistics().active == 1  # the second still holds
    second.release()
    del first, second
    await asyncio.sleep(61)
    assert (alive(), host.statistics().next_alarm_at) == (0, None)
    assert await alarm_rows(host) == []
    assert pending_timers() == []
    commits = host.store.statistics().commits
    await asyncio.sleep(86_400)
    assert (alive(), host.store.statistics().commits) == (0, commits)


async def test_a_lease_can_be_held_with_with_and_async_with(sqlite_world: World) -> None:
    host = await sqlite_world.host(Sleeper)
    with await host.get(Sleeper, "alice").hold():
        await asyncio.sleep(3600)
        assert host.statistics().active == 1
    async with await host.get(Sleeper, "alice").hold():
        await asyncio.sleep(3600)
        assert host.statistics().active == 1
    await asyncio.sleep(61)
    assert len(Sleeper.objects) == 1
    assert alive() == 0


async def test_a_stray_task_of_an_evicted_agent_cannot_write(world: World) -> None:
    host = await world.host(Sleeper)
    stub = host.get(Sleeper, "alice")
    await stub.remember("milk")
    stray = await stub.stray()
    with pytest.raises(CommitFailed, match=r"evicted because nothing held it.*fiber"):
        await stray
    assert await stub.recall() == ([], ["milk"])


async def test_an_evicted_agent_that_never_wrote_leaves_no_row(sqlite_world: World) -> None:
    host = await sqlite_world.host(Sleeper)
    await host.get(Sleeper, "alice").recall()
    await asyncio.sleep(61)
    assert host.statistics().active == 0
    assert host.store.statistics().commits == 0


async def test_an_idle_host_keeps_no_timer(sqlite_world: World) -> None:
    host = await sqlite_world.host(Sleeper)
    await host.until_settled()
    assert pending_timers() == []
    await host.get(Sleeper, "alice").recall()
    assert len(pending_timers()) == 1
    await asyncio.sleep(61)
    assert pending_timers() == []


def pending_timers() -> list[Any]:
    """What of ours the event loop will call later, by itself. (asyncpg has timers of its own.)"""
    handles = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    pending = [handle._callback for handle in handles if not handle.cancelled()]
    return [callback for callback in pending if callback.__module__.startswith("outlast.")]
