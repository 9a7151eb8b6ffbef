"""Alarms: rows that wake an agent in time, wherever it is, and after any restart."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest
from alarmed import Alarmed, forget, timers, times

from outlast import Agent, FiberRecovery
from outlast.host.wakeups.alarms import MOST_AT_ONCE
from outlast.testing import VirtualClock
from outlast.testing.virtual import START
from support import World, alarm_rows, fiber_rows, forever, hosting

pytestmark = pytest.mark.virtual_time


@pytest.fixture(autouse=True)
def _fresh() -> None:
    forget()


async def test_an_alarm_fires_when_due_for_an_agent_that_is_not_in_memory(world: World) -> None:
    host = await world.host(Alarmed)
    await host.get(Alarmed, "alice").set("tea", 3600)
    await asyncio.sleep(100)
    assert host.statistics().active == 0
    await asyncio.sleep(3600)
    assert Alarmed.woken == [("alice", "tea", 3600.0)]
    assert Alarmed.starts == ["alice", "alice"]
    assert await alarm_rows(host) == []


async def test_an_alarm_reaches_the_object_that_is_in_memory(sqlite_world: World) -> None:
    host = await sqlite_world.host(Alarmed)
    await host.get(Alarmed, "alice").set("tea", 30)
    await asyncio.sleep(31)
    assert (times("tea"), Alarmed.starts) == ([30.0], ["alice"])


@pytest.mark.invariant("B7")
async def test_an_alarm_survives_restarts_and_fires_on_time(store_url: str) -> None:
    async with hosting(Alarmed, url=store_url) as host:
        await host.get(Alarmed, "alice").set("tea", 500)
    for life in "234":
        await asyncio.sleep(50)
        async with hosting(Alarmed, url=store_url, life=life) as host:
            await host.until_settled()
            assert host.statistics().next_alarm_at == START + 500_000
            await asyncio.sleep(50)
    async with hosting(Alarmed, url=store_url, life="5"):
        await asyncio.sleep(1000)
        assert times("tea") == [500.0]


@pytest.mark.invariant("B7")
async def test_what_is_overdue_at_boot_fires_at_once_without_any_request(world: World) -> None:
    host = await world.host(Alarmed)
    for n in range(5):
        await host.get(Alarmed, f"a{n}").set("tea", 100 + n)
    await host.get(Alarmed, "later").set("later", 2000)
    await world.stop()
    await asyncio.sleep(1000)
    host = await world.next_life()
    await host.until_settled()
    assert sorted(Alarmed.woken) == [(f"a{n}", "tea", 1000.0) for n in range(5)]
    assert host.statistics().next_alarm_at == START + 2_000_000


@pytest.mark.invariant("B7")
async def test_lives_that_end_while_the_handler_runs_never_push_the_alarm_into_the_future(
    store_url: str,
) -> None:
    async def hang(agent: Alarmed, source: str) -> None:
        await forever()

    Alarmed.handlers["tea"] = hang
    async with hosting(Alarmed, url=store_url) as host:
        await host.get(Alarmed, "alice").set("tea", 1)
    for life in "2345":
        async with hosting(Alarmed, url=store_url, life=life, shutdown_timeout=0) as host:
            await asyncio.sleep(5)
            assert await alarm_rows(host) == [("Alarmed/alice", "tea", START + 1000)]
    assert len(times("tea")) == 4
    Alarmed.handlers.clear()
    async with hosting(Alarmed, url=store_url, life="6") as host:
        await host.until_settled()
        assert len(times("tea")) == 5
        assert await alarm_rows(host) == []


async def test_a_thousand_alarms_need_one_timer_and_each_fires_on_time(sqlite_world: World) -> None:
    host = await sqlite_world.host(Alarmed)
    await asyncio.gather(
        *(host.get(Alarmed, f"a{n:03}").set(f"s{n:03}", 100 + n % 50) for n in range(1000))
    )
    assert len(timers(host)) == 1
    await asyncio.sleep(120.5)
    assert len(timers(host)) == 1
    await asyncio.sleep(200)
    assert len(Alarmed.woken) == 1000
    assert all(at == 100 + int(source[1:]) % 50 for _, source, at in Alarmed.woken)


async def test_an_earlier_alarm_that_is_set_later_is_honoured(world: World) -> None:
    host = await world.host(Alarmed)
    await host.get(Alarmed, "alice").set("late", 1000)
    await host.get(Alarmed, "bob").set("early", 10)
    assert host.statistics().next_alarm_at == START + 10_000
    await asyncio.sleep(2000)
    assert (times("early"), times("late")) == ([10.0], [1000.0])


async def test_an_alarm_that_was_moved_or_cleared_fires_at_its_new_time_or_never(
    sqlite_world: World,
) -> None:
    host = await sqlite_world.host(Alarmed)
    alice = host.get(Alarmed, "alice")
    await alice.set("moved", 10)
    await alice.set("cleared", 20)
    await alice.set("moved", 300)
    await alice.set("cleared", None)
    await asyncio.sleep(1000)
    assert Alarmed.woken == [("alice", "moved", 300.0)]


async def test_an_alarm_may_set_itself_anew_and_fires_again_and_again(sqlite_world: World) -> None:
    async def again(agent: Alarmed, source: str) -> None:
        await agent.set(source, times(source)[-1] + 600)

    Alarmed.handlers["every ten minutes"] = again
    host = await sqlite_world.host(Alarmed)
    await host.get(Alarmed, "alice").set("every ten minutes", 600)
    await asyncio.sleep(3601)
    assert times("every ten minutes") == [600.0, 1200.0, 1800.0, 2400.0, 3000.0, 3600.0]
    assert len(await alarm_rows(host)) == 1


async def test_sources_of_one_agent_are_alarms_of_their_own(sqlite_world: World) -> None:
    host = await sqlite_world.host(Alarmed)
    await host.get(Alarmed, "alice").set("one", 10)
    await host.get(Alarmed, "alice").set("two", 20)
    await asyncio.sleep(15)
    assert await alarm_rows(host) == [("Alarmed/alice", "two", START + 20_000)]
    await asyncio.sleep(15)
    assert Alarmed.woken == [("alice", "one", 10.0), ("alice", "two", 20.0)]


async def test_of_many_that_are_due_a_hundred_fire_at_once_and_the_others_follow(
    sqlite_world: World,
) -> None:
    running = most = 0

    async def slow(agent: Alarmed, source: str) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1
        await agent.set(source, None)

    Alarmed.handlers["tea"] = slow
    host = await sqlite_world.host(Alarmed)
    await asyncio.gather(*(host.get(Alarmed, f"{n}").set("tea", 10) for n in range(350)))
    await asyncio.sleep(20)
    assert (len(Alarmed.woken), most) == (350, MOST_AT_ONCE)
    assert await alarm_rows(host) == []


async def test_a_wall_clock_that_jumps_ahead_is_noticed_within_thirty_seconds(
    sqlite_world: World,
) -> None:
    clock = VirtualClock(asyncio.get_running_loop())
    host = await sqlite_world.host(Alarmed, clock=clock)
    await host.get(Alarmed, "alice").set("tea", 86_400)
    await asyncio.sleep(1000)
    assert times("tea") == []
    clock.set(START + 86_400_000)  # somebody, or a laptop that was asleep
    await asyncio.sleep(30.1)
    assert times("tea") == [pytest.approx(86_400, abs=30.1)]


async def test_no_timer_is_left_when_nothing_is_pending(world: World) -> None:
    host = await world.host(Alarmed)
    await host.until_settled()
    assert (timers(host), host.statistics().next_alarm_at) == ([], None)
    await host.get(Alarmed, "alice").set("tea", 100)
    assert len(timers(host)) == 1
    await asyncio.sleep(101)
    assert (timers(host), host.statistics().next_alarm_at) == ([], None)
    assert times("tea") == [100.0]


async def test_until_settled_waits_for_what_is_due_but_not_for_what_is_to_come(
    sqlite_world: World,
) -> None:
    async def slow(agent: Alarmed, source: str) -> None:
        await asyncio.sleep(50)
        await agent.set(source, None)

    Alarmed.handlers["slow"] = slow
    host = await sqlite_world.host(Alarmed)
    await host.get(Alarmed, "alice").set("far", 10_000)
    await host.get(Alarmed, "alice").set("slow", 0)
    await host.until_settled()
    assert asyncio.get_running_loop().time() == 50
    assert await alarm_rows(host) == [("Alarmed/alice", "far", START + 10_000_000)]


class Recovering(Agent):
    """Its recovery hook fails as often as the test says; the alarm in between is recovery's own."""

    fiber_recovery = FiberRecovery(retry=30)
    failures: ClassVar[int] = 0
    recovered: ClassVar[list[str]] = []

    async def begin(self) -> None:
        await self.run_fiber("work", forever)._fiber.accepted

    async def on_fiber_recovered(self, fiber: Any) -> None:
        Recovering.recovered.append(fiber.name)
        if Recovering.recovered.count("work") <= Recovering.failures:
            raise ZeroDivisionError

    async def _wake(self, source: str) -> None:
        Recovering.recovered.append("woken")
        await super()._wake(source)


