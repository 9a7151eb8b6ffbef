"""How long what a turn leaves behind is kept: stream and ledger ten minutes, entries and keys thirty days.

Only turns that have ended are touched. One alarm per agent, set in the commit of a turn's end.
"""

from __future__ import annotations

from outlast.agent.commit import Commits
from outlast.chat.recovery import incidents
from outlast.chat.recovery import sql as decision_rows
from outlast.chat.stream import sql as stream_rows
from outlast.chat.tools import ledger
from outlast.chat.turn import traces
from outlast.host.life.activation import Activation
from outlast.host.wakeups.alarms import alarm, alarm_by
from outlast.store.operations import BulkStatement, Operation, Query

ALARM = "chat:retention"
KEEP_STREAMS = 10 * 60 * 1000  # milliseconds after the end
KEEP_ENTRIES = 30 * 24 * 3600 * 1000

_NEXT = Query.same("SELECT min(ended_at) FROM inbox WHERE agent = ? AND ended_at > ?", bulk=True)
# Submissions stay until they are deleted.
_FORGET = BulkStatement(
    "inbox forget",
    sqlite="DELETE FROM inbox WHERE agent = ? AND ended_at <= ? AND origin <> 'submission'",
    postgres="DELETE FROM inbox WHERE agent = $1 AND ended_at <= $2 AND origin <> 'submission'",
)


class Retention:
    """The clearing up after the turns of one agent."""

    def __init__(self, activation: Activation, commits: Commits) -> None:
        self._agent = activation.address.text
        self._activation = activation
        self._commits = commits
        self._is_armed = False
        self._is_arming = False
        self._at = 0  # when what the last turn leaves behind is to be deleted

    def arm(self) -> list[Operation]:
        """For the commit of a turn's end. An alarm that is set already is early enough."""
        self._at = self._activation.clock.now() + KEEP_STREAMS
        self._is_arming = not self._is_armed
        return [alarm_by(self._agent, ALARM, self._at)] if self._is_arming else []

    def armed(self) -> None:
        """That commit is durable."""
        if self._is_arming:
            self._is_arming, self._is_armed = False, True
            self._activation.alarm_was_set(self._at)

    async def sweep(self) -> None:
        """Delete what is old enough, and come back for what is not."""
        now = self._activation.clock.now()
        due = now - KEEP_STREAMS
        self._is_armed = False
        found = await self._activation.store.fetch(_NEXT, self._agent, due)
        youngest: int | None = found[0][0]
        at = None if youngest is None else youngest + KEEP_STREAMS
        if self._at > now:  # the query may have missed the end of a turn that is being stored
            at = self._at if at is None else min(at, self._at)
        await self._commits.commit(
            [
                (stream_rows.EXPIRE, (self._agent, due)),
                (ledger.EXPIRE, (self._agent, due, now - KEEP_ENTRIES)),
                (traces.EXPIRE, (self._agent,)),
                (incidents.EXPIRE, (self._agent, now - incidents.KEEP)),
                (_FORGET, (self._agent, now - KEEP_ENTRIES)),
                (decision_rows.EXPIRE, (self._agent,)),
                alarm(self._agent, ALARM, at),
            ]
        )
        self._is_armed = at is not None
        if at is not None:
            self._activation.alarm_was_set(at)
