"""Fibers, schedules and alarms of a battery: they are its own, and the agent's hooks never see them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outlast import Agent, FiberContext, FiberRecovery, FiberRecoveryContext
from outlast.agent.agent import parts_of
from outlast.agent.battery import Battery, BatteryPart
from outlast.agent.events import FiberRecoveryFailed
from outlast.host.wakeups.alarms import alarm
from outlast.testing import crash_sweep
from support import alarm_rows, fiber_rows, forever, hosting, listen

SAID: list[str] = []


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    SAID.clear()


class ClockPart(BatteryPart):
    async def fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
        SAID.append(f"{self.own_name(fiber.name)} recovered")
        fiber.resume(self.tick)

    async def tick(self, fiber: FiberContext, n: int) -> None:
        while n < 3:
            n += 1
            async with self.commits.block():
                await self.parts.agent.storage.put(f"tick {n}", self.parts.agent.name)
                await fiber.stash(n)

    async def ring(self, payload: Any) -> None:
        SAID.append(f"ring {payload}")

    async def wake(self, source: str) -> None:
        SAID.append(f"woken by {source}")
        await self.commits.write([alarm(self.address, source, None)])


class HasClock(Agent):
    battery = Battery(name="clock", part=ClockPart)

    @property
    def clock(self) -> ClockPart:
        return parts_of(self)[ClockPart]

    async def begin(self, *, hangs: bool = False) -> None:
        self.clock.run_fiber("tick", forever if hangs else self.clock.tick, 0)
        await self.storage.put("begun", True)  # so the fiber is stored

    async def ring_in(self, seconds: float, payload: Any) -> str:
        return (await self.clock.schedule(seconds, self.clock.ring, payload)).callback

    async def set_alarm(self, source: str, milliseconds: int) -> None:
        part = self.clock
        at = part.activation.clock.now() + milliseconds
        await part.commits.write([alarm(part.address, source, at)])
        part.activation.alarm_was_set(at)

    async def ticks(self) -> list[str]:
        return sorted(await self.storage.list("tick "))


class Watch(HasClock):
    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
        SAID.append(f"the agent saw {fiber.name}")

    async def ring(self, payload: Any) -> None:
        SAID.append("the agent rang")

    async def own_fiber(self) -> None:
        self.run_fiber("tick", forever)
        await self.storage.put("begun", True)


class Stopped(Agent):
    """`Watch`, when its code has no battery any more."""

    fiber_recovery = FiberRecovery(retry=60, max_age=3600)

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
        SAID.append(f"the agent saw {fiber.name}")


Stopped.__name__ = "Watch"


async def test_a_fiber_is_stored_under_the_name_of_its_battery(store_url: str) -> None:
    async with hosting(Watch, url=store_url) as host:
        await host.get(Watch, "w").begin(hangs=True)
        await host.get(Watch, "w").own_fiber()
        assert sorted(await fiber_rows(host, "name")) == [("battery:clock:tick",), ("tick",)]
        await host.stop(0)


async def test_the_part_recovers_its_fibers_and_the_agent_its_own(store_url: str) -> None:
    async with hosting(Watch, url=store_url) as host:
        await host.get(Watch, "w").begin(hangs=True)
        await host.get(Watch, "w").own_fiber()
        await host.stop(0)
    async with hosting(Watch, url=store_url, life="2") as host:
        await host.until_settled()
        assert sorted(SAID) == ["the agent saw tick", "tick recovered"]
        assert await host.get(Watch, "w").ticks() == ["tick 1", "tick 2", "tick 3"]
        assert await fiber_rows(host) == []


@pytest.mark.virtual_time
async def test_the_agent_never_sees_a_fiber_of_a_battery_that_is_gone(store_url: str) -> None:
    async with hosting(Watch, url=store_url) as host:
        await host.get(Watch, "w").begin(hangs=True)
        await host.stop(0)
    async with hosting(Stopped, url=store_url, life="2") as host:
        failed = listen(host, FiberRecoveryFailed)
        await asyncio.sleep(600)
        assert len(failed) > 1, "it is tried again: the battery may come back"
        assert "belongs to the battery 'clock', which Watch does not use" in failed[0].error  # type: ignore[attr-defined]
        assert await fiber_rows(host, "name") == [("battery:clock:tick",)]
    async with hosting(Watch, url=store_url, life="3") as host:
        await host.get(Watch, "w").ticks()
        await asyncio.sleep(600)
        assert await host.get(Watch, "w").ticks() == ["tick 1", "tick 2", "tick 3"]
    assert SAID == ["tick recovered"]


@pytest.mark.virtual_time
async def test_it_is_dropped_in_the_end(sqlite_url: str) -> None:
    async with hosting(Watch, url=sqlite_url) as host:
        await host.get(Watch, "w").begin(hangs=True)
        await host.stop(0)
    async with hosting(Stopped, url=sqlite_url, life="2") as host:
        await asyncio.sleep(2 * 3600)
        assert (await fiber_rows(host), SAID) == ([], [])


@pytest.mark.virtual_time
async def test_a_schedule_calls_a_method_of_the_part(store_url: str) -> None:
    async with hosting(Watch, url=store_url) as host:
        assert await host.get(Watch, "w").ring_in(60, "a") == "battery:clock:ring"
    async with hosting(Watch, url=store_url, life="2"):
        await asyncio.sleep(120)
        assert SAID == ["ring a"]


@pytest.mark.virtual_time
async def test_a_schedule_of_a_battery_that_is_gone_waits_for_it(store_url: str) -> None:
    async with hosting(Watch, url=store_url) as host:
        await host.get(Watch, "w").ring_in(60, "a")
    async with hosting(Stopped, url=store_url, life="2"):
        await asyncio.sleep(300)
        assert SAID == []
    async with hosting(Watch, url=store_url, life="3"):
        await asyncio.sleep(24 * 3600)
        assert SAID == ["ring a"]


@pytest.mark.virtual_time
async def test_only_methods_of_its_own_part_can_be_scheduled(sqlite_url: str) -> None:
    class Stranger(ClockPart): ...

    class Confused(HasClock):
        async def confuse(self) -> None:
            stranger = Stranger(parts_of(self))
            with pytest.raises(TypeError, match="a method of Confused"):
                await self.clock.schedule(1, stranger.ring)

    async with hosting(Confused, url=sqlite_url) as host:
        await host.get(Confused, "c").confuse()


@pytest.mark.virtual_time
async def test_its_alarms_wake_it_also_in_another_process(store_url: str) -> None:
    async with hosting(Watch, url=store_url) as host:
        await host.get(Watch, "w").set_alarm("clock:soon", 60_000)
        await host.get(Watch, "w").set_alarm("clock", 120_000)
    async with hosting(Watch, url=store_url, life="2") as host:
        await asyncio.sleep(300)
        assert SAID == ["woken by clock:soon", "woken by clock"]
        assert await alarm_rows(host) == []


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
async def test_a_fiber_of_a_battery_survives_every_crash(
    engine: str, request: pytest.FixtureRequest
) -> None:
    async def drive(host: Any) -> None:
        await host.get(Watch, "w").begin()
        await host.until_settled()

    async def check(outcome: Any) -> None:
        assert await outcome.host.get(Watch, "w").ticks() == ["tick 1", "tick 2", "tick 3"]
        assert not [each for each in SAID if each.startswith("the agent")]

    store = request.getfixturevalue("postgres") if engine == "postgresql" else None
    report = await crash_sweep(agents=[Watch], drive=drive, check=check, store=store)
    assert report.deaths == 2 * report.commits
