"""Fibers and callbacks that kill their process: run after their neighbours and alone, and not for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
from interruptions import tell_nobody

from outlast import Agent, FiberContext, FiberRecovery, FiberRecoveryContext, Host
from outlast.agent.agent import parts_of
from outlast.agent.schedules import sql
from outlast.agent.schedules.schedules import Schedules
from outlast.agent.schedules.sql import ScheduleRow
from outlast.host.wakeups.boot_order import alone_for, delay_before
from outlast.store.operations import Query
from support import fiber_rows, forever, hosting, listen

pytestmark = pytest.mark.virtual_time


class Worker(Agent):
    """Does nothing but wait for the end of its process. `begun`: when, since the start of the process."""

    begun: ClassVar[list[tuple[str, float]]] = []
    fiber_recovery = FiberRecovery(max_attempts=6)

    def note(self, what: str) -> None:
        self.begun.append((what, asyncio.get_running_loop().time()))

    async def leave(self, *names: str) -> None:
        for name in names:
            await self.run_fiber(name, forever)._fiber.accepted

    async def leave_managed(self, id: str) -> None:
        await self.start_fiber(id, forever, id=id)

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
        self.note(f"{self.name} {fiber.name}")
        if fiber.name == "raises":
            raise OSError("a remote service is down")
        fiber.resume(self.work)

    async def work(self, fiber: FiberContext) -> None:
        if fiber.name == "steady":
            await fiber.stash(1)
        await forever()

    async def plan(self, name: str) -> None:
        await self.schedule(1, self.tick, name)

    async def plan_every(self, name: str) -> None:
        await self.schedule_every(60, self.tick, name)

    async def tick(self, name: str) -> None:
        self.note(f"{self.name} {name}")
        if name != "quick":
            await forever()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Worker.begun = []


@asynccontextmanager
async def life(url: str, number: int, *, is_killed: bool = True) -> AsyncIterator[Host]:
    """A process; `begun` then holds the seconds since its start."""
    Worker.begun.clear()
    started = asyncio.get_running_loop().time()
    async with hosting(Worker, url=url, life=str(number), shutdown_timeout=0) as host:
        if is_killed:
            tell_nobody(host)
        yield host
    Worker.begun[:] = [(what, round(at - started, 1)) for what, at in Worker.begun]


async def until_begun() -> None:
    while not Worker.begun:
        await asyncio.sleep(0.01)


async def schedule_rows(host: Host, columns: str) -> list[tuple[Any, ...]]:
    return await host.store.fetch(Query.same(f"SELECT {columns} FROM schedules ORDER BY id"))


# --- fibers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_managed", [False, True])
async def test_a_fiber_that_kills_its_process_waits_longer_each_time_and_is_dropped(
    store_url: str, is_managed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with life(store_url, 1) as host:
        worker = host.get(Worker, "a")
        await (worker.leave_managed("poison") if is_managed else worker.leave("poison"))
    waits = []
    for number in range(2, 8):
        async with life(store_url, number):
            await until_begun()
        waits.append([*Worker.begun])
    assert waits == [[("a poison", wait)] for wait in (0.0, 1.0, 2.0, 4.0, 5.0, 5.0)]
    async with life(store_url, 8) as host:
        skipped = listen(host, "fiber:recovery:skipped")
        await host.until_settled()
        [event] = skipped
        assert event.reason == "max_attempts_exceeded"
        why = "the process crashed 6 times after it was resumed"
        expected = [("poison", "error", why)] if is_managed else []
        assert await fiber_rows(host, "id, status, error") == expected
    assert Worker.begun == []
    assert "dropped the" in caplog.text


async def test_a_crash_while_a_fiber_waited_is_not_its_own(store_url: str) -> None:
    async with life(store_url, 1) as host:
        await host.get(Worker, "a").leave("poison")
    for number in (2, 3, 4):
        async with life(store_url, number):
            await until_begun()
    for number in range(5, 14):
        async with life(store_url, number):
            await asyncio.sleep(0.4)
        assert Worker.begun == []
    async with life(store_url, 14) as host:
        assert await fiber_rows(host, "crashes") == [(3,)]
        await until_begun()
        assert await fiber_rows(host, "crashes") == [(4,)]
    assert Worker.begun == [("a poison", 0.4)], "four seconds after it began last"


async def test_a_fiber_that_gets_on_is_never_suspected(store_url: str) -> None:
    async with life(store_url, 1) as host:
        await host.get(Worker, "a").leave("steady")
    for number in range(2, 20):
        async with life(store_url, number) as host:
            await asyncio.sleep(1)
            assert await fiber_rows(host, "crashes, stashes") == [(0, number - 1)]
        assert Worker.begun == [("a steady", 0.0)]


async def test_a_process_that_was_asked_to_stop_has_not_crashed(store_url: str) -> None:
    async with life(store_url, 1) as host:
        await host.get(Worker, "a").leave("long")
        await host.get(Worker, "a").plan("long tick")
        await asyncio.sleep(2)
    for number in range(2, 20):
        async with life(store_url, number, is_killed=False) as host:
            await asyncio.sleep(60)
            assert await fiber_rows(host, "crashes") in ([(1,)], [(0,)])  # or it waits for its turn
            assert await schedule_rows(host, "crashes") == [(2,)]
        assert ("a long tick", 0.0) in Worker.begun


async def test_a_hook_that_raises_is_no_crash(store_url: str) -> None:
    async with life(store_url, 1) as host:
        await host.get(Worker, "a").leave("raises")
    for number in range(2, 20):
        async with life(store_url, number) as host:
            await host.until_settled()
            assert await fiber_rows(host, "crashes") == [(0,)]
        await asyncio.sleep(400)
        assert Worker.begun == [("a raises", 0.0)]


async def test_neighbours_of_a_poisonous_fiber_go_on_at_once_and_are_kept(store_url: str) -> None:
    async with life(store_url, 1) as host:
        await host.get(Worker, "p").leave("poison")
        for name in ("a", "b", "c"):
            await host.get(Worker, name).leave("steady")
    for number in range(2, 9):
        async with life(store_url, number):
            await asyncio.sleep(6)
        times = dict(Worker.begun)
        assert all(times[f"{name} steady"] < 0.5 for name in ("a", "b", "c"))
    async with life(store_url, 9) as host:
        await asyncio.sleep(1)
        assert await fiber_rows(host, "agent, name") == [
            (f"Worker/{name}", "steady") for name in ("a", "b", "c")
        ]


async def test_two_suspects_are_never_seen_together(store_url: str) -> None:
    """One that needs long for a step is not blamed for another that kills at once."""
    async with life(store_url, 1) as host:
        for name in ("a", "b", "c"):
            await host.get(Worker, name).leave("slow")
    for number in (2, 3):
        async with life(store_url, number):
            await asyncio.sleep(30)
    times = sorted(at for _, at in Worker.begun)
    assert len(times) == 3
    assert all(later - earlier >= 2 for earlier, later in zip(times, times[1:], strict=False))


# --- schedules -----------------------------------------------------------------------------------


async def test_a_callback_that_kills_its_process_is_given_up_and_reported(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with life(store_url, 1) as host:
        await host.get(Worker, "a").plan("poison")
        await asyncio.sleep(2)
    waits = []
    for number in range(2, 12):
        async with life(store_url, number):
            await until_begun()
        waits += [at for _, at in Worker.begun]
    assert waits == [0, 1, 2, 4, 5, 5, 5, 5, 5, 5]
    with caplog.at_level(logging.ERROR, "outlast"):
        async with life(store_url, 12) as host:
            failed = listen(host, "schedule:error")
            await host.until_settled()
            [event] = failed
            assert event.error == "the process crashed 11 times during it"
            assert await schedule_rows(host, "id") == []
    assert Worker.begun == []
    assert "the process crashed 11 times" in caplog.text


async def test_the_next_occurrence_of_a_recurring_schedule_has_its_own_count(
    store_url: str,
) -> None:
    async with life(store_url, 1) as host:
        await host.get(Worker, "a").plan_every("poison")
        await asyncio.sleep(70)
    for number in range(2, 12):
        async with life(store_url, number):
            await asyncio.sleep(10)
    async with life(store_url, 12) as host:
        await asyncio.sleep(0.1)
        assert Worker.begun == []
        assert await schedule_rows(host, "crashes") == [(0,)]
        await asyncio.sleep(60)
        assert len(Worker.begun) == 1


async def test_a_crash_while_a_callback_waited_is_not_its_own(store_url: str) -> None:
    async with life(store_url, 1) as host:
        await host.get(Worker, "a").plan("poison")
        await asyncio.sleep(2)
    for number in (2, 3, 4):
        async with life(store_url, number):
            await until_begun()
    for number in range(5, 14):
        async with life(store_url, number, is_killed=number % 2 == 0):
            await asyncio.sleep(0.4)
        assert Worker.begun == []
    async with life(store_url, 14) as host:
        assert await schedule_rows(host, "crashes") == [(4,)]
        await until_begun()
        assert await schedule_rows(host, "crashes") == [(5,)]
    assert Worker.begun == [("a poison", 0.4)], "four seconds after it began last"


async def test_schedules_of_the_same_agent_do_not_wait_for_one_that_kills_its_process(
    store_url: str,
) -> None:
    async with life(store_url, 1) as host:
        await host.get(Worker, "a").plan("poison")
        await asyncio.sleep(2)
    for number in (2, 3, 4):
        async with life(store_url, number):
            await until_begun()
    async with life(store_url, 5) as host:
        await host.get(Worker, "a").plan("quick")
        await asyncio.sleep(2)
    assert Worker.begun == [("a quick", 1.0)]


async def test_a_callback_that_ended_while_the_rows_were_read_is_no_suspect(store_url: str) -> None:
    """What was read is older than what has happened since: the next occurrence is not held up."""
    async with life(store_url, 1) as host:
        await host.get(Worker, "a").plan_every("poison")
        await asyncio.sleep(70)
    async with life(store_url, 2, is_killed=False) as host:
        await until_begun()
        async with host.using(host.get(Worker, "a")._address) as agent:
            schedules = parts_of(agent)[Schedules]
            [stale] = [
                ScheduleRow(*values) for values in await host.store.fetch(sql.OF_AGENT, "Worker/a")
            ]
            assert (stale.crashes, stale.claimed_at is None) == (2, False)
            moved = stale.occurrence, stale.occurrence + 600_000, stale.occurrence + 600_000, 0
            await parts_of(agent).commits.commit([(sql.RELEASE, ("Worker/a", stale.id, *moved))])
            schedules._running.clear()
            reads = iter([[stale]])
            due = schedules._due

            async def stale_once() -> list[ScheduleRow]:
                return next(reads, None) or await due()

            schedules._due = stale_once
            await schedules.scan_soon()
            assert schedules._running == set()


# --- how long ------------------------------------------------------------------------------------


def test_waits_and_windows_grow_to_a_bound() -> None:
    assert [delay_before(crashes, 0) for crashes in (0, 1, 2, 3, 4, 5, 99)] == [0, 0, 1, 2, 4, 5, 5]
    assert [delay_before(4, elapsed) for elapsed in (500, 4000, 9000, -1)] == [3.5, 0, 0, 4]
    assert [alone_for(crashes) for crashes in (0, 2, 3, 4, 5, 6, 99)] == [2, 2, 4, 8, 16, 32, 32]


@pytest.mark.parametrize(("wrong", "error"), [(0, ValueError), (True, TypeError), (1.5, TypeError)])
def test_max_attempts_is_a_positive_number(wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="max_attempts must be"):
        FiberRecovery(max_attempts=wrong)
