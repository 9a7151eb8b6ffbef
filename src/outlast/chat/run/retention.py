"""Retention after a turn: its stream and ledger for ten minutes, entries and keys for thirty days.

Only rows of ended turns are deleted. There is one alarm per agent, set in the commit of a turn's end; each
part deletes its own rows.
"""

from __future__ import annotations

import asyncio

from outlast.agent.commit import Commit
from outlast.agent.part import Parts
from outlast.chat.inbox.sql import KEEP_STREAMS, NEXT_TO_EXPIRE
from outlast.chat.turn.part import ChatPart
from outlast.chat.turn.settlement import Settlement
from outlast.host.wakeups.alarms import alarm, alarm_by

ALARM = "chat:retention"


class Retention(ChatPart):
    """Deletes the expired rows of one agent's turns."""

    alarms = (ALARM,)

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._is_armed = False
        self._arming: Commit | None = None  # the commit that sets the alarm
        self._at = 0  # when the rows of the last turn expire

    def settled(self, commit: Commit, settlement: Settlement) -> None:
        if settlement.is_put_back:
            return
        self._at = at = self.activation.clock.now() + KEEP_STREAMS
        if self._is_armed or self._arming is commit:  # an alarm that is already set is earlier
            return
        self._arming = commit
        commit.write(alarm_by(self.address, ALARM, at))
        commit.then(lambda: self._armed(at))

    def _armed(self, at: int) -> None:
        self._is_armed, self._arming = True, None
        self.activation.alarm_was_set(at)

    async def wake(self, source: str) -> None:
        await asyncio.shield(self.activation.spawn(self.sweep(), "retention"))

    async def sweep(self) -> None:
        """Delete the expired rows, and set the alarm for the next."""
        now = self.activation.clock.now()
        self._is_armed = False
        due = now - KEEP_STREAMS
        found = await self.activation.store.fetch(NEXT_TO_EXPIRE, self.address, due)
        youngest: int | None = found[0][0]
        times = [] if youngest is None else [youngest + KEEP_STREAMS]
        if self._at > now:  # the query may have missed a turn whose end is being stored
            times.append(self._at)
        commit = self.commits.new()
        times += [at for at in self.parts.join("expire", commit, now) if at]
        next_at = min(times, default=None)
        commit.write(alarm(self.address, ALARM, next_at))
        await commit.stored()
        self._is_armed = next_at is not None
        if next_at is not None:
            self.activation.alarm_was_set(next_at)
