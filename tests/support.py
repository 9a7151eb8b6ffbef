"""Small things that several tests need."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from outlast import Event, Host
from outlast.agent.agent import parts_of
from outlast.host.address import Address
from outlast.host.life.activation import Activation
from outlast.host.life.activations import Activations
from outlast.host.wakeups.alarms import alarm
from outlast.store.base import StoreOptions
from outlast.store.operations import Query
from outlast.store.url import open_store
from outlast.testing import CountingIds, VirtualClock, VirtualLoop

ONE_SERVER = StoreOptions(server="tests")  # who opens a store with this may do so several times


@asynccontextmanager
async def hosting(
    *agents: type[Any], url: str, life: str = "1", **options: Any
) -> AsyncIterator[Host]:
    """A running host; on a virtual loop, with a clock that follows it and time that waits for it."""
    loop = asyncio.get_running_loop()
    store = await open_store(url, ONE_SERVER)
    if isinstance(loop, VirtualLoop):
        loop.watch(store)
        options.setdefault("clock", VirtualClock(loop))
    async with Host(agents, store, ids=CountingIds(life), **options) as host:
        yield host


def activations_of(host: Host) -> Activations:
    assert host._activations is not None
    return host._activations


def kept_in_memory(host: Host) -> dict[str, int]:
    """What a host remembers of agents that have left, by name; nothing when it is at rest."""
    activations = activations_of(host)
    held = {
        "families": len(activations._families),
        "leaving": len(activations._leaving),
        "barred": len(activations._barred),
        "outliving": len(activations._outliving),
    }
    return {name: count for name, count in held.items() if count}


def live_activation(host: Host, agent_class: type[Any], name: str = "a") -> Activation:
    """What the host knows of an agent that is in memory."""
    return activations_of(host)._live[Address.of(agent_class.__name__, name)]


def stub_at(host: Host, agent_class: type[Any], stub: Any) -> Any:
    """A stub of this host for an agent that another stub stands for, sub-agents included."""
    return activations_of(host).stub(agent_class, stub._address)


def cancel_boot(host: Host) -> None:
    """Let the host wake no agent by itself: the test does."""
    assert host._boot_task is not None
    host._boot_task.cancel()


class World:
    """A store, and the hosts that live on it one after another. What a test leaves running is stopped.

    For tests, as the fixtures `world` (once on each engine) and `sqlite_world`.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._agents: tuple[type[Any], ...] = ()
        self._lives = 0
        self._running: AsyncExitStack | None = None
        self._host: Host | None = None

    async def host(self, *agents: type[Any], **options: Any) -> Host:
        """Start the first host."""
        assert self._running is None, "a host is running: it has a next_life"
        self._agents, self._lives = agents, self._lives + 1
        hosted = hosting(*agents, url=self.url, life=str(self._lives), **options)
        self._running = AsyncExitStack()
        self._host = await self._running.enter_async_context(hosted)
        return self._host

    async def next_life(self, *agents: type[Any], **options: Any) -> Host:
        """Stop the host, if it runs, and start another one; with the same agents, unless it has others."""
        await self.stop()
        return await self.host(*(agents or self._agents), **options)

    async def stop(self) -> None:
        """Stop the host as its options say. Again: nothing."""
        running, self._running = self._running, None
        if running is not None:
            await running.aclose()

    async def kill(self) -> None:
        """End the host as SIGKILL does, as far as the store can tell: from now on it stores nothing."""
        assert self._host is not None
        self._host.store.abandon("the host was killed")
        self._host._is_marked = True  # it does not note that it stops, either
        await self._host.stop(0)
        await self.stop()


async def write_alarm(agent: Any, source: str, at: int | None) -> None:
    """Store an alarm of an agent as its parts do, in a commit of its own. None removes it."""
    parts = parts_of(agent)
    await parts.commits.commit([alarm(parts.activation.address.text, source, at)])


async def fiber_rows(host: Host, columns: str = "id, status, snapshot") -> list[tuple[Any, ...]]:
    """What the fibers table holds."""
    return await host.store.fetch(
        Query.same(f"SELECT {columns} FROM fibers ORDER BY created_at, id")
    )


async def alarm_rows(host: Host) -> list[tuple[Any, ...]]:
    return await host.store.fetch(
        Query.same("SELECT agent, source, wake_at FROM alarms ORDER BY wake_at")
    )


def listen(host: Host, wanted: str | type[Event]) -> list[Event]:
    """The events of a channel, a name or a class, as they come."""
    seen: list[Event] = []
    host.events.subscribe(wanted, seen.append)
    return seen


async def forever(*_: Any) -> None:
    """Work that never ends by itself."""
    await asyncio.get_running_loop().create_future()


def raw(url: str) -> sqlite3.Connection:
    """A plain connection to the SQLite file of a store, for meddling with it."""
    return sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
