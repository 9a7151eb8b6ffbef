"""The streams table: the chunks of turns, one row per flush.

`seq` is the number of the row's first chunk, `count` the number of chunks. The body is their JSON, one per
line, exactly as sent to clients.
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

# Deletes the chunks of turns that ended before a time, or whose entry was deleted.
EXPIRE = BulkStatement.same(
    "streams expire",
    """
        DELETE FROM streams WHERE agent = ?1 AND turn NOT IN
            (SELECT id FROM inbox WHERE agent = ?1 AND (ended_at IS NULL OR ended_at > ?2))
    """,
)
FORGET = BulkStatement.same("streams forget", "DELETE FROM streams WHERE agent = ? AND turn = ?")
CLEAR = BulkStatement.same("streams clear", "DELETE FROM streams WHERE agent = ?")
