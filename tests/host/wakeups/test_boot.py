"""Boot: a host wakes every agent with unfinished work, by itself, and touches nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any, ClassVar

import pytest

from outlast import Agent, Host
from outlast.core.errors import StoreUnavailable
from support import World, alarm_rows, fiber_rows, forever, hosting, listen, raw

pytestmark = pytest.mark.virtual_time


class Worker(Agent):
    """Leaves fibers behind, and notes who wakes up."""

    starting: ClassVar[int] = 0
    most_starting: ClassVar[int] = 0
    starts: ClassVar[list[str]] = []
    times: ClassVar[list[tuple[str, float]]] = []
    recovered: ClassVar[list[str]] = []
    broken: ClassVar[set[str]] = set()
    hung: ClassVar[set[str]] = set()

    async def on_start(self) -> None:
        Worker.starts.append(self.name)
        Worker.times.append((self.name, asyncio.get_running_loop().time()))
        Worker.starting += 1
        Worker.most_starting = max(Worker.most_starting, Worker.starting)
        try:
            if self.name in Worker.hung:
                await forever()
            await asyncio.sleep(1)
            if self.name in Worker.broken:
                raise ZeroDivisionError("not today")
        finally:
            Worker.starting -= 1

    async def begin(self) -> None:
        fiber = self.run_fiber("work", forever)
        await fiber._fiber.accepted

    async def on_fiber_recovered(self, fiber: Any) -> None:
        Worker.recovered.append(self.name)


class Stranger(Worker): ...


class Alien(Worker): ...


@pytest.fixture(autouse=True)
def _fresh() -> None:
    forget()
    Worker.broken, Worker.hung = set(), set()


def forget() -> None:
    Worker.starts, Worker.times, Worker.recovered = [], [], []
    Worker.most_starting = Worker.starting = 0


async def leave_behind(url: str, count: int, kind: type[Worker] = Worker) -> None:
    """A life in which `count` agents begin work that they do not end."""
    async with hosting(kind, url=url, life=kind.__name__, shutdown_timeout=0) as host:
        await asyncio.gather(*(host.get(kind, f"a{n:03}").begin() for n in range(count)))
    forget()


async def test_a_host_wakes_every_agent_with_unfinished_fibers_without_any_request(
    world: World,
) -> None:
    await leave_behind(world.url, 210)  # more than a page
    host = await world.host(Worker)
    await host.until_settled()
    assert sorted(Worker.recovered) == [f"a{n:03}" for n in range(210)]
    assert sorted(Worker.starts) == sorted(Worker.recovered)
    assert (await fiber_rows(host), host.statistics().booting) == ([], False)


@pytest.mark.parametrize("most", [1, 7])
async def test_no_more_than_boot_concurrency_agents_start_at_once(world: World, most: int) -> None:
    await leave_behind(world.url, 20)
    host = await world.host(Worker, boot_concurrency=most)
    assert host.statistics().booting is True
    await host.until_settled()
    assert Worker.most_starting == most
    assert len(Worker.recovered) == 20


async def test_an_agent_that_is_called_while_the_host_boots_starts_once(
    sqlite_world: World,
) -> None:
    await leave_behind(sqlite_world.url, 3)
    host = await sqlite_world.host(Worker)
    await asyncio.gather(*(host.get(Worker, "a001").begin() for _ in range(5)))
    await asyncio.sleep(10)
    assert Worker.starts.count("a001") == 1
    assert sorted(Worker.recovered) == ["a000", "a001", "a002"]
    await host.stop(0)


async def test_agents_of_unregistered_classes_are_left_alone_with_one_warning_and_keep_their_rows(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await leave_behind(world.url, 3, Stranger)
    await leave_behind(world.url, 2, Alien)
    await leave_behind(world.url, 2)
    caplog.clear()
    host = await world.host(Worker)
    await host.until_settled()
    assert sorted(Worker.recovered) == ["a000", "a001"]
    kept = await fiber_rows(host, "agent")
    assert [row[0].split("/")[0] for row in kept] == ["Stranger"] * 3 + ["Alien"] * 2
    await world.stop()
    warnings = [
        record.getMessage() for record in caplog.records if "does not run" in record.message
    ]
    assert len(warnings) == 2
    assert "Alien has unfinished work" in warnings[0]
    assert "Stranger has unfinished work" in warnings[1]
    forget()
    host = await world.next_life(Stranger, Alien)
    await host.until_settled()
    assert len(Worker.recovered) == 5


async def test_an_on_start_that_raises_at_boot_is_tried_again_later_and_later_and_stops_no_other(
    sqlite_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await leave_behind(sqlite_world.url, 5)
    Worker.broken = {"a001"}
    host = await sqlite_world.host(Worker)
    await host.until_settled()
    assert sorted(Worker.recovered) == ["a000", "a002", "a003", "a004"]
    assert "cannot wake Worker/a001" in caplog.text
    await asyncio.sleep(1500)
    tried = [at for name, at in Worker.times if name == "a001"]
    waits = [b - a - 1 for a, b in zip(tried, tried[1:], strict=False)]  # on_start takes 1 s
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert len(await fiber_rows(host)) == 1
    Worker.broken = set()
    await asyncio.sleep(310)
    assert Worker.recovered[-1] == "a001"
    assert await fiber_rows(host) == []


async def test_an_on_start_that_hangs_at_boot_holds_up_neither_other_agents_nor_alarms(
    sqlite_world: World,
) -> None:
    await leave_behind(sqlite_world.url, 5)
    with closing(raw(sqlite_world.url)) as db:
        db.execute("INSERT INTO alarms VALUES ('Worker/by-alarm', 'fibers', 1)")
    Worker.hung = {"a000"}
    host = await sqlite_world.host(Worker, shutdown_timeout=0)
    await asyncio.sleep(10)
    assert sorted(Worker.recovered) == ["a001", "a002", "a003", "a004"]
    assert "by-alarm" in Worker.starts
    assert host.statistics().booting is True


async def test_an_address_that_cannot_be_read_stops_no_other(
    sqlite_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await leave_behind(sqlite_world.url, 2)
    with closing(raw(sqlite_world.url)) as db:
        columns = "root_id, name, managed, status, created_at, tries, waits, stashes"
        for broken in ["Worker", "Worker/%FF", "A/a%00b"]:
            db.execute(
                f"INSERT INTO fibers (agent, id, {columns}) VALUES (?, 'f', 'f', 'w', 0, '', 0, 0, 0, 0)",
                (broken,),
            )
    host = await sqlite_world.host(Worker)
    await host.until_settled()
    assert sorted(Worker.recovered) == ["a000", "a001"]
    assert len(await fiber_rows(host)) == 3
    await sqlite_world.stop()
    assert caplog.text.count("ignoring unfinished work") == 3


async def test_a_store_that_cannot_be_read_at_boot_is_asked_again(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await leave_behind(sqlite_url, 3)
    host: Host
    async with unreadable_for(3, hosting(Worker, url=sqlite_url, life="2")) as host:
        await asyncio.sleep(60)
        assert sorted(Worker.recovered) == ["a000", "a001", "a002"]
        assert host.statistics().booting is False
    assert caplog.text.count("cannot query unfinished work") == 3


@asynccontextmanager
async def unreadable_for(times: int, life: Any) -> AsyncIterator[Host]:
    """The host, whose first reads from the store fail: it has only just been started."""
    async with life as host:
        fetch, failures = host.store.fetch, iter(range(times))

        async def failing(*query: Any) -> Any:
            if next(failures, None) is not None:
                raise StoreUnavailable("the network is down")
            return await fetch(*query)

        host.store.fetch = failing
        yield host


@pytest.mark.invariant("A15")
async def test_a_cold_boot_with_nothing_to_do_activates_nothing_arms_nothing_and_writes_nothing(
    world: World,
) -> None:
    host = await world.host(Worker)
    await host.get(Worker, "idle").begin()
    await host.stop(0)
    host = await world.next_life()
    await host.until_settled()  # recovers, and has nothing to do from then on
    await world.stop()
    forget()
    host = await world.next_life()
    happened = listen(host, "*")
    await host.until_settled()
    await asyncio.sleep(86_400)
    statistics = host.statistics()
    assert (statistics.active, statistics.held, statistics.next_alarm_at) == (0, 0, None)
    assert (Worker.starts, happened) == ([], [])
    assert (await alarm_rows(host), host.store.statistics().commits) == ([], 0)


@pytest.mark.invariant("A15")
async def test_an_agent_activated_with_nothing_to_do_is_not_held_and_writes_nothing(
    world: World,
) -> None:
    host = await world.host(Worker)
    async with host.using(host.get(Worker, "new")._address):
        assert host.statistics().held == 1  # by this block
    assert (host.statistics().active, host.statistics().held) == (1, 0)
    await host.until_settled()
    assert (await alarm_rows(host), host.store.statistics().commits) == ([], 0)
    assert host.statistics().next_alarm_at is None
