"""Boots that have something to recover: counted, should they never come to an end, and told apart.

A boot is a *strike* from its beginning until it has come to its end. An agent whose boot kills the process
collects strikes, and so do all that were booting beside it. So whoever needs but one more boots alone: the
next death says who it was.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import Context

from outlast.agent.unit import Commits
from outlast.chat import events
from outlast.chat.incidents import Incidents
from outlast.core.errors import OutlastError
from outlast.host.activation import Activation

MAX_STRIKES = 3  # boots in a row that did not come to an end
LATER = 0.1  # seconds
ALONE_FOR = 0.5  # seconds, at most, that one holds up the others


class Boots:
    """Of one agent."""

    def __init__(self, activation: Activation, commits: Commits, incidents: Incidents) -> None:
        self._activation = activation
        self._commits = commits
        self._incidents = incidents
        self._alone: asyncio.TimerHandle | None = None
        self.is_under_way = False
        self.strikes = 0  # of the boots before this one

    @property
    def is_degraded(self) -> bool:
        """Whether it has died so often that what it was doing is given up."""
        return self.strikes >= MAX_STRIKES

    async def begin(self) -> None:
        """Count a boot. What comes to an end takes that back."""
        self.strikes = await self._incidents.strikes()
        if self.strikes >= MAX_STRIKES - 1:
            await self._be_alone()
        self.is_under_way = True
        await self._commits.commit([self._incidents.strike()])
        if self.is_degraded:
            error = f"it died {self.strikes} times in a row while it was starting"
            agent = self._activation.address.text
            emit = self._activation.events.emit
            emit(events.BootDegraded, agent, step="recovery", error=error)

    async def _be_alone(self) -> None:
        """Those that are given up anyway come last."""
        if self.is_degraded:
            await asyncio.sleep(LATER)
        await self._activation.suspects.acquire()
        loop = asyncio.get_running_loop()
        self._alone = loop.call_later(ALONE_FOR, self.leave, context=Context())

    def leave(self) -> None:
        """Let the next one boot."""
        if self._alone is not None:
            self._alone.cancel()
            self._alone = None
            self._activation.suspects.release()

    def came_up(self) -> None:
        """It has come to its end, and that is durable."""
        self.is_under_way = False
        self.strikes = 0
        self.leave()

    async def forget(self) -> None:
        """What has died so often is tried again."""
        await self._commits.commit([self._incidents.up()])
        self.came_up()

    async def failed(self) -> None:
        """It has not come to its end, and that was nobody's death."""
        if self.is_under_way:
            with suppress(OutlastError):
                await self.forget()
