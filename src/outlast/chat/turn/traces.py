"""The trace of a turn's first attempt, so that later attempts can refer to it."""

from __future__ import annotations

from outlast.agent.commit import Commit
from outlast.chat.turn.part import ChatPart
from outlast.chat.turn.turn import Turn
from outlast.store.operations import BulkStatement, Query, Statement

_REMEMBER = Statement.same(
    "traces remember",
    "agent text, turn text, parent text",
    """
        INSERT INTO traces (agent, turn, parent) VALUES (:agent, :turn, :parent)
        ON CONFLICT DO NOTHING
    """,
    key=2,
)
_PARENT = Query.same("SELECT parent FROM traces WHERE agent = ? AND turn = ?")

# Deletes the traces of ended turns.
EXPIRE = BulkStatement.same(
    "traces expire",
    """
        DELETE FROM traces WHERE agent = ?1 AND turn NOT IN
            (SELECT id FROM inbox WHERE agent = ?1 AND ended_at IS NULL)
    """,
)


class Traces(ChatPart):
    """The traces of one agent's turns."""

    def remember(self, turn: Turn, parent: str) -> None:
        """Store the trace in the next commit of the turn's stream, unless there is one."""
        turn.stream.attach((_REMEMBER, (self.address, turn.request_id, parent)))

    async def parent_of(self, turn: str) -> str | None:
        found = await self.activation.store.fetch(_PARENT, self.address, turn)
        return found[0][0] if found else None

    def expire(self, commit: Commit, now: int) -> None:
        commit.write((EXPIRE, (self.address,)))
