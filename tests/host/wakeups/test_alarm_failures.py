"""Alarms that go wrong: later and later, without spinning, and without holding up the others."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any

import pytest
from alarmed import Alarmed, forget, timers, times

from outlast import HostStopped
from outlast.core.errors import StoreUnavailable
from outlast.host.wakeups import alarms
from outlast.testing.virtual import START
from support import World, alarm_rows, forever, raw

pytestmark = pytest.mark.virtual_time


@pytest.fixture(autouse=True)
def _fresh() -> None:
    forget()


def waits(source: str) -> list[float]:
    """How long it took from each firing to the next."""
    seconds = times(source)
    return [round(later - earlier) for earlier, later in zip(seconds, seconds[1:], strict=False)]


async def raising(agent: Alarmed, source: str) -> None:
    raise ZeroDivisionError("boiled over")


async def cancelled(agent: Alarmed, source: str) -> None:
    """What the handler waits for is cancelled, as the work of a discarded agent is."""
    work = asyncio.create_task(forever())
    work.cancel()
    await work


async def leaving_it(agent: Alarmed, source: str) -> None:
    """Return as if all were well, and leave the row as it is."""


async def clearing(agent: Alarmed, source: str) -> None:
    await agent.set(source, None)


@pytest.mark.parametrize("handler", [raising, cancelled, leaving_it])
async def test_a_failing_handler_is_called_again_after_doubling_waits_of_at_most_five_minutes(
    sqlite_world: World, handler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    Alarmed.handlers["tea"] = handler
    host = await sqlite_world.host(Alarmed)
    await host.get(Alarmed, "alice").set("tea", 10)
    await asyncio.sleep(1510)
    assert waits("tea") == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert await alarm_rows(host) == [("Alarmed/alice", "tea", START + 10_000)]
    assert "alarm 'tea' of Alarmed/alice failed" in caplog.text
    assert len(timers(host)) == 1


@pytest.mark.parametrize("handler", [raising, cancelled, leaving_it])
async def test_after_a_success_the_waits_are_short_again(sqlite_world: World, handler: Any) -> None:
    Alarmed.handlers["tea"] = handler
    host = await sqlite_world.host(Alarmed)
    alice = host.get(Alarmed, "alice")
    await alice.set("tea", 10)
    await asyncio.sleep(30)
    Alarmed.handlers["tea"] = clearing
    await asyncio.sleep(100)
    assert await alarm_rows(host) == []
    Alarmed.woken, Alarmed.handlers["tea"] = [], handler
    await alice.set("tea", 200)
    await asyncio.sleep(90)
    assert waits("tea")[:3] == [1, 2, 4]


async def test_a_failing_handler_holds_up_no_other_alarm(sqlite_world: World) -> None:
    Alarmed.handlers = {"raises": raising, "stays": leaving_it}
    host = await sqlite_world.host(Alarmed)
    for n in range(20):
        await host.get(Alarmed, f"raises {n}").set("raises", 1)
        await host.get(Alarmed, f"stays {n}").set("stays", 1)
    await host.get(Alarmed, "fine").set("fine", 2)
    await host.get(Alarmed, "later").set("later", 1000)
    await asyncio.sleep(2000)
    assert (times("fine"), times("later")) == ([2.0], [1000.0])


async def test_a_handler_that_hangs_holds_up_no_other_alarm_and_is_not_called_twice(
    sqlite_world: World,
) -> None:
    async def hang(agent: Alarmed, source: str) -> None:
        await forever()

    Alarmed.handlers["hangs"] = hang
    host = await sqlite_world.host(Alarmed, shutdown_timeout=0)
    await host.get(Alarmed, "alice").set("hangs", 1)
    await host.get(Alarmed, "alice").set("fine", 2)
    await asyncio.sleep(1000)
    assert (times("hangs"), times("fine")) == ([1.0], [2.0])


async def test_more_broken_alarms_than_are_read_at_once_do_not_hide_the_others(
    sqlite_world: World,
) -> None:
    with_room = alarms.MOST_AT_ONCE * 2 + 50
    host = await sqlite_world.host(Alarmed)
    await host.get(Alarmed, "alice").set("fine", 50)
    with closing(raw(sqlite_world.url)) as db:
        rows = [("Gone/x", f"s{n}", START) for n in range(with_room)]
        db.executemany("INSERT INTO alarms VALUES (?, ?, ?)", rows)
    await asyncio.sleep(100)
    assert times("fine") == [50.0]


async def test_alarms_of_unknown_agents_are_kept_and_hold_up_no_other(
    sqlite_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    host = await sqlite_world.host(Alarmed)
    await host.get(Alarmed, "alice").set("fine", 10)
    with closing(raw(sqlite_world.url)) as db:
        strange = [("Gone/x", "tea", START), ("no address", "tea", START)]
        db.executemany("INSERT INTO alarms VALUES (?, ?, ?)", strange)
    await asyncio.sleep(20)
    assert times("fine") == [10.0]
    assert [row[0] for row in await alarm_rows(host)] == ["Gone/x", "no address"]
    await sqlite_world.stop()
    assert "does not run the agent class 'Gone'" in caplog.text
    assert "an address must look like Class/name, got 'no address'" in caplog.text


async def test_a_source_that_no_part_of_the_agent_has_is_an_error_that_names_it(
    sqlite_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Plain(Alarmed):
        async def _wake(self, source: str) -> None:
            await super(Alarmed, self)._wake(source)

    host = await sqlite_world.host(Plain)
    await host.get(Plain, "x").set("tea", 1)
    await asyncio.sleep(2)
    assert "no part of Plain has an alarm 'tea'" in caplog.text
    assert len(await alarm_rows(host)) == 1


async def test_a_store_that_cannot_be_read_for_a_while_costs_no_alarm(
    sqlite_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    host = await sqlite_world.host(Alarmed)
    await host.until_settled()
    await host.get(Alarmed, "alice").set("tea", 10)
    fetch, failures = host.store.fetch, iter(range(5))

    async def failing(query: Any, *arguments: Any) -> Any:
        if query is alarms._EARLIEST and next(failures, None) is not None:
            raise StoreUnavailable("the network is down")
        return await fetch(query, *arguments)

    host.store.fetch = failing  # type: ignore[method-assign]
    await asyncio.sleep(30)
    assert times("tea") == [15.0]
    assert caplog.text.count("cannot read alarms") == 5


class Gate:
    """Holds the rows of alarms back after they were read, as a slow network would."""

    def __init__(self, host: Any) -> None:
        self.read = asyncio.Event()
        self.passes = asyncio.Event()
        self._fetch = host.store.fetch
        self._is_first = True
        host.store.fetch = self.fetch

    async def fetch(self, query: Any, *arguments: Any) -> Any:
        rows = await self._fetch(query, *arguments)
        if query is alarms._EARLIEST and self._is_first:
            self._is_first = False
            self.read.set()
            await self.passes.wait()
        return rows


async def test_an_alarm_set_while_the_rows_are_being_read_is_not_missed(
    sqlite_world: World,
) -> None:
    host = await sqlite_world.host(Alarmed)
    gate = Gate(host)
    await gate.read.wait()  # the host boots: rows that do not have the alarm are on their way
    await host.get(Alarmed, "alice").set("tea", 20)
    gate.passes.set()
    await asyncio.sleep(100)
    assert times("tea") == [20.0]


async def test_a_handler_that_ends_while_the_rows_are_being_read_has_not_failed(
    sqlite_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    slow = asyncio.Event()

    async def wait(agent: Alarmed, source: str) -> None:
        await slow.wait()
        await agent.set(source, 30)

    Alarmed.handlers["slow"] = wait
    host = await sqlite_world.host(Alarmed)
    await host.get(Alarmed, "alice").set("slow", 10)
    await host.get(Alarmed, "bob").set("quick", 20)
    await asyncio.sleep(15)
    gate = Gate(host)
    await gate.read.wait()  # at 20 s; the rows still have the alarm of alice as it was
    slow.set()
    await asyncio.sleep(1)
    assert (await alarm_rows(host))[-1][2] == START + 30_000
    Alarmed.handlers.clear()
    gate.passes.set()
    await asyncio.sleep(100)
    assert (times("slow"), times("quick")) == ([10.0, 30.0], [21.0])
    assert "failed" not in caplog.text


async def test_a_stopping_host_fires_nothing_more_and_leaves_the_alarms_for_the_next(
    sqlite_world: World,
) -> None:
    host = await sqlite_world.host(Alarmed, shutdown_timeout=100)
    await host.get(Alarmed, "alice").set("tea", 20)
    async with host.using(host.get(Alarmed, "bob")._address):
        stopping = asyncio.create_task(host.stop(50))
        await asyncio.sleep(40)
        assert times("tea") == []
    await stopping
    await sqlite_world.stop()
    with pytest.raises(HostStopped):
        await host.get(Alarmed, "alice").set("tea", 1)
    host = await sqlite_world.next_life()
    await host.until_settled()
    assert times("tea") == [40.0]


async def test_what_the_host_remembers_of_alarms_goes_with_them(sqlite_world: World) -> None:
    Alarmed.handlers["raises"] = raising
    host = await sqlite_world.host(Alarmed)
    for n in range(50):
        await host.get(Alarmed, f"{n}").set("raises", 1)
        await host.get(Alarmed, f"{n}").set("fine", 2)
    await asyncio.sleep(10)
    assert len(host._alarms._failures) == 50
    for n in range(50):
        await host.get(Alarmed, f"{n}").set("raises", None)
    await asyncio.sleep(1000)
    assert (host._alarms._failures, host._alarms._fired, timers(host)) == ({}, {}, [])


@pytest.mark.parametrize("passes", range(8))
async def test_what_is_set_anew_to_the_moment_at_which_it_fires_fires_at_once(
    world: World, passes: int
) -> None:
    """As one-shots do that are due in the same millisecond: it is not a row that was left as it was."""
    setting: list[asyncio.Task[None]] = []

    async def set_anew_meanwhile(agent: Alarmed, source: str) -> None:
        await agent.set(source, None)
        if len(setting) < 5:
            setting.append(asyncio.create_task(agent.set(source, 10)))
        for _ in range(passes):  # so that its row is read before, while or after that is told
            await asyncio.sleep(0)

    Alarmed.handlers["tea"] = set_anew_meanwhile
    host = await world.host(Alarmed)
    await host.get(Alarmed, "alice").set("tea", 10)
    await asyncio.sleep(60)
    assert times("tea") == [10.0] * 6
    assert await alarm_rows(host) == []
