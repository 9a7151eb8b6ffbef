"""Boots that have something to recover: counted, should they never come to an end.

A boot that does not come to its end proves nothing while others boot as well: the agent boots alone the next
time. Only boots that fail alone are *strikes*; after three in a row, what the agent was doing is given up. A
process that was asked to stop leaves no mark.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import Context

from outlast.agent.commit import Commits
from outlast.chat.recovery.incidents import Incidents
from outlast.chat.types import events
from outlast.core.errors import OutlastError
from outlast.host.life.activation import Activation

MAX_STRIKES = 3  # boots alone, in a row, that did not come to an end
ALONE_FOR = 0.5  # seconds, at most, that one holds up the others


def strikes_of(unfinished: int) -> int:
    """Of so many boots in a row that did not come to an end, those alone: all but the first."""
    return max(0, unfinished - 1)


class Boots:
    """Of one agent."""

    def __init__(self, activation: Activation, commits: Commits, incidents: Incidents) -> None:
        self._activation = activation
        self._commits = commits
        self._incidents = incidents
        self._place: object | None = None  # in the order of boots, if it is alone
        self._is_waited_for = False  # it holds a place in that order
        self._timer: asyncio.TimerHandle | None = None
        self.is_under_way = False
        self.unfinished = 0  # boots before this one, in a row

    @property
    def is_degraded(self) -> bool:
        """Whether it has died so often that what it was doing is given up."""
        return strikes_of(self.unfinished) >= MAX_STRIKES

    async def begin(self) -> None:
        """Count a boot. What comes to an end takes that back."""
        self.unfinished = await self._incidents.unfinished_boots()
        self._place = self if self.unfinished else None
        await self._activation.boot_order.enter(self._place)
        self._is_waited_for = True
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(ALONE_FOR, self.leave, context=Context())
        self.is_under_way = True
        await self._commits.commit([self._incidents.boot()])
        if self.is_degraded:
            strikes = strikes_of(self.unfinished)
            error = f"the process died {strikes} times in a row while this agent was starting alone"
            agent = self._activation.address.text
            emit = self._activation.events.emit
            emit(events.BootDegraded, agent, step="recovery", error=error)

    def leave(self) -> None:
        """Let the next one boot."""
        if self._is_waited_for:
            self._is_waited_for = False
            self._activation.boot_order.leave(self._place)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def came_up(self) -> None:
        """It has come to its end, and that is durable."""
        self.is_under_way = False
        self.unfinished = 0
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
