"""Boots that have something to recover: counted, should they never come to an end.

A boot that does not come to its end proves nothing while others boot as well: the agent boots alone the next
time. Only boots that fail alone are *strikes*; after three in a row, what the agent was doing is given up. A
process that was asked to stop leaves no mark.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import Context

from outlast.agent.commit import Commit
from outlast.agent.part import Parts
from outlast.chat.inbox.inbox import Inbox
from outlast.chat.recovery.incidents import Incidents
from outlast.chat.turn.part import ChatPart
from outlast.chat.turn.settlement import Settlement
from outlast.chat.types import events
from outlast.core.errors import OutlastError

MAX_STRIKES = 3  # boots alone, in a row, that did not come to an end
ALONE_FOR = 0.5  # seconds, at most, that one holds up the others


def strikes_of(unfinished: int) -> int:
    """Of so many boots in a row that did not come to an end, those alone: all but the first."""
    return max(0, unfinished - 1)


class BootStrikes(ChatPart):
    """Of one agent."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._inbox = parts[Inbox]
        self._incidents = parts[Incidents]
        self._place: object | None = None  # in the order of boots, if it is alone
        self._is_waited_for = False  # it holds a place in that order
        self._timer: asyncio.TimerHandle | None = None
        self.is_under_way = False
        self.unfinished = 0  # boots before this one, in a row

    # --- moments ---------------------------------------------------------------------------------

    async def load(self) -> None:
        """Before anything large is read: a boot with something to recover is counted, should it die."""
        if any(entry.state == "running" for entry in self._inbox.open):
            await self.begin()

    async def start_failed(self) -> None:
        await self.failed()

    async def host_stops(self, cause: str) -> None:
        await self.failed()

    def leave(self, reason: Exception) -> None:
        self.make_way()

    def settled(self, commit: Commit, settlement: Settlement) -> None:
        if settlement.was_running and settlement.turn is None:
            self.up(commit)

    def cleared(self, commit: Commit) -> None:
        self.up(commit)

    # --- a boot ----------------------------------------------------------------------------------

    @property
    def is_degraded(self) -> bool:
        """Whether it has died so often that what it was doing is given up."""
        return strikes_of(self.unfinished) >= MAX_STRIKES

    async def begin(self) -> None:
        """Count a boot. What comes to an end takes that back."""
        self.unfinished = await self._incidents.unfinished_boots()
        self._place = self if self.unfinished else None
        await self.activation.boot_order.enter(self._place)
        self._is_waited_for = True
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(ALONE_FOR, self.make_way, context=Context())
        self.is_under_way = True
        await self.commits.commit([self._incidents.boot()])
        if self.is_degraded:
            strikes = strikes_of(self.unfinished)
            error = f"the process died {strikes} times in a row while this agent was starting alone"
            agent = self.activation.address.text
            emit = self.activation.events.emit
            emit(events.BootDegraded, agent, step="recovery", error=error)

    def make_way(self) -> None:
        """Let the next one boot."""
        if self._is_waited_for:
            self._is_waited_for = False
            self.activation.boot_order.leave(self._place)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def up(self, commit: Commit) -> None:
        """The boot has come to its end."""
        commit.write(self._incidents.up())
        commit.then(self._came_up)

    def _came_up(self) -> None:
        self.is_under_way = False
        self.unfinished = 0
        self.make_way()

    async def forget(self) -> None:
        """What has died so often is tried again."""
        commit = self.commits.new()
        self.up(commit)
        await commit.stored()

    async def failed(self) -> None:
        """It has not come to its end, and that was nobody's death."""
        if self.is_under_way:
            with suppress(OutlastError):
                await self.forget()
