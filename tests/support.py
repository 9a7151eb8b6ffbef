"""Small things that several tests need."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from outlast import Event, Host
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
