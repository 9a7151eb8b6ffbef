"""A wall clock that is set, ahead or back, in one life or between two: nothing is lost, nothing doubled."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import pytest

from outlast import Agent, FiberContext, FiberRecovery, Host, Schedule
from outlast.agent.agent import parts_of
from outlast.core.clock import to_datetime
from outlast.core.errors import StoreUnavailable
from outlast.host.wakeups.clock_changes import TOLERANCE, ClockWatch
from outlast.store.operations import Query
from outlast.testing import VirtualClock
from outlast.testing.virtual import START
from support import World, alarm_rows, listen

pytestmark = pytest.mark.virtual_time

HOUR, DAY = 3_600_000, 86_400_000
NOTICED = 31  # seconds


class Diary(Agent):
    """Notes which occurrence of what was run when, by the loop's time."""

    calls: list[tuple[str, float, datetime]] = []
    is_broken = False

    async def on_start(self) -> None:
        if Diary.is_broken:
            raise OSError("not now")

    async def begin(self, *what: str) -> None:
        if "cron" in what:
            await self.schedule("0 * * * *", self.note, "cron")
        if "every" in what:
            await self.schedule_every(600, self.note, "every")
        if "once" in what:
            await self.schedule(600, self.note, "once")
        if "moment" in what:
            at = parts_of(self).activation.clock.now() + HOUR
            await self.schedule(to_datetime(at), self.note, "moment")

    async def note(self, what: str, schedule: Schedule) -> None:
        time = asyncio.get_running_loop().time()
        Diary.calls.append((what, time, schedule.time))

    async def fiber(self) -> None:
        self.run_fiber("fails", self.never, 0)

    async def never(self, fiber: FiberContext, n: int) -> None:
        await asyncio.get_running_loop().create_future()


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    Diary.calls, Diary.is_broken = [], False
    yield
    Diary.calls, Diary.is_broken = [], False


def new_clock() -> VirtualClock:
    """At a whole hour."""
    return VirtualClock(asyncio.get_running_loop(), START - START % HOUR)


def ran(what: str, since: float = 0) -> list[datetime]:
    """The occurrences of one schedule that were run, since a time of the loop."""
    return [occurrence for each, at, occurrence in Diary.calls if each == what and at >= since]


def each_once(what: str) -> bool:
    return len(set(ran(what))) == len(ran(what))


def set_by(clock: VirtualClock, milliseconds: int) -> float:
    clock.set(clock.now() + milliseconds)
    return asyncio.get_running_loop().time()


async def facts(host: Host) -> list[Any]:
    return await host.store.fetch(Query.same("SELECT name FROM facts"))


# --- while a host runs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stays", "idle_timeout"), [(60, 10**6), (2.4 * 3600, 1)], ids=["in memory", "evicted"]
)
async def test_ahead_and_back_again(world: World, stays: float, idle_timeout: float) -> None:
    clock = new_clock()
    host = await world.host(Diary, clock=clock, idle_timeout=idle_timeout)
    await host.get(Diary, "d").begin("cron", "every", "once")
    await asyncio.sleep(1.5 * 3600)
    set_by(clock, 6 * HOUR)
    await asyncio.sleep(stays)
    back = set_by(clock, -6 * HOUR)
    back_at = clock.now()
    await asyncio.sleep(2 * 3600)
    assert 11 <= len(ran("every", back)) <= 12
    assert len(ran("once")) == 1
    for schedule in await host.get(Diary, "d").get_schedules(kind="interval"):
        await host.get(Diary, "d").cancel_schedule(schedule.id)
    await asyncio.sleep(7 * 3600)  # past what was run ahead of its time
    assert each_once("cron")
    began = START - START % HOUR
    hours = {
        began + HOUR,
        began + 2 * HOUR,
        *range(back_at, clock.now())[-back_at % HOUR :: HOUR],
    }
    assert set(ran("cron")) == {to_datetime(at) for at in hours}, "the second came early"


