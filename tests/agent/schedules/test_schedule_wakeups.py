"""Schedules that are made while others are being looked up: none of them waits for the next alarm."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outlast import Agent, Host
from outlast.agent.schedules import sql as schedule_rows
from support import World, forever

pytestmark = pytest.mark.virtual_time


class Clock(Agent):
    calls: list[str] = []

    async def begin(self, seconds: float, what: str) -> None:
        await self.schedule(seconds, self.tick, what)

    async def tick(self, what: str) -> None:
        Clock.calls.append(what)
        if what == "never ends":
            await forever()


class Slow:
    """Holds back two answers of the store, as a slow network would: that nothing is due any more, and
    that the alarm was set accordingly."""

    def __init__(self, host: Host) -> None:
        self.found_nothing = asyncio.Event()
        self.passes = asyncio.Event()
        self.ends = asyncio.Event()
        self._looks = 0
        self._fetch, self._submit = host.store.fetch, host.store.submit
        host.store.fetch = self.fetch  # type: ignore[method-assign]
        host.store.submit = self.submit  # type: ignore[method-assign,assignment]

    async def fetch(self, query: Any, *arguments: Any) -> Any:
        rows = await self._fetch(query, *arguments)
        if query is schedule_rows.DUE:
            self._looks += 1
            if self._looks == 2:
                self.found_nothing.set()
                await self.passes.wait()
        return rows

    def submit(self, fence: Any, operations: list[Any]) -> Any:
        outcome = self._submit(fence, operations)
        if self._looks != 2 or operations[0][0] is not schedule_rows.DISARM:
            return outcome

        async def late() -> Any:
            await self.ends.wait()
            return await outcome

        return asyncio.ensure_future(late())


async def test_what_falls_due_while_the_scan_of_a_boot_ends_is_run_at_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    Clock.calls = []
    host = await world.host(Clock, shutdown_timeout=0)
    await host.get(Clock, "c").begin(5, "never ends")
    await asyncio.sleep(10)
    host = await world.next_life(shutdown_timeout=0)
    slow = Slow(host)
    await slow.found_nothing.wait()  # but for what the first life has left
    await host.get(Clock, "c").begin(0, "second")
    slow.passes.set()
    await asyncio.sleep(0.1)  # its alarm goes off, and joins a scan that has seen nothing of it
    slow.ends.set()
    await asyncio.sleep(0.1)
    assert Clock.calls == ["never ends", "never ends", "second"]
    await world.stop()
    assert "failed" not in caplog.text
