"""The decisions table: the decision about each interruption of a turn, for later inspection.

A row is written in the commit that makes the decision durable, and is kept as long as the turn's inbox entry,
while an incident is deleted when its turn ends. `attempt` is the one that was interrupted. The body
is JSON: `row`, `action` and `why` of the decision, the `cause`, how many chunks there were (`produced`), and,
once the answer has continued, how many milliseconds after the interruption that was (`continued_ms`) and how
the rest was joined to the text (`seam`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlast.chat.recovery.decision import Decision
from outlast.core import json
from outlast.store.operations import BulkStatement, Operation, Query, Statement

_RECORD = Statement.same(
    "decisions record",
    "agent text, turn text, attempt bigint, body text, at bigint",
    """
        INSERT INTO decisions (agent, turn, attempt, body, at)
        VALUES (:agent, :turn, :attempt, :body, :at)
        ON CONFLICT DO NOTHING
    """,
    key=3,
)

# Written in the commit of the first chunk of the resumed turn.
_CONTINUED = Statement.same(
    "decisions continued",
    "agent text, turn text, attempt bigint, body text",
    """
        UPDATE decisions SET body = :body
        WHERE decisions.agent = :agent AND decisions.turn = :turn AND decisions.attempt = :attempt
    """,
    key=3,
)

OF_TURN = Query.same(
    "SELECT attempt, body, at FROM decisions WHERE agent = ? AND turn = ? ORDER BY attempt"
)

# Deletes the decisions of entries that were deleted.
EXPIRE = BulkStatement.same(
    "decisions expire",
    """
        DELETE FROM decisions WHERE agent = ?1 AND turn NOT IN
            (SELECT id FROM inbox WHERE agent = ?1)
    """,
)


def record(
    agent: str, turn: str, attempt: int, decision: Decision, cause: str, produced: int, now: int
) -> Operation:
    """Return the operation for the commit that makes the decision durable."""
    body = json.encode(_body(decision, cause, produced))
    return _RECORD, (agent, turn, attempt, body, now)


def continued(
    agent: str,
    turn: str,
    attempt: int,
    decision: Decision,
    cause: str,
    produced: int,
    ms: int,
    seam: Mapping[str, Any] | None,
) -> Operation:
    """Return the operation for the commit with which the answer continues."""
    body = {**_body(decision, cause, produced), "continued_ms": ms}
    if seam is not None:
        body["seam"] = seam
    return _CONTINUED, (agent, turn, attempt, json.encode(body))


def _body(decision: Decision, cause: str, produced: int) -> dict[str, Any]:
    return {
        "row": decision.row,
        "action": decision.action,
        "why": decision.why,
        "cause": cause,
        "produced": produced,
    }