@pytest.mark.invariant("A13")
async def test_once_nothing_is_left_to_recover_no_alarm_for_recovery_remains(
    world: World,
) -> None:
    host = await world.host(Recovering, shutdown_timeout=0)
    await host.get(Recovering, "x").begin()
    await world.stop()
    Recovering.failures, Recovering.recovered = 2, []
    host = await world.next_life()
    await host.until_settled()
    assert [row[:2] for row in await alarm_rows(host)] == [("Recovering/x", "fibers")]
    await asyncio.sleep(3600)
    assert Recovering.recovered == ["work", "woken", "work", "woken", "work"]
    assert (await alarm_rows(host), await fiber_rows(host)) == ([], [])
    assert (timers(host), host.statistics().next_alarm_at) == ([], None)


@pytest.mark.invariant("A7")
async def test_a_fiber_that_runs_here_is_not_recovered_when_the_alarm_wakes_its_agent(
    sqlite_world: World,
) -> None:
    Recovering.recovered = []
    host = await sqlite_world.host(Recovering, shutdown_timeout=0)
    await host.get(Recovering, "x").begin()
    async with host.using(host.get(Recovering, "x")._address) as agent:
        await Alarmed.set(agent, "fibers", 100)  # type: ignore[arg-type]
    await asyncio.sleep(200)
    assert Recovering.recovered == ["woken"]
    assert len(await fiber_rows(host)) == 1
    assert host.statistics().held == 1
