"""The tables of the session battery, and the statements about overlays."""

from __future__ import annotations

from pathlib import Path

from outlast.store.operations import BulkStatement, Query, Statement
from outlast.store.schema import Schema

SCHEMA = Schema(
    "session",
    Path(__file__).parent / "sql",
    owned=dict.fromkeys(
        ("session_blocks", "session_overlays", "session_texts", "session_indexed"), "agent"
    ),
)

OVERLAYS = Query.same(
    "SELECT number, first, last, summary, tokens, at FROM session_overlays WHERE agent = ?"
    " ORDER BY number DESC LIMIT ?"
)
# The newest overlay of the messages before one, which the window in memory begins with.
OVERLAY_BEFORE = Query.same(
    """
    WITH RECURSIVE earlier (id) AS (
        SELECT parent FROM messages WHERE agent = ?1 AND id = ?2 AND parent IS NOT NULL
        UNION
        SELECT messages.parent FROM earlier
        JOIN messages ON messages.agent = ?1 AND messages.id = earlier.id
        WHERE messages.parent IS NOT NULL
    )
    SELECT number, first, last, summary, tokens, at FROM session_overlays
    WHERE agent = ?1 AND last IN (SELECT id FROM earlier)
    ORDER BY number DESC LIMIT 1
    """,
    bulk=True,
)
ADD_OVERLAY = Statement.same(
    "session_overlays add",
    "agent text, number bigint, first text, last text, summary text, tokens bigint, at bigint",
    """
        INSERT INTO session_overlays (agent, number, first, last, summary, tokens, at)
        VALUES (:agent, :number, :first, :last, :summary, :tokens, :at)
    """,
    key=2,
    expect=True,
)
CLEAR_OVERLAYS = BulkStatement.same(
    "session_overlays clear", "DELETE FROM session_overlays WHERE agent = ?"
)
