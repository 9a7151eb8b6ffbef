"""The trace in which a turn was first tried, so that whoever takes it up can point at it."""

from __future__ import annotations

from outlast.host.life.activation import Activation
from outlast.store.operations import BulkStatement, Operation, Query, Statement

_REMEMBER = Statement(
    "traces remember",
    sqlite="INSERT INTO traces (agent, turn, parent) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
    postgres="""
        INSERT INTO traces (agent, turn, parent) SELECT u.agent, u.turn, u.parent FROM {rows}
        ON CONFLICT DO NOTHING
    """,
    columns=[("agent", "text"), ("turn", "text"), ("parent", "text")],
    key=2,
)
_PARENT = Query.same("SELECT parent FROM traces WHERE agent = ? AND turn = ?")

# Of turns that have ended; nobody takes those up.
EXPIRE = BulkStatement(
    "traces expire",
    sqlite="""
        DELETE FROM traces WHERE agent = ?1 AND turn NOT IN
            (SELECT id FROM inbox WHERE agent = ?1 AND ended_at IS NULL)
    """,
    postgres="""
        DELETE FROM traces WHERE agent = $1 AND turn NOT IN
            (SELECT id FROM inbox WHERE agent = $1 AND ended_at IS NULL)
    """,
)


def remembering(agent: str, turn: str, parent: str) -> Operation:
    """For a commit of the turn's stream. The first one counts."""
    return _REMEMBER, (agent, turn, parent)


async def parent_of(activation: Activation, turn: str) -> str | None:
    found = await activation.store.fetch(_PARENT, activation.address.text, turn)
    return found[0][0] if found else None