async def test_back_by_hours_runs_nothing_again(world: World) -> None:
    clock = new_clock()
    host = await world.host(Diary, clock=clock)
    await host.get(Diary, "d").begin("cron", "every")
    await asyncio.sleep(5.5 * 3600)
    assert len(ran("cron")) == 5
    back = set_by(clock, -3 * HOUR)
    await asyncio.sleep(3 * 3600)
    assert ran("cron", back) == [], "the three hours that come again have run"
    assert 17 <= len(ran("every", back)) <= 18
    await asyncio.sleep(3600)
    assert len(ran("cron", back)) == 1
    assert await facts(host) == [], "there was no gap"


async def test_what_was_made_while_the_clock_was_ahead(world: World) -> None:
    clock = new_clock()
    right = clock.now()
    clock.set(right + 10 * DAY)
    host = await world.host(Diary, clock=clock)
    await host.get(Diary, "d").begin("cron", "every", "once", "moment")
    await asyncio.sleep(10)
    clock.set(right)
    await asyncio.sleep(2 * 3600)
    assert ran("cron") == [to_datetime(right + HOUR)]
    assert len(ran("once")) == 1
    assert 11 <= len(ran("every")) <= 12
    assert ran("moment") == [], "a moment is a moment"
    assert await facts(host) == [("schedule:schedule_1_2",)], "it was made in days to come"
    await host.get(Diary, "d").cancel_schedule("schedule_1_2")
    assert await facts(host) == []


