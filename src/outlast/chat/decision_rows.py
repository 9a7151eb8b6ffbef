"""The decisions table: what was decided about each interruption of a turn, for whoever asks afterwards.

A row is written in the commit that makes the decision durable, and stays as long as the turn's inbox entry:
an incident ends with its turn, this tells what happened. `attempt` is the one that was interrupted. The body
is JSON: `row`, `action` and `why` of the decision, the `cause`, and how many chunks there were (`produced`).
"""

from __future__ import annotations

from outlast.chat.decisions import Decision
from outlast.core import json
from outlast.store.operations import BulkStatement, Operation, Query, Statement

_RECORD = Statement(
    "decisions record",
    sqlite="""
        INSERT INTO decisions (agent, turn, attempt, body, at) VALUES (?, ?, ?, ?, ?)
        ON CONFLICT DO NOTHING
    """,
    postgres="""
        INSERT INTO decisions (agent, turn, attempt, body, at)
        SELECT u.agent, u.turn, u.attempt, u.body, u.at FROM {rows}
        ON CONFLICT DO NOTHING
    """,
    columns=[
        ("agent", "text"),
        ("turn", "text"),
        ("attempt", "bigint"),
        ("body", "text"),
        ("at", "bigint"),
    ],
    key=3,
)

OF_TURN = Query.same(
    "SELECT attempt, body, at FROM decisions WHERE agent = ? AND turn = ? ORDER BY attempt"
)

# Of entries that are gone.
EXPIRE = BulkStatement(
    "decisions expire",
    sqlite="""
        DELETE FROM decisions WHERE agent = ?1 AND turn NOT IN
            (SELECT id FROM inbox WHERE agent = ?1)
    """,
    postgres="""
        DELETE FROM decisions WHERE agent = $1 AND turn NOT IN
            (SELECT id FROM inbox WHERE agent = $1)
    """,
)


def recording(
    agent: str, turn: str, attempt: int, decision: Decision, cause: str, produced: int, now: int
) -> Operation:
    """For the commit that makes the decision durable."""
    body = {
        "row": decision.row,
        "action": decision.action,
        "why": decision.why,
        "cause": cause,
        "produced": produced,
    }
    return _RECORD, (agent, turn, attempt, json.encode(body), now)
