"""The streams table: the chunks that turns have produced, one row a flush.

`seq` is the number of the row's first chunk, `count` how many there are. The body is their JSON texts, one a
line, exactly as they are sent to clients.
"""

from __future__ import annotations

from outlast.store.operations import BulkStatement, Query, Statement

APPEND = Statement.same(
    "streams append",
    "agent text, turn text, seq bigint, count bigint, attempt bigint, body text",
    """
        INSERT INTO streams (agent, turn, seq, count, attempt, body)
        VALUES (:agent, :turn, :seq, :count, :attempt, :body)
    """,
    key=3,
    expect=True,
)

OF_TURN = Query.same(
    "SELECT seq, attempt, body FROM streams WHERE agent = ? AND turn = ? ORDER BY seq", bulk=True
)

# Of turns that ended before a time, or whose entry is gone. An open one keeps its chunks, however old.
EXPIRE = BulkStatement.same(
    "streams expire",
    """
        DELETE FROM streams WHERE agent = ?1 AND turn NOT IN
            (SELECT id FROM inbox WHERE agent = ?1 AND (ended_at IS NULL OR ended_at > ?2))
    """,
)
FORGET = BulkStatement.same("streams forget", "DELETE FROM streams WHERE agent = ? AND turn = ?")
CLEAR = BulkStatement.same("streams clear", "DELETE FROM streams WHERE agent = ?")
