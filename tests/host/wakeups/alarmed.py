"""An agent with alarms, for the tests of alarms: what it does when woken is up to the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from outlast import Agent, Host
from outlast.agent.agent import parts_of
from outlast.testing.virtual import START
from support import write_alarm

Handler = Callable[["Alarmed", str], Awaitable[None]]


class Alarmed(Agent):
    """Clears its alarm when it is woken, unless a handler of the test's own does something else."""

    woken: ClassVar[list[tuple[str, str, float]]] = []  # name, source, second
    handlers: ClassVar[dict[str, Handler]] = {}  # by source
    starts: ClassVar[list[str]] = []

    async def on_start(self) -> None:
        Alarmed.starts.append(self.name)

    async def set(self, source: str, second: float | None) -> None:
        """Set the alarm for so many seconds after the beginning of the test, or clear it."""
        at = None if second is None else START + round(second * 1000)
        await write_alarm(self, source, at)
        if at is not None:
            parts_of(self).activation.alarm_was_set(at)

    async def _wake(self, source: str) -> None:
        now = (parts_of(self).activation.clock.now() - START) / 1000
        Alarmed.woken.append((self.name, source, now))
        handler = Alarmed.handlers.get(source)
        if handler is None:
            await self.set(source, None)
        else:
            await handler(self, source)


def forget() -> None:
    """Between tests."""
    Alarmed.woken, Alarmed.handlers, Alarmed.starts = [], {}, []


def times(source: str) -> list[float]:
    """When the alarm of this source fired, in seconds."""
    return [second for _, each, second in Alarmed.woken if each == source]


def timers(host: Host) -> list[Any]:
    """The timers that the host's alarms have on the event loop."""
    handles = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    alarms = host._alarms
    return [
        handle
        for handle in handles
        if not handle.cancelled() and getattr(handle._callback, "__self__", None) is alarms
    ]
