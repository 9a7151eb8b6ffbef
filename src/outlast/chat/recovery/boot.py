"""Counts boots that have a turn to recover, in case the process crashes during them.

A crash proves nothing while other agents boot as well: the agent boots alone the next time. Only crashes
while it boots alone are *strikes*; after three in a row, its interrupted turn is given up. A process that was
asked to stop does not count.
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

MAX_STRIKES = 3  # unfinished boots alone, in a row
ALONE_FOR = 0.5  # seconds that one boot delays the others, at most


def strikes_of(unfinished: int) -> int:
    """Return how many of the unfinished boots in a row were alone: all but the first."""
    return max(0, unfinished - 1)


class BootStrikes(ChatPart):
    """The boots of one agent."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._inbox = parts[Inbox]
        self._incidents = parts[Incidents]
        self._place: object | None = None  # in the boot order, if it boots alone
        self._is_in_order = False  # it occupies a place in the boot order
        self._timer: asyncio.TimerHandle | None = None
        self.is_in_progress = False
        self.unfinished = 0  # earlier boots, in a row

    # --- moments ---------------------------------------------------------------------------------

    async def load(self) -> None:
        """Count a boot with a turn to recover, before anything large is read."""
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
        """Whether it crashed so often that its turn is given up."""
        return strikes_of(self.unfinished) >= MAX_STRIKES

    async def begin(self) -> None:
        """Count a boot. Its end resets the count."""
        self.unfinished = await self._incidents.unfinished_boots()
        self._place = self if self.unfinished else None
        await self.activation.boot_order.enter(self._place)
        self._is_in_order = True
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(ALONE_FOR, self.make_way, context=Context())
        self.is_in_progress = True
        await self.commits.commit([self._incidents.boot()])
        if self.is_degraded:
            strikes = strikes_of(self.unfinished)
            error = f"the process crashed {strikes} times in a row while this agent started alone"
            agent = self.activation.address.text
            emit = self.activation.events.emit
            emit(events.BootDegraded, agent, step="recovery", error=error)

    def make_way(self) -> None:
        """Let the next agent boot."""
        if self._is_in_order:
            self._is_in_order = False
            self.activation.boot_order.leave(self._place)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def up(self, commit: Commit) -> None:
        """End the boot in a commit."""
        commit.write(self._incidents.up())
        commit.then(self._finished)

    def _finished(self) -> None:
        self.is_in_progress = False
        self.unfinished = 0
        self.make_way()

    async def forget(self) -> None:
        """Reset the count, so that turns are resumed again."""
        commit = self.commits.new()
        self.up(commit)
        await commit.stored()

    async def failed(self) -> None:
        """Reset the count of a boot that did not end, but did not crash either."""
        if self.is_in_progress:
            with suppress(OutlastError):
                await self.forget()
