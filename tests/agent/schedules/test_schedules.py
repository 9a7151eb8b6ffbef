"""Schedules: once per occurrence, whatever dies."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from outlast import Agent, CommitFailed, Host, Retry, Schedule
from outlast.store.operations import Query
from outlast.testing import VirtualClock
from support import World, alarm_rows, listen, raw

pytestmark = pytest.mark.virtual_time


class Clock(Agent):
    """Notes when it was called with what."""

    calls: list[tuple[float, Any]] = []
    behave: Any = None

    async def tick(self, payload: Any) -> None:
        type(self).calls.append((asyncio.get_running_loop().time(), payload))
        if type(self).behave is not None:
            await type(self).behave(self, payload)

    async def tock(self, payload: Any, schedule: Schedule) -> None:
        type(self).calls.append((asyncio.get_running_loop().time(), (payload, schedule.callback)))

    async def silent(self) -> None:
        type(self).calls.append((asyncio.get_running_loop().time(), "silent"))

    def plain(self, payload: Any) -> None:
        type(self).calls.append((asyncio.get_running_loop().time(), payload))

    async def do(self, function: Any) -> Any:
        return await function(self)


@pytest.fixture(autouse=True)
def _forget() -> Any:
    Clock.calls, Clock.behave = [], None
    yield
    Clock.calls, Clock.behave = [], None


async def schedule_rows(host: Host) -> list[tuple[Any, ...]]:
    return await host.store.fetch(
        Query.same("SELECT callback, kind, claimed_at FROM schedules ORDER BY run_at, id")
    )


async def test_a_delay_and_a_moment_are_called_once_at_their_time(world: World) -> None:
    host = await world.host(Clock)
    agent = host.get(Clock, "c")
    now = host.clock.now()
    await agent.schedule(5, "tick", "seconds")
    await agent.schedule(timedelta(minutes=2), "tick", "timedelta")
    at = datetime.fromtimestamp(now / 1000 + 60, UTC)
    shown = await agent.schedule(at, "tock", {"a": 1})
    assert (shown.kind, shown.time, shown.payload) == ("scheduled", at, {"a": 1})
    await agent.schedule(10, "silent")
    await agent.schedule(20, "plain", [1])
    assert len(await agent.get_schedules()) == 5
    await asyncio.sleep(1000)
    assert Clock.calls == [
        (5, "seconds"),
        (10, "silent"),
        (20, [1]),
        (60, ({"a": 1}, "tock")),
        (120, "timedelta"),
    ]
    assert await agent.get_schedules() == []
    assert await alarm_rows(host) == []


async def test_an_evicted_agent_and_a_new_host_are_woken(world: World) -> None:
    host = await world.host(Clock, idle_timeout=1)
    await host.get(Clock, "c").schedule(100, "tick", 1)
    await host.get(Clock, "c").schedule(3600, "tick", 2)
    await asyncio.sleep(50)
    assert host.statistics().active == 0
    await asyncio.sleep(60)
    assert Clock.calls == [(100, 1)]
    await world.stop()
    await asyncio.sleep(7200)
    host = await world.next_life()
    await asyncio.sleep(1)
    await host.until_settled()
    assert [payload for _, payload in Clock.calls] == [1, 2], "overdue work is done at boot"


async def test_cron_goes_on_and_late_ones_run_once(world: World) -> None:
    host = await world.host(Clock)
    await host.get(Clock, "c").schedule("0 * * * *", "tick", "hourly")
    await asyncio.sleep(3 * 3600)
    await world.stop()
    assert len(Clock.calls) == 3
    await asyncio.sleep(10 * 3600)
    host = await world.next_life()
    await asyncio.sleep(60)
    assert len(Clock.calls) == 4, "the intended occurrence once, not ten times"
    await asyncio.sleep(2 * 3600)
    assert len(Clock.calls) == 6


async def test_an_interval_counts_from_the_end_and_never_overlaps(sqlite_world: World) -> None:
    async def slow(agent: Agent, payload: Any) -> None:
        await asyncio.sleep(25)

    Clock.behave = slow
    host = await sqlite_world.host(Clock)
    await host.get(Clock, "c").schedule_every(10, "tick", 1)
    await asyncio.sleep(120)
    assert [at for at, _ in Clock.calls] == [10, 45, 80, 115]


async def test_the_same_cron_twice_is_one_and_a_delay_twice_is_two(world: World) -> None:
    host = await world.host(Clock)
    agent = host.get(Clock, "c")
    first, *others = await asyncio.gather(
        *(agent.schedule("0 * * * *", "tick", {"a": 1}) for _ in range(5))
    )
    assert {other.id for other in others} == {first.id}
    assert (await agent.schedule("0 * * * *", "tick", {"a": 2})).id != first.id
    assert (await agent.schedule("0 * * * *", "tock", {"a": 1})).id != first.id
    assert (await agent.schedule("5 * * * *", "tick", {"a": 1})).id != first.id
    again = await agent.schedule("0 * * * *", "tick", {"a": 1}, timezone="Europe/London")
    assert again.id != first.id
    assert len(await agent.get_schedules()) == 5
    one = await agent.schedule(10, "tick")
    assert (await agent.schedule(10, "tick")).id != one.id
    kept = await agent.schedule(10, "tick", "x", idempotent=True)
    assert (await agent.schedule(20, "tick", "x", idempotent=True)).id == kept.id


@pytest.mark.invariant("B3")
async def test_a_one_shot_can_schedule_itself_anew_from_inside(world: World) -> None:
    async def again(agent: Any, payload: int) -> None:
        if len(Clock.calls) < 3:
            await agent.schedule(10, agent.tick, payload, idempotent=True)

    Clock.behave = again
    host = await world.host(Clock)
    await host.get(Clock, "c").schedule(10, "tick", 7, idempotent=True)
    await asyncio.sleep(100)
    assert Clock.calls == [(10, 7), (20, 7), (30, 7)]


@pytest.mark.invariant("B4")
async def test_a_bad_payload_or_a_missing_callback_holds_up_nobody(
    sqlite_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    host = await sqlite_world.host(Clock)
    agent = host.get(Clock, "c")
    for payload in ("first", "poison", "lost", "last"):
        await agent.schedule(10, "tick", payload)
    await sqlite_world.stop()
    db = raw(sqlite_world.url)
    db.execute("UPDATE schedules SET payload = '{' WHERE payload = '\"poison\"'")
    db.execute("UPDATE schedules SET callback = 'renamed' WHERE payload = '\"lost\"'")
    db.close()
    host = await sqlite_world.next_life()
    errors = listen(host, "schedule")
    await asyncio.sleep(20)
    assert sorted(payload for _, payload in Clock.calls) == ["first", "last"]
    reported = [event.payload["error"] for event in errors if event.name == "schedule:error"]
    assert len(reported) == 2
    assert "Clock has no method 'renamed'" in reported[0] + reported[1]
    assert "cannot read its payload" in reported[0] + reported[1]
    assert await schedule_rows(host) == [("renamed", "delayed", None)], "kept for a while"
    await asyncio.sleep(26 * 3600)
    assert await schedule_rows(host) == []
    assert await alarm_rows(host) == []


async def test_a_failing_callback_is_retried_then_reported_and_the_row_is_gone(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(agent: Agent, payload: Any) -> None:
        raise ValueError("no")

    Clock.behave = fail
    host = await world.host(Clock)
    events = listen(host, "schedule")
    await host.get(Clock, "c").schedule(
        10, "tick", retry=Retry(max_attempts=4, base_delay=1, max_delay=5)
    )
    await asyncio.sleep(100)
    assert len(Clock.calls) == 4
    assert Clock.calls[-1][0] < 10 + 2 + 4 + 5
    assert [event.name for event in events] == [
        "schedule:create",
        *["schedule:execute", "schedule:retry"] * 3,
        "schedule:execute",
        "schedule:error",
    ]
    assert events[-1].payload["error"] == "ValueError: no"
    assert await schedule_rows(host) == []


@pytest.mark.invariant("B1")
async def test_trouble_of_the_store_never_consumes_a_one_shot(sqlite_world: World) -> None:
    async def troubled(agent: Agent, payload: Any) -> None:
        if len(Clock.calls) < 8:
            raise CommitFailed("the store is away")

    Clock.behave = troubled
    host = await sqlite_world.host(Clock)
    await host.get(Clock, "c").schedule(10, "tick", 1)
    await asyncio.sleep(1000)
    assert len(Clock.calls) == 8, "three tries, three after 30 s, two after another 60 s"
    assert await schedule_rows(host) == []


async def test_due_callbacks_run_side_by_side_up_to_a_limit(sqlite_world: World) -> None:
    running: list[int] = []
    most: list[int] = []

    async def slow(agent: Agent, payload: int) -> None:
        running.append(payload)
        most.append(len(running))
        await asyncio.sleep(10)
        running.remove(payload)

    Clock.behave = slow
    host = await sqlite_world.host(Clock)
    events = listen(host, "schedule")
    for number in range(25):
        await host.get(Clock, "c").schedule(5, "tick", number)
    await asyncio.sleep(100)
    assert max(most) == 10
    assert sorted(payload for _, payload in Clock.calls) == list(range(25))
    warned = [event for event in events if event.name == "schedule:duplicate_warning"]
    assert warned[0].payload["count"] == 25


async def test_cancel_and_look(world: World) -> None:
    host = await world.host(Clock)
    agent = host.get(Clock, "c")
    one = await agent.schedule(10, "tick", 1)
    every = await agent.schedule_every(60, "tick", 2)
    assert [each.id for each in await agent.get_schedules(kind="interval")] == [every.id]
    assert await agent.get_schedules(callback="tock") == []
    assert await agent.get_schedule(one.id) == one
    assert every.interval == timedelta(seconds=60)
    assert await agent.cancel_schedule(one.id)
    assert not await agent.cancel_schedule(one.id)
    assert not await host.get(Clock, "other").cancel_schedule(every.id), "own ones only"
    assert await agent.cancel_schedule(every.id)
    assert await alarm_rows(host) == []
    await asyncio.sleep(100)
    assert Clock.calls == []


async def test_schedules_are_found_by_their_method_or_its_name(world: World) -> None:
    host = await world.host(Clock)
    agent = host.get(Clock, "c")
    one = await agent.schedule(10, "tick", 1)
    await agent.schedule(10, "tock", 2)

    async def by_method(agent: Any) -> Any:
        return await agent.get_schedules(callback=agent.tick)

    assert await agent.do(by_method) == [one]
    assert await agent.get_schedules(callback=Clock.tick) == [one]
    assert await agent.get_schedules(callback="tick", kind="cron") == []
    assert await agent.get_schedules(callback="renamed") == [], "it may be gone by now"
    for stranger in (print, 5):
        with pytest.raises(TypeError, match="callback must be a method of Clock"):
            await agent.get_schedules(callback=stranger)  # type: ignore[arg-type]


async def test_cancelling_an_interval_while_it_runs_ends_it(sqlite_world: World) -> None:
    async def cancel(agent: Any, payload: Any) -> None:
        (schedule,) = await agent.get_schedules()
        assert await agent.cancel_schedule(schedule.id)

    Clock.behave = cancel
    host = await sqlite_world.host(Clock)
    await host.get(Clock, "c").schedule_every(10, "tick")
    await asyncio.sleep(100)
    assert len(Clock.calls) == 1
    assert await schedule_rows(host) == []


async def test_schedules_join_a_commit_block(world: World) -> None:
    host = await world.host(Clock)
    agent = host.get(Clock, "c")

    async def block(agent: Any) -> None:
        with pytest.raises(ValueError):
            async with agent.commit():
                await agent.schedule(10, agent.tick, "never")
                raise ValueError
        async with agent.commit():
            await agent.storage.put("a", 1)
            await agent.schedule(20, agent.tick, "both")

    await agent.do(block)
    await asyncio.sleep(60)
    assert Clock.calls == [(20, "both")]


@pytest.mark.parametrize("callback", ["nothing", "_commits", lambda payload: None, print, 5])
async def test_what_is_not_a_method_is_refused(sqlite_world: World, callback: Any) -> None:
    host = await sqlite_world.host(Clock)
    with pytest.raises(TypeError, match="callback must be a method of Clock"):
        await host.get(Clock, "c").schedule(5, callback)
    with pytest.raises(TypeError, match="payload is a set"):
        await host.get(Clock, "c").schedule(5, "tick", {1})
    with pytest.raises(TypeError, match="retry must be a Retry"):
        await host.get(Clock, "c").schedule(5, "tick", retry=3)  # type: ignore[arg-type]
    assert host.store.statistics().batches == 0


async def test_a_clock_that_jumps_loses_nothing_and_doubles_nothing(sqlite_world: World) -> None:
    loop = asyncio.get_running_loop()
    clock = VirtualClock(loop)
    hour = 3_600_000
    host = await sqlite_world.host(Clock, clock=clock)
    agent = host.get(Clock, "c")
    await agent.schedule("0 * * * *", "tick", "hourly")
    await agent.schedule(7200, "silent")
    await asyncio.sleep(3600)
    assert [payload for _, payload in Clock.calls] == ["hourly"]
    clock.set(clock.now() - hour)  # back: the hour that has run comes again
    await asyncio.sleep(3600)
    assert [payload for _, payload in Clock.calls] == ["hourly"], "not doubled"
    clock.set(clock.now() + 5 * hour)  # ahead
    await asyncio.sleep(60)
    assert sorted(payload for _, payload in Clock.calls) == ["hourly", "hourly", "silent"]
    await asyncio.sleep(3600)
    assert len(Clock.calls) == 4


async def test_a_running_callback_at_a_stop_is_run_again_by_the_next_host(world: World) -> None:
    async def forever(agent: Agent, payload: Any) -> None:
        await asyncio.sleep(10**6)

    Clock.behave = forever
    host = await world.host(Clock, shutdown_timeout=0)
    await host.get(Clock, "c").schedule(10, "tick", "again")
    await asyncio.sleep(20)
    assert len(await schedule_rows(host)) == 1
    assert await alarm_rows(host) == [], "what is claimed is found at boot, not by its alarm"
    await world.stop()
    Clock.behave = None
    host = await world.next_life()
    await host.until_settled()
    assert await schedule_rows(host) == []
    await world.stop()
    assert [payload for _, payload in Clock.calls] == ["again", "again"]