async def test_a_step_little_by_little_counts(sqlite_url: str) -> None:
    loop, clock = asyncio.get_running_loop(), new_clock()
    watch = ClockWatch(clock, loop)
    assert not watch.went_back()
    for _ in range(3):
        set_by(clock, -(TOLERANCE // 4))
        assert not watch.went_back()
    set_by(clock, -(TOLERANCE // 4))
    assert watch.went_back()
    assert not watch.went_back(), "it is told once"
    set_by(clock, 5 * HOUR)
    assert not watch.went_back()
    await asyncio.sleep(100)
    assert not watch.went_back()
    set_by(clock, -5 * HOUR)
    assert watch.went_back()


async def test_a_fiber_that_waits_for_its_recovery(world: World) -> None:
    tries: list[float] = []

    class Stubborn(Diary):
        fiber_recovery = FiberRecovery(retry=400, retry_at_most=400)

        async def on_fiber_recovered(self, fiber: Any) -> None:
            tries.append(asyncio.get_running_loop().time())
            raise ValueError("again, please")

    clock = new_clock()
    host = await world.host(Stubborn, clock=clock, shutdown_timeout=0)
    await host.get(Stubborn, "d").fiber()
    host = await world.next_life(clock=clock)
    await host.until_settled()
    set_by(clock, 10 * DAY)
    await asyncio.sleep(500)
    assert len(tries) == 3
    back = set_by(clock, -10 * DAY)
    await asyncio.sleep(500)
    assert [at - back < NOTICED for at in tries[3:]] == [True, False]


async def test_an_alarm_that_failed_is_tried_again_after_a_while_all_the_same(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    clock = new_clock()
    host = await world.host(Diary, clock=clock, idle_timeout=1)
    await host.get(Diary, "d").begin("moment")
    await asyncio.sleep(3000)
    Diary.is_broken = True
    await asyncio.sleep(1000)
    assert ran("moment") == []
    Diary.is_broken = False
    set_by(clock, -HOUR // 6)
    await asyncio.sleep(300)
    assert ran("moment") != []


# --- between two lives ----------------------------------------------------------------------------


async def test_ahead_in_one_life_and_back_in_the_next(world: World) -> None:
    clock = new_clock()
    host = await world.host(Diary, clock=clock)
    await host.get(Diary, "d").begin("cron", "every", "once")
    await asyncio.sleep(1.5 * 3600)
    set_by(clock, 10 * DAY)
    await asyncio.sleep(2 * 3600)
    await world.stop()
    back = set_by(clock, -10 * DAY)
    host = await world.next_life(clock=clock)
    await asyncio.sleep(2 * 3600)
    assert len(ran("cron", back)) == 2
    assert 11 <= len(ran("every", back)) <= 12
    assert each_once("cron")
    await world.stop()
    back = set_by(clock, -5 * HOUR)
    host = await world.next_life(clock=clock)
    await asyncio.sleep(4.4 * 3600)
    assert each_once("cron"), "it comes to hours that have run in two lives"
    assert len(ran("cron", back)) == 1, "and to one that was passed over"
    await asyncio.sleep(2 * 3600)
    assert len(ran("cron", back)) == 2
    assert each_once("cron")


async def test_a_store_that_fails_meanwhile_is_asked_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    clock = new_clock()
    clock.set(clock.now() + 10 * DAY)
    host = await world.host(Diary, clock=clock)
    await host.get(Diary, "d").begin("cron")
    await world.stop()
    clock.set(clock.now() - 10 * DAY)
    host = await world.next_life(clock=clock)
    fetch, failures = host.store.fetch, iter(range(4))

    async def failing(query: Any, *arguments: Any) -> Any:
        if "GROUP BY cron" in query.sqlite and next(failures, None) is not None:
            raise StoreUnavailable("the network is down")
        return await fetch(query, *arguments)

    host.store.fetch = failing  # type: ignore[method-assign]
    await asyncio.sleep(3700)
    assert len(ran("cron")) == 1
    assert next(failures, None) is None
    await world.stop()
    assert (
        "cannot query agents whose alarms are too late, will retry: the network is down"
        in caplog.text
    )


async def test_an_agent_that_cannot_be_woken_is_woken_later(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    clock = new_clock()
    clock.set(clock.now() + 10 * DAY)
    host = await world.host(Diary, clock=clock)
    await host.get(Diary, "d").begin("cron")
    await host.get(Diary, "e").begin("cron")
    await world.stop()
    clock.set(clock.now() - 10 * DAY)
    Diary.is_broken = True
    host = await world.next_life(clock=clock)
    await asyncio.sleep(1)
    await host.until_settled()
    Diary.is_broken = False
    await asyncio.sleep(3700)
    assert len(ran("cron")) == 2
    await world.stop()
    assert "cannot correct the alarms of Diary/d" in caplog.text


async def test_where_nobody_oversleeps_a_boot_wakes_nobody(world: World) -> None:
    clock = new_clock()
    host = await world.host(Diary, clock=clock)
    await host.get(Diary, "d").begin("cron", "every", "once", "moment")
    await asyncio.sleep(100)
    before = await alarm_rows(host)
    host = await world.next_life(clock=clock)
    woken = listen(host, "lifecycle")
    await host.until_settled()
    assert woken == []
    assert await alarm_rows(host) == before
    assert host.store.statistics().batches == 0


# --- what is kept of it ---------------------------------------------------------------------------


async def test_a_schedule_that_is_cancelled_by_its_own_late_callback_leaves_nothing(
    world: World,
) -> None:
    class Ending(Diary):
        async def note(self, what: str, schedule: Schedule) -> None:
            await super().note(what, schedule)
            await asyncio.sleep(1.5 * 3600)  # the next one is passed over
            if len(Diary.calls) == 2:
                await self.cancel_schedule(schedule.id)

    host = await world.host(Ending, clock=new_clock())
    await host.get(Ending, "d").begin("cron")
    await asyncio.sleep(3 * 3600)
    assert await facts(host) == [("schedule:schedule_1_2",)]
    await asyncio.sleep(3 * 3600)
    assert len(ran("cron")) == 2
    assert await facts(host) == []
    assert await alarm_rows(host) == []
