"""The store is away while a schedule is due: it is put off, not used up, and runs when the store is back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from proxy import proxied
from rows import other_connection

from outlast import Agent, Host
from outlast.core.errors import StoreUnavailable
from outlast.host.wakeups import alarms
from outlast.store.operations import Query
from outlast.store.postgres import engine as postgres
from support import World, alarm_rows, hosting

AWAY = 600.0  # seconds; the retries inside the process end after a few
TRIES_BEFORE_WAIT = 60.0  # seconds: only a test that fails waits that long


class Clock(Agent):
    """Notes what it was called with, and stores it."""

    calls: list[str] = []
    behave: Any = None

    async def begin(self) -> None:
        async with self.commit():
            await self.schedule(10, self.tick, "once")
            await self.schedule_every(100, self.tick, "every")
            await self.schedule("* * * * *", self.tick, "cron")

    async def soon(self) -> None:
        await self.schedule(1, self.tick, "once")

    async def tick(self, what: str) -> None:
        Clock.calls.append(what)
        if Clock.behave is not None:
            await Clock.behave(what)
        await self.storage.put(what, await self.storage.get(what, 0) + 1)


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    Clock.calls, Clock.behave = [], None
    yield
    Clock.calls, Clock.behave = [], None


NO_SPACE = """
    CREATE FUNCTION no_space() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE 'no space left on device' USING ERRCODE = '53100';
    END $$;
    CREATE TRIGGER no_space BEFORE INSERT OR UPDATE ON agents
        FOR EACH ROW EXECUTE FUNCTION no_space()
"""
SPACE = "DROP FUNCTION no_space CASCADE"


async def execute(url: str, sql: str) -> None:
    """On the server, from outside, while virtual time stands still."""

    async def other() -> None:
        async with other_connection(url) as connection:
            await connection.execute("SET client_min_messages = error")
            await connection.execute(sql)

    await asyncio.to_thread(asyncio.run, other())


@contextlib.asynccontextmanager
async def away(host: Host, url: str, *, reads: bool, writes: bool) -> AsyncIterator[None]:
    """Inside the block the store cannot be read any more, or not be written: its disk is full."""
    store: Any = host.store
    fetch = store.fetch

    async def failing(query: Query, *arguments: Any) -> Any:
        raise StoreUnavailable("the network is down")

    if writes and store.engine == "sqlite":
        store._db.execute("PRAGMA query_only = 1")
    elif writes:
        await execute(url, NO_SPACE)
    if reads:
        store.fetch = failing
    yield
    store.fetch = fetch
    if writes and store.engine == "sqlite":
        store._db.execute("PRAGMA query_only = 0")
    elif writes:
        await execute(url, SPACE)


async def ticks(host: Host, what: str) -> int:
    """How often it was stored; the agent itself may be about to be discarded."""
    found = await host.store.fetch(Query.same("SELECT value FROM storage WHERE key = ?"), what)
    return int(found[0][0]) if found else 0


async def one_shots(host: Host) -> list[Any]:
    return await host.store.fetch(Query.same("SELECT id FROM schedules WHERE kind = 'delayed'"))


@pytest.mark.virtual_time
@pytest.mark.invariant("B1", "B5")
@pytest.mark.parametrize(
    ("reads", "writes"),
    [(False, True), (True, False), (True, True)],
    ids=["no writes", "no reads", "neither"],
)
@pytest.mark.parametrize("idle_timeout", [1, 10**6], ids=["evicted", "in memory"])
async def test_what_is_due_while_the_store_is_away_runs_when_it_is_back(
    world: World, reads: bool, writes: bool, idle_timeout: float
) -> None:
    host = await world.host(Clock, idle_timeout=idle_timeout)
    await host.get(Clock, "c").begin()
    await asyncio.sleep(5)
    async with away(host, world.url, reads=reads, writes=writes):
        await asyncio.sleep(AWAY)
        assert Clock.calls == [], "nothing runs that could not be claimed"
    await asyncio.sleep(310)  # at the latest
    assert Clock.calls.count("once") == await ticks(host, "once") == 1
    assert await one_shots(host) == []
    for what, most in (("every", 4), ("cron", 6)):
        assert 1 <= Clock.calls.count(what) <= most, "what was missed runs once, and it goes on"
    assert len(await alarm_rows(host)) == 1


@pytest.mark.virtual_time
@pytest.mark.invariant("B1", "B5")
async def test_a_callback_under_which_the_store_goes_away_runs_again_when_it_is_back(
    world: World,
) -> None:
    async def slow(what: str) -> None:
        if Clock.calls.count(what) == 1:
            await asyncio.sleep(15)

    Clock.behave = slow
    host = await world.host(Clock)
    await host.get(Clock, "c").begin()
    await asyncio.sleep(20)
    assert Clock.calls == ["once"]
    async with away(host, world.url, reads=False, writes=True):
        await asyncio.sleep(AWAY)
        tries = Clock.calls.count("once")
        assert await ticks(host, "once") == 0
        assert await one_shots(host) != [], "it is not used up"
    await asyncio.sleep(3700)  # at the latest
    assert await ticks(host, "once") == 1
    assert Clock.calls.count("once") == tries + 1
    assert await one_shots(host) == []


@pytest.mark.invariant("B5")
async def test_what_is_due_while_the_server_cannot_be_reached_runs_when_it_can(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "FIRST_RETRY", 0.01)
    monkeypatch.setattr(alarms, "FIRST_RETRY", 50)
    async with proxied(postgres_url) as (proxy, url), hosting(Clock, url=url) as host:
        await host.get(Clock, "c").soon()
        await host.store.drained()
        proxy.down = ""
        proxy.stop()  # every connection is lost
        async with asyncio.timeout(TRIES_BEFORE_WAIT):
            with monkeypatch.context() as impatient:  # a busy server that is up may need as long
                impatient.setattr(postgres, "READ_FOR", 0.2)
                with pytest.raises(StoreUnavailable):
                    await ticks(host, "once")
                due = host.clock.now() + 1100
                while host.clock.now() < due or proxy.refused < 20:
                    await asyncio.sleep(0.01)
            assert Clock.calls == []
            proxy.down = None
            while Clock.calls != ["once"] or await one_shots(host):
                await asyncio.sleep(0.01)
        assert await ticks(host, "once") == 1
